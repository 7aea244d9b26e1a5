# SPDX-License-Identifier: Apache-2.0
"""Ordinary users and who may see what: no root where /dev/fuse allows it, allow_other, uid, gid, umask.

As root it works in a mount namespace of its own, with a /dev/fuse that everybody may open, and
becomes nobody for the parts that are about ordinary users.
"""
import atexit
import os
import pathlib
import shutil
import stat
import sys

import lib
from lib import case, check, equal, run

NOBODY = 65534
OTHER = 65533
SOURCE = lib.GOLDEN / "dcp-fsdp2" / "ckpt"
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
AS_OTHER = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "--"]
IS_ROOT = os.geteuid() == 0
_home = {}


def namespace():
    """Root goes on in a private mount namespace, once."""
    if not IS_ROOT or os.environ.get("DCPFS_TEST_UNSHARED"):
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
        for name in ("mnt", "cache"):
            (own / name).mkdir()
        if IS_ROOT:
            lib.ok("chown", "-R", f"{NOBODY}:{NOBODY}", own)
        _home.update(top=own, program=own / "dcpfs", source=own / "ckpt", mnt=own / "mnt", cache=own / "cache")
    return _home


def as_user(*options, **kwargs):
    h = home()
    return lib.Mount(h["source"], *options, at=h["mnt"], cache=h["cache"], program=h["program"], cwd=h["top"],
                     prefix=AS_NOBODY if IS_ROOT else (), **kwargs)


def user_unmounts(m):
    """The user who mounted unmounts."""
    done = run(*(AS_NOBODY if IS_ROOT else ()), home()["program"], "umount", m.at, env=lib.environment(home()["cache"]))
    equal(done.returncode, 0, f"dcpfs umount: {done.stderr}")
    m.ends(0)


def ls(user, path):
    return run(*user, "ls", path)


def ordinary():
    """A user without any privilege mounts, reads, unmounts; others see nothing, not even root."""
    m = as_user()
    user = AS_NOBODY if IS_ROOT else []
    done = ls(user, m.at / "latest" / "npy")
    equal(done.returncode, 0, f"ls as the user: {done.stderr}")
    check(len(done.stdout.splitlines()) > 10, "names in npy/")
    name = done.stdout.splitlines()[0]
    got = run(*user, "sha256sum", m.at / "latest" / "npy" / name)
    equal(got.returncode, 0, f"reading: {got.stderr}")
    options = lib.mounted(m.at)
    check({"ro", "nosuid", "nodev"} <= set(options["options"].split(",")), f"options {options}")
    check("user_id=" in options["super"] and "default_permissions" in options["super"], f"options {options}")
    if IS_ROOT:
        check(ls(AS_OTHER, m.at).returncode != 0, "another user sees nothing")
        lib.fails("EACCES", os.listdir, m.at)
        equal({p.stat().st_uid for p in pathlib.Path(home()["cache"]).rglob("*")}, {NOBODY}, "owner of the cache")
    user_unmounts(m)


def allow_other_as_user():
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
        lib.ok("umount", "/etc/fuse.conf")


def allow_other_as_root():
    """Root's mount is root's own, unless allow_other; permissions are then those shown."""
    if not IS_ROOT:
        print("  left out: needs root")
        return
    h = home()
    for options, sees in ((), False), (("-o", "allow_other"), True):
        case(f"root mounts with {options}")
        with lib.mount(h["source"], *options, at=h["mnt"]) as m:
            m.settled()
            done = ls(AS_NOBODY, m.at)
            equal(done.returncode == 0, sees, f"nobody lists it: {done.stderr}")
            if sees:
                got = run(*AS_NOBODY, "cat", m.at / "latest" / "README.txt")
                equal(got.returncode, 0, f"nobody reads: {got.stderr}")
                got = run(*AS_NOBODY, "touch", m.at / "latest" / "README.txt")
                check("Read-only" in got.stderr, f"nobody writes: {got.stderr}")
    case("a source that others may not read")
    os.chmod(h["source"], 0o700)
    with lib.mount(h["source"], "-o", "allow_other", at=h["mnt"]) as m:
        equal(stat.S_IMODE(os.stat(m.at).st_mode), 0o500, "mode of the root")
        equal(ls(AS_NOBODY, m.at).returncode, 0, "its owner lists it")
        check(ls(AS_OTHER, m.at).returncode != 0, "another user does not")
    os.chmod(h["source"], 0o755)


def owners():
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


def by_mount_helper():
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
            equal(ls(AS_NOBODY, h["mnt"] / "latest").returncode, 0, "nobody lists latest/")
            lib.ok("umount", h["mnt"])
            lib.wait(lambda: not lib.mounted(h["mnt"]), "gone")
    finally:
        lib.ok("umount", "-l", place)


namespace()
lib.main(ordinary, allow_other_as_user, allow_other_as_root, owners, by_mount_helper)
