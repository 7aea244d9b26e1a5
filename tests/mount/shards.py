# SPDX-License-Identifier: Apache-2.0
"""Shards that are cut, rewritten, removed or brought back under a mount.

Whatever happens to them: a read gives the right bytes or an error, other keys go on, the daemon lives.
"""
import contextlib
import mmap
import os
import signal
import threading

import arrays
import lib
from lib import case, check, equal, outcome, sha, wait

VERSION = "step-10"
SHARD = "__2_0.distcp"


def source_of_four():
    """(source, its version's directory, manifest of it): four shards, most keys in all of them."""
    source = lib.fresh("source")
    where, versions = lib.golden("dcp-fsdp2")
    return source, lib.copy(where / VERSION, source / VERSION), versions[VERSION]["tensors"]


def states(m, wants, version=VERSION):
    """{key: "ok", an errno, or "wrong bytes"} of raw/ for {key: sha256}."""
    index, out = {}, {}
    try:
        index = m.index(version)["tensors"]
    except OSError as e:
        return {key: f"no index: {e.strerror}" for key in wants}
    for key, want in wants.items():
        if key not in index:
            out[key] = "gone"
            continue
        data, error = outcome(m.at / version / index[key]["files"]["raw"])
        out[key] = error or ("ok" if sha(data) == want else "wrong bytes")
    return out


def never_wrong(got):
    wrong = sorted(k for k, s in got.items() if s == "wrong bytes")
    return check(not wrong, f"wrong bytes: {wrong}")


def becomes(m, wants, bad, maybe=(), what="only the keys that need the damaged bytes fail"):
    """Wait until exactly the bad keys fail (maybe ones may); none ever gives wrong bytes."""
    last = {}

    def there():
        last.clear()
        last.update(states(m, wants))
        failing = {k for k, s in last.items() if s != "ok"}
        return not never_wrong(last) or set(bad) <= failing <= set(bad) | set(maybe)

    wait(there, f"{what}; wanted {sorted(bad)}, {len(bad)} of {len(wants)}")
    failing = {k: s for k, s in last.items() if s != "ok"}
    check(set(bad) <= set(failing) <= set(bad) | set(maybe),
          f"failing but not expected {sorted(set(failing) - set(bad))}, expected {sorted(set(bad) - set(failing))}")
    return last


def told(m, bad, shard=SHARD):
    """errors.json has a line for each broken key, which names the shard."""
    lines = {e["key"]: e["error"] for e in m.control("errors.json") if e["version"] == VERSION}
    for key in bad:
        check(shard in (lines.get(key) or ""), f"errors.json on {key}: {lines.get(key)}")


def digests(tensors):
    return {k: t["sha256"] for k, t in tensors.items()}


def users_of(index, shard, at=0):
    """(keys with bytes of the shard at or behind an offset, keys with an empty piece in it)."""
    pieces = [(k, p) for k, t in index.items() for p in t["pieces"] if p["file"] == shard]
    full = {k for k, p in pieces if p["offset"] >= at and p["nbytes"]}
    return full, {k for k, p in pieces if not p["nbytes"]} - full


def all_well(m, wants):
    case("before any damage")
    equal({k: s for k, s in states(m, wants).items() if s != "ok"}, {}, "keys that fail")


def truncated_shards_fail_their_keys():
    """A shard cut in the middle: its keys behind the cut EIO, the others read, also those before the cut."""
    source, directory, tensors = source_of_four()
    wants = digests(tensors)
    with lib.mount(source) as m:
        all_well(m, wants)
        index, shard = m.index(VERSION)["tensors"], directory / SHARD
        whole = lib.read(shard)
        starts = sorted({p["offset"] for t in index.values() for p in t["pieces"]
                         if p["file"] == SHARD and p["nbytes"]})
        cut = starts[len(starts) // 2]
        bad, maybe = users_of(index, SHARD, cut)
        apart = set(wants) - bad - maybe - users_of(index, SHARD)[0]
        victim = max(bad, key=lambda k: index[k]["nbytes"])
        case(f"{SHARD} cut at {cut} of {len(whole)}")
        check(bad and apart, f"{len(bad)} keys need the end, {len(apart)} need nothing of it")
        fds = {form: os.open(m.at / VERSION / name, os.O_RDONLY) for form, name in index[victim]["files"].items()}
        for fd in fds.values():
            outcome(None, fd)  # by now the daemon has the shard mapped
        os.truncate(shard, cut)
        for form, fd in fds.items():
            check(outcome(None, fd)[1] in ("EIO", "ESTALE"), f"{form}/ held open: {outcome(None, fd)[1]}")
            os.close(fd)
        got = states(m, {k: wants[k] for k in apart})
        never_wrong(got)
        last = becomes(m, wants, bad, maybe)
        equal({last[k] for k in bad}, {"EIO"}, "errno of the broken keys")
        told(m, bad)
        broken = {k for k, t in m.index(VERSION)["tensors"].items() if t["error"]}
        check(bad <= broken <= bad | maybe, f"keys with an error in index.json: {len(broken)} of {len(bad)}")
        path = m.at / VERSION / index[victim]["files"]["raw"]
        equal(os.stat(path).st_size, index[victim]["nbytes"], "stat of a broken key")
        lib.fails("EIO", os.open, path, os.O_RDONLY)
        check(m.running(), "the daemon lives")
        case("the shard is whole again")
        shard.write_bytes(whole)
        becomes(m, wants, (), what="everything reads again")


def removed_shards_fail_their_keys():
    """No byte of a shard left, or no shard: as if cut at 0. And back again."""
    for what in ("emptied", "removed", "a directory", "a link out of the source", "a fifo"):
        source, directory, tensors = source_of_four()
        wants, shard = digests(tensors), directory / SHARD
        with lib.mount(source) as m:
            all_well(m, wants)
            bad, maybe = users_of(m.index(VERSION)["tensors"], SHARD)
            case(f"{SHARD} {what}")
            aside = lib.WORK / f"aside.{VERSION}"
            if what == "emptied":
                aside.write_bytes(lib.read(shard))
                os.truncate(shard, 0)
            else:
                os.rename(shard, aside)
            if what == "a directory":
                shard.mkdir()
            elif what == "a link out of the source":
                shard.symlink_to(aside)
            elif what == "a fifo":
                os.mkfifo(shard)
            last = becomes(m, wants, bad, maybe)
            equal({last[k] for k in bad}, {"EIO"}, "errno of the broken keys")
            told(m, bad)
            check(m.running(), "the daemon lives")
            if what == "a directory":
                shard.rmdir()
            os.replace(aside, shard)
            case(f"{SHARD} is back after: {what}")
            becomes(m, wants, (), what="everything reads again")


def two_saves():
    """(source, directory of the version, {key: bytes} of two saves that differ in every byte's value only)."""
    rng, source = lib.rng("saves"), lib.fresh("source")
    shapes = {"w": ("F32", [211, 301], 0), "narrow": ("U8", [4001, 23], 1), "half": ("BF16", [97, 401], 1)}
    saves = [{k: (d, s, dim, rng.randbytes(arrays.volume(s) * arrays.ITEM[d])) for k, (d, s, dim) in shapes.items()}
             for _ in range(2)]
    for name, tensors in zip(("a", "b"), saves):
        arrays.write_sharded(lib.WORK / f"{source.name}-{name}", tensors)
    directory = source / VERSION
    lib.copy(lib.WORK / f"{source.name}-a", directory)
    return source, directory, *({k: sha(t[3]) for k, t in tensors.items()} for tensors in saves)


def digest(path):
    """sha256 of a file as the kernel has it, or None."""
    try:
        return sha(lib.read(path))
    except OSError:
        return None


def still_old(fd, want, how):
    """A file opened before the change: an error, or what it was if the kernel or the daemon holds that."""
    data, error = outcome(None, fd)
    if how != "by rename":
        check(error in ("ESTALE", "EIO") or how == "passed" and sha(data) == want,
              f"held open: {error or sha(data) == want}")
    else:
        equal((data and sha(data), error), (want, None), "held open")


def rewritten_shards_are_not_mixed():
    """The same names with other bytes: never old bytes through a new open, never new ones as the old file."""
    for how, options in (("in place", ()), ("by rename", ()), ("in place", ("--passthrough=8",)),
                         ("in place", ("--io=pread",))):
        if not lib.knows(options):
            continue
        source, directory, old, new = two_saves()
        old_bytes, held_as = set(old.values()), "passed" if "--passthrough=8" in options else how
        with lib.mount(source, *options) as m:
            all_well(m, old)
            index = m.index(VERSION)["tensors"]
            paths = {k: m.at / VERSION / t["files"]["raw"] for k, t in index.items()}
            held = {k: os.open(p, os.O_RDONLY) for k, p in paths.items()}
            inodes = {k: os.fstat(fd).st_ino for k, fd in held.items()}
            for key, fd in held.items():
                outcome(None, fd)
                equal(digest(paths[key]), old[key], f"{key}, now in the kernel's cache")
            case(f"rewritten {how} {options}")
            for shard in sorted(os.listdir(directory)):
                data = lib.read(lib.WORK / f"{source.name}-b" / shard)
                if how == "in place":
                    with open(directory / shard, "r+b") as f:
                        f.write(data)
                else:
                    (directory / f"{shard}.tmp").write_bytes(data)
                    os.rename(directory / f"{shard}.tmp", directory / shard)
            for key, path in paths.items():  # the kernel has pages of it
                check(digest(path) not in old_bytes, f"old bytes of {key} through a new open")
            for key, fd in held.items():
                still_old(fd, old[key], held_as)
            seen = set()

            def arrives():
                got = states(m, new)
                seen.update(got.values())
                return never_wrong(got) is False or set(got.values()) == {"ok"}

            wait(arrives, "the new save is shown", lib.APPEARS + 5)
            check("wrong bytes" not in seen, f"what was seen until then: {seen}")
            for key, fd in held.items():
                still_old(fd, old[key], held_as)
                os.close(fd)
            check(all(os.stat(p).st_ino != inodes[k] for k, p in paths.items()), "new content has new inode numbers")
            equal(m.latest(), VERSION, "latest")


def the_daemon_survives_sigbus():
    """A reader that has a file mapped dies of SIGBUS at worst; the daemon does not."""
    source, directory, old, _ = two_saves()
    with lib.mount(source) as m:
        all_well(m, old)
        path = m.at / VERSION / m.index(VERSION)["tensors"]["w"]["files"]["raw"]
        ready, go = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                signal.signal(signal.SIGBUS, signal.SIG_DFL)
                fd = os.open(path, os.O_RDONLY)
                view = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
                lib.forget(fd)
                os.write(ready[1], b"x")
                os.read(go[0], 1)
                code = 0 if sha(view[:]) == old["w"] else 1
            finally:
                os._exit(code)
        os.read(ready[0], 1)
        case("cut while mapped")
        for shard in os.listdir(directory):
            os.truncate(directory / shard, 1000)
        os.write(go[1], b"x")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        check(code in (0, -signal.SIGBUS), f"the reader ended with {code}")
        check(m.running(), "the daemon lives")
        check(m.answers(), "and answers")


def churned_shards_are_survived():
    """Readers at work while shards are cut and restored over and over."""
    source, directory, old, _ = two_saves()
    with lib.mount(source) as m:
        all_well(m, old)
        index = m.index(VERSION)["tensors"]
        paths = {k: m.at / VERSION / t["files"]["raw"] for k, t in index.items()}
        whole = {s: lib.read(directory / s) for s in os.listdir(directory)}
        stop, wrong, counts = threading.Event(), [], {"ok": 0, "failed": 0}

        def reader(number):
            rng, held = lib.rng("churn", number), []
            while not stop.is_set():
                key = rng.choice(list(paths))
                data, error = outcome(paths[key])
                counts["failed" if error else "ok"] += 1
                if not error and sha(data) != old[key]:
                    wrong.append(key)
                with contextlib.suppress(OSError):
                    held.append(os.open(paths[key], os.O_RDONLY | os.O_DIRECT))
                for fd in held[-8:]:
                    with contextlib.suppress(OSError):
                        os.pread(fd, 1 << 20, 0)
                while len(held) > 8:
                    os.close(held.pop(0))
            for fd in held:
                os.close(fd)

        threads = [threading.Thread(target=reader, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        rng = lib.rng("cuts")
        case("shards cut and restored under readers")
        for i in range(24):
            shard = rng.choice(list(whole))
            os.truncate(directory / shard, rng.randrange(len(whole[shard])))
            reads = sum(counts.values())
            wait(lambda: sum(counts.values()) > reads + 6 or not m.running(), "readers go on")
            (directory / shard).write_bytes(whole[shard])
            if i % 8 == 7:
                good = counts["ok"]
                wait(lambda: counts["ok"] > good + 20 or not m.running(), "reads succeed again")
        stop.set()
        for t in threads:
            t.join()
        check(m.running(), "the daemon lives")
        equal(wrong, [], "reads that gave wrong bytes")
        wait(lambda: set(states(m, old).values()) == {"ok"}, "everything reads again")
        print(f"  reads under change: {counts}")


lib.main(truncated_shards_fail_their_keys, removed_shards_fail_their_keys, rewritten_shards_are_not_mixed,
         the_daemon_survives_sigbus, churned_shards_are_survived)
