#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of processes that load: what each rank holds against the manifests, through a mount and without, what they
read, and what becomes of the others when one of them dies.
"""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "mount"))
import lib  # noqa: E402
from lib import case, check, equal, sha  # noqa: E402

MIB = 1 << 20
LIBC = ctypes.CDLL(None)
DEVICE = ["--device", os.environ["DCPFS_DEVICE"]] if "DCPFS_DEVICE" in os.environ else []
LIMIT = 240  # seconds until a job must have ended, whatever happens to it
HANGS = 10   # --timeout of jobs of which a part never answers: a busy machine may keep the others from answering for half of it

SECRET = {"DCPLOAD_SECRET": "of two users"}  # ranks of a node otherwise are processes of one


def port():
    return 10000 + int.from_bytes(os.urandom(2), "little") % 20000


class Job:
    """dcpfs load by several processes; none is left behind."""

    def __init__(self, ranks, *argv, each=lambda rank: (), env_of=lambda rank: {}, by=lambda rank: [], comm="env", patience=120, verb="load"):
        env = {**lib.environment(), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port()), "DCPLOAD_TIMEOUT": str(patience),
               "TORCHELASTIC_RESTART_COUNT": os.urandom(8).hex()}  # another job may have the same port
        self.ranks = [subprocess.Popen([*by(r), os.path.abspath(lib.PROGRAM), verb, "--comm", comm,
                                        *(DEVICE if verb == "load" else []), *map(str, argv), *each(r)],
                                       env=env | {"RANK": str(r), "LOCAL_RANK": str(r)} | env_of(r), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                      for r in range(ranks)]
        self.codes, self.said, self.out, self.disk = [], [], "", 0

    def end(self):
        until = time.monotonic() + LIMIT
        for r, p in enumerate(self.ranks):
            try:
                out, err = p.communicate(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                lib.fail(f"rank {r} hangs\n{lib.stacks(p.pid)}")
                p.kill()
                out, err = p.communicate()
            self.out = self.out or out
            self.codes.append(p.returncode)
            self.said.append(err)
            check(not lib.DIRTY.search(err), f"sanitizer, rank {r}: {err[:4000]}")
        return self

    def report(self):
        self.end()
        if not check(set(self.codes) == {0}, f"exit codes {self.codes}: {self.said}"):
            return None
        return json.loads(self.out)


def parts(path):
    """{key: bytes} of a safetensors file."""
    data = lib.read(path)
    n = struct.unpack("<Q", data[:8])[0]
    return {k: data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
            for k, t in json.loads(data[8:8 + n]).items() if k != "__metadata__"}


def dumped(ranks, layout, *argv):
    """What each rank of a job had: [{key: sha256}]."""
    into = lib.fresh("dump")
    job = Job(ranks, *argv, "--layout", layout, "--partial", "--json", "--dump", into,
              comm="env" if ranks > 1 else "alone")
    if not job.report():
        return []
    return [{k: sha(v) for k, v in parts(p).items()} for p in sorted(into.iterdir())]


def golden_versions_are_loaded():
    """Every version, whole, by one process: the manifest's digests. On a GPU that is not there every fourth."""
    seen = tried = 0
    for folder in sorted(p.name for p in lib.GOLDEN.iterdir() if (p / "ckpt").is_dir() and p.name != "hostile"):
        for source, versions in lib.golden_sources(folder):
            for name, v in versions.items():
                case(f"{folder} {name}")
                if not v["complete"] or v["refused"] or not v["tensors"] or not (source / name).is_dir():
                    continue
                tried += 1
                if DEVICE and tried % 4:
                    continue
                got = dumped(1, "fsdp1", source, name)
                want = {k: t["sha256"] for k, t in v["tensors"].items() if "sha256" in t}
                if not got:
                    continue
                both = want.keys() & got[0].keys()
                check(len(both) * 2 > len(want), f"only {len(both)} of {len(want)} keys")
                equal({k: got[0][k] for k in both}, {k: want[k] for k in both}, "digests")
                seen += len(both)
    case("all goldens")
    check(seen > (250 if DEVICE else 1000), f"{seen} tensors compared")


def shards_agree_with_the_frameworks():
    """What frameworks cut for each rank, by jobs of as many processes."""
    seen = 0
    for folder, ways in (("dcp-fsdp2", ("--exchange", "node")), ("dcp-tp-fsdp", ("--io", "direct")),
                         ("paddle-dist", ("--exchange", "node", "--io", "direct")), ("hf-llama", ())):
        manifest = json.loads((lib.GOLDEN / folder / "manifest.json").read_text(encoding="utf-8"))
        for v in manifest["versions"]:
            for layout in sorted({s["layout"] for s in v.get("shards", []) if " " not in s["layout"]}):
                case(f"{folder} {v['name']} {layout}")
                want = [s for s in v["shards"] if s["layout"] == layout]
                ranks = int(layout.replace("dim", "").replace("fsdp", "").split("x")[-1])
                got = dumped(ranks, layout, lib.GOLDEN / folder / "ckpt", v["name"], *ways)
                for s in want if got else ():
                    equal(got[s["rank"]].get(s["key"]), s["sha256"], f"rank {s['rank']}: {s['key']}")
                    seen += 1
    case("all shards")
    check(seen > 100, f"{seen} shards compared")


def checkpoint(mib=8, versions=(1,), shapes=None):
    """A source of safetensors files with one large and many small tensors, or those of @shapes."""
    source = lib.fresh("source")
    for v in versions:
        header, off = {}, 0
        for k, shape in (shapes or {"big": [64 * mib, 4096], **{f"layer.{i}": [64, 65] for i in range(40)}}).items():
            n = 2 * shape[0] * shape[1]
            header[k] = {"dtype": "BF16", "shape": shape, "data_offsets": [off, off + n]}
            off += n
        text = json.dumps(header).encode()
        (source / f"step-{v}").mkdir()
        (source / f"step-{v}" / "model.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text + lib.rng("file", v).randbytes(off))
    return source


def apart():
    """A source of which every second tensor is far from the next one that is wanted."""
    source, n = lib.fresh("apart"), 50000
    text = json.dumps({f"t{i}": {"dtype": "BF16", "shape": [n], "data_offsets": [2 * i * n, 2 * (i + 1) * n]}
                       for i in range(60)}).encode()
    (source / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + lib.rng("apart").randbytes(120 * n))
    return source


def ranks_load_the_same():
    """1 to 8 of them: the same bytes in every way, and of a node each byte read once."""
    source = checkpoint()
    for n in (1, 2, 3, 4, 8):
        for layout in (f"fsdp{n}", f"dim1x{n}"):
            for exchange, io in (("never", "buffered"), ("node", "buffered"), ("never", "direct"), ("node", "direct")):
                if n == 8 and layout[0] == "d" and io == "buffered":
                    continue
                case(f"{n} ranks, {layout}, {exchange}, {io}")
                got = Job(n, source, "--layout", layout, "--exchange", exchange, "--io", io, "--check", "--json",
                          "--staging", "1M").report()
                if not got:
                    continue
                equal((got["ranks"], got["exchange"], got["checked"]), (n, exchange, True), "the report")
                size = os.path.getsize(source / "step-1" / "model.safetensors")
                if exchange == "node":
                    check(size * 0.98 < got["read"] <= size * 1.02, f"read {got['read']} of {size}")
                    equal(got["read"], sum(r["read"] for r in got["per_rank"]), "what ranks read")


def random_regions_are_loaded():
    """Layouts at random, as lists of regions: the bytes that each line names."""
    shapes = {"a": [211, 96], "b [0]": [64, 1000], "c": [1, 7]}
    source, layout = checkpoint(shapes=shapes), lib.WORK / "some.regions"
    whole = parts(source / "step-1" / "model.safetensors")
    for n, exchange, io in ((1, "never", "direct"), (2, "never", "buffered"), (4, "node", "direct")):
        case(f"regions of {n} ranks, {exchange}, {io}")
        rng, want = lib.rng("regions", n), [{} for _ in range(n)]
        for rank in range(n):
            for key, (rows, columns) in rng.choices(sorted(shapes.items()), k=rng.randrange(9)):
                top, end = sorted(rng.choices(range(rows + 1), k=2))
                left, right = sorted(rng.choices(range(columns + 1), k=2))
                line = f"{key} [{top or ''}:{end}, {left}:{'' if right == columns else right}]"
                want[rank][line] = sha(b"".join(whole[key][2 * (row * columns + left):2 * (row * columns + right)] for row in range(top, end)))
            if rank % 2:
                want[rank]["c"] = sha(whole["c"])
        layout.write_text("# at random\n" + "".join(f" {r}\n" + "".join(f"{r}\t{line} \n" for line in w) for r, w in enumerate(want)))
        equal(dumped(n, layout, source, "--exchange", exchange, "--io", io, "--check"), want, layout.read_text())


def from_disk(job):
    """Bytes that its ranks read from a disk. What they say is short: it fits a pipe, so they end without being heard."""
    disk = 0
    for p in job.ranks:
        os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
        disk += int(dict(x.split(": ") for x in lib.read(f"/proc/{p.pid}/io").decode().splitlines())["read_bytes"])
    return disk


def is_cached(fd, at):
    """Is this byte in the page cache? As far as the kernel says that without reading it (cachestat() of Linux 6.5)."""
    pages = (ctypes.c_uint64 * 5)()
    return LIBC.syscall(451, fd, (ctypes.c_uint64 * 2)(at, 1), pages, 0) == 0 and pages[0] > 0


def bytes_from_disk_are_counted():
    """The kernel says so, too: bytes that come from the disk, of a job that shares what it reads past the page cache."""
    source = checkpoint(32)
    size = os.path.getsize(source / "step-1" / "model.safetensors")
    Job(2, source, "--json").report()  # makes the index
    for n in (1, 4):
        case(f"{n} ranks, past the page cache")
        least = None
        for _ in range(10):  # the program comes from the disk, too, where memory is short: not each time
            job = Job(n, source, "--layout", f"dim1x{n}", "--exchange", "node", "--io", "direct", "--json")
            disk = from_disk(job)
            if not job.report() or disk == 0:
                print("what the disk gave is not counted here: a file system in memory")
                return
            least = min(least or disk, disk)
            if least <= size * 1.02:
                break
        check(size * 0.98 < least <= size * 1.02, f"{least} bytes came from the disk of {size}")
    case("half of the file is in the page cache")
    with open(source / "step-1" / "model.safetensors", "rb") as f:
        def forgotten():  # a page that is just being used stays
            os.fsync(f.fileno())
            lib.forget(f.fileno())
            return not is_cached(f.fileno(), size * 3 // 4)
        lib.wait(forgotten, "the page cache lets go of the file")
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        f.read(size // 2)
        job = Job(2, source, "--layout", "dim1x2", "--staging", "1M", "--json")
        disk = from_disk(job)
        check(not is_cached(f.fileno(), size * 3 // 4), "what was not in the page cache is there afterwards")
    got = job.report()
    equal(got and (got["io"], got["exchange"]), ("auto", "node"), "what is chosen")
    check(size * 0.4 < disk < size * 0.6 + MIB, f"{disk} bytes came from the disk of {size}, of which half was cached")


def reading_and_placing_overlap():
    """Files are read while what was read before is placed, by the trace."""
    source, trace = checkpoint(32), lib.WORK / "trace.json"
    for exchange in ("node", "never"):
        case(f"overlap, {exchange}")
        if not Job(2, source, "--layout", "dim1x2", "--exchange", exchange, "--io", "direct", "--trace", trace, "--json").report():
            continue
        spans = [{name: [(e["ts"], e["ts"] + e["dur"]) for e in json.loads(trace.read_text())["traceEvents"] if (e["name"], e["pid"]) == (name, rank)]
                  for name in ("read", "place")} for rank in range(2)]
        both = sum(any(a < end and start < b for a, b in s["read"]) for s in spans for start, end in s["place"])
        # how many is the machine's choice: threads that read wait for a core, too
        check(both > 0 and sum(len(s["place"]) for s in spans) > 10, f"{both} parts were placed during a read: {spans}")


def choices_are_explained():
    """Which rank reads for which, if no option says so; what was chosen, and why."""
    source = checkpoint(1)
    size = os.path.getsize(source / "step-1" / "model.safetensors")
    cold, cached = "what is needed is not in the page cache", "what is needed is in the page cache"
    direct, dry = "direct where it is not in the page cache", "the source lies in no mount of dcpfs"
    other = ["unshare", "--uts", "sh", "-c", 'echo elsewhere > /proc/sys/kernel/hostname && exec "$@"', "sh"]
    kind = subprocess.run(["stat", "-f", "-c", "%T", source], check=True, capture_output=True).stdout.strip()
    nodes = not subprocess.run([*other, "true"], check=False, capture_output=True).returncode
    Job(2, source, "--io", "buffered", "--json").report()
    for n, words, away, want in ((1, [], 0, ("never", "there is one rank", "buffered", cached)), (2, [], 0, ("never", cached, "buffered", cached)),
                                 (2, ["--io", "mount"], 0, ("never", cached, "auto", dry)),
                                 (2, ["--exchange", "all"], 0, ("node", "tcp carries no bulk data, and one node needs none", "buffered", cached)),
                                 (3, ["--exchange", "all"], 1, ("node", "tcp carries no bulk data: each node reads for itself", "buffered", cached)),
                                 (3, ["--cold"], 1, ("node", cold, "auto", direct)), (2, ["--cold"], 0, ("node", cold, "auto", direct))):
        case(f"{n} ranks, {words}, {away} elsewhere")
        if away and not nodes:
            print("two nodes left out: no other host name can be had")
            continue
        if words == ["--cold"] and kind in (b"tmpfs", b"ramfs"):
            print("cold files left out: they stay in memory")
            continue
        got = Job(n, source, "--layout", f"dim1x{n}", "--check", "--json", *words, by=lambda r, away=away: other if r < away else []).report()
        equal(got and (got["exchange"], got["exchange_why"], got["io"], got["io_why"].split(";")[0]), want, "what is chosen")
        once = size * (1 + (away > 0))
        check(not got or want[0] == "never" or once * 0.98 < got["read"] < once * 1.02, f"read {got and got['read']} of {size}, {1 + (away > 0)} nodes")
    if kind not in (b"tmpfs", b"ramfs"):
        case("2 ranks, which need no bytes in common, half of all each")
        source = checkpoint(shapes={"big": [512, 1024]})
        size = os.path.getsize(source / "step-1" / "model.safetensors")
        got = Job(2, source, "--layout", "fsdp2", "--check", "--json", "--cold").report()
        equal(got and (got["exchange"], got["exchange_why"], got["io"], got["unique"]),
              ("never", "ranks of a node need about as many bytes each, and none in common", "auto", None), "what is chosen")
        check(not got or got["read"] < size * 1.02, f"read {got and got['read']} of {size}")


def paths_in_mounts_are_loaded():
    """Whatever path in a mount: the same version; its files, or what the mount reads of them."""
    if NO_MOUNT:
        print(f"mounts left out: {NO_MOUNT}")
        return
    source = checkpoint(1, (1, 2))
    (source / "uneven.dcpl").write_text("mesh a=2 b=2\nlayer.* shard(1)@b flat(tight)@a\n* shard(0, sizes=[7,57])@a interleave(1, 3)@b\n")
    own = lib.fresh("layouts") / "own.dcpl"
    own.write_text("mesh a=2\nlayer.* shard(1)@a\n* replicate\n")
    with lib.mount(source, "--layout", own) as m:
        for path, version, layout in (("", "step-2", None), ("latest", "step-2", None), ("step-1", "step-1", None),
                                      ("step-1/shard/fsdp2/1", "step-1", "fsdp2")):
            for io in ("auto", "mount", "direct", *(["gds"] if DEVICE and not path else [])):  # the fake cuFile refuses files of FUSE
                case(f"mount, {path or 'root'}, {io}")
                got = Job(2, m.at / path, "--io", io, "--check", "--json").report()
                if got:
                    equal((got["version"], got["layout"]), (version, layout or "fsdp2"), "what is loaded")
                    equal(got["io"] == "mount", io == "mount", f"io: {got['io_why']}")
                    check(io != "gds" or "cuFileHandleRegister" not in got["io_why"], got["io_why"])
        for layout in ("fsdp3", "dim1x2", "uneven"):
            case(f"mount, {layout} as shard/ shows it")
            shown = [{k: sha(v) for k, v in parts(p / "model.safetensors").items()}
                     for p in sorted((m.at / "step-2/shard" / layout).iterdir()) if p.is_dir()]
            equal(dumped(len(shown), layout, source, "step-2", "--exchange", "node"), shown, "what ranks load")
        case("mount, a rank's directory alone")
        got = Job(1, m.at / "step-2/shard/fsdp2/1", "--json", comm="alone").report()
        equal(got and (got["layout"], got["needed"]), ("fsdp2", MIB // 4 + 40 * 64 * 65), "its part")
        case("mount, a rank's directory of a layout that only the mount was given")
        for rank in (0, 1):
            at = m.at / "step-2/shard/own" / str(rank)
            into = lib.fresh("own")
            got = Job(1, at, "--json", "--partial", "--dump", into, comm="alone").report()
            if got:
                equal(got["layout"], "own", "its layout")
                equal({k: sha(v) for k, v in parts(next(into.iterdir())).items()},
                      {k: sha(v) for k, v in parts(at / "model.safetensors").items()}, "its part")


def hidden_files_come_through_the_mount():
    """Ranks that see a mount and not its files, in a mount namespace of their own or as another user: through the mount."""
    if NO_MOUNT or os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        print("files that are hidden left out: they take a mount, root and a mount namespace")
        return
    source = checkpoint(1)
    blind = ["unshare", "-m", "--propagation", "private", "sh", "-c", f'mount -t tmpfs none "{source}" && exec "$@"', "sh"]
    with lib.mount(source) as m:
        for who in ({0, 1, 2}, {1}, {0}, {0, 2}):
            for exchange in ("node", "never"):
                case(f"ranks {who} do not see the files, {exchange}")
                gds = ["--io", "gds"] if DEVICE and exchange == "never" else []
                got = Job(3, m.at, "--layout", "fsdp3", "--exchange", exchange, "--check", "--json", *gds,
                          by=lambda r, who=who: blind if r in who else []).report()
                if got:
                    equal((got["io"], got["checked"]), ("mount", True), f"io: {got['io_why']}")
        case("a directory of the mount that is not a version")
        got = Job(1, m.at / "by-key").end()
        check(got.codes == [1] and 'no version "by-key"' in str(got.said), f"exit codes {got.codes}: {got.said}")
    over = {name: lib.fresh(name) for name in ("upper", "work", "over")}
    with lib.mount(source) as m:
        case("a file system above the mount, which is not dcpfs")
        way = f"lowerdir={m.at},upperdir={over['upper']},workdir={over['work']}"
        if subprocess.run(["mount", "-t", "overlay", "none", "-o", way, over["over"]], check=False, capture_output=True).returncode:
            print("an overlay left out: it cannot be mounted here")
        else:
            try:
                got = Job(2, over["over"] / "step-1/shard/fsdp2/1/model.safetensors", "--exchange", "node", "--check", "--json").report()
            finally:
                subprocess.run(["umount", over["over"]], check=True)
            equal(got and (got["format"], got["needed"], got["checked"]), ("safetensors", MIB // 4 + 40 * 64 * 65, True), "the file of a rank")
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    if subprocess.run([*other, os.path.abspath(lib.PROGRAM), "--version"], check=False, capture_output=True).returncode:
        print("another user left out: the user cannot run the program")
        return
    os.chmod(source, 0o700)
    os.chmod(lib.WORK, 0o711)
    cache = lib.fresh("cache-of-user")
    os.chmod(cache, 0o777)
    with lib.mount(source, "-o", "allow_other,uid=65534,gid=65534,umask=0222") as m:
        case("another user may not read the files")
        got = Job(2, m.at, "--check", "--json", by=lambda r: other, env_of=lambda r: {"XDG_CACHE_HOME": str(cache)}).report()
        if got:
            equal((got["io"], got["checked"]), ("mount", True), f"io: {got['io_why']}")
            check("ermission denied" in got["io_why"], f"io: {got['io_why']}")
        case("one rank may, the other may not")
        got = Job(2, m.at, "--check", "--json", by=lambda r: other if r else [], env_of=lambda r: SECRET).end()
        check(len(set(got.codes)) == 1, f"exit codes {got.codes}: {got.said}")
    os.chmod(source, 0o755)


def forbidden_files_are_named():
    """One rank may not read the directory, the version, or a file of it: no rank loads, one says whose and which."""
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    if os.geteuid() != 0 or subprocess.run([*other, os.path.abspath(lib.PROGRAM), "--version"], check=False, capture_output=True).returncode:
        print("files without permission left out: that takes root, and another user who can run the program")
        return
    source = lib.fresh("forbidden")
    shutil.copytree(lib.GOLDEN / "dcp-fsdp2" / "ckpt", source, dirs_exist_ok=True)
    os.chmod(lib.WORK, 0o711)
    all_users = "the users of all ranks must be able to read it"
    for victim, what, says in (
            (1, "", f"rank 1: {source}: Permission denied"),
            (0, "", f"rank 0: {source}: Permission denied"),
            (1, "step-20", "rank 1: step-20: it cannot be opened: Permission denied"),
            (1, "step-20/.metadata", "rank 1: step-20: .metadata: Permission denied"),
            (1, "step-20/__1_0.distcp", f"rank 1: step-20: __1_0.distcp: Permission denied, but not on rank 0: {all_users}"),
            (0, "step-20/__1_0.distcp", f"rank 1: step-20: __1_0.distcp: Permission denied on rank 0, but not here: {all_users}")):
        case(f"rank {victim} has no permission: {what or 'the source'}")
        path = source / what
        mode = os.stat(path).st_mode
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
        job = Job(3, source, by=lambda r, victim=victim: other if r == victim else [], env_of=lambda r: SECRET).end()
        os.chmod(path, mode)
        equal((job.codes, job.said), ([3] * 3, [f"dcpfs: {says}\n", "", ""]), "exit codes and messages")


def destinations_ask_for_huge_pages():
    """Destinations ask for huge pages."""
    if not os.path.exists("/sys/kernel/mm/transparent_hugepage"):
        print("huge pages left out: this kernel has none")
        return
    source = checkpoint()
    job = Job(1, source, "--repeat", 1000000, comm="alone")
    lib.wait(lambda: busy(job.ranks[0]), "it is loading")
    maps = lib.read(f"/proc/{job.ranks[0].pid}/smaps").decode().split("VmFlags:")
    job.ranks[0].kill()
    job.end()
    asked = [int(a.split("Size:")[1].split()[0]) for a, b in zip(maps, maps[1:]) if " hg" in b.split("\n")[0]]
    check(any(kib * 1024 >= os.path.getsize(source / "step-1" / "model.safetensors") - 4096 for kib in asked), f"KiB of huge pages: {asked}")


def valgrind_finds_nothing():
    """One rank under Valgrind: no byte that was not set is looked at, none is lost."""
    if not shutil.which("valgrind") or b"__asan_init" in lib.read(os.path.abspath(lib.PROGRAM)):
        print("valgrind left out: it is not installed, or the build has sanitizers")
        return
    watched = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full"]
    for ways in (("--io", "direct", "--dtype", "F32"), ("--io", "buffered")):
        case(f"valgrind, {ways}")
        Job(1, lib.GOLDEN / "dcp-fsdp2" / "ckpt", "step-20", "--layout", "fsdp2", "--rank", "1", "--check", "--json", *ways,
            by=lambda r: watched, comm="alone").report()


def killed_ranks_are_named():
    """One is killed, at any time: the others end, and say who it was."""
    source = checkpoint(2)
    for victim, exchange in ((0, "node"), (2, "node"), (1, "never"), (0, "never")):
        case(f"rank {victim} is killed while loading, {exchange}")
        job = Job(4, source, "--exchange", exchange, "--io", "direct", "--repeat", 1000000, "--timeout", 120)
        lib.wait(lambda: busy(job.ranks[victim]), "it is loading")
        job.ranks[victim].send_signal(signal.SIGKILL)
        job.end()
        others = [c for r, c in enumerate(job.codes) if r != victim]
        check(0 not in others and -signal.SIGKILL not in others, f"exit codes {job.codes}")
        told = job.said[0 if victim else 1]
        check(victim == 0 or f"rank {victim}" in told, f"does not name rank {victim}: {told}")
    for n in range(6):
        victim = n % 3
        case(f"rank {victim} is killed at once, {n}")
        job = Job(3, source, "--exchange", "node", "--repeat", 1000000, patience=2)
        time.sleep(lib.rng("kill", n).random() * 0.12)
        job.ranks[victim].kill()
        job.end()
        others = [c for r, c in enumerate(job.codes) if r != victim]
        check(len(set(others)) == 1 and others[0] > 0, f"exit codes {job.codes}: {job.said}")


def state(process):
    """A letter: T: it is stopped; Z: it has ended."""
    return lib.read(f"/proc/{process.pid}/stat").decode().rpartition(")")[2].split()[0]


def ranks_stopped_in_any_phase_are_named():
    """One is killed, or stops for good, in each phase: the others end, and one of them says who it was and in which phase."""
    stopper = pathlib.Path(lib.PROGRAM).resolve().parent.parent / "tests" / "load" / "libdcpfs-stop.so"
    source = checkpoint(8)
    time.sleep(2.1)  # an index of files younger than two seconds is built anew, and a rank that is stopped meanwhile keeps its lock
    Job(1, source, comm="alone").end()
    for dies in (True, False):
        running = []
        for victim in (0, 2):
            for point, exchange, doing in (("open", "never", "opening"), ("plan", "never", "planning"), ("plan", "node", "planning"),
                                           ("read", "never", "reading"), ("read", "node", "reading and exchanging"),
                                           ("exchange", "node", "reading and exchanging")):
                case(f"rank {victim} {'is killed' if dies else 'stops'} at {point}, {exchange}")
                job = Job(3, source, "--exchange", exchange, "--io", "direct", "--staging", "1M", "--timeout", 120 if dies else HANGS,
                          env_of=lambda r: {"LD_PRELOAD": str(stopper), "DCPFS_TEST_STOP": point} if r == victim else {})  # noqa: B023
                lib.wait(lambda: state(job.ranks[victim]) in "TZ", "it stops")  # noqa: B023
                check(state(job.ranks[victim]) == "T", f"it ended before: {job.ranks[victim].poll()}")
                if dies:
                    job.ranks[victim].kill()
                running.append((victim, point, exchange, doing, job))
        for victim, point, exchange, doing, job in running:
            case(f"rank {victim} {'was killed' if dies else 'stopped'} at {point}, {exchange}")
            for r, p in enumerate(job.ranks):
                if r != victim:
                    try:
                        p.wait(lib.PATIENCE)
                    except subprocess.TimeoutExpired:
                        lib.fail(f"rank {r} waits")
            job.ranks[victim].kill()
            job.end()
            equal(job.codes, [-signal.SIGKILL if r == victim else 3 for r in range(3)], f"exit codes; {job.said}")
            how = "has ended or died (its connection is closed)" if dies else f"did not answer within {HANGS}.0 s"
            equal(job.said, [f"dcpfs: rank {victim} at 127.0.0.1 {how} while {doing}\n" if r == (0 if victim else 1) else "" for r in range(3)],
                  "messages")


def busy(process):
    """Has it worked for a while, or ended?"""
    if process.poll() is not None:
        return True
    fields = lib.read(f"/proc/{process.pid}/stat").decode().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) > 20  # clock ticks


def hanging_ranks_are_named():
    """One stops: the others give up at the timeout."""
    source = checkpoint(2)
    running = []
    for victim, exchange in ((1, "node"), (0, "never")):
        job = Job(3, source, "--exchange", exchange, "--io", "direct", "--repeat", 1000000, "--timeout", HANGS)
        lib.wait(lambda: busy(job.ranks[victim]), "it is loading")  # noqa: B023
        job.ranks[victim].send_signal(signal.SIGSTOP)
        running.append((victim, exchange, job, time.monotonic()))
    for victim, exchange, job, began in running:
        case(f"rank {victim} stops, {exchange}")
        for r, p in enumerate(job.ranks):
            if r != victim:
                try:
                    p.wait(lib.PATIENCE)
                except subprocess.TimeoutExpired:
                    lib.fail(f"rank {r} waits for the one that stopped")
                    p.kill()
        check(time.monotonic() - began > HANGS / 2, "they gave up before the timeout")
        job.ranks[victim].kill()
        job.end()
        check(0 not in job.codes, f"exit codes {job.codes}")


def ranks_stopped_while_writing_are_named():
    """One of those that export, or save, stops while they write: the others end within the timeout, and one says who it was."""
    source, running, out = checkpoint(64), [], lib.fresh("out")
    for victim in (0, 2):
        for verb, words in ("export", ["--as", "torch-dcp", source, out / f"e{victim}"]), ("save", ["--layout", "fsdp3", source, out / f"s{victim}.{{rank}}"]):
            job = Job(3, *words, "--timeout", HANGS, verb=verb)
            lib.wait(lambda: any(job.ranks[r].poll() is not None for r in range(3)) or sum(1 for p in out.iterdir() if verb[0] + str(victim) in p.name)  # noqa: B023
                     >= (1 if verb == "export" else 3), "they write")  # noqa: B023
            job.ranks[victim].send_signal(signal.SIGSTOP)
            running.append((victim, verb, job, time.monotonic()))
    for victim, verb, job, began in running:
        case(f"rank {victim} of a job of dcpfs {verb} stops")
        for r, p in enumerate(job.ranks):
            if r != victim:
                try:
                    p.wait(lib.PATIENCE)
                except subprocess.TimeoutExpired:
                    lib.fail(f"rank {r} waits")
                    p.kill()
        took = time.monotonic() - began
        job.ranks[victim].kill()
        job.end()
        if any(job.codes[r] == 0 for r in range(3) if r != victim):
            print(f"{verb}: it had written all before it was stopped: {job.codes}")
            continue
        check(took < HANGS * 2, f"they ended after {took:.1f} s")
        said = job.said[0 if victim else 1]
        check(f"rank {victim} at 127.0.0.1 did not answer within {HANGS}.0 s while {'saving' if verb == 'save' else 'exporting'}" in said,
              f"messages: {job.said}")


def a_full_shm_is_survived():
    """What ranks share is memory without a name: a full /dev/shm changes nothing."""
    fill = 'mount -t tmpfs -o size=4k none /dev/shm && ! head -c 8192 /dev/zero >/dev/shm/full 2>/dev/null && exec "$@"'
    full = ["unshare", "-m", "--propagation", "private", "sh", "-c", fill, "sh"]
    if subprocess.run([*full, "true"], check=False, capture_output=True).returncode:
        print("a full /dev/shm left out: it takes root and a mount namespace")
        return
    case("/dev/shm is full")
    got = Job(2, checkpoint(1), "--layout", "fsdp2", "--exchange", "node", "--check", "--json", by=lambda r: full).report()
    equal(got and (got["exchange"], got["checked"]), ("node", True), "the report")


def differing_ranks_are_named():
    """A rank that was started otherwise."""
    source = checkpoint(1, (1, 2))
    case("one has another number of ranks in its layout")
    job = Job(2, source, each=lambda r: ["--layout", "fsdp3" if r else "fsdp2"]).end()
    check(0 not in job.codes, f"exit codes {job.codes}: {job.said}")
    case("one cuts otherwise")
    job = Job(2, source, each=lambda r: ["--layout", "dim1x2" if r else "fsdp2"]).end()
    check(set(job.codes) == {2} and "rank 1 was started with another layout" in job.said[0], f"{job.codes}: {job.said}")
    case("one opens another version")
    job = Job(2, source, each=lambda r: ["step-1" if r else "step-2"]).end()
    check(0 not in job.codes and "rank 0 opens version step-2, this rank was asked for step-1" in job.said[0], f"{job.codes}: {job.said}")
    case("one exchanges otherwise")
    job = Job(2, source, each=lambda r: ["--exchange", "node" if r else "never"]).end()
    equal((job.codes, job.said[1]), ([2, 2], ""), f"exit codes, and who speaks: {job.said}")
    check('--exchange is "never" on rank 0 and "node" on rank 1' in job.said[0], f"{job.said}")
    for name, words, values in (("repeat", ["--repeat", "3"], ("1", "3")), ("strict", ["--strict"], ("no", "yes")),
                                ("dump", ["--dump", str(lib.fresh("dump"))], ("no", "yes"))):
        case(f"one has --{name}")
        job = Job(2, source, each=lambda r: words if r else []).end()  # noqa: B023
        equal(job.codes, [2, 2], "exit codes")
        check('--{} is "{}" on rank 0 and "{}" on rank 1'.format(name, *values) in job.said[0], f"{job.said}")
    case("one exports otherwise")
    out = lib.fresh("out") / "o"
    job = Job(2, "--as", "safetensors", source, out, verb="export", each=lambda r: ["--dtype", "BF16"] if r else []).end()
    check(job.codes == [2, 2] and '--dtype is "stored" on rank 0 and "BF16" on rank 1' in job.said[0], f"{job.codes}: {job.said}")
    check(not out.exists(), "nothing is written")
    case("one sees another source")
    other = checkpoint(1, (1, 3))
    job = Job(2, each=lambda r: [str(other if r else source), "step-1"]).end()
    check(0 not in job.codes, f"exit codes {job.codes}: {job.said}")
    case("one finds nothing")
    job = Job(2, each=lambda r: ["/nonexistent" if r else str(source)]).end()
    check(0 not in job.codes and "rank 1" in job.said[0], f"{job.codes}: {job.said}")


NO_MOUNT = lib.why_not()
lib.why_not = lambda: None  # most of this needs none
if __name__ == "__main__":
    host = [] if DEVICE else [forbidden_files_are_named, choices_are_explained, reading_and_placing_overlap,
            destinations_ask_for_huge_pages, valgrind_finds_nothing, ranks_stopped_in_any_phase_are_named,
            ranks_stopped_while_writing_are_named]
    lib.main(golden_versions_are_loaded, shards_agree_with_the_frameworks, ranks_load_the_same, random_regions_are_loaded,
             bytes_from_disk_are_counted, paths_in_mounts_are_loaded, hidden_files_come_through_the_mount, *host,
             killed_ranks_are_named, hanging_ranks_are_named, differing_ranks_are_named, a_full_shm_is_survived)
