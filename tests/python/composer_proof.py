#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.composer beside Composer's loader: its Trainer resumed by both from the same checkpoints; the losses that follow, the
weights at the end and the warnings are equal, and those of the run that was never interrupted. Monolithic files in their
containers, sharded directories (FSDP), ignore_keys, weights only; 1 and 2 processes, gloo on the CPU.

Needs mosaicml; tests/run.sh --frameworks runs it. Data comes from a seed.

usage: composer_proof.py [sharded|nodes|monolithic]
"""
import hashlib
import io
import json
import os
import pprint
import shutil
import subprocess
import sys
import tempfile
import warnings

import needs

needs.modules("DCPFS_TEST_COMPOSER", "composer")
import composer
import base
from base import dcpfs, np
import torch
import composer.utils.checkpoint as theirs
from composer import Callback, Trainer
from composer.algorithms import EMA, Factorize, LabelSmoothing
from composer.models import ComposerClassifier
from composer.utils import dist
from composer.utils.object_store import ObjectStore
from torch.utils.data import DataLoader, TensorDataset

import dcpfs.composer  # noqa: E402

sys.path.insert(0, str(base.ROOT / "tests/gen"))
from paddle_ranks import free_ports  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.norm, self.mid = torch.nn.Embedding(11, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 7)
        self.drop, self.out = torch.nn.Dropout(0.3), torch.nn.Linear(7, 11)  # whose numbers come from the random state

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.mid(self.norm(self.emb(x)).mean(1)))))


class Store(ObjectStore):
    """Of files in a directory."""

    def __init__(self, folder):
        self.folder = folder

    def get_object_size(self, object_name):
        return os.path.getsize(f"{self.folder}/{object_name}")

    def download_object(self, object_name, filename, overwrite=False, callback=None):
        shutil.copyfile(f"{self.folder}/{object_name}", filename)


class Losses(Callback):
    def __init__(self):
        self.seen, self.held = [], ""

    def state_dict(self):
        return {"pair": (torch.full((2,), float(len(self.seen))), 1), "ints": {3: torch.ones(1), 0: (5, torch.zeros(1))}, "none": {}}

    def load_state_dict(self, state):
        self.held = pprint.pformat(state)

    def batch_end(self, state, logger):
        self.seen.append(float(state.loss.detach()))


def trainer(folder, sharded, seed, **how):
    torch.manual_seed(seed)
    model = ComposerClassifier(how.pop("net", Net)(), num_classes=11)
    torch.manual_seed(5)
    data = TensorDataset(torch.randint(0, 11, (32, 5)), torch.randint(0, 11, (32,)))
    groups = list(model.parameters())
    optimizer = torch.optim.AdamW(groups if sharded else [{"params": groups[:3]}, {"params": groups[3:], "weight_decay": 0.1}], lr=0.01)
    algorithms = [LabelSmoothing(0.1)] + ([] if sharded else [EMA(half_life="2ba", update_interval="1ba")]) + how.pop("surgery", [])
    if sharded:
        how["parallelism_config"] = {"fsdp": {"state_dict_type": "sharded", "sharding_strategy": "FULL_SHARD", "mixed_precision": "PURE"}}
    losses = Losses()
    return losses, Trainer(
        model=model, train_dataloader=DataLoader(data, batch_size=4, sampler=dist.get_sampler(data, shuffle=True)),
        optimizers=optimizer, device="cpu", algorithms=algorithms, callbacks=[losses], run_name="run",
        schedulers=torch.optim.lr_scheduler.StepLR(optimizer, 3), save_folder=folder, progress_bar=False, seed=seed,
        log_to_console=False, **{"max_duration": "3ep", **how})


def digest(state):
    """Of weights, optimizer state and time; for FSDP of this rank's part."""
    h = hashlib.sha256()
    rows = list(state.model.state_dict().items())
    for o in state.optimizers:
        rows += [(f"{i}.{k}", v) for i, s in enumerate(o.state.values()) for k, v in s.items()]
    for key, value in rows:
        value = getattr(value, "_local_tensor", value)
        value = value.local_shards()[0].tensor if hasattr(value, "local_shards") else value
        h.update(key.encode() + (value.detach().contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()))
    h.update(repr({k: str(v) for k, v in state.timestamp.state_dict().items() if "wct" not in k}).encode())
    return h.hexdigest()


def run(by, folder, sharded, seed, how):
    """Train to the end; what is to compare."""
    theirs.load_checkpoint, torch.load = LOADERS[by]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            losses, t = trainer(folder, sharded, seed, **how)
        except Exception as e:
            print(f"{by}: {e}", file=sys.stderr)
            return {"error": type(e).__name__.removeprefix("Dcpfs")}
    said = sorted(str(w.message) for w in caught if any(
        word in str(w.message) for word in ("ignored by load_ignore_key", "not be restored", "Automatically adding")))
    at_load = digest(t.state)
    t.fit()
    for ext in EXTENSIONS if by == "save" and not sharded else ():
        t.save_checkpoint(f"{folder}/mid.{ext}")
    dist.barrier()
    t.close()
    return {"losses": losses.seen, "at load": at_load, "end": digest(t.state), "said": said, "held": losses.held}


def load_memory(f, *args, **kwargs):
    """torch.load() of what torch's own collectives send, not of files."""
    assert isinstance(f, io.BytesIO), f
    return LOADERS["save"][1](f, *args, **kwargs)


EXTENSIONS = ("tar", "tar.gz", "pt.gz")
LOADERS = {by: (theirs.load_checkpoint, torch.load) for by in ("save", "composer")}
LOADERS["dcpfs"] = (lambda *args, **kwargs: dcpfs.composer.load_checkpoint(*args, cache="", **kwargs), load_memory)


def resume(folder, sharded, name, whole=None, **how):
    """Resume by both loaders: equal, and as the run @whole went on."""
    other, mine = (run(by, None, sharded, 9, how) for by in ("composer", "dcpfs"))
    assert mine == other, f"{name}: {json.dumps([mine, other], indent=1)}"
    if whole:
        n = len(mine["losses"])
        assert 0 < n < len(whole["losses"]) and mine["losses"] == whole["losses"][-n:], name
    if dist.get_global_rank() == 0:
        what = mine.get("error") or str(len(mine["losses"])) + (" losses of the whole run" if whole else " losses")
        print(f"  {name}: {what} equal", flush=True)


def monolithic(folder):
    whole = run("save", folder, False, 3, {"save_interval": "3ba"})
    mid = f"{folder}/ep1-ba{9 if dist.get_world_size() == 1 else 6}-rank0.pt"
    resume(folder, False, "resume", whole, load_path=mid.replace("rank0", "rank{rank}"))
    resume(folder, False, "weights", load_path=mid, load_weights_only=True, load_strict_model_weights=True)
    if dist.get_world_size() > 1:
        return
    with open(f"{folder}/link.pt.symlink", "w") as f:
        f.write(mid)
    os.symlink(mid, f"{folder}/link-rank0.pt")
    os.symlink(folder, f"{folder}/run")
    resume(folder, False, "link", whole, load_path=f"{folder}/link-rank0.pt")
    resume(folder, False, ".symlink", whole, load_path=f"{folder}/link.pt")
    resume(folder, False, "{run_name}", whole, load_path=mid.replace("/ep1", "/{run_name}/ep1"))
    resume(folder, False, "ignored", load_path=mid, load_ignore_keys=["state/optimizers", "state/model/module.mid.*", "nothing/*"])
    resume(folder, False, "no random state", load_path=mid, load_ignore_keys=["rng", "state/rank_zero_seed"])
    resume(folder, False, "by a function", load_path=mid, load_ignore_keys=lambda d: d["state"]["model"].pop("module.mid.bias"))
    resume(folder, False, "not there", load_path=mid + "x")
    cut = f"{folder}-cut"
    run("save", cut, False, 3, {"max_duration": "3ba", "save_interval": "3ba", "surgery": [Factorize(min_features=4, latent_features=2)]})
    for way, how in (("with what was done to its model", {}), ("without that", {"load_exclude_algorithms": ["Factorize"], "load_strict_model_weights": False})):
        resume(cut, False, f"a checkpoint {way}", load_path=f"{cut}/ep0-ba3-rank0.pt", load_weights_only=True, **how)
    run("save", folder, False, 3, {"max_duration": "9ba", "save_overwrite": True})
    for ext in EXTENSIONS:
        resume(folder, False, ext, load_path=f"{folder}/mid.{ext}")


def sharded(folder):
    torch.cuda.current_device = lambda: torch.device("cpu")
    whole = run("save", folder, True, 3, {"save_interval": "3ba"})
    resume(folder, True, "resume", whole, load_path=f"{folder}/ep1-ba6")
    resume(folder, True, "weights", load_path=f"{folder}/ep1-ba6", load_weights_only=True)
    resume(folder, True, "ignored", load_path=f"{folder}/ep1-ba6", load_ignore_keys=["state/optimizers*", "rng"])
    resume(folder, True, "a file", load_path=f"{folder}/ep1-ba6/.metadata")
    for there in "ep1-ba6/.metadata", "none":  # on one rank alone: Composer's others wait for it
        how = {"load_path": f"{folder}/{there if dist.get_global_rank() else 'ep1-ba6'}"}
        assert "error" in run("dcpfs", None, True, 9, how)
    store(folder, whole)


def nodes(folder):
    torch.cuda.current_device = lambda: torch.device("cpu")
    store(folder, run("save", folder, True, 3, {"save_interval": "3ba"}))


def store(folder, whole):
    with open(f"{folder}/latest.symlink", "w") as f:
        f.write("ep1-ba6")
    for path in ("ep1-ba6", "latest.symlink"):
        resume(folder, True, f"a store's {path}", whole, load_path=path, load_object_store=Store(folder))
    how = {"load_path": "none", "load_object_store": Store(folder)}
    if dist.get_local_world_size() == 1:
        resume(folder, True, "a store's none", **how)
    else:  # Composer's second rank waits for the one that failed
        assert run("dcpfs", None, True, 9, how) == {"error": "FileNotFoundError"}


def job(scratch, work, ranks, script=__file__, alone=False):
    """Run function @work of @script in so many processes; alone: each is on a node of its own."""
    print(f"{work} x {ranks}", flush=True)
    port, processes = free_ports(1)[0], []
    for r in range(ranks):
        env = os.environ | {"RANK": str(r), "LOCAL_RANK": str(0 if alone else r), "WORLD_SIZE": str(ranks),
                            "LOCAL_WORLD_SIZE": str(1 if alone else ranks), "NODE_RANK": str(r if alone else 0),
                            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        log = open(f"{scratch}/log.{r}", "w")
        processes.append(subprocess.Popen([sys.executable, "-B", script, work, f"{scratch}/{work}{ranks}"], env=env,
                                          stdout=None if r == 0 else subprocess.DEVNULL, stderr=log))
    for r, p in enumerate(processes):
        if p.wait(600):
            for other in processes:
                other.kill()
            sys.exit(f"rank {r} of {work}:\n" + "".join(open(f"{scratch}/log.{r}").readlines()[-40:]))


def main():
    if len(sys.argv) > 2:
        globals()[sys.argv[1]](sys.argv[2])
        return
    asked = [a for a in sys.argv[1:] if a in ("sharded", "nodes", "monolithic")]
    with tempfile.TemporaryDirectory(prefix="dcpfs-composer-") as scratch:
        for work, ranks in (("sharded", 2), ("nodes", 2), ("monolithic", 2), ("monolithic", 1)):
            if asked and work not in asked:
                continue
            job(scratch, work, ranks, alone=work == "nodes")
    print("all equal")


if __name__ == "__main__":
    main()
