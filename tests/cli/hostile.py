#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damaged and malicious checkpoints: refused whole or key by key, in one line, with nothing written."""
import hashlib
import json
import resource

from cli import BAD, GOLDEN, NO, OK, check, equal, fails, finish, run

folder = GOLDEN / "hostile"
told = 0
for case in json.loads((folder / "manifest.json").read_text())["cases"]:
    name, source = case["case"], folder / case["path"]
    listed = run("ls", "--json", source)
    refused = listed.returncode != OK
    if case["expect"] == "refuse" or refused:
        check(case["expect"] in ("refuse", "either"), f"{name}: refused: {listed.stderr.decode()}")
        for args in (("ls", source), ("tree", source), ("index", source), ("cat", source, "layer.weight")):
            got = fails(BAD, "", *args)
            equal(got.stdout, b"", f"{name}: {args[0]} wrote something")
        continue
    for key in case["bad"]:
        got = fails(BAD, "", "cat", source, key)
        equal(got.stdout, b"", f"{name}: cat {key} wrote something")
        shown = json.loads(run("show", "--json", source, key).stdout)
        check(shown["error"], f"{name}: show {key} has no error")
        check(len(got.stderr.splitlines()[0]) > len(f"dcpfs: {name}: {key}: "), f"{name}: {key}: no reason")
    for key, digest in case["good"].items():
        got = run("cat", source, key)
        if case["expect"] == "either" and got.returncode == BAD:
            continue
        equal((got.returncode, hashlib.sha256(got.stdout).hexdigest()), (OK, digest), f"{name}: cat {key}")
    broken = sum(v.get("broken", 0) for v in json.loads(run("ls", "--versions", "--json", source).stdout))
    if broken:
        told += 1
        check(f"{broken} broken".encode() in run("ls", "--versions", source).stdout, f"{name}: ls calls it complete")
        got = run("doctor", source)
        equal(got.returncode, NO, f"{name}: doctor's exit code")
        check(f"{broken} of its ".encode() in got.stdout, f"{name}: doctor: {got.stdout}")
check(told, "no case has keys whose metadata tells that they are broken")
check(not list(folder.rglob("PWNED")), "something found in a checkpoint was executed")
limit = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
check(limit < 256 * 1024 * 4, f"a case took {limit} KiB")  # sanitizers take three times as much
finish()
