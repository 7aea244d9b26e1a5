# SPDX-License-Identifier: Apache-2.0
"""The mount as a file system: what fails and how, what stat says, what the usual tools make of it."""
import ctypes
import fcntl
import json
import os
import shutil
import stat

import arrays
import lib
from lib import case, check, equal, fails, ok, run

COMMIT = 1_700_000_000_123_456_789
_state = {}


def the_mount():
    """One mount of three versions for all tests that do not change anything."""
    if not _state:
        source = lib.fresh("source")
        for i, (folder, version) in enumerate([("dcp-plain", "all"), ("dcp-fsdp2", "step-10"),
                                               ("dcp-sharded-tensor", "epoch_1")]):
            lib.copy(lib.GOLDEN / folder / "ckpt" / version, source / f"step-{i + 1}")
            os.utime(source / f"step-{i + 1}" / ".metadata", ns=(COMMIT, COMMIT + i))
        os.chmod(source, 0o755)
        _state["source"] = source
        _state["mount"] = lib.mount(source, stays=True).settled()
    return _state["mount"]


def walk(top):
    """Every path below, and the top."""
    for base, dirs, names in os.walk(top):
        yield base
        for name in [*names, *(d for d in dirs if os.path.islink(os.path.join(base, d)))]:
            yield os.path.join(base, name)


# ---- what fails ----

def writing_fails_with_erofs():
    """Nothing can be changed, and the reason is always EROFS."""
    m = the_mount()
    base = m.at / "step-2"
    file, folder = base / "index.json", base / "raw"
    for target in (file, m.at / "step-2" / "raw" / os.listdir(folder)[0], m.at / ".dcpfs" / "stats"):
        case(f"write to {target}")
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND,
                      os.O_RDWR | os.O_CREAT):
            fails("EROFS", os.open, target, flags)
        fails("EROFS", os.truncate, target, 0)
        fails("EROFS", os.truncate, target, 1 << 30)
        fails("EROFS", os.unlink, target)
        fails("EROFS", os.chmod, target, 0o600)
        fails("EROFS", os.chown, target, 1, 1)
        fails("EROFS", os.utime, target, (1, 1))
        fails("EROFS", os.setxattr, target, "user.x", b"1")
        fails("EROFS", os.removexattr, target, "user.dcpfs.key")
        fails("EROFS", os.rename, target, base / "other")
        fails("EROFS", os.link, target, base / "other")
        equal(os.access(target, os.W_OK), False, "access says it can be written")
    for parent in (m.at, base, folder, m.at / ".dcpfs"):
        case(f"create in {parent}")
        new = parent / "new"
        fails("EROFS", os.open, new, os.O_WRONLY | os.O_CREAT)
        fails("EROFS", os.mkdir, new)
        fails("EROFS", os.symlink, "x", new)
        fails("EROFS", os.mknod, new, stat.S_IFREG | 0o600)
        fails("EROFS", os.mkfifo, new)
        fails("EROFS", os.link, file, new)
        fails("EROFS", os.rename, file, new)
        fails("EROFS", os.rename, parent, m.at / "renamed") if parent != m.at else None
        fails("EROFS EBUSY", os.rmdir, parent)
    case("latest")
    fails("EROFS", os.unlink, m.at / "latest")
    fails("EROFS", os.rename, m.at / "latest", m.at / "newest")
    case("open for reading with a wish to create")
    os.close(os.open(file, os.O_RDONLY | os.O_CREAT))
    fails("EEXIST", os.open, file, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
    done = run("touch", file)
    check(done.returncode and "Read-only file system" in done.stderr, f"touch: {done.stderr}")


def errnos_are_exact():
    """The exact errno of what cannot be."""
    m = the_mount()
    base = m.at / "step-2"
    file, folder = base / "README.txt", base / "raw"
    long, longer = "n" * 255, "n" * 256
    fd, folder_fd = os.open(file, os.O_RDONLY), os.open(folder, os.O_RDONLY)
    rows = [
        ("ENOENT", os.stat, m.at / "step-99"),
        ("ENOENT", os.open, folder / "no.such.key.bin", os.O_RDONLY),
        ("ENOENT", os.open, folder / "no.such.key.bin", os.O_RDONLY),  # and when it is remembered
        ("ENOENT", os.open, folder / "README.txt", os.O_RDONLY),
        ("ENOENT", os.stat, folder / os.listdir(base / "npy")[0]),  # the extension belongs to the directory
        ("ENOENT", os.stat, folder / ".bin"),
        ("ENOENT", os.stat, m.at / ".dcpfs" / "nothing"),
        ("ENOENT", os.stat, folder / long),
        ("ENOENT", os.stat, m.at / long),
        ("ENAMETOOLONG", os.stat, folder / longer),
        ("ENAMETOOLONG", os.stat, m.at / longer),
        ("ENAMETOOLONG", os.stat, m.at / ".dcpfs" / longer),
        ("ENOTDIR", os.stat, file / "x"),
        ("ENOTDIR", os.open, file / "x", os.O_RDONLY),
        ("ENOTDIR", os.listdir, file),
        ("ENOTDIR", os.open, file, os.O_RDONLY | os.O_DIRECTORY),
        ("EISDIR", os.open, folder, os.O_WRONLY),
        ("EISDIR", os.read, folder_fd, 10),
        ("EINVAL", os.readlink, file),
        ("ELOOP", os.open, m.at / "latest", os.O_RDONLY | os.O_NOFOLLOW),
        ("ENODATA", os.getxattr, file, "user.none"),
        ("ENODATA", os.getxattr, folder, "user.dcpfs.key"),
        ("ENODATA", os.getxattr, folder / os.listdir(folder)[0], "user.dcpfs.none"),
        ("ENODATA ENOTSUP", os.getxattr, file, "system.posix_acl_access"),
        ("ENOTTY", fcntl.ioctl, fd, 0x7fff),
        ("EBADF", os.write, fd, b"x"),
        ("EBADF EINVAL", os.ftruncate, fd, 0),
    ]
    for want, call, *args in rows:
        case(f"{call.__name__} {args}"[:200])
        fails(want, call, *args)
    os.close(fd)
    os.close(folder_fd)
    case("buffer for an attribute: too small, and of exactly its size")
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(folder / os.listdir(folder)[0])
    equal(libc.getxattr(path, b"user.dcpfs.key", ctypes.create_string_buffer(1), 1), -1, "getxattr into 1 byte")
    equal(ctypes.get_errno(), 34, "errno (ERANGE)")
    equal(libc.listxattr(path, ctypes.create_string_buffer(1), 1), -1, "listxattr into 1 byte")
    equal(ctypes.get_errno(), 34, "errno (ERANGE)")
    for what, call in (("getxattr", lambda b, n: libc.getxattr(path, b"user.dcpfs.key", b, n)),
                       ("listxattr", lambda b, n: libc.listxattr(path, b, n))):
        size = call(None, 0)
        check(size > 1, f"{what} tells the size: {size}")
        for n in size - 1, size, size + 1:
            into = ctypes.create_string_buffer(b"\xff" * (size + 1), size + 1)
            equal(call(into, n), size if n >= size else -1, f"{what} of {size} bytes into {n}")
            equal(into.raw[size:], b"\xff", f"{what}: nothing behind them")


# ---- what stat says ----

def attributes_are_right():
    """Size, blocks, links, mode, owner and time of every node."""
    m, source = the_mount(), os.stat(_state["source"])
    for number, version in enumerate(m.versions()):
        top = m.at / version
        for path in walk(top):
            case(path)
            st = os.lstat(path)
            equal((st.st_uid, st.st_gid), (source.st_uid, source.st_gid), "owner")
            equal(st.st_mtime_ns, COMMIT + number, "mtime is that of the commit file")
            if stat.S_ISDIR(st.st_mode):
                equal(stat.S_IMODE(st.st_mode), 0o555, "mode")
                equal(st.st_nlink, 2 + sum(os.path.isdir(os.path.join(path, n)) for n in os.listdir(path)), "nlink")
            else:
                equal(stat.S_IMODE(st.st_mode), 0o444, "mode")
                equal(st.st_nlink, 1, "nlink")
                equal(st.st_size, len(lib.read(path)), "size")
                equal(st.st_blocks, -(-st.st_size // 512), "blocks")
        equal(len({os.lstat(p).st_ino for p in walk(top)}), len(list(walk(top))), f"distinct inodes in {version}")
    case("the root")
    equal(os.stat(m.at).st_nlink, 2 + 3 + len(m.versions()), "nlink of the root: .dcpfs, tags, by-key and the versions")
    equal(os.lstat(m.at / "latest").st_size, len(m.latest()), "size of latest")
    check(stat.S_ISLNK(os.lstat(m.at / "latest").st_mode), "latest is a link")


def listings_agree_with_stat():
    """A listing tells the inode and type that stat tells; . and .. are there and right."""
    m = the_mount()
    for path in (p for p in walk(m.at) if os.path.isdir(p) and not os.path.islink(p)):
        case(path)
        with os.scandir(path) as it:
            for e in it:
                st = os.lstat(e.path)
                equal(e.inode(), st.st_ino, f"inode of {e.name} in the listing")
                equal((e.is_dir(follow_symlinks=False), e.is_symlink()),
                      (stat.S_ISDIR(st.st_mode), stat.S_ISLNK(st.st_mode)), f"type of {e.name} in the listing")
        equal(os.stat(os.path.join(path, ".")).st_ino, os.stat(path).st_ino, "inode of .")
        equal(os.stat(os.path.join(path, "..")).st_ino, os.stat(os.path.dirname(path)).st_ino, "inode of ..")


def found(m):
    """What find says of the versions, with paths relative to the mount."""
    return {v: ok("find", ".", "-printf", r"%i %s %b %T@ %m %n %p\0", cwd=m.at / v) for v in m.versions()}


def remounts_keep_inodes():
    """The same inode numbers, sizes and times after a remount, also when the index is built again.

    But for the size of index.jsonl, which has the statistics that were asked for since.
    """
    m = the_mount()
    first = found(m)
    for what, cache in (("the same index", None), ("an index built again", lib.fresh("cache"))):
        case(what)
        with lib.mount(_state["source"], cache=cache) as again:
            now = found(again.settled())
            for v, lines in first.items():
                equal([x for x in now[v].split("\0") if not x.endswith("/index.jsonl")],
                      [x for x in lines.split("\0") if not x.endswith("/index.jsonl")], f"find -printf in {v}")
            equal(now.keys(), first.keys(), "versions")
            equal(os.stat(again.at / ".dcpfs").st_ino, os.stat(m.at / ".dcpfs").st_ino, "inode of .dcpfs")


def disk_usage_adds_up():
    """du adds up the files, df shows a full disk of their size."""
    m = the_mount()
    for version in m.versions():
        case(f"du {version}")
        files = [os.lstat(p) for p in walk(m.at / version) if os.path.isfile(p)]
        equal(int(ok("du", "-s", "-B512", m.at / version).split()[0]), sum(-(-s.st_size // 512) for s in files),
              "du in blocks")
        equal(int(ok("du", "-sb", m.at / version / "raw").split()[0]) - os.stat(m.at / version / "raw").st_size,
              sum(t["nbytes"] for t in m.index(version)["tensors"].values()), "du --apparent-size of raw/")
    case("df")
    v = os.statvfs(m.at)
    total = sum(t["nbytes"] for n in m.versions() for t in m.index(n)["tensors"].values())
    check(total <= v.f_blocks * v.f_frsize <= total + 4096 * len(m.versions()),
          f"{v.f_blocks} blocks for {total} bytes")
    equal((v.f_bfree, v.f_bavail, v.f_ffree, v.f_namemax), (0, 0, 0, 255), "free blocks and files, longest name")
    check(v.f_flag & os.ST_RDONLY and v.f_files > 0, f"flags {v.f_flag}, files {v.f_files}")
    line = ok("df", "-P", m.at).splitlines()[1].split()
    equal(line[-2], "100%", "df -P shows it full")


# ---- tools ----

def copies_are_the_same():
    """cp -a, rsync, tar and diff get the same tree."""
    m = the_mount()
    for version in m.versions():
        src, out = m.at / version, lib.fresh("copy")
        case(f"cp -a {version}")
        ok("cp", "-a", src, out / "cp")
        ok("diff", "-r", src, out / "cp")
        equal(os.stat(out / "cp" / "index.json").st_mtime_ns, os.stat(src / "index.json").st_mtime_ns,
              "mtime of the copy")
        case(f"tar {version}")
        for name, options in (("tar", []), ("sparse", ["-S"])):
            (out / name).mkdir()
            ok("tar", *options, "-cf", out / f"{name}.tar", "-C", src, ".")
            ok("tar", "-xf", out / f"{name}.tar", "-C", out / name)
            ok("diff", "-r", out / "cp", out / name)
        if shutil.which("rsync"):
            case(f"rsync -a {version}")
            ok("rsync", "-a", f"{src}/", out / "rsync")
            ok("diff", "-r", out / "cp", out / "rsync")
            equal(ok("rsync", "-ani", "--checksum", f"{src}/", out / "rsync"), "", "what a second rsync would do")
        check(os.access(out / "cp", os.W_OK) or os.geteuid(), "the copy")
        ok("chmod", "-R", "u+w", out)
    case("the whole mount")
    out = lib.fresh("copy")
    ok("cp", "-a", m.at, out / "all")
    equal(os.readlink(out / "all" / "latest"), m.latest(), "latest in the copy")


def positions_continue_listings():
    """seekdir to any position that telldir gave continues there."""
    libc, entry = lib.directory_calls()
    m, rng = the_mount(), lib.rng("positions")
    for path in (m.at, m.at / "step-1" / "raw", m.at / "step-1" / "npy", m.at / "step-2" / "objects"):
        case(str(path))
        d = libc.opendir(os.fsencode(path))
        order, at = [], libc.telldir(d)
        while (name := entry(d)) is not None:
            order.append((at, name))
            at = libc.telldir(d)
        equal(sorted(n.decode() for _, n in order), sorted([".", "..", *os.listdir(path)]), "names by readdir")
        for _ in range(60):
            i = rng.randrange(len(order))
            libc.seekdir(d, order[i][0])
            got = [entry(d) for _ in order[i:i + 3]]
            if not equal(got, [n for _, n in order[i:i + 3]], f"names behind position {order[i][0]}"):
                break
        libc.rewinddir(d)
        equal(entry(d), order[0][1], "first name after rewinddir")
        libc.closedir(d)


def crowded_directories_are_listed():
    """A directory of thousands: each name once, and a position holds in another mount of it."""
    libc, entry = lib.directory_calls()
    source, rng = lib.fresh("source"), lib.rng("crowded")
    keys = {f"layers.{i}.{'x' * rng.randrange(120)}": ("U8", [3], [0], bytes(3)) for i in range(4000)}
    (source / "step-1").mkdir()
    arrays.write_shard(source / "step-1" / "model-00001-of-00001.safetensors", keys)
    with lib.mount(source) as m:
        top = m.at / "step-1"
        equal(sorted(os.listdir(top / "raw")), sorted(f"{k}.bin" for k in keys), "names in raw/")
        equal(ok("find", top / "safetensors", "-type", "f", "-printf", "x"), "x" * len(keys), "find, which asks for more")
        d = libc.opendir(os.fsencode(top / "npy"))
        order = []
        while (name := entry(d)) is not None:
            order.append((libc.telldir(d), name))
        libc.closedir(d)
        equal(len(set(order)), len(keys) + 2, "names by readdir")
    with lib.mount(source) as m:
        d = libc.opendir(os.fsencode(m.at / "step-1" / "npy"))
        for _ in range(20):  # the kernel of this mount has listed nothing yet
            i = rng.randrange(len(order) - 1)
            libc.seekdir(d, order[i][0])
            if not equal(entry(d), order[i + 1][1], f"name behind position {order[i][0]}"):
                break
        libc.closedir(d)


def extended_attributes_agree_with_index():
    """Extended attributes say what index.json says."""
    m = the_mount()
    for version in m.versions():
        index = m.index(version)
        for t in index["tensors"].values():
            for form, name in t["files"].items():
                if not name:
                    continue
                path = m.at / version / name
                case(str(path))
                got = {n.removeprefix("user.dcpfs."): os.getxattr(path, n).decode() for n in os.listxattr(path)}
                equal((got["key"], got["version"], got["format"], got["dtype"], got["nbytes"]),
                      (t["key"], version, index["format"], t["dtype"], str(t["nbytes"])), "attributes")
                equal((json.loads(got["path"]), json.loads(got["shape"])), (t["path"], t["shape"]), "path and shape")
                equal(sorted(got.get("files", "").split()), sorted({p["file"] for p in t["pieces"]}), "files")
                check("alias_of" not in got and "error" not in got, f"no alias and no error: {got}")
                if form != "npy":
                    equal(got["storage_dtype"], t["dtype"], "storage_dtype")
        for o in index["objects"].values():
            path = m.at / version / o["file"]
            equal(os.getxattr(path, "user.dcpfs.key").decode(), o["key"], f"key of {path}")
            equal(os.getxattr(path, "user.dcpfs.type").decode(), o["type"], f"type of {path}")
        equal([os.listxattr(m.at / version / n) for n in ("", "raw", "index.json")], [[], [], []],
              "attributes of what is no key")
    path = m.at / "step-2" / "raw" / os.listdir(m.at / "step-2" / "raw")[0]
    if shutil.which("getfattr"):
        said = ok("getfattr", "-d", "--absolute-names", path)
        check("user.dcpfs.dtype=" in said and "user.dcpfs.shape=" in said, f"getfattr -d: {said}")


def odd_keys_have_names():
    """Odd keys: every name in a listing opens, every key has one, none is lost."""
    m = the_mount()
    raw, index = m.at / "step-1" / "raw", m.index("step-1")
    listed = os.listdir(raw)
    equal(len(listed), len(set(listed)), "names are distinct")
    equal({os.getxattr(raw / n, "user.dcpfs.key").decode() for n in listed}, set(index["tensors"]), "keys by listing")
    rows = [("odd.with/slash", "odd.with%2Fslash.bin"), ("odd.%2F", "odd.%252F.bin"),
            ('odd.tab\tnewline\nq"uote\\', 'odd.tab%09newline%0Aq"uote\\.bin'), ("odd.../up", "odd...%2Fup.bin"),
            ("odd. spaces in key ", "odd. spaces in key .bin"),
            ("odd.ünï/日本語/🧠", "odd.ünï%2F日本語%2F🧠.bin")]
    for key, name in rows:
        case(repr(key))
        check(name in listed, f"{name} is listed")
        equal(lib.sha(lib.read(raw / name)), lib.sha(lib.read(m.at / "step-1" / index["tensors"][key]["files"]["raw"])),
              "bytes")
    long = sorted(n for n in listed if "~" in n)
    check(len(long) >= 3 and all(len(os.fsencode(n)) <= 255 for n in long), f"cut names: {long}")
    for n in long:
        case(n)
        key = os.getxattr(raw / n, "user.dcpfs.key").decode()
        equal(index["tensors"][key]["files"]["raw"], f"raw/{n}", "the name of a long key")
        equal(len(os.path.commonprefix([n, key])) > 100, True, "the front of the key can be read")
    case("tools that split at newlines")
    equal(ok("find", raw, "-name", "*newline*", "-printf", "x"), "x", "find")


def the_source_stays_untouched():
    """Nothing in the source was written to, not even a time."""
    before = _state.setdefault("before", _times(lib.GOLDEN / "dcp-old-2.4.1"))
    with lib.mount(lib.GOLDEN / "dcp-old-2.4.1" / "ckpt", cache=lib.fresh("cache")) as m:
        m.settled()
        for path in walk(m.at):
            if os.path.isfile(path):
                lib.read(path)
    equal(_times(lib.GOLDEN / "dcp-old-2.4.1"), before, "names, sizes and times of the source")


def _times(top):
    return {p: (os.lstat(p).st_size, os.lstat(p).st_mtime_ns, os.lstat(p).st_ctime_ns) for p in walk(top)}


def errors_stay_empty():
    """After all that, unmounting finds nothing wrong."""
    m = the_mount()
    equal(m.control("errors.json"), [], "errors.json")
    m.unmount()


def times_before_1970_are_kept():
    """A clock that was wrong: the same time, to the nanosecond."""
    source, early = lib.fresh("source"), -1_500_000_001
    lib.copy(lib.GOLDEN / "dcp-hf" / "ckpt" / "5-one-file", source / "v")
    (source / "v" / "config.json").write_text("{}")
    for path in (source / "v").iterdir():
        os.utime(path, ns=(early, early))
    with lib.mount(source) as m:
        name, = m.settled().versions()
        equal(m.control("status.json")["versions"][0]["committed"], "1969-12-31T23:59:58Z", "status.json")
        for path in ("index.json", "files/config.json"):
            equal(os.stat(m.at / name / path).st_mtime_ns, early, path)


lib.main(writing_fails_with_erofs, errnos_are_exact, attributes_are_right, times_before_1970_are_kept, listings_agree_with_stat,
         remounts_keep_inodes, disk_usage_adds_up, copies_are_the_same, positions_continue_listings,
         crowded_directories_are_listed, extended_attributes_agree_with_index, odd_keys_have_names, the_source_stays_untouched,
         errors_stay_empty)
