#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure dcpfs against its peers and against what FUSE can do, on this machine, in one run.

usage: run.py --python PYTHON [--deepspeed PYTHON] [--paddle PYTHON] [--quick] [--rows 5,6,8] [--data DIR]
              [--build DIR] [--json FILE]

Builds dcpfs and the programs here (unless --build names a build that has -Dbench=true), makes its data once
in --data, measures, prints a table. Every sample is a JSON line in --json. Needs /dev/fuse; root for the
read-ahead of the other server. README.md beside this file says what the rows are.
"""
import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import meter
import report
import rows

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", required=True, help="a python that has torch, safetensors, numpy")
    p.add_argument("--deepspeed", help="a python that has deepspeed and huggingface_hub as well: row 20")
    p.add_argument("--paddle", help="a python that has paddle, safetensors, numpy: row 21")
    p.add_argument("--quick", action="store_true", help="about two minutes instead of ten: fewer repetitions")
    p.add_argument("--rows", default=",".join(rows.ROWS), help="which rows, by number")
    p.add_argument("--data", default=ROOT + "/build/bench-data", help="10 GiB; made when missing")
    p.add_argument("--build", help="build directory to measure")
    p.add_argument("--json", help="where samples go (DATA/last.jsonl)")
    a = p.parse_args()
    a.rows = a.rows.split(",")
    for name in a.rows:
        if name not in rows.ROWS:
            p.error(f"no row {name}; there are {', '.join(rows.ROWS)}")
    a.data = os.path.abspath(a.data)
    a.json = a.json or a.data + "/last.jsonl"
    return a


def build(where):
    """Paths of the programs; the build is made when none was named."""
    if not where:
        where = ROOT + "/build/bench"
        if not os.path.exists(where + "/build.ninja"):
            subprocess.run(["meson", "setup", where, ROOT, "-Dbench=true"], check=True, stdout=sys.stderr)
        listed = subprocess.run(["meson", "introspect", where, "--targets"], check=True, stdout=subprocess.PIPE)
        wanted = [os.path.relpath(f, where) for t in json.loads(listed.stdout) if t["build_by_default"]
                  for f in t["filename"] if "/tests/" not in f or "/tests/bench/" in f]
        subprocess.run(["ninja", "-C", where, *wanted], check=True, stdout=sys.stderr)
    found = {}
    for name, path in (("dcpfs", "tools/dcpfs"), ("client", "tests/bench/client"),
                       ("null_fuse", "tests/bench/null_fuse"), ("plan", "tests/bench/plan"),
                       ("job", "tests/bench/job")):
        found[name] = os.path.join(os.path.abspath(where), path)
        if not os.access(found[name], os.X_OK):
            raise SystemExit(f"{found[name]}: not there; was it built with -Dbench=true?")
    return found


def cpu_name():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "?")


def file_system(where):
    """Type of the file system that holds the data."""
    got = subprocess.run(["stat", "-f", "-c", "%T", where], capture_output=True, text=True, check=False)
    return got.stdout.strip()


def facts(a):
    versions = subprocess.run([a.python, "-c", "import torch, safetensors, numpy; print('torch', "
                               "torch.__version__, 'safetensors', safetensors.__version__, 'numpy', "
                               "numpy.__version__)"], capture_output=True, text=True, check=True).stdout.strip()
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True,
                            text=True, check=False).stdout.strip()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {"dcpfs": commit, "machine": f"{len(meter.EVERYWHERE)} CPUs of {cpu_name()}, {memory:.0f} GiB",
            "system": f"Linux {platform.release()}, data on {file_system(a.data)}", "python": versions,
            "load": report.load(), "date": time.strftime("%Y-%m-%d"), "mode": "quick" if a.quick else "full"}


def main():
    a = arguments()
    a.programs = build(a.build)
    os.makedirs(a.data, exist_ok=True)
    sets = dict.fromkeys(s for row in a.rows for s in rows.NEEDS.get(row, ["model"]))
    if sets:
        subprocess.run([a.python, "-B", rows.HERE + "/gen.py", a.data, *sets], check=True, stdout=sys.stderr)
    out = report.Report(a.json)
    about = facts(a)
    out.write(**about)
    began = time.time()
    tmp = tempfile.mkdtemp(prefix="run-", dir=a.data)
    try:
        rows.measure(rows.Bench(a, out, tmp), a.rows)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    for name, value in about.items():
        print(f"{name:8} {value}")
    print(f"{'took':8} {time.time() - began:.0f} s; load at the end {report.load()}\n")
    print(out.text())
    print(f"\nsamples: {a.json}")


if __name__ == "__main__":
    main()
