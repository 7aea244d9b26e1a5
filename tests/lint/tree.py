# SPDX-License-Identifier: Apache-2.0
"""What every guard needs: which files the project consists of, and how a guard ends.

usage: tree.py FOLDER    print the sources below FOLDER, each with the first sentence of its first comment
"""
import pathlib
import re
import subprocess
import sys

ROOMS = ("core", "fs", "tools")
# Bytes that others wrote: no rule of ours applies to them.
DATA = re.compile(r"tests/(golden/[^/]+/|bad/|fuzz/corpus/)")
NOT_OURS = re.compile(r"(build[^/]*|\.git|\.cache)/|(.*/)?__pycache__/")
SKIP = 77


def files(root, data=False):
    """Every file of the project, data left out unless @data: what git tracks and what it would be offered."""
    root = pathlib.Path(root)
    names = None
    if (root / ".git").exists():
        # The checkout may belong to another user, as in a container.
        got = subprocess.run(["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z",
                              "--cached", "--others", "--exclude-standard"], capture_output=True)
        if got.returncode == 0:
            names = got.stdout.decode("utf-8", "surrogateescape").split("\0")
    if names is None:
        names = [p.relative_to(root).as_posix() for p in root.rglob("*")]
    return sorted({n for n in names if n and not NOT_OURS.match(n) and (data or not DATA.match(n))
                   and (root / n).is_file() and not (root / n).is_symlink()})


def select(root, *suffixes, under=("",)):
    """The files with one of these suffixes, below one of these folders."""
    return [n for n in files(root)
            if n.endswith(suffixes) and any(not u or n.startswith(u + "/") for u in under)]


def text(root, name):
    with open(pathlib.Path(root) / name, encoding="utf-8", errors="surrogateescape", newline="") as f:
        return f.read()


# Comments, strings and characters of C.
TOKEN = re.compile(r'/\*.*?(?:\*/|\Z)|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_comments(source):
    """C with its comments blanked; line numbers stay."""
    return TOKEN.sub(lambda m: m.group() if m.group()[0] in "\"'" else re.sub(r"[^\n]", " ", m.group()), source)


def finish(name, bad, checked):
    """Report and leave. A guard that looked at nothing says so instead of looking green."""
    for line in bad:
        print(line)
    if bad:
        print(f"{name}: {len(bad)} wrong, {checked} looked at")
    else:
        print(f"{name}: ok, {checked} looked at")
    sys.exit(1 if bad else 0)


def skip(name, why):
    print(f"{name}: skipped: {why}", file=sys.stderr)
    sys.exit(SKIP)


def first_comment(body):
    """The comment or docstring at the top, without the license line and the stars."""
    body = re.sub(r"\A/\* SPDX[^\n]*\n", "", body)
    m = re.match(r'\s*/\*(.*?)\*/|(?:#[^\n]*\n)*"""(.*?)"""', body, re.S)
    return re.sub(r"^[ \t]*\*[ \t]?", "", (m.group(1) or m.group(2) or ""), flags=re.M).strip() if m else ""


def print_sources(folder):
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    for name in select(root, ".c", ".h", ".cu", ".py", under=(folder.rstrip("/"),)):
        says = re.split(r"(?<=[.?!])\s|\n\n", first_comment(text(root, name)))[0]
        print(f"{name:44} {' '.join(says.split())}".rstrip())


if __name__ == "__main__":
    print_sources(sys.argv[1])
