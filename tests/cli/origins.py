#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every golden checkpoint behind every kind of server: what is shown, read, loaded, exported and mounted equals the files.

    origins.py DCPFS              the newest version of each checkpoint; loads, exports and mounts of one of each family
    origins.py DCPFS all          all versions, verbs and checkpoints: some 20 minutes
    origins.py DCPFS all NAME...  of these checkpoints
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import sys
import time

from cli import OK, SCRATCH, check, data, equal, finish, run
from served import TOP, files_of, gs, hf, load, s3, skip_without_libcurl, web

ALL = sys.argv[2:3] == ["all"]
ORIGINS = {"s3": s3, "gs": gs, "https": web, "hf": hf}
ONE_OF_EACH = ("composer-ranks", "dcp-fsdp2", "deepspeed-3d", "hf-llama", "megatron-dist", "paddle-dist-flat", "torch-ranks")
MOUNTED = ("dcp-fsdp2", "deepspeed-z3", "hf-bin", "paddle-dist-st")
THREADS = 4  # a dcpfs waits for the server most of the time
COUNTS = {}  # what was compared: how often


def sources():
    """Names below the top, of directories that are sources."""
    found = sorted({p.relative_to(TOP).as_posix() for p in TOP.rglob("ckpt") if p.is_dir()} | {"megatron-models/llama", "neox/tp"})
    return [s for s in found if not sys.argv[3:] or s.split("/")[0] in sys.argv[3:]]


def plain(text, place):
    """Without the name of the source, which is all that may differ."""
    return re.sub(re.escape(str(place).rstrip("/").encode()) + rb"(/(?![\w.%]))?", b"SOURCE", text)


def ask(place, *words):
    got = run(words[0], place, *words[1:])
    # Warnings of the same things may come in another order, that of threads.
    return got.returncode, plain(got.stdout, place), sorted(plain(got.stderr, place).splitlines())


def count(what):
    COUNTS[what] = COUNTS.get(what, 0) + 1


def same(source, what, *words):
    """The verb says of every origin what it says of the files."""
    want = ask((TOP / source).resolve(), *words)
    for name, url in ORIGINS.items():
        got = ask(url(source), *words)
        equal(got[:2], want[:2], f"{what} of {url(source)} {words}: {got[2]}")
        count(f"{what}, {name}")
    return want


def read_all(source):
    """The digests of all bytes of all keys, and the list of them. Goldens that are broken are so everywhere."""
    listed = run("ls", TOP / source, "--json")
    versions = ["latest"]
    if ALL and isinstance(rows := json.loads(listed.stdout or b"0"), list):
        versions = [row["name"] for row in rows]
    read = 0
    for version in versions:
        read += same(source, "verify", "verify", version, "--record", "-")[1].count(b"\n")
        if ALL:
            same(source, "ls", "ls", version, "--json")
    return read


def held(place, ranks):
    """What the ranks hold, as files, between their exit codes and what they said."""
    out = SCRATCH / f"dump-{os.urandom(8).hex()}"
    codes, said = load(place, ranks, "--partial", "--check", "--dump", out)
    files = files_of(out) if out.is_dir() else {}
    shutil.rmtree(out, ignore_errors=True)
    return codes, files, said


def loaded(source):
    for ranks in (1, 2, 4) if ALL else (1, 2):
        want = held(TOP / source, ranks)
        check(want[1] or want[0] != [OK] * ranks, f"{source}: {ranks} ranks hold something: {want[2]}")
        for name, url in ORIGINS.items():
            got = held(url(source), ranks)
            equal(got[0], want[0], f"load of {url(source)} by {ranks}: {got[2]}")
            differ = [str(k) for k in want[1].keys() | got[1].keys() if want[1].get(k) != got[1].get(k)]
            equal(differ, [], f"load of {url(source)} by {ranks}: {got[2]}")
            count(f"load by {ranks}, {name}")


def exported(source):
    for form in ("safetensors", "torch-dcp") if ALL else ("safetensors",):
        outs = {}
        for name, place in {"files": TOP / source, **{name: url(source) for name, url in ORIGINS.items()}}.items():
            out = SCRATCH / f"export-{os.urandom(8).hex()}"
            got = run("export", place, "latest", out, "--as", form)
            outs[name] = got.returncode, {k: plain(v, place).replace(str((TOP / source).resolve()).encode(), b"SOURCE")
                                          for k, v in (files_of(out) if out.is_dir() else {}).items()}
            shutil.rmtree(out, ignore_errors=True)
            equal(outs[name][0], outs["files"][0], f"export of {place} as {form}: {got.stderr}")
            differ = [str(k) for k in outs["files"][1].keys() | outs[name][1].keys() if outs["files"][1].get(k) != outs[name][1].get(k)]
            equal(differ, [], f"export of {place} as {form}")
            count(f"export, {name}")


def mount(place, top):
    got = run("mount", place, top)
    check(got.returncode == OK, f"mount {place}: {got.stderr}")


def shown(top, place):
    """All that is below the mount, by name; an error's number in place of what cannot be read."""
    found = {}
    for folder, dirs, names in os.walk(top):
        dirs[:] = [d for d in dirs if d not in (".dcpfs", "shard")]
        for n in names + [d for d in dirs if (pathlib.Path(folder) / d).is_symlink()]:
            path = pathlib.Path(folder) / n
            key = path.relative_to(top).as_posix()
            if path.is_symlink():
                found[key] = os.readlink(path)
                continue
            try:
                found[key] = plain(path.read_bytes(), place)
            except OSError as e:
                found[key] = e.errno
    return found


def mounted(source):
    want = None
    for name, place in {"files": (TOP / source).resolve(), **{name: url(source) for name, url in ORIGINS.items()}}.items():
        top = SCRATCH / f"mnt-{os.urandom(8).hex()}"
        top.mkdir()
        mount(place, top)
        try:
            got = shown(top, place)
        finally:
            run("umount", top)
        want = got if want is None else want
        differ = [k for k in want.keys() | got.keys() if want.get(k) != got.get(k)]
        equal(differ[:5], [], f"{len(differ)} of {len(want)} files in a mount of {place}")
        count(f"mount, {name}")


skip_without_libcurl()
began = time.monotonic()
with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    keys = dict(zip(sources(), pool.map(read_all, sources())))
    check(sum(n > 1 for n in keys.values()) > 50 or sys.argv[3:], f"checkpoints with tensors: {keys}")
    print(f"{len(keys)} checkpoints, {sum(keys.values())} lines: {time.monotonic() - began:.1f} s", flush=True)
    for what, names in (loaded, ONE_OF_EACH), (exported, ONE_OF_EACH), (mounted, MOUNTED if os.access("/dev/fuse", os.R_OK | os.W_OK) else ()):
        chosen = [s for s in keys if names and ALL or s.split("/")[0] in names]
        began = time.monotonic()
        list(pool.map(what, chosen))
        print(f"{what.__name__}, {len(chosen)} checkpoints: {time.monotonic() - began:.1f} s", flush=True)
for what, n in sorted(COUNTS.items()):
    print(f"{what}: {n}")
finish()
