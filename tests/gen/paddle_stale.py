# SPDX-License-Identifier: Apache-2.0
"""What really happens when save_state_dict runs twice with unique_id=None in one directory: the data files are overwritten, the metadata is not.

  packages   paddlepaddle==3.3.1, numpy
  run        python paddle_stale.py
  writes     ../golden/paddle-dist-stale: ckpt/same-cut (second save cut the same way: fine), other-cut (second save cut along
             the other dimension: stale metadata; beside ckpt, because not all of it can be read)
"""
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import paddle_dist as P  # noqa: E402
from fw_common import entry, fresh, value, write_manifest  # noqa: E402

OUT = os.path.join(os.path.dirname(HERE), "golden")
RUN = os.path.join(tempfile.gettempdir(), "paddle-golden")


def vals(which):
    return value(f"stale/{which}", "w", "float32", (6, 8)), value(f"stale/{which}", "b", "float32", (5,))


def rank_main(ckpt):
    paddle, dist = P.env()
    dist.init_parallel_env()
    mesh = dist.ProcessMesh([0, 1])
    for sub, dims in (("same-cut", (0, 0)), ("other-cut", (0, 1))):
        for i, d in enumerate(dims):
            w, b = vals(i)
            dist.save_state_dict({"w": dist.shard_tensor(paddle.to_tensor(w), mesh, [dist.Shard(d)]), "b": dist.shard_tensor(paddle.to_tensor(b), mesh, [dist.Replicate()])},
                                 f"{ckpt}/{sub}")
            dist.barrier()


def main():
    import paddle
    import paddle.distributed as dist
    import paddle_ranks
    run = fresh(f"{RUN}/paddle-dist-stale")
    os.makedirs(f"{run}/ckpt")
    paddle_ranks.run(2, [os.path.abspath(sys.argv[0]), "--rank", f"{run}/ckpt"], f"{run}/log")
    vers = []
    for sub in ("same-cut", "other-cut"):
        w, b = vals(1)
        v = {"name": sub, "unique_id": 0, "complete": sub == "same-cut", "files": sorted(os.listdir(f"{run}/ckpt/{sub}")),
             "tensors": [entry("b", ["b"], "float32", b)] + ([entry("w", ["w"], "float32", w)] if sub == "same-cut" else [])}
        t = paddle.full([6, 8], -7.0)
        try:
            dist.load_state_dict({"w": t}, f"{run}/ckpt/{sub}", unique_id=0)
            v["paddle_loads"] = "the new values" if t.numpy().tobytes() == w.tobytes() else "something that is neither save"
        except Exception as e:
            v["paddle_loads"] = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
        if sub == "other-cut":
            v["bad_keys"] = {"w": "the metadata says two (3, 8) pieces, the files hold (6, 4) arrays: refuse as stale; the newest true value has sha256 " + entry("w", ["w"], "float32", w)["sha256"]}
        if v["complete"]:
            vers.append(v)
        print(sub, v["files"], v["paddle_loads"])
    write_manifest(f"{run}/manifest.json", {"name": "paddle-dist-stale", "format": "paddle-dist", "frameworks": {"paddlepaddle": paddle.__version__}, "world_size": 2, "about":
                   "Two saves with unique_id=None into one directory: the id stays 0, 0_0.distcp and 1_0.distcp are overwritten, 0.metadata is not.", "versions": vers})
    to = os.path.join(OUT, "paddle-dist-stale")
    P.install(run, to)
    shutil.move(os.path.join(to, "ckpt", "other-cut"), to)


if __name__ == "__main__":
    rank_main(sys.argv[2]) if sys.argv[1:2] == ["--rank"] else main()
