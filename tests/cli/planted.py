#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted faults that diff, verify and stats must find: a bit and NaNs at the edges in each family, swapped tensors, pieces off by one, one element of a billion; names by rules."""
import json
import os
import shutil
import struct

import numpy

from cli import ENV, GOLDEN, NO, OK, SAMPLE, SCRATCH, check, data, equal, fails, finish, run, sample, write

RNG = numpy.random.default_rng(int(os.environ.get("DCPFS_TEST_SEED", "20261129")))


def swapped_tensors_are_found():
    """Tensors under each other's names, and a piece that was written one element further: by diff, verify --check and stats of both."""
    x = RNG.standard_normal((2, 500)).astype("<f4")
    write(SCRATCH / "swap-a" / "model.safetensors", {"a": ("F32", [500], x[0].tobytes()), "b": ("F32", [500], x[1].tobytes())})
    write(SCRATCH / "swap-b" / "model.safetensors", {"a": ("F32", [500], x[1].tobytes()), "b": ("F32", [500], x[0].tobytes())})
    got = run("diff", "--json", SCRATCH / "swap-a", SCRATCH / "swap-b")
    equal((got.returncode, {r["name"]: (r["state"], r["changed"]) for r in json.loads(got.stdout)}),
          (NO, {k: ("differs", 500) for k in "ab"}), "swapped tensors")
    top, record, key = GOLDEN / "dcp-fsdp2" / "ckpt", SCRATCH / "piece.digests", "model.embed_tokens.weight"
    equal(run("verify", top, 20, "--record", record).returncode, OK, "--record")
    for piece in data("show", "--json", top, 20, key)["pieces"]:
        for way in 1, -1:
            bad = SCRATCH / "piece"
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(top, bad)
            path, off, n = bad / "step-20" / piece["file"], piece["offset"], piece["nbytes"]
            raw = bytearray(path.read_bytes())
            part = raw[off:off + n]
            raw[off:off + n] = part[-2 * way:] + part[:-2 * way]  # of BF16
            path.write_bytes(raw)
            got = run("diff", "--json", top, 20, bad, 20)
            rows = {r["name"]: r for r in json.loads(got.stdout) if r["state"] != "equal"}
            equal((got.returncode, list(rows)), (NO, [key]), f"{piece['file']} {way}: diff")
            lo = piece["region"][0][0]
            x, y = numpy.frombuffer(part, "<u2"), numpy.roll(numpy.frombuffer(part, "<u2"), way)
            first = int(numpy.argmax(x != y))
            equal((rows[key]["changed"], rows[key]["first"]), (int((x != y).sum()), f"[{lo + first // 22}, {first % 22}]"), "how many, and the first")
            got = run("verify", "--json", bad, 20, "--check", record)
            said = json.loads(got.stdout)
            equal((said["different"], {p["key"] for p in said["problems"]}), (1, {key}), f"{piece['file']} {way}: verify")


# Of each family: a golden checkpoint, and a version of it.
FAMILIES = {"safetensors": ("hf-moe", "mixtral"), "torch DCP": ("dcp-fsdp2", "step-20"), "torch.save": ("torch-save", "dtypes.pt"),
            "Paddle": ("paddle-dist", "0"), "ZeRO 2": ("deepspeed-z2", "global_step10"), "ZeRO 3": ("deepspeed-z3", "global_step10")}
NAN = {"F64": struct.pack("<d", float("nan")), "F32": struct.pack("<f", float("nan")), "F16": b"\0\x7e", "BF16": b"\xc0\x7f"}


def file_of(top, version, piece):
    return next(p for p in (top / version / piece["file"], top / piece["file"]) if p.is_file())


def plant(path, faults):
    """Write other bytes, each at its offset; what was there."""
    with open(path, "r+b") as f:
        before = []
        for off, raw in faults:
            f.seek(off)
            before.append((off, f.read(len(raw))))
            f.seek(off)
            f.write(raw)
    return before[::-1]


def changed_edges_are_found_everywhere():
    """Of tensors at the beginning and the end: one bit at the edges of their bytes, by verify --check and diff; NaNs there, by stats and diff."""
    for family, (golden, version) in sample(FAMILIES.items()):
        whole, bad, record = GOLDEN / golden / "ckpt", SCRATCH / f"family-{golden}", SCRATCH / f"{golden}.digests"
        shutil.copytree(whole, bad, symlinks=True)
        equal(run("verify", whole, version, "--record", record).returncode, OK, f"{family}: --record")
        tensors = [t for t in data("show", "--json", whole, version, "*") if t.get("pieces") and not t["error"] and not t["alias_of"] and t["dtype"] in NAN
                   and all(set(p) == {"file", "offset", "nbytes", "region"} for p in t["pieces"]) and sum(p["nbytes"] for p in t["pieces"]) == t["nbytes"]]
        check(len(tensors) > 1, f"{family}: tensors that are stored plainly")
        for t in (tensors[0], tensors[-1]):
            key, size = t["key"], len(NAN[t["dtype"]])
            nans = {}
            for piece, at in (t["pieces"][0], 0), (t["pieces"][-1], t["pieces"][-1]["nbytes"] - 1):
                path, off, what = file_of(bad, version, piece), piece["offset"] + at, f"{family}: {key} byte {at}"
                was = path.read_bytes()[off]
                undo = plant(path, [(off, bytes([was ^ 1]))])
                got = run("verify", "--json", bad, version, "--check", record)
                check(got.returncode != OK and key in {p["key"] for p in json.loads(got.stdout)["problems"]}, f"{what}: verify: {got.stdout}")
                got = run("diff", "--json", whole, version, bad, version)
                rows = {r["name"]: r for r in json.loads(got.stdout) if r["state"] != "equal"}
                equal((got.returncode, rows.get(key, {}).get("changed")), (NO, 1), f"{what}: diff")
                plant(path, undo)
                nans.setdefault(path, []).append((off - at % size, NAN[t["dtype"]]))
            planted = [(path, plant(path, faults)) for path, faults in nans.items()]
            got = run("stats", "--json", "--nan", bad, version)
            rows = {r["name"]: r for r in json.loads(got.stdout)}
            n = t["nbytes"] // size
            had = next(r["nan"] for r in data("stats", "--json", whole, version) if r["name"] == key)
            equal((got.returncode, rows.get(key, {}).get("nan")), (NO, had + min(n, 2)), f"{family}: {key}: NaNs at its edges: {got.stderr}")
            equal(rows[key]["first_nan"], str([lo for lo, _ in t["pieces"][0]["region"]]), f"{family}: {key}: the first")
            rows = {r["name"]: r for r in json.loads(run("diff", "--json", whole, version, bad, version).stdout)}
            equal((rows[key]["changed"], rows[key]["nonfinite"]), (min(n, 2),) * 2, f"{family}: {key}: diff")
            for path, undo in planted:
                plant(path, undo)
        got = run("verify", bad, version, "--check", record)
        equal(got.returncode, OK, f"{family}: all is as it was: {got.stderr}")


def one_element_of_a_billion_is_found():
    """In a file of holes, so that it costs no disk. Of fewer where each costs several times as much."""
    n = 10**9 // SAMPLE**2
    at = n - 12_345_679
    for name in "ab":
        path = SCRATCH / f"billion-{name}" / "model.safetensors"
        text = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
        path.parent.mkdir()
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + n)
    with open(path, "r+b") as f:
        f.seek(-(n - at), os.SEEK_END)
        f.write(b"\1")
    got = run("diff", "--json", SCRATCH / "billion-a", SCRATCH / "billion-b")
    row = json.loads(got.stdout)[0]
    equal((got.returncode, row["state"], row["changed"], row["first"], row["max_abs"]), (NO, "differs", 1, f"[{at}]", 1), "diff")
    said = data("stats", "--json", SCRATCH / "billion-b")[0]
    equal((said["zeros"], said["max"], said["min"]), (n - 1, 1, 0), "stats")
    for name in "ab":
        shutil.rmtree(SCRATCH / f"billion-{name}")


def names_by_rules_are_compared():
    """diff --hf-rules: both sides under the names that rules make, a transposed one read as it is shown."""
    x = RNG.standard_normal((3, 4)).astype("<f4")
    rules, stays = SCRATCH / "diff.rules", SCRATCH / "stays.rules"
    rules.write_text("net.{i}.w -> layer.{i}.weight : T\nnet.{i}.b -> layer.{i}.bias\n")
    write(SCRATCH / "rules-a" / "model.safetensors", {"net.0.w": ("F32", [3, 4], x.tobytes()), "net.0.b": ("F32", [3], x[:, 0].tobytes())})
    write(SCRATCH / "rules-b" / "model.safetensors", {"net.0.w": ("F32", [3, 4], x.tobytes()), "net.0.b": ("F32", [3], (x[:, 0] + 1).tobytes())})
    got = run("diff", "--json", "--hf-rules", rules, SCRATCH / "rules-a", SCRATCH / "rules-b")
    rows = {r["name"]: (r["state"], r["changed"]) for r in json.loads(got.stdout)}
    equal((got.returncode, rows), (NO, {"layer.0.bias": ("differs", 3), "layer.0.weight": ("equal", 0)}), f"names of rules: {got.stderr}")
    stays.write_text("nothing.{i} -> nothing.{i}\n")
    fails(NO, "no key comes out", "diff", "--hf-rules", stays, SCRATCH / "rules-a", SCRATCH / "rules-b")
    fails(ENV, "no-such.rules", "diff", "--hf-rules", SCRATCH / "no-such.rules", SCRATCH / "rules-a", SCRATCH / "rules-b")


swapped_tensors_are_found()
changed_edges_are_found_everywhere()
one_element_of_a_billion_is_found()
names_by_rules_are_compared()
finish()
