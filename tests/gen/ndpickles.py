#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""numpy arrays as numpy pickles them: one file a protocol, and what is in them.

    ndpickles.py DIR TAG      # TAG names the numpy in use: "1.24" or "2"

Each TAG-p<protocol>.pkl is a dict of arrays; TAG.json says dtype, shape and row-major
little-endian bytes (hex) of each. Written by numpy 1.24.2 and by numpy 2.4.
"""
import json
import pathlib
import pickle
import sys

import numpy as np

CODES = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()


def arrays():
    rng = np.random.default_rng(7)
    out = {}
    for code in CODES:
        size = np.dtype(code).itemsize
        raw = rng.integers(0, 2 if code == "b1" else 256, 6 * size, dtype=np.uint8)
        out[code] = raw.view(code).reshape(2, 3)
    base = np.arange(24, dtype="<f4").reshape(2, 3, 4) * 1.5
    out["fortran"] = np.asfortranarray(base)
    out["transposed"] = base.transpose(1, 2, 0)
    out["moved"] = base.transpose(0, 2, 1)
    out["sliced"] = base[:, ::2]
    out["big"] = base.astype(">f4")
    out["big_fortran"] = np.asfortranarray(base[0].astype(">i2"))
    out["scalar0"] = np.array(2.5)
    out["scalar"] = np.float32(-1.25)
    out["scalar_big"] = np.dtype(">i8").type(2**40 + 1)
    out["empty"] = np.zeros((0, 3), dtype="<i4")
    out["ascii"] = np.frombuffer(b"plain ASCII text" * 2, dtype="u2")
    out["long"] = rng.integers(0, 256, 10000, dtype=np.uint8).view("<u4")
    out["one"] = np.ones((1, 1, 5), dtype="<i8")
    return out


def main():
    to, tag = pathlib.Path(sys.argv[1]), sys.argv[2]
    made = arrays()
    for protocol in range(6):
        (to / f"{tag}-p{protocol}.pkl").write_bytes(pickle.dumps(made, protocol=protocol))
    said = {}
    for name, a in made.items():
        le = np.asarray(a).astype(np.asarray(a).dtype.newbyteorder("<"))
        said[name] = {"dtype": le.dtype.str[1:], "shape": list(le.shape), "hex": le.tobytes("C").hex()}
    (to / f"{tag}.json").write_text(json.dumps(said, indent=0) + "\n")


main()
