# SPDX-License-Identifier: Apache-2.0
"""dcp-plain: one process, no_dist; every dtype, strides as they come, views, tied tensors, odd keys. flat/ is saved without flattening.

Packages: torch==2.15.0 numpy.  Run: python dcp_plain.py
"""
from collections import OrderedDict

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import fixlib

NAME = "dcp-plain"
rnd = fixlib.rnd


def states():
    dt = {}
    for t, n in fixlib.NAMES.items():
        dt[n] = rnd(n, (3, 8), t)
    sh = {"zero_dim": rnd("zd", (), torch.float64), "zero_dim_bool": torch.tensor(True), "one": rnd("one", (1,)), "empty": torch.empty(0), "empty2": torch.empty(3, 0, 5, dtype=torch.int16),
          "empty_bf16": torch.empty(0, 7, dtype=torch.bfloat16), "conv5": rnd("c5", (2, 3, 1, 2, 5)), "ones7": rnd("o7", (1, 1, 1, 1, 1, 1, 1)), "prime": rnd("p", (101, 3), torch.float16)}
    base = rnd("base", (11, 13))
    st = {
        "transposed": rnd("t", (7, 5)).t(), "permuted": rnd("p", (2, 3, 4, 5), torch.bfloat16).permute(3, 1, 0, 2), "column": base[:, 4], "rows": base[3:7], "block": base[2:9, 1:12:3],
        "every_other": rnd("e", (17,), torch.int64)[::2], "expanded": rnd("x", (1, 6)).expand(4, 6), "expanded0": rnd("x0", ()).expand(3, 2), "channels_last": rnd("cl", (2, 3, 4, 5)).to(memory_format=torch.channels_last),
        "channels_last_3d": rnd("cl3", (2, 3, 2, 2, 3)).to(memory_format=torch.channels_last_3d), "strided_dense": torch.empty_strided((3, 4), (1, 3)).copy_(rnd("sd", (3, 4))),
        "padded": torch.empty_strided((3, 4), (8, 1)).copy_(rnd("pd", (3, 4))), "size1_stride": torch.empty_strided((1, 4), (99, 1)).copy_(rnd("s1", (1, 4))), "fp8_t": rnd("f8t", (6, 5), torch.float8_e4m3fn).t(),
        "c64_t": rnd("c64t", (4, 3), torch.complex64).t(), "tail": rnd("tail", (100,))[93:], "head": rnd("head", (100,), torch.bfloat16)[:7], "zero_dim_view": base[5, 6],
        # the storage happens to be as large as the tensor, so the writer does not clone it: stride 0, overlap and an offset reach the disk
        "stride0_on_disk": rnd("s0d", (6,))[:3].expand(2, 3), "overlap_on_disk": rnd("ovd", (6,)).as_strided((2, 3), (2, 1), 1),
    }
    w = rnd("tied", (9, 4), torch.bfloat16)
    tied = {"a.weight": w, "b.weight": w, "c_view": w[2:5], "d_T": w.t()}
    k = rnd("k", (2, 2))
    odd = {"with/slash": k, " spaces in key ": k + 1, "ünï/日本語/\U0001f9e0": k + 2, ".": k + 3, "..": k + 4, "../up": k + 5, "%2F": k + 6, "tab\tnewline\nq\"uote\\": k + 7, "": k + 8,
           "a.b": {"c": k + 9}, "a": {"b.c2": k + 10}, "long." + "x" * 300: k + 11, "long." + "x" * 300 + "y": k + 12, "CON": k + 13, "-rf": k + 14, "e\u0301": k + 15, "\u00e9": k + 16, "Case": k + 17, "case": k + 18,
           "latest": k + 19, ".metadata": k + 20, "nul\x01ctl": k + 21, "a" * 255: k + 22}
    par = {"parameter": torch.nn.Parameter(rnd("par", (3, 3))), "no_grad": torch.nn.Parameter(rnd("png", (2,)), requires_grad=False), "buffer": torch.nn.Buffer(rnd("buf", (2, 2)))}
    obj = {"ints": [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31), 2**63, -(2**63), 2**200], "floats": [0.0, -0.0, 1e-320, 1.7976931348623157e308], "str": "x" * 700, "u": "\U0001f9e0é\u0000z", "od": OrderedDict(b=1, a=2),
           "tuple_with_tensor": (1, k), "list_with_tensor": [k, 2, "three"], "deep": {"a": {"b": {"c": {"d": [[{"e": k}]]}}}}, "true": True, "none": None, "bytes": bytes(range(256)), "fset": frozenset([1]), "cplx": 1 + 2j, "range": range(3), "slice": slice(1, 2)}
    return {"all": {"dtypes": dt, "shapes": sh, "strides": st, "tied": tied, "odd": odd, "params": par, "obj": obj}}


def main():
    root = fixlib.fresh(NAME)
    s = states()["all"]
    dcp.save(s, storage_writer=dcp.FileSystemWriter(root / "all"), no_dist=True)
    flat = {f"{a}.{b}": t for a in ("dtypes", "strides") for b, t in s[a].items()}
    flat["blob"] = {"not": "flattened", "t": s["shapes"]["one"]}
    dcp.save(flat, storage_writer=dcp.FileSystemWriter(root / "flat"), planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
    out = fixlib.publish(NAME, root)
    v = [fixlib.dcp_version(out / "ckpt" / n, n) for n in ("all", "flat")]
    # the loader's own result must be what was put in
    want = {e["sha256"] for e in v[0]["tensors"]}
    for group in ("dtypes", "strides", "shapes"):
        for n, t in s[group].items():
            assert fixlib.sha(t) in want, (group, n)
    fixlib.finish(NAME, "One process, no_dist. all: every dtype torch can save, dense non-row-major strides kept on disk (transposed, permuted, channels_last), views cloned to a minimal storage, expanded tensors (two of them with stride 0, overlap and a storage offset on disk), "
                  "0-dim and empty tensors, tied tensors (stored twice: the format records no tie), keys with slashes, unicode, control characters, 300 characters. flat: flatten_state_dict=False (planner_data None). dtype names beyond safetensors' usual ones: F8_E4M3FNUZ F8_E5M2FNUZ F8_E8M0 C32 and F4 (shape as torch shows it: two values a byte).",
                  "torch-dcp", v)


if __name__ == "__main__":
    main()
