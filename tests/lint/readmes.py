#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a room's README.md does not name every .c, .h and .cu of the room in its file table,
or names one that does not exist.

A table names files in its rows, in backquotes: `base/arena.{h,c}`, `jsonw.c`, `index*.c`.
A folder with a README.md of its own is that README's business.

usage: readmes.py ROOT
"""
import fnmatch
import pathlib
import re
import sys

import tree


def expand(pattern):
    """a.{h,c} -> a.h a.c; a.[ch] is left to fnmatch."""
    m = re.search(r"\{([^{}]*)\}", pattern)
    if not m:
        return [pattern]
    return [x for part in m.group(1).split(",")
            for x in expand(pattern[:m.start()] + part.strip() + pattern[m.end():])]


def named(body):
    """The file patterns in the rows of the tables."""
    rows = "\n".join(line for line in body.splitlines() if line.lstrip().startswith("|"))
    words = [w for span in re.findall(r"`([^`]*)`", rows) for w in re.split(r"[\s|]+(?![^{]*\})", span)]
    return {p for w in words for p in expand(w) if re.search(r"\.(c|h|\[ch\]|\[hc\]|\*|cu)$", p)}


def check(root):
    bad, seen, unwritten = [], 0, []
    sources = tree.select(root, ".c", ".h", ".cu", under=tree.ROOMS)
    homes = {}
    for rel in sources:
        parts = rel.split("/")
        home = next(("/".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)
                     if (pathlib.Path(root) / "/".join(parts[:i]) / "README.md").is_file()), None)
        homes.setdefault(home or parts[0], []).append(rel[len(home or parts[0]) + 1:])
    for home, files in sorted(homes.items()):
        if not (pathlib.Path(root) / home / "README.md").is_file():
            if any(f.endswith(".c") for f in files):
                unwritten.append(home)
            continue
        seen += len(files)
        patterns = named(tree.text(root, home + "/README.md"))
        hit = set()
        for f in files:
            by = {p for p in patterns if fnmatch.fnmatch(f, p) or
                  ("/" not in p and fnmatch.fnmatch(f.rsplit("/", 1)[-1], p))}
            hit |= by
            if not by:
                bad.append(f"{home}/README.md: does not name {f}")
        # Another room's file may stand in the table as what something is like or leads to.
        bad += [f"{home}/README.md: names {p}, which does not exist" for p in sorted(patterns - hit)
                if not any(fnmatch.fnmatch(s, p) for s in sources)]
    return bad, seen, unwritten


if __name__ == "__main__":
    wrong, looked_at, missing = check(sys.argv[1])
    if missing and not wrong:
        tree.skip("readmes", "not written yet: " + " ".join(m + "/README.md" for m in missing))
    wrong += [f"{room}/README.md: not written yet" for room in missing]
    tree.finish("readmes", wrong, looked_at)
