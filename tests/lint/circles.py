#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when files of a room's library call each other in a circle: then none can be read, tested or
moved without the others. What several files need lies in the lowest of them.

usage: circles.py NM LIBRARY
       circles.py ROOT, for every room that is built in ROOT/build
"""
import pathlib
import re
import subprocess
import sys

import tree


def calls(nm, library):
    """{file: {file it calls: a name that it takes from there}}"""
    got = subprocess.run([nm, "-A", "-g", "-P", library], capture_output=True, text=True, check=True)
    home, wanted = {}, []
    for line in got.stdout.splitlines():
        m = re.match(r"(.*?)(?:\[(.*)\])?: (\S+) (\S)(?: |$)", line)
        if not m:
            continue
        file = (m.group(2) or m.group(1)).rsplit("/", 1)[-1].removesuffix(".o")
        if m.group(4) in "Uw":
            wanted.append((file, m.group(3)))
        else:
            home[m.group(3)] = file
    out = {file: {} for file in home.values()}
    for file, name in wanted:
        if home.get(name, file) != file:
            out.setdefault(file, {})[home[name]] = name
    return out


def circle(graph):
    """Some files each of which calls the next, and the last the first; [] when there is none."""
    graph = {a: dict(to) for a, to in graph.items()}
    while ends := [a for a, to in graph.items() if not to.keys() & graph.keys()]:
        for a in ends:
            del graph[a]
    seen, at = [], min(graph, default=None)
    while at and at not in seen:
        seen.append(at)
        at = min(graph[at].keys() & graph.keys())
    return seen[seen.index(at):] if at else []


def check(nm, library):
    graph = calls(nm, library)
    round_ = circle(graph)
    bad = [f"{a} calls {graph[a][b]}() of {b}" for a, b in zip(round_, round_[1:] + round_[:1])]
    return bad + ([] if graph else [f"{library}: no symbols at all"]), len(graph)


if __name__ == "__main__":
    built = sorted(pathlib.Path(sys.argv[1]).glob("build/[cft]*/**/libdcpfs-*.a")) if not sys.argv[2:] else []
    each = [check("nm", lib) for lib in built] or [check(*sys.argv[1:3])]
    tree.finish("circles", [b for bad, _ in each for b in bad], sum(n for _, n in each))
