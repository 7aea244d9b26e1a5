#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of a node that read what others of them have on their devices, by CUDA IPC: where NCCL refuses several processes on one GPU, and
where it is too old; what goes to the GPU, and what becomes of the ranks when a call fails or one of them is killed.

usage: ipc.py [FUNCTION...]
"""
import json
import os

import jobs
import lib
import nccl
from jobs import HANGS, checkpoint
from lib import case, check, equal

ONE = ("--device", "cuda:0")
BY = "Duplicate GPU detected, or lengths differ" + nccl.IPC

# What a failure of call N of each, on one of two ranks, leads to: the first is of the test that it works, the second of the load.
NODE = "the next way, and the report says why"
ERROR = "the load fails on all ranks, and says which call of which rank"
KEPT = "it makes no difference, and memory that may be mapped is not freed"
OUTCOMES = (
    ("cuIpcGetMemHandle", 1, NODE), ("cuIpcGetMemHandle", 2, ERROR), ("cuIpcOpenMemHandle_v2", 1, NODE),
    ("cuIpcOpenMemHandle_v2", 2, ERROR), ("cuMemGetAddressRange_v2", 1, NODE), ("cuMemGetAddressRange_v2", 2, ERROR), ("cuIpcCloseMemHandle", 1, NODE), ("cuIpcCloseMemHandle", 2, KEPT),
    ("cuMemcpyDtoHAsync_v2", 1, NODE), ("cuMemcpyHtoDAsync_v2", 1, NODE), ("cuMemcpyHtoDAsync_v2", 2, ERROR),
    ("cuMemcpyHtoDAsync_v2", 9, ERROR), ("cuLaunchKernel", 2, ERROR), ("run", 4, ERROR), ("run", "5:hang", ERROR),
    ("run", "20:hang", ERROR), ("launch", "1:hang", ERROR), ("in", "1:hang", NODE), ("in", "2:hang", ERROR),
)


def several(ranks, *argv, device=ONE, **more):
    return nccl.several(ranks, *argv, *device, **more)


def every_call_may_fail():
    """Each call fails, or what it queued never ends."""
    source, running = checkpoint(1), []
    for name, n, what in OUTCOMES:
        hangs = "hang" in str(n)
        fail = f"{name}:{n}" if hangs else f"{name}:{n}:719"
        running.append((name, n, what, several(2, source, "--layout", "dim1x2", "--timeout", HANGS if hangs else 120, env_of=lambda r, f=fail: {
            "FAKE_CUDA_FAIL": f} if r == 1 else {})))
    for name, n, what, job in running:
        case(f"call {n} of {name}: {what}")
        if what == ERROR:
            job.end()
            check(len(set(job.codes)) == 1 and job.codes[0] > 0, f"exit codes {job.codes}: {job.said}")
            says = "did not end" if "hang" in str(n) else "LAUNCH_FAILED" if name == "run" else name
            check("rank 1: cuda:0" in job.said[0] and says in job.said[0], job.said[0])
            continue
        got = job.report()
        why = got and got["exchange_why"]
        if got and what == NODE:
            check(got["exchange"] == "node" and "; not by CUDA IPC: rank 1: " in why and name in why, why)
        elif got:
            check(got["exchange"] == "all" and why.endswith(nccl.IPC), why)


def short_windows_are_refused():
    """A rank whose window has fewer bytes than it says fails the load, before anything of it is read."""
    job = several(2, checkpoint(1), "--layout", "dim1x2", env_of=lambda r: {"FAKE_CUDA_SHORT": "1"} if r == 1 else {}).end()
    check(len(set(job.codes)) == 1 and job.codes[0] > 0, f"exit codes {job.codes}: {job.said}")
    check("rank 1: cuda:0" in job.said[0] and "bytes is announced, and its mapping has 4096" in job.said[0], job.said[0])


def every_rank_has_its_bytes():
    """Every rank has its bytes, on one GPU and on several; within what staging allows, and the trace shows when they came."""
    old = {"FAKE_NCCL_VERSION": "21304"}
    mixed = checkpoint(shapes={f"{i}": [8, [128, 8192][i % 2]] for i in range(12)})
    for source in (lib.GOLDEN / "dcp-tp-fsdp" / "ckpt", lib.GOLDEN / "hf-llama" / "ckpt", mixed):
        for n, layout, device, env in ((2, "dim1x2", ONE, {}), (4, "fsdp4", ONE, {}), (4, "dim2x4", ("--device", "cuda"), old)):
            case(f"{source}, {n} ranks, {layout}, {device[1]}")
            trace = lib.fresh("trace") / "t.json"
            got = several(n, source, "--layout", layout, "--partial", "--trace", trace, *(["--dtype", "F32"] if n == 2 else []),
                          device=device, env_of=lambda r, e=env: e).report()
            if got:
                check(got["exchange"] == "all" and got["exchange_why"].endswith(nccl.IPC) and got["checked"], f"{got['exchange_why']}")
                check(got["device_staging"] <= 1.5 * jobs.MIB, f"{got['device_staging']} bytes on the device")
                equal({e["pid"] for e in json.loads(lib.read(trace))["traceEvents"] if e["name"] == "exchange"}, set(range(n)), "ranks")


def bytes_go_to_a_gpu_once():
    """Each byte goes to a GPU once, however many ranks need it, and none is replaced while another rank, a slow one, may still read
    it."""
    source = checkpoint(shapes={"big": [512, 2048]})
    size = os.path.getsize(source / "step-1" / "model.safetensors")
    for layout in ("dim2x4", "fsdp4"):
        case(layout)
        logs = [lib.fresh("log") / str(r) for r in range(4)]
        got = several(4, source, "--layout", layout, env_of=lambda r: {
            "FAKE_CUDA_LOG": str(logs[r]), "FAKE_CUDA_SLOW_KERNEL": "20" if r == 1 else "0"}).report()  # noqa: B023
        lines = [line.split() for log in logs for line in lib.read(log).decode().splitlines()] if got else []
        sent = sum(int(w[3]) for w in lines if w[0] == "+" and w[2] in ("in", "box"))
        check(0.99 < sent / size < 1.02, f"{sent} bytes went to GPUs of {size} that are needed")
        check(got and got["needed"] == (4 if layout == "dim2x4" else 1) * 2 * 512 * 2048, f"{got and got['needed']} needed")
        check(all("pageable" not in w for w in lines if int(w[3] if w[0] == "+" else 0) > 4096), "memory that is not pinned")
        equal(sum(w[0] == "map" for w in lines), sum(w[0] == "unmap" for w in lines), "windows that are mapped, and no more")


def doctor_uses_no_gpu():
    """What can be known of it without using a GPU."""
    for env, says in (({}, "the first GPU takes several processes; it reaches the memory of 1 of 1 others"),
                      ({"FAKE_CUDA_MODE": "3"}, "the first GPU takes one process at a time"),
                      ({"FAKE_CUDA_FAIL": "cuDeviceCanAccessPeer:1:719"}, "it reaches the memory of 0 of 1 others"),
                      ({"FAKE_CUDA_GPUS": "0"}, "no GPU: cuInit")):
        case(f"doctor {env}")
        found = {c["name"]: c for c in json.loads(lib.run(lib.PROGRAM, "doctor", "--json", env={**lib.environment(), **env}).stdout)["checks"]}
        check(says in found["CUDA IPC"]["found"] and (found["CUDA IPC"]["state"] == "ok") == (not env), f"{found['CUDA IPC']}")


def killed_ranks_end_the_load():
    """One is killed, or stops: the others end, and do not free what it may have mapped."""
    nccl.killed_ranks_end_the_load("cuda:0")


lib.main(every_call_may_fail, short_windows_are_refused, every_rank_has_its_bytes, bytes_go_to_a_gpu_once, doctor_uses_no_gpu,
         killed_ranks_end_the_load)
