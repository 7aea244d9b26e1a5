#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a file holds a mark of unfinished work or a path of one machine.

usage: words.py ROOT
"""
import re
import sys

import tree

# Spelled in halves, so that this file passes its own check.
MARKS = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
PATHS = re.compile(r"(?<![\w.*$}~-])/(wo" r"rk/|ho" r"me/|tmp/w" r"t)")


def check(root):
    bad, names = [], tree.files(root)
    for rel in names:
        body = tree.text(root, rel)
        if "\0" in body:
            continue
        for no, line in enumerate(body.split("\n"), 1):
            for what, m in (("unfinished", MARKS.search(line)), ("machine path", PATHS.search(line))):
                if m:
                    bad.append(f"{rel}:{no}: {what}: {m.group()}")
    return bad, len(names)


if __name__ == "__main__":
    tree.finish("words", *check(sys.argv[1]))
