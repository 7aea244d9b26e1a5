#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs load as a program: its options, its report, its files and its refusals, alone and as a job.

What lies in memory is the business of tests/load; here a dump shows it.
"""
import json
import math
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from select import poll

from cli import BAD, DCPFS, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run

sys.path.insert(0, "tests/mount")
from torch_files import Tensor, torch_save  # noqa: E402

sys.path.insert(0, "tests")
from openmetrics import parsed  # noqa: E402

SOURCE = GOLDEN / "dcp-tp-fsdp" / "ckpt"
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "SLURM", "OMPI", "PMI", "DCPLOAD")
for name in [n for n in os.environ if n.startswith(LAUNCHERS)]:
    del os.environ[name]


def job(ranks, *args, **env):
    """[(exit code, stdout, stderr)] of that many ranks, which torchrun's variables bring together."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    base = dict(os.environ, LC_ALL="C.UTF-8", DCPFS_CACHE=str(SCRATCH / "cache"), TERM="dumb", WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DCPLOAD_TIMEOUT="120",
                TORCHELASTIC_RESTART_COUNT=os.urandom(8).hex(), **env)  # another job may have the same port
    running = [subprocess.Popen([DCPFS, "load", *map(str, args)], env=dict(base, RANK=str(r), LOCAL_RANK=str(r)),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(ranks)]
    return [(p.returncode, out, err) for p in running for out, err in [p.communicate(timeout=240)]]


def job_data(ranks, *args, **env):
    """The JSON of a job that must succeed; ranks above 0 say nothing."""
    got = job(ranks, *args, "--json", **env)
    words = f"{ranks} ranks: load {' '.join(map(str, args))}"
    check(all(code == OK and not err for code, _, err in got), f"{words}: {got}")
    check(not any(out for _, out, _ in got[1:]), f"{words}: a rank above 0 prints: {got}")
    return json.loads(got[0][1]) if got[0][0] == OK else None


def job_fails(ranks, code, says, *args, **env):
    """Every rank must end with @code; one line in all."""
    got = job(ranks, *args, **env)
    words = f"{ranks} ranks: load {' '.join(map(str, args))}"
    equal([c for c, _, _ in got], [code] * ranks, f"{words}: exit codes ({got})")
    text = "".join(err for _, _, err in got)
    check(text.count("\n") == 1 and text.startswith("dcpfs: ") and says in text,
          f"{words}: message {text!r} does not say {says!r} in one line")


def read_file(path):
    """{key: (dtype, shape, bytes)} and the metadata of a safetensors file."""
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    meta = header.pop("__metadata__")
    end = 8 + n
    check(end % 64 == 0, f"{path.name}: data begins at {end}")
    for t in header.values():
        check(8 + n + t["data_offsets"][0] == end, f"{path.name}: a hole")
        end = 8 + n + t["data_offsets"][1]
    equal(end, len(raw), f"{path.name}: its size")
    return {k: (t["dtype"], t["shape"], raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for k, t in header.items()}, meta


def parts_of(shape, raw, dim, ranks):
    """[(shape, bytes)] of a tensor cut along @dim as torch.chunk() cuts; None: not cut at all."""
    if len(shape) <= dim:
        return [(shape, raw)] * ranks
    rows = math.prod(shape[:dim])
    inner = len(raw) // max(1, rows * shape[dim])
    chunk = -(-shape[dim] // ranks)
    out = []
    for r in range(ranks):
        lo, hi = min(shape[dim], r * chunk), min(shape[dim], (r + 1) * chunk)
        out.append(([*shape[:dim], hi - lo, *shape[dim + 1:]],
                    b"".join(raw[(i * shape[dim] + lo) * inner:(i * shape[dim] + hi) * inner] for i in range(rows))))
    return out


def dumps_have_every_rank(ranks, dim):
    folder = SCRATCH / f"dump-{dim}-{ranks}"
    layout = f"dim{dim}x{ranks}"
    told = job_data(ranks, SOURCE, "--layout", layout, "--dump", folder)
    names = [f"rank-{r:05}-of-{ranks:05}.safetensors" for r in range(ranks)]
    equal(sorted(os.listdir(folder)), names, f"{layout}: files")
    equal(told["dump"]["bytes"], sum((folder / n).stat().st_size for n in names), f"{layout}: bytes")
    equal((told["dump"]["dir"], told["dump"]["left_out"]), (str(folder), 0), f"{layout}: dump")
    files = [read_file(folder / n) for n in names]
    stored = {t["key"]: t for t in data("ls", "--json", SOURCE, "tp")["tensors"]}
    for r, (_, meta) in enumerate(files):
        equal([meta[k] for k in ("format", "dcpfs.version", "dcpfs.layout", "dcpfs.rank", "dcpfs.ranks")],
              ["pt", told["version"], layout, str(r), str(ranks)], f"{layout}: metadata of {r}")
    for key, t in stored.items():
        raw = run("cat", SOURCE, key).stdout
        for r, (shape, part) in enumerate(parts_of(t["shape"], raw, dim, ranks)):
            equal(files[r][0].get(key), (t["dtype"], shape, part), f"{layout}: {key} of rank {r}")
            equal(json.loads(files[r][1]["dcpfs.global_shapes"]).get(key), None if shape == t["shape"] else t["shape"],
                  f"{layout}: {key}: the whole shape")
    return folder


def existing_dumps_are_kept(folder):
    before = (folder / "rank-00001-of-00002.safetensors").read_bytes()
    args = [SOURCE, "--layout", "dim0x2", "--dump"]
    job_fails(2, USAGE, "rank 0: ", *args, folder)
    equal((folder / "rank-00001-of-00002.safetensors").read_bytes(), before, "a refused dump: the files")
    (folder / "rank-00000-of-00002.safetensors").unlink()
    job_fails(2, USAGE, "rank-00001-of-00002.safetensors exists; --force replaces it", *args, folder)
    equal(os.listdir(folder), ["rank-00001-of-00002.safetensors"], "a refused dump: nothing is left behind")
    job_data(2, *args, folder, "--force", "--coordinator-rank", 1)
    equal(len(os.listdir(folder)), 2, "--force")
    (SCRATCH / "file").write_text("")
    fails(ENV, "file: Not a directory", "load", SOURCE, "--dump", SCRATCH / "file")
    fails(ENV, "No such file or directory", "load", SOURCE, "--dump", SCRATCH / "no" / "such")
    fails(ENV, "", "load", SOURCE, "--dump", "/proc")
    (SCRATCH / "taken" / "rank-00000-of-00001.safetensors").mkdir(parents=True)
    taken = SCRATCH / "taken" / "rank-00000-of-00001.safetensors"
    fails(USAGE, f"{taken.name} was not written by --dump", "load", SOURCE, "--force", "--dump", SCRATCH / "taken")
    equal(os.listdir(SCRATCH / "taken"), ["rank-00000-of-00001.safetensors"], "a directory is in the way: nothing is left behind")
    taken.rmdir()
    for body in (b"mine", b"\xff" * 100, (folder / "rank-00001-of-00002.safetensors").read_bytes().replace(b"dcpfs.rank", b"dcpfs_rank")):
        taken.write_bytes(body)
        fails(USAGE, f"{taken.name} was not written by --dump", "load", SOURCE, "--force", "--dump", SCRATCH / "taken")
        equal(taken.read_bytes(), body, "--force of a file of another program")
    taken.unlink()
    for _ in range(2):
        equal(run("load", SOURCE, "--force", "--dump", SCRATCH / "taken").returncode, OK, "--force of a dump")
    killed()
    full_disk()


def killed():
    """Nothing is left of a dump whose process dies, or whose file gets longer than it may."""
    where = SCRATCH / "killed"
    where.mkdir()
    try:
        os.close(os.open(where, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        print("no files without names here: left out")
        return
    got = subprocess.run([DCPFS, "load", SOURCE, "tp", "--dump", where], capture_output=True, timeout=240, check=False,
                         env=dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache")),
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY)))
    equal((got.returncode, os.listdir(where)), (ENV, []), f"a file that gets too long ({got.stderr})")
    big, header = SCRATCH / "big.safetensors", json.dumps({"w": {"dtype": "U8", "shape": [300 << 20], "data_offsets": [0, 300 << 20]}}).encode()
    with open(big, "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
        f.truncate(8 + len(header) + (300 << 20))
    p = subprocess.Popen([DCPFS, "load", big, "--dump", where], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         env=dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache")))

    def begun():
        try:
            return any(os.readlink(f).startswith(f"{where}/") for f in pathlib.Path(f"/proc/{p.pid}/fd").iterdir())
        except FileNotFoundError:
            return False
    while p.poll() is None and not begun():
        pass
    p.kill()
    equal((p.wait(), os.listdir(where)), (-signal.SIGKILL, []), "killed while it dumps")
    big.unlink()


def full_disk():
    """Told before anything is loaded, and nothing is left."""
    where = SCRATCH / "small"
    where.mkdir()
    inner = (f"mount -t tmpfs -o size=4k none {where} || exit 77; "
             f"{DCPFS} load {SOURCE} --dump {where}; code=$?; ls -A {where}; exit $code")
    try:
        got = subprocess.run(["unshare", "-rm", "sh", "-c", inner], capture_output=True, text=True, timeout=240,
                             env=dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache")))
    except FileNotFoundError:
        return
    if got.returncode != 77 and "unshare" not in got.stderr:
        equal((got.returncode, got.stdout), (ENV, ""), f"a full disk ({got.stderr})")
        check("No space left on device" in got.stderr, got.stderr)


def one_rank_is_dumped_alone():
    """One rank of a layout, one process; a converted dtype; a dtype that safetensors has no name for."""
    folder = SCRATCH / "one"
    data("load", SOURCE, "--layout", "dim0x4", "--rank", 2, "--dtype", "BF16", "--dump", folder, "--json")
    tensors, _ = read_file(folder / "rank-00002-of-00004.safetensors")
    check({"BF16"} <= {t[0] for t in tensors.values()} and "F32" not in {t[0] for t in tensors.values()},
          f"--dtype BF16: {[t[0] for t in tensors.values()]}")


NUMBERS = ("parts needed read sent received staging calls open_s plan_s execute_s read_s wait_s place_s cpu_s dumped "
           "dump_s").split()
MEMBERS = set("version format layout ranks nodes comm io io_why exchange exchange_why nccl again device device_why parts needed read exchanged "
              "unique amplification origin requests retries wire staging pinned device_staging registered open_s plan_s seconds checked dump ignored missing unexpected shape dtype broken unlisted "
              "per_rank".split())


def reports_have_their_members():
    for exchange in ("never", "node"):
        got = job_data(3, SOURCE, "tp", "--exchange", exchange, "--staging", "1MiB", "--check")
        what = f"3 ranks, {exchange}"
        equal(set(got), MEMBERS, f"{what}: members")
        equal([list(r) for r in got["per_rank"]], [["rank", *NUMBERS]] * 3, f"{what}: per_rank")
        equal((got["ranks"], got["nodes"], got["layout"], got["exchange"], got["exchange_why"], got["checked"]),
              (3, 1, "fsdp3", exchange, "asked for", True), what)
        for name in ("parts", "needed", "read"):
            equal(got[name], sum(r[name] for r in got["per_rank"]), f"{what}: {name}")
        for name in ("open_s", "plan_s", "staging"):
            equal(got[name], max(r[name] for r in got["per_rank"]), f"{what}: {name}")
        check(0 < got["staging"] <= (1 << 20) + 4096, f"{what}: staging is {got['staging']}")
        unique = got["unique"] or got["needed"]
        equal(got["amplification"], got["read"] / unique, f"{what}: amplification")
        check(exchange == "never" or got["read"] == got["unique"], f"{what}: {got['read']} bytes read of {got['unique']}")
        check((got["unique"] is None) == (exchange == "never"), f"{what}: unique is {got['unique']}")
        check((got["exchanged"] > 0) == (exchange == "node"), f"{what}: exchanged {got['exchanged']}")
        check(all(r["wait_s"] <= r["execute_s"] for r in got["per_rank"]), f"{what}: {got['per_rank']}")
    for words, least, most in (([], 6, 6.1), (["--staging", "64MiB"], 16, 16.1)):  # what a window takes
        got = job_data(3, SOURCE, "tp", "--exchange", "node", *words)
        check(least <= got["staging"] / 2**20 <= most, f"staging {words}: {got['staging']}")
    text = job(3, SOURCE, "tp")[0][1]
    check(text.startswith("tp as fsdp3: ") and " on 3 ranks, 1 node\n" in text, text)
    check([line.split()[:2] for line in text.splitlines()[-3:]] == [["0", "24"], ["1", "24"], ["2", "24"]], text)
    check("staging   0 B" not in text, text)
    rows = [line.split("\t") for line in job(2, SOURCE, "tp", "--tsv")[0][1].splitlines()]
    equal(rows[0], ["rank", *NUMBERS], "TSV: names")
    equal([r[:2] for r in rows[1:]], [["0", "24"], ["1", "24"]], "TSV: ranks")
    fails(USAGE, "", "load", SOURCE, "--tsv", "--json")


def dumped(source, *args, **env):
    """Keys that one process loads."""
    folder = SCRATCH / "keys"
    got = data("load", source, "--dump", folder, "--force", "--json", *args, **env)
    return got and set(read_file(folder / "rank-00000-of-00001.safetensors")[0]), got


def chosen_keys_are_loaded():
    composer = GOLDEN / "composer-sharded" / "ckpt"
    every, _ = dumped(composer)
    model = {k for k in every if k.startswith("state.model.")}
    check(model and model < every, f"{every}")
    equal(dumped(composer, "--weights-only")[0], model, "Composer: --weights-only")
    for globs, left, hits in (
            (["state/optimizers"], lambda k: not k.startswith("state.optimizers."), None),
            (["state/opt*", "rng"], lambda k: k.startswith("state.model."), None),
            (["*/exp_avg"], lambda k: not k.endswith(".exp_avg"), None),
            (["*/exp_av?", "state/model", "nothing/*"],
             lambda k: not k.endswith(".exp_avg") and not k.startswith("state.model."), [None, len(model), 0]),
            (["state.optimizers"], lambda k: True, [0]),
            (["state/model/module.conv.*"], lambda k: not k.startswith("state.model.module.conv."), None)):
        keys, got = dumped(composer, *(w for g in globs for w in ("--ignore-keys", g)))
        equal(keys, {k for k in every if left(k)}, f"--ignore-keys {globs}")
        equal(list(got["ignored"]), globs, f"--ignore-keys {globs}: reported")
        for glob, n in zip(globs, hits or []):
            check(n is None or got["ignored"][glob] == n, f"--ignore-keys {globs}: {got['ignored']}")
    one = SCRATCH / "tuple" / "ep1-ba1-rank0.pt"
    torch_save(one, {"state": {"model": {"w": Tensor(b"abcd", [1])},
                               "algorithms": [("Name", {"w": Tensor(b"efgh", [1])})]}, "rng": []})
    every = {"state.model.w", "state.algorithms.0.1.w"}
    equal(dumped(one)[0], every, "a tuple")
    for glob, gone in (("*w", {"state.model.w"}), ("state/algorithms/0/*", set()), ("state/alg*", {"state.algorithms.0.1.w"})):
        equal(dumped(one, "--ignore-keys", glob)[0], every - gone, f"--ignore-keys {glob}: paths end at tuples")
    text = run("load", composer, "--ignore-keys", "no/such").stdout.decode()
    check("ignored   0 keys by no/such: no path is called so" in text, text)
    for name, good in (("deepspeed-z1", lambda k: k.startswith(("module.", "fp32."))),
                       ("megatron-dist", lambda k: not k.startswith(("optimizer.", "rng_state"))),
                       ("megatron-legacy", lambda k: "rng_state" not in k.split(".") and not k.startswith("optimizer"))):
        every, weights = (dumped(GOLDEN / name / "ckpt", *args)[0] for args in ([], ["--weights-only"]))
        equal(weights, {k for k in every if good(k)}, f"{name}: --weights-only")
        check(weights < every, f"{name}: {every}")
    every, _ = dumped(SOURCE)
    one = sorted(every)[0]
    equal(dumped(SOURCE, "--keys", one)[0], {one}, "--keys")
    equal(dumped(SOURCE, "--skip", one)[0], every - {one}, "--skip")


def traces_have_every_rank():
    for ranks, exchange in ((1, "never"), (3, "node")):
        at = SCRATCH / "trace.json"
        told = job_data(ranks, SOURCE, "tp", "--exchange", exchange, "--trace", at)
        events = json.loads(at.read_text())["traceEvents"]
        equal([e["args"]["name"] for e in events if e["ph"] == "M"], [f"rank {r}" for r in range(ranks)], "trace: ranks")
        spans = [e for e in events if e["ph"] == "X"]
        for r in range(ranks):
            names = {e["name"] for e in spans if e["pid"] == r}
            check({"open", "plan", "load"} < names <= {"open", "plan", "load", "read", "wait", "place"}, f"trace: {names}")
        check(all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans), "trace: times")
        kind = "place" if exchange == "node" else "read"
        equal(sum(e["args"]["bytes"] for e in spans if e["name"] == kind and "args" in e), told["needed"], f"trace: {kind}")
        job_data(ranks, SOURCE, "tp", "--exchange", exchange, "--trace", SCRATCH / "trace.svg")
        root = ET.parse(SCRATCH / "trace.svg").getroot()
        check(f"rank {ranks - 1}" in ET.tostring(root).decode(), "trace: the drawing names ranks")
    job_fails(2, ENV, "No such file or directory", SOURCE, "tp", "--trace", SCRATCH / "no" / "trace.json")
    for name, body in (("notes.json", "[1]"), ("drawing.svg", "<svg><title>mine</title></svg>")):
        (SCRATCH / name).write_text(body)
        job_fails(2, USAGE, "is not a trace", SOURCE, "tp", "--trace", SCRATCH / name, "--force")
        fails(USAGE, "is not a trace", "load", SOURCE, "tp", "--trace", SCRATCH / name, "--force")
        equal((SCRATCH / name).read_text(), body, "what is not a trace")


def metrics_tell_the_load():
    """--metrics has how the load went, read by Prometheus' own parsers, also when it failed, and whole at once."""
    file = SCRATCH / "dcpload.prom"
    for ranks in (1, 2):
        rep = job_data(ranks, SOURCE, "--layout", f"fsdp{ranks}", "--metrics", file)
        got = {name: value for (name, _), value in parsed(file.read_text()).items()}
        for name, key in (("parts", "parts"), ("needed_bytes", "needed"), ("read_bytes", "read"), ("exchanged_bytes", "exchanged"),
                          ("load_seconds", "seconds"), ("ranks", "ranks"), ("source_requests", "requests")):
            check(math.isclose(got["dcpload_" + name], rep[key], abs_tol=1e-6), f"{name}: {got}, {rep[key]}")
        equal((got["dcpload_success"], got["dcpload_exit_code"]), (1, 0), "success")
        check(got["dcpload_duration_seconds"] >= got["dcpload_load_seconds"] > 0, f"times: {got}")
        check(f'layout="fsdp{ranks}"' in file.read_text(), "layout")
    case = (SOURCE, "absent", "--metrics", file)
    equal(run("load", *case).returncode, NO, "a version that is not there")
    got = {name: value for (name, _), value in parsed(file.read_text()).items()}
    equal((got["dcpload_success"], got["dcpload_exit_code"]), (0, NO), "it failed")
    check("dcpload_needed_bytes" not in got, "nothing was loaded")
    equal(sorted(p.name for p in SCRATCH.glob("dcpload.prom*")), ["dcpload.prom"], "no part is left")
    mine = SCRATCH / "mine.prom"
    mine.write_text("node_x 1\n")
    fails(USAGE, "has no metrics of dcpload: it is not replaced", "load", SOURCE, "--metrics", mine)
    equal(mine.read_text(), "node_x 1\n", "a file of others")
    fails(USAGE, "is not replaced", "load", SOURCE, "--metrics", SCRATCH)
    fails(USAGE, "", "load", SOURCE, "--metrics", SOURCE / "x.prom")
    equal(run("load", SOURCE, "--metrics", SCRATCH / "no" / "x.prom").returncode, ENV, "where nothing can be written")


def doctor_knows_the_loader():
    found = {c["name"]: c for c in json.loads(run("doctor", "--json", SOURCE).stdout)["checks"]}
    for name in ("io_uring", "O_DIRECT", "window", "huge pages", "mpi", "GPU", "cuFile", "NCCL", "CUDA IPC", "cuda"):
        check(name in found, f"doctor says nothing of {name}")
    check(all(c["found"] for c in found.values()), f"doctor found nothing: {found}")
    tried = next(c for c in json.loads(run("doctor", "--json", DCPFS_CACHE="/proc/no/such").stdout)["checks"] if c["name"] == "O_DIRECT")
    check(tried["state"] == "note" and "cannot be tried at /proc/no/such" in tried["found"], f"doctor without a cache: {tried}")
    try:
        os.close(os.open(next(f for f in SOURCE.rglob("*.distcp")), os.O_RDONLY | os.O_DIRECT))
        direct = "ok", f"works at {SOURCE}"
    except OSError:
        direct = "note", f"is refused at {SOURCE}"
    equal((found["O_DIRECT"]["state"], found["O_DIRECT"]["found"]), direct, "doctor: O_DIRECT")
    huge = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    equal(found["huge pages"]["found"], "transparent_hugepage: " + (huge.read_text().strip() if huge.is_file() else "none"), "doctor: huge pages")
    said = subprocess.run(["setarch", "--uname-2.6", DCPFS, "doctor", "--json"], capture_output=True, check=False).stdout
    kernel = next(c for c in json.loads(said)["checks"] if c["name"] == "kernel")
    check(kernel["state"] == "note" and kernel["found"].startswith("2.6.") and kernel["advice"], f"doctor of an old kernel: {kernel}")
    check(found["mpi"]["state"] == "ok", f"doctor: {found['mpi']}")
    if found["mpi"]["found"] != "built in":
        return
    shutil.copy2(DCPFS, SCRATCH / "dcpfs")  # away from its module
    said = subprocess.run([SCRATCH / "dcpfs", "doctor", "--json"], capture_output=True, check=False,
                          env={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"})
    alone = {c["name"]: c for c in json.loads(said.stdout)["checks"]}["mpi"]
    check(alone["state"] == "note" and "libdcpload-mpi.so" in alone["found"], f"doctor without the module: {alone}")


class Wide(Tensor):
    """One row, which is said to be 2^18 of them."""

    def __reduce__(self):
        rebuild, (storage, offset, shape, _, *more) = super().__reduce__()
        return rebuild, (storage, offset, (1 << 18, *shape), (0, 1), *more)


def false_claims_are_refused():
    """A few kilobytes that claim to be a hundred gigabytes, by keys that share their bytes: refused, before any memory is taken."""
    wide = SCRATCH / "wide.pt"
    torch_save(wide, {f"w{i}": Wide(bytes(4 << 14), [1 << 14]) for i in range(70)})
    size, held = wide.stat().st_size, 70 << 34
    says = f"its files have {size} bytes and claim to hold {held} bytes of tensors; --force"
    fails(BAD, says, "load", wide)
    job_fails(2, BAD, says.replace(str(held), str(held // 2)), wide)
    fails(ENV, f"take {held} bytes of memory, and ", "load", wide, "--force")
    job_fails(2, ENV, f"the tensors of 2 ranks of this node take {held} bytes of memory, and ", wide, "--force")


def misuse_is_refused():
    alone = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 20000 + os.getpid() % 10000}
    fails(ENV, "rank 1 of 2 did not connect to rank 0 within 1 s", "load", SOURCE, "--timeout", 1, **alone)
    fails(ENV, "rank 1 of 2 did not connect to rank 0 within 1 s", "load", SOURCE, "--timeout", 100, DCPLOAD_TIMEOUT=1, **alone)
    name = alone | {"MASTER_ADDR": socket.gethostname(), "XDG_CONFIG_HOME": "/dev/null/none"}
    for verb, out in ("load", []), ("export", ["--as", "npz", SCRATCH / "job.npz"]), ("save", [SCRATCH / "job.pdparams"]):
        fails(ENV, "the ranks have no secret to know each other by", verb, SOURCE, *out, **name)
        fails(ENV, "rank 1 of 2 did not connect to rank 0 within 1 s", verb, SOURCE, *out, "--insecure", "--timeout", 1, **name)
    fails(USAGE, "there is no rank 1 to be the coordinator, only 0 to 0", "load", SOURCE, "--coordinator-rank", 1)
    job_fails(2, USAGE, "there is no rank 2 to be the coordinator, only 0 to 1", SOURCE, "--coordinator-rank", 2)
    fails(USAGE, "--strict and --partial exclude each other", "load", SOURCE, "--strict", "--partial")
    for words, says in ((["--dtype", "F31"], "F31"), (["--io", "fast"], "fast"), (["--exchange", "us"], "us"),
                        (["--staging", "much"], "much"), (["--threads", "65"], "65"), (["--comm", "pigeon"], "pigeon"),
                        (["--layout", "fsdp4", "--rank", "4"], "there is no rank 4 of fsdp4, only 0 to 3"),
                        (["--layout", "fsdp4", "--rank", "-1"], "there is no rank -1"),
                        (["--rank", "2"], "--layout L, which is missing"),
                        (["--layout", "fsdp4"], "fsdp4 has 4 ranks, 1 is running"),
                        (["--layout", "none"], 'no built-in layout "none"'), (["--device", "gpu"], 'no device is called "gpu"'),
                        (["--layout", "tp4:none"], 'no preset "none"')):
        fails(USAGE, says, "load", SOURCE, *words)
    job_fails(2, USAGE, "fsdp3 has 3 ranks, 2 are running: start 3", SOURCE, "--layout", "fsdp3")
    job_fails(2, USAGE, "--rank is for one process alone", SOURCE, "--layout", "fsdp2", "--rank", "0")
    fails(ENV, f"layout {SCRATCH}/none.dcpl: No such file", "load", SOURCE, "--layout", SCRATCH / "none.dcpl")
    for source, code in ((SCRATCH / "nothing", ENV), (GOLDEN / "README.md", BAD)):
        fails(code, source.name, "load", source)
    fails(NO, 'no version "no-such"', "load", SOURCE, "no-such")
    job_fails(2, NO, "--keys no.such.key: matches no tensor of tp", SOURCE, "--keys", "no.such.key")
    fails(NO, "--keys no.such.key: matches no tensor of tp", "load", SOURCE, "--keys", "no.such.key", "--strict")
    job_fails(2, NO, "--keys no.such.key: matches no tensor of tp", SOURCE, "--keys", "no.such.key", "--strict")
    got = run("load", SOURCE, "--strict", "--keys", "model")
    check(got.returncode == NO and b"no rank wants it" in got.stderr, f"--strict: {got}")
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    step = {"SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_TASKS": 2}
    for env, says in (({"RANK": 2, "WORLD_SIZE": 2, **at}, "RANK is 2, but WORLD_SIZE is 2: ranks are counted from 0"),
                      ({"RANK": "one", "WORLD_SIZE": 2, **at}, 'RANK is "one", expected a number'),
                      ({"RANK": 0, **at}, "RANK is 0, but WORLD_SIZE does not say of how many ranks"),
                      ({"RANK": 0}, "RANK is 0, but WORLD_SIZE does not say of how many ranks"),
                      ({"WORLD_SIZE": 2, **at}, "WORLD_SIZE is 2, but RANK does not say which this is"),
                      ({"RANK": 0, "WORLD_SIZE": 2}, "MASTER_ADDR does not say where rank 0 is"),
                      ({"RANK": 0, "WORLD_SIZE": 2, **at, "MASTER_PORT": "x"}, 'MASTER_PORT is "x", expected a number from 1 to 65535'),
                      ({"RANK": 0, "WORLD_SIZE": 2, **at, "DCPLOAD_TIMEOUT": "0"}, 'DCPLOAD_TIMEOUT is "0", expected'),
                      ({"SLURM_PROCID": 2, **step}, "SLURM_PROCID is 2, but SLURM_STEP_NUM_TASKS is 2"),
                      ({"SLURM_PROCID": 1, **step, "SLURM_STEP_NUM_TASKS": None}, "SLURM_STEP_NUM_TASKS does not say of how many"),
                      ({"SLURM_PROCID": 1, **step, "SLURM_STEP_NODELIST": None}, "neither SLURM_STEP_NODELIST nor MASTER_ADDR says")):
        fails(USAGE, says, "load", SOURCE, **env)
        equal(run("load", SOURCE, "tp", "--comm", "alone", **env).returncode, OK, f"--comm alone with {env}")
    fails(USAGE, "no launcher says which rank this is", "load", SOURCE, "--comm", "env")
    fails(USAGE, "WORLD_SIZE does not say of how many", "export", SOURCE, SCRATCH / "none", "--as", "safetensors", RANK=0)
    equal(run("load", SOURCE, RANK=0, WORLD_SIZE=1).stderr, b"", "one rank needs no address")
    for size in ("1024kB", "1024KB", "1000K", "1000k", "1000KiB", "1MB"):
        check(data("load", SOURCE, "--staging", size, "--json")["version"] == "tp", size)


def wrong_regions_are_refused():
    """Files of regions that are wrong, and a key that is missing."""
    at, key = SCRATCH / "wrong.regions", min(t["key"] for t in data("ls", "--json", SOURCE, "tp")["tensors"] if len(t["shape"]) == 2)
    for body, line in ((f"0 {key} [0]", 1), (f"0 {key}\n{key}", 2), (f"0 {key} [0:1 1:2]", 1), (f"0 {key} [0:1,]", 1), ("0 [0:1]", 1),
                       (f"1048576 {key}", 1), (f"0 {key}\0", 1), (f"0 {key} [0:99999999999999999999]", 1)):
        at.write_text(f"# a comment\n\n{body}")
        fails(BAD, f"{at}:{line + 2}: expected RANK KEY [LO:HI, ...], found ", "load", SOURCE, "tp", "--layout", at)
    for body, code, says in (("", BAD, "wrong.regions names no rank"), (f"0 {key}\n2", USAGE, "wrong.regions has 3 ranks, 1 is running"),
                             ("0 no.such.key [:]", BAD, f'{at}:1: no tensor "no.such.key"'),
                             (f"0 {key} [:, 0:1]\n0 {key}\n0 {key} [:, 0:1] ", BAD, f"{at}:3: rank 0 has the line {key} [:, 0:1] twice"),
                             *((f"0 {key} [{box}]", BAD, "is outside of its shape [") for box in ("", ":, :, :, :, :", "2:1, :", ":9999, :"))):
        at.write_text(body)
        fails(code, says, "load", SOURCE, "tp", "--layout", at)
    fails(ENV, "none.regions: No such file", "load", SOURCE, "tp", "--layout", SCRATCH / "none.regions")
    os.mkfifo(SCRATCH / "fifo.regions")
    fails(BAD, "fifo.regions: not a layout: not a file", "load", SOURCE, "tp", "--layout", SCRATCH / "fifo.regions")
    at.write_text(f"1 {key}\n1 no.such.key [0:1]")
    got = data("load", SOURCE, "tp", "--layout", at, "--rank", 1, "--partial", "--json")
    equal((got["parts"], [m["key"] for m in got["missing"]]), (1, ["no.such.key"]), "--partial: a region of a key that is missing")
    equal(data("load", SOURCE, "tp", "--layout", at, "--rank", 0, "--partial", "--json")["parts"], 0, "a rank without regions")
    (SCRATCH / "no-mount").mkdir()
    for words in (["plan", SOURCE, "tp"], ["export", SOURCE, "tp", SCRATCH / "none", "--as", "safetensors"],
                  ["save", SOURCE, "tp", SCRATCH / "none.{rank}.pdparams"], ["mount", SOURCE, SCRATCH / "no-mount"]):
        fails(BAD, "wrong.regions: a file of regions, which only dcpfs load takes", *words, "--layout", at)


def variables_of_srun_are_enough():
    """What srun sets is enough."""
    base = dict(os.environ) | {
        "LC_ALL": "C.UTF-8", "DCPFS_CACHE": str(SCRATCH / "cache"), "SLURM_JOB_ID": str(int.from_bytes(os.urandom(3), "little")),
        "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "7", "SLURM_STEP_NODELIST": "localhost", "DCPLOAD_TIMEOUT": "120"}
    ranks = [subprocess.Popen([DCPFS, "load", SOURCE, "tp", "--json"], env=base | {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(3)]
    said = [(*p.communicate(timeout=240), p.returncode) for p in ranks]
    if check(all(code == OK and not err for _, err, code in said), f"srun: {said}"):
        got = json.loads(said[0][0])
        equal((got["ranks"], got["comm"], got["layout"]), (3, "tcp", "fsdp3"), "srun")


def progress_is_drawn():
    """On a terminal rank 0 draws how far it is."""
    master, slave = pty.openpty()
    p = subprocess.Popen([DCPFS, "load", SOURCE, "tp", "--repeat", "1000000"], stdout=subprocess.DEVNULL, stderr=slave,
                         env=dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache"), TERM="xterm"))
    os.close(slave)
    text, drawn = b"", poll()
    drawn.register(master)
    while drawn.poll(120000) and not re.search(rb"loading .*% .*B of .*B/s \d:\d\d left", text) and len(text) < 1 << 20:
        text += os.read(master, 4096)
    p.kill()
    p.wait()
    os.close(master)
    check(b" left" in text, f"drawn: {text[-300:]!r}")


def partial_loads_leave_out_broken_keys():
    broken = SCRATCH / "broken"
    shutil.copytree(SOURCE / "tp", broken)
    (broken / "__1_0.distcp").unlink()
    fails(BAD, "__1_0.distcp", "load", broken)
    job_fails(2, BAD, "__1_0.distcp", broken)
    got = data("load", broken, "--partial", "--dump", SCRATCH / "partial", "--json")
    lost = {b["key"] for b in got["broken"]}
    check(lost and all("__1_0.distcp" in b["why"] for b in got["broken"]), f"--partial: {got['broken']}")
    tensors, meta = read_file(SCRATCH / "partial" / "rank-00000-of-00001.safetensors")
    stored = {t["key"] for t in data("ls", "--json", SOURCE, "tp")["tensors"]}
    equal((set(tensors), set(meta["dcpfs.left_out"].split())), (stored - lost, lost), "--partial: the dump")
    equal(got["dump"]["left_out"], len(lost), "--partial: left out")
    equal(got["parts"], len(stored - lost), "--partial: parts that are loaded")
    check(all(b["why"] == "__1_0.distcp: No such file or directory" for b in got["broken"]), f"--partial: {got['broken']}")
    equal(data("load", broken, "--partial", "--keys", min(lost), "--json")["parts"], 0, "--partial: nothing of what --keys names")
    said = [line for line in run("load", broken, "--partial").stdout.decode().splitlines() if line.startswith("  broken ")]
    check(len(said) == 1 and f" {len(lost)} tensors " in said[0] and ", ...: __1_0.distcp: No such" in said[0],
          f"--partial: a line for each cause: {said}")
    late = SCRATCH / "late"  # what only rank 1 needs is lost
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20", late)
    (late / "__3_0.distcp").unlink()
    whole = data("load", late, "--partial", "--json")
    got = job_data(2, late, "--partial", "--layout", "fsdp2")
    equal([b["key"] for b in got["broken"]], [b["key"] for b in whole["broken"]], "--partial: keys of all ranks")


def passed_over_versions_are_reported():
    """An older version is not loaded in silence because the newest cannot be opened."""
    source = SCRATCH / "passed"
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt", source)
    equal(run("load", source).stderr, b"", "what is incomplete is not news")
    (source / "step-20" / ".metadata").write_bytes(b"?")
    for ranks, words in ((1, []), (2, []), (2, ["--coordinator-rank", "1"])):
        got = job(ranks, source, *words)
        equal([code for code, _, _ in got], [OK] * ranks, "ranks")
        said = "".join(err for _, _, err in got)
        check(said.count("; taking step-10\n") == 1 and "step-20: .metadata: " in said, f"{ranks} {words}: {said}")
    equal(run("load", source, "10").stderr, b"", "the version that was asked for")
    shutil.rmtree(source / "step-20")
    (source / "step-20").symlink_to((GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20").resolve())
    for verb in ("load", "tree"):
        got = run(verb, source)
        check(got.returncode == OK and got.stderr.startswith(b"dcpfs: step-20: it is a link out of the source, ") and
              got.stderr.endswith(b"; taking step-10\n"), f"{verb}, the newest is a link out: {got.stderr}")


def composers_templates_find_saves():
    """Composer's names of saves, and the texts that stand for links."""
    (SCRATCH / "run-7").symlink_to((GOLDEN / "composer-ranks" / "ckpt").resolve())
    name = f"{SCRATCH}/{{run_name}}/ep1-ba4-rank{{rank}}.pt"
    want = data("load", GOLDEN / "composer-ranks" / "ckpt", "ep1-ba4-rank0.pt", "--json")["version"]
    for variable in ("DCPLOAD_RUN_NAME", "COMPOSER_RUN_NAME", "RUN_NAME"):
        equal(data("load", name, "--json", **{variable: "run-7"})["version"], want, variable)
    equal(data("load", f"{GOLDEN}/composer-ranks/ckpt/ep1-ba2-rank{{rank}}.pt", "--json")["version"], "ep1-ba2-rank0.pt",
          "{rank} alone")
    equal(data("load", f"{GOLDEN}/composer/ckpt/tiny-run/checkpoints/latest-rank{{rank}}.pt", "--json")["version"],
          "ep1-ba6-rank0.pt", "a link with {rank} in its name")
    (SCRATCH / "w2-of-2").symlink_to(SOURCE.resolve())
    got = job_data(2, f"{SCRATCH}/w{{world_size}}-of-{{local_world_size}}", "tp", LOCAL_WORLD_SIZE="2")
    equal(got["version"], "tp", "{world_size}")
    got = data("load", f"{SCRATCH}/w{{local_world_size}}-of-{{local_world_size}}", "tp", "--json", SLURM_STEP_TASKS_PER_NODE="2(x3),1")
    equal(got["version"], "tp", "{local_world_size} of srun")
    for name in ("{epochs}", "none-{epoch}"):
        fails(ENV, name, "load", SCRATCH / name)
    for name, want in (("ep{epoch}-ba{batch}-rank{rank}.pt", "ep1-ba4-rank0.pt"), ("ep{epoch}-ba2-rank{rank}.pt", "ep1-ba2-rank0.pt")):
        equal(data("load", f"{GOLDEN}/composer-ranks/ckpt/{name}", "--json")["version"], want, name)
    saves = SCRATCH / "saves"
    saves.mkdir()
    for name in ("ep1-ba9", "ep1-ba11-old", "ep2-bax", "ep2-ba"):
        (saves / name).mkdir()
    (saves / "ep1-ba10").symlink_to((SOURCE / "tp").resolve())
    equal(data("load", f"{saves}/ep{{epoch}}-ba{{batch}}", "--json")["version"], "tp", "directories")
    shutil.copy(GOLDEN / "composer/ckpt/tiny-run/checkpoints/ep1-ba6-rank0.pt", saves)
    (saves / "latest-rank0.pt.symlink").write_text("run-7/ep1-ba6-rank0.pt\n")
    for name in ("latest-rank{rank}.pt", "latest-rank{rank}.pt.symlink"):
        equal(data("load", f"{saves}/{name}", "--json")["version"], "ep1-ba6-rank0.pt", f"the text of {name}")


for count, dimension in ((1, 0), (2, 0), (3, 1), (4, 0)):
    made = dumps_have_every_rank(count, dimension)
    if count == 2:
        kept = made
existing_dumps_are_kept(kept)
one_rank_is_dumped_alone()
reports_have_their_members()
chosen_keys_are_loaded()
traces_have_every_rank()
metrics_tell_the_load()
doctor_knows_the_loader()
false_claims_are_refused()
misuse_is_refused()
wrong_regions_are_refused()
variables_of_srun_are_enough()
progress_is_drawn()
partial_loads_leave_out_broken_keys()
passed_over_versions_are_reported()
composers_templates_find_saves()
finish()
