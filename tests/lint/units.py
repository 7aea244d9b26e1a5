#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a source has no unit test, or a test, fuzz target or source is in no build list.

A source core/<path>.c is covered by tests/unit/<path>.c, and by any test whose first comment says so on a
line of its own, " * covers: arena, origin/source": a source of the folder that the test's own mirrors, or its
path below core/ (or fs/...). A source without a header of its own is a part of the module it is named after,
meta_add.c of meta.h, or else of its folder's: pickle/memo.c belongs to pickle/pickle.h and is covered where
pickle is.

usage: units.py ROOT
"""
import pathlib
import re
import sys

import tree


def mirrored(rel):
    """tests/unit/model/layout/cut.c -> core/model/layout/cut, tests/unit/fs/file/cache.c -> fs/file/cache."""
    own = rel.removeprefix("tests/unit/").removesuffix(".c")
    return own if own.split("/")[0] in tree.ROOMS else "core/" + own


def claims(root, rel):
    """What a test says it covers, each as the paths that may be meant."""
    folder = mirrored(rel).rsplit("/", 1)[0]
    lines = re.findall(r"^covers:(.*)$", tree.first_comment(tree.text(root, rel)), re.M)
    return [(w, {f"{folder}/{w}", f"core/{w}", w}) for line in lines for w in re.findall(r"[a-z0-9_/]+", line)]


def covered(root, tests):
    return {mirrored(rel) for rel in tests} | {path for rel in tests for _, may in claims(root, rel) for path in may}


def listed(root):
    """The quoted names in `unit_tests = {...}` of tests/unit/meson.build."""
    body = re.sub(r"#[^\n]*", "", tree.text(root, "tests/unit/meson.build"))
    return {x for part in re.findall(r"unit_tests\s*=\s*\{(.*?)\}", body, re.S) for x in re.findall(r"'([^']*)'", part)}


def module(rel, headers):
    """core/x/meta_add.c -> core/x/meta, core/x/pickle/memo.c -> core/x/pickle/pickle, when only that has a header."""
    own = name = rel.removesuffix(".c")
    while name + ".h" not in headers and "_" in name.rsplit("/", 1)[-1]:
        name = name.rsplit("_", 1)[0]
    folder = own.rsplit("/", 1)[0]
    whole = folder + "/" + folder.rsplit("/", 1)[-1]
    return next((n for n in (name, whole) if n + ".h" in headers), own)


def lost_tests(root, tests, fuzz):
    bad, names = [], listed(root)
    for rel in tests:
        name = rel.removeprefix("tests/unit/").removesuffix(".c")
        if name not in names:
            bad.append(f"{rel}: '{name}' is not in unit_tests in tests/unit/meson.build")
    targets = set()
    if (pathlib.Path(root) / "tests/fuzz/targets").is_file():
        lines = tree.text(root, "tests/fuzz/targets").splitlines()
        targets = {w[0] for w in map(str.split, lines) if w and not w[0].startswith("#")}
    for rel in fuzz:
        name = rel.rsplit("/", 1)[-1].removeprefix("fuzz_").removesuffix(".c")
        if name not in targets:
            bad.append(f"{rel}: '{name}' is not in tests/fuzz/targets")
    return bad


def lost_sources(root, sources):
    bad, builds = [], {}
    for rel in tree.select(root, "meson.build"):
        builds[rel] = re.sub(r"#[^\n]*", "", tree.text(root, rel))
    if "core/format/meson.build" in builds:     # builds what a row of formats.h names
        rows = re.findall(r"^\s*row\((\w+)\)", tree.text(root, "core/format/formats.h"), re.M)
        builds["core/format/meson.build"] += "".join(f"'{r}.c'" for r in rows)
    for rel in sources:
        parts = rel.split("/")
        near = [("/".join(parts[:i] + ["meson.build"]), "/".join(parts[i:])) for i in range(len(parts))]
        if not any(f"'{name}'" in builds.get(build, "") for build, name in near):
            bad.append(f"{rel}: is in no meson.build, so nothing compiles it")
    return bad


def check(root):
    tests = [n for n in tree.select(root, ".c", under=("tests/unit",)) if "/t/" not in n]
    fuzz = [n for n in tree.select(root, ".c", under=("tests/fuzz",)) if "/fuzz_" in n]
    sources = tree.select(root, ".c", under=tree.ROOMS)
    headers = set(tree.select(root, ".h", under=tree.ROOMS))
    bad, have = lost_tests(root, tests, fuzz) + lost_sources(root, sources), covered(root, tests)
    there = {s.removesuffix(".c") for s in sources} | {h.removesuffix(".h") for h in headers}
    bad += [f"{rel}: covers {w}, which is not a source" for rel in tests for w, may in claims(root, rel) if not may & there]
    for rel in (s for s in sources if s.startswith("core/")):
        name = module(rel, headers)
        if name not in have and rel.removesuffix(".c") not in have:
            name = name.removeprefix("core/")
            bad.append(f"{rel}: no tests/unit/{name}.c, and no test says it covers {name}")
    return bad, len(sources) + len(tests) + len(fuzz)


if __name__ == "__main__":
    tree.finish("units", *check(sys.argv[1]))
