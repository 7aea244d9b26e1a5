#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ls, tree, show and cat on a golden folder say what its manifest says; cat gives the same bytes.

usage: golden.py DCPFS FOLDER
"""
import hashlib
import json
import re
import sys

from cli import BAD, GOLDEN, NO, OK, check, data, equal, fails, finish, run, sample

NO_SAFETENSORS = ("C32", "C128")


def by_key(items):
    return {item["key"]: item for item in items}


def split(path):
    """The tree opens dotted components, unless a part would be empty."""
    return tuple(x for c in path for x in (c.split(".") if all(c.split(".")) else [c]))


def versions_are_listed(source, manifest):
    listed = data("ls", "--versions", "--json", source)
    equal(sorted(v["name"] for v in listed), sorted(v["name"] for v in manifest["versions"]), "versions")
    for v in manifest["versions"]:
        got = next((x for x in listed if x["name"] == v["name"]), None)
        if not check(got, f"ls does not list {v['name']}"):
            continue
        equal(got["complete"], v["complete"], f"{v['name']} is complete")
        if v["complete"]:
            equal(got["why"], None, f"{v['name']} opens")
            equal(got.get("broken"), 0, f"{v['name']} has broken keys")
        else:
            check(got["why"], f"{v['name']}: no reason why it is incomplete")
            fails(BAD, "is incomplete", "ls", source, v["name"])


def keys_are_listed(source, v, manifest):
    got = data("ls", "--json", source, v["name"])
    if got is None:
        return []
    tensors, objects = by_key(got["tensors"]), by_key(got["objects"])
    want = by_key(v["tensors"])
    check(set(want) <= set(tensors), f"{v['name']}: missing {sorted(set(want) - set(tensors))[:5]}")
    for key, t in want.items():
        if key in tensors:
            have = tensors[key]
            equal([have["dtype"], have["shape"], have["nbytes"]], [t["dtype"], t["shape"], t["nbytes"]],
                  f"{v['name']}: {key}")
    for o in v.get("objects", []):
        check(o["key"] in objects, f"{v['name']}: no object {o['key']}")
    names = run("ls", "--names", source, v["name"]).stdout.decode().splitlines()
    equal(len(names), len(tensors) + len(objects), f"{v['name']}: lines of ls --names")
    text = run("ls", source, v["name"], COLUMNS=80).stdout.decode()
    check("\033" not in text, f"{v['name']}: ls paints into a pipe")
    tree = data("tree", "--json", "--version", v["name"], source)
    equal(tree["nodes"][0]["tensors"], len(tensors), f"{v['name']}: tensors in the tree")
    leaves = {tuple(n["path"]) for n in tree["nodes"] if n["what"]}
    for t in v["tensors"]:
        check(split(t["path"]) in leaves, f"{v['name']}: no leaf {t['path']}")
    top = run("tree", "--depth", "1", "--version", v["name"], source).stdout.decode().splitlines()
    equal(len(top), 1 + len({n["path"][0] for n in tree["nodes"] if n["path"]}), f"{v['name']}: tree --depth 1")
    taken = {o["key"].split(".")[0] for o in got["objects"]}
    return [t for t in got["tensors"] if t["key"].split(".")[0] not in taken]


def streams(source, v, listed):
    """{key: bytes} of @listed, in its order: those whose keys begin alike come as one stream, since each start takes long."""
    alike, out = {}, {}
    for t in listed:
        if re.match(r"\w+\.", t["key"]):
            alike.setdefault(t["key"].split(".")[0], []).append(t)
    for head, tensors in alike.items():
        raw, at = run("cat", "--version", v["name"], source, f"{head}.*"), 0
        equal((raw.returncode, len(raw.stdout)), (OK, sum(t["nbytes"] for t in tensors)),
              f"{v['name']}: cat {head}.* {raw.stderr.decode()}")
        for t in tensors:
            out[t["key"]] = raw.stdout[at:at + t["nbytes"]]
            at += t["nbytes"]
    return out


def values_agree_with_the_manifest(source, v, listed):
    said = f"{v['name']}: cat"
    together = streams(source, v, listed)
    for t in v["tensors"]:
        if t["key"] in together:
            equal(hashlib.sha256(together[t["key"]]).hexdigest(), t["sha256"], f"{said} {t['key']} among others")
    for t in sample([t for t in v["tensors"] if t["key"] not in together] or v["tensors"][:1]):
        raw = run("cat", "--version", v["name"], source, t["key"])
        digest = hashlib.sha256(raw.stdout).hexdigest()
        equal((raw.returncode, len(raw.stdout), digest), (OK, t["nbytes"], t["sha256"]), f"{said} {t['key']} {raw.stderr.decode()}")
    for o in sample(v.get("objects", [])):
        got = run("cat", "--version", v["name"], source, o["key"])
        if not equal(got.returncode, OK, f"{v['name']}: cat {o['key']} {got.stderr.decode()}"):
            continue
        value = json.loads(got.stdout)
        # A manifest's null is None, or a value for which it has no JSON form.
        if o.get("json") is not None or o["type"] == "NoneType":
            equal(value, o["json"], f"{v['name']}: {o['key']}")


def every_form_is_shown(source, v, seen):
    """One tensor of each dtype that is not @seen in all its forms and under all its names, told in full by show."""
    first = {t["dtype"]: t for t in reversed(v["tensors"]) if t["dtype"] not in seen}
    seen.update(first)
    for t in sample(first.values()):
        told = data("show", "--json", "--version", v["name"], source, t["key"])
        equal([told[k] for k in ("key", "path", "dtype", "shape", "nbytes")],
              [t[k] for k in ("key", "path", "dtype", "shape", "nbytes")], f"show {t['key']}")
        check(told["error"] is None, f"show {t['key']}: {told['error']}")
        check(told["pieces"] or not t["nbytes"], f"show {t['key']}: no pieces")
        if not any("filter" in p for p in told["pieces"]):
            check(sum(p["nbytes"] for p in told["pieces"]) >= t["nbytes"], f"show {t['key']}: pieces too short")
        name = told["files"]["raw"].removeprefix("raw/").removesuffix(".bin")
        raw = run("cat", "--version", v["name"], source, t["key"]).stdout
        for form, ending in (("raw", ".bin"), ("npy", ".npy"), ("safetensors", ".safetensors")):
            if form == "safetensors" and t["dtype"] in NO_SAFETENSORS:
                fails(BAD, t["dtype"], "cat", "--version", v["name"], "--as", form, source, t["key"])
                continue
            got = run("cat", "--version", v["name"], "--as", form, source, name + ending)
            if equal(got.returncode, OK, f"cat --as {form} {name}{ending}: {got.stderr.decode()}"):
                if form == "npy":
                    check(got.stdout.startswith(b"\x93NUMPY"), f"{t['key']}: npy magic")
                else:
                    check(got.stdout.endswith(raw), f"{t['key']}: {form} ends in other bytes than raw")
        text = run("show", "--version", v["name"], source, name)
        check(t["dtype"].encode() in text.stdout, f"show {name} as text")


def fold(manifest):
    """A version whose ranks are files of their own: their keys get the rank in front."""
    out = {}
    for v in manifest["versions"]:
        where = re.fullmatch(r"(.*)/checkpoint_(\d+)\.pt", v["name"])
        name, rank = (where.group(1), f"rank{where.group(2)}") if where else (v["name"], None)
        into = out.setdefault(name, {"name": name, "complete": v["complete"], "tensors": [], "objects": []})
        for kind in ("tensors", "objects"):
            for item in v.get(kind, []):
                if rank:
                    item = dict(item, key=f"{rank}.{item['key']}", path=[rank, *item["path"]])
                into[kind].append(item)
    return {"versions": list(out.values())}


folder = GOLDEN / sys.argv[2]
manifest = fold(json.loads((folder / "manifest.json").read_text()))
source = folder / "ckpt"
seen = set()
versions_are_listed(source, manifest)
for version in manifest["versions"]:
    if version["complete"]:
        values_agree_with_the_manifest(source, version, keys_are_listed(source, version, manifest))
        every_form_is_shown(source, version, seen)
fails(NO, "no version", "ls", source, "no-such-version")
fails(NO, "no key", "cat", source, "no.such.key.at.all")
finish()
