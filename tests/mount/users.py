# SPDX-License-Identifier: Apache-2.0
"""Ordinary users and who may see what: no root where /dev/fuse allows it, allow_other, uid, gid, umask.

As root it works in a mount namespace of its own, with a /dev/fuse that everybody may open, and
becomes user 65534 for the parts that are about ordinary users.
"""
import atexit
import contextlib
import errno
import json
import os
import pathlib
import shutil
import stat
import struct
import sys

import lib
from lib import case, check, equal, run

USER = 65534
OTHER = 65533
TEAM = 65500         # a group
SOURCE = lib.GOLDEN / "dcp-fsdp2" / "ckpt"
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
AS_OTHER = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "--"]
IS_ROOT = os.geteuid() == 0
_home = {}


def root_enters_a_namespace():
    """Root goes on in a private mount namespace, once."""
    if not IS_ROOT:
        return
    if os.environ.get("DCPFS_TEST_UNSHARED"):
        for place in lib.all_mounted():  # copies of other tests' mounts: their daemons would not end before us
            run("umount", "-l", place)
        return
    if run("unshare", "-m", "true").returncode:
        lib.skip("root, but no mount namespace can be made")
    os.environ["DCPFS_TEST_UNSHARED"] = "1"
    lib.become("unshare", "-m", "--propagation", "private", sys.executable, *sys.argv)


def open_device():
    """A /dev/fuse for everybody, in this namespace only."""
    dev = lib.fresh("dev")
    lib.ok("mount", "-t", "tmpfs", "-o", "dev,mode=755,size=64k", "dcpfs-test", dev)
    os.mknod(dev / "fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
    os.chmod(dev / "fuse", 0o666)
    lib.ok("mount", "--bind", dev / "fuse", "/dev/fuse")
    atexit.register(run, "umount", "-l", "/dev/fuse", dev)


def home():
    """What an ordinary user needs: a directory, a copy of the source, of the program, a cache."""
    if not _home:
        top = lib.WORK
        if IS_ROOT:
            open_device()
            os.chmod(top, 0o711)
            bad = [str(d) for d in top.parents if not os.stat(d).st_mode & 0o001]
            if bad:
                lib.skip(f"an ordinary user cannot get to {bad[-1]}; set TMPDIR")
        own = lib.fresh("home")
        shutil.copy2(shutil.which(lib.PROGRAM), own / "dcpfs")
        lib.copy(SOURCE, own / "ckpt")
        for name in ("busy", "cache"):
            (own / name).mkdir()
        if IS_ROOT:
            lib.ok("chown", "-R", f"{USER}:{USER}", own)
        _home.update(top=own, program=own / "dcpfs", source=own / "ckpt", mnt=own / "busy", cache=own / "cache")
    return _home


def as_user(*options, **kwargs):
    h = home()
    return lib.Mount(h["source"], *options, at=h["mnt"], cache=h["cache"], program=h["program"], cwd=h["top"],
                     prefix=AS_USER if IS_ROOT else (), **kwargs)


def user_unmounts(m):
    """The user who mounted unmounts."""
    done = run(*(AS_USER if IS_ROOT else ()), home()["program"], "umount", m.at, env=lib.environment(home()["cache"]))
    equal(done.returncode, 0, f"dcpfs umount: {done.stderr}")
    m.ends(0)


def ls(user, path):
    return run(*user, "ls", path)


def ordinary_users_mount():
    """A user without any privilege mounts, reads, unmounts; others see nothing, not even root."""
    m = as_user()
    user = AS_USER if IS_ROOT else []
    done = ls(user, m.at / "latest" / "npy")
    equal(done.returncode, 0, f"ls as the user: {done.stderr}")
    check(len(done.stdout.splitlines()) > 10, "names in npy/")
    name = done.stdout.splitlines()[0]
    got = run(*user, "sha256sum", m.at / "latest" / "npy" / name)
    equal(got.returncode, 0, f"reading: {got.stderr}")
    options = lib.mounted(m.at)
    check({"ro", "nosuid", "nodev"} <= set(options["options"].split(",")), f"options {options}")
    check("user_id=" in options["super"] and "default_permissions" not in options["super"], f"options {options}")
    if IS_ROOT:
        check(ls(AS_OTHER, m.at).returncode != 0, "another user sees nothing")
        lib.fails("EACCES", os.listdir, m.at)
        equal({p.stat().st_uid for p in pathlib.Path(home()["cache"]).rglob("*")}, {USER}, "owner of the cache")
    user_unmounts(m)


def mounts_end_without_mtab():
    """Small containers have no /etc/mtab, which fusermount3 needs: a user ends his mount there, too, and nobody else's."""
    if not IS_ROOT:
        print("  left out: needs root to make an /etc of a namespace")
        return
    h, etc = home(), lib.fresh("etc")
    for entry in os.scandir("/etc"):
        if entry.is_file() and entry.name != "mtab":
            shutil.copy2(entry.path, etc)
    os.chmod(etc, 0o755)
    lib.ok("mount", "--bind", etc, "/etc")
    try:
        m = as_user()
        check("/etc/mtab" in run(*AS_USER, "fusermount3", "-u", m.at).stderr, "fusermount3 alone cannot")
        done = run(*AS_OTHER, h["program"], "umount", m.at)  # has no name, which fusermount3 needs, too
        check(done.returncode == 3 and "only that user and root" in done.stderr, f"another user: {done}")
        other = h["top"] / "umount"  # as where messages are translated
        other.write_text("#!/bin/sh\n[ \"$LC_ALL\" = C ] && echo umount: mnt: target is busy. >&2 || echo umount: Ziel wird gerade benutzt >&2\nexit 32\n")
        other.chmod(0o755)
        for path in os.environ["PATH"], f"{h['top']}:{os.environ['PATH']}":
            done = run(*AS_USER, "sh", "-c", f"exec 9<{m.at}/latest/index.json; PATH={path} {h['program']} umount {m.at}")
            check(done.returncode == 3 and "is busy" in done.stderr, f"while it is used: {done}")
        user_unmounts(m)
    finally:
        lib.ok("umount", "/etc")


def users_need_permission_for_others():
    """allow_other is refused to users unless /etc/fuse.conf says so; then others read."""
    if not IS_ROOT:
        print("  left out: needs root to write /etc/fuse.conf of a namespace")
        return
    home()
    conf = lib.WORK / "fuse.conf"
    if not os.path.exists("/etc/fuse.conf"):
        print("  left out: no /etc/fuse.conf to put another in front of")
        return
    for text, allowed in (("", False), ("user_allow_other\n", True)):
        case(f"allow_other with fuse.conf {text!r}")
        conf.write_text(text)
        if not lib.mounted("/etc/fuse.conf"):
            lib.ok("mount", "--bind", conf, "/etc/fuse.conf")
        m = as_user("-o", "allow_other", answers=False)
        lib.wait(lambda: lib.mounted(m.at) or not m.running(), "mounts or refuses")
        if not allowed:
            lib.wait(lambda: not m.running(), "it ends")
            equal(m.process.returncode, 3, f"exit code: {m.log()}")
            check("allow_other" in m.log(), f"the message names the option: {m.log()}")
        elif check(m.running(), f"it runs: {m.log()}"):
            lib.wait(lambda: ls(AS_OTHER, m.at).returncode == 0, "another user can list")
            equal(lib.errno_of(os.listdir, m.at), None, "root lists")
            user_unmounts(m)
    if lib.mounted("/etc/fuse.conf"):
        case("a source that the user himself may not read any more")
        h, (top, source) = home(), shared("dcp-fsdp2", "step-10")
        m = lib.Mount(source, "-o", "allow_other", at=h["mnt"], cache=h["cache"], program=h["program"], cwd=h["top"], prefix=AS_USER)
        npy = m.settled().at / "step-10" / "npy"
        equal(seen(USERS["other"], [npy]), {str(npy): "ok"}, "another user lists it")
        os.chmod(top, 0o700)
        lib.wait(lambda: seen(USERS["other"], [npy]) != {str(npy): "ok"}, "no more", seconds=2 * lib.APPEARS)
        user_unmounts(m)
    if lib.mounted("/etc/fuse.conf"):
        lib.ok("umount", "/etc/fuse.conf")


def root_lets_others_in():
    """Root's mount is root's own, unless allow_other; permissions are then those shown."""
    if not IS_ROOT:
        print("  left out: needs root")
        return
    h = home()
    for options, sees in ((), False), (("-o", "allow_other"), True):
        case(f"root mounts with {options}")
        with lib.mount(h["source"], *options, at=h["mnt"]) as m:
            m.settled()
            done = ls(AS_USER, m.at)
            equal(done.returncode == 0, sees, f"an ordinary user lists it: {done.stderr}")
            if sees:
                got = run(*AS_USER, "cat", m.at / "latest" / "README.txt")
                equal(got.returncode, 0, f"an ordinary user reads: {got.stderr}")
                got = run(*AS_USER, "touch", m.at / "latest" / "README.txt")
                check("Read-only" in got.stderr, f"an ordinary user writes: {got.stderr}")
    case("a source that others may not read")
    os.chmod(h["source"], 0o700)
    with lib.mount(h["source"], "-o", "allow_other", at=h["mnt"]) as m:
        equal(stat.S_IMODE(os.stat(m.at).st_mode), 0o500, "mode of the root")
        equal(ls(AS_USER, m.at).returncode, 0, "its owner lists it")
        check(ls(AS_OTHER, m.at).returncode != 0, "another user does not")
    os.chmod(h["source"], 0o755)


# ---- the mount gives no user what the source does not ----

def as_uid(uid, groups, fn):
    """What fn() returns in a process of that user, as JSON has it."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setgroups(groups)
            os.setresgid(groups[0] if groups else uid, *[groups[0] if groups else uid] * 2)
            os.setresuid(uid, uid, uid)
            with os.fdopen(here, "w", encoding="utf-8") as out:
                json.dump(fn(), out)
            code = 0
        os._exit(code)
    os.close(here)
    with os.fdopen(there, encoding="utf-8") as f:
        got = f.read()
    os.waitpid(pid, 0)
    return json.loads(got)


def look(path):
    """Can this process list or read it?"""
    try:
        if os.path.isdir(path):
            os.listdir(path)
        else:
            with open(path, "rb", buffering=0) as f:
                f.read(1)
    except OSError as e:
        return errno.errorcode[e.errno]
    return "ok"


def seen(user, paths):
    uid, groups = user
    got = as_uid(uid, groups, lambda: [look(p) for p in paths])
    return dict(zip(map(str, paths), got))


def files_below(top):
    return sorted(str(pathlib.Path(d) / n) for d, _, names in os.walk(top) for n in names)


def hf_nodes(at, source, v, data):
    """Of hf/: what is written of all keys depends on config.json, too."""
    hf, out = at / "hf", []
    assets = {n: source / v / n for n in os.listdir(hf) if os.path.lexists(source / v / n)}
    ours = [n for n in os.listdir(hf) if n not in assets or n.startswith("model")]
    config = [assets["config.json"]] if "config.json" in assets else []
    out += [(hf, data), (hf / "shard", [source / v]), (hf / "shard" / "fsdp2", [source / v])]
    out += [(hf / n, data + config) for n in ours]
    out += [(hf / n, [f]) for n, f in assets.items() if n not in ours]
    rank = hf / "shard" / "fsdp2" / "0"
    out += [(rank / n, data + config) for n in ("index.json", "model.safetensors", "raw")]
    out += [(p, data + config) for p in sorted((rank / "raw").iterdir())[:5]]
    return out


def nodes(m):
    """[(path, the files of the source it is made from; None: of more)]: every kind of node there is."""
    source = pathlib.Path(m.argv[-2])
    every = [f for v in m.versions() for f in files_below(source / v) if not is_sidecar(f)]
    out = [(m.at, [source]), (m.at / ".dcpfs", [source]), (m.at / "tags", [source])]
    out += [(m.at / ".dcpfs" / n, [source]) for n in ("stats", "config.json")]
    out += [(m.at / ".dcpfs" / n, None) for n in ("errors.json", "incomplete.json")]
    out += [(m.at / ".dcpfs" / "status.json", every), (m.at / "by-key", every)]
    out += [(p, every) for p in sorted((m.at / "by-key").iterdir())[:3]]
    for v in m.versions():
        at, index = m.at / v, m.index(v)
        data = [f for f in files_below(source / v) if not is_sidecar(f)]
        out += [(at, [source / v]), (at / "shard", [source / v]), (at / "shard" / "fsdp2", [source / v])]
        out += [(at / n, data) for n in ("README.txt", "index.json", "index.jsonl", "npy", "raw", "safetensors", "objects")]
        out += [(at / "files" / n, [source / v / n]) for n in os.listdir(at / "files")]
        out += hf_nodes(at, source, v, data)
        out += [(at / "shard" / "fsdp2" / "layout.json", data)]
        rank = at / "shard" / "fsdp2" / "0"
        out += [(rank, [source / v])]
        out += [(rank / n, data) for n in ("index.json", "plan.json", "model.safetensors", "npy", "raw", "safetensors", "objects")]
        for o in list(index["objects"].values())[:3]:
            out += [(at / o["file"], data)]
        for t in index["tensors"].values():
            of = sorted({str(source / v / p["file"]) for p in t["pieces"]}) if not t["alias_of"] else data
            forms = list(filter(None, t["files"].values()))
            out += [(at / n, of) for n in forms] + [(rank / n, of) for n in forms if os.path.lexists(rank / n)]
            out += [(m.at / ".dcpfs" / "blob" / f"{os.stat(at / t['files']['raw']).st_ino:016x}", of)]
    return out


def is_sidecar(path):
    return path.endswith((".json", ".txt")) and not path.endswith(".index.json")


USERS = {"user": (USER, []), "other": (OTHER, []), "team": (OTHER, [TEAM]), "both": (USER, [USER, TEAM])}


def no_more(m, users=USERS):
    """Whatever a user reads in the mount, they can read all of it in the source; {user: {path: what it gave}}."""
    all_nodes, got = nodes(m), {}
    sources = sorted({str(f) for _, of in all_nodes for f in of or ()})
    for name, user in users.items():
        got[name] = seen(user, [p for p, _ in all_nodes])
        may = seen(user, sources)
        for path, of in all_nodes:
            if got[name][str(path)] == "EACCES":
                continue
            if got[name][str(path)] != "ok":
                lib.fail(f"{name}: {path}: {got[name][str(path)]}")
            elif of is None or any(may[str(f)] != "ok" for f in of):
                lib.fail(f"{name} reads {path}, but not {of and [f for f in of if may[str(f)] != 'ok']}")
    return got


def acl(path, *entries):
    """Give it an access control list: (tag, permissions, id). False: the file system has none."""
    tags = {"user:": 2, "user": 1, "group": 4, "group:": 8, "mask": 16, "other": 32}
    value = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tags[t], p, i) for t, p, i in sorted(entries, key=lambda e: (tags[e[0]], e[2])))
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as e:
        if e.errno != errno.ENOTSUP:
            raise
        print(f"  left out: no access control lists on this file system: {e.strerror}")
        return False
    return True


NONE = 0xffffffff


def shared(name, *versions):
    """A copy that everybody may read, in a directory of its own."""
    top = lib.fresh("shared")
    os.chmod(lib.WORK, 0o711)
    source = top / "run"
    source.mkdir()
    for v in versions:
        lib.copy(lib.GOLDEN / name / "ckpt" / v, source / v)
    lib.ok("chmod", "-R", "a+rX", top)
    return top, source


def others_get_no_more():
    """Every kind of node, by what is private: who may not read the source reads nothing of it here."""
    if not IS_ROOT:
        print("  left out: needs root to be several users")
        return
    home()
    top, source = shared("dcp-fsdp2", "step-10", "step-20")
    shard, meta = source / "step-20" / "__1_0.distcp", source / "step-20" / ".metadata"

    def own(path, uid, gid, mode):
        os.chown(path, uid, gid)
        os.chmod(path, mode)

    def denied_by_list(path):
        return acl(path, ("user", 6, NONE), ("user:", 0, OTHER), ("group", 4, NONE), ("mask", 4, NONE), ("other", 4, NONE))

    # what is made private, who then still reads: all, some or none of step-20 (of step-10: all, but for the first three)
    rows = (
        ("nothing", None, None, {"user": "all", "team": "all"}),
        ("above the source", top, lambda: own(top, 0, 0, 0o700), {"user": "nothing", "team": "nothing"}),
        ("above, for a team", top, lambda: own(top, 0, TEAM, 0o710), {"user": "nothing", "team": "all", "both": "all"}),
        ("the source", source, lambda: own(source, 0, TEAM, 0o750), {"user": "nothing", "team": "all"}),
        ("a version", source / "step-20", lambda: own(source / "step-20", 0, 0, 0o700), {"user": "none"}),
        ("a version that cannot be listed", source / "step-20", lambda: own(source / "step-20", 0, 0, 0o711), {"user": "none"}),
        ("a shard", shard, lambda: own(shard, 0, 0, 0o600), {"user": "some", "both": "some"}),
        ("a shard, for a team", shard, lambda: own(shard, 0, TEAM, 0o640), {"user": "some", "team": "all", "both": "all"}),
        ("a shard, not for a team", shard, lambda: own(shard, 0, TEAM, 0o604), {"user": "all", "team": "some"}),
        ("a shard, not for its owner", shard, lambda: own(shard, OTHER, 0, 0o044), {"other": "some", "user": "all"}),
        ("a shard of one user", shard, lambda: own(shard, USER, 0, 0o400), {"user": "all", "other": "some"}),
        ("metadata", meta, lambda: own(meta, 0, 0, 0o600), {"user": "none", "team": "none"}),
        ("a shard, by a list", shard, lambda: denied_by_list(shard), {"other": "some", "user": "all"}),
    )
    for what, path, change, want in rows:
        case(what)
        before = os.stat(path) if path else None
        if change and change() is False:
            continue
        with lib.mount(source, "-o", "allow_other") as m:
            got = no_more(m.settled())
            for user, how in want.items():
                dirs = [str(m.at / "step-20" / d) for d in ("", "shard", "shard/fsdp2", "shard/fsdp2/0", "hf/shard", "hf/shard/fsdp2")]
                version = {p: g for p, g in got[user].items() if p.startswith(f"{m.at}/step-20") and p not in dirs}
                rest = [g for p, g in got[user].items() if p.startswith(f"{m.at}/step-10")]
                kinds = set(version.values())
                equal(kinds, {"all": {"ok"}, "some": {"ok", "EACCES"}}.get(how, {"EACCES"}), f"{user} reads {how} of step-20")
                equal(set(rest), {"EACCES" if how == "nothing" else "ok"}, f"{user} and step-10")
        if path:
            if hasattr(os, "removexattr"):
                with contextlib.suppress(OSError):
                    os.removexattr(path, "system.posix_acl_access")
            own(path, before.st_uid, before.st_gid, stat.S_IMODE(before.st_mode))


def private_files_stay_private():
    """A private tokenizer, a private one of several safetensors files; loose files; a family whose files share keys."""
    if not IS_ROOT:
        print("  left out: needs root to be several users")
        return
    home()
    for name, version, private, rest in (("hf-llama", "llama", "config.json", "ok"), ("deepspeed-z1", None, "*model_states.pt", "EACCES"),
                                         ("paddle-plain", "static", "infer.json", "EACCES")):
        case(f"{name}: {private}")
        names = sorted(os.listdir(lib.GOLDEN / name / "ckpt"))
        version = version or next(n for n in names if (lib.GOLDEN / name / "ckpt" / n).is_dir())
        _, source = shared(name, version)
        files = sorted((source / version).glob(private))
        check(files, f"{private} in {os.listdir(source / version)}")
        os.chmod(files[0], 0o600)
        with lib.mount(source, "-o", "allow_other") as m:
            raw = m.settled().at / m.versions()[0] / "raw"
            got = no_more(m, {"user": USERS["user"]}) if rest == "ok" else {
                "user": seen(USERS["user"], [raw / n for n in os.listdir(raw)])}
            check(got["user"], "tensors")
            tensors = {g for p, g in got["user"].items() if "/raw/" in p and "/hf/" not in p}
            equal(tensors, {rest}, "what the user reads of tensors")


def private_assets_stay_private():
    """config.json and tokenizer of a directory that the user who mounts may read, and others not."""
    if not IS_ROOT:
        print("  left out: needs root to be several users")
        return
    home()
    _, source = shared("dcp-fsdp2", "step-10")
    for what, mode, config, want in (("open to all", 0o755, 0o644, {"ok"}), ("a private directory", 0o700, 0o644, {"EACCES"}),
                                     ("a private config.json", 0o755, 0o600, {"ok", "EACCES"})):
        case(what)
        where = lib.fresh("assets")
        for name in ("config.json", "tokenizer.json"):
            (where / name).write_text("{}")
        os.chmod(where / "tokenizer.json", 0o644)
        os.chmod(where / "config.json", config)
        os.chmod(where, mode)
        with lib.mount(source, "-o", "allow_other", "--hf-assets", where) as m:
            hf = m.settled().at / "step-10" / "hf"
            names = ["config.json", "tokenizer.json", "README.md", "model.safetensors"]
            equal(sorted(os.listdir(hf)), sorted(names), "what root lists")
            got = seen(USERS["user"], [hf / n for n in names])
            equal(set(got.values()), want, f"what the user reads: {got}")
            equal({n for n in names if got[str(hf / n)] == "ok"},
                  set() if mode == 0o700 else {"tokenizer.json"} if config == 0o600 else set(names), "which")
            equal(seen(USERS["user"], [hf])[str(hf)], "EACCES" if mode == 0o700 else "ok", "to list it")
            equal(seen(USERS["user"], [hf.parent / "index.json"])[str(hf.parent / "index.json")], "ok", "the version")
            if mode == 0o755 and config == 0o644:
                case("taken away from others")
                os.chmod(where, 0o700)
                lib.wait(lambda: "ok" not in seen(USERS["user"], [hf / n for n in names]).values(), "followed", 90)


def changes_of_permission_count():
    """Permissions that change under the mount count within seconds; what is open stays open."""
    if not IS_ROOT:
        print("  left out: needs root to be several users")
        return
    home()
    for options, blind in ((), False), (("--no-open",), False), ((), True):
        top, source = shared("dcp-fsdp2", "step-10", "step-20")
        with lib.mount(source, "-o", "allow_other", *options, blind=blind) as m:
            index = m.settled().index("step-20")
            key, path = next((k, m.at / "step-20" / t["files"]["raw"]) for k, t in index["tensors"].items() if t["nbytes"] > 64)
            whole = lib.read(path)
            held = open(path, "rb", buffering=0)
            model = open(m.at / "step-20/shard/fsdp2/0/model.safetensors", "rb", buffering=0)
            for what, at, private in (("a shard", source / "step-20" / index["tensors"][key]["pieces"][0]["file"], 0o600),
                                      ("metadata", source / "step-20" / ".metadata", 0o600), ("the version", source / "step-20", 0o700),
                                      ("the source", source, 0o700), ("above it", top, 0o700)):
                case(f"{options}, {blind=}: {what}")
                mode = stat.S_IMODE(os.stat(at).st_mode)
                lib.wait(lambda: set(seen(USERS["user"], [path]).values()) == {"ok"}, "the user reads it")
                os.chmod(at, private)
                lib.wait(lambda: set(seen(USERS["user"], [path]).values()) == {"EACCES"}, "no more", seconds=2 * lib.APPEARS)
                equal(lib.read(path), whole, "root reads it")
                os.chmod(at, mode)
            lib.wait(lambda: set(seen(USERS["user"], [path]).values()) == {"ok"}, "the user reads it again")
            if not options:  # there the daemon does not know what is open
                lib.forget(held.fileno())
                equal(held.read(), whole, "what was open all the time")
                lib.forget(model.fileno())
                check(len(model.read()) > 1000, "a rank's model that was open all the time")
            held.close()
            model.close()


def layouts_keep_their_permissions():
    """Rules are shown to whoever may read the file they come from, also on another mesh."""
    if not IS_ROOT:
        print("  left out: needs root to be several users")
        return
    home()
    _, source = shared("dcp-fsdp2", "step-10")
    for name, mode in (("open.dcpl", 0o644), ("secret.dcpl", 0o600)):
        (source / name).write_text("mesh dp=2 tp=2\n*.weight shard(0)@tp\n* replicate\n")
        os.chmod(source / name, mode)
    with lib.mount(source, "-o", "allow_other") as m:
        shard = m.settled().at / "step-10" / "shard"
        for layout, want in (("open", "ok"), ("secret", "EACCES"), ("mesh:dp1,tp4:secret", "EACCES"), ("mesh:dp1,tp4:open", "ok"), ("fsdp2", "ok")):
            equal(seen(USERS["user"], [shard / layout / "layout.json"]), {str(shard / layout / "layout.json"): want}, layout)
        os.chmod(source / "open.dcpl", 0o600)
        lib.wait(lambda: "EACCES" in seen(USERS["user"], [shard / "open" / "layout.json"]).values(), "followed")


def options_set_permissions():
    """uid= and gid= say who may read all of it; umask takes away."""
    if not IS_ROOT:
        print("  left out: needs root to be several users")
        return
    home()
    _, source = shared("dcp-fsdp2", "step-10")
    os.chmod(source / "step-10" / "__0_0.distcp", 0o600)
    for options, want in ((f"uid={OTHER}", {"user": False, "other": True, "team": True}),
                          (f"gid={TEAM}", {"user": False, "other": False, "team": True, "both": True}),
                          (f"uid={OTHER},umask=0400", {"other": False}), (f"gid={TEAM},umask=077", {"team": False})):
        case(options)
        with lib.mount(source, "-o", f"allow_other,{options}") as m:
            m.settled()
            for user, may in want.items():
                got = seen(USERS[user], [m.at / "step-10" / "index.json", m.at / "step-10" / "npy"])
                equal(set(got.values()), {"ok" if may else "EACCES"}, user)


def access_lists_count():
    """Those who mount for themselves read what a list or a group lets them read, whatever the mode says."""
    if not IS_ROOT:
        print("  left out: needs root to be several users")
        return
    h = home()
    top, source = shared("dcp-fsdp2", "step-10")
    dirs = [top, source, source / "step-10"]
    for path in (*dirs, *map(pathlib.Path, files_below(source))):
        bits = 5 if path in dirs else 4
        if not acl(path, ("user", 7, NONE), ("user:", bits, USER), ("group", 0, NONE), ("mask", bits, NONE), ("other", 0, NONE)):
            return
    m = lib.Mount(source, at=h["mnt"], cache=h["cache"], program=h["program"], cwd=h["top"], prefix=AS_USER)
    equal(set(seen(USERS["user"], [m.at, m.at / "step-10" / "index.json", m.at / "step-10" / "npy"]).values()), {"ok"}, "they read it")
    user_unmounts(m)


def stat_shows_the_options():
    """uid, gid and umask are what stat shows."""
    uid, gid = (1234, 2345) if IS_ROOT else (os.geteuid(), 2345)
    with lib.mount(SOURCE, "-o", f"uid={uid},gid={gid},umask=027,fsname=training run") as m:
        m.settled()
        for path in (m.at, m.at / "latest", m.at / "step-10", m.at / "step-10" / "raw", m.at / "step-10" / "index.json",
                     m.at / ".dcpfs" / "stats"):
            st = os.lstat(path)
            equal((st.st_uid, st.st_gid), (uid, gid), f"owner of {path}")
            want = 0o777 if stat.S_ISLNK(st.st_mode) else 0o550 if stat.S_ISDIR(st.st_mode) else 0o440
            equal(stat.S_IMODE(st.st_mode), want, f"mode of {path}")
        equal(lib.mounted(m.at)["source"], "training run", "device shown by mount(8)")


def the_mount_helper_works():
    """mount -t fuse.dcpfs SRC MNT, as from fstab; mount(8) looks for programs in places of its own."""
    if not IS_ROOT or not shutil.which("mount.fuse3", path="/sbin:/usr/sbin"):
        print("  left out: needs root and mount.fuse3")
        return
    h, place = home(), "/usr/local/bin"
    lib.ok("mount", "-t", "tmpfs", "-o", "mode=755,size=256m", "dcpfs-test", place)
    try:
        shutil.copy2(h["program"], place)
        done = run("mount", "-t", "fuse.dcpfs", h["source"], h["mnt"], "-o", "ro,noauto,allow_other",
                   env=lib.environment())
        equal(done.returncode, 0, f"mount: {done.stderr}")
        m = lib.mounted(h["mnt"])
        if check(m, "mounted"):
            equal((m["type"], m["source"]), ("fuse.dcpfs", str(h["source"])), "type and device")
            equal(ls(AS_USER, h["mnt"] / "latest").returncode, 0, "an ordinary user lists latest/")
            lib.ok("umount", h["mnt"])
            lib.wait(lambda: not lib.mounted(h["mnt"]), "gone")
    finally:
        lib.ok("umount", "-l", place)


root_enters_a_namespace()
lib.main(ordinary_users_mount, mounts_end_without_mtab, users_need_permission_for_others, root_lets_others_in, others_get_no_more,
         private_files_stay_private, private_assets_stay_private, layouts_keep_their_permissions, changes_of_permission_count,
         options_set_permissions, access_lists_count, stat_shows_the_options, the_mount_helper_works)
