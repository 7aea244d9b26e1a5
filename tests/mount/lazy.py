# SPDX-License-Identifier: Apache-2.0
"""A mount answers before its versions are indexed, waits for the one that is entered, ends at once, and stays small."""
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import struct
import threading

import lib
from lib import APPEARS, case, check, equal, errno_of, sha, wait

FSDP, MANIFEST = lib.golden("dcp-fsdp2")
SOON = 3  # idle seconds for what happens at once: a build that is held back lasts 30


def reads(m, version):
    index = m.index(version)["tensors"]
    return [k for k, t in index.items()
            if sha(lib.read(m.at / version / t["files"]["raw"])) != MANIFEST["step-10"]["tensors"][k]["sha256"]]


def state(m):
    return {v["version"]: v["state"] for v in m.control("status.json")["versions"]}


def several(*names):
    """(source, cache, {version: path of its index}), nothing indexed."""
    source, cache = lib.fresh("source"), lib.fresh("cache")
    for name in names:
        lib.copy(FSDP / "step-10", source / name)
    with lib.mount(source, cache=cache) as m:
        paths = {v["version"]: v["index"] for v in m.settled().control("status.json")["versions"]}
    for path in paths.values():
        os.unlink(path)
    return source, cache, paths


@contextlib.contextmanager
def held_back(*paths):
    """Builds of these indexes wait as long as this lasts: as if another process built them."""
    files = []
    for path in paths:
        files.append(open(f"{path}.lock", "w", encoding="ascii"))
        fcntl.flock(files[-1], fcntl.LOCK_EX)
    try:
        yield
    finally:
        for f in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f.name)
            f.close()


class Later(threading.Thread):
    """A call made in the background: its outcome."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.got, self.error = call, None, None
        self.start()

    def run(self):
        try:
            self.got = self.call()
        except OSError as e:
            self.error = e

    def done(self, seconds=lib.PATIENCE):
        self.join(seconds)
        return not self.is_alive()


def nothing_is_opened():
    """Names, attributes and links of all versions, while no index can be built."""
    source, cache, paths = several("step-1", "step-2", "step-10")
    with held_back(*paths.values()):
        with lib.mount(source, cache=cache) as m:
            equal((m.versions(), m.latest()), (["step-1", "step-10", "step-2"], "step-10"), "versions and latest")
            look = Later(lambda: [(e.name, e.stat().st_mode, e.is_dir()) for e in os.scandir(m.at)] +
                         [os.stat(m.at / v) for v in (*paths, "latest")] + lib.ok("ls", "-l", m.at).split())
            check(look.done() and not look.error, f"looking at the root: {look.error}")
            check(Later(lambda: lib.ok("find", m.at, "-maxdepth", "1")).done(), "find -maxdepth 1")
            equal(set(state(m).values()), {"not opened yet"}, "states: all that waited for no index")
            case("the end of it")
            entered = [Later(lambda v=v: os.listdir(m.at / v)) for v in paths for _ in range(3)]
            check(not any(x.done(0.05) for x in entered), "those who enter wait")
            os.kill(m.pid, signal.SIGTERM)
            wait(lambda: not m.running(), "SIGTERM ends it while indexes are built", SOON)
            m.ends(0)
            check(all(x.done() and x.error for x in entered), "who waited is sent home")


def readers_wait_for_their_version_only():
    """The newest cannot be indexed: others are there all the same, and it is as soon as it can be."""
    source, cache, paths = several("step-1", "step-2", "step-10")
    with held_back(paths["step-10"]):
        m = lib.Mount(source, cache=cache)
        waiting = [Later(lambda: reads(m, "latest")) for _ in range(20)]  # more than libfuse's ten threads
        for version in ("step-1", "step-2"):
            case(version)
            other = Later(lambda v=version: reads(m, v))
            check(other.done(), "entering another one does not wait for it")
            equal((other.got, other.error), ([], None), "its tensors")
        equal(state(m), {"step-1": "ready", "step-2": "ready", "step-10": "not opened yet"}, "states")
        check(not any(x.done(0) for x in waiting), "those who want the newest wait")
    case("it can be indexed")
    check(all(x.done() for x in waiting), "all who waited are served")
    equal([(x.got, x.error) for x in waiting], [([], None)] * 20, "what they read")
    m.unmount()


def latest_waits_for_its_index():
    """A version that comes is shown at once, but latest waits until it can be read, also when it is saved over meanwhile."""
    source, cache, paths = several("step-1", "step-2")
    os.rename(source / "step-2", away := lib.fresh("away") / "step-2")
    with lib.mount(source, cache=cache) as m:
        m.settled()
        with held_back(paths["step-2"]):
            os.rename(away, source / "step-2")
            wait(lambda: m.versions() == ["step-1", "step-2"], "it is shown", APPEARS)
            equal(m.control("status.json")["latest"], "step-1", "latest")  # the link is kept for a second
            before = os.stat(m.at / "step-2").st_ino
            os.utime(source / "step-2" / ".metadata")
            wait(lambda: os.stat(m.at / "step-2").st_ino != before, "it is another", APPEARS)
            equal(m.control("status.json")["latest"], "step-1", "latest then")
        wait(lambda: m.latest() == "step-2", "latest follows")


def the_newest_is_indexed_first():
    """The background takes the newest first, and goes on when a process enters an old one."""
    source, cache, paths = several(*(f"step-{n}" for n in range(1, 31)))
    with held_back(paths["step-20"]), lib.mount(source, cache=cache) as m:
        newer = [f"step-{n}" for n in range(21, 31)]
        wait(lambda: all(state(m)[v] == "ready" for v in newer), "the newer ones are indexed")
        equal([v for v, s in state(m).items() if s == "ready"], newer, "and no older ones")
        equal(reads(m, "step-3"), [], "one that a process enters")
        equal([v for v, s in state(m).items() if s == "ready"], ["step-3", *newer], "what is open now")


def unreadable_sources_are_refused():
    """When all versions are refused the command fails and says why; when one is not, it comes up."""
    source = lib.fresh("broken")
    for name in ("step-1", "step-2"):
        lib.copy(FSDP / "step-10", source / name)
        (source / name / ".metadata").write_bytes(b"\x80\x02garbage")
    for what, where in (("several", source), ("one", source / "step-2")):
        for options in ((), ("-f",)):
            case(f"{what} {options}")
            for _ in range(1 if where is not source else 20):  # a busy machine may mount several: it has only 0.3 s to refuse them
                m = lib.Mount(where, verb=("mount", *options), answers=False)
                wait(lambda: not m.running() or lib.mounted(m.at), "it is refused")
                if not lib.mounted(m.at):
                    break
                m.destroy()
            equal(m.process.returncode, 4, f"exit code: {m.log()}")
            check(re.match(r"(dcpfs: step-1: .*\n)?dcpfs: step-2: ", m.log()), f"words: {m.log()}")
            check(not lib.mounted(m.at), "nothing is mounted")
    lib.copy(FSDP / "step-10", source / "step-0")
    with lib.mount(source) as m:
        wait(lambda: m.latest() == "step-0", "the one that is sound is latest", APPEARS)
        equal(reads(m, "step-0"), [], "its tensors")
        fails = errno_of(os.listdir, m.at / "step-2")
        equal(fails, "ENOENT", "a refused one")
    said = [x.split(": ")[1] for x in m.log().splitlines() if "config.json" not in x]
    equal(sorted(said), ["step-1", "step-2"], "each is said once")


def save(directory, keys):
    """As small as a version of so many keys can be."""
    header = {f"layers.{i // 12}.block.{i % 12}.weight":
              {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(keys)}
    text = json.dumps(header).encode()
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * keys))


def private(m):
    """MiB of memory that only the daemon has."""
    with open(f"/proc/{m.pid}/smaps_rollup", encoding="ascii") as f:
        return sum(int(x) for x in re.findall(r"Private_Dirty:\s+(\d+)", f.read())) / 1024


def the_daemon_stays_small():
    """Walks over many versions of many keys: what the daemon has does not grow with them."""
    if lib.sanitized():
        return
    first, versions, keys = 10, 30, 3000
    source = lib.fresh("many")
    for n in range(versions):
        save(source / f"step-{n}", keys)

    def walk(numbers):
        for n in numbers:
            at = m.at / f"step-{n}"
            equal(len(lib.ok("ls", "-l", at / "raw").splitlines()), keys + 1, "lines of ls -l")
            lib.ok("find", at / "npy", "-size", "+1")
            lib.ok("du", "-s", at / "safetensors")
            check(os.stat(at / "index.json").st_size > 50 * keys, "size of index.json")

    # what meson sets fills memory that would not be touched; how many heaps glibc makes, and threads libfuse, hinges on the load
    with lib.mount(source, "--threads", "2", prefix=("env", "-u", "MALLOC_PERTURB_", "MALLOC_ARENA_MAX=1")) as m:
        m.settled()
        for n in range(versions):  # each keeps a connection to its index with what it was asked, up to a limit of the mount
            at = m.at / f"step-{n}"
            os.stat(at / "index.json")
            for form in ("raw", "npy", "safetensors"):
                os.stat(at / form / os.listdir(at / form)[0])
        walk(range(first))
        os.listdir(m.at / "by-key")
        before = private(m)
        walk(range(first, versions))
        os.listdir(m.at / "by-key")
        after = private(m)
        print(f"  {before:.1f} MiB after {first} versions, {after:.1f} MiB after {versions}")
        check(after < before + 4, f"from {before:.1f} to {after:.1f} MiB")
        check(after < 100, f"{after:.1f} MiB")


def by_key_waits_for_indexes():
    """by-key/ leaves out no version that is still being indexed: listings wait for all, a name for its version."""
    source, cache, paths = several("step-1", "step-2", "step-3")
    key = "model.norm.weight"
    held = contextlib.ExitStack()
    held.enter_context(held_back(paths["step-1"], paths["step-2"]))  # before the mount, which indexes all by itself
    with lib.mount(source, cache=cache) as m:
        with held:
            wait(lambda: state(m)["step-3"] == "ready", "the version that is not held back is opened")
            known = m.at / "by-key" / key
            check(os.path.isdir(known), "a key that an open version has is there at once")
            check(os.path.exists(known / "step-3.npy"), "and its file")
            later = [Later(lambda: os.listdir(known)), Later(lambda: os.listdir(m.at / "by-key")),
                     Later(lambda: os.stat(known / "step-1.npy")),
                     Later(lambda: errno_of(os.stat, m.at / "by-key" / "no such key"))]
            for call in later:
                check(not call.done(0.5), f"waits: {call.got}")
        check(all(call.done() for call in later), "all are answered")
        equal(sorted(later[0].got), ["step-1.npy", "step-2.npy", "step-3.npy"], "by-key/KEY")
        check(key in later[1].got and later[3].got == "ENOENT" and later[2].got, f"the others: {[call.got for call in later[2:]]}")


def leftovers_of_killed_daemons_go():
    """An index that a killed daemon was building is swept away by the next one."""
    source, cache, paths = several("step-1")
    (lib.pathlib.Path(paths["step-1"] + ".tmp-AbCdEf")).write_bytes(b"half of it")
    with lib.mount(source, cache=cache) as m:
        equal(reads(m, "step-1"), [], "its tensors")
    equal(sorted(os.listdir(cache)), [os.path.basename(paths["step-1"])], "files in the cache")
    shutil.rmtree(cache)


lib.main(nothing_is_opened, readers_wait_for_their_version_only, latest_waits_for_its_index, the_newest_is_indexed_first,
         unreadable_sources_are_refused, the_daemon_stays_small, by_key_waits_for_indexes, leftovers_of_killed_daemons_go)
