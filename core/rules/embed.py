#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The presets as C: a table of name, first comment line and text, in the order given.

usage: embed.py OUT FILE.rules...
"""
import pathlib
import sys


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main(out, files):
    rows = []
    for path in map(pathlib.Path, files):
        text = path.read_text(encoding="ascii")
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
