#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts for completion as C: an array of their texts, in the order given.

usage: embed.py OUT SCRIPT...
"""
import json
import pathlib
import sys


def main(out, scripts):
    texts = ["".join(f"\n\t{json.dumps(line)}" for line in pathlib.Path(s).read_text(encoding="ascii").splitlines(True))
             for s in scripts]
    pathlib.Path(out).write_text('#include "tools/help.h"\n\nconst char *const complete_script[] = {' +
                                 ",".join(texts) + "\n};\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
