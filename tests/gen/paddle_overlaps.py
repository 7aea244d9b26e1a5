# SPDX-License-Identifier: Apache-2.0
"""Which of several boxes that hold an element does Paddle's own load_state_dict take?

  packages   paddlepaddle 2.6.2, 3.0.0 and 3.3.1, one after another (2.6.2: numpy<2)
  run        python paddle_overlaps.py >> ../golden/paddle-overlaps.txt
  writes     a line for each checkpoint: generation, version, shape, the boxes in the order in which metadata lists them
             (offset+lengths), and for each element the number of the box it came from

The boxes of one checkpoint are made up, its metadata and data files are written with the classes and functions of the installed
release, and read back in one process. Piece i lies in the file of rank n - i, and storage_metadata is shuffled: neither order is that
of the list. No file is of rank 0, which 3.3 would take whole where it holds just what is asked for.
"""
import os
import random
import shutil
import sys
import tempfile

import paddle
import paddle.distributed as dist

V = paddle.__version__
if V.startswith("3.3"):
    from paddle.distributed.flex_checkpoint.dcp.metadata import LocalTensorIndex, LocalTensorMetadata, Metadata
else:
    from paddle.distributed.checkpoint.metadata import LocalTensorIndex, LocalTensorMetadata, Metadata
GENERATION = {"2.": "A", "3.0": "B"}.get(V[:3], "A" if V[0] == "2" else "C")
paddle.Tensor.cuda = lambda self, *a, **k: self  # old releases load by way of the device


def boxes(rng, shape):
    """the whole and some parts of it, in any order; before C an offset names one file"""
    out, seen = [], set()
    want = [(tuple(0 for _ in shape), tuple(shape))]
    for _ in range(rng.randint(1, 5)):
        lo = tuple(rng.randrange(s) for s in shape)
        want.append((lo, tuple(rng.randint(1, s - a) for s, a in zip(shape, lo))))
    for lo, n in want:
        name = lo if GENERATION != "C" else (lo, n)
        if name not in seen:
            seen.add(name)
            out.append((lo, n))
    rng.shuffle(out)
    return out


def save(path, shape, parts, rng):
    entries, files = [], []
    for i, (lo, n) in enumerate(parts):
        name = f"{len(parts) - i}_0.distcp"
        paddle.save({"w": paddle.full(n, float(i), dtype="float32")}, f"{path}/{name}")
        if GENERATION == "A":
            entries.append(LocalTensorMetadata(lo, n))
            files.append((LocalTensorIndex("w", lo), name))
        elif GENERATION == "B":
            entries.append(LocalTensorMetadata(lo, n, "float32"))
            files.append((LocalTensorIndex("w", lo), name))
        else:
            entries.append(LocalTensorMetadata(lo, n, "float32", tuple(shape)))
            files.append((LocalTensorIndex("w", lo, local_shape=n), name))
    rng.shuffle(files)
    more = () if GENERATION == "A" else ({"w": ("w",)},)
    paddle.save(Metadata({"w": entries}, dict(files), *more), f"{path}/0.metadata")


def main():
    rng = random.Random(20)
    for _ in range(40):
        shape = [rng.randint(2, 5) for _ in range(rng.randint(1, 3))]
        parts = boxes(rng, shape)
        path = tempfile.mkdtemp()
        save(path, shape, parts, rng)
        t = paddle.full(shape, -1.0, dtype="float32")
        state = {"w": t}
        dist.load_state_dict(state, path)
        took = "".join(str(int(x)) for x in state["w"].numpy().reshape(-1))
        shutil.rmtree(path)
        text = " ".join(",".join(map(str, lo)) + "+" + "x".join(map(str, n)) for lo, n in parts)
        print(GENERATION, V, "x".join(map(str, shape)), text, took, flush=True)


if __name__ == "__main__":
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Paddle talks on stdout, too
    main()
