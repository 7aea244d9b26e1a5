#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completion scripts parse in their shells, and bash's gives the right words and runs none of them."""
import os
import shutil
import subprocess

from cli import DCPFS, OK, SCRATCH, check, data, equal, finish, run

FAKE = r"""#!/bin/sh
# Stands in for dcpfs: names as a hostile checkpoint may have them.
printf '%s\n' 'model.norm' 'model.$(touch PWNED)' 'model.`touch PWNED`' 'model.a b' '*' 'other'
"""


def complete(script, line, path):
    """What bash would offer at the end of @line."""
    driver = (f"source {script}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
              "compopt() { :; }; _dcpfs; printf '%s\\n' \"${COMPREPLY[@]}\"")
    got = subprocess.run(["bash", "--norc", "-c", driver], capture_output=True, text=True, cwd=SCRATCH,
                         env=dict(os.environ, PATH=path, LC_ALL="C.UTF-8"))
    equal(got.stderr, "", f"bash on {line!r}")
    return sorted(x for x in got.stdout.split("\n") if x)


for shell in ("bash", "zsh", "fish"):
    got = run("help", "--completion", shell)
    equal(got.returncode, OK, f"help --completion {shell}")
    script = SCRATCH / f"dcpfs.{shell}"
    script.write_bytes(got.stdout)
    if shutil.which(shell):
        parsed = subprocess.run([shell, "-n", script], capture_output=True, text=True)
        equal((parsed.returncode, parsed.stderr), (0, ""), f"{shell} -n")
    for verb in data("help", "--json")["verbs"]:
        for option in verb["options"]:
            check(option["name"] in got.stdout.decode(), f"{shell}: no --{option['name']}")

fake = SCRATCH / "bin"
fake.mkdir()
(fake / "dcpfs").write_text(FAKE)
(fake / "dcpfs").chmod(0o755)
(SCRATCH / "run1").mkdir()
path = f"{fake}:{os.environ['PATH']}"
bash = SCRATCH / "dcpfs.bash"
if shutil.which("bash"):
    verbs = complete(bash, "dcpfs ''", path)
    check({"mount", "ls", "cat", "run1"} <= set(verbs), f"verbs and directories: {verbs}")
    equal(complete(bash, "dcpfs um", path), ["umount"], "one verb")
    equal(complete(bash, "dcpfs cat --a", path), ["--as"], "one option")
    equal(complete(bash, "dcpfs cat --as ''", path), ["npy", "raw", "safetensors"], "values of an option")
    check("allow_other" in complete(bash, "dcpfs mount -o ''", path), "words of -o")
    equal(complete(bash, "dcpfs ls ru", path), ["run1"], "a source")
    equal(complete(bash, "dcpfs cat run1 model.n", path), ["model.norm"], "a key")
    equal(complete(bash, "dcpfs cat --version 5 run1 oth", path), ["other"], "a key behind options")
    names = complete(bash, "dcpfs cat run1 model.", path)
    equal(len(names), 4, f"keys are offered as they are, quoted: {names}")
    check("model.\\$\\(touch\\ PWNED\\)" in names, f"a key that is a command is quoted: {names}")
    check(not (SCRATCH / "PWNED").exists(), "completion ran a key")
finish()
