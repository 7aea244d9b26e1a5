# SPDX-License-Identifier: Apache-2.0
"""Start a command N times with the environment torchrun would set."""
import os, socket, subprocess, sys


def run(n, argv, log, extra=None):
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    procs = []
    for i in range(n):
        env = dict(os.environ, RANK=str(i), LOCAL_RANK=str(i), NODE_RANK="0", WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n), LOCAL_SIZE=str(n),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", HF_HUB_OFFLINE="1", **(extra or {}))
        procs.append(subprocess.Popen([sys.executable] + argv, env=env, stdout=open(f"{log}.{i}", "w"), stderr=subprocess.STDOUT))
    bad = False
    for i, p in enumerate(procs):
        try:
            rc = p.wait(300)
        except subprocess.TimeoutExpired:
            p.kill()
            rc = -1
        if rc:
            bad = True
            print(f"rank {i} exit {rc}:\n" + "".join(open(f"{log}.{i}", errors="replace").readlines()[-40:]))
    if bad:
        raise SystemExit(f"ranks of {argv[1:]} failed")
