#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dcpfs export --as deepspeed-universal writes, loaded by DeepSpeed itself: two ranks train with ZeRO 1 in bf16, save, and go on;
two ranks that load go on with the same losses and states to the last bit, one rank with the same as far as its sums allow.

Needs deepspeed; tests/run.sh --frameworks runs it.

usage: deepspeed_proof.py DCPFS
"""
import json
import os
import subprocess
import sys
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"
import needs  # noqa: E402

needs.modules("DCPFS_TEST_DEEPSPEED", "deepspeed")
import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402

sys.path.insert(0, "tests/gen")
from paddle_ranks import free_ports  # noqa: E402

BATCH, STEPS = 4, 3


class Net(torch.nn.Module):
    universal_checkpoint_info = {"universal_checkpoint_version": 0.2, "tp_replicated_parameter_patterns": [".*"]}

    def __init__(self):
        super().__init__()
        self.emb, self.mid, self.norm, self.out = torch.nn.Embedding(11, 6), torch.nn.Linear(6, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 11)

    def forward(self, x):
        return self.out(self.norm(torch.relu(self.mid(self.emb(x)))))


def rank(folder, tag, out):
    """Train and save if there is nothing, else load; then what the next steps give."""
    deepspeed.init_distributed("gloo")
    ranks, me, load = torch.distributed.get_world_size(), torch.distributed.get_rank(), os.path.exists(folder)
    torch.manual_seed(load)
    net, each = Net(), BATCH // ranks
    engine = deepspeed.initialize(model=net, model_parameters=list(net.parameters()), config={
        "train_batch_size": BATCH, "train_micro_batch_size_per_gpu": each, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1},
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}, "checkpoint": {"load_universal": load}})[0]

    def step(i):
        chance = torch.Generator().manual_seed(i)
        x, y = (torch.randint(0, 11, (BATCH, 5), generator=chance)[me * each:][:each] for _ in range(2))
        loss = torch.nn.functional.cross_entropy(engine(x).float().reshape(-1, 11), y.reshape(-1))
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        return float(total) / ranks

    if load:
        engine.load_checkpoint(folder, tag=tag)
        assert engine.global_steps == STEPS, engine.global_steps
    else:
        for i in range(STEPS):
            step(i)
        torch.distributed.barrier()
        engine.save_checkpoint(folder, tag=tag)
    losses = [step(i) for i in range(STEPS, 2 * STEPS)]
    states = [t.double().abs().sum().item() for p in engine.module.parameters()
              for t in (safe_get_full_fp32_param(p), *(safe_get_full_optimizer_state(p, k) for k in ("exp_avg", "exp_avg_sq")))]
    if me == 0:
        with open(out, "w") as f:
            json.dump(losses + states, f)


def job(ranks, folder, tag, scratch):
    port, out, processes = free_ports(1)[0], f"{scratch}/result", []
    for r in range(ranks):
        env = os.environ | {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                            "OMP_NUM_THREADS": "1"}
        log = open(f"{scratch}/log.{r}", "w")
        processes.append(subprocess.Popen([sys.executable, "-B", __file__, folder, tag, out], env=env, stdout=log, stderr=log))
    if any([p.wait(600) for p in processes]):
        sys.exit("".join(open(f"{scratch}/log.0").readlines()[-40:]))
    with open(out) as f:
        return json.load(f)


def main():
    if len(sys.argv) > 2:
        return rank(*sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="dcpfs-deepspeed-") as scratch:
        whole = job(2, f"{scratch}/run", "step3", scratch)
        subprocess.run([sys.argv[1], "export", f"{scratch}/run", f"{scratch}/out", "--as", "deepspeed-universal"], check=True,
                       env=os.environ | {"DCPFS_CACHE": f"{scratch}/cache"})
        assert job(2, f"{scratch}/out", "universal", scratch) == whole, "two ranks do not go on as before"
        alone = job(1, f"{scratch}/out", "universal", scratch)
        assert alone[0] == whole[0], "one rank begins elsewhere"
        worst = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(alone, whole))
        assert worst < 0.02, worst
        print(f"{len(whole)} losses and states are equal; by one rank within {worst:.2%}")


if __name__ == "__main__":
    main()
