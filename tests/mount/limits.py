# SPDX-License-Identifier: Apache-2.0
"""Too few descriptors, too little memory, and an end before the mount answers."""
import contextlib
import fcntl
import os
import resource
import signal
import subprocess
from concurrent import futures

import arrays
import lib
from lib import case, check, equal, outcome, wait

FSDP, MANIFEST = lib.golden("dcp-fsdp2")
WANT = {k: t["sha256"] for k, t in MANIFEST["step-10"]["tensors"].items()}


def several(n):
    source = lib.fresh("source")
    for i in range(1, n + 1):
        lib.copy(FSDP / "step-10", source / f"step-{i}")
    return source


def differing(m, version):
    """{key: what else it gave} of the tensors that do not read as saved."""
    found = {}
    for key, t in m.index(version)["tensors"].items():
        data, error = outcome(m.at / version / t["files"]["raw"])
        if error or lib.sha(data) != WANT[key]:
            found[key] = error or "wrong bytes"
    return found


def limit(m, what, soft):
    """Set the soft limit of the running daemon: the hard one could not be raised again."""
    resource.prlimit(m.pid, what, (soft, resource.prlimit(m.pid, what)[1]))


def lack_of_descriptors_is_reported():
    """What needs more descriptors than there are fails with EIO and says so; with more it works again."""
    source = several(1)
    with lib.mount(source, "--threads", "4") as m:
        m.settled()
        before = resource.prlimit(m.pid, resource.RLIMIT_NOFILE)[0]
        limit(m, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{m.pid}/fd")) + 10)
        for i in range(2, 14):
            lib.copy(FSDP / "step-10", source / f"step-{i}")
        wait(lambda: m.control("incomplete.json") or m.control("errors.json"), "the want of descriptors shows")
        check("step-1" in m.versions(), "a version that was listed stays")
        for version in m.versions():
            with contextlib.suppress(OSError):  # even index.json needs the shards
                equal(set(differing(m, version).values()) - {"EIO"}, set(), f"what else {version} gives")
        wait(lambda: any("open files" in e["error"] for e in m.control("errors.json")), "errors.json names the reason")
        case("with more of them")
        limit(m, resource.RLIMIT_NOFILE, before)
        wait(lambda: len(m.versions()) == 13 and not m.control("incomplete.json"), "every version is there")
        for version in m.versions():
            equal(differing(m, version), {}, f"tensors of {version}")


def sharded(directory, shards, rng):
    """A version of that many files, a key in each and one in all: {key: sha256}."""
    directory.mkdir(parents=True)
    rows = [rng.randbytes(24) for _ in range(shards)]
    own = [rng.randbytes(40) for _ in range(shards)]
    for i in range(shards):
        arrays.write_shard(directory / f"shard-{i + 1:05}-model-00001-of-00001.safetensors",
                           {"all": ("U8", [1, 24], [i, 0], rows[i]), f"own.{i}": ("U8", [40], [0], own[i])})
    return {"all": lib.sha(b"".join(rows)), **{f"own.{i}": lib.sha(data) for i, data in enumerate(own)}}


def few(descriptors, versions, shards):
    """Every key of every version reads, again and again, in turn and at the same time."""
    source = lib.fresh("source")
    want = {f"step-{v}": sharded(source / f"step-{v}", shards, lib.rng(descriptors, v)) for v in range(versions)}
    for options in ((), ("--io", "pread")):
        case(f"{versions} versions of {shards} shards, {descriptors} descriptors {options}")
        # a mount that takes less than the hard limit first: it raises the soft one
        with lib.mount(source, *options, prefix=("prlimit", f"--nofile={descriptors // 2}:{descriptors}")) as m:
            m.settled()
            equal(m.versions(), sorted(want), "versions")
            for turn in range(2):
                (source / f"turn-{turn}").mkdir()  # the source is looked at while all descriptors are in use
                with futures.ThreadPoolExecutor(4) as pool:
                    wrong = dict(pool.map(lambda x: (x, outcome(m.at / x[0] / "raw" / f"{x[1]}.bin")),
                                          [(v, k) for v in want for k in want[v]]))
                wrong = {x: error or "wrong bytes" for x, (data, error) in wrong.items()
                         if error or lib.sha(data) != want[x[0]][x[1]]}
                equal(wrong, {}, "keys that do not read")
            looks = m.stats()["rescans"]
            (source / "last").mkdir()
            wait(lambda: m.stats()["rescans"] > looks, "a look at the source")
            equal(m.control("errors.json"), [], "errors")
            for made in source.glob("turn-*"), source.glob("last"):
                for path in made:
                    path.rmdir()
            check(len(os.listdir(f"/proc/{m.pid}/fd")) < descriptors, "descriptors")


def unused_shards_are_closed():
    """More shards than open files are allowed: those not in use are closed and opened again."""
    few(64, 6, 30)
    few(1024, 1, 1500)


def lack_of_memory_is_survived():
    """Without address space for mappings and buffers: an error or the right bytes, and no end."""
    if lib.sanitized():
        return
    # One worker: libfuse ends the session when a further one finds no memory for its buffer.
    with lib.mount(several(2), "--threads", "1") as m:
        m.settled()
        with open(f"/proc/{m.pid}/statm", encoding="ascii") as f:
            now = int(f.read().split()[0]) * resource.getpagesize()
        limit(m, resource.RLIMIT_AS, now)
        for version in ("step-1", "step-2"):
            with contextlib.suppress(OSError):
                equal(set(differing(m, version).values()) - {"EIO", "ENOMEM"}, set(), f"what else {version} gives")
        check(m.running(), "the daemon lives")
        case("with memory again")
        limit(m, resource.RLIMIT_AS, resource.RLIM_INFINITY)
        for version in ("step-1", "step-2"):
            equal(differing(m, version), {}, f"tensors of {version}")


def child_of(process):
    """Of the only thread of @process; None while there is none, and once it ended."""
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as f:
        words = f.read().split()
        return int(words[0]) if words else None
    return None


def ended(number, whom, source, index, cache):
    """Send @number before the mount answers. False: it was faster, and is gone again."""
    at = lib.fresh("mnt")
    # Another process builds the index, so the child waits for as long as it gives a first version.
    with open(f"{index}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen([lib.PROGRAM, "mount", str(source), str(at)], stdin=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, env=lib.environment(cache), start_new_session=True)
        wait(lambda: child_of(process) or process.poll() is not None, "the child starts")
        child = child_of(process)
        if child and whom == "group":
            os.killpg(process.pid, number)
        elif child:
            os.kill(process.pid if whom == "command" else child, number)
        early = process.wait(lib.PATIENCE) != 0
        os.unlink(lock.name)
    process.stderr.close()
    if not early:
        check(lib.run(lib.PROGRAM, "umount", at).returncode == 0, "a command that succeeded left a mount")
    if child:
        wait(lambda: not lib.alive(child), "the child ends")
    check(not lib.mounted(at), "nothing is mounted")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(index)
    return early


def ended_starts_leave_nothing():
    """Whoever is ended while the index is built leaves no mount and no process, whichever gets the signal."""
    source, cache = several(1), lib.fresh("cache")
    with lib.mount(source, cache=cache) as m:
        index = m.settled().control("status.json")["versions"][0]["index"]
    os.unlink(index)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        for whom in ("command", "child", "group"):
            case(f"{number.name} to the {whom}")
            check(any(ended(number, whom, source, index, cache) for _ in range(20)), "caught before it answered")


def failing_mounts_say_why():
    """A mount that finds no memory says so, wherever that was."""
    if lib.sanitized():  # they reserve terabytes
        return
    source = several(1)
    for mib in range(24, 80, 4):
        case(f"{mib} MiB of addresses")
        at = lib.fresh("mnt")
        done = lib.run("prlimit", f"--as={mib << 20}", lib.PROGRAM, "mount", source, at, env=lib.environment())
        empty = [line for line in done.stderr.splitlines() if line.rstrip() in ("", "dcpfs:") or line.endswith(": ")]
        equal(empty, [], "lines that say nothing")
        check(done.returncode == 0 or done.stderr, f"exit code {done.returncode} and no message")
        lib.run("fusermount3", "-u", at)


lib.main(lack_of_descriptors_is_reported, unused_shards_are_closed, lack_of_memory_is_survived, failing_mounts_say_why,
         ended_starts_leave_nothing)
