#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs stats, diff and verify: every number beside numpy's in float64, and planted faults."""
import csv
import io
import json
import math
import os
import struct
import sys
from xml.etree import ElementTree

import numpy

sys.path.insert(0, "tests/mount")
from torch_files import Tensor, torch_save  # noqa: E402
from cli import BAD, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run, write  # noqa: F401

SEED = int(os.environ.get("DCPFS_TEST_SEED", "20261128"))
RNG = numpy.random.default_rng(SEED)


# ---- numbers of every dtype as float64, by the definitions of the types ----

def small(bits, exponent, mantissa, bias, kind):
    """One number of a small float: kind 'fn' has only NaN (all ones), 'ieee' has infinities, 'fnuz' NaN as negative zero."""
    sign = -1.0 if bits >> (exponent + mantissa) else 1.0
    e, m = bits >> mantissa & (1 << exponent) - 1, bits & (1 << mantissa) - 1
    if kind == "fnuz" and bits == 1 << (exponent + mantissa):
        return math.nan
    if kind == "ieee" and e == (1 << exponent) - 1:
        return math.nan if m else sign * math.inf
    if kind == "fn" and e == (1 << exponent) - 1 and m == (1 << mantissa) - 1:
        return math.nan
    return sign * (math.ldexp(m, 1 - bias - mantissa) if e == 0 else math.ldexp((1 << mantissa) + m, e - bias - mantissa))


SMALL = {"F8_E4M3": (4, 3, 7, "fn"), "F8_E5M2": (5, 2, 15, "ieee"), "F8_E4M3FNUZ": (4, 3, 8, "fnuz"), "F8_E5M2FNUZ": (5, 2, 16, "fnuz")}
PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4",
         "U16": "<u2", "U8": "u1", "BOOL": "u1", "C64": "<f4"}
LEAST = {"F64": 2.0**-1022, "F32": 2.0**-126, "BF16": 2.0**-126, "F16": 2.0**-14, "F8_E4M3": 2.0**-6, "F8_E5M2": 2.0**-14,
         "F8_E4M3FNUZ": 2.0**-7, "F8_E5M2FNUZ": 2.0**-15, "F4": 1.0, "C64": 2.0**-126}


def values(dtype, raw):
    if dtype in PLAIN:
        return numpy.frombuffer(raw, PLAIN[dtype]).astype("f8")
    if dtype == "BF16":
        return (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype("f8")
    b = numpy.frombuffer(raw, "u1")
    if dtype == "F4":
        table = numpy.array([small(i, 2, 1, 1, "none") for i in range(16)])
        return table[numpy.stack([b & 15, b >> 4], 1).reshape(-1)]
    if dtype == "F8_E8M0":
        return numpy.array([math.nan if i == 255 else math.ldexp(1, i - 127) for i in range(256)])[b]
    return numpy.array([small(i, *SMALL[dtype]) for i in range(256)])[b]


SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "U64": 8, "U32": 4, "U16": 2, "C64": 8}


def near(got, want, what, rel=1e-12):
    check(got is not None and math.isclose(got, want, rel_tol=rel, abs_tol=1e-300), f"{what}: {got} is not {want}")


def compare_stats(got, dtype, raw, what):
    x = values(dtype, raw)
    fin = x[numpy.isfinite(x)]
    equal(got["n"], x.size, f"{what}: numbers")
    equal(got["nan"], int(numpy.isnan(x).sum()), f"{what}: NaN")
    equal(got["inf"], int(numpy.isinf(x).sum()), f"{what}: Inf")
    equal(got["zeros"], int((x == 0).sum()), f"{what}: zeros")
    if dtype in LEAST:
        equal(got["denormals"], int(((x != 0) & (abs(x) < LEAST[dtype])).sum()), f"{what}: denormals")
    for name, hit in ("first_nan", numpy.isnan(x)), ("first_inf", numpy.isinf(x)):
        at = int(numpy.argmax(hit)) if hit.any() else None
        at = at // 2 if at is not None and dtype in ("C64", "F4") else at
        equal(got[name], None if at is None else f"[{at}]", f"{what}: {name}")
    if fin.size:
        scale = float(abs(fin).max()) or 1.0
        y = fin / scale  # no overflow of squares
        near(got["min"], float(fin.min()), f"{what}: min")
        near(got["max"], float(fin.max()), f"{what}: max")
        check(abs(got["mean"] - float(y.mean()) * scale) <= 1e-12 * scale, f"{what}: mean {got['mean']} {y.mean() * scale}")
        if scale < 1e150:
            near(got["std"], float(y.std()) * scale, f"{what}: std", 1e-9)
            near(got["norm"], float(numpy.sqrt((y * y).sum())) * scale, f"{what}: norm", 1e-12)


def every_dtype_has_numpys_numbers():
    tensors, n = {}, 5003  # no multiple of a block
    for dtype in list(PLAIN) + ["BF16", "F8_E8M0", "F4", *SMALL]:
        size, per = SIZE.get(dtype, 1), 2 if dtype == "F4" else 1
        tensors[f"{dtype}.random"] = (dtype, [n * per], RNG.bytes(n * size))  # NaN, infinities, denormals and all
        tensors[f"{dtype}.zero"] = (dtype, [7 * per], bytes(7 * size))
        tensors[f"{dtype}.empty"] = (dtype, [0], b"")
        if dtype == "BOOL":
            tensors["BOOL.random"] = (dtype, [n], RNG.integers(0, 2, n, "u1").tobytes())
    for dtype, form in ("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"):
        x = RNG.standard_normal(70001)
        tensors[f"{dtype}.normal"] = (dtype, [70001], x.astype(form).tobytes())
        tensors[f"{dtype}.far"] = (dtype, [70001], (1000 + x).astype(form).tobytes())  # a mean far from zero
        tensors[f"{dtype}.tiny"] = (dtype, [70001], (x * 1e-5).astype(form).tobytes())
    x = RNG.standard_normal(70001).astype("<f4")
    tensors["BF16.normal"] = ("BF16", [70001], (x.view("<u4") >> 16).astype("<u2").tobytes())
    write(SCRATCH / "all" / "model.safetensors", tensors)
    got = {row["name"]: row for row in data("stats", "--json", SCRATCH / "all")}
    equal(set(got), set(tensors), "tensors")
    for key, (dtype, _, raw) in tensors.items():
        compare_stats(got[key], dtype, raw, key)
    equal(got["I64.random"]["min"], int(numpy.frombuffer(tensors["I64.random"][2], "<i8").min()), "integers of 64 bits are exact")
    equal(got["U64.random"]["max"], int(numpy.frombuffer(tensors["U64.random"][2], "<u8").max()), "without a sign, too")
    equal({k: r["note"] for k, r in got.items() if k.endswith(".zero") and k != "F8_E8M0.zero"},
          {k: "zero" for k in got if k.endswith(".zero") and k != "F8_E8M0.zero"}, "zeros are noted")
    kept = data("stats", "--json", SCRATCH / "all")
    equal(kept, list(got.values()), "the second call")
    bins = {row["name"]: row for row in data("stats", "--json", "--histogram", "--keys", "F32.normal", SCRATCH / "all")}["F32.normal"]
    x = values("F32", tensors["F32.normal"][2])
    equal(sum(b["count"] for b in bins["histogram"]), int((x != 0).sum()), "all are in the histogram")
    for b in bins["histogram"]:
        lo, hi = sorted((abs(b["from"]), abs(b["to"])))
        want = ((abs(x) >= lo) & (abs(x) < hi) & ((x < 0) == (b["from"] < 0))).sum()
        equal(b["count"], int(want), f"numbers from {b['from']} to {b['to']}")


def a_second_call_reads_only_changes():
    top = SCRATCH / "kept" / "model.safetensors"
    write(top, {"w": ("F32", [4], struct.pack("<4f", 1, 2, 3, 4))})
    os.utime(top, (1e9, 1e9))
    first = data("stats", "--json", top.parent)
    equal(data("stats", "--json", top.parent), first, "again")
    check(any(f.suffix == ".kept" for f in (SCRATCH / "cache").iterdir()), "nothing is kept in the cache")
    write(top, {"w": ("F32", [4], struct.pack("<4f", 1, 2, 3, 5))})
    os.utime(top, (1e9, 1e9))
    equal(data("stats", "--json", top.parent)[0]["max"], 5.0, "after the file was changed")
    for f in (SCRATCH / "cache").glob("*.kept"):
        raw = bytearray(f.read_bytes())
        raw[-20] ^= 1
        f.write_bytes(raw)
    equal(data("stats", "--json", top.parent)[0]["max"], 5.0, "what is kept was damaged")


def nan_at_edges_is_found():
    n = 128 * 192 * 1024 // 4 + 1000  # more than a span
    for at in 0, 1023, 1024, n - 1001, n - 1000, n - 1:
        x = numpy.ones(n, "<f4")
        x[at] = math.nan
        path = SCRATCH / "nan" / "model.safetensors"
        write(path, {"good": ("F32", [2], struct.pack("<2f", 1, 2)), "w": ("F32", [n // 4, 4], x.tobytes())})
        got = run("stats", "--nan", path.parent)
        equal(got.returncode, NO, f"NaN at {at}")
        equal(got.stdout.decode(), f"w: 1 NaN, the first at [{at // 4}, {at % 4}]\n", f"NaN at {at}")
    write(path, {"w": ("F32", [2], struct.pack("<2f", 1, 2))})
    got = run("stats", "--nan", path.parent)
    equal((got.returncode, got.stdout), (OK, b""), "no NaN")


def unwritten_and_constant_are_noted():
    top = SCRATCH / "notes"
    write(top / "model.safetensors", {"one": ("F32", [100], struct.pack("<f", 1.5) * 100),
                                      "hole": ("F32", [1 << 18], bytes(4 << 18)), "end": ("F32", [1], struct.pack("<f", 2)),
                                      "random": ("BF16", [4096], RNG.bytes(8192))})
    raw = (top / "model.safetensors").read_bytes()
    with open(top / "model.safetensors", "wb") as f:  # without writing the zeros
        at = raw.index(bytes(1 << 16))
        f.write(raw[:at])
        f.seek(at + len(raw[at:]) - len(raw[at:].lstrip(b"\0")))
        f.write(raw[at:].lstrip(b"\0"))
    equal((top / "model.safetensors").read_bytes(), raw, "the same bytes")
    got = {row["name"]: row["note"] for row in data("stats", "--json", top)}
    equal(got["one"], "constant", "constant")
    equal(got["random"], "looks uninitialised", "random bits")
    check(got["hole"] in ("never written", "zero"), f"a hole: {got['hole']}")  # not every file system has holes


# ---- diff ----

def bf16(x):
    return (x.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def ulps_of(dtype, a, b):
    bits = {"F32": "<i4", "BF16": "<i2", "F16": "<i2", "F64": "<i8"}[dtype]
    x, y = (numpy.frombuffer(raw, bits).astype(object) for raw in (a, b))
    top = 1 << (8 * SIZE[dtype] - 1)
    x, y = (numpy.array([v if v >= 0 else -(v + top) for v in z], object) for z in (x, y))
    return numpy.abs(x - y)


def compare_diff(row, dtype, a, b, what):
    x, y = values(dtype, a), values(dtype, b)
    size = SIZE.get(dtype, 1)
    u, v = (numpy.frombuffer(raw, f"V{size}") for raw in (a, b))
    changed = u != v
    equal(row["changed"], int(changed.sum()), f"{what}: changed")
    equal(row["first"], f"[{int(numpy.argmax(changed))}]" if changed.any() else None, f"{what}: first")
    both = numpy.isfinite(x) & numpy.isfinite(y)
    x, y = x[both], y[both]
    d, m = abs(x - y), numpy.maximum(abs(x), abs(y))
    r = d / numpy.where(m == 0, 1, m)
    near(row["max_abs"], float(d.max()), f"{what}: max_abs")
    near(row["mean_abs"], float(d.mean()), f"{what}: mean_abs", 1e-9)
    near(row["max_rel"], float(r.max()), f"{what}: max_rel")
    near(row["mean_rel"], float(r.mean()), f"{what}: mean_rel", 1e-9)
    near(row["relative_l2"], float(numpy.linalg.norm(x - y) / numpy.linalg.norm(x)), f"{what}: relative_l2", 1e-9)
    near(row["cosine"], float(x @ y / numpy.linalg.norm(x) / numpy.linalg.norm(y)), f"{what}: cosine", 1e-9)
    if dtype in ("F32", "BF16", "F16"):
        far = ulps_of(dtype, a, b)
        for bin_ in row["ulps"]:
            want = sum(1 for f in far if bin_["from"] <= f <= bin_["to"])
            equal(bin_["count"], want, f"{what}: ulps from {bin_['from']} to {bin_['to']}")
        equal(sum(bin_["count"] for bin_ in row["ulps"]), len(far), f"{what}: all have a distance")


def differences_are_numpys():
    a, b, n = {}, {}, 3001
    for dtype, form in ("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"), ("BF16", None):
        x = RNG.standard_normal(n)
        y = x.copy()
        y[RNG.integers(0, n, 100)] *= 1.01
        y[5] = -x[5]
        put = bf16 if form is None else lambda z, f=form: z.astype(f).tobytes()
        a[dtype], b[dtype] = (dtype, [n], put(x)), (dtype, [n], put(y))
    for dtype in "I64", "I32", "I16", "I8", "U32", "U16", "U8":
        x = RNG.integers(0, 100, n).astype(PLAIN[dtype])
        y = x.copy()
        y[7::50] += 3
        a[dtype], b[dtype] = (dtype, [n], x.tobytes()), (dtype, [n], y.tobytes())
    for dtype in SMALL:
        x = RNG.integers(0, 64, n).astype("u1")
        y = x.copy()
        y[11::90] ^= 1
        a[dtype], b[dtype] = (dtype, [n], x.tobytes()), (dtype, [n], y.tobytes())
    write(SCRATCH / "da" / "model.safetensors", a)
    write(SCRATCH / "db" / "model.safetensors", b)
    got = run("diff", "--json", SCRATCH / "da", SCRATCH / "db")
    equal(got.returncode, NO, "they differ")
    rows = {row["name"]: row for row in json.loads(got.stdout)}
    for key, (dtype, _, raw) in a.items():
        equal(rows[key]["state"], "differs", key)
        compare_diff(rows[key], dtype, raw, b[key][2], key)
    got = run("diff", SCRATCH / "da", SCRATCH / "da")
    equal((got.returncode, got.stdout.decode()), (OK, f"{len(a)} equal\n"), "the same")


def one_element_is_found_anywhere():
    n = 128 * 192 * 1024 // 2 + 5000
    x = numpy.arange(n, dtype="<u2") & 0x3fff
    write(SCRATCH / "one-a" / "model.safetensors", {"w": ("BF16", [n], x.tobytes())})
    for at in 0, 1, 1023, 1024, 98303, 98304, n - 5001, n - 5000, n - 1:
        y = x.copy()
        y[at] ^= 1
        write(SCRATCH / "one-b" / "model.safetensors", {"w": ("BF16", [n], y.tobytes())})
        for quick in (), ("--quick",):
            got = run("diff", "--json", *quick, SCRATCH / "one-a", SCRATCH / "one-b")
            row = json.loads(got.stdout)[0]
            equal((got.returncode, row["state"], row["first"]), (NO, "differs", f"[{at}]"), f"element {at} {quick}")
        equal(row["changed"], None, "--quick does not count")


def layers_are_drawn():
    one = struct.pack("<4f", 1, 2, 3, 4)
    both = {f"m.{i}.{p}": ("F32", [4], one) for i in range(12) for p in ("q.weight", "norm")} | {"embed<&'": ("F32", [4], one)}
    write(SCRATCH / "sa" / "model.safetensors", both | {"gone": ("F32", [4], one)})
    write(SCRATCH / "sb" / "model.safetensors", both | {"m.10.norm": ("F32", [4], struct.pack("<4f", 1, 2, 3, 5)), "embed<&'": ("F32", [2], one[:8])})
    got = run("diff", "--svg", SCRATCH / "sa", SCRATCH / "sb")
    equal(got.returncode, NO, "diff --svg")
    boxes = [r for r in ElementTree.fromstring(got.stdout) if r.tag.endswith("rect") and len(r)]
    equal(sorted(b[0].text for b in boxes),
          sorted([f"{k}: equal, 0% changed" for k in both if k not in ("m.10.norm", "embed<&'")] +
                 ["m.10.norm: differs, 25% changed", "embed<&': shape, 0% changed", "gone: only in A, 0% changed"]), "a box a key")
    columns = {b[0].text.split(".")[1]: float(b.get("x")) for b in boxes if b[0].text.startswith("m.")}
    equal(sorted(columns, key=columns.get), [str(i) for i in range(12)], "layers are in the order of their numbers")
    file = SCRATCH / "strip.svg"
    equal(run("diff", "--svg", file, SCRATCH / "sa", SCRATCH / "sb").returncode, NO, "into a file")
    equal(file.read_bytes(), got.stdout, "the same drawing")
    file.write_text("mine")
    fails(USAGE, "is not replaced", "diff", "--svg", file, SCRATCH / "sa", SCRATCH / "sb")
    fails(USAGE, "leave --by and --quick out", "diff", "--svg", "--quick", SCRATCH / "sa", SCRATCH / "sb")


def keys_shapes_and_dtypes_differ():
    one = struct.pack("<4f", 1, 2, math.nan, 4)
    write(SCRATCH / "ka" / "model.safetensors",
          {"only.a": ("F32", [4], one), "shape": ("F32", [2, 2], one), "nan": ("F32", [4], one),
           "dtype": ("F32", [4], struct.pack("<4f", 1, 2, 3, 4)), "opaque": ("F6_E2M3", [8], bytes(6)), "zero": ("F32", [1], bytes(4)),
           "other.nan": ("F32", [1], struct.pack("<I", 0x7fc00000))})
    write(SCRATCH / "kb" / "model.safetensors",
          {"only.b": ("F32", [4], one), "shape": ("F32", [4], one), "nan": ("F32", [4], one),
           "dtype": ("BF16", [4], bf16(numpy.array([1., 2., 3., 4.]))), "opaque": ("F6_E2M3", [8], bytes(5) + b"\1"),
           "zero": ("F32", [1], struct.pack("<f", -0.0)), "other.nan": ("F32", [1], struct.pack("<I", 0x7fc00001))})
    got = run("diff", "--json", SCRATCH / "ka", SCRATCH / "kb")
    rows = {row["name"]: row for row in json.loads(got.stdout)}
    equal({k: r["state"] for k, r in rows.items()},
          {"only.a": "only in A", "only.b": "only in B", "shape": "shape", "nan": "equal", "dtype": "dtype", "opaque": "differs",
           "zero": "differs", "other.nan": "differs"}, "states")
    equal(rows["other.nan"]["nonfinite"], 1, "another NaN")
    equal((rows["zero"]["changed"], rows["zero"]["max_abs"]), (1, 0.0), "zeros of both signs")
    text = run("diff", SCRATCH / "ka", SCRATCH / "kb").stdout.decode()
    for says in "shape [2, 2] | [4]", "dtype F32 | BF16", "only in A", "1 changed number is NaN or infinite":
        check(says in text, f"{says!r} is not in {text!r}")
    for keys, code in ("nan", OK), ("only", NO), ("dtype", NO):
        equal(run("diff", "--keys", keys, SCRATCH / "ka", SCRATCH / "kb").returncode, code, f"--keys {keys}")
    equal(run("diff", "--keys", "dtype", "--atol", "0", SCRATCH / "ka", SCRATCH / "kb").returncode, OK, "the same numbers")
    fails(NO, 'no tensor of ka matches "nope"', "diff", "--keys", "nope", SCRATCH / "ka", SCRATCH / "kb")
    fails(USAGE, "--rtol takes a number", "diff", "--rtol", "x", SCRATCH / "ka", SCRATCH / "kb")
    fails(USAGE, "--atol takes a number", "diff", "--atol", "-1", SCRATCH / "ka", SCRATCH / "kb")


def tolerances_are_numpys():
    x = RNG.standard_normal(4000)
    y = x * (1 + RNG.standard_normal(4000) * 1e-3)
    write(SCRATCH / "ta" / "model.safetensors", {"w": ("F64", [4000], x.tobytes())})
    write(SCRATCH / "tb" / "model.safetensors", {"w": ("F64", [4000], y.tobytes())})
    for rtol, atol in (0, 0), (1e-3, 0), (0, 1e-3), (1e-3, 1e-4), (1e-1, 0):
        got = run("diff", "--json", "--rtol", rtol, "--atol", atol, SCRATCH / "ta", SCRATCH / "tb")
        beyond = int((~numpy.isclose(x, y, rtol, atol)).sum())
        equal(json.loads(got.stdout)[0]["beyond"], beyond, f"rtol {rtol} atol {atol}")
        equal(got.returncode, NO if beyond else OK, f"rtol {rtol} atol {atol}")


def equal_tensors_agree_across_formats():
    """The same tensors as another family and sharding saves them are equal; versions of one source are named by it."""
    raw = RNG.standard_normal(24).astype("<f4").tobytes()
    write(SCRATCH / "fa" / "model.safetensors", {"w": ("F32", [6, 4], raw)})
    torch_save(SCRATCH / "fb" / "model.pt", {"w": Tensor(raw, [6, 4])})
    got = run("diff", SCRATCH / "fa", SCRATCH / "fb")
    equal(got.returncode, OK, f"torch and safetensors: {got.stdout} {got.stderr}")
    ckpt = GOLDEN / "dcp-fsdp2" / "ckpt"
    for words in ([ckpt, 10, ckpt, 10], [ckpt, 10, 10], [ckpt / "step-10", ckpt, 10], [ckpt, 20], [ckpt, "step-20"]):
        equal(run("diff", *words).returncode, OK, f"diff {words}")
    for words in ([ckpt, 10, 20], [ckpt, 10], [ckpt / "step-10", ckpt / "step-20"]):
        equal(run("diff", *words).returncode, NO, f"diff {words}")
    by = json.loads(run("diff", "--json", "--by", "layer", ckpt, 10, 20).stdout)
    rows = [r for r in by if r["name"] == "model.layers.0"]
    every = [r for r in json.loads(run("diff", "--json", ckpt, 10, 20).stdout) if r["name"].startswith("model.layers.0.")]
    equal(len(rows), 1, "one row a layer")
    equal(rows[0]["changed"], sum(r["changed"] for r in every), "changed in the layer")


def names_of_hf_and_mounts_are_compared():
    """A trainer's checkpoint beside the model that was exported from it, by names of hf/, by rules, and through a mount."""
    trained, model = GOLDEN / "composer-hf" / "bpe" / "ckpt", SCRATCH / "hf-model"
    equal(run("export", "--as", "safetensors", "--hf", trained, model).returncode, OK, "export --hf")
    got = run("diff", "--hf", trained, model)
    equal(got.returncode, OK, f"diff --hf: {got.stdout} {got.stderr}")
    equal(run("diff", trained, model).returncode, NO, "without --hf names differ")
    path = next(model.glob("*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    rows = [r for r in json.loads(run("diff", "--hf", "--json", trained, model).stdout) if r["state"] != "equal"]
    equal([(r["state"], r["changed"]) for r in rows], [("differs", 1)], "one bit of the model")
    if os.path.exists("/dev/fuse") and os.access("/dev/fuse", os.R_OK | os.W_OK):
        mnt = SCRATCH / "mnt"
        mnt.mkdir()
        if run("mount", GOLDEN / "dcp-fsdp2" / "ckpt", mnt).returncode == OK:
            try:
                equal(run("diff", mnt, 10, GOLDEN / "dcp-fsdp2" / "ckpt", 10).returncode, OK, "a mount and its source")
                equal(run("diff", mnt / "step-10", GOLDEN / "dcp-fsdp2" / "ckpt", 20).returncode, NO, "a version in a mount")
            finally:
                equal(run("umount", mnt).returncode, OK, "umount")


def known_digests_spare_reading():
    raw = RNG.bytes(4000)
    for name in "ga", "gb":
        write(SCRATCH / name / "model.safetensors", {"w": ("F32", [500], raw[:2000]), "v": ("F32", [500], raw[2000:])})
        os.utime(SCRATCH / name / "model.safetensors", (1e9, 1e9))
    equal(run("verify", SCRATCH / "ga").returncode, OK, "verify")
    check(b"were not read" not in run("diff", SCRATCH / "ga", SCRATCH / "gb").stdout, "one side is known")
    equal(run("verify", SCRATCH / "gb").returncode, OK, "verify")
    got = run("diff", SCRATCH / "ga", SCRATCH / "gb")
    equal((got.returncode, got.stdout.decode()),
          (OK, "2 equal\n4.00 kB of equal tensors were not read: digests of both sides are known\n"), "both are known")
    write(SCRATCH / "gb" / "model.safetensors", {"w": ("F32", [500], raw[:2000]), "v": ("F32", [500], raw[2000:3999] + b"!")})
    os.utime(SCRATCH / "gb" / "model.safetensors", (1e9, 1e9))
    equal(run("diff", SCRATCH / "ga", SCRATCH / "gb").returncode, NO, "after a file was changed, what is known of it does not count")
    equal(run("verify", SCRATCH / "gb").returncode, OK, "verify")
    got = run("diff", "--json", SCRATCH / "ga", SCRATCH / "gb")
    equal({r["name"]: (r["state"], r["changed"]) for r in json.loads(got.stdout)}, {"v": ("differs", 1), "w": ("equal", 0)}, "what differs is read")


def unreadable_tensors_are_reported():
    top = SCRATCH / "cut"
    for name in "ca", "cb":
        write(top / name / "model.safetensors", {"a": ("F32", [4], bytes(16)), "b": ("F32", [4], bytes(16))})
    path = top / "cb" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    got = run("diff", top / "ca", top / "cb")
    equal(got.returncode, BAD, "a file that was cut off")
    got = run("stats", top / "cb")
    equal(got.returncode, BAD, "a file that was cut off")
    check(b"model.safetensors" in got.stderr, f"the file is not named: {got.stderr}")


# ---- verify ----

def records_agree_across_formats():
    raw = RNG.standard_normal(24).astype("<f4").tobytes()
    odd = "a\\b\n\u00e9"
    write(SCRATCH / "ra" / "model.safetensors", {"w": ("F32", [6, 4], raw), odd: ("U8", [3], b"abc"), "none": ("F32", [0], b"")})
    torch_save(SCRATCH / "rb" / "model.pt", {"w": Tensor(raw, [6, 4])})
    for i in range(3):
        write(SCRATCH / "rc" / f"shard-0000{i + 1}-model-00001-of-00001.safetensors", {"w": ("F32", [2, 4], raw[32 * i:32 * i + 32])},
              {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [2 * i, 0]}}), "DCP_VERSION": "1.0", "format": "pt"})
    record = SCRATCH / "ra.digests"
    got = run("verify", SCRATCH / "ra", "--record", record)
    equal((got.returncode, got.stdout), (OK, b"ra: 3 tensors, 99 B: every byte can be read\n"), "--record")
    lines = record.read_bytes().decode().splitlines()
    equal([line.split("  ", 1)[1] for line in lines], sorted(["w", "none", "a\\\\b\\x0a\u00e9"]), "keys, sorted, in one line each")
    digests = data("show", "--digest", "--json", SCRATCH / "ra")
    equal(lines[-1], f"{digests['w']}  w", "the digest that show has")
    equal(run("verify", SCRATCH / "ra", "--check", record).returncode, OK, "--check of itself")
    one = SCRATCH / "w.digests"
    one.write_text(lines[-1] + "\n", encoding="utf-8")
    for other in "rb", "rc":
        equal(run("verify", SCRATCH / other, "--check", one).returncode, OK, f"the same tensor in {other}")
        equal(run("verify", SCRATCH / other, "--record", "-").stdout.decode(), lines[-1] + "\n", f"record of {other}")
    sha = SCRATCH / "sha.digests"
    equal(run("verify", SCRATCH / "rc", "--sha256", "--record", sha).returncode, OK, "--sha256")
    equal(run("verify", SCRATCH / "rb", "--check", sha).returncode, OK, "a record by SHA-256")
    got = run("verify", SCRATCH / "ra", "--check", one)
    equal(got.returncode, NO, "a tensor that is not recorded")
    check(b"none: not recorded" in got.stderr, "says which")
    equal(run("verify", SCRATCH / "ra", "--keys", "w", "--check", record).returncode, OK, "--keys leaves out others")
    got = run("verify", SCRATCH / "rb", "--check", record)
    equal(got.returncode, NO, "a tensor that is gone")
    check(b"none: recorded, and not there" in got.stderr, f"says which: {got.stderr}")
    empty = SCRATCH / "empty.digests"
    empty.write_bytes(b"")
    equal(run("verify", SCRATCH / "rb", "--check", empty).returncode, NO, "an empty record")
    for text in b"nothing\n", lines[-1][1:].encode(), lines[-1].encode() + b"\0", (lines[-1] + "\n" + lines[-1]).encode():
        empty.write_bytes(text)
        fails(BAD, "verify: --check ", "verify", SCRATCH / "rb", "--check", empty)
    (SCRATCH / "precious").write_text("text", encoding="utf-8")
    fails(USAGE, "no record", "verify", SCRATCH / "rb", "--record", SCRATCH / "precious")
    equal((SCRATCH / "precious").read_text(encoding="utf-8"), "text", "what is no record stays")
    fails(USAGE, "", "verify", SCRATCH / "rb", "--record", SCRATCH / "rb" / "x")


def flipped_bits_and_swapped_tensors_are_found():
    top = SCRATCH / "flip" / "model.safetensors"
    raw = RNG.bytes(4000)
    write(top, {"a": ("F32", [500], raw[:2000]), "b": ("F32", [500], raw[2000:])})
    good = top.read_bytes()
    start = 8 + struct.unpack("<Q", good[:8])[0]
    record = SCRATCH / "flip.digests"
    equal(run("verify", top.parent, "--record", record).returncode, OK, "--record")

    def damage(change, keys, codes=(NO,)):
        top.write_bytes(change)
        got = run("verify", "--json", top.parent, "--check", record)
        check(got.returncode in codes, f"exit {got.returncode}, not {codes}: {got.stderr}")
        if got.stdout:
            equal([p["key"] for p in json.loads(got.stdout)["problems"]], keys, "which tensors")

    for at, keys in (0, ["a"]), (1999, ["a"]), (2000, ["b"]), (3999, ["b"]):
        for bit in 0, 7:
            bad = bytearray(good)
            bad[start + at] ^= 1 << bit
            damage(bad, keys)
    damage(good[:start] + raw[2000:] + raw[:2000], ["a", "b"])  # swapped
    for at in range(start):  # the length and the header: no flip that changes a tensor may pass
        bad = bytearray(good)
        bad[at] ^= 4
        top.write_bytes(bad)
        got = run("verify", top.parent, "--check", record)
        if got.returncode == OK:  # padding, or blanks between words
            check(at >= start - 8 or chr(good[at]) in " \t", f"a flip at byte {at} of the header passes")
    top.write_bytes(good[:-1])
    equal(run("verify", top.parent).returncode, BAD, "a file that was cut off")
    top.write_bytes(good)
    equal(run("verify", top.parent, "--check", record).returncode, OK, "mended")


# ---- find, du ----

def tensors_are_found_by_properties():
    nan = struct.pack("<4f", 1, math.nan, 2, 3)
    for version, w in ("step-1", 1.0), ("step-2", 2.0):
        write(SCRATCH / "find" / version / "model.safetensors",
              {"a.w": ("F32", [2, 2], struct.pack("<4f", w, 1, 2, 3)), "a.b": ("BF16", [4], bytes(8)), "nan": ("F32", [4], nan),
               "e.0.w": ("F8_E4M3", [2, 3, 4], bytes(24)), "s": ("I64", [], bytes(8)),
               **({"new": ("U8", [1], b"x")} if version == "step-2" else {})})
    top = SCRATCH / "find"

    def found(*words):
        got = run("find", "-1", *words, top)
        equal(got.returncode, OK if got.stdout else NO, f"find {words}: {got.stderr.decode()}")
        return got.stdout.decode().split()

    every = ["a.b", "a.w", "e.0.w", "nan", "new", "s"]
    for words, want in (((), every), (("--dtype", "bf16"), ["a.b"]), (("--dtype", "F8*", "--dtype", "I64"), ["e.0.w", "s"]),
                        (("--shape", "[*, 2]"), ["a.w"]), (("--shape", "[4]"), ["a.b", "nan"]), (("--shape", "[...]"), every),
                        (("--shape", "[..., 4]"), ["a.b", "e.0.w", "nan"]), (("--shape", "2..3,..."), ["a.w", "e.0.w"]),
                        (("--shape", "[2, ..., 3, ...]"), ["e.0.w"]), (("--shape", "[]"), ["s"]), (("--shape", "*,3..,..4"), ["e.0.w"]),
                        (("--least", "16"), ["a.w", "e.0.w", "nan"]), (("--most", "8"), ["a.b", "new", "s"]), (("--nan",), ["nan"]),
                        (("--keys", "a", "--nan"), []), (("--regex", r"e\.\d+"), ["e.0.w"]), (("--keys", "a"), ["a.b", "a.w"]),
                        (("--changed-since", "1"), ["a.w", "new"]), (("--changed-since", "2"), []),
                        (("--changed-since", "1", "--dtype", "F32"), ["a.w"])):
        equal(found(*words), want, f"find {words}")
    equal(data("find", "--json", "--keys", "e", top), [{"key": "e.0.w", "dtype": "F8_E4M3", "shape": "[2, 3, 4]", "nbytes": 24}], "JSON")
    for bad in "[x]", "[1,]", "..", "[1 2]", "[-1]":
        fails(USAGE, "--shape", "find", "--shape", bad, top)
    fails(USAGE, "--regex", "find", "--regex", "(?=x)", top)
    fails(NO, "", "find", "--changed-since", "7", top)


def bytes_are_counted_by_group():
    raw = RNG.bytes(64)
    for shard, keys in ("1", ("a.x", "a.y")), ("2", ("b.x",)):
        write(SCRATCH / "du" / f"model-0000{shard}-of-00002.safetensors", {k: ("F32", [16], raw if k != "a.y" else raw[::-1]) for k in keys})
    (SCRATCH / "du" / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {
        "a.x": "model-00001-of-00002.safetensors", "a.y": "model-00001-of-00002.safetensors", "b.x": "model-00002-of-00002.safetensors"}}))
    for f in (SCRATCH / "du").iterdir():
        os.utime(f, (1e9, 1e9))

    def rows(*words):
        return {r["name"]: (r["tensors"], r["nbytes"], r["unique"]) for r in data("du", "--json", *words, SCRATCH / "du")}

    equal(rows(), {"a": (2, 128, 128), "b": (1, 64, 64)}, "by prefix")
    equal(run("verify", SCRATCH / "du").returncode, OK, "verify")
    equal(rows(), {"a": (2, 128, 128), "b": (1, 64, 0)}, "digests are known")
    equal(rows("--depth", "2"), {"a.x": (1, 64, 64), "a.y": (1, 64, 64), "b.x": (1, 64, 0)}, "--depth")
    equal(rows("--by", "dtype"), {"F32": (3, 192, 128)}, "by dtype")
    equal(rows("--by", "file"), {"model-00001-of-00002.safetensors": (2, 128, 128), "model-00002-of-00002.safetensors": (1, 64, 0)}, "by file")
    check(b"192 B, of which 128 B are unique" in run("du", SCRATCH / "du").stdout, "the sum")


def loaded_tensors_are_verified():
    source, record = GOLDEN / "dcp-tp-fsdp" / "ckpt", SCRATCH / "load.digests"
    equal(run("verify", source, "--record", record).returncode, OK, "--record")
    good = record.read_text(encoding="utf-8")
    for words in (), ("--layout", "tp2:llama", "--rank", "1"), ("--layout", "fsdp2", "--rank", "0"), ("--dtype", "bf16"):
        record.write_text(good, encoding="utf-8")
        equal(run("load", source, *words, "--verify", record).returncode, OK, f"load {words}")
        record.write_text("".join(("0" if line[0] != "0" else "1") + line[1:] for line in good.splitlines(True)), encoding="utf-8")
        fails(BAD, "is not what was recorded", "load", source, *words, "--verify", record)
    record.write_text("".join(good.splitlines(True)[1:]), encoding="utf-8")
    fails(NO, "is not recorded in", "load", source, "--verify", record)
    fails(BAD, "line 1 is not a digest", "load", source, "--verify", __file__)


# ---- over time, bisect ----

def ends(code, says, *args):
    """The command fails with @code and a last line that has @says in it, after what it says of each version."""
    got = run(*args)
    last = got.stderr.decode().splitlines()[-1]
    equal((got.returncode, says in last), (code, True), f"{args}: {got.stderr.decode()}")


def the_first_bad_version_is_found():
    top, n, every = SCRATCH / "time", 12, []
    for i in range(1, n + 1):
        x = RNG.standard_normal(50).astype("<f4")
        every.append(x)
        y = x.copy()
        if i >= 9:
            y[7] = math.nan
        write(top / f"step-{i}" / "model.safetensors", {"w": ("F32", [50], x.tobytes()), "v": ("F32", [50], y.tobytes())})
    (top / "step-13").mkdir()  # not complete
    rows = data("stats", "--over-time", "--keys", "w", "--json", top)
    equal([r["version"] for r in rows], [f"step-{i}" for i in range(1, n + 1)], "versions, the oldest first")
    for i, row in enumerate(rows):
        x = every[i].astype("f8")
        near(row["norm"], float(numpy.linalg.norm(x)), f"norm {i}")
        near(row["mean"], float(x.mean()), f"mean {i}", 1e-9)
        if i:
            d = x - every[i - 1].astype("f8")
            near(row["update"], float(numpy.linalg.norm(d)), f"update {i}", 1e-9)
            near(row["relative"], float(numpy.linalg.norm(d) / numpy.linalg.norm(every[i - 1].astype("f8"))), f"relative {i}", 1e-9)
            near(row["changed"], float((d != 0).mean()), f"changed {i}")
        else:
            equal((row["update"], row["changed"]), (None, None), "the first has none before it")
    equal(data("stats", top, "--over-time", "w", "--json"), rows, "a key after the source")
    fails(USAGE, "name keys by --keys", "stats", top, "w", "--over-time", "--keys", "w")
    fails(USAGE, "has no --version", "stats", top, "--over-time", "--version", "w")
    table = csv.DictReader(io.StringIO(run("stats", "--over-time", "--keys", "w", "--csv", top).stdout.decode(), newline=""))
    equal([{k: v if k == "version" else float(v) if v else None for k, v in row.items()} for row in table], rows, "--csv")
    drawing = ElementTree.fromstring(run("stats", "--over-time", "--keys", "w", "--svg", top).stdout)
    said = [t.text for t in drawing.iter("{http://www.w3.org/2000/svg}title")][1:]
    equal(said, [f"{r['version']}: {r[k]:.6g}" for k in ("norm", "update") for r in rows if r[k] is not None], "--svg")
    fails(USAGE, "add --over-time", "stats", "--svg", top)
    write(SCRATCH / "csv" / "model.safetensors", {"a\x1b]0;x\x07": ("F32", [1], bytes(4)), "=cmd|'x'!A1": ("F32", [1], bytes(4))})
    text = run("stats", "--csv", SCRATCH / "csv").stdout
    check(b"\x1b" not in text and b"\x07" not in text and b"'=cmd" in text, f"CSV: {text}")
    (SCRATCH / "part" / "step-1").mkdir(parents=True)
    (SCRATCH / "part" / "step-1" / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-1.safetensors"}}', encoding="utf-8")
    got = run("stats", "--over-time", SCRATCH / "part")
    check(got.returncode and got.stderr, f"no complete version: {got}")
    fails(USAGE, "--over-time is of all versions", "stats", "--over-time", "--nan", top)
    fails(NO, "matches", "stats", "--over-time", "--keys", "nope", SCRATCH / "find" / "step-1")
    for keys, want in ((), ("step-9", "step-8")), (("--keys", "w"), (None, "step-12")):
        got = run("bisect", "--nan", "--json", *keys, top)
        said = json.loads(got.stdout)
        equal((said["first_bad"], said["last_good"], got.returncode), (*want, NO if want[0] else OK), f"bisect --nan {keys}")
        check(said["tried"] <= 5, f"{said['tried']} versions were tried")
    ends(BAD, "no version can be told", "bisect", "--nan", "--keys", "nope", top)
    fails(USAGE, "give either --nan or a command", "bisect", top)
    fails(USAGE, "give either --nan or a command", "bisect", "--nan", top, "--", "true")
    if os.path.exists("/dev/fuse") and os.access("/dev/fuse", os.R_OK | os.W_OK):
        for first in 1, 2, 7, 12, 13:
            for skip in 0, 5:
                script = f"n=${{PWD##*-}}; test -s raw/w.bin && test $PWD = $DCPFS_VERSION || exit 3; test $n = {skip} && exit 125; test $n -lt {first}"
                got = run("bisect", "--json", top, "--", "sh", "-c", script)
                said = json.loads(got.stdout)
                want = f"step-{first}" if first <= n else None
                equal((said["first_bad"], got.returncode), (want, NO if want else OK), f"from {first} on, without {skip}: {got.stderr.decode()}")
        ends(BAD, "no version can be told", "bisect", top, "--", "sh", "-c", "exit 125")
        ends(ENV, "ended with exit code 255", "bisect", top, "--", "sh", "-c", "exit 255")
        ends(ENV, "ended by signal 9", "bisect", top, "--", "sh", "-c", "kill -9 $$")
        fails_to_run = run("bisect", top, "--", "/no/such/program")
        equal(fails_to_run.returncode, 3, "a program that is not there")
        check(str(top) not in open("/proc/self/mountinfo", encoding="utf-8").read(), "nothing stays mounted")


print(f"seed {SEED}")
every_dtype_has_numpys_numbers()
a_second_call_reads_only_changes()
nan_at_edges_is_found()
unwritten_and_constant_are_noted()
differences_are_numpys()
one_element_is_found_anywhere()
keys_shapes_and_dtypes_differ()
layers_are_drawn()
tolerances_are_numpys()
equal_tensors_agree_across_formats()
names_of_hf_and_mounts_are_compared()
known_digests_spare_reading()
unreadable_tensors_are_reported()
records_agree_across_formats()
flipped_bits_and_swapped_tensors_are_found()
tensors_are_found_by_properties()
bytes_are_counted_by_group()
loaded_tensors_are_verified()
the_first_bad_version_is_found()
finish()
