# SPDX-License-Identifier: Apache-2.0
"""shard/<layout>/<rank>: what each rank of a parallel job holds, against the frameworks' own answers."""
import hashlib
import json
import mmap
import os
import re
import shutil
import subprocess
import threading
import zlib

import arrays
import lib
from lib import case, check, equal, errno_of, fails, golden, mount, read, sha

FORMS = {"npy": ".npy", "raw": ".bin", "safetensors": ".safetensors"}


def manifest_shards(name):
    """{(version, layout): {(rank, key): entry}} of a golden checkpoint."""
    manifest = json.loads((lib.GOLDEN / name / "manifest.json").read_text(encoding="utf-8"))
    out = {}
    for v in manifest.get("versions", []):
        for s in v.get("shards", []):
            out.setdefault((v["name"], s["layout"]), {})[(s["rank"], s["key"])] = s
    return out


def as_layout(text, directory):
    """The name under shard/ of a manifest's layout; a file is written for one that is not a name."""
    if not text.startswith("mesh ") or ": " not in text:
        return text, None
    path = directory / f"l{hashlib.md5(text.encode()).hexdigest()[:8]}.dcpl"
    mesh, _, rules = text.partition(": ")
    # The generators match a name within the key, so that optimizer state is cut as its parameter.
    rules = re.sub(r"(\*[\w.]+\w)(?= )", r"\1*", rules)
    rules = re.sub(r"_StridedShard\((\d+), split_factor=(\d+)\)", r"strided(\1,\2)", rules).replace("Shard(", "shard(")
    path.write_text("\n".join([mesh, *rules.split("; "), "* replicate"]) + "\n", encoding="utf-8")
    return path.stem, path


def rank_index(base):
    doc = json.loads(read(base / "index.json"))
    return {**doc, "tensors": {t["key"]: t for t in doc["tensors"]}}


def check_rank(base, want, dtypes):
    """One rank: its index, every form of every tensor, and the file of all of them."""
    index = rank_index(base)
    model, metadata = arrays.parse_safetensors(read(base / "model.safetensors"))
    left = [k for k, dtype in dtypes.items() if dtype in arrays.NOT_IN_SAFETENSORS]
    check(all(k in metadata.get("dcpfs.left_out", "") for k in left) and bool(left) == ("dcpfs.left_out" in metadata),
          f"all tensors are in model.safetensors but {left}: {metadata}")
    for key, s in want.items():
        case(f"{base.parts[-4:]} {key}")
        t = index["tensors"].get(key)
        if not check(t, "the rank's index.json names the key"):
            continue
        dtype = dtypes[key]
        equal((t["dtype"], t["shape"], t["error"]), (dtype, s["shape"], None), "dtype, shape, error")
        raw = read(base / t["files"]["raw"])
        equal(sha(raw), s["sha256"], "sha256 of raw/")
        descr, shape, numbers = arrays.parse_npy(read(base / t["files"]["npy"]))
        equal((descr, shape), (arrays.DESCR[dtype], arrays.shown_shape(dtype, s["shape"])), "header of npy/")
        check(arrays.same_numbers(dtype, numbers, arrays.widened(dtype, raw)), "numbers of npy/")
        one, _ = arrays.parse_safetensors(read(base / t["files"]["safetensors"]))
        equal(one.get(key), (dtype, arrays.shown_shape(dtype, s["shape"]), raw), "safetensors/")
        equal(model.get(key), one.get(key), "model.safetensors")


def shards_agree_with_the_frameworks():
    seen = 0
    for name in sorted(p.name for p in lib.GOLDEN.iterdir() if (p / "manifest.json").exists()):
        shards = manifest_shards(name)
        if not shards:
            continue
        case(name)
        directory = lib.fresh("layouts")
        named = {layout: as_layout(layout, directory) for _, layout in shards}
        options = [f"--layout={path}" for _, path in named.values() if path]
        source, versions = golden(name)
        with mount(source, *options) as m:
            for (version, layout), entries in shards.items():
                base = m.at / version / "shard" / named[layout][0]
                dtypes = {k: t["dtype"] for k, t in versions[version]["tensors"].items()}
                for rank in sorted({r for r, _ in entries}):
                    check_rank(base / str(rank), {k: e for (r, k), e in entries.items() if r == rank}, dtypes)
                    seen += 1
            equal(m.control("errors.json"), [], "errors.json")
    check(seen > 30, f"only {seen} ranks were compared")


def numbered(shape, dtype="F32", start=0):
    """(bytes, shape) where every element is its own number."""
    n = arrays.volume(shape)
    size = arrays.ITEM[dtype]
    return b"".join(((start + i) % 256 ** size).to_bytes(size, "little") for i in range(n))


def model(where, keys, shards=3):
    """A checkpoint of int-like tensors; {key: (dtype, shape, cut dimension, bytes)}."""
    tensors = {k: (d, s, c, numbered(s, d, 1000 * i)) for i, (k, d, s, c) in enumerate(keys)}
    arrays.write_sharded(where / "step-1", tensors, shards)
    return tensors


def chunked(n, parts, at):
    """torch.chunk: ceil-sized parts, the last ones shorter or empty."""
    step = -(-n // parts)
    return min(at * step, n), min((at + 1) * step, n)


def ranks_make_the_whole_tensor():
    """All ranks of fsdp<N> and dim<k>x<N>, laid together, are the tensor again."""
    rng = lib.rng("layouts")
    keys = [(f"t{i}", rng.choice(["F32", "U8", "I64", "BF16"]),
             [rng.randint(1, 9) for _ in range(rng.randint(1, 3))], 0) for i in range(12)]
    source = lib.fresh("random")
    tensors = model(source, keys)
    for options in ([], ["--io=pread"]):
        with mount(source, *options) as m:
            for _ in range(4):
                parts, dim = rng.randint(1, 7), rng.randint(0, 1)
                name = f"fsdp{parts}" if dim == 0 else f"dim{dim}x{parts}"
                for key, (dtype, shape, _, raw) in tensors.items():
                    case(f"{options} {name} {key} {shape}")
                    if len(shape) <= dim:
                        continue
                    for rank in range(parts):
                        lo, hi = chunked(shape[dim], parts, rank)
                        region = [[lo, hi] if d == dim else [0, n] for d, n in enumerate(shape)]
                        equal(read(m.at / "step-1" / "shard" / name / str(rank) / "raw" / f"{key}.bin"),
                              arrays.region_of(raw, dtype, shape, region), f"rank {rank}")


def fused_and_flat_tensors_are_cut():
    """A fused QKV tensor cut per part, and a flattening with padding."""
    source = lib.fresh("fused")
    tensors = model(source, [("attn.qkv.weight", "F32", [8, 3], 0), ("norm.weight", "F32", [7], 0),
                             ("embed", "F32", [5, 2], 0)])
    (source / "fused.dcpl").write_text("mesh tp=2\n*.qkv.* shard(0, groups=[4,2,2])\nnorm.* flat\n"
                                       "embed drop\n* replicate\n", encoding="utf-8")
    with mount(source) as m:
        equal(os.listdir(m.at / "step-1" / "shard"), ["fused"], "layouts beside the checkpoint are listed")
        base = m.at / "step-1" / "shard" / "fused"
        raw = tensors["attn.qkv.weight"][3]
        row = 12
        for rank, rows in ((0, [0, 1, 4, 6]), (1, [2, 3, 5, 7])):
            case(f"fused, rank {rank}")
            equal(read(base / str(rank) / "raw" / "attn.qkv.weight.bin"),
                  b"".join(raw[r * row:(r + 1) * row] for r in rows), "rows of q, k and v")
            check(not (base / str(rank) / "raw" / "embed.bin").exists(), "a dropped key is not there")
        case("flat")
        padded = tensors["norm.weight"][3] + bytes(4)
        equal([read(base / str(r) / "raw" / "norm.weight.bin") for r in (0, 1)], [padded[:16], padded[16:]],
              "equal parts, zeros behind")
        descr, shape, _ = arrays.parse_npy(read(base / "1" / "npy" / "norm.weight.npy"))
        equal(shape, [4], "shape of a flat part")
        layout = json.loads(read(base / "layout.json"))
        equal((layout["ranks"], layout["mesh"]), (2, {"tp": 2}), "layout.json")
        check("flat" in layout["keys"]["norm.weight"]["placement"] and
              layout["keys"]["norm.weight"]["line"] == 3, f"layout.json says which rule: {layout['keys']}")


def layouts_are_found_by_name():
    """Built-in names are walked into, others are not there; numbers of ranks are numbers."""
    source, _ = golden("dcp-fsdp2")
    with mount(source) as m:
        shard = m.at / "latest" / "shard"
        equal(os.listdir(shard), [], "nothing is listed")
        for name in ("fsdp4", "dim1x2", "tp2:llama", "fsdp1000"):
            case(name)
            n = int("".join(c for c in name.split(":")[0].split("x")[-1] if c.isdigit()))
            equal(sorted(os.listdir(shard / name), key=lambda x: (x == "layout.json", x)),
                  [*sorted(map(str, range(n))), "layout.json"], "ranks")
            check((shard / name / "0" / "npy").is_dir(), "a rank has npy/")
            fails("ENOENT", os.stat, shard / name / str(n))
            fails("ENOENT", os.stat, shard / name / "00")
            fails("ENOENT", os.stat, shard / name / "-1")
        for name in ("fsdp0", "fsdp", "fsdp99999999", "dim1x", "tp2:lama", "mesh:dp2:none", "x" * 255, "fsdp4 "):
            case(name[:20])
            fails("ENOENT", os.stat, shard / name)
        case("..")
        rank = shard / "fsdp4" / "3"
        equal(os.stat(rank / "npy" / "..").st_ino, os.stat(rank).st_ino, "npy/..")
        equal(os.stat(rank / "..").st_ino, os.stat(shard / "fsdp4").st_ino, "a rank's ..")
        equal(os.stat(shard / "fsdp4" / "..").st_ino, os.stat(shard).st_ino, "a layout's ..")
        case("one walk")
        seen = {}
        for here, dirs, files in os.walk(shard / "fsdp4"):
            for n in dirs + files:
                st = os.lstat(os.path.join(here, n))
                check(st.st_ino not in seen, f"{here}/{n} has the inode of {seen.get(st.st_ino)}")
                seen[st.st_ino] = f"{here}/{n}"
        check(len(seen) > 100, f"{len(seen)} entries")
        inos = {p.replace(str(m.at), ""): i for i, p in seen.items()}
    with mount(source) as m:
        case("inode numbers after a remount")
        for path, ino in list(inos.items())[:200]:
            equal(os.lstat(str(m.at) + path).st_ino, ino, path)


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * mmap.PAGESIZE


def worked(pid):
    """Seconds of the processor."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return sum(map(int, f.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def many_ranks_are_listed():
    """Listing makes none of them; those entered longest ago are forgotten, and found again by whoever comes back."""
    source, _ = golden("dcp-fsdp2")
    kept = 1 << 16
    with mount(source) as m:
        shard = m.at / "latest" / "shard"
        began, before = worked(m.pid), resident(m.pid)
        equal(len(os.listdir(shard / "fsdp1048576")), 1048577, "ranks and layout.json")
        check(worked(m.pid) - began < 30, f"listed in {worked(m.pid) - began:.1f} s of the processor")
        check(lib.sanitized() or resident(m.pid) - before < 64 << 20, f"{resident(m.pid) - before} bytes for a listing")
        check((shard / "fsdp1048576" / "1048575" / "npy").is_dir(), "the last can be entered")
        equal(len(os.listdir(shard / "fsdp512")), 513, "and those of another layout")
        case("entering more than are kept")
        want = sha(read(shard / "fsdp2" / "0" / "model.safetensors"))
        left, inos = shard / "fsdp4" / "3", {e.name: e.inode() for e in os.scandir(shard / "fsdp4")}
        equal({name: os.stat(shard / "fsdp4" / name).st_ino for name in inos}, inos, "inodes of a listing")
        with open(shard / "fsdp2" / "1" / "raw" / os.listdir(shard / "fsdp2" / "1" / "raw")[0], "rb") as held:
            data = held.read()
            for rank in range(kept + 1000):
                os.stat(shard / "fsdp1048576" / str(rank))
            lib.forget(held.fileno())
            equal(os.pread(held.fileno(), len(data), 0), data, "what is open is read on")
        check((left / "npy").is_dir() and len(os.listdir(left)) > 4, "a rank that was forgotten is there")
        check(len(os.listdir(left / "raw")) > 0, "and what is in it")
        equal(sha(read(shard / "fsdp2" / "0" / "model.safetensors")), want, "and the same bytes")
        equal(len(os.listdir(shard / "fsdp512" / "5")), len(os.listdir(left)), "new ones are entered")


def ranks_have_one_file():
    """model.safetensors: mapped, read at random, and of the exact size."""
    source, _ = golden("dcp-fsdp2")
    with mount(source) as m:
        for rank in range(3):
            case(f"rank {rank}")
            path = m.at / "latest" / "shard" / "fsdp3" / str(rank) / "model.safetensors"
            data = read(path)
            equal(os.stat(path).st_size, len(data), "size")
            rng = lib.rng("model", rank)
            with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as view:
                equal(bytes(view), data, "mapped bytes")
                for _ in range(200):
                    at = rng.randrange(len(data))
                    n = rng.randint(1, 9000)
                    lib.forget(f.fileno())
                    equal(os.pread(f.fileno(), n, at), data[at:at + n], f"{n} bytes at {at}")
            check(int.from_bytes(data[:8], "little") % 8 == 0, "header is padded")


def whole(version, key):
    return version / rank_index(version)["tensors"][key]["files"]["raw"]


def plans_read_the_same_bytes():
    """plan.json's reads, done with nothing but pread, give the rank's raw files."""
    source, _ = golden("dcp-tp-fsdp")
    some = 0
    flat = lib.fresh("flat") / "flat.dcpl"
    flat.write_text("mesh a=5\n* flat(pad=7)\n", encoding="utf-8")
    with mount(source, f"--layout={flat}") as m:
        version = m.latest()
        for layout, rank in (("fsdp3", 1), ("dim1x2", 0), ("dim1x2", 1), ("flat", 0), ("flat", 4)):
            base = m.at / version / "shard" / layout / str(rank)
            plan = json.loads(read(base / "plan.json"))
            index = rank_index(base)
            for t in plan["tensors"]:
                case(f"{layout} {rank} {t['key']}")
                out = bytearray(t["nbytes"])
                for r in t["reads"]:
                    with open(source / version / r["file"], "rb") as f:
                        for at, to in offsets(r):
                            out[to:to + r["run"]] = os.pread(f.fileno(), r["run"], at)
                raw = base / index["tensors"][t["key"]]["files"]["raw"]
                equal(bytes(out), read(raw), "bytes the plan gives")
                files = {r["file"] for r in t["reads"]}
                told = os.getxattr(raw, "user.dcpfs.files").decode().split() if "user.dcpfs.files" in os.listxattr(raw) else []
                equal(sorted(told), sorted(files), "the attribute names the files of the part")
                some += len(files) < len(os.getxattr(whole(m.at / version, t["key"]), "user.dcpfs.files").split())
            case(f"{layout} {rank}")
            want = sum(t["nbytes"] for t in plan["tensors"])
            check(plan["nbytes"] == want or (layout == "flat" and 0 < plan["nbytes"] < want), "bytes of the rank, less zeros")
            check(plan["touched"] >= plan["nbytes"] and plan["amplification"] >= 1, "amplification")
            equal(sum(f["nbytes"] for f in plan["files"]), plan["nbytes"], "bytes by file")
    check(some > 3, f"{some} parts need fewer files than their tensor has")


def attributes_name_the_needed_file():
    """Of several pieces of a tensor in one file, a rank needs one; the attribute names that file for each of them."""
    source, _ = golden("deepspeed-tp")
    with mount(source) as m:
        some = 0
        for rank in range(6):
            base = m.at / m.latest() / "shard" / "fsdp6" / str(rank)
            tensors = rank_index(base)["tensors"]
            for t in json.loads(read(base / "plan.json"))["tensors"]:
                if t["error"]:
                    continue
                case(f"{rank} {t['key']}")
                raw = base / tensors[t["key"]]["files"]["raw"]
                told = os.getxattr(raw, "user.dcpfs.files").decode().split() if "user.dcpfs.files" in os.listxattr(raw) else []
                equal(sorted(told), sorted({r["file"] for r in t["reads"]}), "files")
                some += bool(told)
        check(some > 6, f"{some} parts")


def offsets(read_of):
    at = [(read_of["offset"], read_of["to"])]
    for n, s, d in zip(read_of.get("count", []), read_of.get("stride", []), read_of.get("to_stride", [])):
        at = [(a + i * s, b + i * d) for a, b in at for i in range(n)]
    return at


def unpacked(codec, data):
    if codec == "latin1":
        return data.decode("utf-8").encode("latin-1")
    if codec == "deflate":
        return zlib.decompress(data, -15)
    how = {"zstd": ["zstd", "-dcq"], "lz4": ["lz4", "-dcq"], "gzip": ["gzip", "-dc"], "bzip2": ["bzip2", "-dc"]}
    return subprocess.run(how.get(codec, ["xz", "-dc"]), input=data, capture_output=True, check=True).stdout


def plans_name_packed_bytes():
    """plan.json names the stored bytes that a read's offsets count in when they are decoded, and how that is done."""
    codecs = set()
    for name, versions in (("dcp-async-dedup/ckpt", ["6-zstd"]), ("composer/ckpt/containers", None)):
        source = lib.GOLDEN / name
        with mount(source) as m:
            for version in versions or sorted(set(os.listdir(m.at)) - {".dcpfs", "latest", "tags", "by-key"}):
                base, files = m.at / version / "shard" / "dim0x2" / "1", source / (version if versions else "")
                plan, index = json.loads(read(base / "plan.json")), rank_index(base)
                for t in plan["tensors"]:
                    case(f"{name} {version} {t['key']}")
                    out = bytearray(t["nbytes"])
                    for r in t["reads"]:
                        data = (files / r["file"]).read_bytes()
                        if "decoded" in r:
                            d = r["decoded"]
                            codecs.add(d["codec"])
                            data = unpacked(d["codec"], data[d["offset"]:d["offset"] + d["nbytes"]])
                        for at, to in offsets(r):
                            out[to:to + r["run"]] = data[at:at + r["run"]]
                    raw = base / index["tensors"][t["key"]]["files"]["raw"]
                    equal(bytes(out), read(raw), "bytes the plan gives")
                case(f"{name} {version}")
                pages = sum(os.path.getsize(files / f["file"]) // 4096 + 1 for f in plan["files"])
                check(0 < plan["touched"] <= 4096 * (pages + plan["reads"]), f"touched: {plan['touched']}")
    case("codecs")
    check({"zstd", "gzip", "bzip2", "xz"} <= codecs, f"met {sorted(codecs)}")


def touched_pages_are_counted():
    """touched is the pages under the runs: of a column far apart, each row's own; of one close together, all between."""
    source = lib.fresh("pages")
    arrays_of = {"far": (40, 9000), "near": (64, 64)}
    model(source, [(k, "U8", list(s), 0) for k, s in arrays_of.items()])
    with mount(source) as m:
        plan = json.loads(read(m.at / "step-1" / "shard" / "dim1x4" / "1" / "plan.json"))
        for t in plan["tensors"]:
            case(t["key"])
            equal(t["error"], None, "error")
        want = 0
        for t in plan["tensors"]:
            for r in t["reads"]:
                want += 4096 * len({page for at, _ in offsets(r) for page in range(at // 4096, (at + r["run"] - 1) // 4096 + 1)})
        equal(plan["touched"], want, "touched")
        equal(sum(f["touched"] for f in plan["files"]), want, "by file")


def damage_fails_its_ranks_only():
    """A shard that was cut fails the ranks that need it, and only them."""
    source = lib.fresh("damaged")
    tensors = model(source, [("w", "F32", [12, 4], 0), ("v", "U8", [30], 0)])
    # shard 3 of 3 holds rows 8 to 11; its file loses its end after indexing
    with mount(source) as m:
        shard = m.at / "step-1" / "shard" / "fsdp3"
        last = source / "step-1" / "shard-00003-model-00001-of-00001.safetensors"
        check(read(m.at / "step-1" / "raw" / "w.bin") == tensors["w"][3], "sound at first")
        os.truncate(last, os.path.getsize(last) - 40)
        for rank in (0, 1):
            case(f"rank {rank}")
            # The mount may see the change, and open the version again.
            got = []
            lib.wait(lambda: got.append(lib.outcome(shard / str(rank) / "raw" / "w.bin")) or got[-1][1] != "ESTALE", "no ESTALE")
            equal(got[-1], (tensors["w"][3][rank * 64:rank * 64 + 64], None), "rows of sound shards")
        case("rank 2")
        _, why = lib.outcome(shard / "2" / "raw" / "w.bin")
        check(why in ("EIO", "ESTALE"), f"rows of the shard that was cut: {why}")
    # the same, found so when the index is made
    with mount(source) as m:
        check("w" in {e["key"] for e in m.control("errors.json")}, "the whole of it cannot be read")
        equal(lib.outcome(m.at / "step-1" / "raw" / "w.bin")[1], "EIO", "nor is it")
        shard = m.at / "step-1" / "shard" / "fsdp3"
        for rank in range(3):
            case(f"indexed, rank {rank}")
            here, sound = shard / str(rank), rank < 2
            data, why = lib.outcome(here / "raw" / "w.bin")
            want = (tensors["w"][3][rank * 64:rank * 64 + 64], None) if sound else (None, "EIO")
            equal((data, why), want, "rows")
            told = {t["key"]: t["error"] for t in json.loads(read(here / "index.json"))["tensors"]}
            check((told["w"] is None) == sound, f"index.json of the rank: {told}")
            header, _ = arrays.parse_safetensors(read(here / "model.safetensors"))
            equal("w" in header, sound, "is it in model.safetensors?")
            equal("user.dcpfs.error" in os.listxattr(here / "raw" / "w.bin"), not sound, "attribute")


def tied_tensors_are_cut_apart():
    """Tensors that share their bytes are one file of a version, but a rank may cut each in its own way."""
    source, _ = golden("composer")
    emb, out = (f"state.model.module.{n}.weight" for n in ("emb", "out"))
    path = lib.fresh("layouts") / "apart.dcpl"
    path.write_text("mesh tp=2\n*.out.weight shard(1)\n* shard(0, optional)\n", encoding="utf-8")
    with mount(source, f"--layout={path}") as m:
        version = next(v for v in m.versions() if m.index(v)["tensors"].get(out, {}).get("alias_of") == emb)
        whole, parts = m.at / version / "raw", m.at / version / "shard" / "apart" / "1" / "raw"
        equal(os.stat(whole / f"{out}.bin").st_ino, os.stat(whole / f"{emb}.bin").st_ino, "one file")
        equal([os.stat(at / f"{emb}.bin").st_nlink for at in (whole, parts)], [2, 1], "its names: of the version, of the rank")
        data = read(whole / f"{emb}.bin")
        equal(read(parts / f"{emb}.bin"), data[6 * 24:], "the last rows of 11")
        equal(read(parts / f"{out}.bin"), b"".join(data[24 * r + 12:24 * r + 24] for r in range(11)), "the last columns of 6")


def wrong_layout_files_are_reported():
    source = lib.fresh("wrong")
    model(source, [("w", "F32", [12, 4], 0), ("b", "F32", [5], 0)])
    bad = lib.fresh("bad") / "bad.dcpl"
    bad.write_text("mesh tp=2\n* shard(0)@pt\n", encoding="utf-8")
    done = lib.run(lib.PROGRAM, "mount", f"--layout={bad}", source, lib.fresh("never"), env=lib.environment())
    check(done.returncode != 0 and "bad" in done.stderr and "2" in done.stderr and "tp" in done.stderr,
          f"a wrong layout is refused with its name, line and the nearest dim: {done.stderr}")
    twins = [lib.fresh("a") / "x.dcpl", lib.fresh("b") / "x.txt"]
    for n, twin in enumerate(twins):
        twin.write_text(f"mesh tp={n + 1}\n* replicate\n", encoding="utf-8")
    done = lib.run(lib.PROGRAM, "mount", *(f"--layout={t}" for t in twins), source, lib.fresh("never"),
                   env=lib.environment())
    check(done.returncode == 2 and "x.txt: another" in done.stderr, f"one name for two layouts: {done.stderr}")
    (source / "odd.dcpl").write_text("mesh tp=3\nw shard(0, even)\n* shard(0, even)\n", encoding="utf-8")
    (source / "none.dcpl").write_text("mesh tp=\n", encoding="utf-8")
    with mount(source) as m:
        case("beside the checkpoint")
        equal(os.listdir(m.at / "step-1" / "shard"), ["odd"], "the sound one is listed")
        check("none.dcpl" in m.log(), f"the wrong one is told: {m.log()}")
        case("a key that cannot be cut")
        base = m.at / "step-1" / "shard" / "odd" / "1"
        equal(len(read(base / "raw" / "w.bin")), 64, "12 rows over 3")
        fails("EIO EINVAL", read, base / "raw" / "b.bin")
        fails("ENOENT", os.stat, m.at / "step-1" / "shard" / "tp2:lama")
        check('nearest is "llama"' in m.log(), f"a misspelt name is told: {m.log()}")
        check(b"odd:3" in os.getxattr(base / "raw" / "b.bin", "user.dcpfs.error"), "so does an attribute")
        equal((os.getxattr(base / "raw" / "w.bin", "user.dcpfs.shape"),
               os.getxattr(base / "raw" / "w.bin", "user.dcpfs.nbytes")), (b"[4, 4]", b"64"), "attributes of the part")
        entry = rank_index(base)["tensors"]["b"]
        check(entry["error"] and "odd" in entry["error"] and "b" in entry["error"], f"index.json says why: {entry}")
        _, metadata = arrays.parse_safetensors(read(base / "model.safetensors"))
        equal(metadata.get("dcpfs.left_out"), "b", "model.safetensors names what it lacks")


def layout_files_are_found_beside():
    """A *.dcpl lies in SOURCE, where its versions lie, or beside SOURCE where that is a version; the first counts."""
    source = lib.fresh("beside")
    model(source / "run", [("w", "F32", [12, 4], 0)])
    model(source / "placed" / "checkpoints", [("w", "F32", [12, 4], 0)])
    shutil.copy(next((source / "run" / "step-1").glob("*-00001-*.safetensors")), source / "one.safetensors")
    for n, name in enumerate(("run/mine", "run/step-1/mine", "run/step-1/own", "x", "placed/checkpoints/deep", "placed/top"), 2):
        (source / f"{name}.dcpl").write_text(f"mesh dp={n}\n* shard(0, optional)\n", encoding="utf-8")
    (source / "run" / "out.dcpl").symlink_to(source / "x.dcpl")
    given = lib.fresh("given") / "own.dcpl"
    given.write_text("mesh dp=9\n* shard(0, optional)\n", encoding="utf-8")
    for at, want, options in (("run", {"mine": 2}, []), ("run/step-1", {"mine": 3, "own": 4}, []),
                              ("run/step-1", {"mine": 3, "own": 9}, [f"--layout={given}"]),
                              ("one.safetensors", {"x": 5}, []), ("placed", {"deep": 6, "top": 7}, []),
                              ("placed/checkpoints", {"deep": 6}, []), ("placed/checkpoints/step-1", {"deep": 6}, [])):
        case(f"{at} {options}")
        with mount(source / at, *options) as m:
            shard = m.at / m.latest() / "shard"
            equal({name: json.loads(read(shard / name / "layout.json"))["ranks"] for name in os.listdir(shard)}, want,
                  "ranks of what is listed")
            equal({x["name"]: os.path.isfile(x["file"]) and os.path.isabs(x["file"]) for x in m.control("config.json")["layouts"]},
                  dict.fromkeys(want, True), "config.json has them, with their files")
            check(("out.dcpl" in m.log()) == at.startswith("run"), f"a link that leads out is told: {m.log()}")


def ranks_are_read_at_once():
    """Eight readers, each of its own rank, over and over."""
    source, _ = golden("dcp-fsdp2")
    with mount(source) as m:
        shard = m.at / "latest" / "shard" / "fsdp8"
        want = {r: sha(read(shard / str(r) / "model.safetensors")) for r in range(8)}

        def one(rank):
            for _ in range(5):
                with open(shard / str(rank) / "model.safetensors", "rb") as f:
                    lib.forget(f.fileno())
                    equal(sha(f.read()), want[rank], f"rank {rank}")
        threads = [threading.Thread(target=one, args=(r,)) for r in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def ranks_go_with_their_version():
    source = lib.fresh("gone")
    model(source, [("w", "F32", [12, 4], 0)])
    with mount(source) as m:
        path = m.at / "step-1" / "shard" / "fsdp2" / "1" / "raw" / "w.bin"
        with open(path, "rb") as f:
            equal(len(f.read()), 96, "before")
            lib.ok("rm", "-r", source / "step-1")
            lib.wait(lambda: not (m.at / "step-1").exists(), "the version leaves", lib.APPEARS)
        fails("ENOENT ESTALE", os.stat, path)
        equal(errno_of(os.listdir, m.at), None, "the root")


lib.main(shards_agree_with_the_frameworks, ranks_make_the_whole_tensor, fused_and_flat_tensors_are_cut, layouts_are_found_by_name,
         many_ranks_are_listed, ranks_have_one_file, plans_read_the_same_bytes, attributes_name_the_needed_file,
         plans_name_packed_bytes, touched_pages_are_counted, damage_fails_its_ranks_only, tied_tensors_are_cut_apart,
         wrong_layout_files_are_reported, layout_files_are_found_beside, ranks_are_read_at_once, ranks_go_with_their_version)
