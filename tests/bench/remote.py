#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint in a bucket: dcpfs beside boto3, s3torchconnector, runai-model-streamer and obstore, of one server, in
turns. Counts requests and bytes on the wire, and CPU seconds a GB of the client. Prints a table.

tests/bench/remote.py DCPFS [--peers PYTHON] [--gb GB] [--runs N], with dcpload beside DCPFS. PYTHON has torch and the
peers; without it dcpfs is measured alone. The server is tests/origin/server.py, in this process: it costs the client nothing
but time, so time is not measured.
"""
import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "origin"))
import server  # noqa: E402

TENSORS = 16
MAKE = """
import sys
import torch
import torch.distributed.checkpoint as dcp
n = int(sys.argv[2]) // 2048
dcp.save({f"w{i:02}": torch.randn(n, 1024).bfloat16() for i in range(16)}, checkpoint_id=sys.argv[1] + "/run/step_1", no_dist=True)
"""
TORCH = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from s3torchconnector import S3ClientConfig
from s3torchconnector.dcp import S3StorageReader
def reader():
    return S3StorageReader(region="us-east-1", path="s3://bucket/run/step_1", s3client_config=S3ClientConfig(force_path_style=True))
meta = reader().read_metadata().state_dict_metadata
if sys.argv[1] != "index":
    keys = list(meta)[:1] if sys.argv[1] == "one" else list(meta)
    dcp.load({k: torch.empty(meta[k].size, dtype=torch.bfloat16) for k in keys}, storage_reader=reader(), no_dist=True)
"""
BOTO = """
import os
import boto3
from botocore.config import Config
s3 = boto3.client("s3", region_name="us-east-1", config=Config(s3={"addressing_style": "path"}))
with open("/dev/shm/by-boto3", "wb+") as f:
    s3.download_fileobj("bucket", "whole/model.safetensors", f)
os.remove("/dev/shm/by-boto3")
"""
OBSTORE = """
import os
import obstore
from obstore.store import S3Store
store = S3Store("bucket", endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1", client_options={"allow_http": True})
n = obstore.head(store, "whole/model.safetensors")["size"]
at = range(0, n, 8 << 20)
got = obstore.get_ranges(store, "whole/model.safetensors", starts=list(at), ends=[min(a + (8 << 20), n) for a in at])
assert sum(len(g) for g in got) == n
"""
RUNAI = """
from runai_model_streamer import SafetensorsStreamer
with SafetensorsStreamer() as s:
    s.stream_file("s3://bucket/whole/model.safetensors")
    for name, tensor in s.get_tensors():
        pass
"""


def make_safetensors(path, nbytes):
    each = nbytes // TENSORS // 2048 * 2048
    head = json.dumps({f"w{i:02}": {"dtype": "BF16", "shape": [each // 2048, 1024], "data_offsets": [i * each, (i + 1) * each]}
                       for i in range(TENSORS)}).encode()
    head += b" " * (-len(head) % 8)
    path.mkdir(parents=True)
    with open(path / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for i in range(TENSORS):
            f.write(os.urandom(1 << 20) * (each >> 20) + bytes(each & 0xfffff))


def wire_bytes(log, top):
    total = 0
    for method, path, ranged in log:
        name = path.partition("?")[0].removeprefix("/bucket/")
        size = (top / name).stat().st_size if (top / name).is_file() and method == "GET" else 0
        lo, hi = ranged.removeprefix("bytes=").split("-") if ranged and size else (0, size - 1)
        total += min(int(hi or size - 1), size - 1) + 1 - int(lo) if size else 0
    return total


class Bench:
    def __init__(self, args, scratch):
        self.args, self.top = args, scratch / "bucket"
        self.top.mkdir()
        self.server = server.Server(self.top)
        self.cache = scratch / "cache"
        self.env = dict(os.environ, AWS_ENDPOINT_URL=self.server.url, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret",
                        AWS_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true", RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING="0",
                        RUNAI_STREAMER_CONCURRENCY="8", XDG_CACHE_HOME=str(self.cache))

    def measure(self, argv, before=lambda: None):
        """Of the run with the least CPU time: requests, bytes on the wire, CPU seconds of the client and its children."""
        best = None
        for _ in range(self.args.runs):
            before()
            self.server.taken()
            done = subprocess.Popen(argv, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            said = done.stderr.read().decode()
            _, status, used = os.wait4(done.pid, 0)
            if status:
                return None, said.strip().splitlines()[-1:]
            log = self.server.taken()
            got = len(log), wire_bytes(log, self.top), used.ru_utime + used.ru_stime
            best = got if best is None or got[2] < best[2] else best
        return best, []

    def row(self, what, who, argv, nbytes, before=lambda: None):
        got, why = self.measure(argv, before)
        if not got:
            print(f"| {what} | {who} | {' '.join(why)[:90]} | | |", flush=True)
            return
        requests, wire, cpu = got
        ratio = f"{wire / nbytes:.3f}" if nbytes else f"{wire} B"
        print(f"| {what} | {who} | {requests} | {ratio} | {f'{cpu / nbytes * 1e9:.2f}' if nbytes else ''} |", flush=True)

    def forget(self):
        shutil.rmtree(self.cache, ignore_errors=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dcpfs")
    p.add_argument("--peers")
    p.add_argument("--gb", type=float, default=0.5)
    p.add_argument("--runs", type=int, default=3)
    args = p.parse_args()
    nbytes = int(args.gb * 1e9) // TENSORS // 2048 * 2048 * TENSORS
    each = nbytes // TENSORS
    dcpfs, dcpload = args.dcpfs, [args.dcpfs, "load"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as tmp:
        b = Bench(args, pathlib.Path(tmp))
        make_safetensors(b.top / "whole", nbytes)
        run = "s3://bucket/whole"
        print("| what | by | requests | bytes on the wire / asked | CPU s/GB |\n| --- | --- | --- | --- | --- |")
        if args.peers:
            subprocess.run([args.peers, "-c", MAKE, str(b.top), str(each)], check=True)
            run = "s3://bucket/run"
            for what, n in (("index", 0), ("one", each), ("all", nbytes)):
                b.row(f"DCP, {what}", "s3torchconnector", [args.peers, "-c", TORCH, what], n)
        b.row("DCP, index", "dcpfs, of the run", [dcpfs, "ls", run], 0, b.forget)
        b.row("DCP, index", "dcpfs, of the version", [dcpfs, "ls", *([f"{run}/step_1"] if args.peers else [run, "latest"])], 0, b.forget)
        b.row("DCP, one", "dcpfs cat", [dcpfs, "cat", run, "latest", "w00"], each, b.forget)
        b.row("DCP, one, again", "dcpfs cat", [dcpfs, "cat", run, "latest", "w00"], each)
        b.row("DCP, all", "dcpfs load, no cache", [*dcpload, run, "--no-cache"], nbytes, b.forget)
        b.row("DCP, all", "dcpfs warm, into the cache", [dcpfs, "warm", run], nbytes, b.forget)
        b.row("DCP, all, again", "dcpfs load, from the cache", [*dcpload, run], nbytes)
        for layout in ("fsdp4", "dim1x4"):
            b.row(f"DCP, 4 ranks, {layout}", "dcpfs load", ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "4", *dcpload, run,
                                                        "--layout", layout, "--no-cache"], nbytes, b.forget)
        whole = "s3://bucket/whole"
        if args.peers:
            for who, script in (("boto3, a file", BOTO), ("obstore, memory", OBSTORE), ("runai, tensors", RUNAI)):
                b.row("safetensors, all", who, [args.peers, "-c", script], nbytes)
        b.row("safetensors, all", "dcpfs load, no cache", [*dcpload, whole, "--no-cache"], nbytes, b.forget)
        b.row("safetensors, all", "dcpfs warm, into the cache", [dcpfs, "warm", whole], nbytes, b.forget)
        b.server.close()


if __name__ == "__main__":
    main()
