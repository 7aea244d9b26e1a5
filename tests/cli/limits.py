#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ends early leaves nothing behind: a limit of file sizes, a kill while an archive is decoded; and what the cache keeps.

usage: limits.py DCPFS
"""
import gzip
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time

from cli import DCPFS, ENV, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run

MB = 1 << 20
CACHE = SCRATCH / "cache"


def make_source(path, n):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + n)


def limited(*args):
    """With files of one megabyte at most."""
    return subprocess.run([DCPFS, *map(str, args)], env=dict(os.environ, DCPFS_CACHE=str(CACHE)), capture_output=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MB, MB)))


def size_limits_are_reported():
    """ulimit -f is an error with a line, not a signal."""
    source = SCRATCH / "source" / "model.safetensors"
    make_source(source, 3 * MB)
    for args in (("export", "--as", "torch-dcp", source.parent, SCRATCH / "out"), ("export", "--as", "npz", source, SCRATCH / "out.npz"),
                 ("save", source, SCRATCH / "out.pdparams"), ("load", "--dump", SCRATCH / "dump", source)):
        got = limited(*args)
        equal(got.returncode, ENV, f"{args}: {got.stderr}")
        check(b"File too large" in got.stderr, f"{args}: {got.stderr}")
    with open(SCRATCH / "raw", "wb") as out:
        got = subprocess.run([DCPFS, "cat", str(source), "w"], stdout=out, stderr=subprocess.PIPE, env=dict(os.environ, DCPFS_CACHE=""),
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MB, MB)))
    check(got.returncode == ENV and b"File too large" in got.stderr, f"cat: {got}")
    left = sorted(str(p.relative_to(SCRATCH)) for p in SCRATCH.rglob("*") if CACHE not in (p, *p.parents))
    equal(left, ["dump", "raw", "source", "source/model.safetensors"], "what is left")


def killed_decoding_leaves_a_lock():
    """Killed while it decodes: at most an empty lock, which the next one that decodes removes."""
    plain, packed = SCRATCH / "big.safetensors", SCRATCH / "packed" / "model.safetensors.gz"
    make_source(plain, 400 * MB)
    packed.parent.mkdir()
    with open(plain, "rb") as f, gzip.open(packed, "wb", 1) as z:
        while part := f.read(8 * MB):
            z.write(part)
    plain.unlink()
    unpacked = CACHE / "unpacked"
    for how in (signal.SIGINT, signal.SIGKILL):
        p = subprocess.Popen([DCPFS, "ls", str(packed)], env=dict(os.environ, DCPFS_CACHE=str(CACHE)), stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        while p.poll() is None and not list(unpacked.glob("*")):
            time.sleep(0.001)
        p.send_signal(how)
        equal(p.wait(), -how, "it was stopped while it decoded")
        left = [(f.name, f.stat().st_size) for f in unpacked.iterdir()]
        check(all(name.endswith(".lock") and size == 0 for name, size in left), f"{how}: left: {left}")
    equal(run("ls", packed).returncode, OK, "decoded at last")
    names = [f.name for f in unpacked.iterdir()]
    check(len(names) == 1 and names[0].endswith(".bin"), f"the cache then: {names}")


def leftover_journals_do_not_block():
    """A journal that a power cut has emptied, or that is all a killed export has left, is in the way of none."""
    place, source = SCRATCH / "place", SCRATCH / "source"
    part, journal = place / ".out.dcpfs-part", place / ".out.dcpfs-journal"
    for resume in ((), ("--resume",)):
        part.mkdir(parents=True)
        (part / ".dcpfs-last").write_bytes(b"rest")
        journal.write_bytes(b"")
        got = run("export", "--as", "safetensors", *resume, source, place / "out")
        equal(got.returncode, OK, f"an empty journal: {got.stderr}")
        equal(os.listdir(place), ["out"], "what is there then")
        shutil.rmtree(place)
    data("export", "--as", "safetensors", "--json", source, place / "out")
    for text in (b"dcpfs", b"", b"dcpfsSV1" + bytes(40)):
        journal.write_bytes(text)
        fails(USAGE, "exists already", "export", "--as", "safetensors", source, place / "out")
        equal(os.listdir(place), ["out"], "a journal that was left when all was done")
    shutil.rmtree(place)
    part.mkdir(parents=True)
    (part / "mine").write_bytes(b"not of dcpfs")
    fails(USAGE, "was not left by dcpfs", "export", "--as", "safetensors", source, place / "out")
    equal(sorted(p.name for p in place.rglob("*")), [part.name, "mine"], "a directory of that name which is another's")


def the_cache_is_kept_in_order():
    """dir, size, prune, clean."""
    place = SCRATCH / "other"
    ask = lambda word, *more: data("cache", word, "--json", *more, DCPFS_CACHE=place)
    nothing = {"files": 0, "bytes": 0, "removed": 0, "freed": 0}
    equal(ask("size"), {"dir": str(place), "indexes": nothing, "found": nothing, "unpacked": nothing, "remote": nothing}, "a cache that is not there yet")
    equal(run("cache", "dir", DCPFS_CACHE=place).stdout.decode(), f"{place}\n", "dir")
    for name in ("gone", "old", "here"):
        make_source(SCRATCH / name / "model.safetensors", 100)
        run("index", SCRATCH / name, DCPFS_CACHE=place)
    make_source(SCRATCH / "plain.safetensors", 1000)
    for name in ("first", "second"):
        with gzip.open(SCRATCH / f"{name}.safetensors.gz", "wb") as f:
            f.write((SCRATCH / "plain.safetensors").read_bytes())
        equal(run("ls", SCRATCH / f"{name}.safetensors.gz", DCPFS_CACHE=place).returncode, OK, name)
    size = ask("size")
    equal((size["indexes"]["files"], size["unpacked"]["files"]), (5, 2), f"size: {size}")
    said = run("cache", "size", DCPFS_CACHE=place).stdout.decode()
    check("in 5 files\n" in said and "in 2 files\n" in said, f"size: {said}")
    (SCRATCH / "gone" / "model.safetensors").unlink()
    (SCRATCH / "gone").rmdir()
    os.utime(next(place.glob("old-*.dcpx")), (1, 1))
    (place / "mine.txt").write_text("not of dcpfs")
    got = ask("prune", "--cache-limit", "1500")
    equal((got["indexes"]["files"], got["indexes"]["removed"]), (3, 2), f"prune: {got}")
    equal((got["unpacked"]["files"], got["unpacked"]["removed"]), (1, 1), f"prune: {got}")
    check(not list(place.glob("gone-*")) and not list(place.glob("old-*")) and list(place.glob("here-*")), "prune")
    equal(ask("prune")["indexes"]["removed"], 0, "pruned already")
    got = ask("clean")
    equal((got["indexes"]["files"], got["indexes"]["removed"], got["unpacked"]["removed"]), (0, 3, 1), f"clean: {got}")
    equal(sorted(p.name for p in place.iterdir()), ["mine.txt", "unpacked"], "clean leaves what is not of dcpfs")
    equal(run("ls", SCRATCH / "here", DCPFS_CACHE=place).returncode, OK, "what is needed is made again")
    fails(USAGE, "is not dir, size, prune or clean", "cache", "purge")
    fails(NO, "there is no cache", "cache", "size", DCPFS_CACHE="")


def homes_come_from_the_password_database():
    """A mount for a user by fstab has root's HOME, a service may have none: the cache and the layouts are where the password database says."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode:
        print("left out: needs root, and a place to mount in")
        return
    top = pathlib.Path(tempfile.mkdtemp(prefix="dcpfs-home-", dir="/tmp"))
    try:
        top.chmod(0o755)
        (top / "home").mkdir()
        os.chown(top / "home", 54321, 54321)
        shutil.copytree(SCRATCH / "source", top / "source")
        shutil.copy(DCPFS, top / "dcpfs")
        (top / "passwd").write_text(pathlib.Path("/etc/passwd").read_text() + f"dcpfs-test:x:54321:54321::{top}/home:/bin/sh\n")
        (top / "home/.config/dcpfs").mkdir(parents=True)
        (top / "home/.config/dcpfs/ours.dcpl").write_text("mesh dp=2\n* replicate\n")
        script = f"mount --bind {top}/passwd /etc/passwd && exec setpriv --reuid 54321 --regid 54321 --clear-groups {top}/dcpfs "
        for home in ({"HOME": "/root"}, {}, {"HOME": "/nonexistent"}, {"HOME": str(top)}):
            def ask(words):
                return subprocess.run(["unshare", "-m", "sh", "-c", script + words], env={"PATH": os.environ["PATH"]} | home, capture_output=True, cwd="/")

            got = ask(f"index --path {top}/source")
            check(got.stdout.decode().startswith(f"{top}/home/.cache/dcpfs/"), f"{home}: {got}")
            got = ask(f"plan --layout ours --json {top}/source")
            equal(got.returncode, OK, f"{home}: a layout of the user's: {got}")
    finally:
        shutil.rmtree(top)


size_limits_are_reported()
homes_come_from_the_password_database()
killed_decoding_leaves_a_lock()
leftover_journals_do_not_block()
the_cache_is_kept_in_order()
finish()
