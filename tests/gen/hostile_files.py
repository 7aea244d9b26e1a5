# SPDX-License-Identifier: Apache-2.0
"""Hostile checkpoints, second part: files and links, items in them, safetensors."""
import json
import os
import pathlib
import socket
import struct
import subprocess

from evil import *
from hostile_more import doubled


# ---------------------------------------------------------------- files


def for_paths():
    def link(c, target, n="evil"):
        os.symlink(target, c.d / n)
        return n

    def fifo(c):
        os.mkfifo(c.d / "evil")
        return "evil"

    def sock(c):
        here = os.getcwd()
        os.chdir(c.d)
        try:
            s = socket.socket(socket.AF_UNIX)
            s.bind("evil")
            s.close()
        finally:
            os.chdir(here)
        return "evil"

    def folder(c):
        (c.d / "evil").mkdir()
        return "evil"

    def outside(c):
        (c.d.parent / (c.d.name + ".secret")).write_bytes(c.data)
        return c.d.parent / (c.d.name + ".secret")

    kinds = {
        "absolute": lambda c: str(outside(c)),
        "etc-passwd": lambda c: "/etc/passwd",
        "climbs": lambda c: f"../{outside(c).name}",
        "climbs-inside": lambda c: f"x/../../{outside(c).name}",
        "link-out": lambda c: link(c, outside(c)),
        "link-out-relative": lambda c: link(c, f"../{outside(c).name}"),
        "link-to-proc": lambda c: link(c, "/proc/self/environ"),
        "link-to-directory-out": lambda c: link(c, "..") + f"/{outside(c).name}",
        "link-loop": lambda c: link(c, "evil"),
        "link-to-nothing": lambda c: link(c, "nothing"),
        "link-chain": lambda c: [link(c, f"l{i + 1}", f"l{i}") for i in range(60)][0],
        "fifo": fifo,
        "socket": sock,
        "directory": folder,
        "device-link": lambda c: link(c, "/dev/zero"),
        "dot": lambda c: ".",
        "dot-metadata": lambda c: ".metadata",
        "nul": lambda c: "__0_0.distcp\0x",
        "empty": lambda c: "",
        "4096": lambda c: "x" * 4096,
        "4096-slashes": lambda c: "./" * 2048 + "__0_0.distcp",
        "65536-slashes": lambda c: "/".join(["a"] * 32768),
        "surrogate": lambda c: "\ud800",
        "escape": lambda c: "\x1b[2J\n",
    }
    for which, make in kinds.items():
        def one(d, make=make):
            """A place in a file that is none, or not there, or not here."""
            c = Ckpt(d)
            path = make(c)
            n = len(c.data)
            for kind in (tensor(), BYTES):
                key = "object" if kind is BYTES else "bad"
                c.state.append((key, kind))
                c.storage.append((index(key, None if kind is BYTES else (0,)), info(path, 0, n)))
            c.write()
        CASES[f"path-{which}"] = ("open", one)


for_paths()


@case("refuse")
def metadata_fifo(d):
    """.metadata is a FIFO."""
    c = Ckpt(d)
    c.write()
    (c.d / ".metadata").unlink()
    os.mkfifo(c.d / ".metadata")


@case("refuse")
def metadata_link_out(d):
    """.metadata is a link that leads out."""
    c = Ckpt(d)
    c.write()
    os.rename(c.d / ".metadata", c.d.parent / (c.d.name + ".outside"))
    os.symlink(c.d.parent / (c.d.name + ".outside"), c.d / ".metadata")


@case("refuse")
def metadata_link_loop(d):
    """.metadata is a link to itself."""
    c = Ckpt(d)
    c.write()
    (c.d / ".metadata").unlink()
    os.symlink(".metadata", c.d / ".metadata")


@case("refuse")
def metadata_sparse(d):
    """.metadata is a terabyte of nothing."""
    c = Ckpt(d)
    c.write()
    os.truncate(c.d / ".metadata", 1 << 40)
    with open(c.d / ".metadata", "r+b") as f:
        f.write(b"\x80\x04B\xff\xff\xff\xff")


@case("refuse")
def metadata_sparse_text(d):
    """Text of a terabyte."""
    c = Ckpt(d)
    c.write()
    with open(c.d / ".metadata", "wb") as f:
        f.write(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40))
        f.truncate((1 << 40) + 100)


@case("refuse")
def metadata_sparse_nones(d):
    """A gigabyte of NONE."""
    c = Ckpt(d)
    c.write()
    with open(c.d / ".metadata", "wb") as f:
        f.write(b"\x80\x04(")
        for i in range(256):
            f.write(b"N" * (1 << 20))
        f.write(b"t.")


@case("refuse")
def metadata_empty_lists(d):
    """64 million empty lists."""
    c = Ckpt(d)
    c.write()
    with open(c.d / ".metadata", "wb") as f:
        f.write(b"\x80\x04(")
        for i in range(64):
            f.write(b"]" * (1 << 20))
        f.write(b"t.")


@case("refuse")
def metadata_puts(d):
    """Memo entries with far indexes, each fetched."""
    c = Ckpt(d)
    c.write()
    with open(c.d / ".metadata", "wb") as f:
        f.write(b"\x80\x04N")
        for i in range(2000000):
            f.write(b"r" + struct.pack("<I", (i * 2654435761) & 0xFFFFFFFF) + b"j" + struct.pack("<I", (i * 2654435761) & 0xFFFFFFFF) + b"0")
        f.write(b".")


@case("open")
def files_many(d):
    """A directory with a hundred thousand other files."""
    c = Ckpt(d)
    c.write()
    for i in range(100000):
        os.close(os.open(c.d / f"{i:06d}.{'n' * 100}", os.O_CREAT | os.O_WRONLY))


@case("any")
def versions_many(d):
    """Two thousand versions, none of which can be read."""
    d = pathlib.Path(d)
    d.mkdir(parents=True)
    for i in range(2000):
        (d / f"step-{i}").mkdir()
        (d / f"step-{i}" / ".metadata").write_bytes(b"")


@case("any")
def directories_deep(d):
    """No checkpoint, but twenty thousand directories of a dozen each to look in."""
    d = pathlib.Path(d)
    for i in range(2000):
        for k in range(12):
            (d / f"{i}" / f"{k}").mkdir(parents=True)


# ---------------------------------------------------------------- items


@case("open")
def zips(d):
    """Archives that lie about their members."""
    c = Ckpt(d)
    p = pickled(rebuild((6,)))

    def lie(**fields):
        return lambda i, e: e.update(fields) if i == 1 else None

    bad = {
        "overlap": lie(off=0),
        "deflated": lie(method=8),
        "zstd": lie(method=93),
        "encrypted": lie(flags=1),
        "csize": lie(csize=5),
        "sizes": lie(csize=2**32 - 2, usize=2**32 - 2),
        "zip64-none": lie(csize=2**32 - 1, usize=2**32 - 1, off=2**32 - 1),
        "off": lie(off=2**31),
    }
    for key, central in bad.items():
        c.tensor("t." + key, saved(p, GOOD, central=central))
        c.bytes("b." + key, saved(p, GOOD, central=central))
    for key, tail in {
        "count": lambda off, e: e + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, len(e), off, 0),
        "dir-off": lambda off, e: e + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 3, 3, len(e), 2**32 - 2, 0),
        "zip64": lambda off, e: e + struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 2**63, 2**63, 2**63, 2**63)
        + struct.pack("<IIQI", 0x07064B50, 0, off + len(e), 1) + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0),
        "zip64-off": lambda off, e: e + struct.pack("<IIQI", 0x07064B50, 0, 2**64 - 8, 1)
        + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0),
    }.items():
        c.bytes("e." + key, saved(p, GOOD, tail=tail))
        c.tensor("f." + key, saved(p, GOOD, tail=tail))
    c.bytes("twice", saved(p, GOOD, more=[("a/data.pkl", p)]))
    c.bytes("climbs", archive([("../../etc/data.pkl", p), ("../../etc/data/0", GOOD)]))
    c.bytes("many", saved(p, GOOD, more=[(f"a/{i}", b"") for i in range(65000)]))
    c.tensor("many.t", saved(p, GOOD, more=[(f"a/data/x{i}", b"") for i in range(65000)]))
    c.write()


@case("any")
def storages_quadratic(d):
    """An item with thirty thousand storages and as many tensors."""
    c = Ckpt(d)
    n = 30000
    p = pickled([rebuild((1,), numel=1, key=str(i)) for i in range(n)])
    c.bytes("many", archive([("a/data.pkl", p)] + [(f"a/data/{i}", GOOD[:4]) for i in range(n)] + [("a/version", b"3\n")]))
    c.write()


@case("any")
def one_storage_many_tensors(d):
    """A million tensors in one byte item."""
    c = Ckpt(d)
    one = rebuild((6,))
    p = b"\x80\x02](" + one + b"q\x00" + b"h\x00" * 1000000 + b"e."
    c.bytes("many", saved(p, GOOD))
    c.write()


@case("open")
def zstd_bombs(d):
    """A gigabyte of zeros in 40 KB, as tensor and as object."""
    c = Ckpt(d)
    z = subprocess.run(["zstd", "-19", "-c", "--no-progress"], input=b"\0" * (1 << 30), stdout=subprocess.PIPE, check=True).stdout
    for i in range(8):
        place = c.append(z)
        c.tensor(f"t{i}", b"", storage=info(**place, transform_descriptors=["stream.zstd"]))
        c.state.append((f"b{i}", BYTES))
        c.storage.append((index(f"b{i}"), info(**place, transform_descriptors=["stream.zstd"])))
    c.write()


@case("open")
def items_strange(d):
    """Gigantic LONG4, 64 MiB of decimal digits, FLOAT, escaped text and lines."""
    c = Ckpt(d)
    n = 64 << 20
    c.item("long4", Raw(b"\x8b" + struct.pack("<i", n) + b"\x7f" * n))
    c.item("long4-negative", Raw(b"\x8b\xff\xff\xff\xff"))
    c.item("long", Raw(b"L" + b"9" * n + b"L\n"))
    c.item("int", Raw(b"I" + b"9" * n + b"\n"))
    c.item("float", Raw(b"F" + b"9" * n + b"\n"))
    c.item("unicode", Raw(b"V" + b"\\u0041" * (n // 6) + b"\n"))
    c.item("string", Raw(b"S'" + b"\\x41" * (n // 4) + b"'\n"))
    c.item("unended", Raw(b"S'" + b"x" * n))
    c.item("global", Raw(b"c" + b"x" * n + b"\n" + b"y" * 100 + b"\n"))
    c.item("persid", Raw(b"P" + b"x" * n + b"\n"))
    c.item("text", "\x01" * (n // 2))
    c.item("bytes", b"x" * n)
    c.write()


@case("open")
def numbers_strange(d):
    """NaN, infinities, integers of 4000 digits, arrays of numpy that lie."""
    c = Ckpt(d)
    c.item("nan", [Raw(b"G\x7f\xf8" + b"\1" * 6), Raw(b"G\x7f\xf0" + b"\0" * 6), Raw(b"Fnan\n"), Raw(b"F1e999\n")])
    c.item("big", Raw(b"\x8b" + struct.pack("<i", 1000) + b"\x7f" * 1000))
    nd = call(name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), (0,), b"b")
    dt = Raw(call(name("numpy", "dtype"), "f8", False, True) + enc((3, "<", None, None, None, -1, -1, 0)) + b"b")
    for i, shape in enumerate([(2**62,), (2**61, 8), (-1,), (3,), (1,) * 100, (0,)]):
        c.item(f"np{i}", Raw(nd + enc((1, shape, dt, False, b"x" * 16)) + b"b"))
    c.write()


@case("open")
def legacy(d):
    """Streams of the old container that lie."""
    c = Ckpt(d)
    magic = pickled(0x1950A86A20F9469CFC6C) + pickled(1001) + pickled({"little_endian": True, "protocol_version": 1001})
    storage = Raw(enc(("storage", name("torch", "FloatStorage"), "0", "cpu", 6, None)) + b"Q")
    t = call(name("torch._utils", "_rebuild_tensor_v2"), storage, 0, (6,), (1,), False, call(name("collections", "OrderedDict")))
    c.bytes("count", magic + pickled(t) + pickled(["0"]) + struct.pack("<Q", 2**62) + GOOD)
    c.bytes("keys", magic + pickled(t) + pickled(["0"] * 100000) + struct.pack("<Q", 6) + GOOD)
    c.bytes("cut", magic)
    c.tensor("t", magic + pickled(t) + pickled(["0"]) + struct.pack("<Q", 2**63) + GOOD)
    c.write()


# ---------------------------------------------------------------- safetensors


def st(d, files):
    d = pathlib.Path(d)
    d.mkdir(parents=True)
    for n, (head, data) in files.items():
        (d / n).write_bytes(struct.pack("<Q", len(head)) + head + data)
    return d


@case("any")
def safetensors_million(d):
    """A header with a million entries."""
    body = b",".join(b'"k%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(1000000))
    st(d, {"model.safetensors": (b"{" + body + b"}", b"")})


@case("refuse")
def safetensors_deep(d):
    """A header ten million levels deep."""
    st(d, {"model.safetensors": (b'{"a":' * 1000000 + b"[" * 9000000, b"")})


@case("refuse")
def safetensors_deep_in_unknown(d):
    """An unknown field a million levels deep."""
    st(d, {"model.safetensors": (b'{"k":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":' + b"[" * 1000000 + b"]" * 1000000 + b"}}", b"")})


@case("refuse")
def safetensors_huge_header(d):
    """A header of 2^63 bytes, and a sparse one of 100 MB of blanks."""
    d = st(d, {"model.safetensors": (b"{}", b"")})
    (d / "model.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")


@case("refuse")
def safetensors_blank_header(d):
    """A header of 99 MB of blanks."""
    st(d, {"model.safetensors": (b" " * 99000000, b"")})


@case("any")
def safetensors_million_dims(d):
    """A shape with a million dimensions."""
    st(d, {"model.safetensors": (b'{"k":{"dtype":"U8","shape":[' + b",".join([b"1"] * 1000000) + b'],"data_offsets":[0,1]}}', b"x")})


@case("any")
def safetensors_same_keys(d):
    """A hundred thousand equal keys."""
    body = b",".join(b'"k":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' for i in range(100000))
    st(d, {"model.safetensors": (b"{" + body + b"}", b"")})


@case("any")
def safetensors_index_climbs(d):
    """An index that names files outside."""
    d = st(d, {"a.safetensors": (b'{"k":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x")})
    (d / "model.safetensors.index.json").write_text('{"metadata":{},"weight_map":{"k":"../../../etc/passwd","l":"/etc/passwd","m":"a.safetensors\\u0000"}}')


@case("any")
def safetensors_index_deep(d):
    """An index ten million levels deep."""
    d = st(d, {"a.safetensors": (b'{"k":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x")})
    (d / "model.safetensors.index.json").write_text('{"weight_map":' * 1000000)


@case("any")
def safetensors_sharding_info_bomb(d):
    """A sharding note of ten million boxes in each of a few files."""
    files = {}
    for i in range(3):
        meta = {"DCP_SHARDING_INFO": json.dumps({f"k{j}": {"saved_offsets": [2**62] * 60} for j in range(30000)}), "DCP_VERSION": "1.0"}
        head = {"__metadata__": meta}
        head.update({f"k{j}": {"dtype": "U8", "shape": [1], "data_offsets": [j, j + 1]} for j in range(30000)})
        files[f"shard-{i:05d}-model-0000{i + 1}-of-00003.safetensors"] = (json.dumps(head).encode(), b"x" * 30000)
    st(d, files)


@case("any")
def ranks_bomb(d):
    """checkpoint_<rank>.pt with bombs, and a rank far away."""
    d = pathlib.Path(d)
    d.mkdir(parents=True)
    (d / "checkpoint_0.pt").write_bytes(saved(pickled(doubled(60))))
    (d / "checkpoint_1.pt").write_bytes(saved(pickled(SYSTEM)))
    (d / "checkpoint_999999999.pt").write_bytes(saved(pickled({"good": rebuild((6,))}), GOOD))
    (d / "checkpoint_99999999999999999999.pt").write_bytes(saved(pickled({"good": rebuild((6,))}), GOOD))


@case("any")
def local_many(d):
    """Metadata of ten thousand ranks."""
    d = pathlib.Path(d)
    c = Ckpt(d)
    c.write()
    data = (d / ".metadata").read_bytes()
    (d / ".metadata").unlink()
    for i in range(3000):
        (d / f"__{i}.metadata").write_bytes(data)


@case("any")
def local_rank_far(d):
    """A rank of a thousand million."""
    d = pathlib.Path(d)
    c = Ckpt(d)
    c.write()
    os.rename(d / ".metadata", d / "__999999999.metadata")
