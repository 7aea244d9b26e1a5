#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""By hand: what picklescan and fickling flag, dcpfs scan flags. Prints how many of random pickles each of them flags.

usage: scan_peers.py DCPFS [N], by a Python that has picklescan and fickling. Nothing is unpickled.
"""
import io
import json
import os
import pathlib
import random
import sys

from fickling.analysis import Severity, check_safety
from fickling.fickle import Pickled
from picklescan.scanner import SafetyLevel, _unsafe_globals, scan_bytes

from cli import GOLDEN, SCRATCH, check, finish, run, write

N = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
SEED = int(os.environ.get("DCPFS_TEST_SEED", "20261129"))
RANDOM = random.Random(SEED)
KNOWN = sorted((module, "anything" if name == "*" else name) for module, names in _unsafe_globals.items() for name in ([names] if isinstance(names, str) else names))
OWN = [("collections", "OrderedDict"), ("torch._utils", "_rebuild_tensor_v2"), ("torch", "FloatStorage"), ("numpy", "dtype")]


def name(module, attribute):
    """The name in one of the ways that a pickle can import it."""
    way = RANDOM.randrange(3)
    if way == 0:
        return f"c{module}\n{attribute}\n".encode()
    if way == 1:
        return b"\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(attribute)]) + attribute.encode() + b"\x93"
    return b"\x8c" + bytes([len(module)]) + module.encode() + b"\x94\x8c" + bytes([len(attribute)]) + attribute.encode() + b"\x94\x93\x94"


def one(names):
    """A list of values, and of calls of @names."""
    parts = [b"\x80\x04]("]
    for module, attribute in names:
        parts.append(RANDOM.choice([b"K\x01", b"X\x01\0\0\0x", b"N", b"\x88", b"G@\x04\0\0\0\0\0\0"]))
        parts.append(name(module, attribute) + RANDOM.choice([b"", b")R", b"(K\x01tR"]))
    return b"".join(parts) + b"e."


def flags_of_fickling(raw):
    try:
        return check_safety(Pickled.load(io.BytesIO(raw))).severity > Severity.LIKELY_SAFE
    except Exception:  # what it cannot read is no verdict
        return None


def flags_of_picklescan(raw, file):
    got = scan_bytes(io.BytesIO(raw), file)
    return None if got.scan_err and not got.globals else any(g.safety == SafetyLevel.Dangerous for g in got.globals)


def flags_of_dcpfs(top):
    rows = json.loads(run("scan", "--json", "--all", top).stdout)
    return {f: {r["judged"] for r in rows if r["file"] == f} for f in {r["file"] for r in rows}}


print(f"seed {SEED}, {N} random pickles, {len(KNOWN)} names that picklescan knows")
top, made = SCRATCH / "random", {}
write(top / "model.safetensors", {"w": ("F32", [1], bytes(4))})
for i in range(N):
    pool = KNOWN if i < len(KNOWN) or RANDOM.random() < 0.4 else OWN
    names = [KNOWN[i]] if i < len(KNOWN) else [RANDOM.choice(pool) for _ in range(RANDOM.randrange(1, 4))]
    made[f"{i}.pkl"] = (one(names), names)
    (top / f"{i}.pkl").write_bytes(made[f"{i}.pkl"][0])
ours, count = flags_of_dcpfs(top), {"dcpfs": 0, "picklescan": 0, "fickling": 0, "none of fickling": 0}
for file, (raw, names) in made.items():
    judged = ours.get(file, set())
    flagged = bool(judged - {"own"})
    theirs = {"picklescan": flags_of_picklescan(raw, file), "fickling": flags_of_fickling(raw)}
    count["dcpfs"] += flagged
    count["none of fickling"] += theirs["fickling"] is None
    for peer, flag in theirs.items():
        count[peer] += bool(flag)
    check(flagged or not theirs["picklescan"], f"picklescan flags {names}, dcpfs does not")
    # fickling flags every import that is not of its own list, torch's too.
    check(flagged or not theirs["fickling"] or all(n in OWN for n in names), f"fickling flags {names}, dcpfs does not")
    check(not flagged or any(n not in OWN for n in names), f"dcpfs flags {names}")
print(count)
UNKNOWN = [".".join(KNOWN[i]) for i in range(min(N, len(KNOWN))) if "dangerous" not in ours.get(f"{i}.pkl", set())]
print(f"{len(UNKNOWN)} of the names that picklescan knows are unknown to dcpfs, not dangerous:", *UNKNOWN)
for case in sorted(p for p in (GOLDEN / "hostile").iterdir() if p.is_dir()):
    judged = set().union(*flags_of_dcpfs(case).values(), set())
    for file in (p for p in pathlib.Path(case).rglob("*") if p.is_file() and p.name != "manifest.json"):
        if flags_of_picklescan(file.read_bytes(), file.name):
            check(judged - {"own"}, f"picklescan flags {file}, dcpfs does not")
            print(f"{case.name}: picklescan flags {file.name}; dcpfs: {sorted(judged)}")
finish()
