#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads the same checkpoint by a framework's own loader and by dcpfs, and prints a table for tools/python/README.md: CPU seconds and
seconds per GB, and memory beyond the tensors' own in GB per GB; of three runs the least and the median. Pages are cached; so is dcpfs' index after its first run.

usage: frameworks.py [--size MB] [--runs N] [CASE...]

DCPFS_TEST_TORCH, DCPFS_TEST_PADDLE, DCPFS_TEST_COMPOSER name the pythons that have the frameworks; cases without one are left out.
DCPFS_LIBRARY names the library.
"""
import argparse
import ctypes
import gc
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/python"))
# name: framework, ranks, loader that dcpfs stands for
CASES = {
    "torch-dcp": ("torch", 1, "torch `dcp.load`"),
    "torch-reshard": ("torch", 2, "torch `dcp.load`, 2 ranks, rows to columns"),
    "torch-load": ("torch", 1, "`torch.load`"),
    "torch-mmap": ("torch", 1, "`torch.load(mmap=True)`, and all is changed"),
    "safetensors": ("torch", 1, "safetensors `load_file`, and all is changed"),
    "paddle": ("paddle", 1, "`paddle.distributed.load_state_dict`"),
    "composer": ("composer", 1, "Composer `load_checkpoint`"),
}
LAYERS = 16


def measured(load):
    """CPU seconds, seconds, bytes of memory beyond what there was before, of load()."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the peak begins now
    before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
    cpu, wall = time.process_time(), time.monotonic()
    kept = load()
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    del kept
    return cpu, wall, max(peak - before, 0)


# ---- in a python that has the framework: (make, load by it, load by dcpfs); load functions return what they made, fill what is there ----

def torch_case(name, path, rows, rank, ranks):
    import torch

    def state(cut=0):
        torch.manual_seed(1)
        whole = {f"layers.{i}.weight": torch.randn(rows, 4096) for i in range(LAYERS)}
        if ranks == 1:
            return whole
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (ranks,))
        return {k: distribute_tensor(v, mesh, [Shard(cut)]) for k, v in whole.items()}

    if ranks > 1:
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"file://{path}.meet", rank=rank, world_size=ranks)
    if name in ("torch-dcp", "torch-reshard"):
        import torch.distributed.checkpoint as dcp
        import dcpfs.torch
        target = state(1) if name == "torch-reshard" else state()
        return (lambda: dcp.save(state(), checkpoint_id=path), lambda: dcp.load(target, checkpoint_id=path),
                lambda: dcpfs.torch.load_state_dict(target, path))
    if name == "torch-load":
        import dcpfs.torch
        return lambda: torch.save(state(), path), lambda: torch.load(path, weights_only=True), lambda: dcpfs.torch.load_file(path)
    # What is mapped is read when it is used.
    if name == "torch-mmap":
        import dcpfs.torch
        return (lambda: torch.save(state(), path), *(lambda load=load: [v.add_(0) for v in load(path, mmap=True).values()]
                                                     for load in (torch.load, dcpfs.torch.load_file)))
    import dcpfs
    from safetensors.torch import load_file, save_file
    return (lambda: save_file(state(), path), lambda: [v.add_(0) for v in load_file(path).values()],
            lambda: [t.mapped().torch().add_(0) for t in dcpfs.open(path).values()])


def paddle_case(name, path, rows, rank, ranks):
    import paddle
    import paddle.distributed as dist
    import dcpfs.paddle
    paddle.set_device("cpu")
    target = {f"layers.{i}.weight": paddle.randn([rows, 4096]) for i in range(LAYERS)}
    return (lambda: dist.save_state_dict(target, path), lambda: dist.load_state_dict(target, path),
            lambda: dcpfs.paddle.load_state_dict(target, path))


def composer_case(name, path, rows, rank, ranks):
    import composer.utils.checkpoint as theirs
    import torch
    from composer import Trainer
    from composer.models import ComposerClassifier
    import dcpfs.composer
    net = torch.nn.Sequential(*[torch.nn.Linear(4096, rows, bias=False) for _ in range(LAYERS)])
    trainer = Trainer(model=ComposerClassifier(net, num_classes=2), device="cpu", log_to_console=False, progress_bar=False)
    how = {"path": f"{path}.pt", "state": trainer.state, "logger": trainer.logger, "load_weights_only": True, "strict_model_weights": True}
    return (lambda: trainer.save_checkpoint(f"{path}.pt", weights_only=True), lambda: theirs.load_checkpoint(**how),
            lambda: dcpfs.composer.load_checkpoint(**how))


def child(name, path, rows, rank, ranks, runs):
    """All of a case, so that the framework is imported once."""
    make = {"torch": torch_case, "paddle": paddle_case, "composer": composer_case}[CASES[name][0]]
    save, *loads = make(name, path, rows, rank, ranks)
    save()
    print("RESULT", json.dumps([[measured(load) for load in loads] for _ in range(runs)]), flush=True)
    os._exit(0)  # what frameworks do at the end is not measured


# ---- the table ----

def run(name, path, rows, runs):
    """By run and loader: sums over the ranks, the longest time."""
    framework, ranks, _ = CASES[name]
    python = os.environ[f"DCPFS_TEST_{framework.upper()}"]
    ps = [subprocess.Popen([python, "-B", __file__, "--child", name, path, str(rows), str(r), str(ranks), str(runs)], text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, env=os.environ | {"DCPFS_CACHE": f"{path}.cache"}) for r in range(ranks)]
    said = [p.communicate() for p in ps]
    if any(p.returncode for p in ps):
        sys.exit(f"{name}: " + said[0][1][-3000:])
    by_rank = [json.loads(line.split(" ", 1)[1]) for out, _ in said for line in out.splitlines() if line.startswith("RESULT")]
    return [[(sum(g[0] for g in got), max(g[1] for g in got), sum(g[2] for g in got)) for got in zip(*one)] for one in zip(*by_rank)]


def main():
    if sys.argv[1:2] == ["--child"]:
        name, path, *numbers = sys.argv[2:]
        child(name, path, *map(int, numbers))
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    asked = parser.parse_args()
    rows = asked.size * 2**20 // LAYERS // 4096 // 4
    gb = rows * 4096 * 4 * LAYERS / 1e9
    print("| in place of | CPU s/GB | dcpfs | s/GB | dcpfs | memory | dcpfs |\n| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in asked.cases or CASES:
        if f"DCPFS_TEST_{CASES[name][0].upper()}" not in os.environ:
            continue
        with tempfile.TemporaryDirectory(prefix="dcpfs-frameworks-") as scratch:
            path = f"{scratch}/ck" + (".safetensors" if name == "safetensors" else ".pt" if name in ("torch-load", "torch-mmap") else "")
            rounds = run(name, path, rows, asked.runs)
        cells = []
        for i, unit in enumerate((gb, gb, gb * 1e9)):
            for loader in range(2):
                values = [one[loader][i] / unit for one in rounds]
                cells.append(f"{min(values):.2f} ({statistics.median(values):.2f})")
        print(f"| {CASES[name][2]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
