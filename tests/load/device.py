#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads into the memory of GPUs that are not there (fake/): in which order bytes get there, what is pinned, and what
becomes of a job when any call of the driver fails.
"""
import json
import os
import pathlib
import re
import tempfile

import jobs
import lib
from jobs import HANGS, MIB, Job, apart, checkpoint
from lib import case, check, equal

ABI = lib.read(lib.ROOT / "tools/load/memory/cuda_abi.h").decode()
CALLS = re.findall(r"\bX\((cu\w+)", ABI)
FAILED = 719  # CUDA_ERROR_LAUNCH_FAILED

# What a failure of the first call of each leads to.
NONE = "no GPU can be used: an error, or with auto the host's memory"
ERROR = "the load fails, and says which call"
GOES_ON = "it makes no difference"
WITHOUT = "it goes on, and says what it does without"
UNUSED = "not called by this load"
OUTCOMES = {
    "cuInit": NONE, "cuDriverGetVersion": NONE, "cuDeviceGetCount": NONE, "cuDeviceGet": NONE,
    "cuDeviceGetAttribute": NONE, "cuDevicePrimaryCtxRetain": NONE, "cuStreamCreate": NONE, "cuEventCreate": NONE,
    "cuCtxPushCurrent_v2": NONE,
    "cuGetErrorName": GOES_ON, "cuDeviceGetName": GOES_ON, "cuDeviceGetPCIBusId": GOES_ON, "cuCtxPopCurrent_v2": GOES_ON,
    "cuDevicePrimaryCtxRelease_v2": GOES_ON, "cuMemFree_v2": GOES_ON, "cuMemHostUnregister": GOES_ON,
    "cuStreamQuery": GOES_ON, "cuStreamDestroy_v2": GOES_ON, "cuEventDestroy_v2": GOES_ON, "cuModuleUnload": GOES_ON,
    "cuModuleLoadData": WITHOUT, "cuModuleGetFunction": WITHOUT, "cuMemHostRegister_v2": WITHOUT,
    "cuMemAlloc_v2": ERROR, "cuMemcpyHtoDAsync_v2": ERROR, "cuMemcpy3DAsync_v2": ERROR, "cuMemcpyDtoHAsync_v2": ERROR,
    "cuEventRecord": ERROR, "cuEventQuery": ERROR, "cuLaunchKernel": ERROR,
    "cuDeviceCanAccessPeer": UNUSED, "cuIpcGetMemHandle": UNUSED, "cuIpcOpenMemHandle_v2": UNUSED, "cuIpcCloseMemHandle": UNUSED, "cuMemGetAddressRange_v2": UNUSED,  # ipc.py
    "cuPointerGetAttribute": UNUSED, "cuStreamWaitEvent": UNUSED, "cuMemsetD8Async": UNUSED, "cuMemAllocManaged": UNUSED,
}


def one(*argv, code=0, **env):
    """What one process says: the report, or the message."""
    job = Job(1, *argv, comm="alone", env_of=lambda r: env)
    if code == 0:
        return job.report()
    job.end()
    check(job.codes != [0] and job.codes[0] > 0, f"exit codes {job.codes}")
    return job.said[0]


def every_call_may_fail():
    """Each call of the driver fails once."""
    source = checkpoint(1)
    argv = [source, "--layout", "dim1x2", "--rank", 1, "--json", "--check", "--staging", "1M"]
    equal(set(OUTCOMES), set(CALLS), "calls with an outcome")
    for name, outcome in OUTCOMES.items():
        case(f"{name} fails: {outcome}")
        fail = f"{name}:1:{FAILED}"
        if outcome in (GOES_ON, WITHOUT, UNUSED):
            got = one(*argv, "--device", "cuda", FAKE_CUDA_FAIL=fail)
            why = got and got["device_why"]
            check(got and (why != "asked for") == (outcome == WITHOUT), f"why: {why}")
            check(outcome != WITHOUT or name in why, f"why: {why}")
            continue
        said = one(*argv, "--device", "cuda", code=1, FAKE_CUDA_FAIL=fail)
        check(name in said and "CUDA_ERROR_LAUNCH_FAILED" in said or name == "cuCtxPushCurrent_v2", said)
        if outcome == NONE:
            got = one(*argv, "--device", "auto", FAKE_CUDA_FAIL=fail)
            check(got and got["device"] is None, f"auto: {got and got['device_why']}")
    for name, kind in (("cuMemAllocManaged", "managed"), ("cuMemHostRegister_v2", "pinned")):
        case(f"{name} fails for {kind} destinations: {ERROR}")
        said = one(*argv, "--device", f"cuda,{kind}", code=1, FAKE_CUDA_FAIL=f"{name}:1:2")
        check("no memory for" in said and f"{name}: CUDA_ERROR_OUT_OF_MEMORY" in said, said)


def queued_work_may_fail():
    """Work that fails, or never ends, once it is queued; in one of several ranks."""
    source = checkpoint(1)
    for exchange in ("never", "node"):
        for n in (1, 3, 10):
            case(f"operation {n} fails, {exchange}")
            job = Job(3, source, "--exchange", exchange, "--device", "cuda", "--staging", "1M",
                      env_of=lambda r: {"FAKE_CUDA_FAIL": f"run:{n}:{FAILED}"} if r == 1 else {}).end()
            check(set(job.codes) == {3}, f"exit codes {job.codes}")
            check(job.said[0].startswith("dcpfs: rank 1: cuda:1, Fake 1: ") and "LAUNCH_FAILED" in job.said[0], job.said[0])
    case("the same on one of two ranks, with the copies of all lanes under way")
    job = Job(2, source, "--exchange", "node", "--layout", "dim1x2", "--device", "cuda", "--staging", "1M", "--timeout", HANGS,
              env_of=lambda r: {"FAKE_CUDA_FAIL": "run:5:hang"} if r == 1 else {}).end()
    check(f"rank 1: cuda:1, Fake 1: a copy did not end in {HANGS / 2} s" in job.said[0], job.said[0])
    case("no memory on one device")
    job = Job(2, source, "--device", "cuda",
              env_of=lambda r: {"FAKE_CUDA_FAIL": "cuMemAlloc_v2:1:2"} if r == 1 else {}).end()
    check("rank 1: no memory for" in job.said[0] and "OUT_OF_MEMORY" in job.said[0], job.said[0])


def hanging_work_keeps_its_memory():
    """What never ends goes on using its memory, whatever that is: none of it is freed (the fake ends a process that does), and the
    message says so."""
    source, running = checkpoint(1), []
    for what, fail, argv in (
            ("slots and jobs", "in:3:hang", []), ("a destination", "box:1:hang", ["--layout", "dim1x2", "--rank", 1]),
            ("slots on the device", "launch:1:hang", []), ("a managed destination", "launch:1:hang", ["--device", "cuda,managed"]),
            ("what the host has converted", "cuModuleLoadData:1:222 in:2:hang", ["--dtype", "F16"]),
            ("slots of cuFile", "launch:1:hang", ["--io", "gds"]), ("a part that is read", "out:1:hang", ["--check"])):
        running.append((what, Job(1, source, "--device", "cuda", "--timeout", 2, *argv, comm="alone", env_of=lambda r, f=fail: {"FAKE_CUDA_FAIL": f})))
    for what, job in running:
        case(f"what never ends uses {what}")
        job.end()
        check(job.codes == [3] and "cuda:0, Fake 0: a copy did not end in " in job.said[0], f"{job.codes}: {job.said}")
        check("; memory that copies may still use is kept until the process ends" in job.said[0], job.said[0])


class Log:
    """What a fake device did: [(sign, stream, kind, bytes, pinned)] and the contexts that were made."""

    def __init__(self, path):
        lines = [line.split() for line in lib.read(path).decode().splitlines()]
        self.contexts = [int(w[1]) for w in lines if w[0] == "context"]
        self.events = [(w[0], int(w[1]), w[2], int(w[3]), "pageable" not in w) for w in lines if w[0] in "+-"]

    def queued(self, *kinds):
        return [e for e in self.events if e[0] == "+" and e[2] in kinds]


def copies_keep_their_order():
    """Copies come from pinned memory, several are under way at a time, and a kernel follows its bytes."""
    source = checkpoint(8)
    for layout, exchange, ranks in (("fsdp2", "never", 2), ("dim1x2", "node", 2), ("dim1x4", "node", 4)):
        case(f"{layout}, {exchange}")
        logs = [lib.fresh("log") / str(r) for r in range(ranks)]
        got = Job(ranks, source, "--layout", layout, "--exchange", exchange, "--device", "cuda", "--staging", "4M", "--json",
                  env_of=lambda r: {"FAKE_CUDA_LOG": str(logs[r]), "FAKE_CUDA_SLOW": "20"}).report()
        for r, log in enumerate(map(Log, logs) if got else ()):
            equal(log.contexts, [r % 2], "contexts: on its own device alone")
            check(all(e[4] for e in log.events), "copies from memory that is not pinned")
            sent = sum(e[3] for e in log.queued("in", "box"))
            needed = got["per_rank"][r]["needed"]
            check(needed <= sent < needed * 1.3, f"{sent} bytes sent to place {needed}")
            under_way, most = 0, 0
            for sign, _, kind, _, _ in log.events:
                under_way += (kind in ("in", "box")) * (1 if sign == "+" else -1)
                most = max(most, under_way)
            check(most > 1, f"{most} copy under way at a time")
            for stream in {e[1] for e in log.queued("launch")}:
                own = [e[:3] for e in log.events if e[1] == stream and e[2] in ("in", "launch")]
                first = own.index(("-", stream, "launch"))
                done = [e for e in own[:first] if e == ("-", stream, "in")]
                check(len(done) >= 2, "a kernel that ran before bytes and jobs were there")


def gpus_are_read_in_large_pieces():
    """What a GPU has gets to the host by several pieces of 4 MiB at a time, all into pinned memory."""
    log, out = lib.fresh("log") / "0", lib.fresh("dump")
    for what, argv, whole in ("a dump", ["--dump", out], 4 * MIB), ("less than a piece", ["--check"], 0):
        case(f"fetched: {what}")
        log.unlink(missing_ok=True)
        got = one(checkpoint(70), *argv, "--device", "cuda", "--json", FAKE_CUDA_LOG=str(log))
        under_way, most, sizes = 0, 0, []
        for sign, _, kind, n, pinned in Log(log).events if got else ():
            if kind == "out":
                under_way += 1 if sign == "+" else -1
                most = max(most, under_way)
                sizes += [n] * (sign == "+")
                check(pinned, "a copy to memory that is not pinned")
        check(most > 1, f"{most} piece under way at a time")
        check(sum(sizes) == got["per_rank"][0]["needed"] and max(sizes) <= 4 * MIB, f"{sum(sizes)} bytes, {max(sizes)} at most")
        check(sizes.count(whole) * whole > 0.7 * sum(sizes) or not whole, f"pieces: {sizes[:20]}")


def reading_and_copying_overlap():
    """Files are read while copies are under way, and the other way round: by the trace, whichever of them takes longer."""
    source, trace = checkpoint(8), lib.fresh("trace") / "trace.json"
    for io in ("direct", "buffered"):
        case(f"overlap, {io}")
        one(source, "--io", io, "--staging", "1M", "--trace", trace, "--device", "cuda", "--json", FAKE_CUDA_SLOW="50")
        spans = {"read": [], "copy": []}
        for e in json.loads(lib.read(trace))["traceEvents"]:
            if e["name"] in spans:
                spans[e["name"]].append((e["ts"], e["ts"] + e["dur"]))
        reads, copies = spans["read"], spans["copy"]
        during = sum(any(at < hi and lo < end for lo, hi in copies) for at, end in reads)
        check(len(reads) > 10 and during * 5 > len(reads), f"{during} of {len(reads)} reads were under way with a copy")
        two = sum(sum(lo < at < hi for lo, hi in copies) > 0 for at, _ in copies)
        check(two * 5 > len(copies), f"{two} of {len(copies)} copies began during another")


def staging_keeps_its_limit():
    """Not more than is allowed is used, nor pinned; the rest of it is the device's."""
    source = checkpoint(2)
    for exchange in ("never", "node", "all"):
        for cap in (1, 4):
            case(f"{cap} MiB, {exchange}")
            got = Job(2, source, "--exchange", exchange, "--device", "cuda", "--staging", f"{cap}MiB", "--json", "--dtype",
                      "F16").report()
            check(got and got["staging"] <= cap * MIB, f"staging: {got and got['staging']}")
            check(got and 0 < got["pinned"] <= 2 * cap * MIB and got["device_staging"] <= cap * MIB,
                  f"pinned {got and got['pinned']}, on the device {got and got['device_staging']}")


COMPAT = "cuFile in its compatibility mode, by way of the host: nvidia-fs is not loaded"
HOST = " reads by the host, "


def cufile_gives_the_same():
    """cuFile reads into the device: the same bytes, and what it refuses is read by the host, with the reason."""
    source = checkpoint(2)
    try:
        os.close(os.open(next(source.rglob("*.safetensors")), os.O_RDONLY | os.O_DIRECT))
    except OSError as e:
        print(f"gds left out: O_DIRECT: {e}")
        return
    size = sum(p.stat().st_size for p in source.rglob("*.safetensors"))
    argv = [source, "--io", "gds", "--json", "--check", "--staging", "2M"]
    for extra, env, io, says in (
            ([], {}, "gds", COMPAT),
            (["--dtype", "F16"], {}, "gds", COMPAT),
            ([], {"FAKE_CUFILE_NVFS": "2"}, "gds", "cuFile with nvidia-fs, or in its compatibility mode on a file system that"),
            ([], {"FAKE_CUFILE_NVFS": "3"}, "gds", "cuFile with nvidia-fs"),
            ([], {"FAKE_CUDA_FAIL": "cuFileDriverOpen:1:5001"}, "direct", "not gds: cuFileDriverOpen: error 5001"),
            ([], {"FAKE_CUDA_FAIL": "cuFileBufRegister:1:5008"}, "gds", "; its memory is not registered"),
            ([], {"FAKE_CUDA_FAIL": "cuFileDriverGetProperties:1:5008"}, "gds", COMPAT),
            ([], {"FAKE_CUDA_FAIL": "cuFileHandleRegister:1:5008"}, "gds", HOST + "cuFileHandleRegister: 5008"),
            ([], {"FAKE_CUDA_FAIL": "cuFileRead:2:5"}, "gds", "; 1" + HOST + "cuFileRead: -5"),
            ([], {"FAKE_CUDA_FAIL": "cuFileRead:2:hang"}, "gds", "; 1" + HOST + "cuFileRead: "),
            (["--device", "cuda,managed"], {}, "gds", COMPAT),
            (["--device", "cuda,pinned"], {}, "direct", "not gds: some destinations may be in the host's memory"),
            ([], {"FAKE_CUDA_FAIL": "cuModuleLoadData:1:222"}, "direct", "not gds: the host converts: cuModuleLoadData"),
            (["--exchange", "node"], {}, "direct", "not gds: ranks exchange what they read")):
        case(f"gds {extra} {env}")
        log = lib.fresh("log") / "0"
        got = one(*argv, "--device", "cuda", *extra, **env, FAKE_CUDA_LOG=str(log))
        check(got and (got["io"], says in got["io_why"]) == (io, True), f"{got and (got['io'], got['io_why'])}")
        read = sum(int(w[1]) for w in map(str.split, lib.read(log).decode().splitlines()) if w[0] == "file")
        check(got and (read > 0) == (io == "gds" and "HandleRegister" not in says), f"{read} bytes of {size} by cuFile")
        if io == "gds" and not extra and not env:
            check(size - 4096 < read <= size, f"{read} of {size} bytes by cuFile")
    case("doctor --json, whose standard output is the report alone")
    done = lib.run(lib.PROGRAM, "doctor", "--json", env=lib.environment())
    check("NVIDIA's libraries" in done.stderr and json.loads(done.stdout)["checks"], f"{done.stdout} {done.stderr}")
    check(not os.path.exists("cufile.log"), "a log of cuFile is left in the current directory")
    case("gds where /proc/modules cannot be read, which cuFile would wait for")
    got = one(*argv, "--device", "cuda", DCPFS_TEST_NO_MODULES="1")
    if "libdcpfs-modules" in os.environ.get("LD_PRELOAD", ""):
        equal(got and (got["io"], got["io_why"].split(":")[:2]), ("direct", ["not gds", " cuFile needs /proc/modules, which cannot be read"]), f"{got}")
    case("gds without a device")
    got = one(*argv)
    check(got and (got["io"], got["io_why"].split(";")[0]) == ("direct", "not gds: destinations are in the host's memory"), f"{got}")
    case("gds, many ranks")
    got = Job(3, *argv, "--device", "cuda").report()
    check(got and (got["exchange"], got["io"]) == ("never", "gds"), f"{got}")
    batches(["--io", "gds", "--json", "--check", "--staging", "8M", "--keys", "t*[02468]", "--device", "cuda", apart()])


def batches(argv):
    """Reads far from each other are a batch, as large as cuFile lets it be; what fails of it is read singly."""
    folder = lib.fresh("older")
    for name in ("cuFileBatchIOSubmit", "cuFileDriverGetProperties", "cuFileBufRegister"):
        (folder / name).mkdir()
        own = next(p for d in os.environ["LD_LIBRARY_PATH"].split(":") if (p := pathlib.Path(d) / "libcufile.so.0").exists())
        (folder / name / own.name).write_bytes(own.read_bytes().replace(f"\0{name}\0".encode(), f"\0{name[:-1]}_\0".encode()))
    for fails, says, most in (
            (None, COMPAT, 8),
            ("cuFileBatchIOSetUp:1:5", "; not in batches, cuFileBatchIOSetUp: 5", 0),
            ("cuFileBatchIOSubmit:1:5", "; not in batches, cuFileBatchIOSubmit: 5", 0),
            ("batch:2:5", "; not in batches, a read of a batch: 64", 8),
            ("batched:2:hang", "; not in batches, a read of a batch: 16", 8),
            ("cuFileBatchIOGetStatus:1:5", None, 8), ("batch:2:hang", None, 8),
            ("/cuFileBatchIOSubmit", "; not in batches, libcufile.so.0 has no cuFileBatchIOSubmit", 0),
            ("/cuFileDriverGetProperties", "; not in batches, cuFileBatchIOSetUp: 5008", 0),  # 128 are too many for the fake
            ("/cuFileBufRegister", "not gds: libcufile.so.0 has no cuFileBufRegister", 0)):
        case(f"gds, batches, {fails}")
        log = lib.fresh("log") / "0"
        env = {"FAKE_CUDA_LOG": str(log)}
        if fails and fails[0] == "/":
            env["LD_LIBRARY_PATH"] = f"{folder}{fails}:{os.environ['LD_LIBRARY_PATH']}"
        elif fails:
            env["FAKE_CUDA_FAIL"] = fails
        if says is None:  # which of the memory is still written to is unknown
            said = one(*argv, "--timeout", HANGS, code=1, **env)
            check("cuFileBatchIOGetStatus: error 5" in said or f"a batch of cuFile did not end in {HANGS / 2} s" in said, said)
            continue
        got = one(*argv, **env)
        check(got and says in got["io_why"] and HOST not in got["io_why"], f"{got and got['io_why']}")
        lines = [w.split() for w in lib.read(log).decode().splitlines()]
        sizes = [int(w[1]) for w in lines if w[0] == "batch"]
        equal(max(sizes, default=0), most, "reads of a batch")
        check(bool(got) and sum(w[0] == "file" for w in lines) >= (0 if "not gds" in says else 30), "reads")


def machines_are_described():
    """What a machine has decides what is said of it."""
    source = checkpoint(1)
    for env, device, says in (
            ({"FAKE_CUDA_VERSION": "10020"}, None, "driver is of CUDA 10.2; 11.0 is the oldest"),
            ({"FAKE_CUDA_GPUS": "0"}, None, "no GPU: cuInit: CUDA_ERROR_NO_DEVICE"),
            ({"LD_LIBRARY_PATH": ""}, None, "no GPU: libcuda.so.1: cannot open"),
            ({}, "cuda:0, Fake 0", "there is one")):
        case(f"{env}")
        got = one(source, "--device", "auto", "--json", **env)
        check(got and got["device"] == device and says in got["device_why"], f"{got and got['device_why']}")
        log = lib.fresh("log") / "0"
        page = lib.run(lib.PROGRAM, "doctor", env={**lib.environment(), "FAKE_CUDA_LOG": str(log), **env}).stdout
        check(("Fake 0" if device else says) in " ".join(page.split()), page)
        check(not log.exists(), "to say what there is, a context was made")
    case("no unified addresses")
    got = one(source, "--device", "auto", "--json", FAKE_CUDA_UNIFIED="0")
    check(got and got["device"] is None and "it has no unified addresses" in got["device_why"], f"{got}")


def staging_is_near_the_gpu():
    """Staging is on the node of memory that the GPU's place on the bus names: of each rank what it reads to."""
    source = checkpoint(2)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        pathlib.Path(folder, "numa_node").write_text("0\n")
        env = {"FAKE_CUDA_PCI": "../../../.." + folder}
        if not os.path.exists(f"/sys/bus/pci/devices/{env['FAKE_CUDA_PCI']}/numa_node"):
            print("near memory left out: no PCI bus here")
            return
        page = lib.run(lib.PROGRAM, "doctor", env={**lib.environment(), **env}).stdout
        check("the first: Fake 0, near memory node 0" in " ".join(page.split()), page)
        for exchange, how in (("never", env), ("node", env), ("node", {})):
            case(f"near memory, {exchange}, {how}")
            logs = [lib.fresh("log") / str(r) for r in range(2)]
            got = Job(2, source, "--exchange", exchange, "--io", "direct", "--device", "cuda", "--json",
                      env_of=lambda r: {"FAKE_CUDA_LOG": str(logs[r]), **how}).report()
            if got and "mbind" in got["device_why"]:
                print(f"near memory left out: {got['device_why']}")
                return
            for log in logs if got else ():
                nodes = {w[3] for w in map(str.split, lib.read(log).decode().splitlines()) if w[0] == "pin"}
                equal(nodes, {"0" if how else "-1"}, "nodes of what is pinned")


lib.why_not = lambda: None
jobs.DEVICE = []
lib.main(every_call_may_fail, queued_work_may_fail, hanging_work_keeps_its_memory, copies_keep_their_order,
         gpus_are_read_in_large_pieces, reading_and_copying_overlap, staging_keeps_its_limit, cufile_gives_the_same,
         machines_are_described, staging_is_near_the_gpu)
