#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a source has no unit test, or a test, fuzz target or source is in no build list.

A source core/<floor>/<x>.c is covered by tests/unit/test_<x>.c, core/<floor>/<folder>/<x>.c by
test_<folder>_<x>.c, and either by any tests/unit/test_*.c whose first comment says so on a line of
its own: " * covers: arena, parse/source, index/check". A source without a header of its own is a part
of the module it is named after, meta_add.c of meta.h, or else of its folder's: pickle/memo.c belongs to
pickle/pickle.h and is covered where pickle is.

usage: units.py ROOT
"""
import pathlib
import re
import sys

import tree


def first_comment(body):
    """The comment at the top, the license line left out."""
    m = re.match(r"(?:/\*\s*SPDX[^\n]*\n)?\s*/\*(.*?)\*/", body, re.S)
    return m.group(1) if m else ""


def covered(root, tests):
    out = set()
    for rel in tests:
        out.add(rel.rsplit("/", 1)[-1].removeprefix("test_").removesuffix(".c"))
        for line in re.findall(r"^[ \t*]*covers:(.*)$", first_comment(tree.text(root, rel)), re.M):
            out.update(re.findall(r"[a-z0-9_/]+", line))
    return out


def listed(root, name):
    """The quoted names of every `name = [...]` and `name += [...]` in tests/meson.build."""
    body = re.sub(r"#[^\n]*", "", tree.text(root, "tests/meson.build"))
    lists = re.findall(name + r"\s*\+?=\s*\[(.*?)\]", body, re.S)
    return {x for part in lists for x in re.findall(r"'([^']*)'", part)}


def module(rel, headers):
    """core/x/meta_add.c -> core/x/meta, core/x/pickle/memo.c -> core/x/pickle/pickle, when only that has a header."""
    own = name = rel.removesuffix(".c")
    while name + ".h" not in headers and "_" in name.rsplit("/", 1)[-1]:
        name = name.rsplit("_", 1)[0]
    folder = own.rsplit("/", 1)[0]
    whole = folder + "/" + folder.rsplit("/", 1)[-1]
    return next((n for n in (name, whole) if n + ".h" in headers), own)


def words_for(where):
    """What a test may call core/parse/pickle/value: pickle/value, pickle_value, parse/pickle/value."""
    parts = where.split("/")[1:]
    if len(parts) <= 2:
        return {parts[-1], "/".join(parts)}
    words = {"_".join(parts[-2:])} | {"/".join(parts[i:]) for i in range(len(parts) - 1)}
    if parts[-1] == parts[-2]:
        words |= {parts[-1], "/".join(parts[:-1])}
    return words


def lost_tests(root, tests, fuzz):
    bad, names = [], listed(root, "unit_tests")
    for rel in tests:
        name = rel.rsplit("/", 1)[-1].removeprefix("test_").removesuffix(".c")
        if name not in names:
            bad.append(f"{rel}: '{name}' is not in unit_tests in tests/meson.build")
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
    for rel in sources:
        parts = rel.split("/")
        near = [("/".join(parts[:i] + ["meson.build"]), "/".join(parts[i:])) for i in range(len(parts))]
        if not any(f"'{name}'" in builds.get(build, "") for build, name in near):
            bad.append(f"{rel}: is in no meson.build, so nothing compiles it")
    return bad


def check(root):
    tests = [n for n in tree.select(root, ".c", under=("tests/unit",)) if "/test_" in n]
    fuzz = [n for n in tree.select(root, ".c", under=("tests/fuzz",)) if "/fuzz_" in n]
    sources = tree.select(root, ".c", under=tree.ROOMS)
    headers = set(tree.select(root, ".h", under=tree.ROOMS))
    bad, have = lost_tests(root, tests, fuzz) + lost_sources(root, sources), covered(root, tests)
    for rel in (s for s in sources if s.startswith("core/")):
        names = words_for(module(rel, headers))
        if not have & names:
            name = min(names, key=lambda n: ("/" in n, len(n)))
            bad.append(f"{rel}: no tests/unit/test_{name}.c, and no test says it covers {name}")
    return bad, len(sources) + len(tests) + len(fuzz)


if __name__ == "__main__":
    tree.finish("units", *check(sys.argv[1]))
