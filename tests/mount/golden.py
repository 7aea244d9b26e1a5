# SPDX-License-Identifier: Apache-2.0
"""Every golden checkpoint, through the mount: exactly the bytes, numbers and names of its manifest."""
import bz2
import functools
import gzip
import json
import lzma
import os
import re
import subprocess
import urllib.parse
import zlib

import arrays
import lib
from lib import case, check, equal, read, sha

FORMS = ("npy", "raw", "safetensors")
NAME_MAX = 243


def newest(names):
    """The one that counts furthest; without numbers the time decides, which copies do not keep: any."""
    counts = {n: [int(x) for x in re.findall(r"\d+", n)] for n in names}
    furthest = max(counts.values())
    return [min(n for n in names if counts[n] == furthest)] if furthest else names


def stem_of(key):
    """The file name of a key as fs/README.md has it; None where it is cut and hashed."""
    if key in ("", ".", ".."):
        return "%" if not key else key.replace(".", "%2E")
    out = "".join(c if c >= " " and c not in "/%\x7f" else f"%{ord(c):02X}" for c in key)
    return out if len(out.encode()) <= NAME_MAX else None


def key_of(stem):
    """Back again."""
    return "" if stem == "%" else urllib.parse.unquote(stem, errors="strict")


def check_name(key, path, extension):
    stem = path.partition("/")[2].removesuffix(extension)
    want = stem_of(key)
    if want is not None:
        equal(stem, want, "file name of the key")
        equal(key_of(stem), key, "key of the file name")
        return
    m = re.fullmatch(r"(.*)~[0-9a-f]{16}", stem, re.S)
    full = "".join(c if c >= " " and c not in "/%\x7f" else f"%{ord(c):02X}" for c in key)
    if check(m, f"a long name ends in ~ and a hash: {stem}"):
        check(len(stem.encode()) <= NAME_MAX and full.startswith(m[1]) and len(m[1].encode()) > 200,
              f"a long name keeps the front of the key: {stem}")


def check_raw(m, base, t, want):
    raw = read(base / t["files"]["raw"])
    equal(len(raw), want["nbytes"], "bytes in raw/")
    equal(sha(raw), want["sha256"], "sha256 of raw/")
    return raw


def check_npy(base, t, want, raw):
    descr, shape, numbers = arrays.parse_npy(read(base / t["files"]["npy"]))
    equal(descr, arrays.DESCR[want["dtype"]], "descr of npy/")
    equal(shape, arrays.shown_shape(want["dtype"], want["shape"]), "shape of npy/")
    check(arrays.same_numbers(want["dtype"], numbers, arrays.widened(want["dtype"], raw)), "numbers of npy/")


@functools.cache
def said(base):
    return json.loads(read(base / "index.json")).get("metadata", {})


def metadata_of(path):
    """What the file itself says, if it is one of safetensors."""
    if path.suffix != ".safetensors":
        return {}
    with open(path, "rb") as f:
        return json.loads(f.read(int.from_bytes(f.read(8), "little"))).get("__metadata__", {})


def check_safetensors(base, source, t, want, raw):
    if want["dtype"] in arrays.NOT_IN_SAFETENSORS:
        equal(t["files"]["safetensors"], None, "a dtype safetensors has no name for")
        return
    found, metadata = arrays.parse_safetensors(read(base / t["files"]["safetensors"]))
    key = t["alias_of"] or want["key"]  # one file for both
    equal(list(found), [key], "tensors in safetensors/")
    files = {p["file"] for p in t["pieces"]}
    stored_in = [metadata_of(p) for f in sorted(files) for p in [source / base.name.partition("@")[0] / f, source / f] if p.is_file()]
    theirs = {k: m[k] for m in reversed(stored_in) for k in said(base) if k in m} if files else said(base)
    equal(metadata, {"format": "pt"} | theirs, "the metadata of safetensors/ is that of the files that store the tensor")
    equal(found.get(key), (want["dtype"], arrays.shown_shape(want["dtype"], want["shape"]), raw),
          "dtype, shape and bytes of safetensors/")


UNPACK = {b"\x1f\x8b": gzip.decompress, b"BZ": bz2.decompress, b"\xfd7": lzma.decompress, b"]\0": lzma.decompress,
          b"\x28\xb5": lambda data: subprocess.run(["zstd", "-dcq"], input=data, capture_output=True, check=True).stdout}


def stored(source, version, piece, dtype):
    """The bytes of a piece as the shard has them; (bytes, exact?)."""
    # A version may be a directory, some of the files of one ("dir@model"), or of the source.
    at = source / version.partition("@")[0]
    data = read((at if at.is_dir() else source) / piece["file"])
    if piece.get("unpacked"):
        if data[:2] not in UNPACK:  # lz4: raw/ has been compared, and nothing here decodes it
            return None, False
        data = UNPACK[data[:2]](data)
    data = data[piece["offset"]:piece["offset"] + piece["nbytes"]]
    equal(len(data), piece["nbytes"], "bytes of the piece that are in the shard")
    lengths = [hi - lo for lo, hi in piece["region"]]
    if piece.get("filter") == "zstd":
        return subprocess.run(["zstd", "-dcq"], input=data, capture_output=True, check=True).stdout, False
    if piece.get("filter") == "deflate":
        data = zlib.decompress(data, -15)
        need = 1 + sum((n - 1) * s for n, s in zip(lengths, piece.get("strides") or arrays.strides_of(lengths)))
        data = data[-need * arrays.ITEM[dtype]:]
    if piece.get("filter") == "latin1":
        data = data.decode("utf-8").encode("latin-1")
    if "strides" in piece:
        data = arrays.gather(data, arrays.ITEM[dtype], lengths, piece["strides"])
    if piece.get("filter") in ("negate", "conjugate"):
        data = arrays.negated(data, dtype, piece["filter"] == "conjugate")
    return data, "byteorder" not in piece


def check_runs(runs, region):
    """Runs of one box follow each other from its first element to its last."""
    ends = [x for run in sorted(runs) for x in run]
    equal([ends[0], ends[-1], ends[1:-1:2]], [0, arrays.volume([b - a for a, b in region]), ends[2::2]],
          f"runs of the box {region}")


def check_pieces(source, version, t, raw):
    """The pieces tile the tensor, and each is where it is said to be."""
    regions = []
    for p in t["pieces"]:
        r = p["region"]
        if "run" in p and any(q["region"] == r for q in t["pieces"] if q is not p and "run" in q):
            check_runs([q["run"] for q in t["pieces"] if q["region"] == r], r)
            if r in regions:
                continue
        if arrays.volume([b - a for a, b in r]):
            regions.append(r)
    for r in regions:
        check(len(r) == len(t["shape"]) and all(0 <= a <= b <= n for (a, b), n in zip(r, t["shape"])),
              f"region {r} lies inside {t['shape']}")
    equal(sum(arrays.volume([b - a for a, b in r]) for r in regions), arrays.volume(t["shape"]),
          "elements of all pieces")
    check(not any(arrays.overlap(a, b) for i, a in enumerate(regions) for b in regions[:i]), "pieces do not overlap")
    for piece in t["pieces"]:
        want = arrays.region_of(raw, t["dtype"], t["shape"], piece["region"])
        if "run" in piece:
            lo, hi = (arrays.ITEM[t["dtype"]] * n for n in piece["run"])
            want = want[lo:hi]
        data, exact = stored(source, version, piece, t["dtype"])
        if exact:
            equal(sha(data), sha(want), f"stored bytes of piece {piece}")
        elif piece.get("filter") and "byteorder" not in piece:
            check(want in data, f"the decompressed item holds the bytes of piece {piece}")


def check_tensor(m, source, version, t, want):
    base = m.at / version
    for field in ("path", "dtype", "shape", "nbytes"):
        equal(t[field], want[field], field)
    equal(t["error"], None, "error")
    for form in FORMS:
        if t["files"][form]:
            check_name(t["key"], t["files"][form], {"npy": ".npy", "raw": ".bin"}.get(form, ".safetensors"))
    raw = check_raw(m, base, t, want)
    check_npy(base, t, want, raw)
    check_safetensors(base, source, t, want, raw)
    check_pieces(source, version, t, raw)


def check_object(m, version, o, want):
    for field in ("path", "type"):
        equal(o[field], want[field], field)
    check("error" not in o, f"error: {o.get('error')}")
    check_name(o["key"], o["file"], ".json")
    value = json.loads(read(m.at / version / o["file"]))
    if "base64" in want:
        equal(value, {"$bytes": want["base64"]}, "value")
    elif want["json"] is not None or want["type"] == "NoneType":
        equal(repr(meant(value, want["json"])), repr(want["json"]), "value")  # repr tells 1 from 1.0 and 0.0 from -0.0
    return value


def meant(value, want):
    """The value with tensors in it as the manifest has them: by their shape, not by their key."""
    if isinstance(want, dict) and isinstance(value, dict):
        if "tensor" in want and "$tensor" in value:
            return want
        return {k: meant(v, want.get(k)) for k, v in value.items()}
    if isinstance(want, list) and isinstance(value, list) and len(want) == len(value):
        return [meant(v, w) for v, w in zip(value, want)]
    return value


def check_listing(m, version, index):
    """The directories list the files of index.json, and nothing else."""
    base = m.at / version
    equal(sorted(os.listdir(base)),
          sorted(["README.txt", "index.json", "index.jsonl", "files", "hf", "objects", "shard", "stats", *FORMS]), "the version's directory")
    for form in FORMS:
        want = sorted(t["files"][form] for t in index["tensors"].values() if t["files"][form])
        equal(sorted(f"{form}/{n}" for n in os.listdir(base / form)), want, f"names in {form}/")
    equal(sorted(f"objects/{n}" for n in os.listdir(base / "objects")),
          sorted(o["file"] for o in index["objects"].values()), "names in objects/")


def check_texts(m, version, index, values):
    base = m.at / version
    lines = [json.loads(x) for x in read(base / "index.jsonl").decode().splitlines()]
    by_key = {**index["tensors"], **index["objects"]}
    equal([x["key"] for x in lines], list(by_key), "keys of index.jsonl, tensors first")
    for line in lines:
        value = line.pop("value", None)
        equal(line, by_key.get(line["key"]), f"line of {line['key']} in index.jsonl")
        if line["key"] in values or line["key"] in index["tensors"]:
            equal(repr(value), repr(values.get(line["key"])), f"value of {line['key']} in index.jsonl")
    readme = read(base / "README.txt").decode()
    check(version in readme.split("\n")[0] and "npy/" in readme and len(readme.splitlines()) < 30,
          f"README.txt: {readme[:200]}")
    n = len(index["tensors"])
    check(f"{n} tensor{'s' * (n != 1)}" in readme, f"README.txt counts the tensors: {readme[:200]}")


def nested(index, want):
    """Keys of tensors inside a value the framework loads as one object: the manifest has only that."""
    alone = len(want["objects"]) == 1 and not want["tensors"]  # all the file is: those in it have no name in front
    return {k for k, t in index["tensors"].items() if k not in want["tensors"] and
            (alone or any(t["path"][:len(o["path"])] == o["path"] != t["path"] for o in want["objects"].values()))}


def check_version(m, source, name, version, want):
    case(f"{name}/{version}")
    raw_doc = json.loads(read(m.at / version / "index.json"))
    index, values = m.index(version), {}
    equal(len(raw_doc["tensors"]) + len(raw_doc["objects"]), len(index["tensors"]) + len(index["objects"]),
          "no key stands twice")
    equal((index["dcpfs"], index["version"], index["complete"]), (1, version, True), "head of index.json")
    refused = {k: t for k, t in index["tensors"].items() if k in want["broken"]}
    for t in refused.values():
        check(t["error"] and not t["pieces"], f"{t['key']} is refused: {t['error']}")
    more = set(index["tensors"]) - set(want["tensors"]) if want["more"] else nested(index, want)
    equal(sorted(set(index["tensors"]) - more - set(refused)), sorted(want["tensors"]), "keys of tensors")
    if not want["more"]:
        equal(sorted(index["objects"]), sorted(want["objects"]), "keys of objects")
    for key, t in index["tensors"].items():
        if key in refused:
            continue
        case(f"{name}/{version} {lib.short(key)}")
        # A nested one is checked against itself: its forms and pieces must agree.
        check_tensor(m, source, version, t, want["tensors"].get(key) or
                     {**t, "sha256": sha(read(m.at / version / t["files"]["raw"]))})
    for key, o in index["objects"].items():
        if key in want["objects"]:
            case(f"{name}/{version} {lib.short(key)}")
            values[key] = check_object(m, version, o, want["objects"][key])
        else:
            values[key] = json.loads(read(m.at / version / o["file"]))
    case(f"{name}/{version}")
    check_listing(m, version, index)
    check_texts(m, version, index, values)


def check_root(m, name, versions):
    case(name)
    refused = [v for v in versions if versions[v]["refused"]]
    complete = sorted(v for v in versions if versions[v]["complete"] and v not in refused)
    equal(m.versions(), complete, "versions in the root")
    check(m.latest() in newest(complete), f"latest: {m.latest()}, want {newest(complete)}")
    equal(read(m.at / "latest" / "index.json"), read(m.at / m.latest() / "index.json"), "latest/index.json")
    incomplete = m.control("incomplete.json")
    equal(sorted(x["version"] for x in incomplete), sorted(set(versions) - set(complete)), "incomplete.json")
    check(all(x["reason"] and x["format"] for x in incomplete), f"incomplete.json says why: {incomplete}")
    broken = [(v, k) for v in versions for k in versions[v]["broken"]] + [(v, "") for v in refused]
    equal(sorted((x["version"], x["key"] or "") for x in m.control("errors.json")), sorted(broken), "errors.json")
    status = m.control("status.json")
    equal({v["version"]: v["state"] for v in status["versions"] if v["version"] not in refused},
          {v: "ready" for v in complete}, "status.json")


def folder(name):
    """One golden folder."""
    for source, versions in lib.golden_sources(name):
        directory(name, source, versions)


def directory(name, source, versions):
    with lib.mount(source) as m:
        m.settled()
        check_root(m, name, versions)
        for version, want in versions.items():
            if want["complete"] and not want["refused"]:
                check_version(m, source, name, version, want)
        case(name)
        broken = [(v, k) for v in versions for k in versions[v]["broken"] or [""] * versions[v]["refused"]]
        equal(sorted((x["version"], x["key"] or "") for x in m.control("errors.json")), sorted(broken),
              "errors.json after everything was read")


def all_of(name):
    def test():
        folder(name)
    test.__name__ = name
    return test


FOLDERS = [p.parent.name
           for family in ("composer*", "dcp-*", "deepspeed-*", "hf-*", "megatron-*", "numpy", "paddle-*",
                          "parts", "torch-checkpointing", "torch-ranks", "torch-save", "torchao")
           for p in sorted(lib.GOLDEN.glob(f"{family}/manifest.json"))]
lib.main(*map(all_of, lib.sample(FOLDERS)))
