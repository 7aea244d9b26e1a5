#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man page documents every verb, option and -o word of the tables, and nothing else."""
import re
import shutil
import subprocess
import sys

from cli import DCPFS, SCRATCH, check, data, equal, finish

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


def complaints(page):
    """What a formatter has against the page; None: there is none here."""
    if shutil.which("mandoc"):
        lint = subprocess.run(["mandoc", "-T", "lint", "-W", "style", page], capture_output=True, text=True)
        # Whether other packages' pages are installed is not this page's business.
        # EXAMPLES come first on purpose.
        return [x for x in lint.stdout.splitlines() if not re.search("referenced manual not found|out of conventional order|text line longer|mandoc.db", x)]
    if shutil.which("man"):
        return subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True).stderr.splitlines()
    return None


equal(complaints(PAGE) or [], [], "what formatters say of the page")
# The page of each verb, cut out of this one, has all that this one says of the verb, and names every other page by its section.
for verb in table:
    name = verb["name"]
    cut = subprocess.run([sys.executable, "tools/man.py", PAGE, DCPFS, name], capture_output=True, text=True, check=True).stdout
    page = SCRATCH / f"dcpfs-{name}.1"
    page.write_text(cut, encoding="utf-8")
    equal(sorted(items(cut)), sorted(items(manual[name])), f"options of dcpfs-{name}(1) and of dcpfs(1)")
    check(f".Nm dcpfs-{name}" in cut and f".Nd {verb['what']}\n" in cut, f"dcpfs-{name}(1): name")
    check(re.search(rf"^\.Cm {name}$", cut, re.M), f"dcpfs-{name}(1): synopsis")
    check(not re.search(r"^\.(Sx|Nm$|Nm [^a-z])", cut, re.M), f"dcpfs-{name}(1): names a section of another page, or itself instead of dcpfs")
    equal(complaints(page) or [], [], f"what formatters say of dcpfs-{name}(1)")
    for other in {"load": ["dcpload"], "save": ["dcpsave"]}.get(name, []):
        check(f".Nm {other}\n" in cut.split(".Sh SYNOPSIS")[0], f"{other}(1) is found by its name")
finish()
