#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A source that is no file system (tests/origin/memory.c): everything works as from the same files."""
import os
import time

from cli import GOLDEN, OK, SCRATCH, check, data, equal, finish, run

SOURCES = ("dcp-fsdp2/ckpt", "dcp-plain/ckpt", "hf-llama/ckpt", "torch-save/ckpt", "numpy/ckpt")


def reads():
    path = SCRATCH / "reads"
    n = sum(map(int, path.read_text().split())) if path.exists() else 0
    path.unlink(missing_ok=True)
    return n


def both(*args, source):
    """The standard output of a verb, from files and from memory."""
    got = [run(args[0], s, *args[1:], DCPFS_TEST_READS=SCRATCH / "reads") for s in (source, f"mem:{source}")]
    for one in got:
        check(one.returncode == OK, f"{args} of {source}: {one.returncode} {one.stderr}")
    return [one.stdout for one in got]


def files_of(top):
    return {p.relative_to(top): p.read_bytes() for p in sorted(top.rglob("*")) if p.is_file() and p.name != ".dcpfs-written"}


def verbs_agree_with_files():
    for source in SOURCES:
        source = GOLDEN / source
        version = "latest"
        reads()
        a, b = both("ls", version, "--json", source=source)
        equal(b, a, f"ls of {source}")
        check(reads() > 0, f"{source}: metadata was read from memory")
        key = data("ls", "--json", source, version)["tensors"][0]["key"]
        a, b = both("cat", version, key, source=source)
        equal(b, a, f"cat of {source}")
        for s, out in ((source, "files"), (f"mem:{source}", "memory")):
            got = run("export", s, version, SCRATCH / out / source.parts[-2], "--as", "safetensors", "--verify")
            check(got.returncode == OK, f"export of {s}: {got.stderr}")
    equal(files_of(SCRATCH / "memory"), files_of(SCRATCH / "files"), "what was exported")


def every_family_is_listed():
    for source in sorted(GOLDEN.glob("*/ckpt")):
        if source.parts[-2] == "composer-sharded":
            continue  # latest is a link there, and memory has none
        a, b = both("ls", "latest", "--json", source=source)
        equal(b, a, f"ls of {source}")


def loads_agree_with_files():
    source = GOLDEN / "dcp-fsdp2/ckpt"
    for words in ((), ("--layout", "fsdp1"), ("--exchange", "all")):
        reports = [data("load", s, "--json", "--check", *words) for s in (source, f"mem:{source}")]
        equal(*([r[k] for k in ("version", "parts", "needed", "checked")] for r in reports), f"load {words}")
        check(reports[1]["checked"], "every byte was compared")


def mounts_agree_with_files():
    source = GOLDEN / "dcp-fsdp2/ckpt"
    tops = [SCRATCH / "mnt-files", SCRATCH / "mnt-memory"]
    for top, s in zip(tops, (source, f"mem:{source}")):
        top.mkdir()
        got = run("mount", s, top)
        check(got.returncode == OK, f"mount {s}: {got.stderr}")
    try:
        for part in ("npy", "raw", "hf"):
            a, b = (files_of(top / "latest" / part) for top in tops)
            equal(sorted(b), sorted(a), f"names of {part}/")
            differ = [str(n) for n in a if a[n].replace(str(source.resolve()).encode(), b"") != b[n].replace(f"mem:{source}".encode(), b"")]
            check(a and not differ, f"bytes of {part}/: {differ}")
        time.sleep(2.5)  # looked at again
        equal(sorted(p.name for p in tops[1].iterdir()), sorted(p.name for p in tops[0].iterdir()), "versions")
    finally:
        for top in tops:
            run("umount", top)


verbs_agree_with_files()
every_family_is_listed()
loads_agree_with_files()
if os.access("/dev/fuse", os.R_OK | os.W_OK):
    mounts_agree_with_files()
finish()
