#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README.md and the picture of the demo, tools/demo.svg, show what commands print: it is what they print today.
gen/demo_svg.py draws the picture with the same functions."""
import os
import re
import subprocess
import sys
import xml.etree.ElementTree

import lib

PLACE = "/mnt/run1"
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
LIMIT = 60000  # bytes of the picture: a README is read on slow lines, too


def printed(command, mount):
    """What a command prints where PLACE is this directory: lines, times replaced by one of the same width."""
    programs = lib.WORK / "bin"
    if not programs.exists():
        programs.mkdir()
        (programs / "dcpfs").symlink_to(lib.PROGRAM)
        (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # a link would lose its packages
        (programs / "python3").chmod(0o755)
    done = lib.run("bash", "-c", command.replace(PLACE, str(mount)), cwd=lib.ROOT, env={
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "80", "TZ": "UTC", "LC_ALL": "C.UTF-8",
        "DCPFS_CACHE": str(lib.WORK / "pages")})
    text = (done.stdout + done.stderr).replace(str(mount), PLACE).expandtabs()
    return [TIME.sub("2026-01-01 12:00:00", line.rstrip()) for line in text.split("\n")][:-1]


def commands(lines):
    """[(command, lines after it)] of lines that begin with "$ " where they are commands."""
    found = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(TIME.sub("2026-01-01 12:00:00", line.rstrip()))
    return found


def compare(shown, mount):
    """Run commands in their order; each must print the lines that are shown after it."""
    before = ""
    try:
        for command, want in shown:
            lib.case(command)
            lib.equal(printed(before + command, mount), want, "what it prints")
            if command.startswith("cd "):
                before = command + " && "
    finally:
        if lib.mounted(mount):
            subprocess.run([lib.PROGRAM, "umount", str(mount)], check=True)
    lib.check(len(shown) > 6, f"only {len(shown)} commands were found")


def readme():
    """The blocks of README.md whose commands are about a golden checkpoint or the mount of it."""
    shown = []
    for block in re.findall(r"(?:^(?:    .*|)\n)+", (lib.ROOT / "README.md").read_text(encoding="utf-8"), re.M):
        lines = [line[4:] for line in block.strip("\n").split("\n")]
        if lines[0].startswith("$ ") and "tests/golden" in block:
            shown += commands(lines)
    shown = [(c, want) for c, want in shown if not c.startswith("mkdir ") and ">" not in c]
    compare(shown, lib.fresh("readme"))


def picture():
    """The lines of text in tools/demo.svg."""
    path = lib.ROOT / "tools" / "demo.svg"
    lib.case("the file")
    lib.check(path.stat().st_size < LIMIT, f"is {path.stat().st_size} bytes")
    root = xml.etree.ElementTree.parse(path).getroot()
    lines = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text") if e.get("class") != "title"]
    compare(commands(lines), lib.fresh("picture"))


if __name__ == "__main__":
    try:
        import numpy  # noqa: F401: the picture uses it
    except ImportError:
        lib.replace_python("no numpy")
    lib.main(readme, picture)
