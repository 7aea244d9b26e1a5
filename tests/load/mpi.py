#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that mpirun starts: with the loader's MPI module, and without it.

usage: mpi.py RANKS FROM_MPI MODULE DCPFS     the programs of ranks.c and from_mpi.c; libdcpload-mpi.so; dcpfs
"""
import concurrent.futures
import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import dcp

RANKS, FROM_MPI, MODULE, PROGRAM = map(os.path.abspath, sys.argv[1:5])
# Nor is the module to be found by what meson sets.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "SLURM", "OMPI", "PMI", "DCPLOAD", "LD_LIB")
SESSIONS = tempfile.TemporaryDirectory(prefix="ompi-")  # not the folder that other runs of mpirun make and remove
BASE = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)} | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_orte_tmpdir_base": SESSIONS.name,
    "OMPI_MCA_plm_rsh_agent": "sh",  # there may be no ssh
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # containers forbid it, and are told so at length
    # What Open MPI leaves behind is not ours.
    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
WITH = dict(BASE, LD_LIBRARY_PATH=os.path.dirname(MODULE))
ALL = ["nodes", "agree", "gather=0", "gather=100000", "bulk=0", "bulk=3000000", "split=2", "gather=3", "bulk=5", "agree",
       "back", "agree"]
PATIENCE = 240  # seconds for what should take one
wrong = []


def check(good, what):
    if not good:
        wrong.append(what)
        print(what, flush=True)
    return good


def mpirun(n, env, *command, limit=PATIENCE):
    """Exit code, answers, seconds, and all that was said."""
    began = time.monotonic()
    env = env | {"OMPI_MCA_orte_tmpdir_base": tempfile.mkdtemp(dir=SESSIONS.name)}  # the last run may still be removing its own
    p = subprocess.Popen(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(n), *command], env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        p.terminate()  # and mpirun its ranks
        out, err = p.communicate()
        check(False, f"{command} hangs")
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return p.returncode, answers, time.monotonic() - began, out + err


def good(n, env, comm, *steps):
    rc, answers, _, said = mpirun(n, env, RANKS, *steps)
    check(rc == 0 and sorted(a["rank"] for a in answers) == list(range(n)), f"{n} ranks, {steps}: exit {rc}: {said}")
    for a in answers:
        check(a["code"] == 0 and a["ranks"] == n and a["comm"] == comm, f"{n} ranks, {steps}: {a}")


def ranks_talk():
    for n in (1, 4):
        good(n, WITH, "mpi", "auto", *ALL)


def groups_load():
    good(4, WITH | {"LOAD_SOURCE": "tests/golden/dcp-fsdp2/ckpt"}, "mpi", "mpi", "split=2", "load", "back", "load")


def objects_reach_every_rank():
    source = "tests/golden/dcp-fsdp2/ckpt"
    with tempfile.TemporaryDirectory() as folder:
        good(2, WITH | {"LOAD_SOURCE": source, "LOAD_OBJECTS": folder}, "mpi", "mpi", "objects")
        for what in dcp.differ(f"{source}/step-20", folder, 2):
            check(False, what)


def the_coordinator_decides():
    env = WITH | {"LOAD_SOURCE": "tests/golden/dcp-fsdp2/ckpt"}
    good(3, env, "mpi", "mpi", "coordinator=2", "load", "coordinator=1", "load")
    _, answers, _, said = mpirun(2, env, RANKS, "mpi", "coordinator=2", "load")
    check(answers, f"no such coordinator: {said}")
    for a in answers:
        check(a["code"] == -errno.EINVAL and "no rank 2 to be the coordinator" in a["text"], f"no such coordinator: {a}")


def ranks_talk_without_mpi():
    good(3, BASE, "tcp", "auto", "nodes", "agree", "gather=1000")


def own_communicators_work():
    rc, _, _, said = mpirun(4, WITH, FROM_MPI)
    check(rc == 0, f"a communicator of the program's own: exit {rc}: {said}")


def failures_name_the_rank():
    _, answers, _, said = mpirun(4, WITH, RANKS, "mpi", "agree=2")
    check(answers, f"a failure: {said}")
    for a in answers:
        check(a["code"] == -errno.EIO and a["error_rank"] == 2, f"a failure: {a}")


def hanging_ranks_end_the_job():
    # mpirun ends the rest when the first rank has given up.
    rc, answers, took, said = mpirun(4, WITH, RANKS, "mpi", "agree", "timeout=4000", "hang=2", "agree")
    check(rc != 0 and took < 100, f"a rank hangs: exit {rc} after {took:.1f} s: {said}")
    check(answers, f"a rank hangs: {said}")
    for a in answers:
        check(a["code"] == -errno.ETIMEDOUT and "did not answer within 4.0 s" in a["text"], f"a rank hangs: {a}")


def killed_ranks_end_the_job():
    rc, _, took, said = mpirun(4, WITH, RANKS, "mpi", "agree", "die=1", "agree")
    check(rc != 0 and took < 100, f"a rank dies: exit {rc} after {took:.1f} s: {said}")


def make_source(path, body):
    header = json.dumps({"a": {"dtype": "U8", "shape": [len(body) >> 10, 1024], "data_offsets": [0, len(body)]}}).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + body)


def ranks_export_together():
    """Three that mpirun starts write together what one writes, by MPI and without it."""
    with tempfile.TemporaryDirectory() as top:
        source, files = os.path.join(top, "source"), {}
        os.mkdir(source)
        make_source(source, os.urandom(9 << 20))
        for how, n, env in ("alone", 1, WITH), ("mpi", 3, WITH), ("env", 3, BASE):
            out = os.path.join(top, how)
            rc, _, _, said = mpirun(n, dict(env, DCPFS_CACHE=""), PROGRAM, "export", "--as", "torch-dcp", "--comm", how, source, out)
            if check(rc == 0, f"export by {how}: exit {rc}: {said}"):
                files[how] = {name: open(os.path.join(out, name), "rb").read() for name in sorted(os.listdir(out)) if name != ".dcpfs-written"}
        check(files.get("alone") and all(f == files["alone"] for f in files.values()), "exported by MPI, or without it: other bytes")


def killed_loads_end():
    """Of ranks that load and send each other what they read, one is killed: mpirun ends the others; where it lets them go on,
    they give up at the timeout."""
    with tempfile.TemporaryDirectory() as source:
        make_source(source, bytes(4 << 20))
        for options in ([], ["--enable-recovery"]):
            p = subprocess.Popen(["mpirun", *options, "--oversubscribe", "--bind-to", "none", "-np", "3", PROGRAM, "load", source, "--comm",
                                  "mpi", "--exchange", "all", "--staging", "1M", "--timeout", "10", "--repeat", "1000000"],
                                 env=dict(WITH, DCPFS_CACHE=source), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            deadline, ranks = time.monotonic() + PATIENCE, []
            while time.monotonic() < deadline and not (len(ranks) == 3 and all(busy(r) for r in ranks)):
                time.sleep(0.02)
                ranks = children(p.pid)
            began = time.monotonic()
            if check(len(ranks) == 3, f"a loading rank is killed: {len(ranks)} ranks of 3 have begun"):
                os.kill(ranks[1], signal.SIGKILL)
            try:
                said = p.communicate(timeout=PATIENCE)[1]
            except subprocess.TimeoutExpired:
                p.terminate()
                said = p.communicate()[1]
                check(False, "a loading rank is killed: the others hang")
            took = time.monotonic() - began
            check(p.returncode != 0 or options, f"a loading rank is killed: {said}")  # the code of jobs that recover is 0
            check(not options or (took > 5 and "did not answer within 10.0 s" in said), f"a loading rank is killed, after {took} s: {said}")


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(c) for c in f.read().split()]
    except OSError:
        return []


def busy(pid):
    """Has it loaded for a while?"""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]) > 20  # clock ticks
    except OSError:
        return True


def a_missing_module_is_named():
    p = subprocess.run([RANKS, "mpi"], env=BASE, capture_output=True, text=True, timeout=PATIENCE)
    a = json.loads(p.stdout)
    check(a["code"] == -errno.ELIBACC and "libdcpload-mpi.so" in a["text"] and "torchrun" in a["text"], str(a))
    # A launcher of another MPI, as Open MPI sees it: each process is alone.
    p = subprocess.run([RANKS, "auto"], env=dict(WITH, PMI_RANK="1", PMI_SIZE="3"), capture_output=True, text=True,
                       timeout=PATIENCE)
    a = json.loads(p.stdout)
    check(a["code"] == -errno.EPROTO and "sees 1 ranks, the launcher started 3" in a["text"], str(a))


def the_module_is_found_beside():
    for folder in ("", "load"):  # as it is installed, as it is built
        with tempfile.TemporaryDirectory() as where:
            program = shutil.copy(RANKS, where)
            os.makedirs(os.path.join(where, folder), exist_ok=True)
            shutil.copy(MODULE, os.path.join(where, folder))
            p = subprocess.run([program, "mpi", *ALL[:3]], env=BASE, capture_output=True, text=True, timeout=PATIENCE)
            a = json.loads(p.stdout)
            check(a["code"] == 0 and a["comm"] == "mpi", f"the module beside the program, {folder}: {a}")


if not shutil.which("mpirun"):
    print("mpi: no mpirun (Debian: openmpi-bin)", file=sys.stderr)
    sys.exit(77)
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in [pool.submit(test) for test in (ranks_talk, groups_load, objects_reach_every_rank, the_coordinator_decides,
            ranks_talk_without_mpi, own_communicators_work, failures_name_the_rank, hanging_ranks_end_the_job,
            killed_ranks_end_the_job, ranks_export_together, killed_loads_end, a_missing_module_is_named,
            the_module_is_found_beside)]:
        result.result()
print(f"{len(wrong)} wrong")
sys.exit(1 if wrong else 0)
