# SPDX-License-Identifier: Apache-2.0
"""numpy and the real safetensors package read what dcpfs shows, mapped and not."""
import os
import sys

import arrays
import lib
from lib import case, check, equal

try:
    import numpy
    import safetensors
except ImportError as why:
    PYTHON = os.environ.get("DCPFS_TEST_PYTHON", "")
    if PYTHON and os.environ.get("DCPFS_TEST_REPLACED") != PYTHON:
        os.environ["DCPFS_TEST_REPLACED"] = PYTHON
        lib.become(PYTHON, *sys.argv)
    lib.skip(f"{why}; tests/run.sh makes a python that has it")

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


def numbers():
    """numpy.load gives the shape and, where numpy has the dtype, the very bytes of raw/."""
    for m, version, tensors in versions():
        for key, t in tensors.items():
            compare(m.at / version / t["files"]["npy"], lib.read(m.at / version / t["files"]["raw"]), key, t)


def checked_by_the_format():
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


lib.main(numbers, checked_by_the_format)
