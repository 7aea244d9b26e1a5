# SPDX-License-Identifier: Apache-2.0
"""What hostile checkpoints are made of, byte by byte and without torch: pickles, archives, .metadata.

A case is a function that fills a directory; its sentence says what is wrong, its mark what must happen.
"""
import pathlib
import struct

META = "torch.distributed.checkpoint.metadata"
CASES = {}
GOOD = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
COMMAND = "touch PWNED"


def case(expect):
    def add(make):
        CASES[make.__name__.replace("_", "-")] = (expect, make)
        return make
    return add


# ---------------------------------------------------------------- pickles


class Raw(bytes):
    """Opcodes as they are."""


def name(module, what):
    return Raw(f"c{module}\n{what}\n".encode())


def call(what, *args):
    return Raw(what + enc(tuple(args)) + b"R")


def built(what, state):
    return Raw(what + b")\x81" + enc(state) + b"b")


def put(n):
    return Raw(b"r" + struct.pack("<I", n))


def get(n):
    return Raw(b"j" + struct.pack("<I", n))


def enc(v):
    if isinstance(v, Raw):
        return bytes(v)
    if v is None:
        return b"N"
    if isinstance(v, bool):
        return b"\x88" if v else b"\x89"
    if isinstance(v, int):
        if 0 <= v < 256:
            return b"K" + bytes([v])
        if -2**31 <= v < 2**31:
            return b"J" + struct.pack("<i", v)
        b = v.to_bytes(v.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(b)]) + b
    if isinstance(v, str):
        b = v.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(b)) + b
    if isinstance(v, bytes):
        return b"B" + struct.pack("<I", len(v)) + v
    if isinstance(v, tuple):
        return b"(" + b"".join(map(enc, v)) + b"t"
    if isinstance(v, list):
        return b"](" + b"".join(map(enc, v)) + b"e"
    return b"}(" + b"".join(enc(k) + enc(x) for k, x in v.items()) + b"u"


def pickled(v):
    return b"\x80\x02" + enc(v) + b"."


SYSTEM = call(name("os", "system"), COMMAND)
EVAL = call(name("builtins", "eval"), "__import__('os').system('touch PWNED')")
PARTIAL = call(call(name("functools", "partial"), name("os", "system"), COMMAND))
CALLS = {"system": SYSTEM, "eval": EVAL, "partial": PARTIAL}


# ---------------------------------------------------------------- torch.save streams


def archive(members, central=None, count=None, tail=None):
    """A ZIP of stored members [(name, bytes)]. central(i, fields) lies about an entry, tail about the end."""
    out, entries = bytearray(), bytearray()
    for i, (title, data) in enumerate(members):
        n = title.encode() if isinstance(title, str) else title
        at = len(out)
        out += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0, 0, len(data), len(data), len(n), 0) + n + data
        e = dict(method=0, csize=len(data), usize=len(data), off=at, flags=0)
        if central:
            central(i, e)
        entries += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, e["flags"], e["method"], 0, 0, 0, e["csize"],
                               e["usize"], len(n), 0, 0, 0, 0, 0, e["off"]) + n
    if tail:
        return bytes(out) + tail(len(out), bytes(entries))
    n = len(members) if count is None else count
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, n, n, len(entries), len(out), 0)
    return bytes(out + entries + end)


def saved(data, *storages, more=(), **lies):
    """torch.save's archive around the pickle @data."""
    members = [("a/data.pkl", data), *more, *((f"a/data/{i}", s) for i, s in enumerate(storages)), ("a/version", b"3\n")]
    return archive(members, **lies)


def rebuild(shape, stride=None, numel=6, offset=0, key="0"):
    if stride is None:
        stride, step = [1] * len(shape), 1
        for i in range(len(shape) - 1, -1, -1):
            stride[i] = step
            step *= shape[i]
    storage = Raw(enc(("storage", name("torch", "FloatStorage"), key, "cpu", numel)) + b"Q")
    return call(name("torch._utils", "_rebuild_tensor_v2"), storage, offset, tuple(shape), tuple(stride), False,
                call(name("collections", "OrderedDict")))


def tensor_item(**kw):
    return saved(pickled(rebuild((6,), **kw)), GOOD)


# ---------------------------------------------------------------- .metadata


def size(dims):
    return call(name("torch", "Size"), tuple(dims))


def chunk(lo, n):
    return built(name(META, "ChunkStorageMetadata"), {"offsets": size(lo), "sizes": size(n)})


def properties(dtype="float32"):
    return built(name(META, "TensorProperties"), (name("torch", dtype), None, False, None, False))


def tensor(shape=(6,), chunks=None, **kw):
    chunks = [chunk([0] * len(shape), shape)] if chunks is None else chunks
    return built(name(META, "TensorStorageMetadata"), {"properties": properties(**kw), "size": size(shape), "chunks": chunks})


def index(key, lo=None):
    return built(name(META, "MetadataIndex"), {"fqn": key, "index": 0 if lo is not None else None,
                                               "offset": None if lo is None else size(lo)})


def info(path="__0_0.distcp", off=0, n=0, **more):
    return built(name("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                 {"relative_path": path, "offset": off, "length": n, **more})


BYTES = built(name(META, "BytesStorageMetadata"), {})


def pairs(items):
    """A dict of any keys, repeated and unhashable ones too."""
    return Raw(b"}(" + b"".join(enc(k) + enc(v) for k, v in items) + b"u")


def metadata(state, storage, planner=None, **more):
    fields = {"state_dict_metadata": pairs(state), "planner_data": planner, "storage_data": pairs(storage), **more}
    return pickled(built(name(META, "Metadata"), fields))


class Ckpt:
    """A directory with the key "good", and whatever is added."""

    def __init__(self, d):
        self.d = pathlib.Path(d)
        self.d.mkdir(parents=True)
        self.data = bytearray(tensor_item())
        self.state = [("good", tensor())]
        self.storage = [(index("good", (0,)), info(n=len(self.data)))]
        self.planner = None
        self.more = {}

    def append(self, data):
        at = len(self.data)
        self.data += data
        return dict(off=at, n=len(data))

    def tensor(self, key, item=None, shape=(6,), chunks=None, lo=None, storage=None, **kw):
        place = self.append(tensor_item() if item is None else item)
        self.state.append((key, tensor(shape, chunks, **kw)))
        self.storage.append((index(key, lo or [0] * len(shape)), storage or info(**place)))

    def bytes(self, key, data):
        self.state.append((key, BYTES))
        self.storage.append((index(key), info(**self.append(data))))

    def item(self, key, value):
        self.bytes(key, saved(pickled(value)))

    def write(self, raw=None):
        (self.d / "__0_0.distcp").write_bytes(self.data)
        (self.d / ".metadata").write_bytes(raw or metadata(self.state, self.storage, self.planner, **self.more))
