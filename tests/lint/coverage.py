#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when core/format/README.md claims a format that no test proves, or keeps quiet about one that is there.

The table under "## What it reads" has three columns: where checkpoints come from, what is covered, and
what proves it. The third names, in backquotes, the families as `dcpfs ls` calls them, the golden checkpoints
(tests/golden/<name> with its manifest: every tensor and object is compared through the mount and without it),
and unit tests (the path below tests/unit/). Each must exist; every family and every golden checkpoint must be named.

usage: coverage.py ROOT
"""
import pathlib
import re
import sys

import tree


def families(root):
    """The names in core/format: .name = "torch-dcp"."""
    out = set()
    for rel in tree.select(root, ".c", under=("core",)):
        if rel.startswith("core/format/"):
            out.update(re.findall(r'^\t\.name = "([^"]+)"', tree.text(root, rel), re.M))
    return out


def goldens(root):
    return {p.parent.name for p in (pathlib.Path(root) / "tests" / "golden").glob("*/manifest.json")}


def claims(readme):
    """(line number, first column, words of the third) of every row of the table."""
    on, out = False, []
    for number, line in enumerate(readme.splitlines(), 1):
        if line.startswith("#"):
            on = line.strip() == "## What it reads"
        cells = [c.strip() for c in line.strip().strip("|").split(" | ")] if on and line.startswith("|") else []
        if len(cells) == 3 and not set(cells[0]) <= set("- ") and cells[2] != "proved by":
            out.append((number, cells[0], re.findall(r"`([^`]+)`", cells[2])))
    return out


def check(root):
    known, saved, bad, named = families(root), goldens(root), [], set()
    tests = {rel[len("tests/unit/"):-len(".c")] for rel in tree.select(root, ".c", under=("tests/unit",))}
    rows = claims(tree.text(root, "core/format/README.md"))
    for number, what, words in rows:
        named.update(words)
        if not set(words) & (saved | tests):
            bad.append(f"core/format/README.md:{number}: nothing proves \"{what}\"")
        for w in words:
            if w not in known | saved | tests:
                bad.append(f"core/format/README.md:{number}: `{w}` is not a family, a golden checkpoint or a unit test")
    bad += [f"core/format/README.md: does not say what proves the family {name}" for name in sorted(known - named)]
    bad += [f"core/format/README.md: does not name tests/golden/{name}" for name in sorted(saved - named)]
    return bad, len(rows)


def main(root):
    bad, rows = check(root)
    for line in bad:
        print(line)
    print(f"coverage: {len(bad)} wrong, {rows} rows" if bad else f"coverage: ok, {rows} rows")
    return 1 if bad else 0


sys.exit(main(sys.argv[1]))
