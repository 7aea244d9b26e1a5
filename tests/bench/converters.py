#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tools that people convert checkpoints with today. One JSON line for what was done.

usage: converters.py VERB ARG...

  zero3 SOURCE OUT         DeepSpeed's zero_to_fp32 to safetensors (a python that has deepspeed, huggingface_hub)
  zero3-one SOURCE KEY     the same, lazily, for one tensor
  universal SOURCE OUT     DeepSpeed's ds_to_universal of global_step10: weights and moments
  paddle SOURCE OUT        Paddle's merge_sharded_state_dict to safetensors (paddle, safetensors)
  paddle-one SOURCE KEY    Paddle's load_state_dict of one tensor
  paddle-numpy SOURCE OUT  what Paddle does, by hand: pickle.load every file, paste the parts, save_file
  check SET DIR PREFIX...  the safetensors in DIR hold every tensor of families.SET and no other, by the names
                           PREFIX<key> (of the first one: or <key>), and all values are right
  example SET FILE         families.example() of it: the bytes to FILE; the line has the key

The line says wall and CPU seconds of the work, of the whole process with its imports (whole_*), and the bytes
written to the disk. A line "ready" comes between. Libraries run with one thread.
"""
import glob
import json
import os
import resource
import sys
import time
import warnings

warnings.filterwarnings("ignore")


def used():
    """CPU seconds and bytes written, of this process and those it waited for."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(r.ru_utime + r.ru_stime for r in both), 512 * sum(r.ru_oublock for r in both)


def age():
    """Seconds since this process started."""
    with open("/proc/self/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def measured(fn):
    print("ready", flush=True)
    began, (cpu, disk) = time.perf_counter(), used()
    stdout, sys.stdout = sys.stdout, sys.stderr         # the tools print
    try:
        fn()
    finally:
        sys.stdout = stdout
    wall, (cpu_end, disk_end) = time.perf_counter() - began, used()
    print(json.dumps({"wall": wall, "cpu": cpu_end - cpu, "disk": disk_end - disk, "whole_wall": age(),
                      "whole_cpu": cpu_end}), flush=True)


# ---- DeepSpeed ----

def zero3(source, out):
    import torch
    torch.set_num_threads(1)
    from deepspeed.utils import zero_to_fp32 as z
    import huggingface_hub  # noqa: F401
    import safetensors.torch  # noqa: F401
    measured(lambda: z.convert_zero_checkpoint_to_fp32_state_dict(source, out, safe_serialization=True))


def zero3_one(source, key):
    import torch
    torch.set_num_threads(1)
    from deepspeed.utils import zero_to_fp32 as z

    def one():
        state = z.get_fp32_state_dict_from_zero_checkpoint(source, lazy_mode=True)
        state[key].contiguous().view(-1)[0].item()
    measured(one)


def universal(source, out):
    import torch
    torch.set_num_threads(1)
    from deepspeed.checkpoint import ds_to_universal
    sys.argv = ["ds_to_universal", "--input_folder", source + "/global_step10", "--output_folder", out,
                "--num_extract_workers", "1", "--num_merge_workers", "1"]
    arguments = ds_to_universal.parse_arguments()
    measured(lambda: ds_to_universal.main(arguments))


# ---- Paddle ----

def on_cpu():
    """Paddle whose loaders' last step, onto a GPU, leaves tensors where they are."""
    import paddle
    paddle.set_device("cpu")
    paddle.Tensor.cuda = lambda self, *a, **k: self
    return paddle


def paddle_merge(source, out):
    on_cpu()
    from paddle.distributed.flex_checkpoint.dcp.load_state_dict import merge_sharded_state_dict
    import safetensors.numpy  # noqa: F401
    measured(lambda: merge_sharded_state_dict(source, out, offload=True))


def paddle_one(source, key):
    paddle = on_cpu()
    import families

    def one():
        state = {key: paddle.zeros(families.PADDLE[key], dtype="float32")}
        paddle.distributed.load_state_dict(state, source, offload=True)
        state[key].flatten()[0].item()
    measured(one)


def paddle_numpy(source, out):
    import numpy as np
    import pickle
    import families
    from safetensors.numpy import save_file
    for cls in (families.LocalTensorMetadata, families.LocalTensorIndex, families.Metadata):
        families.stand_in(cls, "paddle.distributed.flex_checkpoint.dcp.metadata")

    def load(name):
        with open(f"{source}/{name}", "rb") as f:
            return pickle.load(f)

    def merge():
        metadata, whole = load("0.metadata"), {}
        for key, boxes in metadata.state_dict_metadata.items():
            whole[key] = np.zeros(boxes[0].global_shape, boxes[0].dtype)
        parts = {name: load(name) for name in set(metadata.storage_metadata.values())}
        for index, name in metadata.storage_metadata.items():
            at = tuple(slice(o, o + n) for o, n in zip(index.global_offset, index.local_shape))
            whole[index.tensor_key][at] = parts[name][index.tensor_key]
        os.makedirs(out)
        save_file(whole, out + "/model.safetensors")
    measured(merge)


# ---- the truth ----

def read_safetensors(path):
    """(key, shape, the values as 32-bit patterns) of a file of F32."""
    import numpy as np
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        start = f.tell()
    for key, t in header.items():
        if key != "__metadata__":
            lo, hi = t["data_offsets"]
            if t["dtype"] != "F32" or hi - lo != 4 * max(1, int(np.prod(t["shape"]))):
                raise SystemExit(f"{path}: {key} is not what it should be: {t}")
            yield key, tuple(t["shape"]), np.fromfile(path, np.uint32, (hi - lo) // 4, offset=start + lo)


def check(name, where, *prefixes):
    import numpy as np
    import families
    shapes = families.SETS[name][1]()
    want = {p + k: s for p in prefixes or ("",) for k, s in shapes.items()}
    seen = set()
    for path in sorted(glob.glob(glob.escape(where) + "/*.safetensors")):
        for key, shape, values in read_safetensors(path):
            full = key if key in want or not prefixes else prefixes[0] + key
            if shape != want.get(full) or \
                    not np.array_equal(values, families.bits32(full, 0, values.size)):
                raise SystemExit(f"{path}: {key} has wrong values or shape {shape}")
            seen.add(full)
    if seen != set(want):
        raise SystemExit(f"{where}: {len(seen)} tensors, not {len(want)}")
    print(json.dumps({"checked": len(seen)}))


def example(name, path):
    import families
    key, values = families.example(name)
    with open(path, "wb") as f:
        f.write(values)
    print(json.dumps({"key": key}))


VERBS = {"zero3": zero3, "zero3-one": zero3_one, "universal": universal, "paddle": paddle_merge,
         "paddle-one": paddle_one, "paddle-numpy": paddle_numpy, "check": check, "example": example}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in VERBS:
        raise SystemExit(__doc__)
    VERBS[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
