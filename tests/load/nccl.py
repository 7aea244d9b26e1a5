#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that send each other what they read, from GPU to GPU, by an NCCL and GPUs that are not there (fake/): under
TCP, which carries no bulk data, and under MPI; and what becomes of them when a call of NCCL fails or a rank is killed.
Where NCCL does not start, messages go by CUDA IPC (ipc.py).

usage: nccl.py [FUNCTION...]
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import jobs
import lib
from jobs import HANGS, Job, busy, checkpoint
from lib import case, check, equal

CALLS = re.findall(r"\bX\([^,]*, (nccl\w+)", lib.read(lib.ROOT / "tools/load/memory/nccl_abi.h").decode())
BY = "; by NCCL 2.28.9"
IPC = "; by CUDA IPC"
ENV = {"FAKE_CUDA_GPUS": "8"}

# What a failure of call N of each, on one of two ranks, leads to.
WITHOUT = "messages do not go by NCCL, and the report says why"
ERROR = "the load fails on all ranks, and says which call of which rank"
GOES_ON = "it makes no difference"
OUTCOMES = (
    ("ncclGetVersion", 1, WITHOUT), ("ncclGetUniqueId", 1, WITHOUT), ("ncclCommInitRankConfig", 1, WITHOUT),
    ("ncclCommGetAsyncError", 1, WITHOUT), ("ncclCommGetAsyncError", 12, ERROR), ("ncclCommAbort", 1, GOES_ON),
    ("ncclGroupStart", 1, ERROR), ("ncclSend", 1, ERROR), ("ncclRecv", 1, ERROR), ("ncclGroupEnd", 1, ERROR),  # of the plan
    ("ncclGroupStart", 4, ERROR), ("ncclSend", 4, ERROR), ("ncclRecv", 4, ERROR), ("ncclGroupEnd", 4, ERROR),  # of a round
    ("ncclAllGather", 2, ERROR),
)


def several(ranks, *argv, env_of=lambda r: {}, **more):
    return Job(ranks, "--exchange", "all", "--device", "cuda", "--staging", "1M", "--check", "--json", *argv,
               env_of=lambda r: ENV | env_of(r), **more)


def outcome(job, what, name, rank, hangs):
    """Is that what became of a job of which a call failed?"""
    who = f"rank {rank}"
    if what == ERROR:
        job.end()
        check(len(set(job.codes)) == 1 and job.codes[0] > 0, f"exit codes {job.codes}: {job.said}")
        check(f"{who}: cuda:" in job.said[0] and name in job.said[0], job.said[0])
        check((f"ncclGroupEnd: rank 1 did not answer within {HANGS / 2} s" if hangs else name) in job.said[0], job.said[0])
        check(hangs or "did not answer" not in job.said[0], job.said[0])
        return
    got = job.report()
    if got and what == WITHOUT:
        why = got["exchange_why"]
        check(got["exchange"] == "all" and got["nccl"] is None and why.endswith(IPC), f"{got['exchange']}, {got['nccl']}: {why}")
        check(f"; not by NCCL: {who}: " in why and name in why, why)
    elif got:
        equal((got["exchange"], got["nccl"]), ("all", "2.28.9"), "the exchange")


def every_call_may_fail():
    """Each call of NCCL fails, or never ends."""
    source = checkpoint(1)
    equal({name for name, _, _ in OUTCOMES} | {"ncclGetErrorString", "ncclGetLastError"}, set(CALLS), "calls with an outcome")
    # Where one rank fails alone, the other waits half of it.
    fail_calls(source, (*OUTCOMES, ("ncclCommInitRankConfig", "on rank 0", WITHOUT)), 40)
    fail_calls(source, (("ncclCommInitRankConfig", "hang", WITHOUT), ("ncclGroupEnd", "hang", ERROR)), HANGS)
    hangs(source)


def hangs(source):
    """What a GPU never ends it goes on using, so that is not freed; and the message names its rank, not one that waited for it."""
    running = [(fail, rank, several(2, source, "--layout", layout, "--timeout", HANGS, env_of=lambda r, f=fail, k=rank: {
        "FAKE_CUDA_FAIL": f} if r == k else {})) for fail, layout, rank in (
            ("nccl:1:hang", "dim1x2", 0), ("nccl:4:hang", "dim1x2", 1), ("in:1:hang", "dim1x2", 1), ("in:6:hang", "dim1x2", 1),
            ("in:6:hang", "dim2x2", 0), ("launch:2:hang", "dim2x2", 1))]
    for fail, rank, job in running:
        case(f"{fail} on rank {rank}")
        job.end()
        check(set(job.codes) == {3} and f"rank {rank}: cuda:{rank}, Fake {rank}: " in job.said[0], f"{job.codes}: {job.said}")
        check("did not end" in job.said[0] and "kept until the process ends" in job.said[0], job.said[0])


def fail_calls(source, outcomes, timeout):
    """Jobs side by side, in each of which a call fails."""
    running = []
    for name, n, what in outcomes:
        where = 0 if name == "ncclGetUniqueId" or n == "on rank 0" else 1
        fail = f"{name}:1:hang" if n == "hang" else f"{name}:{n if isinstance(n, int) else 1}:3"
        layout = "dim2x2" if name == "ncclAllGather" else "dim1x2"
        told = name if "Async" not in name else "ncclCommInitRankConfig" if what == WITHOUT else "nccl"  # what it was asked about
        running.append((f"call {n} of {name}: {what}", what, told, 0 if n == "hang" else where, n == "hang", several(
            2, source, "--layout", layout, "--timeout", timeout, env_of=lambda r, f=fail, k=where, late=n == "on rank 0": {
                "FAKE_CUDA_FAIL": f} if r == k else {"FAKE_NCCL_SLOW": "500"} if late else {})))
    for title, what, name, rank, hangs, job in running:
        case(title)
        outcome(job, what, name, rank, hangs)


def one_rank_decides_for_all():
    """What a rank has decides for all."""
    source = checkpoint(1)
    without, other = lib.fresh("lib"), lib.fresh("lib")
    fakes = next(p.parent.resolve() for w in os.environ["LD_LIBRARY_PATH"].split(":") if (p := pathlib.Path(w, "libcuda.so.1")).exists())
    for folder in (without, other):
        (folder / "libcuda.so.1").symlink_to(fakes / "libcuda.so.1")
    (without / "libnccl.so.2").touch()  # one that the machine may have is not opened
    (other / "libnccl.so.2").symlink_to(fakes / "libcufile.so.0")
    for env, says in (({"FAKE_NCCL_VERSION": "21304"}, "libnccl.so.2 is of version 21304; 2.14.0, which is 21400, is the oldest"),
                      ({"LD_LIBRARY_PATH": str(without)}, "libnccl.so.2: file too short"),
                      ({"LD_LIBRARY_PATH": str(other)}, "libnccl.so.2 has no ncclGetVersion"),
                      ({"FAKE_CUDA_FAIL": "cuModuleLoadData:1:222"}, "the host converts: cuModuleLoadData"),
                      ({"CUDA_DEVICE": "0"}, "Duplicate GPU detected")):
        case(f"{env}")
        got = several(2, source, env_of=lambda r, e=env: e if r else {}, each=lambda r, e=env: [
            "--device", "cuda:0"] if "CUDA_DEVICE" in e else []).report()
        host = "host converts" in says
        check(got and got["exchange"] == ("node" if host else "all") and says in got["exchange_why"] and
              (IPC in got["exchange_why"]) != host, f"{got and got['exchange_why']}")
    for env, says in ((ENV, "libnccl.so.2, NCCL 2.28.9"), ({"FAKE_NCCL_VERSION": "21304"}, "libnccl.so.2 is of version 21304")):
        case(f"doctor {env}")
        page = lib.run(lib.PROGRAM, "doctor", env={**lib.environment(), **env}).stdout
        check(says in " ".join(page.split()), page)


def every_rank_has_its_bytes():
    """Every rank has its bytes, whatever is needed of them by how many, and the trace shows when they came."""
    seen = 0
    mixed = checkpoint(shapes={f"{i}": [8, [128, 8192][i % 2]] for i in range(12)})  # parts to be packed, and not
    for source in (lib.GOLDEN / "dcp-tp-fsdp" / "ckpt", lib.GOLDEN / "hf-llama" / "ckpt", mixed):
        for n, layout in ((2, "dim1x2"), (3, "fsdp3"), (4, "dim1x4"), (3, "dim2x3")):
            case(f"{source}, {n} ranks, {layout}")
            trace = lib.fresh("trace") / "t.json"
            got = several(n, source, "--layout", layout, "--partial",
                          "--trace", trace, *(["--dtype", "F32"] if n == 3 else [])).report()
            if got:
                check(got["exchange"] == "all" and got["exchange_why"] == "asked for" + BY and got["checked"], f"{got['exchange_why']}")
                check(got["device_staging"] <= 1.5 * jobs.MIB, f"{got['device_staging']} bytes on the device")
                events = [e for e in json.loads(lib.read(trace))["traceEvents"] if e["name"] == "exchange"]
                equal({e["pid"] for e in events}, set(range(n)), "ranks that exchange")
                seen += 1
    equal(seen, 12, "jobs")


def only_needed_bytes_are_sent():
    """All need the same, a little of each block that is read: that is sent, and not the blocks."""
    source = checkpoint(shapes={f"{k}.{i}": shape for i in range(8) for k, shape in (("big", [64, 4096]), ("small", [16, 16]))})
    logs = [lib.fresh("log") / str(r) for r in range(2)]
    got = several(2, source, "--layout", "dim2x2", "--keys", "small.*", env_of=lambda r: {"FAKE_CUDA_LOG": str(logs[r])}).report()
    lines = [line.split() for log in logs for line in lib.read(log).decode().splitlines()] if got else []
    sent = sum(int(w[3]) for w in lines if w[0] == "+" and w[2] in ("in", "box"))
    check(got and sent < got["read"], f"{sent} bytes went to GPUs of {got and got['read']} that are read")


def nodes_read_each_byte_once():
    """Between nodes, where ranks meet by TCP: each byte is read once all the same."""
    other = ["unshare", "--uts", "sh", "-c", 'echo elsewhere > /proc/sys/kernel/hostname && exec "$@"', "sh"]
    if subprocess.run([*other, "true"], check=False, capture_output=True).returncode:
        print("nodes left out: no other host name can be had")
        return
    source = checkpoint(1)
    size = os.path.getsize(source / "step-1" / "model.safetensors")
    for device, nccl in (("cuda", "2.28.9"), ("host", None)):
        case(f"two nodes, {device}")
        got = several(3, source, "--layout", "dim1x3", by=lambda r: other if r else [],
                      each=lambda r, d=device: ["--device", d]).report()
        if got:
            equal((got["nodes"], got["exchange"], got["nccl"]), (2, "all" if nccl else "node", nccl), got["exchange_why"])
            check(got["read"] < size * (1.02 if nccl else 2.02), f"read {got['read']} of {size}")


def bytes_arrive_before_placing():
    """Bytes go to the GPU from pinned memory, then to the others, and no kernel places them before they are there."""
    source = checkpoint(shapes={"big": [128, 4096]})
    for layout in ("dim1x2", "dim2x2"):
        case(layout)
        sent = 0
        logs = [lib.fresh("log") / str(r) for r in range(2)]
        trace = lib.fresh("trace") / "t.json"
        got = several(2, source, "--layout", layout, "--trace", trace, env_of=lambda r: {
            "FAKE_CUDA_LOG": str(logs[r]), "FAKE_CUDA_SLOW": "200"}).report()  # noqa: B023
        spans = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in json.loads(lib.read(trace))["traceEvents"] if e["ph"] == "X" and e["pid"] == 0) if got else []
        reads, sends = ([s for s in spans if s[2] == name] for name in ("read", "exchange"))
        check(any(r[0] < s[1] for r, s in zip(reads[1:], sends)), "nothing is read while messages travel")
        for r, log in enumerate(logs if got else ()):
            lines = [line.split() for line in lib.read(log).decode().splitlines()]
            equal([w[1] for w in lines if w[0] == "context"], [str(r)], "contexts")
            told = [i for i, w in enumerate(lines) if w[0] == "nccl"]
            under_way, fed, launched = 0, set(), 0
            planned = [i for i, w in enumerate(lines) if w[0] == "-" and w[2] == "nccl"][1]  # they told each other what they need
            for w in lines[planned + 1:]:
                if w[0] in "+-" and w[2] == "nccl":
                    check(w[0] == "-" or w[1] in fed, "a message before its bytes are on the GPU")
                    under_way += 1 if w[0] == "+" else -1
                elif w[0] == "+" and w[2] in ("in", "box"):
                    check("pageable" not in w, f"memory that is not pinned: {w}")
                    sent += int(w[3])
                    fed.add(w[1])
                elif w[0] == "+" and w[2] == "launch":
                    launched += 1
                    check(under_way == 0, "a kernel while messages are under way")
            check(len(told) > 3 and launched, f"{len(told)} groups of messages, {launched} kernels")
        check(got and sent < got["unique"] * 1.1, f"{sent} bytes went to GPUs of {got and got['unique']} that are needed")


def mpi_starts_the_ranks():
    """The same where MPI starts the ranks and says who they are; it carries the messages where devices do not."""
    if not shutil.which("mpirun"):
        print("mpi left out: no mpirun")
        return
    env = {**lib.environment(), **ENV, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_plm_rsh_agent": "sh", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_orte_tmpdir_base": str(lib.fresh("ompi"))}  # not the one that other runs make and remove

    def run(n, layout, device, fails, *argv):
        return subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(n), os.path.abspath(lib.PROGRAM), "load",
                               str(lib.GOLDEN / "hf-llama" / "ckpt"), "--comm", "mpi", "--layout", layout, "--exchange", "all", "--device",
                               device, "--check", "--json", *argv], env={**env, "FAKE_CUDA_FAIL": fails}, capture_output=True, text=True,
                              timeout=lib.PATIENCE, check=False)

    for n, layout, device, by, fails in ((3, "dim1x3", "cuda", BY, ""), (2, "dim1x2", "cuda:0", IPC, ""),
                                         (2, "dim1x2", "cuda:0", "cuIpcGetMemHandle: CUDA_ERROR_LAUNCH_FAILED", "cuIpcGetMemHandle:0:719")):
        case(f"mpirun, {n} ranks, {layout}{by}")
        done = run(n, layout, device, fails)
        if done.returncode and "libdcpload-mpi.so" in done.stderr:
            print("mpi left out: the module was not built")
            return
        got = json.loads(done.stdout) if check(done.returncode == 0, done.stderr) else None
        check(got and (got["comm"], got["exchange"]) == ("mpi", "all") and got["exchange_why"].endswith(by), f"{got and got['exchange_why']}")
    case("mpirun, a copy of what a message brought never ends")
    said = run(2, "dim1x2", "cuda:0", "cuIpcGetMemHandle:0:719 in:3:hang", "--timeout", str(HANGS)).stderr
    check("a copy did not end" in said and "kept until the process ends" in said and "memory is freed" not in said, said)


def killed_ranks_end_the_load(device="cuda"):
    """A rank is killed, or stops, while it loads: the others end, within the timeout."""
    source = checkpoint(2)
    for victim, sign, timeout in ((1, signal.SIGKILL, 40), (2, signal.SIGSTOP, HANGS)):
        case(f"rank {victim}, {sign.name}")
        job = several(3, source, "--layout", "dim1x3", "--repeat", 1000000, "--timeout", timeout, "--device", device)
        lib.wait(lambda j=job, v=victim: busy(j.ranks[v]), "it is loading")
        job.ranks[victim].send_signal(sign)
        for r, p in enumerate(job.ranks):
            if r != victim:
                try:
                    p.wait(lib.PATIENCE)
                except subprocess.TimeoutExpired:
                    lib.fail(f"rank {r} hangs\n{lib.stacks(p.pid)}")
        job.ranks[victim].kill()
        job.end()
        check(all(c > 0 for r, c in enumerate(job.codes) if r != victim), f"exit codes {job.codes}: {job.said}")
        told = job.said[0 if victim else 1]
        check(victim == 0 or re.search(f"rank[^:]* {victim}", told), f"does not say who: {told}")


lib.why_not = lambda: None
if __name__ == "__main__":
    lib.main(every_call_may_fail, one_rank_decides_for_all, every_rank_has_its_bytes, only_needed_bytes_are_sent,
             nodes_read_each_byte_once, bytes_arrive_before_placing, mpi_starts_the_ranks, killed_ranks_end_the_load)
