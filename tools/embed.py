#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts as C: an array NAME of them, which HEADER declares, in the order given.

usage: embed.py OUT HEADER NAME FILE...
"""
import json
import pathlib
import sys


def main(out, header, name, files):
    texts = ["".join(f"\n\t{json.dumps(line)}" for line in pathlib.Path(s).read_text(encoding="ascii").splitlines(True))
             for s in files]
    pathlib.Path(out).write_text(f'#include "{header}"\n\nconst char *const {name}[] = {{' +
                                 ",".join(texts) + "\n};\n")


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
