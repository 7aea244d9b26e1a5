#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The presets as C: a table of name, first comment line and text, in the order given.

A preset "like NAME: LINE" is the preset NAME, except that LINE replaces the line that begins with the same word.

usage: embed.py OUT FILE.rules...
"""
import pathlib
import sys


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def variant(path, text):
    """The text of a preset, or of the preset that it is like."""
    about, like, *_ = text.split("\n")
    if not like.startswith("like "):
        return text
    name, own = like.removeprefix("like ").split(": ")
    lines = (path.parent / f"{name}.rules").read_text(encoding="ascii").splitlines()[1:]
    if sum(line.split()[0] == own.split()[0] for line in lines) != 1:
        sys.exit(f"{path}: {name} has not one line {own.split()[0]}")
    return "\n".join([about, *(own if line.split()[0] == own.split()[0] else line for line in lines), ""])


def main(out, files):
    rows = []
    for path in map(pathlib.Path, files):
        text = variant(path, path.read_text(encoding="ascii"))
        about = text.split("\n", 1)[0]
        if not about.startswith("# "):
            sys.exit(f"{path}: the first line is not a comment that says what it is for")
        body = "\n".join("\t  " + quoted(line + "\n").replace("\n", "\\n") for line in text.splitlines())
        rows.append(f"\t{{ {quoted(path.stem)}, {quoted(about[2:])},\n{body} }},\n")
    pathlib.Path(out).write_text('#include "core/rules/rules_int.h"\n\n'
                                 "const struct dcp_rules_preset dcp_rules_presets[] = {\n" + "".join(rows) +
                                 "};\n\nconst size_t dcp_rules_npresets = DCP_LEN(dcp_rules_presets);\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
