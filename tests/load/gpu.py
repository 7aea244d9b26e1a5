#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""On a machine with a GPU of NVIDIA: the jobs of jobs.py into its memory, reads by cuFile, messages by NCCL and CUDA IPC, and
compute-sanitizer.
Skips where there is none, and says what is missing.
"""
import glob
import json
import os
import shutil
import sys

import jobs
import lib
from jobs import Job, apart, busy, checkpoint, golden_versions_are_loaded, ranks_load_the_same, shards_agree_with_the_frameworks
from lib import case, check


def cufile_gives_the_same():
    """By cuFile, whatever it can do here: the same bytes, and the report says how they came."""
    source = checkpoint(8)
    for extra in ([], ["--dtype", "F16"], ["--layout", "dim1x3", "--rank", 1], ["--cold"], ["--staging", "1M"],
                  ["--keys", "t*[02468]"]):
        case(f"gds {extra}")
        got = Job(1, apart() if "--keys" in extra else source, "--io", "gds", "--check", "--json", *extra, comm="alone").report()
        if got:
            print(f"gds: {got['io']}: {got['io_why']}")


def every_kind_of_memory_is_filled():
    """Destinations of every kind of memory that CUDA has."""
    source = checkpoint(2)
    for device in ("cuda,managed", "cuda,pinned", "auto", "cuda:0"):
        for extra in ([], ["--dtype", "F16", "--layout", "dim1x2", "--rank", 1]):
            case(f"{device} {extra}")
            Job(1, source, "--device", device, "--check", "--json", *extra, comm="alone").report()


def nccl_gives_the_same():
    """What one rank reads goes from GPU to GPU, where NCCL takes the ranks; else the report says why not."""
    source = checkpoint(2)
    for n, layout in ((2, "dim1x2"), (2, "dim2x2"), (4, "fsdp4")):
        case(f"nccl {n} {layout}")
        got = Job(n, source, "--layout", layout, "--exchange", "all", "--check", "--json", "--dtype", "F32", "--timeout", 30,
                  env_of=lambda r: {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}).report()
        if got:
            print(f"nccl: {got['exchange']}: {got['exchange_why']}")
            check(got["nccl"] or "; not by NCCL: " in got["exchange_why"], got["exchange_why"])


def ipc_gives_the_same():
    """The same of several processes on one GPU that read from each other's memory; else the report says why not. The last is killed
    while it loads: the others end, and the GPU serves the next load."""
    source = checkpoint(64)
    one = ("--device", "cuda:0", "--exchange", "all", "--timeout", 30, "--json")
    for n, layout in ((2, "dim1x2"), (4, "dim2x4"), (4, "fsdp4")):
        case(f"ipc {n} {layout}")
        got = Job(n, source, *one, "--layout", layout, "--check", "--staging", "8M").report()
        if got:
            why = got["exchange_why"]
            print(f"ipc: {got['exchange']}: {why}")
            check(got["nccl"] or why.endswith("; by CUDA IPC") or "; not by CUDA IPC: " in why, why)
    case("ipc, one of three is killed")
    job = Job(3, source, *one, "--layout", "dim2x3", "--repeat", 1000000)
    lib.wait(lambda: busy(job.ranks[2]), "it is loading")
    job.ranks[2].kill()
    job.end()
    check(all(c > 0 for c in job.codes[:2]), f"exit codes {job.codes}: {job.said}")
    Job(2, source, *one, "--layout", "dim1x2", "--check").report()


def the_sanitizer_finds_nothing():
    """Every kernel and copy, watched."""
    program = shutil.which("compute-sanitizer", path=":".join((os.environ.get("PATH", ""), *glob.glob("/usr/local/cuda*/bin"))))
    if not program:
        print("compute-sanitizer is not here: left out")
        return
    source = checkpoint(1)
    for tool in ("memcheck", "racecheck", "initcheck"):
        for extra in (["--dtype", "F16"], ["--layout", "dim1x2", "--rank", "1"]):
            case(f"{tool} {extra}")
            done = lib.run(program, "--tool", tool, "--error-exitcode", "9", lib.PROGRAM, "load", str(source), "--device", "cuda",
                           "--check", *extra, timeout=250, env=lib.environment())
            if "Device not supported" in done.stdout:  # a virtual machine that has no debugging
                print(f"{tool}: {done.stdout[-300:]}: left out")
                return
            check(done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-3000:]}{done.stderr[-1000:]}")
    case("memcheck, two processes on one GPU")
    job = Job(2, source, "--device", "cuda:0", "--exchange", "all", "--layout", "dim2x2", "--check", "--timeout", 120, patience=120,
              by=lambda r: [program, "--tool", "memcheck", "--error-exitcode", "9"]).end()
    check(job.codes == [0, 0], f"exit codes {job.codes}: {job.out[-3000:]}{job.said}")


os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, (  # NCCL and cuFile may be there as packages of Python
    os.environ.get("LD_LIBRARY_PATH"), *(d for p in sys.path for d in glob.glob(p + "/nvidia/*/lib")))))
machine = {c["name"]: c for c in json.loads(lib.run(lib.PROGRAM, "doctor", "--json", env=lib.environment()).stdout)["checks"]}
if machine["GPU"]["state"] != "ok":
    lib.why_not = lambda: machine["GPU"]["found"]
else:
    lib.why_not = lambda: None
    print("; ".join(machine[name]["found"] for name in ("GPU", "cuFile", "NCCL", "CUDA IPC")))
jobs.DEVICE = ["--device", "cuda"]
# what only this file tests is first: time may be short
lib.main(every_kind_of_memory_is_filled, cufile_gives_the_same, nccl_gives_the_same, ipc_gives_the_same,
         the_sanitizer_finds_nothing, ranks_load_the_same, shards_agree_with_the_frameworks, golden_versions_are_loaded)
