# SPDX-License-Identifier: Apache-2.0
"""Composer checkpoints from real Trainer runs on the CPU (2 gloo ranks), the truth read back by Composer.

  packages   mosaicml==0.32.1 (brings torch 2.7.0, numpy 2.2, torchmetrics); tools gzip bzip2 xz zstd lz4 for the compressed forms; Python 3.11
  run        python composer_run.py [NAME...]
  writes     ../golden/composer (monolithic, all containers), ../golden/composer-sharded (FSDP sharded = torch DCP directories);
             the first save of each run was left out of the suite

FSDP wants torch.cuda.current_device(); on the CPU it is replaced by torch.device("cpu"). Nothing else is patched.
"""
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from fw_common import fresh, write_manifest  # noqa: E402

OUT, RUN = os.path.join(os.path.dirname(HERE), "golden"), os.path.join(tempfile.gettempdir(), "composer-golden")
SPECS = {
    "composer": {"ws": 2, "sharded": False, "about":
        "Trainer, 2 DDP ranks, Adam with two param groups, LabelSmoothing + GradientClipping + EMA; monolithic .pt every 2 batches plus latest link, a weights-only save, and "
        "every container Composer writes (.tar .tar.gz .tgz .tar.bz2 .tar.lzma .pt.gz .pt.bz2 .pt.xz .pt.zst .pt.lz4). rng has one entry per rank. Tied weights, int / bf16 / empty buffers."},
    "composer-sharded": {"ws": 2, "sharded": True, "about":
        "Trainer with FSDP FULL_SHARD, state_dict_type sharded: one torch DCP directory per save, flat keys state.model..., state.optimizers.Adam..., rng.0...; latest link to a directory."},
}
GLOBS = [["state/model/*"], ["state/optimizers"], ["*step"], ["rng/0"], ["state/model/*.weight", "rng"], ["state/model/module.?.bias"], ["state/timestamp/Timestamp/batch"],
         ["state/model/module.[02].*"], ["nothing/like/this"], ["state"]]


def build(torch):
    from composer.models import ComposerClassifier
    nn = torch.nn

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.emb = nn.Embedding(11, 6)
            s.conv = nn.Conv1d(6, 7, 3, padding=1)
            s.norm = nn.BatchNorm1d(7)
            s.mid = nn.Linear(7, 6)
            s.out = nn.Linear(6, 11, bias=False)
            s.out.weight = s.emb.weight
            s.register_buffer("table", torch.randn(5, 3).to(torch.bfloat16))
            s.register_buffer("ids", torch.arange(7) - 3)
            s.register_buffer("none", torch.zeros(0, 4))
            s.register_buffer("flagé", torch.tensor(True))
            s.register_buffer("odd_values", torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]))

        def forward(s, x):
            h = s.norm(s.conv(s.emb(x).transpose(1, 2)))
            return s.out(s.mid(h.transpose(1, 2)).mean(1))
    return ComposerClassifier(Net(), num_classes=11)


def trainer(torch, folder, spec, **kw):
    from composer import Trainer
    from composer.algorithms import EMA, GradientClipping, LabelSmoothing
    from composer.utils import dist
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(5)
    model = build(torch)
    ds = TensorDataset(torch.randint(0, 11, (24, 5)), torch.randint(0, 11, (24,)))
    ps = list(model.parameters())
    opt = torch.optim.Adam(ps if spec["sharded"] else [{"params": ps[:3], "lr": 0.01}, {"params": ps[3:], "lr": 0.02, "weight_decay": 0.01}], lr=0.01, amsgrad=not spec["sharded"])
    algs = [LabelSmoothing(0.1), GradientClipping(clipping_type="norm", clipping_threshold=1.0)]
    if spec["sharded"]:
        kw["parallelism_config"] = {"fsdp": {"state_dict_type": "sharded", "sharding_strategy": "FULL_SHARD", "mixed_precision": "PURE"}}
    else:
        algs.append(EMA(half_life="2ba", update_interval="1ba"))
    return Trainer(model=model, train_dataloader=DataLoader(ds, batch_size=4, sampler=dist.get_sampler(ds)), optimizers=opt, max_duration="2ep", device="cpu", algorithms=algs,
                   schedulers=torch.optim.lr_scheduler.StepLR(opt, 3), save_folder=folder, save_interval="2ba", save_overwrite=True, run_name="tiny-run", progress_bar=False,
                   seed=17, log_to_console=False, **kw)


def rank_main(name, ckpt):
    import torch
    spec = SPECS[name]
    from composer.devices import DeviceCPU
    from composer.utils import dist
    if spec["sharded"]:
        torch.cuda.current_device = lambda: torch.device("cpu")
    dist.initialize_dist(DeviceCPU(), 120)
    tr = trainer(torch, f"{ckpt}/{{run_name}}/checkpoints", spec)
    tr.fit()
    if not spec["sharded"]:
        for ext in ("tar", "tar.gz", "tgz", "tar.bz2", "tar.lzma", "pt.gz", "pt.bz2", "pt.xz", "pt.zst", "pt.lz4"):
            tr.save_checkpoint(f"{ckpt}/containers/ep{{epoch}}-ba{{batch}}-rank{{rank}}.{ext}")
        tr.save_checkpoint(f"{ckpt}/weights/ep{{epoch}}-ba{{batch}}-rank{{rank}}.pt", weights_only=True)
        tr.save_checkpoint(f"{ckpt}/names/{{run_name}}-b{{batch}}-s{{sample}}-t{{token}}-w{{world_size}}.pt", weights_only=True)
    dist.barrier()


def ignore_facts(load):
    from composer.utils.checkpoint import _flatten_keys, glob_filter
    d = load()
    paths = []
    _flatten_keys(d, paths, "/")
    ex = []
    for g in GLOBS:
        d = load()
        try:
            glob_filter(g)(d)
            left = []
            _flatten_keys(d, left, "/")
            gone = sorted(set(paths) - set(left))
            ex.append({"ignore_keys": g, "removed_count": len(gone), "removed": gone if len(gone) <= 60 else gone[:60] + ["..."]})
        except Exception as e:
            ex.append({"ignore_keys": g, "error": f"{type(e).__name__}: {e}"})
    return paths, ex


def truth(name, ckpt):
    import tempfile
    import torch
    import composer
    from torch_common import walk
    from composer.utils.checkpoint import download_checkpoint, safe_torch_load
    spec = SPECS[name]
    vers = []
    names = []
    orig, ckpt = ckpt, fresh(ckpt + "-read")          # loading .pt.gz and friends writes the unpacked .pt beside the source
    shutil.rmtree(ckpt)
    shutil.copytree(orig, ckpt, symlinks=True)
    for r, ds, fs in sorted(os.walk(ckpt)):
        for f in sorted(fs + [d for d in ds if os.path.islink(os.path.join(r, d))]):
            p = os.path.join(r, f)
            if os.path.islink(p):
                continue
            if spec["sharded"]:
                if f == ".metadata":
                    names.append(r)
            else:
                names.append(p)
    for p in names:
        rel = os.path.relpath(p, ckpt)
        if spec["sharded"]:
            from torch.distributed.checkpoint import FileSystemReader
            from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
            from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

            def load():
                d = {}
                _load_state_dict(d, storage_reader=FileSystemReader(p), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
                return d
        else:
            def load():
                with tempfile.TemporaryDirectory() as t:
                    fn, _, _ = download_checkpoint(path=p, node_checkpoint_folder=t, object_store=None, progress_bar=False)
                    return safe_torch_load(fn, map_location="cpu")
        d = load()
        tens, objs, al = [], [], []
        walk(d, [], tens, objs, ".", {}, al)
        for t in tens + objs:
            if spec["sharded"]:
                t["ignore_path"] = "/".join(t["path"])
            else:                       # here the key is the path that Composer's ignore_keys globs see
                t["key"] = "/".join(t["path"])
        if not spec["sharded"]:
            tr = {".".join(t["path"]): t["key"] for t in tens}
            al = [[tr[a], tr[b]] for a, b in al]
        v = {"name": rel, "complete": True, "tensors": tens, "objects": objs, "aliases": al}
        if rel.endswith(("ep1-ba4-rank0.pt", "ba4", "weights/ep2-ba6-rank0.pt", "smp36-rank0.pt", "ep1-ba3")):
            v["ignore_paths"], v["ignore_examples"] = ignore_facts(load)
        vers.append(v)
    links = []
    for r, ds, fs in sorted(os.walk(ckpt)):
        for f in fs + ds:
            q = os.path.join(r, f)
            if os.path.islink(q):
                links.append([os.path.relpath(q, ckpt), os.readlink(q)])
    return {"name": name, "format": "composer", "frameworks": {"mosaicml": composer.__version__, "torch": torch.__version__}, "world_size": spec["ws"], "about": spec["about"],
            "links": links,
            "ignore_note": "removed = paths (of every node, inner ones too) before minus paths after; removing a list entry renumbers the rest, so rng/0 shows as rng/1 gone",
            "versions": vers}


def install(run, dest):
    shutil.copytree(os.path.join(run, "ckpt"), os.path.join(fresh(dest), "ckpt"), symlinks=True)
    shutil.copy(os.path.join(run, "manifest.json"), dest)


def main(names):
    import torch_ranks
    for name in SPECS:
        if names and name not in names:
            continue
        run = fresh(f"{RUN}/{name}")
        ckpt = f"{run}/ckpt"
        os.makedirs(ckpt)
        me = os.path.abspath(sys.argv[0])
        torch_ranks.run(SPECS[name]["ws"], [me, "--rank", name, ckpt], f"{run}/rank.log")
        write_manifest(f"{run}/manifest.json", truth(name, ckpt))
        install(run, os.path.join(OUT, name))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(*sys.argv[2:])
    else:
        main(sys.argv[1:])
