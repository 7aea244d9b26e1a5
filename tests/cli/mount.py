#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mount returns when the mount answers, umount when it is gone; both refuse what is not theirs."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from cli import BAD, DCPFS, ENV, GOLDEN, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run

SOURCE = GOLDEN / "dcp-fsdp2" / "ckpt"
TENSOR = json.loads((GOLDEN / "dcp-fsdp2" / "manifest.json").read_text())["versions"][1]["tensors"][0]


def mounted(mnt):
    wanted = str(mnt).replace(" ", "\\040")
    return any(line.split(" ")[4] == wanted for line in open("/proc/self/mountinfo", encoding="utf-8"))


def digest(mnt):
    return hashlib.sha256((mnt / "latest" / "raw" / (TENSOR["key"] + ".bin")).read_bytes()).hexdigest()


def a_mount_comes_and_goes(*args, mnt, cwd=None):
    got = run(*args, cwd=cwd)
    if not equal(got.returncode, OK, f"dcpfs {args}: {got.stderr.decode()}"):
        return
    equal(got.stdout, b"", "mount is quiet")
    check(mounted(mnt), f"{mnt} is mounted when mount returns")
    equal(digest(mnt), TENSOR["sha256"], f"a tensor of {mnt}")
    fails(ENV, "is a mount of dcpfs already", "mount", SOURCE, mnt)
    equal(run("__complete", "umount", str(mnt)[:-3]).stdout.decode().split("\t")[0], str(mnt), "umount completes mounts")
    equal(run("umount", mnt).returncode, OK, "umount")
    check(not mounted(mnt), f"{mnt} is gone when umount returns")
    fails(USAGE, "is not a mount point", "umount", mnt)


def the_foreground_ends_with_umount(mnt):
    env = dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache"))
    daemon = subprocess.Popen([DCPFS, "mount", "-f", str(SOURCE), str(mnt)], env=env, stderr=subprocess.PIPE)
    until = time.monotonic() + 240
    while not mounted(mnt) and daemon.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    check(mounted(mnt), "mount -f mounts")
    equal(run("umount", mnt).returncode, OK, "umount of a foreground mount")
    equal(daemon.wait(timeout=240), OK, f"mount -f ends with the mount: {daemon.stderr.read().decode()}")


def busy_mounts_stay(mnt):
    equal(run("mount", SOURCE, mnt).returncode, OK, "mount")
    with open(mnt / "latest" / "index.json", "rb"):
        fails(ENV, "is busy", "umount", mnt)
        check(mounted(mnt), "a busy mount stays")
    equal(run("umount", str(mnt) + "/").returncode, OK, "umount with a slash at the end")
    equal(run("mount", SOURCE, mnt).returncode, OK, "mount again")
    with open(mnt / "latest" / "index.json", "rb"):
        equal(run("umount", "--lazy", mnt).returncode, OK, "umount --lazy")
        check(not mounted(mnt), "a lazy unmount takes it out of sight")


def links_to_mount_points_work(mnt):
    """A link to the mount point is as good as the mount point."""
    link = SCRATCH / "link to it"
    link.symlink_to(mnt)
    equal(run("mount", SOURCE, link).returncode, OK, "mount on a link")
    check(mounted(mnt), "the link is followed")
    fails(BAD, f"give what is mounted there: {os.path.abspath(SOURCE)}", "ls", mnt / "step-20" / "objects")
    equal(run("umount", link).returncode, OK, "umount of a link")
    check(not mounted(mnt), "the link is followed at the end, too")


def paths_in_mounts_mean_their_source(mnt):
    """The root and versions of a mount stand for what is mounted, which is not written into."""
    source = SCRATCH / "behind"
    shutil.copytree(SOURCE, source)
    before = sorted(source.rglob("*"))
    equal(run("mount", source, mnt).returncode, OK, "mount")
    want = {v: data("show", "--digest", "--json", source, v, "*") for v in ("step-10", "step-20")}
    for at, args, version in ((mnt, ("10",), "step-10"), (mnt, (), "step-20"), (mnt / "step-10", (), "step-10"), (mnt / "latest", (), "step-20")):
        got = data("export", "--as", "torch-dcp", "--json", at, *args, SCRATCH / "out", "--force")
        check((got["version"], data("show", "--digest", "--json", SCRATCH / "out", "*")) == (version, want[version]), f"export of {at} {args}: {got}")
        equal(run("ls", "--json", at, *args).stdout, run("ls", "--json", source, *args or ([version] if at != mnt else [])).stdout, f"ls {at} {args}")
    check(data("save", "--json", mnt / "step-10", SCRATCH / "out.pdparams")["tensors"] > 0, "save")
    for verb in (("export", "--as", "torch-dcp"), ("save",)):
        for at in (mnt, mnt / "step-10"):
            fails(USAGE, "which is read", *verb, at, source / "new")
            fails(USAGE, "lies in a mount of dcpfs", *verb, at, mnt / "new")
            fails(USAGE, "lies in a mount of dcpfs", *verb, source, "step-20", mnt / "step-10" / "new")
    fails(USAGE, "which is read", "load", mnt / "step-10", "--dump", source / "ranks")
    equal(sorted(source.rglob("*")), before, "what is mounted")
    other = SCRATCH / "other"
    shutil.copytree(SOURCE / "step-20", other / "step-10")
    hide = ["unshare", "-m", "sh", "-c", 'mount --bind "$1" "$2" 2>/dev/null || exit 77; shift 2; exec "$@"', "sh", other, source]
    got = subprocess.run([*hide, DCPFS, "export", "--as", "npz", mnt / "step-10", SCRATCH / "hidden"], capture_output=True, check=False)
    check(got.returncode in (77, 1) and b"unshare:" in got.stderr or b"are not those that are mounted" in got.stderr, f"others of that name: {got}")
    equal(run("umount", mnt).returncode, OK, "umount")


def incomplete_sources_are_reported(mnt):
    """What is not whole is mounted all the same, and said in one line."""
    for version, file, says in (("step-20", "__3_0.distcp", b"keys cannot be read (EIO)"),
                                ("step-30", ".metadata", b"no complete version: step-30: .metadata is missing")):
        source = SCRATCH / "told" / version
        shutil.copytree(SOURCE / version, source)
        (source / file).unlink(missing_ok=True)
        (source / "config.json").write_text('{"model_type": "none"}')
        got = run("mount", source, mnt)
        equal(got.returncode, OK, f"mount of {version} without {file}")
        check(says in got.stderr and got.stderr.count(b"\n") == 1, f"{version}: {got.stderr}")
        equal(run("umount", mnt).returncode, OK, "umount")


def passthrough_gives_the_same(mnt):
    """--passthrough gives the same bytes, whether or not this machine can."""
    equal(run("mount", "--passthrough", "64", SOURCE, mnt).returncode, OK, "mount --passthrough")
    equal(json.loads((mnt / ".dcpfs" / "config.json").read_text())["passthrough_mib"], 64, "it is in force")
    equal(digest(mnt), TENSOR["sha256"], "a tensor that may be passed through")
    equal(run("umount", mnt).returncode, OK, "umount")


def main():
    report = run("doctor", "--json")
    if not json.loads(report.stdout)["can_mount"]:
        print("dcpfs doctor says that this machine cannot mount", file=sys.stderr)
        sys.exit(77)
    mnt = SCRATCH / "a mount point"
    mnt.mkdir()
    a_mount_comes_and_goes("mount", SOURCE, mnt, mnt=mnt)
    a_mount_comes_and_goes(SOURCE, mnt, "-o", "ro,noauto,user,nofail,x-systemd.automount,noatime,comment=x,dev,suid,fsname=run1", mnt=mnt)
    a_mount_comes_and_goes("mount", "--io", "pread", "--threads", "2", "--no-open", "--readahead", "512", SOURCE, mnt, mnt=mnt)
    a_mount_comes_and_goes("mount", os.path.abspath(SOURCE), mnt.name, mnt=mnt, cwd=SCRATCH)
    a_mount_comes_and_goes("mount", "step-20", mnt, mnt=mnt, cwd=SOURCE)
    the_foreground_ends_with_umount(mnt)
    busy_mounts_stay(mnt)
    links_to_mount_points_work(mnt)
    paths_in_mounts_mean_their_source(mnt)
    incomplete_sources_are_reported(mnt)
    passthrough_gives_the_same(mnt)
    (mnt / "something").write_text("")
    fails(USAGE, "is not empty", "mount", SOURCE, mnt)
    a_mount_comes_and_goes("mount", "--nonempty", SOURCE, mnt, mnt=mnt)
    a_mount_comes_and_goes(SOURCE, mnt, "-o", "ro,nonempty", mnt=mnt)
    check((mnt / "something").exists(), "what was hidden is there again")
    (mnt / "something").unlink()
    fails(BAD, "damaged", "mount", GOLDEN / "hostile" / "cut-metadata", mnt)
    (SCRATCH / "cache of another name").mkdir()
    for at in mnt, SCRATCH / "cache of another name":  # which is not inside of it
        fails(BAD, "not a checkpoint", "mount", SCRATCH / "cache", at)
    check(not mounted(mnt), "nothing stays mounted")


mnt_left = pathlib.Path(SCRATCH / "a mount point")
try:
    main()
finally:
    if mounted(mnt_left):
        run("umount", "--lazy", mnt_left)
finish()
