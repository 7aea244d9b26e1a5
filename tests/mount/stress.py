# SPDX-License-Identifier: Apache-2.0
"""Everything at once: readers, mappers, listers, stat-ers and xattr readers of a mount whose source a writer
changes all the time. Settled versions read as saved, nothing hangs, the daemon ends with 0 and, built with a
sanitizer, without a word of it.

    DCPFS_STRESS_SECONDS    how long, over all ways to mount together (10)
"""
import mmap
import os
import random
import shutil
import time
import traceback

import lib
from lib import case, check, equal, outcome

FSDP, MANIFEST = lib.golden("dcp-fsdp2")
SETTLED = ("step-10", "step-20")
SECONDS = float(os.environ.get("DCPFS_STRESS_SECONDS") or 10)
READERS = 16
# What a reader of a version that is being rewritten may meet; a second look is never worse.
CHANGING = ("ENOENT", "ESTALE", "EIO")


class Wrong(Exception):
    pass


def expected(m, version):
    """{path below the version: bytes}: what every file of a version holds; raw is what was saved."""
    files, index = {}, m.index(version)
    for entries in (index["tensors"], index["objects"]):
        for key, entry in entries.items():
            for form, path in entry.get("files", {"objects": entry.get("file")}).items():
                if path is None or path in files:
                    continue
                data, error = outcome(m.at / version / path)
                check(error is None, f"{version}/{path}: {error}")
                files[path] = data
                if form == "raw":
                    equal(lib.sha(data), MANIFEST[version]["tensors"][key]["sha256"], f"{version}/{path}")
    for name in ("index.json", "index.jsonl", "README.txt"):
        files[name] = lib.read(m.at / version / name)
    return files


# ---- those who read: each a function of (mount point, truth, random) for one small act ----

def window(rng, size):
    at = rng.randrange(size + 1)
    return at, rng.choice((1, 7, 512, 4096, 65536, size)) if size else 1


def by_pread(at, truth, rng):
    version = rng.choice(list(truth))
    path, want = rng.choice(truth[version])
    fd = os.open(at / version / path, os.O_RDONLY)
    try:
        if rng.random() < 0.5:
            lib.forget(fd)
        for _ in range(4):
            start, n = window(rng, len(want))
            got = os.pread(fd, n, start)
            # a page that has become unreadable cuts a read short, as anywhere; without OPEN a value
            # that was lost is a byte long, so that reading it from the start can fail
            right = want[start:start + n]
            ends = not got and os.fstat(fd).st_size > start
            if got != right and (version in SETTLED or ends or not right.startswith(got)):
                raise Wrong(f"{version}/{path}: {len(got)} bytes at {start} of {len(want)}: {got[:100]}")
    finally:
        os.close(fd)


def by_mmap(at, truth, rng):
    version = rng.choice(SETTLED)  # a page that cannot be had is a signal, so nothing that changes
    path, want = rng.choice(truth[version])
    if not want:
        return
    fd = os.open(at / version / path, os.O_RDONLY)
    try:
        lib.forget(fd)
        with mmap.mmap(fd, len(want), mmap.MAP_SHARED, mmap.PROT_READ) as pages:
            start, n = window(rng, len(want))
            if pages[start:start + n] != want[start:start + n]:
                raise Wrong(f"{version}/{path} mapped: bytes {start} to {start + n}")
    finally:
        os.close(fd)


def by_listing(at, truth, rng):
    names = os.listdir(at)
    if not set(SETTLED) <= set(names) or len(set(names)) != len(names):
        raise Wrong(f"the root lists {names}")
    version = rng.choice(list(truth))
    directory = rng.choice(("npy", "raw", "safetensors", "objects"))
    want = {p.split("/")[1] for p, _ in truth[version] if p.startswith(directory + "/")}
    got = set(os.listdir(at / version / directory))
    if not want <= got:
        raise Wrong(f"{version}/{directory} lists {len(got)} names, lacks {len(want - got)}: {sorted(want - got)[:5]}")


def by_stat(at, truth, rng):
    version = rng.choice(list(truth))
    path, want = rng.choice(truth[version])
    known = version in SETTLED or not path.startswith("objects/")  # one that was cut has none
    if os.stat(at / version / path).st_size != len(want) and known:
        raise Wrong(f"{version}/{path}: st_size is not {len(want)}")
    os.stat(at / "latest")
    os.statvfs(at)


def by_xattr(at, truth, rng):
    version = rng.choice(list(truth))
    path = at / version / rng.choice([p for p, _ in truth[version] if p.startswith("raw/")])
    names = os.listxattr(path)
    if os.getxattr(path, "user.dcpfs.version").decode() != version or "user.dcpfs.key" not in names:
        raise Wrong(f"{path}: attributes {names}")


def by_control(at, truth, rng):
    name = rng.choice(("status.json", "errors.json", "incomplete.json", "config.json", "stats"))
    if not lib.read(at / ".dcpfs" / name).endswith(b"\n"):
        raise Wrong(f".dcpfs/{name} is cut")


# ---- the one who writes ----

def complete(source, name, of):
    """As a framework saves: the shards, then the metadata with a rename."""
    directory = source / name
    directory.mkdir()
    for shard in sorted(os.listdir(FSDP / of)):
        if shard != ".metadata":
            shutil.copyfile(FSDP / of / shard, directory / shard)
    shutil.copyfile(FSDP / of / ".metadata", directory / ".metadata.tmp")
    os.rename(directory / ".metadata.tmp", directory / ".metadata")


def by_writing(source, rng):
    """One change of a version that is not a settled one. Its bytes, where it has them, are always the same."""
    name = f"step-{rng.randrange(100, 104)}"
    directory = source / name
    if not directory.exists():
        complete(source, name, "step-10")
        return
    shards = sorted(n for n in os.listdir(directory) if n.endswith(".distcp"))
    what = rng.choice(("remove", "rewrite", "replace", "cut", "uncommit", "touch"))
    if not shards or what == "remove":
        shutil.rmtree(directory)
        return
    shard = rng.choice(shards)
    whole = lib.read(FSDP / "step-10" / shard)
    if what == "rewrite":
        (directory / shard).write_bytes(whole)
    elif what == "replace":
        (directory / "new").write_bytes(whole)
        os.rename(directory / "new", directory / shard)
    elif what == "cut":
        os.truncate(directory / shard, rng.randrange(len(whole)))
    elif what == "touch":
        os.utime(directory / shard)
    elif (directory / ".metadata").exists():
        os.unlink(directory / ".metadata")


# ---- all of them ----

def keep(act, until, *args):
    """Do it until the time is over; in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    code, n, met = 1, 0, {}
    try:
        while time.monotonic() < until:
            try:
                act(*args)
            except OSError as e:
                name = lib.errno.errorcode.get(e.errno, str(e.errno))
                met[name] = met.get(name, 0) + 1
                if name not in CHANGING or any(f"/{v}/" in str(e.filename or "") for v in SETTLED):
                    raise
            n += 1
        code = 0
    except BaseException:  # of whatever kind, it must not unwind into the parent's part
        print(f"FAIL {lib._case[0]} {act.__name__} after {n}: {traceback.format_exc()}", flush=True)
    finally:
        if os.environ.get("DCPFS_TEST_KEEP"):
            print(f"{act.__name__}: {n} {met}", flush=True)
        os._exit(code)


def changing(source, rng):
    by_writing(source, rng)
    time.sleep(rng.random() * 0.2)


def collect(pids, until):
    """How each ended; those that hang are told and killed."""
    codes = []
    while pids:
        pid, status = os.waitpid(pids[0], os.WNOHANG)
        if pid:
            codes.append(os.waitstatus_to_exitcode(status))
            pids.pop(0)
        elif time.monotonic() > until:
            lib.fail(f"{len(pids)} did not end")
            for p in pids:
                os.kill(p, 9)
            return codes
        else:
            time.sleep(0.02)
    return codes


def at_once(*options, seconds):
    case(" ".join(options))
    source = lib.fresh("source")
    for name in SETTLED:
        lib.copy(FSDP / name, source / name)
    complete(source, "step-100", "step-10")
    with lib.mount(source, "--threads", "8", *options) as m:
        m.settled()
        truth = {v: list(expected(m, v).items()) for v in SETTLED}
        # What a changing version is checked for: only what does not tell its own name.
        changes = [(p, d) for p, d in truth["step-10"] if "/" in p]
        everything = {**truth, **{f"step-{n}": changes for n in range(100, 104)}}
        until = time.monotonic() + seconds
        seeds = iter(range(1 << 30))

        def several(act, n, *args):
            return [keep(act, until, *args, random.Random(f"{lib.SEED} {next(seeds)}")) for _ in range(n)]

        pids = several(by_pread, READERS - 8, m.at, truth) + several(by_pread, 4, m.at, everything)
        pids += several(by_mmap, 4, m.at, truth)
        for act in (by_listing, by_stat, by_xattr):
            pids += several(act, 1, m.at, truth) + several(act, 1, m.at, everything)
        pids += several(by_control, 2, m.at, truth) + several(changing, 1, source)
        codes = collect(pids, until + lib.PATIENCE)
        equal([c for c in codes if c], [], "exit codes of those that failed")
        check(m.running(), f"the daemon lives: {m.log()}")
        for version in SETTLED:
            wrong = [p for p, want in truth[version] if outcome(m.at / version / p) != (want, None)]
            equal(wrong, [], f"files of {version} that read otherwise afterwards")
    check("Sanitizer" not in m.log(), f"a sanitizer said: {m.log()[:20000]}")


WAYS = ((), ("--no-open",), ("--io", "pread"), ("--io", "pread", "--no-open"))


def everything_works_at_once():
    for options in WAYS:
        at_once(*options, seconds=SECONDS / len(WAYS))


lib.main(everything_works_at_once)
