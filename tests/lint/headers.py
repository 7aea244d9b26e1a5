#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a header does not compile on its own, with the flags of the build.

usage: headers.py ROOT BUILD
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

import tree

KEEP = ("-I", "-D", "-U", "-W", "-std=", "-f", "-m", "-pthread", "-isystem")
TAKES_VALUE = ("-I", "-D", "-U", "-isystem", "-include")


def flags(build):
    """The compiler, its folder, and every flag that any file of the project is compiled with."""
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    cc, out = None, []
    for c in commands:
        words = shlex.split(c["command"])
        if os.path.basename(words[0]) in ("ccache", "sccache"):
            words = words[1:]
        cc = cc or words[0]
        i = 1
        while i < len(words):
            take = words[i:i + 2] if words[i] in TAKES_VALUE else words[i:i + 1]
            i += len(take)
            if take[0].startswith(KEEP) and not take[0].startswith(("-fsanitize", "-fdiagnostics")):
                if take not in out:
                    out.append(take)
    return cc, commands[0]["directory"], [w for take in out for w in take]


def check(root, build):
    cc, where, args = flags(build)
    root = pathlib.Path(root).resolve()
    headers = tree.select(root, ".h", under=tree.ROOMS)

    def alone(header):
        # Twice: the second time proves the guard.
        lines = f'#include "{header}"\n' * 2
        got = subprocess.run([cc, *args, f"-I{root}", "-Werror", "-fsyntax-only", "-x", "c", "-"],
                             input=lines, cwd=where, capture_output=True, text=True)
        return f"{header}: does not compile alone\n{got.stderr}" if got.returncode else None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [b for b in pool.map(alone, headers) if b]
    return bad, len(headers)


if __name__ == "__main__":
    tree.finish("headers", *check(sys.argv[1], sys.argv[2]))
