# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core torch_dist checkpoints (dist_checkpointing.save) from CPU ranks (gloo), read back with dist_checkpointing itself.

  packages   megatron-core==0.16.1 on torch 2.15.0 (megatron-dist); megatron-core==0.12.3 on torch 2.7.0 (megatron-dist-012, still has flattened_range); psutil, numpy
  run        python megatron_run.py                 (makes the fixtures of the installed megatron-core)
  writes     ../megatron-dist or ../megatron-dist-012; 0.16.1 also ../megatron-legacy

The state dict is built by hand from ShardedTensor / ShardedObject the way Megatron's models do (layers stacked by prepend_axis_num, tp offsets, replica_id, tied
embedding on first and last stage); no GPU model runs. torch.cuda.current_device and synchronize are stubbed because saving calls them.
megatron-legacy is STRUCTURAL: torch.save of a dict laid out like Megatron-LM's mp_rank_XX_YYY/model_optim_rng.pt, not written by Megatron.
"""
import argparse, json, os, shutil, sys
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from fw_common import fresh, value, write_manifest  # noqa: E402

OUT, RUN = os.path.join(os.path.dirname(HERE), "golden"), "/tmp/train"
SPECS = {
    "megatron-dist": {"mcore": "0.16.1", "tp": 2, "pp": 2, "layers": 4, "h": 6, "ffn": 10, "vocab": 22, "steps": [100, 200], "about":
                      "torch_dist, TP2 x PP2, 4 stacked layers, bf16 weights, fp32 optimizer state per parameter, ShardedObjects (RNG per rank), common.pt; iter_0000100 and iter_0000200."},
    "megatron-dist-012": {"mcore": "0.12.3", "tp": 2, "pp": 1, "dp": 2, "layers": 4, "h": 6, "ffn": 10, "vocab": 22, "steps": [50], "flat": True, "about":
                          "megatron-core 0.12.3: as megatron-dist, with optimizer state as flattened_range ShardedTensors (distributed optimizer, fully_sharded_model_space); TP2 x DP2."},
}


def install(run, dest):
    """copy run/ckpt and run/manifest.json to dest"""
    fresh(dest)
    shutil.copytree(os.path.join(run, "ckpt"), os.path.join(dest, "ckpt"), symlinks=True)
    shutil.copy(os.path.join(run, "manifest.json"), dest)


def plan(spec):
    """key, dtype, global shape, {axis: 'tp'}, stacked, stage"""
    h, f, v, L = spec["h"], spec["ffn"], spec["vocab"], spec["layers"]
    p = [("embedding.word_embeddings.weight", "bfloat16", (v, h), {0: "tp"}, False, "first+last"), ("decoder.final_layernorm.weight", "bfloat16", (h,), {}, False, "last")]
    for n, s, cut in (("self_attention.linear_qkv.weight", (3 * h, h), {0: "tp"}), ("self_attention.linear_proj.weight", (h, h), {1: "tp"}),
                      ("mlp.linear_fc1.weight", (f, h), {0: "tp"}), ("mlp.linear_fc2.weight", (h, f), {1: "tp"}), ("input_layernorm.weight", (h,), {})):
        p.append((f"decoder.layers.{n}", "bfloat16", (L,) + s, {a + 1: x for a, x in cut.items()}, True, "all"))
    return p


def pieces(spec, r):
    """what rank r holds: (key, dtype, full, index slices, offsets, stacked, replica)"""
    tp, pp, L = spec["tp"], spec["pp"], spec["layers"]
    t, s = r % tp, r // tp % pp
    for key, dt, shape, cut, stacked, where in plan(spec):
        for layer in (range(s * L // pp, (s + 1) * L // pp) if stacked else [None]):
            if not stacked and where == "last" and s != pp - 1 or where == "first+last" and s not in (0, pp - 1):
                continue
            rep = 0
            if where == "first+last" and s != 0:
                rep = 1
            if "tp" not in cut.values() and t:
                rep = t
            yield key, dt, shape, cut, stacked, layer, t, s, rep


def rank_main(name, ckpt):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *a: None
    np.product = np.prod                    # 0.12 was written for numpy 1
    from megatron.core import dist_checkpointing as dc
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    spec = SPECS[name]
    r = dist.get_rank()
    dp = r // (spec["tp"] * spec["pp"])

    def tt(a, dt):
        x = torch.from_numpy(np.ascontiguousarray(a).view("<i2") if dt == "bfloat16" else np.ascontiguousarray(a))
        return x.view(torch.bfloat16) if dt == "bfloat16" else x
    for step in spec["steps"]:
        sd = {"model": {}, "optimizer": {"fp32_param": {}, "exp_avg": {}, "exp_avg_sq": {}}}
        for key, dt, shape, cut, stacked, layer, t, s, rep in pieces(spec, r):
            offs = [(0, layer, shape[0])] if stacked else []
            idx = [slice(layer, layer + 1) if stacked and d == 0 else slice(None) for d in range(len(shape))]
            for d in cut:
                n = shape[d] // spec["tp"]
                idx[d] = slice(t * n, (t + 1) * n)
                offs.append((d, t, spec["tp"]))
            for kind, k2, d2 in (("model", key, dt),) + tuple(("opt", f"optimizer.state.{o}.{key}", "float32") for o in ("fp32_param", "exp_avg", "exp_avg_sq")):
                full = value(f"{name}/{step}", k2, d2, shape)
                x = full[tuple(idx)]
                if stacked:
                    x = x[0]
                name2 = f"{key}.{layer}" if stacked else key
                if kind == "model":
                    sd["model"][name2] = ShardedTensor.from_rank_offsets(key, tt(x, d2), *offs, replica_id=(0, rep, dp), prepend_axis_num=int(stacked))
                elif not spec.get("flat"):
                    sd["optimizer"][k2.split(".")[2]][name2] = ShardedTensor.from_rank_offsets(k2, tt(x, d2), *offs, replica_id=(0, rep, dp), prepend_axis_num=int(stacked))
                else:   # this data-parallel rank's run of the flattened local tensor
                    n = x.size
                    a, b = ((0, n * 2 // 5), (n * 2 // 5, n))[dp]
                    sd["optimizer"][k2.split(".")[2]][name2] = ShardedTensor.from_rank_offsets_flat(
                        k2, tt(x.reshape(-1)[a:b].copy(), d2), x.shape, *offs, flattened_range=slice(a, b), replica_id=(0, rep, 0), prepend_axis_num=int(stacked))
        sd["rng"] = ShardedObject("rng_state", [{"random_rng_state": ("x", r), "np": np.arange(3), "cuda_rng_state": torch.arange(4, dtype=torch.uint8)}],
                                  (spec["pp"], spec["tp"]), (r // spec["tp"] % spec["pp"], r % spec["tp"]), replica_id=dp)
        sd["args"] = argparse.Namespace(tensor_model_parallel_size=spec["tp"], pipeline_model_parallel_size=spec["pp"], num_layers=spec["layers"], name="tiny é", params_dtype=torch.bfloat16)
        sd["iteration"], sd["checkpoint_version"], sd["num_floating_point_operations_so_far"] = step, 3.0, 1.5e18
        sd["opt_param_scheduler"] = {"max_lr": 0.01, "num_steps": step * 4}
        sd["tokens"] = torch.arange(5)
        d = f"{ckpt}/iter_{step:07d}"
        os.makedirs(d, exist_ok=True)
        dist.barrier()
        dc.save(sd, d)
    if r == 0:
        open(f"{ckpt}/latest_checkpointed_iteration.txt", "w").write(str(spec["steps"][-1]))
    dist.barrier()


def truth_main(name, ckpt, out):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *a: None
    np.product = np.prod
    import megatron.core
    from megatron.core import dist_checkpointing as dc
    from megatron.core.dist_checkpointing import ShardedTensor
    from torch_common import tentry, walk
    spec = SPECS[name]
    vers = []
    for step in spec["steps"]:
        d = f"{ckpt}/iter_{step:07d}"
        want = {}
        for key, dt, shape, *_ in plan(spec):
            want[key] = (dt, shape)
            for o in ("fp32_param", "exp_avg", "exp_avg_sq"):
                want[f"optimizer.state.{o}.{key}"] = ("float32", shape)
        flat = {k for k in want if k.startswith("optimizer.") and spec.get("flat")}
        req = {k: ShardedTensor.from_rank_offsets(k, torch.zeros(s, dtype=torch.bfloat16 if dt == "bfloat16" else torch.float32))
               for k, (dt, s) in want.items() if k not in flat}
        got = dc.load(dict(req), d)
        raw = {}
        if flat:        # Megatron 0.12 loads these only into flattened shards; torch reads what is stored
            from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
            rd = torch.distributed.checkpoint.FileSystemReader(d)
            sizes = {k: m.size for k, m in rd.read_metadata().state_dict_metadata.items() if k in flat}
            raw = {k: torch.empty(z) for k, z in sizes.items()}
            _load_state_dict(raw, storage_reader=rd, no_dist=True)
        v = {"name": f"iter_{step:07d}", "complete": True, "tensors": [], "objects": []}
        from fw_common import sha
        for k, (dt, s) in want.items():
            put = value(f"{name}/{step}", k, dt, s)
            if k in flat:
                r = raw[k]
                back = np.zeros(s, np.float32)
                frag = r.shape[:-1]
                loc = [a // b for a, b in zip(s, frag)]
                for i in np.ndindex(*frag):
                    back[tuple(slice(x * n, x * n + n) for x, n in zip(i, loc))] = r[i].numpy().reshape(loc)
                assert back.tobytes() == put.tobytes(), k
                e = tentry(k, [k], r)
                e["megatron"] = {"shape": list(s), "sha256": sha(put.tobytes()), "rule": "stored shape is (pieces per axis..., flat piece); each piece reshapes to shape / pieces"}
            else:
                e = tentry(k, [k], got[k])
                assert e["sha256"] == sha(put.tobytes()), k
            v["tensors"].append(e)
        common = dc.load_common_state_dict(d)
        walk(common, [], v["tensors"], v["objects"], "/")
        for t in v["tensors"][len(want):]:
            t["file"] = "common.pt"
        v["sharded_objects"] = sorted(k for k in torch.distributed.checkpoint.FileSystemReader(d).read_metadata().state_dict_metadata if k.startswith("rng"))
        vers.append(v)
    json.dump({"name": name, "format": "megatron", "frameworks": {"megatron-core": megatron.core.__version__, "torch": torch.__version__}, "world_size": spec["tp"] * spec["pp"] * spec.get("dp", 1),
               "about": spec["about"], "tracker": str(spec["steps"][-1]), "versions": vers}, open(out, "w"))


def legacy():
    """STRUCTURAL: see the header"""
    import torch
    from torch_common import tentry
    run = fresh(f"{RUN}/megatron-legacy")
    tp, pp, h, f, v, L = 2, 2, 6, 10, 24, 4
    vers, tens = [], []
    full = {}

    def val(k, s):
        if k not in full:
            full[k] = torch.from_numpy(value("legacy", k, "bfloat16", s).view("<i2")).view(torch.bfloat16)
        return full[k]
    for t in range(tp):
        for s in range(pp):
            lm = {}
            if s == 0:
                lm["embedding"] = {"word_embeddings": {"weight": val("embedding.word_embeddings.weight", (v, h)).chunk(tp, 0)[t].clone()},
                                   "position_embeddings": {"weight": val("embedding.position_embeddings.weight", (9, h)).clone()}}
            enc = {}
            for i in range(L // pp):
                g = s * (L // pp) + i
                for n, sh, d in (("input_norm.weight", (h,), None), ("self_attention.query_key_value.weight", (3 * h, h), 0), ("self_attention.query_key_value.bias", (3 * h,), 0),
                                 ("self_attention.dense.weight", (h, h), 1), ("self_attention.dense.bias", (h,), None), ("mlp.dense_h_to_4h.weight", (f, h), 0),
                                 ("mlp.dense_4h_to_h.weight", (h, f), 1)):
                    x = val(f"encoder.layers.{g}.{n}", sh)
                    enc[f"layers.{i}.{n}"] = (x if d is None else x.chunk(tp, d)[t]).clone()
            if s == pp - 1:
                enc["final_norm.weight"] = val("encoder.final_norm.weight", (h,)).clone()
            lm["encoder"] = enc
            model = {"language_model": lm}
            if s == pp - 1:
                model["word_embeddings_for_head"] = {"weight": val("embedding.word_embeddings.weight", (v, h)).chunk(tp, 0)[t].clone()}
            d = f"{run}/ckpt/iter_0000100/mp_rank_{t:02d}_{s:03d}"
            os.makedirs(d)
            torch.save({"args": argparse.Namespace(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, num_layers=L, hidden_size=h, padded_vocab_size=v),
                        "checkpoint_version": 3.0, "iteration": 100, "model": model, "rng_state": [{"random_rng_state": (3, (1, 2)), "torch_rng_state": torch.arange(8, dtype=torch.uint8)}]},
                       f"{d}/model_optim_rng.pt")
    open(f"{run}/ckpt/latest_checkpointed_iteration.txt", "w").write("100")
    for k, x in full.items():
        tens.append(tentry(k, [k], x))
    write_manifest(f"{run}/manifest.json", {"name": "megatron-legacy", "format": "megatron", "frameworks": {"torch": torch.__version__}, "about":
                   "STRUCTURAL, not written by Megatron: TP2 x PP2 mp_rank_TT_PPP/model_optim_rng.pt; tensors are the whole model after joining TP and PP (layer numbers global).",
                   "versions": [{"name": "iter_0000100", "complete": True, "tensors": tens}]})
    install(run, os.path.join(OUT, "megatron-legacy"))


def main(names):
    import importlib.metadata
    import torch_ranks
    ver = importlib.metadata.version("megatron-core")
    for name, spec in SPECS.items():
        if spec["mcore"] != ver or (names and name not in names):
            continue
        run = fresh(f"{RUN}/{name}")
        ckpt = f"{run}/ckpt"
        os.makedirs(ckpt)
        me = os.path.abspath(sys.argv[0])
        torch_ranks.run(spec["tp"] * spec["pp"] * spec.get("dp", 1), [me, "--rank", name, ckpt], f"{run}/rank.log")
        torch_ranks.run(1, [me, "--truth", name, ckpt, f"{run}/truth.json"], f"{run}/truth.log")
        write_manifest(f"{run}/manifest.json", json.load(open(f"{run}/truth.json")))
        install(run, os.path.join(OUT, name))
    if ver == "0.16.1" and (not names or "megatron-legacy" in names):
        legacy()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(*sys.argv[2:])
    elif sys.argv[1:2] == ["--truth"]:
        truth_main(*sys.argv[2:])
    else:
        main(sys.argv[1:])
