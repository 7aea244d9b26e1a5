#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mounts of sources on servers: the same as of files, also while servers fail, hang, change or are gone."""
import collections
import errno
import json
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time

from cli import OK, SCRATCH, check, data, equal, finish, run, write
from served import SERVER, TOP, files_of, s3, skip_without_libcurl, wait


def mounts_agree_with_files():
    source = "dcp-fsdp2/ckpt"
    tops = [SCRATCH / "mnt-files", SCRATCH / "mnt-s3"]
    for top, s in zip(tops, (TOP / source, s3(source))):
        top.mkdir()
        got = run("mount", s, top)
        check(got.returncode == OK, f"mount {s}: {got.stderr}")
    try:
        for part in ("npy", "raw", "hf", "again"):
            if part == "again":  # mounted once more, what was read is there
                for top, s in ((tops[0], TOP / source), (tops[1], s3(source))):
                    run("umount", top)
                    check(run("mount", s, top).returncode == OK, f"mount {s} again")
                SERVER.taken()
                check(b"\nhttp_requests " in (tops[1] / ".dcpfs/stats").read_bytes(), "stats has requests")
                check(b"\ndcpfs_source_requests_total " in (tops[1] / ".dcpfs/metrics").read_bytes(), "metrics has requests")
                equal(files_of(tops[1] / "latest/raw"), files_of(tops[0] / "latest/raw"), "mounted again")
                equal([r for r in SERVER.taken() if "list-type" not in r[1]], [], "requests of a second mount")
                break
            a, b = (files_of(top / "latest" / part) for top in tops)
            equal(sorted(b), sorted(a), f"names of {part}/")
            differ = [str(n) for n in a if a[n].replace(str(TOP.resolve() / source).encode(), b"") != b[n].replace(s3(source).encode(), b"")]
            check(a and not differ, f"bytes of {part}/: {differ}")
    finally:
        for top in tops:
            run("umount", top)


def read_error(path):
    """The errno of reading it, 0: it can be read."""
    try:
        path.read_bytes()
    except OSError as e:
        return e.errno
    return 0


def a_lost_network_is_survived():
    """Reads fail with EIO in time, errors.json says why, the mount stays, and goes on when the server answers again."""
    source, top = TOP / "lost", SCRATCH / "mnt-lost"
    shutil.copytree(TOP / "dcp-fsdp2/ckpt/step-20", source)
    top.mkdir()
    run("ls", s3("lost"), "latest")  # indexed by another process: no data is in the mount's memory
    got = run("mount", s3("lost"), top, "--no-cache", DCPFS_TIMEOUT="2")
    check(got.returncode == OK, f"mount: {got.stderr}")
    try:
        files = sorted(p for p in (top / "latest/raw").rglob("*") if p.is_file() and p.stat().st_size)
        SERVER.fault = lambda r: 503
        began = time.monotonic()
        equal(read_error(files[0]), errno.EIO, "a read without a network")
        check(time.monotonic() - began < 20, "it fails in time")
        said = (top / ".dcpfs/errors.json").read_text()
        check(files[0].stem in said, f"errors.json names the key: {said} {files[0].name}")
        check("HTTP 503: SlowDown: reduce your request rate" in said, f"errors.json says what the server said: {said}")
        SERVER.fault = lambda r: None
        equal(read_error(files[0]), 0, "a read when the network is back")
        for path in source.glob("*.distcp"):
            path.write_bytes(path.read_bytes() + b"\0")
        wrong = [read_error(p) for p in files[1:20]]
        check(errno.ESTALE in wrong and set(wrong) <= {0, errno.ESTALE}, f"reads of what was written over: {wrong}")
    finally:
        SERVER.fault = lambda r: None
        run("umount", top)


def status_counts_servers():
    """dcpfs status of a mount has its requests to servers, what of them the disk has, and what was read from it."""
    shutil.copytree(TOP / "dcp-fsdp2/ckpt/step-20", TOP / "status")
    at = SCRATCH / "mnt-status"
    at.mkdir()
    for again in (False, True):
        got = run("mount", s3("status"), at)
        check(got.returncode == OK, f"mount: {got.stderr}")
        try:
            for path in (at / "latest/raw").iterdir():
                path.read_bytes()
            said = data("status", at, "--interval", "0", "--json")
            text = run("status", at, "--interval", "0").stdout.decode()
        finally:
            run("umount", at)
        check((said["totals"]["origin_bytes"] < 10000) == again, f"bytes, again {again}: {said['totals']}")  # a list of names
        check(said["totals"]["origin_requests"] > 0, f"requests, again {again}: {said['totals']}")
        check((said["block_cache"]["hit_bytes"] > 0) == again, f"the disk, again {again}: {said['block_cache']}")
        check(0 < said["block_cache"]["bytes"] <= said["block_cache"]["limit"], f"on the disk: {said['block_cache']}")
        check(("requests to servers" in text) and " of servers, at most 34.4 GB" in text, f"text, again {again}: {text}")


def waiting_reads_are_interrupted():
    """A program that is stopped while it waits for a server ends, though the answer does not come."""
    top, source = SCRATCH / "mnt-stopped", s3("dcp-fsdp2/ckpt")
    top.mkdir()
    run("ls", source, "latest")
    got = run("mount", source, top, "--no-cache", DCPFS_STALL="30", DCPFS_TIMEOUT="30")
    check(got.returncode == OK, f"mount: {got.stderr}")
    try:
        path = max((p for p in (top / "latest/raw").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        for word in ("O_RDONLY", "O_DIRECT"):
            SERVER.fault = lambda r: "hang" if "distcp" in r.path else None
            script = f"import mmap, os; f = os.open({str(path)!r}, os.{word}); os.readv(f, [mmap.mmap(-1, 1 << 20)])"
            child = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
            time.sleep(1.5)
            waits = child.poll() is None
            began = time.monotonic()
            child.kill()
            child.wait()
            check(waits and time.monotonic() - began < 15, f"{word}: ended after {time.monotonic() - began:.1f} s; waited: {waits}")
        SERVER.fault = lambda r: None
        equal(read_error(path), 0, "the next reader")
        equal(json.loads((top / ".dcpfs/errors.json").read_text()), [], "it is no error")
    finally:
        SERVER.fault = lambda r: None
        run("umount", top)


def listing_is_interrupted():
    """The same of a program that lists a version which is not open yet, as its metadata does not come, or it is known but not whether
    it is as it was; the next one sees all."""
    source = s3("dcp-fsdp2/ckpt")
    for known in False, True:
        top = SCRATCH / f"mnt-listed-{known}"
        top.mkdir()
        shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
        if known:
            run("ls", source, "step-10")
        hung, late, asked = [], [], []

        def fault(r, hung=hung, late=late, asked=asked, metadata="step-20/.metadata" if known else "step-10/.metadata"):
            asked.append((time.monotonic(), "list-type" in r.path))
            return "hang" if (metadata in r.path or (late and asked[-1][1])) and not hung.append(1) else None
        SERVER.fault = fault
        try:
            got = run("mount", source, top, "--no-cache", DCPFS_STALL="30", DCPFS_TIMEOUT="30")
            check(got.returncode == OK, f"mount: {got.stderr}")
            if known:
                wait(lambda: hung)  # the newest is being opened
                took = max(after - at for (at, is_list), (after, _) in zip(asked, asked[1:]) if is_list)
                time.sleep(max(6, 25 * took))  # after which lists are not believed
                late.append(1)
                hung.clear()
            child = subprocess.Popen([sys.executable, "-c", f"import os; os.listdir({str(top / 'step-10/raw')!r})"], stderr=subprocess.DEVNULL)
            wait(lambda: hung)
            time.sleep(1)
            waits = child.poll() is None
            began = time.monotonic()
            child.kill()
            child.wait()
            check(waits and time.monotonic() - began < 15, f"known: {known}: ended after {time.monotonic() - began:.1f} s; waited: {waits}")
            SERVER.fault = lambda r: None
            check(len(list((top / "step-10/raw").iterdir())) > 50, f"known: {known}: the next one lists it")
            equal(json.loads((top / ".dcpfs/errors.json").read_text()), [], f"known: {known}: it is no error")
        finally:
            SERVER.fault = lambda r: None
            run("umount", top)


def random_reads_with_faults_are_right():
    """Of a mount, at any place, while one request of 50 fails in some way: no byte is wrong. DCPFS_TEST_READS=1000000 by hand."""
    size, top, left = 192 << 20, SCRATCH / "mnt-many", int(os.environ.get("DCPFS_TEST_READS", "3000"))
    seed = int(os.environ.get("DCPFS_TEST_SEED", int.from_bytes(os.urandom(4), "little")))
    write(TOP / "many/model.safetensors", {"w": ("U8", [size], random.Random(seed).randbytes(size))})
    want = memoryview((TOP / "many/model.safetensors").read_bytes())[-size:]
    faults, wrong, failed, began = random.Random(seed), [], [], time.monotonic()
    top.mkdir()
    got = run("mount", s3("many"), top, "--no-cache")
    check(got.returncode == OK, f"mount: {got.stderr}")
    SERVER.taken()
    hit = collections.Counter()

    def fault(r):
        kind = faults.choice((503, 500, "reset", "short", "wrong range", "other size", "no range", "long", "doubled", "duplicated", "shifted", "cut"))
        if "Range" not in r.headers or faults.random() > 0.02:
            return None
        hit[kind] += 1
        return kind

    def read(n, at_random):
        """Of ten reads, nine are near the one before."""
        f, to, at = os.open(top / "latest/raw/w.bin", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 64 << 10), 0
        for i in range(n):
            at = at_random.randrange(size) if i % 10 == 0 else min(at + at_random.randrange(8 << 10), size - 1)
            part = memoryview(to)[:at_random.randrange(1, 16 << 10)]
            try:
                got = os.preadv(f, [part], at)
            except OSError as e:
                failed.append(e.errno)
                continue
            if part[:got] != want[at:at + got] or got != min(len(part), size - at):
                wrong.append(at)
        os.close(f)
    SERVER.fault = fault
    try:
        threads = [threading.Thread(target=read, args=(left // 8, random.Random(seed + i))) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        SERVER.fault = lambda r: None
        run("umount", top)
        shutil.rmtree(TOP / "many")
    print(f"seed {seed}: {left} reads by {len(SERVER.taken())} requests, faults {dict(hit)}, {len(failed)} failed, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    equal((wrong, failed), ([], []), f"reads that are wrong, or failed, with seed {seed}")


def old_versions_are_not_opened():
    """Of 20 versions in a bucket the metadata of the eight newest is asked for; of an older one when it is entered."""
    top, run_of = SCRATCH / "mnt-old", TOP / "old"
    for i in range(20):
        shutil.copytree(TOP / "dcp-fsdp2/ckpt/step-20", run_of / f"step-{i}")
    top.mkdir()
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    SERVER.taken()
    got = run("mount", s3("old"), top)
    check(got.returncode == OK, f"mount: {got.stderr}")
    asked = set()

    def look():
        asked.update(name for r in SERVER.taken() for name in re.findall(r"/(step-\d+)/\.metadata", r[1]))
        return asked
    try:
        wait(lambda: len(look()) >= 8)
        time.sleep(2)
        equal(sorted(look(), key=lambda n: int(n[5:])), [f"step-{i}" for i in range(12, 20)], "versions whose metadata was asked for")
        check(len(os.listdir(top)) > 20, f"all are shown: {os.listdir(top)}")
        check(len(os.listdir(top / "step-3/raw")) > 50, "an old one is there when it is entered")
        equal(sorted(look() - {f"step-{i}" for i in range(12, 20)}), ["step-3"], "versions whose metadata was asked for then")
        key = next(iter(os.listdir(top / "step-3/raw"))).removesuffix(".bin")
        equal(len(os.listdir(top / "by-key" / key)), 20, "by-key enters all")
    finally:
        run("umount", top)


skip_without_libcurl()
if not os.access("/dev/fuse", os.R_OK | os.W_OK):
    print("no /dev/fuse")
    sys.exit(77)
chosen = sys.argv[2:]
for test in (mounts_agree_with_files, status_counts_servers, waiting_reads_are_interrupted, listing_is_interrupted,
             old_versions_are_not_opened, random_reads_with_faults_are_right, a_lost_network_is_survived):
    if not chosen or test.__name__ in chosen:
        began = time.monotonic()
        test()
        print(f"{test.__name__}: {time.monotonic() - began:.1f} s")
finish()
