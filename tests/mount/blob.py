# SPDX-License-Identifier: Apache-2.0
"""DCPFS_IOC_INFO and layout blobs (fs/ABI.md), by a reader that knows nothing but that page."""
import ctypes
import errno
import fcntl
import itertools
import json
import os
import struct
import zlib

import arrays
import lib
from lib import case, check, equal, errno_of, fails, golden, mount, read

IOC_INFO = 2 << 30 | 256 << 16 | ord("D") << 8 | 0x44
CONVERTED, BROKEN, DIRECTORY = 1, 2, 4


# ---- the reader: everything a client needs, and nothing of dcpfs ----

def info(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        data = fcntl.ioctl(fd, IOC_INFO, bytes(256))
    finally:
        os.close(fd)
    magic, abi, flags, generation, ino, size, data_offset, mnt, blob = struct.unpack_from("<8sII4Q16s64s", data)
    if magic != b"DCPFSINF" or abi != 1:
        raise ValueError("not a dcpfs file")
    return {"flags": flags, "generation": generation, "ino": ino, "size": size, "data_offset": data_offset,
            "mount": mnt, "blob": blob.rstrip(b"\0").decode()}


def parse(blob):
    """(size, generation, inline bytes, directory, files, descriptors), or ValueError."""
    if len(blob) < 128 or blob[:8] != b"DCPFSBLB":
        raise ValueError("magic")
    abi, head, total, generation, _, size, iat, inl, dat, nd, fat, nf, dirn, dirat = struct.unpack_from(
        "<II8QQIIQ", blob, 8)
    body_crc, header_crc = struct.unpack_from("<II", blob, 120)
    if (abi, head, total) != (1, 128, len(blob)):
        raise ValueError("version or length")
    if zlib.crc32(blob[:124]) != header_crc or zlib.crc32(blob[128:]) != body_crc:
        raise ValueError("checksum")
    files = []
    for i in range(nf):
        dev, ino, fsize, mtime, _, nat, nn, _ = struct.unpack_from("<QQQqqQII", blob, fat + 56 * i)
        files.append((blob[nat:nat + nn].decode(), (dev, ino, fsize, mtime)))
    descs = [struct.unpack_from("<4I15Q", blob, dat + 136 * i) for i in range(nd)]
    return size, generation, blob[iat:iat + inl], blob[dirat:dirat + dirn].decode(), files, descs


def same(fd, identity):
    st = os.fstat(fd)
    return (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns) == identity


def assemble(blob):
    """The bytes of the virtual file, with nothing but pread of the files the blob names."""
    size, _, inline, directory, files, descs = parse(blob)
    out = bytearray(size)
    out[:len(inline)] = inline
    fds = [os.open(os.path.join(directory, name), os.O_RDONLY) for name, _ in files]
    try:
        if not all(same(fd, identity) for fd, (_, identity) in zip(fds, files)):
            raise OSError(errno.ESTALE, "changed")
        for file, swap, ndim, _, src, dst, run, *rest in descs:
            count, from_, to = rest[0:ndim], rest[4:4 + ndim], rest[8:8 + ndim]
            for index in itertools.product(*map(range, count)):
                at = src + sum(i * s for i, s in zip(index, from_))
                data = os.pread(fds[file], run, at)
                if swap:
                    data = b"".join(data[i:i + swap][::-1] for i in range(0, run, swap))
                where = dst + sum(i * s for i, s in zip(index, to))
                out[where:where + run] = data
    finally:
        for fd in fds:
            os.close(fd)
    return bytes(out)


# ---- the tests ----

def blob_of(m, path):
    got = info(path)
    return got, read(m.at / got["blob"]) if got["blob"] else None


def every_file_of(m, version, base, index):
    """(path, may have a blob) of all files of tensors."""
    for t in index["tensors"].values():
        for form in ("raw", "npy", "safetensors"):
            if t["files"][form] and not t.get("error"):
                widened = form == "npy" and arrays.DESCR.get(t["dtype"]) != arrays.NATIVE.get(t["dtype"])
                stored = not any(p.get("filter") or p.get("unpacked") for p in t.get("pieces", []))
                yield base / t["files"][form], not widened and stored


def blobs_of_golden_files_are_right():
    """Whatever a blob says, assembled, is what the mount reads."""
    with_blob = 0
    for name in lib.sample(sorted(p.name for p in lib.GOLDEN.iterdir() if (p / "manifest.json").exists() and (p / "ckpt").is_dir())):
        for source, versions in lib.golden_sources(name):
            if not any(v["complete"] for v in versions.values()):
                continue
            with mount(source) as m:
                m.settled()
                for version in m.versions():
                    base = m.at / version
                    for path, stored in every_file_of(m, version, base, m.index(version)):
                        case(f"{name}/{version} {path.name}")
                        got, blob = blob_of(m, path)
                        equal((got["size"], got["ino"]), (os.stat(path).st_size, os.stat(path).st_ino), "size and inode")
                        if not stored:
                            equal((blob, got["flags"] & CONVERTED), (None, CONVERTED), "no blob, and why")
                            continue
                        with_blob += 1
                        if check(blob, "has a blob"):
                            equal(assemble(blob), read(path), "bytes")
                            equal(parse(blob)[:2], (got["size"], got["generation"]), "size and generation")
                            check(all(not n.startswith("/") and ".." not in n.split("/") for n, _ in parse(blob)[4]),
                                  "names stay inside the source")
    check(with_blob > lib.least(200), f"only {with_blob} blobs")


def blobs_of_ranks_are_right():
    source, _ = golden("dcp-tp-fsdp")
    with mount(source) as m:
        for layout in ("fsdp3", "dim1x2"):
            for rank in ("0", "1"):
                base = m.at / m.latest() / "shard" / layout / rank
                case(f"{layout} {rank}")
                want = read(base / "model.safetensors")
                got, blob = blob_of(m, base / "model.safetensors")
                equal(assemble(blob), want, "model.safetensors")
                equal(got["data_offset"], 8 + int.from_bytes(want[:8], "little"), "where the tensors begin")
                got, blob = blob_of(m, base)
                equal((got["flags"], assemble(blob)), (DIRECTORY, want), "the blob of the directory")
                for name in os.listdir(base / "raw"):
                    equal(assemble(blob_of(m, base / "raw" / name)[1]), read(base / "raw" / name), name)


def blobs_of_models_are_right():
    """Files of hf/, one or several; the directory has a blob when they are one."""
    source, _ = golden("dcp-tp-fsdp")
    for size in ("5GB", "4096"):
        with mount(source, "--hf-shard-size", size) as m:
            base = m.at / m.latest() / "hf"
            names = [n for n in os.listdir(base) if n.endswith(".safetensors")]
            equal(len(names) == 1, size == "5GB", "files")
            for name in names:
                case(f"{size} {name}")
                equal(assemble(blob_of(m, base / name)[1]), read(base / name), "bytes")
            if len(names) == 1:
                equal(assemble(blob_of(m, base)[1]), read(base / names[0]), "the blob of the directory")
            else:
                fails("ENOTTY", info, base)


def metadata_is_passed_on():
    """What a stored file says in __metadata__ is in the files that have its tensors, which are as long as a listing says."""
    source = lib.fresh("source") / "run"
    source.mkdir()
    says = {"a": {"format": "pt", "title": "x"}, "b": {"title": "other", "more": "2"}, "c": {}}
    for i, (key, of) in enumerate(says.items()):
        about = json.dumps({"__metadata__": of, key: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        (source / f"model-0000{i + 1}-of-00003.safetensors").write_bytes(struct.pack("<Q", len(about)) + about + bytes([i] * 8))
    with mount(source, "--hf-shard-size", "8") as m:
        base = m.at / m.latest()
        for key, of in says.items():
            one = base / "safetensors" / f"{key}.safetensors"
            equal((arrays.parse_safetensors(read(one))[1], one.stat().st_size), ({"format": "pt", **of}, len(read(one))), key)
        for name in (base / "hf").glob("*.safetensors"):
            (key,), got = arrays.parse_safetensors(read(name))
            equal(got, {**says[key], "format": "pt"}, f"hf/ of {key}")
        rank = base / "shard" / "fsdp2" / "1"
        equal(arrays.parse_safetensors(read(rank / "model.safetensors"))[1], {"format": "pt", "title": "x", "more": "2"}, "joined")
        one = rank / "safetensors" / "b.safetensors"
        equal((arrays.parse_safetensors(read(one))[1], one.stat().st_size), ({"format": "pt", **says["b"]}, len(read(one))), "of a rank")


def other_files_have_no_blob():
    source, _ = golden("dcp-fsdp2")
    with mount(source) as m:
        base = m.at / m.latest()
        for path in (m.at, m.at / ".dcpfs", m.at / ".dcpfs" / "stats", base / "README.txt", base / "npy",
                     base / "index.json", base / "objects", base / "shard"):
            case(path.name)
            fails("ENOTTY", info, path)
        case("other ioctls")
        with open(base / "index.json", "rb") as f:
            equal(errno_of(fcntl.ioctl, f, 2 << 30 | 8 << 16 | ord("D") << 8 | 0x44, bytes(8)), "ENOTTY", "another size")
            equal(errno_of(fcntl.ioctl, f, 0x5401, bytes(64)), "ENOTTY", "a terminal's")
        case("names in blob/")
        blobs = m.at / ".dcpfs" / "blob"
        equal(os.listdir(blobs), [], "none is listed")
        for name in ("0" * 16, "f" * 16, "1", "x" * 16, f"{os.stat(base / 'npy').st_ino:016x}",
                     f"{os.stat(base / 'raw' / os.listdir(base / 'raw')[0]).st_ino:016X}" + "0"):
            fails("ENOENT ESTALE", os.stat, blobs / name)
        case("two mounts are told apart")
        with mount(source) as other:
            name = sorted(os.listdir(base / "raw"))[0]
            a, b = info(base / "raw" / name), info(other.at / m.latest() / "raw" / name)
            check(a["mount"] != b["mount"] and a["generation"] == b["generation"], f"{a} {b}")


def broken_tensors_are_flagged():
    """Where the kernel reads without asking the daemon, a broken tensor can be open: the call says what it is, and does not fail."""
    with mount(lib.GOLDEN / "hostile/negative-rows", "--no-open") as m:
        m.settled()
        base = m.at / m.latest()
        index = m.index(m.latest())["tensors"]
        for key, flags in ("layer.weight", BROKEN), ("ids", 0):
            equal(info(base / index[key]["files"]["raw"])["flags"], flags, key)


def stale_blobs_are_refused():
    """A blob that is out of date is refused by its reader; the next one is right."""
    source = lib.fresh("moves")
    tensors = {"w": ("U8", [8, 4], 0, bytes(range(32)))}
    arrays.write_sharded(source / "step-1", tensors, 2)
    with mount(source) as m:
        path = m.at / "step-1" / "raw" / "w.bin"
        old, blob = blob_of(m, path)
        equal(assemble(blob), bytes(range(32)), "before")
        shard = source / "step-1" / "shard-00001-model-00001-of-00001.safetensors"
        data = bytearray(read(shard))
        data[-1] ^= 255
        shard.write_bytes(data)
        os.utime(shard, ns=(1, 10 ** 18))
        equal(errno_of(assemble, blob), "ESTALE", "the blob of before")

        def renewed():
            try:
                return info(path)["generation"] != old["generation"]
            except OSError:
                return False
        lib.wait(renewed, "a new generation", lib.APPEARS)
        equal(assemble(blob_of(m, path)[1]), read(path), "after")


def damaged_blobs_are_refused():
    source, _ = golden("dcp-fsdp2")
    rng = lib.rng("tamper")
    with mount(source) as m:
        base = m.at / m.latest() / "raw"
        blob = blob_of(m, base / sorted(os.listdir(base))[0])[1]
        for _ in range(200):
            at, bit = rng.randrange(len(blob)), 1 << rng.randrange(8)
            bad = bytearray(blob)
            bad[at] ^= bit
            try:
                parse(bytes(bad))
                lib.fail(f"a blob with byte {at} changed is accepted")
            except ValueError:
                pass
        for n in (0, 7, 127, len(blob) - 1):
            try:
                parse(blob[:n])
                lib.fail(f"a blob of {n} bytes is accepted")
            except ValueError:
                pass


def sizes_agree_with_the_header():
    """The structs of the header as C lays them out."""
    class File(ctypes.Structure):
        _fields_ = [("id", ctypes.c_uint64 * 5), ("name_off", ctypes.c_uint64), ("n", ctypes.c_uint32 * 2)]
    equal(ctypes.sizeof(File), 56, "a file")
    equal(struct.calcsize("<4I15Q"), 136, "a descriptor")


lib.main(blobs_of_golden_files_are_right, blobs_of_ranks_are_right, blobs_of_models_are_right, metadata_is_passed_on,
         other_files_have_no_blob, broken_tensors_are_flagged, stale_blobs_are_refused, damaged_blobs_are_refused,
         sizes_agree_with_the_header)
