#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual page of one verb, cut out of dcpfs.1: what its part of the SYNOPSIS and its subsection say.

usage: man.py dcpfs.1 PROGRAM VERB    PROGRAM: dcpfs, which says in a line what the verb does
"""
import json
import re
import subprocess
import sys

OTHERS = {"load": "dcpload", "save": "dcpsave"}


def subsections(body):
    """{verb: text} of each `.Ss dcpfs VERB`."""
    parts = re.split(r"^\.S[sh] (.*)\n", body, flags=re.M)
    return {name.removeprefix("dcpfs "): text for name, text in zip(parts[1::2], parts[2::2]) if name.startswith("dcpfs ")}


def synopsis(body, verb):
    """The verb's lines of the SYNOPSIS, also those under its other name."""
    text = re.search(r"^\.Sh SYNOPSIS\n(.*?)^\.Sh ", body, re.M | re.S).group(1)
    forms = re.split(r"^(?=\.Nm)", text, flags=re.M)
    own = [f for f in forms if f".Cm {verb}\n" in f or f.startswith(f".Nm {OTHERS.get(verb)}\n")]
    return "".join(own + (forms[1:2] if verb == "mount" else []))


def page(body, verb, what):
    """The whole page. @what: one line that says what the verb does."""
    other = f" ,\n.Nm {OTHERS[verb]}" if verb in OTHERS else ""
    date = re.search(r"^\.Dd .*$", body, re.M).group()
    text = f"{synopsis(body, verb)}.Sh DESCRIPTION\n{subsections(body)[verb]}"
    # A .Nm without a name stands for the page's first one; sections are those of the whole page.
    text = re.sub(r"^\.Nm(?=$| Cm | [,.;:)]+$)", ".Nm dcpfs", text, flags=re.M)
    text = re.sub(r"^(\.Pq .*)Sx (.*?)( [,.;:)]+)?$", r"\1Do \2 Dc in Xr dcpfs 1\3", text, flags=re.M)
    text = re.sub(r"^\.Sx (.*?)( [,.;:)]+)?$", r".Dq \1\nin\n.Xr dcpfs 1\2", text, flags=re.M)
    return (f".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made from dcpfs.1 by man.py.\n{date}\n.Dt DCPFS-{verb.upper()} 1\n.Os\n"
            f".Sh NAME\n.Nm dcpfs-{verb}{other}\n.Nd {what}\n.Sh SYNOPSIS\n{text}"
            ".Sh SEE ALSO\n.Xr dcpfs 1 ,\nwhich has the environment, files, exit status and formats\n")


def main(source, program, verb):
    body = open(source, encoding="utf-8").read()
    told = subprocess.run([program, "help", "--json"], capture_output=True, text=True, check=True).stdout
    what = {v["name"]: v["what"] for v in json.loads(told)["verbs"]}[verb]
    sys.stdout.write(page(body, verb, what))


if __name__ == "__main__":
    main(*sys.argv[1:4])
