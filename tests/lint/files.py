#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a file breaks a house rule that its text alone shows: license line, header guard,
length, blanks, comment style, names; or when a file, of data too, has more than a million bytes.

usage: files.py ROOT
"""
import pathlib
import re
import sys

import tree

LICENSE = "SPDX-License-Identifier: Apache-2.0"
MAX_LINES = 700
MAX_BYTES = 1000000
C = (".c", ".h", ".cu")
SCRIPT = (".py", ".sh")


def license_line(rel, lines):
    if rel.endswith(C):
        return [] if lines[:1] == [f"/* {LICENSE} */"] else [f"{rel}:1: first line is not /* {LICENSE} */"]
    at = 1 if lines and lines[0].startswith("#!") else 0
    return [] if lines[at:at + 1] == [f"# {LICENSE}"] else [f"{rel}:{at + 1}: line is not # {LICENSE}"]


def blanks(rel, body):
    bad = []
    if "\r" in body:
        bad.append(f"{rel}: has carriage returns")
    if body and not body.endswith("\n"):
        bad.append(f"{rel}: last line has no end")
    if body.endswith("\n\n"):
        bad.append(f"{rel}: blank line at the end")
    for no, line in enumerate(body.split("\n"), 1):
        if line != line.rstrip():
            bad.append(f"{rel}:{no}: blanks at the end of the line")
        if rel.endswith(C) and re.match(r"\t* {8,}[^\s\\]", line):
            bad.append(f"{rel}:{no}: indented with spaces, not tabs")
        elif rel.endswith(C) and re.match(r" +\t", line):
            bad.append(f"{rel}:{no}: space before a tab")
    return bad


def c_rules(rel, body):
    bad, code = [], tree.without_comments(body)
    if rel.endswith(".h"):
        if not re.search(r"^#pragma once$", code, re.M):
            bad.append(f"{rel}: no #pragma once")
        if re.search(r"^#ifndef (\w+_H_*)\n#define \1\b", code, re.M):
            bad.append(f"{rel}: has an include guard; #pragma once is enough")
    for m in tree.TOKEN.finditer(body):
        if m.group().startswith("//"):
            bad.append(f"{rel}:{line_of(body, m)}: // comment; write /* */")
    for m in re.finditer(r"\b(strto[a-z]+|ato(?:i|l|ll|f))\(", code):
        if rel.startswith(("fs/", "tools/", "core/")) and not rel.startswith("core/base/"):
            bad.append(f"{rel}:{line_of(body, m)}: {m.group(1)}() takes blanks, signs and too much; see core/base/text.h")
    for m in re.finditer(r"^static\b(?:__attribute__\(\([^;{]*?\)\)|[^;={}()\[\]])*\b([a-z0-9]+)\(", code, re.M):
        if rel.startswith(("fs/", "tools/", "core/")) and m.group(1) != "main":
            bad.append(f"{rel}:{line_of(body, m)}: static {m.group(1)}() is one word; a verb and a noun can be read in a stack trace")
    for m in re.finditer(r"^[ \t]*typedef\s+(struct|union|enum)\b", code, re.M):
        bad.append(f"{rel}:{line_of(body, m)}: typedef of a {m.group(1)}; use the tag")
    return bad


def test_names(rel, body):
    """Tests of one word: functions that cmocka runs; in Python those that lib.main(), a loop over tests or a
    line of its own calls, or that are cases, and methods of unittest."""
    if rel.startswith("tests/unit/"):
        names = re.findall(r"^static void ([a-z0-9]+)\(void \*\*", body, re.M)
    else:
        run = re.findall(r"(?:\blib\.main|\btest in |^TESTS = )[(\[]([^)\]]*)|^(\w+)\(|^@case\b.*\ndef (\w+)", body, re.M)
        called = set(re.findall(r"\w+", " ".join(map(" ".join, run))))
        names = [n for n in re.findall(r"^def ([a-z0-9]+)\(", body, re.M) if n in called and n != "main"]
        names += re.findall(r"^    def (test_?[a-z0-9]+)\(self", body, re.M)
    return [f"{rel}: the test {n}() is one word; a name says which subject does what" for n in names]


def line_of(body, m):
    return body.count("\n", 0, m.start()) + 1


def check(root):
    bad, names = [], tree.select(root, *C, *SCRIPT, "meson.build", "meson_options.txt", ".md", ".1")
    for rel in names:
        body = tree.text(root, rel)
        lines = body.split("\n")
        if rel.endswith(C + SCRIPT):
            bad += license_line(rel, lines)
            if len(lines) - 1 > MAX_LINES:
                bad.append(f"{rel}: {len(lines) - 1} lines; past {MAX_LINES} there is a second noun inside")
        if rel.endswith((".c", ".py")) and rel.startswith(("tests/unit/", "tests/cli/", "tests/mount/", "tests/load/", "tests/python/")):
            bad += test_names(rel, body)
        if not rel.endswith((".md", ".1")):
            bad += blanks(rel, body)
        if rel.endswith(C):
            bad += c_rules(rel, body)
            if not re.fullmatch(r"[a-z0-9_]+\.(c|h|cu)", rel.rsplit("/", 1)[-1]):
                bad.append(f"{rel}: file names are lower case, digits and underscores")
        if re.match(r"tests/unit/(?!t/|t\.h).*\.h$", rel):
            bad.append(f"{rel}: in tests/unit a header is a helper's, t/*")
    sizes = ((rel, (pathlib.Path(root) / rel).stat().st_size) for rel in tree.files(root, data=True))
    bad += [f"{rel}: {size} bytes; the limit is {MAX_BYTES}" for rel, size in sizes if size > MAX_BYTES]
    return bad, len(names)


if __name__ == "__main__":
    tree.finish("files", *check(sys.argv[1]))
