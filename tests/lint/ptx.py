#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a kernel's .ptx is not what nvcc makes of the .cu beside it. Skips where there is no nvcc of the release that
made the copy. A kernel uses nothing new, so its text claims the oldest PTX for its GPUs: older drivers then take it,
too; ptxas, where there is one, proves that.

usage: ptx.py [--write] [ROOT]
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import tree

GPU, VERSION = 75, "6.3"  # Turing, and the PTX that came with it


def tool(name):
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def compiled(root, rel):
    """(release of nvcc, text)"""
    nvcc = tool("nvcc")
    with tempfile.TemporaryDirectory() as d:
        out = pathlib.Path(d) / "out.ptx"
        subprocess.run([nvcc, "-ptx", f"-arch=compute_{GPU}", "-I.", "-o", out, rel], cwd=root, check=True)
        text = out.read_text()
    text = re.sub(r"(?m)^\.version .*$", f".version {VERSION}", text)
    text = "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n")) + "\n"
    return release_of(text), text


def release_of(text):
    return re.search(r"release ([0-9.]+)", text).group(1)


def assembles(path):
    with tempfile.TemporaryDirectory() as d:
        return subprocess.run([tool("ptxas"), f"-arch=sm_{GPU}", "-o", os.path.join(d, "out"), path]).returncode == 0


def main():
    words = [w for w in sys.argv[1:] if w != "--write"]
    root = pathlib.Path(words[0] if words else ".")
    if not tool("nvcc"):
        tree.skip("ptx", "no nvcc")
    bad, seen = [], 0
    for rel in tree.select(str(root), ".cu", under=("tools",)):
        copy = (root / rel).with_suffix(".ptx")
        release, text = compiled(root, rel)
        if "--write" in sys.argv:
            copy.write_text(text)
        seen += 1
        if release_of(copy.read_text()) != release:
            tree.skip("ptx", f"nvcc {release} here, {release_of(copy.read_text())} made the copy")
        if copy.read_text() != text:
            bad.append(f"{copy}: not what nvcc makes of {rel}; tests/lint/ptx.py --write")
        if tool("ptxas") and not assembles(copy):
            bad.append(f"{copy}: ptxas refuses it")
    tree.finish("ptx", bad, seen)


if __name__ == "__main__":
    main()
