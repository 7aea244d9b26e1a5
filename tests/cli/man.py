#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man page documents every verb, option and -o word of the tables, and nothing else."""
import re
import shutil
import subprocess

from cli import check, data, equal, finish

PAGE = "tools/dcpfs.1"
SECTIONS = ("NAME SYNOPSIS DESCRIPTION ENVIRONMENT FILES FOR.PROGRAMS EXIT.STATUS EXAMPLES DIAGNOSTICS SEE.ALSO "
            "NOTES").replace(".", "\0").split()


def subsections(body):
    """The text of each `.Ss dcpfs VERB`."""
    parts = re.split(r"^\.S[sh] (.*)$", body, flags=re.M)
    return {name.removeprefix("dcpfs "): text for name, text in zip(parts[1::2], parts[2::2])
            if name.startswith("dcpfs ")}


def items(text):
    """Options that an .It line introduces: --name, -x, and words of a list."""
    out = set()
    for line in re.findall(r"^\.It ((?:.*\\\n)*.*)$", text, flags=re.M):
        words = line.replace("\\\n", " ").replace(",", " ").split()
        kind = None
        for word in words:
            if word in ("Fl", "Cm", "Ar", "Ev", "Pa"):
                kind = word
            elif word == "Ns":
                kind = None if kind != "Fl" else kind
            elif word != "=" and kind == "Fl":
                out.add("-" + word)
            elif word != "=" and kind == "Cm":
                out.add("-o " + word)
    return out


body = open(PAGE, encoding="utf-8").read()
table = data("help", "--json")["verbs"]
manual = subsections(body)
equal(sorted(manual), sorted(v["name"] for v in table), "verbs of the man page and of the table")
for verb in table:
    want = set()
    for o in verb["options"]:
        want.add("--" + o["name"])
        if o["letter"]:
            want.add("-" + o["letter"])
        want.update("-o " + word["name"] for word in o.get("list", []))
    got = items(manual.get(verb["name"], ""))
    equal(sorted(got), sorted(want), f"options of {verb['name']} in the man page and in the table")
    check(re.search(rf"^\.Cm {verb['name']}$", body, re.M), f"the synopsis does not show {verb['name']}")
for section in SECTIONS:
    check(re.search(rf"^\.Sh {section.replace(chr(0), ' ')}$", body, re.M), f"no section {section}")
if shutil.which("mandoc"):
    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "style", PAGE], capture_output=True, text=True)
    # Whether other packages' pages are installed is not this page's business.
    # EXAMPLES come first on purpose.
    lines = [x for x in lint.stdout.splitlines() if not re.search("referenced manual not found|out of conventional order", x)]
    equal(lines, [], "mandoc -T lint")
elif shutil.which("man"):
    lint = subprocess.run(["man", "--warnings", "-l", PAGE], capture_output=True, text=True)
    equal(lint.stderr, "", "man --warnings")
finish()
