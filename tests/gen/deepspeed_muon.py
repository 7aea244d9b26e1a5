# SPDX-License-Identifier: Apache-2.0
"""golden/deepspeed-muon*: what two ranks of DeepSpeed 0.19.8 (gloo, CPU) saved after three steps of ZeRO 1, 2 and 3 with Muon on a model of
Linear(16, 24), LayerNorm(24), Linear(24, 8) and Embedding(10, 16).

Packages: torch==2.15.0; DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed==0.19.8.  Run: python deepspeed_muon.py [2 3]

Without arguments only the manifests are made, of the files alone, for which DeepSpeed is not needed. The truth of fp32 is DeepSpeed's
zero_to_fp32, which runs when files are made. ds_to_universal fails for all of them (it asks for exp_avg).
"""
import os
import pickle
import sys
import types

import torch

import fixlib

TAG = "global_step3"
ABOUT = {1: "each rank keeps whole the momentum of every parameter that has an element in its slice.",
         2: "the same in bf16, the momentum too.", 3: "the momentum is cut as the weights are."}


def name_of(stage):
    return "deepspeed-muon" + (f"-z{stage}" if stage > 1 else "")


def rank_main(rank, port, stage, out):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm_op"] = False    # it would compile that
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(1)
    nn = torch.nn
    m = nn.Sequential()
    for name, layer in (("emb", nn.Embedding(10, 16)), ("up", nn.Linear(16, 24)), ("norm", nn.LayerNorm(24)), ("down", nn.Linear(24, 8))):
        m.add_module(name, layer)
    for p in m.parameters():
        p.use_muon = p.ndim == 2
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "optimizer": {"type": "Muon", "params": {"lr": 0.01, "momentum": 0.9, "torch_adam": True}},
              "zero_optimization": {"stage": stage, "reduce_scatter": False, "overlap_comm": False}}
    engine = deepspeed.initialize(model=m, model_parameters=m.parameters(), config=config)[0]
    for i in range(3):
        engine.backward(engine(torch.randint(0, 10, (2, 5), generator=torch.Generator().manual_seed(10 * i + rank))).pow(2).mean())
        engine.step()
    engine.save_checkpoint(out)
    torch.distributed.barrier()


def save(stage):
    os.environ.update(DS_ACCELERATOR="cpu", TORCH_COMPILE_DISABLE="1", TORCHDYNAMO_DISABLE="1")
    out = fixlib.fresh(name_of(stage))
    torch.multiprocessing.spawn(rank_main, args=(29650 + stage, stage, str(out)), nprocs=2)
    for extra in out.glob("*.py"):
        extra.unlink()
    fixlib.publish(name_of(stage), out)
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    return get_fp32_state_dict_from_zero_checkpoint(str(out))


class Unpickler(pickle.Unpickler):
    """DeepSpeed's own classes hold no tensors, and are not needed."""

    def find_class(self, module, name):
        if module.startswith("deepspeed"):
            return type(name, (), {"__init__": lambda s, *a: None, "__setstate__": lambda s, x: None})
        return super().find_class(module, name)


def read(stage, file):
    module = types.SimpleNamespace(Unpickler=Unpickler, load=pickle.load, Pickler=pickle.Pickler, __name__="pickle")
    return torch.load(fixlib.here() / name_of(stage) / "ckpt" / TAG / file, weights_only=False, pickle_module=module)


def momenta(states, half, shapes):
    """Of each parameter that has an element in a rank's slice of a group, that rank keeps all of it."""
    at, used = 0, [0] * len(states)
    for name, shape in shapes.items():
        n, got = torch.Size(shape).numel(), []
        for r, state in enumerate(states):
            if at < (r + 1) * half and at + n > r * half:
                got.append(state["momentum_buffer"][used[r]:used[r] + n].reshape(shape))
                used[r] += n
        assert all(torch.equal(got[0], t) for t in got), name
        yield name, got[0]
        at += n
    assert used == [s["momentum_buffer"].numel() for s in states]


def cut_by_two(slices, shapes):
    """ZeRO 3 cuts each parameter into two halves, the last padded; a rank's flat tensor has its halves one after the other."""
    at = 0
    for name, shape in shapes.items():
        n = torch.Size(shape).numel()
        half = -(-n // 2)
        yield name, torch.cat([s[at:at + half] for s in slices])[:n].reshape(shape)
        at += half


def one_after_another(slices, shapes):
    flat, at = torch.cat(slices), 0
    for name, shape in shapes.items():
        n = torch.Size(shape).numel()
        yield name, flat[at:at + n].reshape(shape)
        at += n


def describe(stage, master):
    files = sorted(p.name for p in (fixlib.here() / name_of(stage) / "ckpt" / TAG).glob("*optim_states.pt"))
    first = sorted(p.name for p in (fixlib.here() / name_of(stage) / "ckpt" / TAG).glob("*model_states.pt"))[0]
    model, optims = read(stage, first), [read(stage, f)["optimizer_state_dict"] for f in files]
    v = {"name": TAG, "complete": True, "more": True, "tensors": [], "objects": [], "aliases": [], "shards": []}

    def add(role, name, t):
        v["tensors"].append(fixlib.tensor_entry(f"{role}.{name}", [role, name], t))
    if stage < 3:
        for name, t in model["module"].items():
            add("module", name, t)
    for g, shapes in enumerate(model["param_shapes"]):
        join = cut_by_two if stage == 3 else one_after_another
        weights = [o["fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"][g] for o in optims]
        states = [(o["optimizer_state_dict"] if stage == 3 else o["base_optimizer_state"])["state"][g] for o in optims]
        for name, t in join(weights, shapes):
            assert master is None or torch.equal(t, master[name]), name
            add("fp32", name, t)
        for role in states[0]:
            if role == "momentum_buffer" and stage < 3:
                parts = momenta(states, weights[0].numel(), shapes)
            elif role in ("momentum_buffer", "exp_avg", "exp_avg_sq"):
                parts = join([s[role] for s in states], shapes)
            else:
                continue
            for name, t in parts:
                add(role, name, t)
    fixlib.finish(name_of(stage), f"2 ranks, ZeRO {stage}, Muon for matrices and AdamW for the rest: {ABOUT[stage]}", "deepspeed", [v], frameworks={"deepspeed": "0.19.8"})


def main():
    made = {stage: save(stage) for stage in map(int, sys.argv[1:])}
    for stage in ABOUT:
        describe(stage, made.get(stage))


if __name__ == "__main__":
    main()
