#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/bad/dcp: a healthy .metadata with one fault each, and the list EXPECT.

Run from the project root; needs no torch: stub classes of the same names pickle to the same
opcodes. In EXPECT, code OK means that the file is accepted, the key "good" is usable, and the key "bad"
has an error that says so. Inputs found by fuzzing are listed as found-... and are kept.
"""
import io
import pickle
import struct
import sys
import types
from collections import OrderedDict
from pathlib import Path

OUT = Path("tests/bad/dcp")
META = "torch.distributed.checkpoint.metadata"
FS = "torch.distributed.checkpoint.filesystem"
OLD = "torch.distributed._shard.checkpoint.metadata"


def module(name):
    m = sys.modules.get(name)
    if m is None:
        m = sys.modules[name] = types.ModuleType(name)
    return m


def stub(where, name):
    """A class that pickles as where.name; an instance is its __dict__."""
    made = type(name, (), {"__module__": where, "__init__": lambda self, **kw: self.__dict__.update(kw)})
    setattr(module(where), name, made)
    return made


Metadata, Index, Tensor, Chunk, Bytes, StorageMeta = (
    stub(META, n)
    for n in ("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "BytesStorageMetadata", "StorageMeta")
)
Info = stub(FS, "_StorageInfo")
Sharded112 = stub(OLD, "ShardedTensorStorageMetadata")
Metadata112 = stub(OLD, "Metadata")


class Size(tuple):
    def __reduce__(self):
        return Size, (tuple(self),)


Size.__module__, module("torch").Size = "torch", Size


class DType:
    def __init__(self, name, where="torch"):
        self.name, self.where = name, where
        setattr(module(where), name, self)

    def __reduce__(self):
        return self.name


class Properties:
    def __init__(self, *state):
        self.state = state

    def __getstate__(self):
        return self.state

    def __reduce__(self):
        import copyreg

        return copyreg.__newobj__, (Properties,), self.state


Properties.__module__, Properties.__qualname__ = META, "TensorProperties"
module(META).TensorProperties = Properties
F32 = DType("float32")


class Pickler(pickle._Pickler):
    """Bare globals for dtypes, whatever module they claim."""

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, DType):
            self.save(obj.where)
            self.save(obj.name)
            self.write(pickle.STACK_GLOBAL)
            return
        super().save(obj, save_persistent_id)


def dump(obj):
    f = io.BytesIO()
    Pickler(f, 4).dump(obj)
    return f.getvalue()


def chunk(lo, n):
    return Chunk(offsets=Size(lo), sizes=Size(n))


def tensor(dtype=F32, size=(4, 6), chunks=None):
    if chunks is None:
        chunks = [chunk((0, 0), (2, 6)), chunk((2, 0), (2, 6))]
    return Tensor(properties=Properties(dtype, None, False, None, False), size=Size(size), chunks=chunks)


def index(key, lo=None):
    return Index(fqn=key, index=0) if lo is None else Index(fqn=key, index=0, offset=Size(lo))


def info(path="__0_0.distcp", off=0, n=1000, **kw):
    return Info(relative_path=path, offset=off, length=n, **kw)


def parts():
    """The dicts of a healthy file with the keys good and bad."""
    state = {k: tensor() for k in ("good", "bad")}
    storage = {index(k, lo): info(off=off) for k in ("good", "bad") for lo, off in (((0, 0), 0), ((2, 0), 1000))}
    planner = {k: (k,) for k in ("good", "bad")}
    return state, storage, planner


def whole(state, storage, planner, **kw):
    return dump(Metadata(state_dict_metadata=state, planner_data=planner, storage_data=storage, storage_meta=None, **kw))


def with_bad(value):
    state, storage, planner = parts()
    state["bad"] = value
    return whole(state, storage, planner)


def with_stored(first=None, key=None):
    """Another _StorageInfo, or another index, for the first chunk of bad."""
    state, storage, planner = parts()
    out = {}
    for k, v in storage.items():
        if k.fqn == "bad" and tuple(k.offset) == (0, 0):
            k, v = key or k, first or v
        out[k] = v
    return whole(state, out, planner)


def key_faults():
    """What is wrong with one key only."""
    no_size = tensor()
    del no_size.size
    no_props = tensor()
    del no_props.properties
    no_chunks = tensor()
    del no_chunks.chunks
    yield "chunk-negative", "sizes[0] is -3, a negative number", with_bad(tensor(chunks=[chunk((0, 0), (-3, 6))]))
    yield "chunk-offset-negative", "offsets[1] is -1, a negative number", with_bad(tensor(chunks=[chunk((0, -1), (2, 6))]))
    yield "chunk-of-other-ndim", "chunk offsets have 1 dimension, the tensor 2", with_bad(tensor(chunks=[chunk((0,), (2,))]))
    yield "chunk-volume-wraps", "does not fit in 64 bits", with_bad(tensor(size=(2**40, 2**40), chunks=[chunk((0, 0), (2**40, 2**40))]))
    yield "chunk-not-a-chunk", "chunk is int, expected ChunkStorageMetadata", with_bad(tensor(chunks=[7]))
    yield "chunk-without-sizes", "chunk without sizes", with_bad(tensor(chunks=[Chunk(offsets=Size((0, 0)))]))
    yield "chunks-none", "without a list of chunks", with_bad(tensor(chunks=OrderedDict()))
    yield "chunks-missing", "without a list of chunks", with_bad(no_chunks)
    yield "chunks-overlap", "overlap", with_bad(tensor(chunks=[chunk((0, 0), (4, 6)), chunk((2, 0), (2, 6))]))
    yield "chunks-leave-a-hole", "", with_bad(tensor(chunks=[chunk((0, 0), (2, 6))]))
    yield "chunk-outside", "", with_bad(tensor(size=(3, 6)))
    yield "size-missing", "TensorStorageMetadata without size", with_bad(no_size)
    yield "size-a-string", "size is str, expected torch.Size", with_bad(Tensor(properties=tensor().properties, size="4x6", chunks=[]))
    yield "size-of-floats", "size is float, expected integers of 64 bits", with_bad(tensor(size=(4.0, 6)))
    yield "size-too-long", "65 dimensions", with_bad(tensor(size=(1,) * 65, chunks=[]))
    yield "size-beyond-64-bits", "expected integers of 64 bits", with_bad(tensor(size=(2**70, 6)))
    yield "properties-missing", "TensorStorageMetadata without properties", with_bad(no_props)
    yield "properties-a-dict", "properties is dict, expected TensorProperties", with_bad(Tensor(properties={"dtype": F32}, size=Size((4, 6)), chunks=[]))
    yield "dtype-a-string", "dtype is str, expected one of torch's", with_bad(tensor(dtype="float32"))
    yield "dtype-of-numpy", "dtype is numpy.float32", with_bad(tensor(dtype=DType("float32", "numpy")))
    yield "dtype-unknown", "__0_0.distcp", with_bad(tensor(dtype=DType("float12")))
    yield "metadata-of-other-class", "expected TensorStorageMetadata or BytesStorageMetadata", with_bad({"size": (4, 6)})
    yield "bytes-without-entry", "storage_data has no entry for this object", with_bad(Bytes())
    yield "entry-missing", "no entry for its chunk at [0, 0]", with_stored(key=index("other", (0, 0)))
    yield "entry-of-other-ndim", "no entry for its chunk at [0, 0]", with_stored(key=index("bad", (0,)))
    yield "entry-of-a-byte-item", "no entry for its chunk at [0, 0]", with_stored(key=index("bad"))
    yield "entry-index-a-tuple", "no entry for its chunk at [0, 0]", with_stored(key=("bad", (0, 0)))
    yield "entry-index-without-key", "no entry for its chunk at [0, 0]", with_stored(key=Index(offset=Size((0, 0))))
    yield "entry-offset-negative", "no entry for its chunk at [0, 0]", with_stored(key=index("bad", (0, -1)))
    yield "info-a-tuple", "storage info is tuple, expected _StorageInfo", with_stored(("__0_0.distcp", 0, 1000))
    yield "info-without-path", "_StorageInfo without relative_path", with_stored(Info(offset=0, length=1))
    yield "info-without-length", "_StorageInfo without length", with_stored(Info(relative_path="a", offset=0))
    yield "info-offset-negative", "offset is -1, a negative number", with_stored(info(off=-1))
    yield "info-length-a-string", "length is str", with_stored(info(n="1000"))
    yield "info-end-wraps", "end beyond any file", with_stored(info(off=2**63 - 10, n=11))
    yield "path-climbs", "leads out of the checkpoint", with_stored(info("sub/../../x.distcp"))
    yield "path-dots", "leads out of the checkpoint", with_stored(info(".."))
    yield "path-absolute", "is absolute", with_stored(info("/etc/passwd"))
    yield "path-empty", "empty or holds a NUL", with_stored(info(""))
    yield "path-with-nul", "empty or holds a NUL", with_stored(info("a\0b"))
    yield "transform-unknown", "the extension stream.lz4/1", with_stored(info(transform_descriptors=["stream.lz4/1"]))
    yield "transform-version-2", "the extension stream.zstd/2", with_stored(info(transform_descriptors=["stream.zstd/2"]))
    yield "transform-of-a-domain", "the extension stream.zstd@corp/1", with_stored(info(transform_descriptors=["stream.zstd@corp/1"]))
    yield "transforms-two", "2 stream transforms on one item (stream.zstd/1, ...)", with_stored(info(transform_descriptors=["stream.zstd/1", "stream.aes/1"]))
    yield "transform-a-number", "transform descriptor is int", with_stored(info(transform_descriptors=[1]))
    yield "transforms-a-string", "transform_descriptors is str", with_stored(info(transform_descriptors="stream.zstd/1"))


def file_faults():
    """What makes the whole file unusable."""
    state, storage, planner = parts()
    good = whole(state, storage, planner)
    yield "cut-in-half", "EBADMSG", "", good[: len(good) // 2]
    yield "cut-before-stop", "EBADMSG", "", good[:-1]
    yield "empty", "EBADMSG", "", b""
    yield "not-a-pickle", "ENOTSUP", "is unknown", b"this is not a pickle\n" * 3
    yield "a-zip", "EBADMSG", "", b"PK\3\4" + bytes(60)
    yield "root-a-dict", "EBADMSG", "the pickle holds dict, expected", dump({"state_dict_metadata": state, "storage_data": storage})
    yield "root-of-other-class", "EBADMSG", "the pickle holds collections.OrderedDict", dump(OrderedDict(a=1))
    yield "root-the-class-itself", "EBADMSG", "expected torch.distributed.checkpoint.metadata.Metadata", dump(Metadata)
    yield "state-missing", "EBADMSG", "state_dict_metadata is missing, expected a dict", dump(Metadata(storage_data=storage))
    yield "state-a-list", "EBADMSG", "state_dict_metadata is list, expected a dict", dump(Metadata(state_dict_metadata=[], storage_data={}))
    yield "storage-none", "EBADMSG", "storage_data is NoneType, expected a dict", dump(Metadata(state_dict_metadata=state, storage_data=None))
    yield "planner-a-tuple", "EBADMSG", "planner_data is tuple, expected a dict", dump(Metadata(state_dict_metadata=state, storage_data={}, planner_data=(1,)))
    yield "torch-1.12", "ENOTSUP", "torch 1.12", dump(Metadata112(state_dict_metadata={"w": Sharded112(size=Size((4,)))}))
    yield "torch-1.12-tensors-only", "ENOTSUP", "torch 1.12", dump(Metadata112(state_dict_metadata={}))
    # BINUNICODE8 that claims more bytes than there are
    yield "string-past-end", "EBADMSG", "", b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x."


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    listed = OUT / "EXPECT"
    old = listed.read_text().splitlines() if listed.exists() else []
    cases = [(n, "OK", says, data) for n, says, data in key_faults()] + list(file_faults())
    lines = []
    for name, code, says, data in cases:
        (OUT / name).mkdir(exist_ok=True)
        (OUT / name / ".metadata").write_bytes(data)
        lines.append(f"{name}/.metadata {code} {says}".rstrip())
    lines += [line for line in old if line.startswith("found-")]
    listed.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
