#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a library that others link no longer exports a symbol that it had, or has one that is not in its list. The lists are the
symbols files of the Debian packages: a line is added with the release that brings the symbol, and none is removed without a new SONAME.

usage: abi.py NM ROOT LIBRARY
"""
import pathlib
import re
import subprocess
import sys

import tree


def listed(text):
    """(soname, {symbol: release}) of a symbols file."""
    head, *lines = [x for x in text.splitlines() if x and not x.startswith(("#", "*", "|"))]
    return head.split()[0], dict(re.fullmatch(r" (\S+)@Base (\S+)", x).groups() for x in lines)


def check(nm, root, library):
    soname = re.match(r"lib\w+\.so\.\d+", pathlib.Path(library).name).group()
    package = re.sub(r"\.so\.", "", soname)
    name = f"debian/{package}.symbols"
    said, known = listed(tree.text(root, name))
    lines = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    have = {x.split()[-1].split("@")[0] for x in lines}
    have = {x for x in have if not re.match(r"_*(odr_)?asan|__ubsan|__tsan|__sanitizer|__sancov|_init$|_fini$|_edata|_end|__bss", x)}
    bad = [] if said == soname else [f"{name}: is about {said}, the library is {soname}"]
    bad += [f"{name}: {soname} no longer exports {x}: programs that use it break; bring it back, or take a new SONAME" for x in known if x not in have]
    bad += [f"{name}: {soname} exports {x}, which is not listed: add it with the release that brings it" for x in sorted(have - set(known))]
    return bad, len(known)


if __name__ == "__main__":
    tree.finish("abi", *check(*sys.argv[1:4]))
