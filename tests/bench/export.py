#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writing checkpoints: dcpfs export and dcpfs.save() beside what torch, safetensors and Paddle have for it, in turns.

usage: export.py DCPFS --torch PYTHON [--paddle PYTHON] [--deepspeed PYTHON] [--mb N] [--reps N] [--only WORDS]

PYTHON --torch has torch and safetensors, --paddle Paddle and numpy, --deepspeed DeepSpeed, whose ds_to_universal has one
process here, for its weights and moments of ZeRO 3 by 8 ranks. Each piece of work is a process of its own; imports, and making
what is saved, come before it is measured. A table at the end: CPU seconds a GB, the most private memory beyond what there was
before, bytes that went through read() and write() and copies in the kernel (/proc/PID/io), bytes sent to the disk, and the ratio
of wall times (worth something on a quiet machine only). dcpfs waits until all is on the disk; of the others, dcp.save() does. What was written is read back by dcpfs and compared once.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = ("CPU s/GB", "memory MiB", "read", "written", "to disk", "wall")


# ---- in a process of its own ----

def state_of(kind, mb):
    """Tensors of 8 MiB and some small ones, bf16."""
    if kind == "torch":
        import torch

        torch.manual_seed(5)
        some = torch.randn(1 << 22).bfloat16()
        state = {f"layers.{i}.w": some.roll(i).reshape(2048, 2048).clone() for i in range(mb // 8)}
        return {**state, **{f"layers.{i}.norm": torch.ones(2048).bfloat16() for i in range(mb // 8)}}
    import paddle

    paddle.seed(5)
    some = paddle.randn([1 << 21], dtype="float32")
    return {f"layers.{i}.w": paddle.roll(some, i).reshape([1024, 2048]) for i in range(mb // 8)}


def work_of(name, mb, source, out):
    """What is to be measured, ready."""
    if name.startswith("dcpfs."):
        sys.path.insert(0, str(ROOT / "tools/python"))
        import dcpfs
    if name == "make":
        import torch.distributed.checkpoint as dcp

        return lambda state=state_of("torch", mb): dcp.save(state, checkpoint_id=out, no_dist=True)
    if name == "zero3":
        import families

        layers = {f"layers.{i}.w": (1024, 2048) for i in range(max(1, mb // 24))}  # 12 bytes an element
        os.makedirs(f"{out}/global_step10")
        return lambda: families.make_zero3(out, {**layers, **{k.replace("w", "norm"): (2048,) for k in layers}})
    if name == "ds_to_universal":
        from deepspeed.checkpoint import ds_to_universal

        sys.argv = ["ds_to_universal", "--input_folder", f"{source}/global_step10", "--output_folder", f"{out}/universal",
                    "--num_extract_workers", "1", "--num_merge_workers", "1"]
        return lambda how=ds_to_universal.parse_arguments(): ds_to_universal.main(how)
    if name == "dcp_to_torch_save":
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        return lambda: dcp_to_torch_save(source, out)
    if name == "dcp_to_torch_save, save_file":
        import torch
        from safetensors.torch import save_file
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        def two_steps():
            dcp_to_torch_save(source, out + ".pt")
            save_file(torch.load(out + ".pt", mmap=True), out)
            os.unlink(out + ".pt")
        return two_steps
    if name == "dcp.save":
        return work_of("make", mb, source, out)
    if name == "save_file":
        from safetensors.torch import save_file

        return lambda state=state_of("torch", mb): save_file(state, out)
    if name == "torch.save":
        import torch

        return lambda state=state_of("torch", mb): torch.save(state, out)
    if name == "paddle.save":
        import paddle

        return lambda state=state_of("paddle", mb): paddle.save(state, out)
    if name == "dcpfs.paddle.save":
        import dcpfs.paddle

        return lambda state=state_of("paddle", mb): dcpfs.paddle.save(state, out)
    form, *direct = name.split()[1:]
    return lambda state=state_of("torch", mb): dcpfs.save(state, out, form, comm=None, direct=bool(direct))


def counted():
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/io") as f:
        io = dict(line.split() for line in f)
    return [used.ru_utime + used.ru_stime, int(io["rchar:"]), int(io["wchar:"]), int(io["write_bytes:"]), time.perf_counter()]


def measure(mb, name, source, out):
    if name.split("_")[0] not in ("dcp", "ds", "zero3"):  # what is imported and opened at the first time
        work_of(name, 8, source, f"{os.path.dirname(out)}/first-{os.path.basename(out)}")()
    work = work_of(name, mb, source, out)
    before = counted()
    print("ready", flush=True)
    time.sleep(0.05)
    before[-1] = time.perf_counter()
    work()
    cpu, read, written, disk, wall = (b - a for a, b in zip(before, counted()))
    print(json.dumps({"cpu": cpu, "read": read, "written": written, "disk": disk, "wall": wall}), flush=True)


# ---- the table ----

def clear(*paths):
    for p in map(pathlib.Path, paths):
        if p.is_dir():
            shutil.rmtree(p)
        elif p.exists():
            p.unlink()


def program(dcpfs, *args):
    """dcpfs export as a whole process; what it reads and writes by its own counts."""
    import meter

    got = meter.run([dcpfs, "export", *args], peak=True)
    return {**got, "read": None, "written": None}


def rows(a, at):
    """(what, theirs, ours, ending of what is written): a python and a name, or arguments of the program."""
    source = f"{at}/source"
    yield "DCP to torch.save", (a.torch, "dcp_to_torch_save"), ["--as", "torch-save"], "out.pt", source
    yield "DCP to torch.save, --direct", (a.torch, "dcp_to_torch_save"), ["--as", "torch-save", "--direct"], "out.pt", source
    yield "DCP to safetensors", (a.torch, "dcp_to_torch_save, save_file"), ["--as", "safetensors"], "out.safetensors", source
    yield "save as DCP", (a.torch, "dcp.save"), (a.torch, "dcpfs. torch-dcp"), "out", source
    yield "save as DCP, direct", (a.torch, "dcp.save"), (a.torch, "dcpfs. torch-dcp direct"), "out", source
    yield "save as torch.save", (a.torch, "torch.save"), (a.torch, "dcpfs. torch-save"), "out.pt", source
    yield "save as safetensors", (a.torch, "save_file"), (a.torch, "dcpfs. safetensors"), "out.safetensors", source
    if a.deepspeed:
        yield "ZeRO 3 to universal", (a.deepspeed, "ds_to_universal"), ["--as", "deepspeed-universal"], "universal", f"{at}/zero3"
    if a.paddle:
        yield "save as pdparams", (a.paddle, "paddle.save"), (a.paddle, "dcpfs.paddle.save"), "out.pdparams", None


def side(a, how, source, out):
    import meter

    clear(out, f"{os.path.dirname(out)}/first-{os.path.basename(out)}")
    os.sync()
    if isinstance(how, list):
        return program(a.dcpfs, source, out, *how)
    return meter.lines([how[0], "-B", __file__, a.dcpfs, "--mb", str(a.mb), "--work", how[1], source or "-", out], peak=True)[0]


def digests(a, path):
    got = subprocess.run([a.dcpfs, "show", "--digest", "--json", path], stdout=subprocess.PIPE, check=True)
    # Beside the states of parameters ds_to_universal leaves those of rank 0 as it found them; dcpfs has steps and weights.
    return {k: v for k, v in json.loads(got.stdout).items() if not k.startswith(("optimizer_state.", "module.", "step."))}


def cells(samples, gb):
    def least(key, unit, form):
        values = [s[key] for s in samples if s.get(key) is not None]
        return form.format(min(values) / unit) if values else ""
    return [least("cpu", gb, "{:.2f}"), least("memory", 1 << 20, "{:.0f}"), least("read", gb * 1e9, "{:.2f} x"),
            least("written", gb * 1e9, "{:.2f} x"), least("disk", gb * 1e9, "{:.2f} x"), least("wall", 1, "{:.2f} s")]


def table(a, at):
    import meter

    side(a, (a.torch, "make"), "-", f"{at}/source")
    if a.deepspeed:
        side(a, (a.torch, "zero3"), "-", f"{at}/zero3")
    gb, lines = a.mb * (1 << 20) / 1e9, []
    for what, theirs, ours, ending, source in (r for r in rows(a, at) if a.only in r[0]):
        samples = {"theirs": [], "ours": []}
        for rep in range(a.reps):
            wrote = {}
            for which, how in (("theirs", theirs), ("ours", ours)):
                if source:
                    meter.warm(source)
                samples[which].append(side(a, how, source, f"{at}/{ending}"))
                wrote[which] = digests(a, f"{at}/{ending}") if rep == 0 else None
            if wrote["theirs"] != wrote["ours"]:
                raise meter.Failed(f"{what}: theirs and ours differ")
        cpu, wall = ([min(s[k] for s in samples["theirs"]) / min(s[k] for s in samples["ours"])] for k in ("cpu", "wall"))
        lines.append([what, theirs[1], *cells(samples["theirs"], gb), ""])
        ours_name = "dcpfs export" if isinstance(ours, list) else ours[1] if "paddle" in ours[1] else "dcpfs.save"
        lines.append(["", ours_name, *cells(samples["ours"], gb), f"{cpu[0]:.1f} x CPU, {wall[0]:.1f} x wall"])
        clear(f"{at}/{ending}", f"{at}/first-{ending}")
        print("\n".join("| " + " | ".join(line) + " |" for line in lines[-2:]), flush=True)
    print(f"\n{a.mb} MiB, the best of {a.reps}, load {os.getloadavg()[0]:.0f}; x: of the model's bytes\n")
    head = ["what", "by", *COLUMNS, "ratio"]
    print("\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dcpfs", type=os.path.abspath)
    for name in ("torch", "paddle", "deepspeed"):
        p.add_argument(f"--{name}")
    p.add_argument("--only", default="", help="rows with these words")
    p.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    p.add_argument("--mb", type=int, default=1024)
    p.add_argument("--reps", type=int, default=3)
    a = p.parse_args()
    if a.work:
        measure(a.mb, *a.work)
        return
    os.environ.setdefault("DCPFS_LIBRARY", str(pathlib.Path(a.dcpfs).parent / "load/libdcpload.so.0"))
    with tempfile.TemporaryDirectory(prefix="dcpfs-export-", dir=os.environ.get("TMPDIR", "/tmp")) as at:
        os.environ["DCPFS_CACHE"] = f"{at}/cache"
        table(a, at)


if __name__ == "__main__":
    main()
