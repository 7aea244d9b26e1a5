#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpload started by torchrun and by srun themselves, of a cluster of one node that is started for it.

Needs torch (DCPFS_TEST_TORCH names a python that has it); slurm-wlm and munge of Debian. What is not there is left out.
"""
import getpass
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "mount"))
import lib  # noqa: E402
from lib import case, check, equal  # noqa: E402

LOAD = os.path.join(os.path.dirname(lib.PROGRAM), "dcpload")
SOURCE = str(lib.GOLDEN / "dcp-fsdp2/ckpt")
LIMIT = 240


def ports(n):
    """So many that follow each other, free just now, below those that systems give out."""
    while True:
        first, taken = 10000 + int.from_bytes(os.urandom(2), "little") % 20000, []
        try:
            for port in range(first, first + n):
                taken.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            pass
        finally:
            for s in taken:
                s.close()


def loaded(p, ranks, comm="tcp", **expect):
    """The report of what @p started."""
    out, err = p.communicate(timeout=LIMIT)
    if check(p.returncode == 0, f"exit code {p.returncode}: {err}"):
        got = json.loads(out[out.index("{"):])
        want = {"ranks": ranks, "comm": comm, "checked": True, "layout": f"fsdp{ranks}"} | expect
        equal({k: got[k] for k in want}, want, "the report")


# ---- torchrun ----

def torchrun_starts_ranks():
    program = pathlib.Path(os.environ.get("DCPFS_TEST_TORCH") or sys.executable).with_name("torchrun")
    if not program.exists():
        print(f"torchrun left out: no {program}; DCPFS_TEST_TORCH may name a python that has torch")
        return

    def start(*words):
        return subprocess.Popen([program, "--no-python", *map(str, words)], env=lib.environment(), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    case("a node by itself")
    loaded(start("--standalone", "--nproc-per-node", 4, LOAD, SOURCE, "--check", "--json"), 4)
    case("the rendezvous at a port, two agents, cold files")
    at = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", ports(18), "--node-rank"]
    both = [start(*at, n, LOAD, SOURCE, "--exchange", "node", "--check", "--json") for n in range(2)]
    loaded(both[0], 4, exchange="node")
    both[1].communicate(timeout=LIMIT)
    equal(both[1].returncode, 0, "the other agent")
    case("ranks that fail")
    p = start("--standalone", "--nproc-per-node", 3, LOAD, SOURCE, "--layout", "fsdp2")
    said = "".join(p.communicate(timeout=LIMIT))
    check(p.returncode != 0 and "fsdp2 has 2 ranks, 3 are running: start 2" in said, f"exit code {p.returncode}: {said}")
    case("a rank that is killed")
    p = start("--standalone", "--nproc-per-node", 3, "sh", "-c",  # it makes one dollar of two
              'test "$RANK" != 1 || kill -9 $$$$; exec "$@"', "sh", LOAD, SOURCE)
    said = "".join(p.communicate(timeout=LIMIT))
    check(p.returncode != 0 and "SIGKILL" in said, f"exit code {p.returncode}: {said}")


# ---- srun ----

CONF = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={other}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={at}/munge.sock
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=100 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP OverSubscribe=FORCE:8
"""


class Cluster:
    """munged, slurmctld and slurmd, in a directory of their own, for as long as this lives."""

    def __init__(self):
        self.at, self.daemons = lib.fresh("slurm"), []
        for name in ("state", "spool"):
            (self.at / name).mkdir()
        (self.at / "key").write_bytes(os.urandom(1024))
        os.chmod(self.at / "key", 0o400)
        port = ports(2)
        (self.at / "slurm.conf").write_text(CONF.format(host=socket.gethostname().split(".")[0], at=self.at, user=getpass.getuser(), port=port,
                                                        other=port + 1, cores=len(os.sched_getaffinity(0))))
        self.env = lib.environment() | {"SLURM_CONF": str(self.at / "slurm.conf")}

    def __enter__(self):
        for words in (["munged", "--force", "-F", *(f"--{name}={self.at}/{file}" for name, file in
                       (("key-file", "key"), ("socket", "munge.sock"), ("pid-file", "munge.pid"), ("log-file", "munge.log"),
                        ("seed-file", "munge.seed")))], ["slurmctld", "-D"], ["slurmd", "-D"]):
            with open(self.at / f"{words[0]}.out", "wb") as out:
                self.daemons.append(subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
            if words[0] == "munged":
                lib.wait((self.at / "munge.sock").exists, "munged listens")
        return self

    def why_not(self):
        """None once its node takes jobs."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            p = subprocess.run(["sinfo", "-h", "-o", "%T"], env=self.env, capture_output=True, text=True, check=False)
            if p.stdout.strip() == "idle":
                return None
            time.sleep(0.1)
        return f"{p.stdout}{p.stderr}{lib.read(self.at / 'slurmd.log').decode()[-500:]}"

    def __exit__(self, *what):
        for p in reversed(self.daemons):
            p.terminate()
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def start(self, *words, **env):
        return subprocess.Popen([str(w) for w in words], cwd=self.at, env=self.env | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def srun(self, ranks, *words, **env):
        return self.start("srun", "--overcommit", "-n", ranks, *words, **env)


def srun_starts_ranks():
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun", "sinfo") if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
    if missing:
        print(f"srun left out: no {', '.join(missing)}; Debian: slurm-wlm, munge")
        return
    os.environ["PATH"] += ":/usr/sbin"
    with Cluster() as cluster:
        why = cluster.why_not()
        if why:
            print(f"srun left out: no cluster of one node can be started: {why}")
            return
        words = [LOAD, SOURCE, "--check", "--json"]
        for way in ("none", "pmi2"):  # Open MPI as Debian has it cannot be started by the second
            case(f"srun --mpi={way}")
            loaded(cluster.srun(4, f"--mpi={way}", *words, "--exchange", "node"), 4, exchange="node")
        case("srun --mpi=pmix")
        types = cluster.start("srun", "--mpi=list").communicate(timeout=LIMIT)
        if "pmix" not in "".join(types):
            print("PMIx left out: srun has no plugin for it")
        else:
            loaded(cluster.srun(3, "--mpi=pmix", *words, "--comm", "env"), 3)
        case("two steps of a job at once")
        (cluster.at / "steps").write_text(
            f"#!/bin/sh\nsrun -n 2 --overcommit --overlap {LOAD} {SOURCE} --check --json >one &\n"
            f"srun -n 3 --overcommit --overlap {LOAD} {SOURCE} --check --json >two &\nwait\n")
        p = cluster.start("sbatch", "-W", "-n", 2, "--overcommit", "-o", "said", "steps")
        p.communicate(timeout=LIMIT)
        said = (cluster.at / "said").read_text()
        check(p.returncode == 0 and not said, f"sbatch: {p.returncode}: {said}")
        equal([json.loads((cluster.at / name).read_text())["ranks"] for name in ("one", "two")], [2, 3], "their ranks")
        case("without srun a batch script is one rank")
        p = cluster.start("sbatch", "-W", "-n", 4, "--overcommit", "-o", "alone", "--wrap", f"{LOAD} {SOURCE} --check --json")
        p.communicate(timeout=LIMIT)
        said = (cluster.at / "alone").read_text()
        check(p.returncode == 0 and json.loads(said)["comm"] == "alone", f"sbatch: {p.returncode}: {said}")
        case("a rank that is killed")
        p = cluster.srun(3, "sh", "-c", 'test "$SLURM_PROCID" != 1 || kill -9 $$; exec "$@"', "sh", LOAD, SOURCE, DCPLOAD_TIMEOUT="5")
        said = "".join(p.communicate(timeout=LIMIT))
        check(p.returncode != 0 and "rank 1 of 3 did not connect to rank 0" in said, f"exit code {p.returncode}: {said}")


lib.why_not = lambda: None  # it mounts nothing
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # daemons end with it
    lib.main(torchrun_starts_ranks, srun_starts_ranks)
