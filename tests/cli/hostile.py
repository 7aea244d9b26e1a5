#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damaged and malicious checkpoints: refused whole or key by key, in one line, with nothing written."""
import hashlib
import json
import resource
import struct

from cli import BAD, GOLDEN, NO, OK, SCRATCH, check, equal, fails, finish, run

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


def misleading_characters_are_spelled():
    """Characters that are not seen, or turn what is seen around, are spelled wherever names are shown; JSON has them as \\u."""
    hidden = ["\u009b31m", "\u202e", "\u2066", "\u200b", "\u200f", "\ufeff", "\u00ad", "\u061c", "\u2028", "\U000e0041", "\x1b]0;", "\x7f"]
    keys = [f"layers.0.a{c}b" for c in hidden]
    source, out = SCRATCH / "step\u202e-7", SCRATCH / "out"
    header = {k: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, k in enumerate(keys)}
    header["__metadata__"] = {"\u202eabc": "\u009bdef"}
    text = json.dumps(header, ensure_ascii=False).encode()
    source.mkdir()
    (source / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8 * len(keys)))
    (source / "notes\u202etxt.json").write_text('{"a": "\u202e\u009b"}')
    said = [run(*args) for args in (
        ("ls", source), ("ls", "-l", source), ("ls", "-1", source), ("ls", "--tsv", source), ("ls", "--versions", source), ("tree", source),
        ("tree", "--tsv", source), ("show", source, "*"), ("show", "--tsv", source, "*"), ("show", "--digest", source), ("cat", source, "a\u202e"),
        ("cat", source, "\u009b"), ("plan", "--layout", "fsdp2", source), ("plan", "--layout", "fsdp2", "--html", source),
        ("plan", "--layout", "fsdp2", "--svg", source), ("plan", "--layout", "\u202e", source), ("load", source), ("index", source),
        ("index", "--tsv", source), ("export", "--as", "deepspeed-universal", "--partial", source, out), ("doctor", source), ("rules", "check", "hf", source),
        ("export", "--as", "npy", source, SCRATCH / "arrays"), ("__complete", "cat", source, ""))]
    for got in said:
        for c in hidden:
            check(c[0].encode() not in got.stdout + got.stderr, f"{got.args[1:]}: {c[0]!r} is shown: {got.stdout + got.stderr}")
    for args in (("ls", source), ("tree", source), ("show", source, "*"), ("plan", "--layout", "fsdp2", source), ("load", source)):
        got = run(*args[:1], "--json", *args[1:])
        check(got.stdout.isascii(), f"{args}: JSON: {got.stdout}")
    equal([t["key"] for t in json.loads(run("ls", "--json", source).stdout)["tensors"]], keys, "keys in JSON")
    names = [p.name for p in (SCRATCH / "arrays").rglob("*.npy")]
    check(len(names) == len(keys) and all(n.isascii() for n in names), f"files: {names}")
    equal([t["key"] for t in json.loads(run("ls", "--json", SCRATCH / "arrays").stdout)["tensors"]], sorted(keys), "keys of these files")
    for p in (SCRATCH / "cache").iterdir():
        check(p.name.isascii(), f"cache: {p.name!r}")


misleading_characters_are_spelled()
check(told, "no case has keys whose metadata tells that they are broken")
check(not list(folder.rglob("PWNED")), "something found in a checkpoint was executed")
limit = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
check(limit < 256 * 1024 * 4, f"a case took {limit} KiB")  # sanitizers take three times as much
finish()
