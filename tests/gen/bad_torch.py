#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/bad/torch: torch.save streams with one fault each, and the list EXPECT.

Run from the project root.  The code is what opening the stream gives, or what asking for its
tensor gives where it opens.  Lines of EXPECT that begin with found- are kept.
"""
import io
import struct
import tarfile
from pathlib import Path

from bad_zip import Zip

OUT = Path("tests/bad/torch")


# ---- pickles, opcode by opcode ----

def text(s):
    b = s.encode()
    return b"X" + struct.pack("<I", len(b)) + b


def num(n):
    return b"J" + struct.pack("<i", n) if -2**31 <= n < 2**31 else b"\x8a\x09" + n.to_bytes(9, "little", signed=True)


def tup(*parts):
    return b"(" + b"".join(parts) + b"t"


def glob(name):
    module, _, last = name.rpartition(".")
    return b"c" + module.encode() + b"\n" + last.encode() + b"\n"


def call(name, *args):
    return glob(name) + tup(*args) + b"R"


def dims(*n):
    return tup(*map(num, n))


def ident(*parts):
    return tup(*parts) + b"Q"


def storage(cls="torch.FloatStorage", key="0", n=6, *more):
    return ident(text("storage"), glob(cls), text(key), text("cpu"), num(n), *more)


HOOKS = call("collections.OrderedDict")


def v2(store=None, first=num(0), size=dims(2, 3), stride=dims(3, 1), *more):
    return call("torch._utils._rebuild_tensor_v2", store or storage(), first, size, stride, b"\x89", HOOKS, *more)


def pickled(value):
    return b"\x80\x02" + value + b"."


# ---- containers ----

def members(value, data=bytes(24), order=b"little"):
    return [(b"a/data.pkl", pickled(value)), (b"a/byteorder", order), (b"a/data/0", data), (b"a/version", b"3\n")]


def archive(value, **kw):
    return bytes(Zip(members(value, **kw)).b)


MAGIC = pickled(b"\x8a\x0a" + bytes.fromhex("6cfc9c46f9206aa85019"))
VERSION = pickled(num(1001))
HOST = pickled(b"}(" + text("little_endian") + b"\x88u")


def legacy(value=None, keys=(text("0"),), count=6, data=bytes(24), magic=MAGIC, version=VERSION, host=HOST, listed=None):
    store = storage("torch.FloatStorage", "0", 6, b"N")
    out = magic + version + host + pickled(value or v2(store))
    out += pickled(listed or b"](" + b"".join(keys) + b"e")
    return out + (struct.pack("<q", count) if count is not None else b"") + data


def tar(storages=None, tensors=None, value=None, only=("pickle", "tensors", "storages")):
    """torch 0.1: four members; here a (2, 3) tensor, number 1, of storage 7."""
    parts = {
        "pickle": pickled(value or text("1") + b"Q"),
        "tensors": tensors if tensors is not None else tar_tensors(),
        "storages": storages if storages is not None else tar_storages(),
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as t:
        for name in only:
            info = tarfile.TarInfo(name)
            info.size = len(parts[name])
            t.addfile(info, io.BytesIO(parts[name]))
    return out.getvalue()


def tar_tensors(count=num(1), store=num(7), ndim=2, numbers=(2, 3, 3, 1, 0)):
    return pickled(count) + pickled(tup(num(1), store, glob("torch.FloatTensor"))) + struct.pack("<q", ndim) + struct.pack(f"<{len(numbers)}q", *numbers)


def tar_storages(count=num(1), cls="torch.FloatStorage", n=6, views=b"]"):
    return pickled(count) + pickled(tup(num(7), text("cpu"), glob(cls))) + struct.pack("<q", n) + bytes(24) + pickled(views)


def tars():
    yield "tar-of-others", "EBADMSG", "not of torch 0.1: no member \"storages\"", tar(only=("pickle",))
    yield "tar-without-object", "EBADMSG", "not of torch 0.1: no member \"pickle\"", tar(only=("storages", "tensors"))
    yield "tar-cut", "EBADMSG", "was it cut?", tar()[:2600]
    yield "tar-length-no-number", "EBADMSG", "its checksum is wrong", (lambda z: z[:124] + b"size" + z[128:])(tar())
    yield "tar-more-storages-than-bytes", "EBADMSG", "more parts than it has room for", tar(tar_storages(num(1 << 30)))
    yield "tar-count-is-text", "EBADMSG", "more parts than it has room for", tar(tar_storages(text("1")))
    yield "tar-storage-of-other-class", "EBADMSG", "not (number, location, class of torch)", tar(tar_storages(cls="os.FloatStorage"))
    yield "tar-storage-past-end", "EBADMSG", "storage of 7000 elements does not end", tar(tar_storages(n=7000))
    yield "tar-storage-count-negative", "EBADMSG", "does not end in its member", tar(tar_storages(n=-6))
    yield "tar-view-outside", "EBADMSG", "view 0 of a storage does not lie inside one", tar(tar_storages(views=b"](" + dims(8, 7, 4, 3) + b"e"))
    yield "tar-view-of-nothing", "EBADMSG", "view 0 of a storage does not lie inside one", tar(tar_storages(views=b"](" + dims(8, 9, 0, 3) + b"e"))
    yield "tar-more-tensors-than-bytes", "EBADMSG", "more parts than it has room for", tar(None, tar_tensors(num(1 << 30)))
    yield "tar-tensor-cut", "EBADMSG", "tar container is cut short", tar(None, tar_tensors(numbers=(2, 3, 3, 1)))
    yield "tar-tensor-of-text", "EBADMSG", "tensor is not (number, storage, class)", tar(None, tar_tensors(store=text("7")))
    yield "tar-65-dimensions", "EBADMSG", "tensor of 65 dimensions", tar(None, tar_tensors(ndim=65, numbers=[0] * 131))
    yield "tar-tensor-without-storage", "EBADMSG", "tensor 1 has no storage", tar(None, tar_tensors(store=b"N"))
    yield "tar-storage-missing", "EBADMSG", "tensor 1 has no storage", tar(None, tar_tensors(store=num(8)))
    yield "tar-tensor-missing", "EBADMSG", "the stream has no tensor 2", tar(value=text("2") + b"Q")
    yield "tar-tensor-past-end", "EBADMSG", "reaches past the 24 bytes", tar(None, tar_tensors(numbers=(2, 3, 3, 1, 1)))
    yield "tar-stride-negative", "EBADMSG", "reaches past the 24 bytes", tar(None, tar_tensors(numbers=(2, 3, -3, 1, 0)))
    yield "tar-size-negative", "EBADMSG", "overflows", tar(None, tar_tensors(numbers=(-2, 3, 3, 1, 0)))


def others():
    """What is no torch.save at all is called by its name."""
    yield "git-lfs", "ENOTSUP", "a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 12\n"
    yield "web-page", "ENOTSUP", "a web page", b"<!DOCTYPE html><html></html>"
    yield "gguf", "ENOTSUP", "a GGUF model", b"GGUF\3\0\0\0" + bytes(16)
    yield "ggml", "ENOTSUP", "a GGML model", b"lmgg" + bytes(20)
    yield "executorch", "ENOTSUP", "an ExecuTorch program", b"\x20\0\0\0ET12" + bytes(24)
    yield "hdf5", "ENOTSUP", "an HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(8)
    yield "numpy-array", "ENOTSUP", "a .npy array", b"\x93NUMPY\1\0" + bytes(8)
    yield "gzip", "ENOTSUP", "compressed with gzip", b"\x1f\x8b\x08" + bytes(20)
    yield "safetensors", "ENOTSUP", "a safetensors file", struct.pack("<Q", 8) + b"{}      "
    yield "zeros", "ENOTSUP", "zeros", bytes(64)
    yield "torch-export", "ENOTSUP", "a torch.export package (.pt2)", bytes(Zip([(b"m/archive_format", b"pt2"), (b"m/models/model.json", b"{}")]).b)
    yield "torch-export-old", "ENOTSUP", "a torch.export program (.pt2)", bytes(Zip([(b"serialized_exported_program.json", b"{}"), (b"version", b"5.1")]).b)
    yield "npz", "ENOTSUP", "an .npz archive", bytes(Zip([(b"w.npy", b"\x93NUMPY")]).b)
    yield "keras", "ENOTSUP", "a Keras model", bytes(Zip([(b"config.json", b"{}"), (b"model.weights.h5", b"")]).b)


def containers():
    z = archive(v2())
    yield "empty-file", "EBADMSG", "empty; expected", b""
    yield "text-file", "EBADMSG", "starts with 0x6e", b"no checkpoint\n"
    yield "zip-cut", "EBADMSG", "cut short", z[:-1]
    yield "zip-empty", "EBADMSG", "it is empty", bytes(Zip([]).b)
    yield "zip-no-folder", "EBADMSG", "in no folder", bytes(Zip([(b"data.pkl", pickled(v2()))]).b)
    yield "zip-no-pickle", "EBADMSG", 'no member "a/data.pkl"', bytes(Zip([(b"a/version", b"3")]).b)
    yield "zip-pickle-elsewhere", "EBADMSG", 'no member "a/data.pkl"', bytes(Zip([(b"a/version", b"3"), (b"b/data.pkl", pickled(v2()))]).b)
    yield "zip-two-pickles", "EBADMSG", 'two members named "a/data.pkl"', bytes(Zip(members(v2()) + [(b"a/data.pkl", pickled(b"N"))]).b)
    yield "zip-two-storages", "EBADMSG", 'two storages with key "0"', bytes(Zip(members(v2()) + [(b"a/data/0", bytes(24))]).b)
    yield "torchscript", "ENOTSUP", "TorchScript archive", bytes(Zip(members(b"N") + [(b"a/constants.pkl", pickled(b")"))]).b)
    yield "torchscript-code", "ENOTSUP", "TorchScript archive", bytes(Zip(members(b"N") + [(b"a/code/__torch__.py", b"pass")]).b)
    yield "byteorder-unknown", "EBADMSG", "neither little nor big", archive(v2(), order=b"middle")
    yield "byteorder-long", "EBADMSG", "neither little nor big", archive(v2(), order=b"little" * 9)
    c = Zip(members(v2()))
    yield "pickle-compressed", "ENOTSUP", "compressed or encrypted", bytes(c.poke(c.entry[0] + 10, "H", 8).b)
    c = Zip(members(v2()))
    yield "storage-compressed", "ENOTSUP", 'storage "0" is compressed', bytes(c.poke(c.entry[2] + 10, "H", 8).b)
    c = Zip(members(v2()))
    yield "storage-header-elsewhere", "EBADMSG", "names something else", bytes(c.poke(c.entry[2] + 42, "I", c.local[1]).b)
    yield "pickle-cut", "EBADMSG", "a/data.pkl: ", bytes(Zip([(b"a/data.pkl", pickled(v2())[:-30])]).b)
    yield "pickle-out-of-band", "ENOTSUP", "a/data.pkl: ", bytes(Zip([(b"a/data.pkl", b"\x80\x05\x97.")]).b)
    yield "pytorch1", "ENOTSUP", "PYTORCH1", b"PYTORCH1" + bytes(64)
    yield "plain-pickle", "EBADMSG", "no magic number", pickled(b"}")
    yield "legacy-other-magic", "EBADMSG", "no magic number", legacy(magic=pickled(b"\x8a\x0a" + bytes.fromhex("6cfc9c46f9206aa85018")))
    yield "legacy-other-version", "ENOTSUP", "another version", legacy(version=pickled(num(1002)))
    yield "legacy-no-host", "EBADMSG", "facts about its host", legacy(host=pickled(b"N"))
    yield "legacy-cut-after-host", "EBADMSG", "", MAGIC + VERSION + HOST
    yield "legacy-keys-no-list", "EBADMSG", "no list of storage keys", legacy(listed=b"N")
    yield "legacy-key-unknown", "EBADMSG", "storage 1 of 2 belongs to no tensor", legacy(keys=(text("0"), text("7")))
    yield "legacy-key-no-text", "EBADMSG", "storage 0 of 1 belongs to no tensor", legacy(keys=(num(0),))
    yield "legacy-key-missing", "EBADMSG", 'storage "0" is missing', legacy(keys=())
    yield "legacy-key-twice", "EBADMSG", 'two storages with key "0"', legacy(keys=(text("0"), text("0")), data=bytes(24) + struct.pack("<q", 6) + bytes(24))
    yield "legacy-count-cut", "EBADMSG", 'the stream ends before storage "0"', legacy(count=None, data=b"\6\0\0")
    yield "legacy-count-differs", "EBADMSG", "has 5 elements, its tensors say 6", legacy(count=5)
    yield "legacy-count-negative", "EBADMSG", "its tensors say 6", legacy(count=-1)
    yield "legacy-data-cut", "EBADMSG", "does not end inside the stream", legacy(data=bytes(23))
    two = tup(v2(storage("torch.FloatStorage", "0", 6, b"N")), v2(storage("torch.DoubleStorage", "0", 6, b"N")))
    yield "legacy-two-descriptions", "EBADMSG", 'storage "0" is described in two ways', legacy(value=two)
    view = storage("torch.FloatStorage", "0", 6, tup(text("v"), num(5), num(2)))
    yield "legacy-view-past-end", "EBADMSG", "does not lie inside its 6 elements", legacy(value=v2(view, num(0), dims(2), dims(1)))
    view = storage("torch.FloatStorage", "0", 6, tup(text("v"), num(4), num(2)))
    yield "legacy-tensor-past-view", "EBADMSG", "reaches past the 8 bytes", legacy(value=v2(view, num(0), dims(3), dims(1)))


def tensors():
    yield "storage-missing", "EBADMSG", 'storage "1" is missing', archive(v2(storage(key="1")))
    yield "storage-key-climbs", "EBADMSG", 'storage "../version" is missing', archive(v2(storage(key="../version", n=0)))
    yield "storage-short", "EBADMSG", "has 23 bytes, its tensor expects 6 elements of 4", archive(v2(), data=bytes(23))
    yield "storage-long", "EBADMSG", "has 25 bytes", archive(v2(), data=bytes(25))
    yield "storage-count-negative", "EBADMSG", "persistent id is not", archive(v2(storage(n=-1)))
    yield "storage-count-wraps", "EBADMSG", "its tensor expects 4611686018427387910 elements", archive(v2(storage(n=2**62 + 6)))
    yield "storage-class-unknown", "ENOTSUP", "unknown storage class torch.SecretStorage", archive(v2(storage("torch.SecretStorage")))
    yield "storage-class-foreign", "ENOTSUP", "unknown storage class os.FloatStorage", archive(v2(storage("os.FloatStorage")))
    yield "storage-class-text", "EBADMSG", "persistent id is not", archive(v2(ident(text("storage"), text("FloatStorage"), text("0"), text("cpu"), num(6))))
    yield "storage-key-number", "EBADMSG", "persistent id is not", archive(v2(ident(text("storage"), glob("torch.FloatStorage"), num(0), text("cpu"), num(6))))
    yield "storage-id-short", "EBADMSG", "persistent id is not", archive(v2(ident(text("storage"), glob("torch.FloatStorage"), text("0"), text("cpu"))))
    yield "storage-id-text", "EBADMSG", "persistent id is not", archive(v2(text("storage") + b"Q"))
    yield "storage-id-list", "EBADMSG", "persistent id is not", archive(v2(b"](" + text("storage") + glob("torch.FloatStorage") + text("0") + text("cpu") + num(6) + b"eQ"))
    yield "storage-id-module", "EBADMSG", "persistent id is not", archive(v2(ident(text("module"), glob("torch.FloatStorage"), text("0"), text("cpu"), num(6))))
    yield "storage-is-list", "EBADMSG", "persistent id is not", archive(v2(b"]"))
    yield "offset-past-end", "EBADMSG", "reaches past the 24 bytes", archive(v2(None, num(1)))
    yield "offset-negative", "EBADMSG", "damaged offset", archive(v2(None, num(-1)))
    yield "offset-wraps", "EBADMSG", "reaches past the 24 bytes", archive(v2(None, num(2**62)))
    yield "size-past-end", "EBADMSG", "reaches past the 24 bytes", archive(v2(None, num(0), dims(3, 3)))
    yield "size-negative", "EBADMSG", "damaged offset, size or stride", archive(v2(None, num(0), dims(-2, 3)))
    yield "size-text", "EBADMSG", "damaged offset, size or stride", archive(v2(None, num(0), text("2")))
    yield "size-holds-text", "EBADMSG", "damaged offset, size or stride", archive(v2(None, num(0), tup(text("2"), num(3))))
    yield "size-volume-wraps", "EBADMSG", "overflows", archive(v2(None, num(0), dims(2**40, 2**40), dims(0, 0)))
    yield "size-bytes-wrap", "EBADMSG", "overflows", archive(v2(None, num(0), dims(2**62), dims(0)))
    yield "size-65-dimensions", "EBADMSG", "damaged offset, size or stride", archive(v2(None, num(0), dims(*[1] * 65), dims(*[1] * 65)))
    yield "stride-past-end", "EBADMSG", "reaches past the 24 bytes", archive(v2(None, num(0), dims(2, 3), dims(4, 1)))
    yield "stride-negative", "EBADMSG", "damaged offset, size or stride", archive(v2(None, num(5), dims(2, 3), dims(-3, -1)))
    yield "stride-wraps", "EBADMSG", "reaches past the 24 bytes", archive(v2(None, num(0), dims(2, 3), dims(2**62, 2**62)))
    yield "stride-count-differs", "EBADMSG", "damaged offset, size or stride", archive(v2(None, num(0), dims(2, 3), dims(1)))
    yield "arguments-missing", "EBADMSG", "damaged offset, size or stride", archive(call("torch._utils._rebuild_tensor_v2", storage(), num(0), dims(2), dims(1)))
    v3 = [storage("torch.storage.UntypedStorage", "0", 24), num(0), dims(2, 3), dims(3, 1), b"\x89", HOOKS]
    yield "dtype-missing", "EBADMSG", "without a dtype", archive(call("torch._utils._rebuild_tensor_v3", *v3, b"N"))
    yield "dtype-unknown", "ENOTSUP", "dtype torch.float3 has elements of unknown size", archive(call("torch._utils._rebuild_tensor_v3", *v3, glob("torch.float3")))
    yield "dtype-too-wide", "EBADMSG", "reaches past the 24 bytes", archive(call("torch._utils._rebuild_tensor_v3", *v3, glob("torch.uint64")))
    yield "conjugate", "ENOTSUP", "conjugate view", archive(v2(None, num(0), dims(2, 3), dims(3, 1), b"}(" + text("conj") + b"\x88u"))
    yield "negative", "ENOTSUP", "negative view of I64", archive(v2(storage("torch.LongStorage", "0", 3), num(0), dims(3), dims(1), b"}(" + text("neg") + num(1) + b"u"))
    yield "negative-conjugate", "ENOTSUP", "conjugate and negative at once", archive(v2(storage("torch.ComplexFloatStorage", "0", 3), num(0), dims(3), dims(1), b"}(" + text("neg") + b"\x88" + text("conj") + b"\x88u"))
    yield "sparse", "ENOTSUP", "sparse tensor", archive(call("torch._utils._rebuild_sparse_tensor", b"N", b")"))
    yield "nested", "ENOTSUP", "nested tensor", archive(call("torch._utils._rebuild_nested_tensor", b"N"))
    yield "quantized", "ENOTSUP", "quantized tensor", archive(call("torch._utils._rebuild_qtensor", b"N"))
    scheme = tup(glob("torch.per_tensor_affine"), num(1), num(0))
    yield "quantized-packed", "ENOTSUP", "its numbers are packed", archive(call("torch._utils._rebuild_qtensor", storage("torch.QUInt4x2Storage", "0", 24), num(0), dims(2, 3), dims(3, 1), scheme, b"\x89", HOOKS))
    yield "quantized-past-end", "EBADMSG", "reaches past the 24 bytes", archive(call("torch._utils._rebuild_qtensor", storage("torch.QInt8Storage", "0", 24), num(20), dims(2, 3), dims(3, 1), scheme, b"\x89", HOOKS))
    yield "meta", "ENOTSUP", "meta tensor", archive(call("torch._utils._rebuild_meta_tensor_no_storage", b"N"))
    yield "wrapper-subclass", "ENOTSUP", "wrapper subclass", archive(call("torch._utils._rebuild_wrapper_subclass", b"N"))
    yield "numpy-backed", "ENOTSUP", "numpy array", archive(call("torch._utils._rebuild_device_tensor_from_numpy", b"N"))
    yield "parameter-of-nothing", "EBADMSG", "_rebuild_parameter without a tensor", archive(call("torch._utils._rebuild_parameter", b"N", b"\x88", HOOKS))
    yield "parameter-no-arguments", "EBADMSG", "_rebuild_parameter without a tensor", archive(call("torch._utils._rebuild_parameter"))
    yield "type-no-arguments", "EBADMSG", "_rebuild_from_type_v2 without a tensor", archive(call("torch._tensor._rebuild_from_type_v2", glob("torch._utils._rebuild_tensor_v2"), glob("torch.Tensor")))
    deep = v2()
    for _ in range(9):
        deep = call("torch._utils._rebuild_parameter", deep, b"\x88", HOOKS)
    yield "parameter-of-parameters", "EBADMSG", "wrapped more than", archive(deep)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    listed = OUT / "EXPECT"
    old = listed.read_text().splitlines() if listed.exists() else []
    lines = []
    for name, code, says, data in [*containers(), *tars(), *others(), *tensors()]:
        (OUT / name).write_bytes(bytes(data))
        lines.append(f"{name} {code} {says}".rstrip())
    lines += [line for line in old if line.startswith("found-")]
    listed.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
