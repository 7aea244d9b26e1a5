# SPDX-License-Identifier: Apache-2.0
"""The manifest of golden/deepspeed-muon, of the files alone: what two ranks of DeepSpeed 0.19.8 saved after three steps of ZeRO 1 with Muon
(optimizer {"type": "Muon"}, "reduce_scatter": false) on a model of Linear(16, 24), LayerNorm(24), Linear(24, 8) and Embedding(10, 16).

Packages: torch==2.15.0.  Run: python deepspeed_muon.py
"""
import pickle
import types

import torch

import fixlib

TAG = "global_step3"


class Unpickler(pickle.Unpickler):
    """DeepSpeed's own classes hold no tensors, and are not needed."""

    def find_class(self, module, name):
        if module.startswith("deepspeed"):
            return type(name, (), {"__init__": lambda s, *a: None, "__setstate__": lambda s, x: None})
        return super().find_class(module, name)


def read(file):
    module = types.SimpleNamespace(Unpickler=Unpickler, load=pickle.load, Pickler=pickle.Pickler, __name__="pickle")
    return torch.load(fixlib.here() / "deepspeed-muon" / "ckpt" / TAG / file, weights_only=False, pickle_module=module)


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


def main():
    model = read("mp_rank_00_model_states.pt")
    optims = [read(f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt")["optimizer_state_dict"] for r in (0, 1)]
    v = {"name": TAG, "complete": True, "more": True, "tensors": [], "objects": [], "aliases": [], "shards": []}

    def add(role, name, t):
        v["tensors"].append(fixlib.tensor_entry(f"{role}.{name}", [role, name], t))
    for name, t in model["module"].items():
        add("module", name, t)
    for g, shapes in enumerate(model["param_shapes"]):
        flats = {"fp32": torch.cat([o["single_partition_of_fp32_groups"][g] for o in optims])}
        states = [o["base_optimizer_state"]["state"][g] for o in optims]
        if "momentum_buffer" in states[0]:
            for name, t in momenta(states, flats["fp32"].numel() // 2, shapes):
                add("momentum_buffer", name, t)
        else:
            flats.update({k: torch.cat([s[k] for s in states]) for k in ("exp_avg", "exp_avg_sq")})
        for role, flat in flats.items():
            at = 0
            for name, shape in shapes.items():
                n = torch.Size(shape).numel()
                add(role, name, flat[at:at + n].reshape(shape))
                at += n
    fixlib.finish("deepspeed-muon", "2 ranks, ZeRO 1, Muon for matrices and AdamW for the rest: each rank keeps whole the momentum of every parameter that has an element in its slice.",
                  "deepspeed", [v], frameworks={"deepspeed": "0.19.8"})


if __name__ == "__main__":
    main()
