# SPDX-License-Identifier: Apache-2.0
"""What the tests of servers share: the golden checkpoints behind a server of the tests' own (tests/origin/server.py)."""
import os
import pathlib
import shutil
import subprocess
import sys
import time

sys.path.insert(0, "tests/origin")
from cli import DCPFS, GOLDEN, SCRATCH, check, run  # noqa: E402
from server import Server  # noqa: E402

KEYS = ("AKIDEXAMPLE", "wJalr/XUtnFEMI+K7MDENG")
TOP = SCRATCH / "top"
shutil.copytree(GOLDEN, TOP, symlinks=False, ignore_dangling_symlinks=True)
for path in TOP.rglob("*"):  # servers have whole seconds
    os.utime(path, (int(path.stat().st_mtime),) * 2)
SERVER = Server(TOP)
SERVER.keys = KEYS
os.environ.update(AWS_ENDPOINT_URL=SERVER.url, GS_ENDPOINT_URL=SERVER.url, HF_ENDPOINT=SERVER.url, AWS_ACCESS_KEY_ID=KEYS[0],
                  AWS_SECRET_ACCESS_KEY=KEYS[1], GS_ACCESS_KEY_ID=KEYS[0], GS_SECRET_ACCESS_KEY=KEYS[1],
                  DCPFS_TIMEOUT="20", DCPFS_STALL="2", HF_TOKEN="hf_secret", HOME=str(SCRATCH))
for name in [n for n in os.environ if n.lower() == "http_proxy" or (n.startswith("AWS_") and n not in (
        "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))]:
    os.environ.pop(name)


def s3(path):
    return f"s3://bucket/{path}"


def gs(path):
    return f"gs://bucket/{path}"


def web(path):
    return f"{SERVER.url}/web/{path}/"


def hf(path):
    model, _, inside = str(path).partition("/")
    return f"hf://org/{model}/{inside}"


def files_of(top):
    return {p.relative_to(top): p.read_bytes() for p in sorted(pathlib.Path(top).rglob("*")) if p.is_file() and p.name != ".dcpfs-written"}


def load(place, ranks, *words):
    """A load by so many processes: their exit codes, and what each said."""
    env = dict(os.environ, LC_ALL="C.UTF-8", DCPFS_CACHE=str(SCRATCH / "cache"), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", DCPLOAD_TIMEOUT="120",
               MASTER_PORT=str(10000 + int.from_bytes(os.urandom(2), "little") % 20000), TORCHELASTIC_RESTART_COUNT=os.urandom(8).hex())
    jobs = [subprocess.Popen([DCPFS, "load", str(place), "--comm", "env", *map(str, words)], env=env | {"RANK": str(r), "LOCAL_RANK": str(r)},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for r in range(ranks)]
    said = [j.communicate(timeout=240) for j in jobs]
    return [j.returncode for j in jobs], said


def wait(ready):
    end = time.monotonic() + 60
    while not ready() and time.monotonic() < end:
        time.sleep(0.02)
    check(ready(), "what was waited for")


def skip_without_libcurl():
    if b"no libcurl" in run("ls", s3("x/y")).stderr:
        print("built without libcurl")
        sys.exit(77)
