#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a file holds a mark of unfinished work, a path of one machine or a word that we do not use, or when
a line of a comment in C lost the blank after its star, as reformatting leaves it.

usage: words.py ROOT
"""
import re
import sys

import tree

# Spelled in halves, so that this file passes its own check.
MARKS = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
PATHS = re.compile(r"(?<![\w.*$}~-])/(wo" r"rk/|ho" r"me/|tmp/w" r"t)")
WORDS = re.compile(r"\b(h" r"e|hi" r"s|hi" r"m|one be" r"hind (?:the |an)other|make" r"s? no sense|(?<!there )is n"
                   r"o (?:number|tensor|checkpoint|layout|pickle|string|list|dict|array|link|error|name|rank|file|source|family|place)|found no me" r"mory|to be h" r"ad)\b")
# Code is not a person; "no rank", "another process" or the passive says which is meant.
PERSONS = re.compile(r"\b(no" r"body|some" r"body|any" r"body|a" r"new)\b", re.I)
TORN = re.compile(r"^ \*(?=[^ \t/*])")


def check(root):
    bad, names = [], tree.files(root)
    for rel in names:
        body = tree.text(root, rel)
        if "\0" in body:
            continue
        for no, line in enumerate(body.split("\n"), 1):
            for what, m in (("unfinished", MARKS.search(line)), ("machine path", PATHS.search(line)),
                            ("word", WORDS.search(line)), ("word", PERSONS.search(line)),
                            ("torn comment", rel.endswith((".c", ".h")) and TORN.search(line))):
                if m:
                    bad.append(f"{rel}:{no}: {what}: {m.group()}")
    return bad, len(names)


if __name__ == "__main__":
    tree.finish("words", *check(sys.argv[1]))
