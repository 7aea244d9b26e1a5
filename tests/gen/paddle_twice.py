# SPDX-License-Identifier: Apache-2.0
"""What Paddle 3.0 records wrongly: a dimension that two mesh dimensions cut, and tensors of several shapes under one key.

  packages   paddlepaddle==3.0.0, numpy
  run        python paddle_twice.py
  writes     ../golden/paddle-dist-30/misrecorded, beside ckpt, because not all of it can be read. 4 ranks, a 2x2 mesh:
             fine    8x3, row i holds 3i..3i+2, cut by the first mesh dimension
             twice   the same values, cut by both: pieces of two rows; metadata says two pieces of four rows, two ranks drop theirs
             shapes  no distributed tensor: rank r holds r + 2 elements
"""
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(os.path.dirname(HERE), "golden", "paddle-dist-30", "misrecorded")


def rank_main(path):
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    rank = dist.get_rank()
    mesh = dist.ProcessMesh([[0, 1], [2, 3]])
    full = paddle.arange(24, dtype="float32").reshape([8, 3])
    local = dist.auto_parallel.api.dtensor_from_local
    dist.save_state_dict({
        "fine": dist.shard_tensor(full, mesh, [dist.Shard(0), dist.Replicate()]),
        "twice": local(full[2 * rank:2 * rank + 2].clone(), mesh, [dist.Shard(0), dist.Shard(0)]),
        "shapes": paddle.arange(rank + 2, dtype="float32"),
    }, path)


def main():
    import paddle_ranks

    run = tempfile.mkdtemp()
    paddle_ranks.run(4, [os.path.abspath(sys.argv[0]), "--rank", f"{run}/x"], f"{run}/log")
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.move(f"{run}/x", OUT)
    shutil.rmtree(run)


if __name__ == "__main__":
    rank_main(sys.argv[2]) if sys.argv[1:2] == ["--rank"] else main()
