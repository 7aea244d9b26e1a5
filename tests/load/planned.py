#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dcpfs plan says that each rank of a job reads, sends and receives, and what the job then reports: equal numbers.

usage: planned.py MODULE DCPFS [FAKE]     libdcpload-mpi.so; dcpfs; the directory of libcuda.so.1 (tests/load/fake)
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MODULE, PROGRAM, *FAKE = map(os.path.abspath, sys.argv[1:4])
GOLDEN = pathlib.Path("tests/golden").absolute()
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="dcpfs-planned-"))
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "SLURM", "OMPI", "PMI", "DCPLOAD", "LD_LIB")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)} | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm_rsh_agent": "sh",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "LD_LIBRARY_PATH": ":".join([os.path.dirname(MODULE), *FAKE]),
    "DCPFS_CACHE": str(SCRATCH / "cache"), "LC_ALL": "C.UTF-8", "DCPLOAD_TIMEOUT": "120",
    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}  # what Open MPI leaves behind is not ours
# How the job is started, and what is planned for so many ranks of one node.
WAYS = {"never": (["--io", "buffered"], []), "never, direct": (["--io", "direct"], ["--io", "direct"]), "node": ([], ["--node", "{n}"]),
        "all": ([], []), "all, little memory": (["--staging", "1MiB"], ["--staging", "1MiB"]),
        "all, BF16": ([CAST := "--dtype=BF16"], [CAST]), "node, BF16": ([CAST, "--weights-only"], ["--node", "{n}", CAST, "--weights-only"]),
        "node, device": (GPU := ["--device", "cuda"], ["--node", "{n}", *GPU]), "never, device": (GPU, GPU)}
LAYOUTS = ("mesh dp={n}\n* shard(0, optional)\n", "mesh tp={n}\n* shard(1, optional)\n", "mesh dp={n}\n* replicate\n",
           "mesh dp={n}\n* flat@dp\n", "mesh dp={n}\n*.bias only(dp=0) replicate\n*.weight shard(1, optional)\n* shard(0, optional)\n")
wrong = []


def check(good, what):
    if not good:
        wrong.append(what)
        print(what, flush=True)
    return good


def big():
    """Safetensors of some megabytes: messages that do not fit little memory, tensors over several stripes."""
    names, data = {}, 0
    for i, (rows, cols) in enumerate([(700, 301), (33, 2000), (1, 1), (4096, 96), (513, 511)] * 2):
        names[f"layers.{i}.{'bias' if rows == 33 else 'weight'}"] = {"dtype": "F32", "shape": [rows, cols],
                                                                    "data_offsets": [data, data + rows * cols * 4]}
        data += rows * cols * 4
    header = json.dumps(names).encode()
    path = SCRATCH / "big.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + os.urandom(data))
    return path


def by_mpirun(ranks, command):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as own:
        return subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command], capture_output=True,
                              text=True, timeout=240, env=ENV | {"OMPI_MCA_orte_tmpdir_base": own})


def by_environment(ranks, command):
    """As torchrun starts them; returns rank 0, or the one that failed."""
    env = ENV | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": os.urandom(8).hex(),
                 "MASTER_PORT": str(10000 + int.from_bytes(os.urandom(2), "little") % 20000)}
    started = [subprocess.Popen(command, env=env | {"RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for r in range(ranks)]
    try:
        said = [p.communicate(timeout=240) for p in started]
    finally:
        for p in started:  # those that wait for a rank that hangs
            p.kill()
    ended = [subprocess.CompletedProcess(p.args, p.returncode, *text) for p, text in zip(started, said)]
    return next((p for p in ended if p.returncode), ended[0])


def data(*words, ranks=0):
    command = [PROGRAM, *map(str, words), "--json"]
    # Only MPI carries what the exchange of all needs. Its start, and ranks that are busy while they wait, cost most of a job.
    got = (subprocess.run(command, capture_output=True, text=True, timeout=240, env=ENV) if not ranks
           else by_mpirun(ranks, command) if "all" in words else by_environment(ranks, command))
    if not check(got.returncode == 0, f"{ranks or 'no'} ranks: {words}: {got.returncode}: {got.stderr[-600:]}"):
        return None
    return json.loads(got.stdout[got.stdout.index("{"):])


def plans_agree_with_loads(source, version, n, number, way):
    layout = SCRATCH / f"{number}-{n}.dcpl"
    exchange = ["--exchange", way.split(",")[0]]
    args = [source, *version, "--layout", layout, *exchange]
    what = f"{source} {version}, {LAYOUTS[number]!r} of {n} ranks, {way}"
    job = data("load", *args, *WAYS[way][0], "--partial", ranks=n)
    plan = data("plan", *args, *[w.format(n=n) for w in WAYS[way][1]])
    if not job or not plan:
        return
    check(job["exchange"] == exchange[1], f"{what}: {job['exchange']}: {job['exchange_why']}")
    for theirs, ours in (("needed", "needs"), ("read", "reads"), ("sent", "sends"), ("received", "receives")):
        told, done = [r[ours] for r in plan["ranks"]], [r[theirs] for r in job["per_rank"]]
        check(told == done, f"{what}: {ours}: planned {told}, {theirs} {done}")


SOURCES = [(GOLDEN / "dcp-tp-fsdp" / "ckpt", ["tp"]), (GOLDEN / "hf-llama" / "ckpt" / "dtypes", []), (big(), []),
           (GOLDEN / "dcp-fsdp2" / "ckpt", []), (GOLDEN / "megatron-dist" / "ckpt", []), (GOLDEN / "torch-save" / "ckpt", []),
           (GOLDEN / "deepspeed-z3" / "ckpt", [])]
if not shutil.which("mpirun"):
    print("skipped: there is no mpirun")
    sys.exit(77)
# Of n, layout, way and source each two meet, but ways that only a third of n have do not meet all sources.
jobs, every = [], os.environ.get("DCPFS_TEST_EVERY")  # all with all
for n in range(1, 9):
    for number, text in enumerate(LAYOUTS):
        (SCRATCH / f"{number}-{n}.dcpl").write_text(text.format(n=n))
        for k, way in enumerate(w for w in WAYS if not ("BF16" in w or "device" in w) or n % 3 == 2 and (FAKE or "BF16" in w)):
            jobs += [(s, v, n, number, way) for i, (s, v) in enumerate(SOURCES)
                     if every or (n // 3 + number + k) % 3 == 0 and i == (n + number + 2 * k + 3 * (n // 3)) % len(SOURCES)]
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for done in [pool.submit(plans_agree_with_loads, *job) for job in jobs]:
        done.result()
print(f"{len(jobs)} jobs, {len(wrong)} wrong")
subprocess.run(["rm", "-rf", SCRATCH], check=False)
sys.exit(bool(wrong))
