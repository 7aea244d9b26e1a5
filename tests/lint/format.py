#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when clang-format 14 would change a C file, or a comment is too wide, which clang-format leaves alone.

usage: format.py ROOT [CLANG_FORMAT]

Other versions format differently, so with another one, or none, the check is skipped.
"""
import re
import shutil
import subprocess
import sys

import tree

VERSION = "14"
MAX_COMMENT = 100  # columns. Tables, which have tabs or two blanks in a row, may be wider.


def tool(wanted):
    for name in [wanted] if wanted else ["clang-format-" + VERSION, "clang-format"]:
        path = shutil.which(name)
        if not path:
            continue
        says = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        if re.search(rf"version {VERSION}\.", says):
            return path, None
        return None, f"{name} is not version {VERSION}: {says.strip()}"
    return None, f"no clang-format {VERSION}"


def wide(root, names):
    return [f"{rel}:{no}: comment of more than {MAX_COMMENT} columns" for rel in names
            for no, line in enumerate(tree.text(root, rel).split("\n"), 1)
            if len(line.expandtabs(8)) > MAX_COMMENT and re.match(r"\s*/?\*", line) and not re.search(r"  |\t", line.strip())]


def check(root, wanted=None):
    path, why = tool(wanted)
    if not path:
        tree.skip("format", why)
    names = tree.select(root, ".c", ".h")
    got = subprocess.run([path, "--dry-run", "-ferror-limit=0", "--style=file", *names],
                         cwd=root, capture_output=True, text=True) if names else None
    bad = {}
    for m in re.finditer(r"^(.+?):(\d+):\d+: (?:warning|error):", got.stderr if got else "", re.M):
        bad.setdefault(m.group(1), []).append(m.group(2))
    if got and got.returncode and not bad:
        return [got.stderr.strip()], len(names)
    return [f"{f}: clang-format would change it at line {', '.join(n[:5])}{' ...' if n[5:] else ''}"
            for f, n in sorted(bad.items())] + wide(root, names), len(names)


if __name__ == "__main__":
    tree.finish("format", *check(*sys.argv[1:3]))
