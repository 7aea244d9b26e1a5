# SPDX-License-Identifier: Apache-2.0
"""Builds small checkpoints by hand out of torch's own classes, so that every field can be wrong on purpose."""
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import torch
from torch.distributed.checkpoint import metadata as M
from torch.distributed.checkpoint.filesystem import _StorageInfo

import fixlib

CMD = "touch PWNED"


class Size:
    """Pickles as torch.Size((...)) with any integers at all."""

    def __init__(self, *v):
        self.v = v[0] if len(v) == 1 and isinstance(v[0], (tuple, list)) else v

    def __reduce__(self):
        return (torch.Size, (tuple(self.v),))


class Call:
    """Pickles as function(*args)."""

    def __init__(self, f, *args, state=None):
        self.f, self.args, self.state = f, args, state

    def __reduce__(self):
        return (self.f, self.args) if self.state is None else (self.f, self.args, self.state)


def item(v):
    b = io.BytesIO()
    torch.save(v, b)
    return b.getvalue()


class Ckpt:
    """Two files, four keys. w: F32 in two row blocks; v: I64; s: 0-dim F64; note: a byte item."""

    def __init__(self, salt, names=("w", "v", "s", "note"), shape=(4, 6)):
        self.names = names
        w, v, s, note = names
        r, c = shape
        h = r // 2
        self.full = {w: fixlib.rnd("hw", shape, salt=salt), v: fixlib.rnd("hv", (5,), torch.int64, salt=salt), s: fixlib.rnd("hs", (), torch.float64, salt=salt)}
        self.items = [  # (file, fqn, offset, payload)
            ["__0_0.distcp", note, None, item({"x": 1, "text": "plain"})],
            ["__0_0.distcp", w, (0, 0), item(self.full[w][:h].clone())],
            ["__0_0.distcp", v, (0,), item(self.full[v])],
            ["__1_0.distcp", w, (h, 0), item(self.full[w][h:].clone())],
            ["__1_0.distcp", s, (), item(self.full[s])],
        ]
        self.chunks = {w: [((0, 0), (h, c)), ((h, 0), (r - h, c))], v: [((0,), (5,))], s: [((), ())]}
        self.shape = {w: shape, v: (5,), s: ()}
        self.dtype = {w: torch.float32, v: torch.int64, s: torch.float64}
        self.hook = None        # changes the Metadata object
        self.paths = {}         # (fqn, offset) -> relative path
        self.where = {}         # (fqn, offset) -> (offset, length)
        self.trans = {}
        self.raw = None         # bytes instead of the pickle
        self.post = None        # changes the pickle's bytes
        self.proto = 4

    def metadata(self, places):
        def size(v):
            return Size(tuple(v))
        sdm, sd = {}, {}
        for k in self.names:
            if k in self.shape:
                sdm[k] = M.TensorStorageMetadata(M.TensorProperties(dtype=self.dtype[k]), size(self.shape[k]), [M.ChunkStorageMetadata(size(o), size(s)) for o, s in self.chunks[k]])
            else:
                sdm[k] = M.BytesStorageMetadata()
        for (k, off), (path, pos, n) in places.items():
            ix = M.MetadataIndex(k)
            if off is not None:
                object.__setattr__(ix, "offset", size(off))
            sd[Key(ix)] = _StorageInfo(path, pos, n, self.trans.get((k, off)))
        md = M.Metadata(sdm, {k: (k,) for k in self.names}, sd, M.StorageMeta(checkpoint_id="/tmp/run/x", save_id="0"), "1.0.0")
        if self.hook:
            self.hook(md)
        return md

    def write(self, d):
        d = Path(d)
        shutil.rmtree(d, ignore_errors=True)
        d.mkdir(parents=True)
        files, places = {}, {}
        for f, k, off, payload in self.items:
            b = files.setdefault(f, bytearray())
            places[(k, off)] = (f, len(b), len(payload))
            b += payload
        for key, p in self.paths.items():
            places[key] = (p,) + places[key][1:]
        for key, (o, n) in self.where.items():
            p = places[key]
            places[key] = (p[0], p[1] if o is None else o, p[2] if n is None else n)
        for f, b in files.items():
            (d / f).write_bytes(bytes(b))
        if self.raw is not None:
            data = self.raw
        else:
            data = dumps(self.metadata(places), self.proto)
        if self.post:
            data = self.post(data)
        if data is not None:
            (d / ".metadata").write_bytes(data)
        self.data = data
        return d

    def sha(self, keys=None):
        return {k: fixlib.sha(t) for k, t in self.full.items() if keys is None or k in keys}


class Key:
    """Wraps a MetadataIndex so that unhashable or odd ones can be dict keys; pickles as the index itself."""

    def __init__(self, ix):
        self.ix = ix


class _P(pickle._Pickler):
    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Key):
            obj = obj.ix
        return super().save(obj, save_persistent_id)


def dumps(o, proto=4):
    b = io.BytesIO()
    _P(b, proto).dump(o)
    return b.getvalue()


# ---------------------------------------------------------------- zip surgery

def unzip(b):
    z = zipfile.ZipFile(io.BytesIO(b))
    return [(i.filename, z.read(i)) for i in z.infolist()]


def zipped(records, method=0, central=None, local=None, tail=None, align=64):
    """A torch-like archive. central/local: {name: {field: value}} lies; tail: {eocd field: value} lies."""
    central, local, tail = central or {}, local or {}, tail or {}
    out, dirs = bytearray(), bytearray()
    import zlib
    for name, data in records:
        n = name.encode()
        l, c = local.get(name, {}), central.get(name, {})
        off = len(out)
        pad = -(off + 30 + len(n) + 4) % align
        extra = b"FB" + struct.pack("<H", l.get("padlen", pad)) + b"Z" * pad
        crc = zlib.crc32(data)
        m = l.get("method", method)
        body = zlib.compress(data)[2:-4] if m == 8 and l.get("really") else data
        out += struct.pack("<IHHHHHIIIHH", l.get("sig", 0x04034B50), 0, l.get("flag", 0x800), m, 0, 0, l.get("crc", crc), l.get("csize", len(body)), l.get("usize", len(data)), l.get("namelen", len(n)), l.get("extralen", len(extra)))
        out += l.get("name", n) + extra + body
        cn = c.get("name", n)
        dirs += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, c.get("flag", 0x800), c.get("method", m), 0, 0, c.get("crc", crc), c.get("csize", len(body)), c.get("usize", len(data)), len(cn), len(c.get("extra", b"")), 0, 0, 0, 0, c.get("off", off)) + cn + c.get("extra", b"")
    start = len(out)
    out += dirs
    n = len(records)
    e64 = len(out)
    out += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x31E, 45, 0, 0, tail.get("n64", n), tail.get("n64", n), tail.get("size64", len(dirs)), tail.get("off64", start))
    out += struct.pack("<IIQI", 0x07064B50, 0, tail.get("loc", e64), 1)
    out += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, tail.get("n", n), tail.get("n", n), tail.get("size", len(dirs)), tail.get("off", start), tail.get("comment", 0))
    return bytes(out)


def P(*parts):
    """Pickle assembler: bytes are emitted as they are, str as BINUNICODE, int as an integer."""
    out = bytearray()
    for p in parts:
        if isinstance(p, bytes):
            out += p
        elif isinstance(p, str):
            e = p.encode()
            out += b"X" + struct.pack("<I", len(e)) + e
        elif isinstance(p, int):
            if 0 <= p < 256:
                out += b"K" + bytes([p])
            else:
                e = p.to_bytes((p.bit_length() + 8) // 8, "little", signed=True)
                out += b"\x8a" + bytes([len(e)]) + e
    return bytes(out)


def tensor_pickle(numel=12, cls=b"torch\nFloatStorage\n", key="0", off=0, size=(2, 6), stride=(6, 1), func=b"torch._utils\n_rebuild_tensor_v2\n", loc="cpu", tag="storage", tail=None):
    """data.pkl of one tensor with anything in its fields."""
    t = P(b"\x80\x02c" + func, b"(", b"(", tag, b"c" + cls, key, loc, numel, b"tQ", off)
    t += P(b"(", *size, b"t", b"(", *stride, b"t", b"\x89", b"ccollections\nOrderedDict\n)R", b"tR") if tail is None else tail
    return t + b"."


def tensor_item(data, pkl=None, extra=(), **kw):
    """An item with a hand-made data.pkl and zip."""
    zk = {k: kw.pop(k) for k in ("method", "central", "local", "tail") if k in kw}
    recs = [("archive/data.pkl", pkl if pkl is not None else tensor_pickle(**kw)), ("archive/.format_version", b"1"), ("archive/.storage_alignment", b"64"), ("archive/byteorder", b"little"), ("archive/data/0", data), ("archive/version", b"3\n"), ("archive/.data/serialization_id", b"0" * 40)]
    have = dict(extra)
    recs = [(n, have.pop(n, d)) for n, d in recs]
    recs = [(n, d) for n, d in recs if d is not None] + [(n, d) for n, d in have.items() if d is not None]
    return zipped(recs, **zk)


def st_file(header, body=b"", n=None):
    h = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(h) if n is None else n) + h + body
