#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a room's library exports a name without its prefix, or calls what the room may not.

usage: symbols.py NM ROOM LIBRARY
"""
import re
import subprocess
import sys

import tree

PREFIX = {"core": r"dcp_", "fs": r"dcpfs_", "load": r"(dcpload|load|comm|mem)_", "save": r"(dcpsave|save)_"}
PRINTS = r"puts|putchar|printf|vprintf|perror|psignal|stdout|stderr|warnx?|errx?|verrx?|vwarnx?"
ENVIRONMENT = r"getenv|secure_getenv|setenv|unsetenv|putenv|clearenv|environ|getopt(_long(_only)?)?"
PROCESS = r"exit|_exit|_Exit|quick_exit|atexit|v?fork|system|popen|exec[vl]p?e?|fexecve|posix_spawnp?"
CHANGES = r"chdir|fchdir|umask|signal|sigaction|rand|srand|random|srandom"
FORBIDDEN = {
    "core": "|".join((PRINTS, ENVIRONMENT, PROCESS, CHANGES)),
    "fs": "|".join((PRINTS, ENVIRONMENT, r"system|popen|rand|srand|random|srandom")),
    "load": "|".join((r"puts|putchar|printf|vprintf|perror|stdout", ENVIRONMENT, PROCESS, CHANGES)),
    "save": "|".join((PRINTS, ENVIRONMENT, PROCESS, CHANGES)),
}
# (room, member, name): what one file may use, for the whole room.
# Threads that transfer ahead end before the libraries do, which a destructor would be too late for.
OWNERS = {("core", "remote_blocks.c.o", "atexit"), ("load", "comm_job.c.o", "getenv"), ("load", "cache.c.o", "getenv")}
# What the compiler itself adds under sanitizers and coverage.
COMPILER = re.compile(r"_*(odr_)?asan|__ubsan|__tsan|__sanitizer|__sancov|__gcov|__llvm|__start_|__stop_")


def check(nm, room, library):
    got = subprocess.run([nm, "-A", "-g", "-P", library], capture_output=True, text=True)
    if got.returncode:
        return [f"{nm} {library}: {got.stderr.strip()}"], 0
    bad, seen = set(), 0
    for line in got.stdout.splitlines():
        m = re.match(r"(.*): (\S+) (\S)(?: |$)", line)
        if not m or COMPILER.match(m.group(2)):
            continue
        member, name, kind = m.groups()
        member = re.sub(r".*\[(.*)\]$", r"\1", member)
        seen += 1
        if kind in "Uw":
            plain = re.sub(r"^__(\w+)_chk$", r"\1", name.split("@")[0])
            if re.fullmatch(FORBIDDEN[room], plain) and (room, member.rsplit("/", 1)[-1], plain) not in OWNERS:
                bad.add(f"{member}: {room} may not use {plain}()")
        elif not re.match(PREFIX[room], name):
            bad.add(f"{member}: external name {name} does not start with {PREFIX[room]}")
    if not seen:
        bad.add(f"{library}: no symbols at all")
    return sorted(bad), seen


if __name__ == "__main__":
    tree.finish("symbols", *check(*sys.argv[1:4]))
