# SPDX-License-Identifier: Apache-2.0
"""The file forms as Python understands them, from their definitions: .npy, safetensors, dtypes.

Shares nothing with dcpfs: this is the second opinion.
"""
import ast
import json
import math
import struct
import zipfile

# Bytes of a stored element. F4 holds two numbers a byte, and its shapes count bytes.
ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
        "F8_E8M0": 1, "F4": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4, "U64": 8,
        "BOOL": 1, "C32": 4, "C64": 8, "C128": 16}
NATIVE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
          "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1", "C64": "<c8", "C128": "<c16"}
DESCR = {**NATIVE, "BF16": "<f4", "F8_E4M3": "<f4", "F8_E5M2": "<f4", "F8_E4M3FNUZ": "<f4", "F8_E5M2FNUZ": "<f4",
         "F8_E8M0": "<f4", "F4": "<f4", "C32": "<c8"}
NOT_IN_SAFETENSORS = {"C32", "C128"}

NAN = 0x7fc00000


def bits(x):
    """A number that float32 holds, as its bits."""
    packed = struct.pack("<f", x)
    assert struct.unpack("<f", packed)[0] == x, f"{x} is not a float32"
    return struct.unpack("<I", packed)[0]


def minifloat(code, e_bits, m_bits, bias, finite=False, fnuz=False):
    """The float32 bits of a small float: IEEE, or without infinities, or without -0 (fnuz)."""
    sign = code >> (e_bits + m_bits)
    e, m = code >> m_bits & ((1 << e_bits) - 1), code & ((1 << m_bits) - 1)
    top = e == (1 << e_bits) - 1
    if fnuz:
        if sign and not e and not m:
            return NAN
    elif finite:
        if top and m == (1 << m_bits) - 1:
            return NAN | sign << 31
    elif top:
        return sign << 31 | (NAN if m else 0x7f800000)
    x = math.ldexp(m, 1 - bias - m_bits) if e == 0 else math.ldexp((1 << m_bits) + m, e - bias - m_bits)
    return bits(x) | sign << 31


def nibble(code):
    """float4 e2m1 has neither infinities nor NaN."""
    e, m = code >> 1 & 3, code & 1
    return bits(m * 0.5 if e == 0 else math.ldexp(2 + m, e - 2)) | (code & 8) << 28


def half(code):
    """float16; a NaN keeps its payload."""
    if code & 0x7c00 == 0x7c00:
        return (code & 0x8000) << 16 | 0x7f800000 | (code & 0x3ff) << 13
    return minifloat(code, 5, 10, 15)


TABLES = {
    "F8_E4M3": [minifloat(c, 4, 3, 7, finite=True) for c in range(256)],
    "F8_E5M2": [minifloat(c, 5, 2, 15) for c in range(256)],
    "F8_E4M3FNUZ": [minifloat(c, 4, 3, 8, fnuz=True) for c in range(256)],
    "F8_E5M2FNUZ": [minifloat(c, 5, 2, 16, fnuz=True) for c in range(256)],
    "F8_E8M0": [bits(math.ldexp(1, c - 127)) if c < 255 else NAN for c in range(256)],
}


def widened(dtype, raw):
    """What .npy holds for these stored bytes, by definition of the dtype."""
    if dtype in NATIVE:
        return raw
    if dtype == "BF16":
        out = bytearray(2 * len(raw))
        out[2::4], out[3::4] = raw[0::2], raw[1::2]
        return bytes(out)
    if dtype == "F4":
        words = [nibble(x) for b in raw for x in (b & 15, b >> 4)]
    elif dtype == "C32":
        words = [half(x) for x in struct.unpack(f"<{len(raw) // 2}H", raw)]
    else:
        words = [TABLES[dtype][b] for b in raw]
    return struct.pack(f"<{len(words)}I", *words)


def negated(data, dtype, imaginary):
    """Little-endian numbers with their signs flipped, or only those of imaginary parts."""
    unit = ITEM[dtype] // 2 if dtype.startswith("C") else ITEM[dtype]
    out = bytearray(data)
    for i in range((2 if imaginary else 1) * unit - 1, len(out), (2 if imaginary else 1) * unit):
        out[i] ^= 0x80
    return bytes(out)


def is_nan(word):
    return word & 0x7fffffff > 0x7f800000


def same_numbers(dtype, got, want):
    """Equal bits; for one-byte floats a NaN may have another payload, but not another sign."""
    if got == want or dtype not in TABLES:
        return got == want
    if len(got) != len(want):
        return False
    for a, b in zip(struct.iter_unpack("<I", got), struct.iter_unpack("<I", want)):
        if a != b and not (is_nan(a[0]) and is_nan(b[0]) and
                           (a[0] >> 31 == b[0] >> 31 or dtype.endswith("FNUZ"))):
            return False
    return True


def shown_shape(dtype, shape):
    """The shape of the numbers: each byte of F4 holds two."""
    return [*shape[:-1], shape[-1] * 2] if dtype == "F4" and shape else [2] if dtype == "F4" else list(shape)


def parse_npy(data):
    """(descr, shape, payload); AssertionError when numpy would not read it, or not map it well."""
    assert data[:6] == b"\x93NUMPY", "magic"
    assert data[6:8] == b"\x01\x00", f"version {data[6:8]}"
    end = 10 + int.from_bytes(data[8:10], "little")
    header = data[10:end].decode("ascii")
    assert len(data) >= end and header.endswith("\n"), "header ends in a newline"
    assert end % 64 == 0, f"numbers start at {end}, no multiple of 64"
    doc = ast.literal_eval(header)
    assert set(doc) == {"descr", "fortran_order", "shape"}, f"fields {sorted(doc)}"
    assert doc["fortran_order"] is False and isinstance(doc["shape"], tuple)
    return doc["descr"], list(doc["shape"]), data[end:]


def parse_safetensors(data):
    """({name: (dtype, shape, bytes)}, metadata), as strict as the format's own reader."""
    n = int.from_bytes(data[:8], "little")
    assert len(data) >= 8 + n and n <= 100_000_000, "header length"
    text = data[8:8 + n].decode("utf-8")
    assert text.startswith("{"), "header starts with a brace"
    pairs = []
    doc = json.loads(text, object_pairs_hook=lambda p: pairs.append(p) or dict(p))
    assert all(len({k for k, _ in p}) == len(p) for p in pairs), "a name stands twice"
    body, at, out = data[8 + n:], 0, {}
    metadata = doc.pop("__metadata__", {})
    assert all(isinstance(v, str) for v in metadata.values()), "metadata holds strings"
    for name, t in sorted(doc.items(), key=lambda kv: kv[1]["data_offsets"]):
        lo, hi = t["data_offsets"]
        assert lo == at and hi >= lo, f"hole or overlap at {lo}"
        out[name] = (t["dtype"], t["shape"], body[lo:hi])
        at = hi
    assert at == len(body), f"{len(body) - at} bytes behind the last tensor"
    return out, metadata


def strides_of(shape):
    """Elements between neighbours along each dimension, row-major."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return out[::-1]


def volume(lengths):
    return math.prod(lengths)


def gather(data, item, lengths, strides, start=0):
    """The elements of a box of a strided array, in row-major order; start counts elements."""
    if volume(lengths) == 0:
        return b""
    if not lengths:
        return data[start * item:(start + 1) * item]
    if strides[-1] == 1 or lengths[-1] == 1:
        rows, run = list(zip(lengths[:-1], strides[:-1])), lengths[-1]
    else:
        rows, run = list(zip(lengths, strides)), 1
    starts = [start]
    for n, s in rows:
        starts = [at + i * s for at in starts for i in range(n)]
    return b"".join(data[at * item:(at + run) * item] for at in starts)


def region_of(raw, dtype, shape, region):
    """The bytes of a region [[lo, hi], ...] of a row-major tensor."""
    strides = strides_of(shape)
    start = sum(lo * s for (lo, _), s in zip(region, strides))
    return gather(raw, ITEM[dtype], [hi - lo for lo, hi in region], strides, start)


def overlap(a, b):
    """Do two regions share an element?"""
    return all(max(x[0], y[0]) < min(x[1], y[1]) for x, y in zip(a, b))


# ---- torch.save of a dict of uint8 vectors ----

def write_torch_save(path, tensors):
    """tensors: {key: bytes}; a key may be any Python string."""
    def text(s):
        s = s.encode("utf-8", "surrogatepass")
        return b"X" + len(s).to_bytes(4, "little") + s

    def number(n):
        return b"J" + n.to_bytes(4, "little")

    pickled = b"\x80\x02}("
    with zipfile.ZipFile(path, "w") as z:
        for i, (key, data) in enumerate(tensors.items()):
            storage = b"(" + text("storage") + b"ctorch\nByteStorage\n" + text(str(i)) + text("cpu") + number(len(data)) + b"tQ"
            pickled += (text(key) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(0) + b"(" + number(len(data))
                        + b"t(" + number(1) + b"t\x89ccollections\nOrderedDict\n)RtR")
            z.writestr(f"archive/data/{i}", data)
        z.writestr("archive/data.pkl", pickled + b"u.")


# ---- a checkpoint of any size, as torch's HuggingFaceStorageWriter leaves it ----

def write_shard(path, tensors):
    """tensors: {key: (dtype, chunk shape, offsets in the global tensor, bytes)}."""
    header, body = {}, []
    at = 0
    info = {k: {"saved_offsets": off} for k, (_, _, off, _) in tensors.items()}
    header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}
    for key, (dtype, shape, _, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        body.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(body))


def write_sharded(directory, tensors, shards=3):
    """Cut {key: (dtype, shape, cut dimension, bytes)} into shard files, unevenly."""
    directory.mkdir(parents=True)
    for rank in range(shards):
        chunks = {}
        for key, (dtype, shape, dim, raw) in tensors.items():
            step = -(-shape[dim] // shards)
            lo, hi = min(rank * step, shape[dim]), min((rank + 1) * step, shape[dim])
            region = [[lo, hi] if d == dim else [0, n] for d, n in enumerate(shape)]
            chunks[key] = (dtype, [b - a for a, b in region], [a for a, _ in region],
                           region_of(raw, dtype, shape, region))
        write_shard(directory / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors", chunks)
