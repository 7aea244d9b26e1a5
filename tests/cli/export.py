#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every complete version of the golden checkpoints, exported to every format, reads back as what it was; and an
export of that export has the same bytes.

usage: export.py DCPFS [FOLDER...]
"""
import filecmp
import json
import os
import pathlib
import shutil
import sys

from cli import GOLDEN, OK, SCRATCH, check, data, equal, finish, run, sample

FORMATS = {"safetensors": "", "torch-dcp": "", "torch-save": ".pt"}


def contents(source, *version):
    """The digests of all tensors that can be read, and all objects that have values."""
    digests = run("show", "--digest", "--json", source, *version, "*").stdout
    told = run("show", "--json", source, *version, "*").stdout
    objects = {o["key"]: o["value"] for o in json.loads(told or "[]") if "value" in o}
    return json.loads(digests or "{}"), objects


def is_opened(v):
    """Is it a dict, or has it one or a tensor in it? As a part of one nested value it is opened when that is read."""
    if isinstance(v, dict):
        first = next(iter(v), "")
        return first in ("$tensor", "$dict") or not first.startswith("$")
    return isinstance(v, list) and any(map(is_opened, v))


def names_in(top):
    """Without the list of what was written, which has times."""
    return sorted(p.relative_to(top) for p in top.rglob("*") if p.name != ".dcpfs-written") if top.is_dir() else [None]


def same_files(a, b):
    names, others = names_in(a), names_in(b)
    return names == others and all(filecmp.cmp(a / n if n else a, b / n if n else b, shallow=False)
                                   for n in names if not n or (a / n).is_file())


def one(source, version, form, want, objects):
    out, again = SCRATCH / f"out{FORMATS[form]}", SCRATCH / f"again{FORMATS[form]}"
    said = f"{source} {' '.join(version)} as {form}"
    report = data("export", "--as", form, "--json", "--verify", source, *version, out)
    if not report:
        return
    left = {(x["kind"], x["key"]): x["why"] for x in report["left_out"]}
    for key in want:
        check(("tensor", key) not in left or left["tensor", key], f"{said}: {key} left out without a reason")
    want = {k: v for k, v in want.items() if ("tensor", k) not in left}
    objects = {k: v for k, v in objects.items() if ("object", k) not in left}
    if not want and not objects:
        return
    got, have = contents(out)
    names = {k for k in want if k in got}
    check(names == set(want), f"{said}: not there: {sorted(set(want) - names)[:3]}")
    for key in names:
        equal(got[key], want[key], f"{said}: {key}")
    check(set(got) <= set(want), f"{said}: more than there was: {sorted(set(got) - set(want))[:3]}")
    opened = {k for k, v in objects.items() if form == "torch-save" and is_opened(v)}
    objects = {k: v for k, v in objects.items() if k not in opened}
    check(opened or sorted(have) == sorted(objects), f"{said}: objects: {set(have) ^ set(objects)}")
    for key, v in objects.items():
        equal(have.get(key), v, f"{said}: {key}")
    # A tuple that was opened is a list from then on.
    for _ in range(2 if opened else 1):
        if again.exists():
            out.unlink()
            again.rename(out)
        more = data("export", "--as", form, "--json", out, again)
    # Files that lie beside the weights and belong to no model are files of a safetensors directory no more.
    check(more and (more["extras"] != report["extras"] or same_files(out, again)), f"{said}: exported once more it has other bytes")


def exports_give_back_a_folder(name):
    source = GOLDEN / name / "ckpt"
    complete = [v for v in data("ls", "--versions", "--json", source) if v["complete"] and not v.get("why")]
    for i, v in enumerate(complete):
        want, objects = contents(source, v["name"])
        for form in sample(FORMATS, i + len(name)):
            one(source, (v["name"],), form, want, objects)
            for p in SCRATCH.glob("*"):
                if p.name != "cache":
                    shutil.rmtree(p) if p.is_dir() else p.unlink()


def ranks_export_their_files(source, layout, n):
    """With a layout a file a rank, of what load gives that rank."""
    files, states, dumps = (SCRATCH / x for x in ("files", "states", "dumps"))
    data("export", "--as", "safetensors", "--layout", layout, "--json", source, files)
    left = data("export", "--as", "torch-save", "--layout", layout, "--json", source, states)["left_out"]
    have, objects = contents(states)
    for r in range(n):
        check(run("load", "--layout", layout, "--rank", r, "--dump", dumps, source).returncode == OK, f"load rank {r}")
        want, got = (contents((d / f"rank-{r:05}-of-{n:05}.safetensors").rename(d / f"{r}.safetensors"))[0] for d in (dumps, files))
        equal(got, want, f"{source} {layout} rank {r}: safetensors")
        equal({k.removeprefix(f"rank{r}."): v for k, v in have.items() if k.startswith(f"rank{r}.")}, want,
              f"{source} {layout} rank {r}: torch-save")
    n_objects = len(contents(source)[1]) - sum(x["kind"] == "object" for x in left)
    equal(len(objects), n * n_objects, f"{source} {layout}: objects")
    said = run("export", "--as", "torch-save", "--layout", layout, source, SCRATCH / "x.pt").stderr
    check("x.pt is the name of a file, and 3 ranks have a directory" in str(said), f"a file for {n} ranks: {said}")


def universal_has_every_state(source, *more):
    """DeepSpeed's universal checkpoint has every state of every parameter."""
    out = SCRATCH / "universal"
    report = data("export", "--as", "deepspeed-universal", "--json", *more, source, out)
    left = {x["key"] for x in report["left_out"]}
    want, got = contents(source)[0], contents(out)[0]
    check(not data("ls", "--versions", "--json", out)[0].get("why"), f"{source}: something is broken")
    for key in want.keys() - left:
        name = key.removeprefix("model.") if key.startswith("model.") else key
        equal(got.get(key) or got.get(f"fp32.{name}") or got.get(f"module.{name}"), want[key], f"{source} as universal: {key}")


for name in sys.argv[2:] or sorted(p.parent.name for p in GOLDEN.glob("*/ckpt")):
    exports_give_back_a_folder(name)
    if name == "deepspeed-z3":
        universal_has_every_state(GOLDEN / name / "ckpt")
    if name == "dcp-fsdp2":
        ranks_export_their_files(GOLDEN / name / "ckpt", "fsdp3", 3)
check(not list(SCRATCH.glob(".*")), "something hidden was left behind")
finish()
