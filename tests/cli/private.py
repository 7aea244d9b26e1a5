#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is written from a private source is private: no file or directory of an export, a save, a dump, a trace or a page gets
a permission that the source does not give; the umask narrows it further.

usage: private.py DCPFS
"""
import json
import os
import shutil
import signal
import struct
import subprocess

from cli import DCPFS, GOLDEN, OK, SCRATCH, USAGE, check, data, equal, finish, run

ENDINGS = {"torch-save": ".pt", "npz": ".npz", "paddle": ".pdparams", "paddle-binary": ".pdiparams"}
SOURCE = SCRATCH / "source"
MB = 1 << 20


def formats():
    said = run("export", "--as", "?", SOURCE, SCRATCH / "x").stderr.decode()
    return said.split("formats are ")[1].strip().split(", ")


def modes(path):
    """Modes of files, and modes of directories, below @path and of it."""
    found = [path, *path.rglob("*")] if path.is_dir() else [path]
    return tuple({oct(p.lstat().st_mode & 0o777) for p in found if p.is_dir() == wanted} for wanted in (False, True))


def write_all(form, place):
    """Everything that can be written of @SOURCE: {what: path}."""
    place.mkdir()
    out = {form: place / f"out{ENDINGS.get(form, '')}", "parents": place / "a" / "b" / "model.safetensors"}
    data("export", "--as", form, "--partial", "--keys", "model.norm.weight", "--keys", "optimizer.state.gain.step", "--json", SOURCE, out[form])
    data("export", "--as", "safetensors", "--keys", "model.norm.weight", "--json", SOURCE, out["parents"])
    out["parents"] = place / "a"
    return out


def write_loaded(place):
    place.mkdir()
    out = {n: place / n for n in ("x.pdparams", "dump", "trace.json", "plan.html")}
    data("save", "--keys", "model", "--json", SOURCE, out["x.pdparams"])
    data("load", "--dump", out["dump"], "--trace", out["trace.json"], "--json", SOURCE)
    run("plan", "--layout", "fsdp2", f"--html={out['plan.html']}", SOURCE)
    return out


def make_source(file_mode, dir_mode, one=None):
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20", SOURCE)
    (SOURCE / "config.json").write_text("{}")
    for p in SOURCE.rglob("*"):
        p.chmod(file_mode)
    if one:
        (SOURCE / one[0]).chmod(one[1])
    SOURCE.chmod(dir_mode)


def outputs_get_the_sources_modes(all_formats):
    """Modes of the source, the umask, and what files and directories that are made have."""
    rows = [("private", 0o600, 0o700, None, 0o022, 0o600, 0o700),
            ("private by its directory", 0o644, 0o700, None, 0o022, 0o600, 0o700),
            ("one private shard", 0o644, 0o755, ("__1_0.distcp", 0o600), 0o022, 0o600, 0o700),
            ("private metadata", 0o644, 0o755, (".metadata", 0o600), 0o022, 0o600, 0o700),
            ("a private file beside the weights", 0o644, 0o755, ("config.json", 0o600), 0o022, 0o600, 0o700),
            ("a group's", 0o640, 0o750, None, 0o022, 0o640, 0o750),
            ("a group's that writes", 0o660, 0o770, None, 0o002, 0o660, 0o770),
            ("public", 0o644, 0o755, None, 0o022, 0o644, 0o755),
            ("public, not written by others", 0o644, 0o755, None, 0o000, 0o644, 0o755),
            ("public, of a careful user", 0o644, 0o755, None, 0o077, 0o600, 0o700)]
    for i, (what, files, dirs, one, mask, want_files, want_dirs) in enumerate(rows):
        make_source(files, dirs, one)
        os.umask(mask)
        for form in all_formats if i == 0 else ("safetensors",):
            for name, path in write_all(form, SCRATCH / f"{i}-{form}").items():
                got = modes(path)
                equal(got[0], {oct(want_files)}, f"{what}: files of {name}")
                check(got[1] <= {oct(want_dirs)}, f"{what}: directories of {name}: {got[1]}")
        for name, path in write_loaded(SCRATCH / f"{i}-loaded").items():
            got = modes(path)
            equal(got[0], {oct(want_files)}, f"{what}: {name}")
            check(got[1] <= {oct(want_dirs)}, f"{what}: directories of {name}: {got[1]}")
    os.umask(0o022)


def assets_elsewhere_count():
    """Of --hf-assets outside of the source the directory and its files count, and nothing above it."""
    source, above = SCRATCH / "hf", SCRATCH / "above"
    assets = above / "assets"
    shutil.copytree(GOLDEN / "hf-llama" / "ckpt" / "gpt2-tied", source)
    assets.mkdir(parents=True)
    for name in ("config.json", "generation_config.json"):
        (source / name).rename(assets / name)
    for what, up, dirs, files, want in (("all is a group's", 0o770, 0o770, 0o660, 0o660), ("what lies above is private", 0o700, 0o770, 0o660, 0o660),
                                        ("the directory is private", 0o770, 0o700, 0o660, 0o600), ("a file is private", 0o770, 0o770, 0o600, 0o600)):
        for p, mode in ((source, 0o770), (source / "model.safetensors", 0o660), (above, up), (assets, dirs), (assets / "config.json", files)):
            p.chmod(mode)
        (assets / "generation_config.json").chmod(0o660)
        os.umask(0o002)
        out = SCRATCH / f"assets {what}"
        data("export", "--as", "safetensors", "--hf", "--hf-assets", assets, "--json", source, out)
        os.umask(0o022)
        equal(modes(out)[0], {oct(want)}, f"{what}: files")


def groups_get_no_more():
    """A directory whose new files get its group: members of that one could not read the source."""
    if os.geteuid():
        return
    make_source(0o640, 0o750)
    place = SCRATCH / "shared"
    place.mkdir()
    os.chown(place, -1, 12345)
    place.chmod(0o2775)
    data("export", "--as", "safetensors", "--json", SOURCE, place / "out")
    equal(modes(place / "out")[0], {oct(0o600)}, "files of another group")
    for p in (SOURCE, *SOURCE.rglob("*")):
        os.chown(p, -1, 12345)
    data("export", "--as", "safetensors", "--json", SOURCE, place / "same")
    equal(modes(place / "same")[0], {oct(0o640)}, "files of the same group")
    data("export", "--as", "safetensors", "--json", SOURCE, SCRATCH / "away")
    equal(modes(SCRATCH / "away")[0], {oct(0o600)}, "files of a group that is the writer's alone")


def access_lists_are_kept():
    """A user whom an access control list keeps out is one of the others of what is written."""
    make_source(0o644, 0o755)
    entries = ((1, 6, -1), (2, 0, 1234), (4, 4, -1), (16, 4, -1), (32, 4, -1))  # its owner, user 1234, group, mask, others
    try:
        os.setxattr(SOURCE / "__1_0.distcp", "system.posix_acl_access",
                    struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries))
    except OSError as e:
        print(f"left out: no access control lists here: {e}")
        return
    data("export", "--as", "safetensors", "--json", SOURCE, SCRATCH / "listed")
    check(modes(SCRATCH / "listed")[0] <= {oct(0o600), oct(0o640)}, f"others than a user: {modes(SCRATCH / 'listed')}")


def replaced_files_become_private():
    """A trace that is there becomes private, too."""
    make_source(0o600, 0o700)
    trace = SCRATCH / "trace.svg"
    for _ in range(2):
        data("load", "--trace", trace, "--json", SOURCE)
        equal(modes(trace)[0], {oct(0o600)}, "a trace that was there")
        trace.chmod(0o666)


def writes(part, mode):
    """Has it begun? A directory of an earlier export is private at once; what is in it is removed when the plan is known."""
    try:
        return modes(part)[0] == {oct(mode)}
    except FileNotFoundError:
        return False


def pictures_of_two_are_as_private_as_either():
    """A picture of two sources is as private as either of them."""
    make_source(0o600, 0o700)
    public = SCRATCH / "public"
    shutil.copytree(SOURCE, public)
    for p in (public, *public.rglob("*")):
        p.chmod(0o755 if p.is_dir() else 0o644)
    for i, pair in enumerate([(SOURCE, public), (public, SOURCE)]):
        got = run("diff", f"--svg={SCRATCH / f'{i}.svg'}", *pair)
        check(got.returncode == OK and modes(SCRATCH / f"{i}.svg")[0] == {oct(0o600)}, f"the private source is number {i + 1} of two: {got.stderr}")


def unfinished_files_are_private():
    """What an export has written so far is as private, and so is what an earlier one left there."""
    big, out = SCRATCH / "big", SCRATCH / "begun" / "out"
    journal, part = (out.parent / f".out.dcpfs-{x}" for x in ("journal", "part"))
    big.mkdir()
    n = 600 * MB
    header = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
    with open(big / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + n)
    for mode in (0o644, 0o600):
        (big / "model.safetensors").chmod(mode)
        p = subprocess.Popen([DCPFS, "export", "--as", "torch-dcp", "--jobs", "1", *(["--resume"] if mode == 0o600 else []), str(big), str(out)],
                             env=dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache")), stderr=subprocess.DEVNULL)
        while p.poll() is None and not writes(part, mode):
            pass
        if check(p.poll() is None, "the export was not stopped while it wrote"):
            os.kill(p.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, p.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            equal(modes(journal)[0] | modes(part)[0], {oct(mode)}, "its files")
            equal(modes(part)[1] | modes(out.parent)[1], {oct(0o755), oct(mode | (mode & 0o444) >> 2)}, "its directories")
        p.kill()
        p.wait()


make_source(0o600, 0o700)
every = formats()
check(len(every) > 8, f"formats: {every}")
outputs_get_the_sources_modes(every)
assets_elsewhere_count()
groups_get_no_more()
access_lists_are_kept()
replaced_files_become_private()
pictures_of_two_are_as_private_as_either()
unfinished_files_are_private()
check(run("export", "--as", "npz", SOURCE, SOURCE / "x.npz").returncode == USAGE, "the source is not written to")
finish()
