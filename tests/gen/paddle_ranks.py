# SPDX-License-Identifier: Apache-2.0
"""Run this interpreter N times as Paddle ranks on the CPU with gloo (what paddle.distributed.launch would set up)."""
import os
import socket
import subprocess
import sys


def free_ports(n):
    ss = [socket.socket() for _ in range(n)]
    for s in ss:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in ss]
    for s in ss:
        s.close()
    return ports


def run(n, argv, log):
    ports = free_ports(n + 1)
    eps = ",".join(f"127.0.0.1:{p}" for p in ports[1:])
    procs = []
    for i in range(n):
        env = dict(os.environ, PADDLE_TRAINER_ID=str(i), PADDLE_TRAINERS_NUM=str(n), PADDLE_TRAINER_ENDPOINTS=eps,
                   PADDLE_CURRENT_ENDPOINT=eps.split(",")[i], PADDLE_MASTER=f"127.0.0.1:{ports[0]}", PADDLE_DISTRI_BACKEND="gloo",
                   PADDLE_LOCAL_RANK=str(i), PADDLE_GLOBAL_SIZE=str(n), PADDLE_LOCAL_SIZE=str(n), PADDLE_GLOBAL_RANK=str(i),
                   GLOG_minloglevel="2", PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1")
        procs.append(subprocess.Popen([sys.executable] + argv, env=env, stdout=open(f"{log}.{i}", "w"), stderr=subprocess.STDOUT))
    bad = False
    for i, p in enumerate(procs):
        try:
            rc = p.wait(240)
        except subprocess.TimeoutExpired:
            p.kill()
            rc = -1
        if rc:
            bad = True
            print(f"rank {i} exit {rc}:\n" + "".join(open(f"{log}.{i}", errors="replace").readlines()[-12:]))
    if bad:
        raise SystemExit(f"ranks of {argv[1:]} failed")
