#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast a checkpoint in the page cache gets into the memory of a GPU, beside copies of pinned memory and other loaders
in the same run. Runs unattended, in ten minutes at most: what there is no time for, or no package, is told. Prints a table, and JSON.

usage: gpu.py DCPFS [--source DIR] [--gib N] [--ranks N] [--python PYTHON] [--seconds N] [--json FILE]
The file is written after each step, so that a run which is cut short leaves what it has.
"""
import argparse
import ctypes
import json
import os
import pathlib
import platform
import struct
import subprocess
import sys
import tempfile
import time

REPEAT = 3
BLOCKS = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]  # bytes of a copy
PEERS = r'''
import json, pathlib, sys, time
import torch

name, source, repeat, folder = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4])
if not torch.cuda.is_available():
    sys.exit("torch sees no GPU")
there = torch.device("cuda:0")
torch.zeros(1, device=there)
files = sorted(map(str, source.rglob("*.safetensors")))


def safetensors():
    from safetensors.torch import load_file
    return [t for f in files for t in load_file(f, device="cuda:0").values()]


def dcp():
    import torch.distributed.checkpoint as dcp
    where = folder / "dcp"
    meta = dcp.FileSystemReader(where).read_metadata() if where.exists() else None
    if meta is None:
        from safetensors.torch import load_file
        dcp.save({k: t for f in files for k, t in load_file(f).items()}, checkpoint_id=where)
        meta = dcp.FileSystemReader(where).read_metadata()
    state = {k: torch.empty(m.size, dtype=m.properties.dtype, device=there) for k, m in meta.state_dict_metadata.items()}
    torch.cuda.synchronize()
    began = time.perf_counter()
    dcp.load(state, checkpoint_id=where)
    return list(state.values()), began


def fastsafetensors():
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    try:
        loader = SafeTensorsFileLoader(SingleGroup(), str(there), nogds=True)
    except (AttributeError, TypeError):  # before 0.2
        loader = SafeTensorsFileLoader(SingleGroup(), there, nogds=True)
    loader.add_filenames({0: files})
    got = loader.copy_files_to_device()
    tensors = [got.get_tensor(k).clone() for k in got.key_to_rank_lidx]
    torch.cuda.synchronize()
    got.close()
    loader.close()
    return tensors


def runai():
    from runai_model_streamer import SafetensorsStreamer
    tensors = []
    with SafetensorsStreamer() as streamer:
        for f in files:
            try:
                streamer.stream_file(f, device=str(there))
            except TypeError:
                streamer.stream_file(f)
            tensors += [t.to(there) for _, t in streamer.get_tensors()]
    return tensors


def dcpfs():
    import dcpfs
    got = dcpfs.load(source, device="cuda:0", comm="alone")
    return [a.torch() for a in got.values()]


best = None
for _ in range(repeat):
    torch.cuda.synchronize()
    began = time.perf_counter()
    tensors = globals()[name]()
    if isinstance(tensors, tuple):
        tensors, began = tensors
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    best = min(took, best or took)
    size = sum(t.numel() * t.element_size() for t in tensors)
    del tensors
    torch.cuda.empty_cache()
print(json.dumps({"seconds": best, "bytes": size}))
'''


class Cuda:
    """What the sweep needs of the driver, on GPU 0."""

    def __init__(self):
        self.lib, self.context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxPushCurrent_v2", self.context)
        self.stream, self.event, self.there = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_ulonglong()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuEventCreate", ctypes.byref(self.event), 2)
        self.call("cuMemAlloc_v2", ctypes.byref(self.there), ctypes.c_size_t(BLOCKS[-1]))

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            sys.exit(f"{name}: error {code}")

    def copies(self, pinned, block, total):
        """Bytes a second of copies that are queued one after the other."""
        began = time.perf_counter()
        for _ in range(total // block):
            self.call("cuMemcpyHtoDAsync_v2", self.there, ctypes.c_void_p(pinned), ctypes.c_size_t(block), self.stream)
        self.call("cuEventRecord", self.event, self.stream)
        while self.lib.cuEventQuery(self.event):
            pass
        return total // block * block / (time.perf_counter() - began)

    def sweep(self, total):
        """{bytes of a copy: the best rate}."""
        host = ctypes.create_string_buffer(BLOCKS[-1] + 4096)
        at = (ctypes.addressof(host) + 4095) & ~4095
        ctypes.memset(at, 1, BLOCKS[-1])
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(at), ctypes.c_size_t(BLOCKS[-1]), 0)
        rates = {b: max(self.copies(at, b, max(b, total)) for _ in range(REPEAT)) for b in BLOCKS}
        self.call("cuMemHostUnregister", ctypes.c_void_p(at))
        self.call("cuMemFree_v2", self.there)
        return rates


def make(folder, size):
    """A checkpoint of @size bytes: matrices whose rows and columns can be cut, in files of up to 1 GiB."""
    side = 8192 if size >= 1 << 30 else 1024
    each, block = 2 * side * side, os.urandom(1 << 20)
    count = max(1, size // each)
    for at in range(0, count, max(1, (1 << 30) // each)):
        names = range(at, min(count, at + max(1, (1 << 30) // each)))
        text = json.dumps({f"layers.{i}.weight": {"dtype": "BF16", "shape": [side, side],
                                                  "data_offsets": [n * each, (n + 1) * each]} for n, i in enumerate(names)})
        text += " " * (-len(text) % 8)
        with open(folder / f"model-{at:05}.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text.encode())
            for n in range(len(names) * each // len(block)):
                f.write(block[n % 997:] + block[:n % 997])
    return folder


def output(*argv):
    """The first line that a program prints; "": there is none."""
    try:
        return (subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout.splitlines() or [""])[0].strip()
    except OSError:
        return ""


def add_libraries(python):
    """Have dcpfs find what comes as packages of @python, NCCL and cuFile, behind what the machine has."""
    found = output(python, "-c", 'import glob, sys; print(":".join(d for p in sys.path for d in glob.glob(p + "/nvidia/*/lib")))')
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), found)))


def overlap(trace):
    """Of the time in which copies are under way, the part in which files are read as well; or the other way round, if less
    time goes there."""
    edges = []
    for e in json.loads(trace.read_text())["traceEvents"]:
        if e.get("name") in ("read", "copy") and e.get("dur"):
            edges += [(e["ts"], e["name"], 1), (e["ts"] + e["dur"], e["name"], -1)]
    now, spent, before = {"read": 0, "copy": 0}, {"read": 0.0, "copy": 0.0, "both": 0.0}, 0
    for at, name, step in sorted(edges):
        for kind in ("read", "copy"):
            spent[kind] += (at - before) * (now[kind] > 0)
        spent["both"] += (at - before) * (now["read"] > 0 and now["copy"] > 0)
        before = at
        now[name] += step
    return spent["both"] / max(min(spent["read"], spent["copy"]), 1e-9)


class Bench:
    def __init__(self, o, folder, until):
        self.o, self.folder, self.until = o, folder, until
        self.rows, self.failed = [], 0

    def row(self, name, what, value=None, floor=None, goal=None, **more):
        verdict = "" if value is None or floor is None else "goal" if value >= goal else "floor" if value >= floor else "under"
        self.rows.append({"row": name, "what": what, "value": value, "floor": floor, "goal": goal, "verdict": verdict, **more})
        told = "" if value is None else f"{value:.3f}" if value < 1000 else f"{value / 1e9:.2f} GB/s"
        print(f"{name:4} {what:58} {told:>12} {verdict:6} {more.get('why', '')}", flush=True)

    def late(self):
        return time.monotonic() > self.until

    def load(self, *argv, ranks=1, env=()):
        """The fastest of some loads; its rate is bytes needed by the time of the slowest rank. None: it failed."""
        best = None
        env = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", **dict(env))
        for n in range(REPEAT):
            if best and self.late():
                break
            env["MASTER_PORT"] = str(20000 + (os.getpid() * 7 + n) % 20000)
            running = [subprocess.Popen([self.o.dcpfs, "load", str(self.o.source), "--device", "cuda:0", "--repeat", "2", "--json",
                                         "--comm", "alone" if ranks == 1 else "env", *argv], env=env | {"RANK": str(r)},
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(ranks)]
            out, why = [], ""
            for p in running:
                try:
                    out.append(p.communicate(timeout=max(20, self.until - time.monotonic())))
                except subprocess.TimeoutExpired:
                    why = "it did not end"
                    for q in running:
                        q.kill()
                    out.append(p.communicate())
            if any(p.returncode for p in running):
                self.failed += 1
                why = why or next(e.strip()[-300:] for p, (_, e) in zip(running, out) if p.returncode)
                self.row("", f"dcpfs load {' '.join(argv)}, {ranks} ranks", why=f"failed: {why}")
                return None
            got = json.loads(out[0][0])
            if best is None or got["seconds"] < best["seconds"]:
                best = got
        best["rate"] = best["needed"] / best["seconds"]
        return best

    def loads(self, pinned):
        n = self.o.ranks
        trace = self.folder / "trace.json"
        whole = self.load("--layout", "fsdp1", "--trace", str(trace))
        rows = self.load("--layout", f"fsdp{n}", "--rank", "0")
        columns = self.load("--layout", f"dim1x{n}", "--rank", "0")
        if whole:
            self.row("20", "whole tensors, of pinned copies", whole["rate"] / pinned, 0.80, 0.95, rate=whole["rate"])
            self.row("22", "of copies or reads, the part in which both are under way", overlap(trace), 0.80, 0.95)
        if rows:
            self.row("20", f"rows of one of {n} ranks, of pinned copies", rows["rate"] / pinned, 0.80, 0.95, rate=rows["rate"])
        if rows and columns:
            self.row("21", f"columns of one of {n}, of its rows", columns["rate"] / rows["rate"], 0.70, 0.95, rate=columns["rate"])

    def together(self):
        """Several processes on one GPU: each byte read once, and who carries it."""
        n = self.o.ranks
        ways = (("by the host", "node", {}), ("by CUDA IPC", "all", {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}),
                ("by NCCL", "all", {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}))
        for layout, needs in ((f"dim1x{n}", "columns"), (f"dim2x{n}", "the same")):
            each = None if self.late() else self.load("--layout", layout, "--exchange", "never", ranks=n)
            for by, exchange, env in ways:
                got = None if self.late() else self.load("--layout", layout, "--exchange", exchange, ranks=n, env=env)
                if each and got:
                    taken = exchange == "node" or f"; {by}" in got["exchange_why"]  # not "; not by NCCL: ..."
                    self.row("22", f"{n} processes, {needs}, {by}: times fewer bytes read", each["read"] / got["read"] if taken else None,
                             0.80 * n, 0.98 * n, rate=got["rate"],
                             why=f"{got['rate'] / 1e9:.2f} GB/s, beside {each['rate'] / 1e9:.2f} alone; {got['exchange_why']}")

    def gds(self):
        for cold in ([], ["--cold"]):
            gds = self.load("--layout", "fsdp1", "--io", "gds", *cold)
            ring = self.load("--layout", "fsdp1", "--io", "direct", *cold)
            if gds and ring:
                self.row("23", f"cuFile, of the ring past the page cache{', cold' if cold else ''}", gds["rate"] / ring["rate"], 1.0,
                         1.0 if "compatibility" in gds["io_why"] else 1.37, rate=gds["rate"], why=f"{gds['io']}: {gds['io_why']}")

    def peers(self):
        program = pathlib.Path(self.o.dcpfs).resolve()
        env = dict(os.environ, PYTHONPATH=":".join(filter(None, (str(pathlib.Path(__file__).resolve().parents[2] / "tools/python"), os.environ.get("PYTHONPATH")))),
                   DCPFS_LIBRARY=os.environ.get("DCPFS_LIBRARY", str(program.parent / "load/libdcpload.so.0")))
        ours = None
        for name, what in (("dcpfs", "dcpfs.load(device=\"cuda\")"), ("safetensors", "safetensors.torch.load_file(device=\"cuda\")"),
                           ("dcp", "torch.distributed.checkpoint.load to CUDA"), ("fastsafetensors", "fastsafetensors"),
                           ("runai", "runai-model-streamer")):
            if self.late():
                self.row("", what, why="left out: no time is left")
                continue
            try:
                done = subprocess.run([self.o.python, "-c", PEERS, name, str(self.o.source), str(REPEAT), str(self.folder)], env=env, text=True,
                                      capture_output=True, timeout=max(30, self.until - time.monotonic()), check=False)
            except (OSError, subprocess.TimeoutExpired) as e:
                self.row("", what, why=f"left out: {type(e).__name__}")
                continue
            if done.returncode:
                self.row("", what, why=f"left out: {(done.stderr.strip().splitlines() or ['failed'])[-1][:120]}")
                continue
            got = json.loads(done.stdout.splitlines()[-1])
            rate = got["bytes"] / got["seconds"]
            ours = rate if name == "dcpfs" else ours
            self.row("", f"{what}, bytes a second", rate, why="" if name == "dcpfs" or not ours else f"dcpfs is {ours / rate:.2f} times as fast")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dcpfs")
    p.add_argument("--source", type=pathlib.Path, help="a checkpoint; default: one is made in the folder for temporary files")
    p.add_argument("--gib", type=float, default=4, help="how large")
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("--python", default=sys.executable, help="one that has torch and the loaders to compare with")
    p.add_argument("--seconds", type=float, default=540, help="begin nothing after so many")
    p.add_argument("--json", type=pathlib.Path, help="write it there; default: behind the table")
    o = p.parse_args()
    until = time.monotonic() + o.seconds
    add_libraries(o.python)
    checks = {c["name"]: c for c in json.loads(subprocess.run(
        [o.dcpfs, "doctor", "--json"], capture_output=True, text=True, check=False).stdout)["checks"]}
    if checks["GPU"]["state"] != "ok":
        sys.exit(checks["GPU"]["found"])
    checks = {name: c["found"] for name, c in checks.items()}
    with tempfile.TemporaryDirectory(prefix="dcpfs-gpu-") as folder:
        folder = pathlib.Path(folder)
        os.environ.setdefault("DCPFS_CACHE", str(folder / "cache"))
        if o.source is None:
            (folder / "checkpoint").mkdir()
            o.source = make(folder / "checkpoint", int(o.gib * (1 << 30)))
        facts = {"gpu": checks["GPU"], "cufile": checks["cuFile"], "nccl": checks.get("NCCL"), "ipc": checks.get("CUDA IPC"),
                 "driver": output("nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader"),
                 "file_system": output("stat", "-f", "-c", "%T", str(o.source)), "kernel": platform.release(), "cpus": os.cpu_count(),
                 "bytes": sum(f.stat().st_size for f in o.source.rglob("*") if f.is_file()), "dcpfs": output(o.dcpfs, "--version")}
        for name, value in facts.items():
            print(f"{name}: {value}", flush=True)
        b = Bench(o, folder, until)
        sweep = Cuda().sweep(min(facts["bytes"], 4 << 30))
        for block, rate in sweep.items():
            b.row("", f"pinned copies of {block >> 20} MiB, bytes a second", rate)
        for step, args in ((b.loads, [max(sweep.values())]), (b.gds, []), (b.together, []), (b.peers, [])):
            if b.late():
                b.row("", step.__name__, why="left out: no time is left")
            else:
                step(*args)
            text = json.dumps({"facts": facts, "pinned": sweep, "rows": b.rows}, indent=1)
            if o.json:
                o.json.write_text(text + "\n", encoding="utf-8")
        if not o.json:
            print(text)
    sys.exit(1 if b.failed else 0)


main()
