# SPDX-License-Identifier: Apache-2.0
"""What tests of servers compare: verbs, loads, exports and mounts of a golden checkpoint behind each server, and of its files.

A test puts its servers into ORIGINS: name -> the URL of a source whose name below the top of the goldens is given.
"""
import json
import os
import pathlib
import re
import shutil

from cli import OK, SCRATCH, check, equal, run
from served import TOP, files_of, load

ORIGINS, RANKS, FORMS, OWN_TIMES = {}, [1, 2], ["safetensors"], False
COUNTS = {}  # what was compared: how often


def plain(text, place):
    """Without the name of the source, which is all that may differ; and times, where a server gives files its own."""
    if OWN_TIMES:
        text = re.sub(rb'("commit_time": ?)"[^"]*"|("commit_ns": ?)\d+', rb"\1\2 TIME", text)
    return re.sub(re.escape(str(place).rstrip("/").encode()) + rb"(/(?![\w.%]))?", b"SOURCE", text)


def by_name(text):
    """The JSON of versions, whose order is that of their times, by their names."""
    return json.dumps(sorted(json.loads(text), key=lambda v: v["name"]), indent=1).encode() if text.startswith(b"[") else text


def ask(place, *words):
    got = run(words[0], place, *words[1:])
    if OWN_TIMES and words == ("ls", "--json"):
        got.stdout = by_name(got.stdout)
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


def held(place, ranks):
    """What the ranks hold, as files, between their exit codes and what they said."""
    out = SCRATCH / f"dump-{os.urandom(8).hex()}"
    codes, said = load(place, ranks, "--partial", "--check", "--dump", out)
    files = files_of(out) if out.is_dir() else {}
    shutil.rmtree(out, ignore_errors=True)
    return codes, files, said


def loaded(source):
    for ranks in RANKS:
        want = held(TOP / source, ranks)
        check(want[1] or want[0] != [OK] * ranks, f"{source}: {ranks} ranks hold something: {want[2]}")
        for name, url in ORIGINS.items():
            got = held(url(source), ranks)
            equal(got[0], want[0], f"load of {url(source)} by {ranks}: {got[2]}")
            differ = [str(k) for k in want[1].keys() | got[1].keys() if want[1].get(k) != got[1].get(k)]
            equal(differ, [], f"load of {url(source)} by {ranks}: {got[2]}")
            count(f"load by {ranks}, {name}")


def exported(source):
    for form in FORMS:
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
