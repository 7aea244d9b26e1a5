# SPDX-License-Identifier: Apache-2.0
"""numpy and the real safetensors package read what dcpfs shows, mapped and not."""
import json
import mmap
import os
import shutil

import arrays
import lib
from lib import case, check, equal

try:
    import numpy
    import safetensors
except ImportError as why:
    lib.replace_python(why)

FOLDERS = ("dcp-plain", "dcp-fsdp2", "dcp-tp-fsdp", "dcp-old-1.13.1")


def versions():
    """(mount, version, its tensors) of every complete version."""
    for folder in FOLDERS:
        source, manifest = lib.golden(folder)
        with lib.mount(source) as m:
            for version in manifest:
                if manifest[version]["complete"]:
                    case(f"{folder}/{version}")
                    yield m, version, m.index(version)["tensors"]


def compare(path, raw, key, t):
    """One array; its maps are gone when this returns, or the mount would be busy."""
    whole, mapped = numpy.load(path), numpy.load(path, mmap_mode="r")
    equal(whole.tobytes(), mapped.tobytes(), f"{key}: read and mapped")
    equal(mapped.tobytes(), numpy.load(path, mmap_mode="c").tobytes(), f"{key}: copy on write")
    check(not mapped.flags.writeable, f"{key}: mapped read-only")
    if t["dtype"] != "F4":
        equal(list(whole.shape), t["shape"], f"shape of {key}")
    if t["dtype"] in arrays.NATIVE:
        equal((whole.dtype.str, whole.tobytes()), (arrays.NATIVE[t["dtype"]], raw), f"dtype and bytes of {key}")
    elif t["dtype"] == "BF16":
        equal((whole.view("<u4") >> 16).astype("<u2").tobytes(), raw, f"upper halves of {key}")


def numpy_reads_the_same():
    """numpy.load gives the shape and, where numpy has the dtype, the very bytes of raw/."""
    for m, version, tensors in versions():
        for key, t in tensors.items():
            compare(m.at / version / t["files"]["npy"], lib.read(m.at / version / t["files"]["raw"]), key, t)


def safetensors_reads_every_file():
    """The reader of the format's own authors takes every file, and finds the stored bytes."""
    seen = set()
    for m, version, tensors in versions():
        for key, t in tensors.items():
            if not t["files"]["safetensors"]:
                continue
            path = m.at / version / t["files"]["safetensors"]
            try:
                found = safetensors.deserialize(lib.read(path))
            except safetensors.SafetensorError as e:
                if t["dtype"] in ("F4", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"):
                    continue  # younger than some releases of the package
                lib.fail(f"{key}: {e}")
                continue
            seen.add(t["dtype"])
            equal([n for n, _ in found], [key], "names")
            equal((found[0][1]["dtype"], bytes(found[0][1]["data"])),
                  (t["dtype"], lib.read(m.at / version / t["files"]["raw"])), f"dtype and bytes of {key}")
            if t["dtype"] in ("F64", "F32", "F16", "I64", "I32", "U8", "BOOL"):
                with safetensors.safe_open(path, framework="np") as f:  # maps the file
                    equal(f.get_tensor(key).tobytes(), bytes(found[0][1]["data"]), f"mapped bytes of {key}")
                    equal((f.metadata() or {}).get("format"), "pt", f"metadata of {key}")
    check({"BF16", "F32", "I64", "F8_E4M3"} <= seen, f"dtypes that were compared: {sorted(seen)}")


def by_numpy(at):
    mapped = numpy.load(at / "npy" / "w.npy", mmap_mode="r")
    return lambda: mapped.tobytes()


def by_safetensors(at):
    file = safetensors.safe_open(at / "safetensors" / "w.safetensors", framework="numpy")
    return lambda: file.get_tensor("w").tobytes()


def by_rank(at):
    """A file of many tensors, none of which was touched before."""
    ranks = [safetensors.safe_open(at / "shard" / "dim0x2" / str(r) / "model.safetensors", framework="numpy")
             for r in range(2)]
    return lambda: b"".join(r.get_tensor("w").tobytes() for r in ranks)


def by_torch(at):
    """As torch.load(mmap=True) and UntypedStorage.from_file do."""
    with open(at / "raw" / "w.bin", "rb") as f:
        pages = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    return lambda: pages[:]


class Reader:
    """A process that has a file mapped, and reads all of it when it is told to."""

    def __init__(self, how, at, want):
        self.what, (asked, self.ask), (self.said, say) = how.__name__, os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(asked)
            os.close(say)
            equal(os.read(self.said, 1), b"o", f"{self.what}: opened")
            return
        try:
            read = how(at)
            os.write(say, b"o")
            os.read(asked, 1)
            os._exit(0 if read() == want else 1)
        except BaseException:
            os._exit(2)

    def check(self):
        os.write(self.ask, b"x")
        status = os.waitpid(self.pid, 0)[1]
        equal((os.WTERMSIG(status), os.WEXITSTATUS(status)), (0, 0), f"{self.what}: signal and exit code")
        os.close(self.ask)
        os.close(self.said)


def readers_survive_removed_versions():
    """Old checkpoints go while they are read, as with save_total_limit: whoever has one mapped reads on."""
    rng = lib.rng("rotated")
    want = {f"step-{i}": rng.randbytes(2048 * 1024 * 4) for i in range(1, 4)}
    for options in ((), ("--io", "pread")):
        source = lib.fresh("source")
        for name, data in want.items():
            arrays.write_sharded(source / name, {"w": ("F32", [2048, 1024], 0, data)})
        with lib.mount(source, *options) as m:
            m.settled()
            for name in sorted(want)[:-1]:
                case(f"{name} removed {options}")
                readers = [Reader(how, m.at / name, want[name]) for how in (by_numpy, by_safetensors, by_rank, by_torch)]
                shutil.rmtree(source / name)
                lib.wait(lambda: name not in m.versions(), "the version leaves", lib.APPEARS)
                for reader in readers:
                    reader.check()


def odd_keys_keep_none_out():
    """A key that no safetensors file can hold keeps no other out of one."""
    source = lib.fresh("keys")
    good = {"ok": b"abc", "f\u00fcr": b"de"}
    arrays.write_torch_save(source / "odd.pt", {"__metadata__": b"x", "\ud800": b"y", **good})
    with lib.mount(source / "odd.pt") as m:
        at = m.at / m.settled().latest()
        equal(sorted(os.listdir(at / "safetensors")), ["f\u00fcr.safetensors", "ok.safetensors"], "files")
        equal(len(os.listdir(at / "raw")), 4, "raw/ has every key")
        equal({t["key"]: bool(t["files"]["safetensors"]) for t in m.index(at.name)["tensors"].values()}["__metadata__"],
              False, "index.json")
        model = lib.read(at / "shard" / "fsdp1" / "0" / "model.safetensors")
        equal({k: bytes(t["data"]) for k, t in safetensors.deserialize(model)}, good, "model.safetensors")
        equal(arrays.parse_safetensors(model)[1]["dcpfs.left_out"], "__metadata__ %ED%A0%80", "dcpfs.left_out")
    case("a NUL in a key, and in metadata")
    header = {"__metadata__": {"n\0l": "\0"}, "n\0l": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
              "ok": {"dtype": "U8", "shape": [3], "data_offsets": [2, 5]}}
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"deabc"
    equal({k for k, _ in safetensors.deserialize(data)}, {"n\0l", "ok"}, "the package reads it")
    (source / "a.safetensors").write_bytes(data)
    with lib.mount(source / "a.safetensors") as m:
        at = m.at / m.settled().latest()
        equal(lib.read(at / "raw" / "n%C0%80l.bin"), b"de", "a NUL in a key")
        equal(lib.read(at / "raw" / "ok.bin"), b"abc", "the key beside it")


lib.main(numpy_reads_the_same, safetensors_reads_every_file, odd_keys_keep_none_out, readers_survive_removed_versions)
