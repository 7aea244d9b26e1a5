#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile checkpoints, made by this script, are refused: quickly, in little memory, with one line, and nothing outside is touched.

tests/gen/hostile_more.py says what each case is and makes many more; these are the ones that would
hurt most: code, sharing that stands for days of work, names that lead out, keys that hide others.
"""
import os
import resource
import sys

sys.path.insert(0, "tests/gen")
import evil as more
import hostile_files  # noqa: F401: its cases
import hostile_more
from cli import BAD, OK, SCRATCH, check, equal, fails, finish, run, sample

CASES = [
    *sample(f"call-{call}-{where}" for call in more.CALLS for where in ("root", "key", "value", "fields", "in-item", "in-tensor")),
    "memo-bombs-many", "memo-bomb-tensors", "memo-bomb-in-metadata", "deep-states-in-item", "deep-through-memo",
    "shared-chunk-list-small", "shared-path-small", "shared-long-fqn-small", "one-archive-few-keys",
    "key-of-2-mib", "key-of-2-mib-in-item", "keys-strange", "shapes", "places", "views", "zips", "cells-64-dims",
    *sample(n for n in sorted(more.CASES) if n.startswith("path-")),
    "metadata-fifo", "metadata-link-out", "metadata-link-loop", "metadata-sparse",
]
SECONDS, KIB = 10, 256 * 1024 * 4  # of the processor; sanitizers take three times as much


@more.case("open")
def shared_chunk_list_small(d):
    """Five thousand keys with one list of ten thousand chunks."""
    c = more.Ckpt(d)
    hostile_more.shared(c, 5000, more.tensor((10**5,), hostile_more.many_chunks(10**4)))
    c.write()


@more.case("refuse")
def shared_path_small(d):
    """Five thousand keys whose path is one tuple of ten thousand parts."""
    c = more.Ckpt(d)
    hostile_more.shared(c, 5000, more.tensor(), more.info(n=len(c.data)))
    path = more.Raw(b"(" + more.enc("p") + b"q\x00" + b"h\x00" * 9999 + b"t" + more.put(9))
    c.planner = more.pairs([("k0", path)] + [(f"k{i}", more.get(9)) for i in range(1, 5000)])
    c.write()


@more.case("refuse")
def shared_long_fqn_small(d):
    """Twenty thousand places of one key of a million bytes."""
    c = more.Ckpt(d)
    key = "x" * 1000000
    c.state.append((key, more.tensor()))
    c.storage.append((more.Raw(more.index(key, (0,)) + more.put(5)), more.Raw(more.info() + more.put(6))))
    c.storage += [(more.get(5), more.get(6))] * 20000
    c.write()


@more.case("open")
def one_archive_few_keys(d):
    """Two thousand byte keys in one archive of twenty thousand members."""
    c = more.Ckpt(d)
    place = c.append(more.saved(more.pickled(None), more=[(f"a/{i}", b"") for i in range(20000)]))
    c.state += [(f"k{i}", more.BYTES) for i in range(2000)]
    c.storage += [(more.index(f"k{i}"), more.info(**place)) for i in range(2000)]
    c.write()


def timed(*args):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    got = run(*args)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    check(took < SECONDS, f"{args}: {took:.1f} s")
    check(b"\x1b" not in got.stderr + got.stdout, f"{args}: escapes of the checkpoint reach the terminal")
    return got


def refuse(source):
    for verb in ("index", "ls", "show"):
        got = fails(BAD, "", verb, source, *(("good",) if verb == "show" else ()))
        equal(len(got.stderr.splitlines()), 1, f"{source.name}: lines of {verb}: {got.stderr[:300]}")
        equal(got.stdout, b"", f"{source.name}: output of {verb}")


def opens(source):
    for args in (("index", source), ("ls", source), ("show", source, "good")):
        got = timed(*args)
        equal(got.returncode, OK, f"{source.name}: {args[0]}: {got.stderr[:300]}")
        check(len(got.stderr.splitlines()) <= 1, f"{source.name}: {args[0]} says too much: {got.stderr[:300]}")
    got = timed("cat", source, "good")
    equal((got.returncode, got.stdout), (OK, more.GOOD), f"{source.name}: cat good: {got.stderr[:300]}")


def hostile_files_are_survived(name):
    expect, make = more.CASES[name]
    source = SCRATCH / name
    make(source)
    if expect == "any":
        got = timed("ls", source)
        expect = "open" if got.returncode == OK else "refuse"
    (opens if expect == "open" else refuse)(source)
    if name.startswith("path-") and name not in ("path-4096-slashes", "path-components"):
        for key in ("bad", "object"):
            got = fails(BAD, "", "cat", source, key)
            equal(got.stdout, b"", f"{name}: cat {key} wrote something")


def foreign_indexes_are_not_believed():
    """An index that another user put into a cache where all may write is not believed."""
    if os.geteuid() != 0:
        return
    source, cache = SCRATCH / "views", SCRATCH / "shared"
    cache.mkdir()
    for _ in range(2):
        run("index", source, DCPFS_CACHE=cache)
    index = next(cache.glob("*.dcpx"))
    os.chown(index, 65534, 65534)
    got = run("cat", source, "good", DCPFS_CACHE=cache)
    equal((got.returncode, got.stdout), (OK, more.GOOD), "cat with an index of another user")
    check(b"belongs to another user" in got.stderr, f"cat with an index of another user: {got.stderr}")


for case in CASES:
    hostile_files_are_survived(case)
foreign_indexes_are_not_believed()
check(not list(SCRATCH.rglob("PWNED")) and not os.path.exists("PWNED"), "something was executed")
took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
check(took < KIB, f"a case took {took} KiB")
finish()
