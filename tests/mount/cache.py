# SPDX-License-Identifier: Apache-2.0
"""The cache of indexes: missing, unwritable, full, full of garbage. The mount works, and says so once."""
import json
import os
import pathlib
import shutil
import sqlite3
import time

import lib
from lib import case, check, equal, outcome, sha

WHERE, MANIFEST = lib.golden("dcp-old-2.4.1")


def reads(m):
    """Every tensor of every version is what the manifest says."""
    m.settled()
    for version, want in MANIFEST.items():
        index = m.index(version)["tensors"]
        equal(sorted(index), sorted(want["tensors"]), f"keys of {version}")
        wrong = {k: error for k, t in index.items()
                 for data, error in [outcome(m.at / version / t["files"]["raw"])]
                 if error or sha(data) != want["tensors"][k]["sha256"]}
        equal(wrong, {}, f"keys of {version} that do not read as saved")


def lines(m):
    """What the daemon said, but for that the source has no config.json."""
    return [x for x in m.log().splitlines() if x.strip() and not x.endswith(lib.NO_CONFIG)]


def quiet(m):
    equal(lines(m), [], "what the daemon said")


def says_once(m, *words):
    """There are lines with all these words: one for the directory, or one a version, and no other."""
    about = [x for x in lines(m) if all(w in x.lower() for w in words)]
    equal(sorted(about), sorted(set(lines(m))), f"lines, all about {words} and each said once")
    check(len(about) == 1 or sorted(v for v in MANIFEST for x in about if f" {v}:" in x) == sorted(MANIFEST),
          f"one line, or one a version: {about}")


def indexes(cache):
    return sorted(p for p in pathlib.Path(cache).rglob("*") if p.is_file())


def indexes_are_found_again():
    """A second mount finds the indexes of the first and changes nothing in the cache but when they were used last."""
    cache = lib.WORK / "deep" / "new" / "cache"
    with lib.mount(WHERE, cache=cache) as m:
        reads(m)
    quiet(m)
    files = {p: (os.stat(p).st_size, os.stat(p).st_ino) for p in indexes(cache)}
    equal(len(files), len(MANIFEST), "files in the cache, one a version")
    with lib.mount(WHERE, cache=cache) as m:
        reads(m)
    quiet(m)
    equal({p: (os.stat(p).st_size, os.stat(p).st_ino) for p in indexes(cache)}, files, "files in the cache")
    case("--rebuild")
    with lib.mount(WHERE, "--rebuild", cache=cache) as m:
        reads(m)
    check({p: os.stat(p).st_ino for p in indexes(cache)} != {p: i for p, (_, i) in files.items()}, "indexes are new")
    equal(len(indexes(cache)), len(MANIFEST), "files in the cache after --rebuild")
    case("--index")
    one = lib.WORK / "one.index"
    with lib.mount(WHERE / "step_100", "--index", one, cache=lib.WORK / "unused") as m:
        equal(m.versions(), ["step_100"], "versions")
    check(one.is_file() and not (lib.WORK / "unused").exists(), "the index is where it was asked for")


def unusable_places_are_reported():
    """Places where no cache can be: indexes stay in memory, with one line that says so."""
    (lib.WORK / "file").write_text("x")
    places = {"below a file": lib.WORK / "file" / "cache", "a file": lib.WORK / "file"}
    if os.geteuid() == 0:
        ro = lib.fresh("ro")
        lib.ok("mount", "-t", "tmpfs", "-o", "ro,size=64k", "dcpfs-test", ro)
        places["a read-only file system"] = ro / "cache"
        places["a read-only directory"] = ro
    else:
        ro = lib.fresh("ro")
        ro.chmod(0o555)
        places["a directory that may not be written to"] = ro
    places["/proc"] = "/proc/cache"
    try:
        for what, place in places.items():
            case(what)
            with lib.mount(WHERE, cache=place) as m:
                reads(m)
            says_once(m, "memory")
    finally:
        if os.geteuid() == 0:
            lib.ok("umount", ro)
    case("DCPFS_CACHE set but empty")
    m = lib.Mount(WHERE, prefix=["env", "DCPFS_CACHE="])
    reads(m)
    m.unmount()
    quiet(m)


def a_full_cache_is_survived():
    """No room for indexes: as if there were no cache."""
    if os.geteuid() != 0:
        print("  left out: filling a file system needs root")
        return
    for size, filler in (("64k", 0), ("64k", 60 << 10), ("200k", 0)):
        case(f"a cache of {size} with {filler} bytes in it")
        small = lib.fresh("small")
        lib.ok("mount", "-t", "tmpfs", "-o", f"size={size}", "dcpfs-test", small)
        try:
            if filler:
                (small / "filler").write_bytes(b"x" * filler)
            for _ in range(2):
                with lib.mount(WHERE, cache=small) as m:
                    reads(m)
                if lines(m) or filler:
                    says_once(m, "memory")
                left = [p for p in indexes(small) if p.name != "filler"]
                check(len(left) <= len(MANIFEST), f"no half-written files are left: {left}")
        finally:
            lib.ok("umount", small)


def decoded_files_need_no_room():
    """No room for what compressed files decode to: it is kept in memory, and said."""
    if os.geteuid() != 0:
        print("  left out: filling a file system needs root")
        return
    for source, versions in lib.golden_sources("composer"):
        if source.name != "containers":
            continue
        for size in ("16k", "300k"):
            case(f"a cache of {size}")
            small = lib.fresh("small")
            lib.ok("mount", "-t", "tmpfs", "-o", f"size={size}", "dcpfs-test", small)
            try:
                with lib.mount(source, cache=small) as m:
                    m.settled()
                    for version, want in versions.items():
                        index = m.index(version)["tensors"]
                        wrong = [k for k, t in want["tensors"].items()
                                 if sha(lib.read(m.at / version / index[k]["files"]["raw"])) != t["sha256"]]
                        equal(wrong, [], f"keys of {version} that do not read as saved")
                check(any("memory" in x for x in lines(m)), f"what the daemon said: {lines(m)[:5]}")
                left = [p.name for p in indexes(small) if ".tmp-" in p.name]
                equal(left, [], "half-written files")
            finally:
                lib.ok("umount", small)


def set_pragma(path, text):
    db = sqlite3.connect(path)
    db.execute(text)
    db.commit()
    db.close()


def drop_tables(path):
    db = sqlite3.connect(path)
    tables = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
    for (name,) in db.execute(tables).fetchall():
        db.execute(f'drop table "{name}"')
    db.commit()
    db.close()


def replaced(path, make):
    os.unlink(path)
    make()


DAMAGE = {
    "empty": lambda p: p.write_bytes(b""),
    "cut in half": lambda p: os.truncate(p, os.stat(p).st_size // 2),
    "cut by a byte": lambda p: os.truncate(p, os.stat(p).st_size - 1),
    "longer": lambda p: p.write_bytes(lib.read(p) + b"\0" * 4096),
    "random bytes": lambda p: p.write_bytes(lib.rng("random").randbytes(20000)),
    "zeros": lambda p: p.write_bytes(b"\0" * 20000),
    "text": lambda p: p.write_bytes(b"not a database\n"),
    "another schema": lambda p: set_pragma(p, "pragma user_version = 9999"),
    "another program's": lambda p: set_pragma(p, "pragma application_id = 12345"),
    "without tables": drop_tables,
    "a directory": lambda p: replaced(p, lambda: p.mkdir()),
    "a dangling link": lambda p: replaced(p, lambda: p.symlink_to("nowhere")),
    "a link to a device": lambda p: replaced(p, lambda: p.symlink_to("/dev/zero")),
    "a fifo": lambda p: replaced(p, lambda: os.mkfifo(p)),
    "not readable": lambda p: p.chmod(0),
}


def garbage_is_replaced():
    """Whatever lies where an index should be: it is built again, or kept in memory, and bytes stay right."""
    good = lib.WORK / "good"
    with lib.mount(WHERE, cache=good) as m:
        reads(m)
    for what, damage in DAMAGE.items():
        case(f"an index that is {what}")
        cache = lib.copy(good, lib.fresh("garbage") / "cache")
        for path in indexes(cache):
            damage(path)
        with lib.mount(WHERE, cache=cache) as m:
            reads(m)
        check(len(lines(m)) <= len(MANIFEST), f"at most a line a version: {lines(m)}")
        with lib.mount(WHERE, cache=cache) as m:
            reads(m)
    case("indexes of each other")
    cache = lib.copy(good, lib.fresh("garbage") / "cache")
    paths = indexes(cache)
    for a, b in zip(paths, paths[1:]):
        shutil.copyfile(good / b.relative_to(cache), a)
    with lib.mount(WHERE, cache=cache) as m:
        reads(m)


def random_damage_is_survived():
    """Bits off at random places: never a crash, a hang or wrong bytes; --rebuild heals."""
    good = lib.WORK / "good"
    if not good.exists():
        with lib.mount(WHERE, cache=good) as m:
            reads(m)
    for i in range(16):
        rng = lib.rng("damage", i)
        case(f"random damage {i}")
        cache = lib.copy(good, lib.fresh("garbage") / "cache")
        for path in indexes(cache):
            data = bytearray(lib.read(path))
            for _ in range(rng.choice([1, 3, 30, 300])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(data)
        with lib.mount(WHERE, cache=cache) as m:
            m.settled()
            for version in m.versions():
                for form in ("raw", "npy", "objects"):
                    lib.errno_of(walk_through, m.at / version / form)
                for t in MANIFEST[version]["tensors"].values():
                    data, _ = outcome(m.at / version / "raw" / f"{t['key'].replace('/', '%2F')}.bin")
                    check(data is None or sha(data) == t["sha256"], f"wrong bytes of {version} {t['key']}")
            check(m.running(), "the daemon lives")
        with lib.mount(WHERE, "--rebuild", cache=cache) as m:
            reads(m)


def damage_under_a_mount_is_healed():
    """An index that is damaged under a live mount: EIO, and soon it is built again."""
    cache = lib.fresh("cache")
    with lib.mount(WHERE, cache=cache) as m:
        names = [m.at / v / "npy" / f"{n[:-4]}.npy" for v in m.settled().versions() for n in os.listdir(m.at / v / "raw")]
        for path in indexes(cache):
            with open(path, "r+b") as f:  # behind the header, where connections do not look again
                f.seek(4096)
                f.write(b"\xff" * (os.fstat(f.fileno()).st_size - 4096))

        def failing():
            return {lib.errno_of(os.stat, name) for name in names} - {None}

        check("EIO" in failing(), "some fail")
        lib.wait(lambda: not failing(), "nothing fails any more")
        check("its index is damaged" in m.log(), f"the log says why: {m.log()}")
        reads(m)
    with lib.mount(WHERE, cache=cache) as m:
        reads(m)
    check(not lines(m), f"the index in the cache is whole: {lines(m)}")


def walk_through(directory):
    for name in os.listdir(directory):
        outcome(directory / name)


def racing_mounts_agree():
    """Mounts of one source that build its indexes at the same time."""
    for _ in range(3):
        cache = lib.fresh("raced") / "cache"
        mounts = [lib.Mount(WHERE, cache=cache, answers=False) for _ in range(4)]
        for m in mounts:
            lib.wait(m.answers, "the mount answers")
        for m in mounts:
            reads(m)
        for m in mounts:
            m.unmount()
            quiet(m)
        equal(len(indexes(cache)), len(MANIFEST), f"files left in the cache: {indexes(cache)}")
        with lib.mount(WHERE, cache=cache) as m:
            reads(m)


def stale_indexes_are_not_taken():
    """An index made of other files of the same name is not taken."""
    source, cache = lib.fresh("source"), lib.fresh("cache")
    fsdp, manifest = lib.golden("dcp-fsdp2")

    def replace(step):
        shutil.rmtree(source / "v", ignore_errors=True)
        lib.copy(fsdp / step, source / "v")

    def rewrite(step):
        for path in (fsdp / step).iterdir():
            (source / "v" / path.name).write_bytes(lib.read(path))

    def rewrite_with_times(step):
        times = {p: (os.stat(p).st_atime_ns, os.stat(p).st_mtime_ns) for p in (source / "v").iterdir()}
        rewrite(step)
        for path, ns in times.items():
            os.utime(path, ns=ns)

    for step, change in (("step-10", replace), ("step-20", replace), ("step-10", rewrite),
                         ("step-20", rewrite_with_times)):
        case(f"{step}, {change.__name__}")
        change(step)
        if change is rewrite:  # so old that its index, if it is wrong, would be trusted
            newest = max(os.stat(p).st_ctime for p in (source / "v").iterdir())
            lib.wait(lambda: time.time() > newest + 2.1, "the clock goes on")
        with lib.mount(source, cache=cache) as m:
            index, want = m.index("v"), manifest[step]
            wrong = [k for k, t in index["tensors"].items()
                     if sha(lib.read(m.at / "v" / t["files"]["raw"])) != want["tensors"][k]["sha256"]]
            wrong += [k for k, o in index["objects"].items() if want["objects"][k]["json"] is not None and
                      json.loads(lib.read(m.at / "v" / o["file"])) != want["objects"][k]["json"]]
            equal(wrong, [], "keys that do not read as saved")


lib.main(indexes_are_found_again, unusable_places_are_reported, a_full_cache_is_survived, decoded_files_need_no_room,
         garbage_is_replaced, random_damage_is_survived, damage_under_a_mount_is_healed, racing_mounts_agree,
         stale_indexes_are_not_taken)
