# SPDX-License-Identifier: Apache-2.0
"""The rows of conversions: files copied out of a mount, against the tools that write such files today.

A mount begins here without an index: what it takes is counted from its start to the first 4 KiB and to
the end of cp, daemon and cp together.
"""
import contextlib
import functools
import glob
import json
import os
import shutil
import subprocess
import time

import families
import meter

HERE = os.path.dirname(os.path.abspath(__file__))
FIRST, ALL = (20, 100), (2, 3)          # floor and goal: times less than the tool takes
AS_RUN = ", as run"


@contextlib.contextmanager
def fresh(b, name, path):
    """A mount that had no index, after the first 4 KiB of a file of its version were read."""
    cache = os.path.join(b.tmp, "fresh")
    shutil.rmtree(cache, ignore_errors=True)
    began = time.perf_counter()
    with b.mount(name, threads=2, env=dict(b.env, DCPFS_CACHE=cache), peak=True) as m:
        with open(f"{m.version}/{path}", "rb", buffering=0) as f:
            if len(f.read(4096)) != 4096:
                raise meter.Failed(f"{path}: the first 4 KiB are not there")
        m.first = {"wall": time.perf_counter() - began, "cpu": meter.cpu_of(m.pid)}
        m.began = began
        m.index = sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(cache) for f in files)
        m.wrote = meter.written_by(m.pid)
        yield m


def check(b, name, out, words):
    meter.lines([b.python, "-B", HERE + "/converters.py", "check", name, out, *words])


def ours(b, row, what, name, first, chosen, out):
    """Mount, and cp of the files that match the globs `chosen`."""
    shutil.rmtree(out, ignore_errors=True)
    os.mkdir(out)
    with fresh(b, name, first) as m:
        files = sorted(f for g in chosen for f in glob.glob(f"{glob.escape(m.version)}/{g}"))
        sample = meter.run(["cp", *files, out], peak=True)
        sample["wall"] = time.perf_counter() - m.began
        sample["cpu"] += meter.cpu_of(m.pid)
        sample["memory"] += m.watch.look()
        sample["written"] = meter.written_by(m.pid) - m.wrote
    b.report.add(row, "first byte", "dcpfs", m.first)
    b.report.add(row, what, "dcpfs", sample, index=m.index, first=m.wrote)


def theirs(b, row, what, side, verb, name, to):
    """A tool's work on a set, to a directory or of a key; apart from that its whole process."""
    python = b.pythons["paddle" if name == "paddle" else "deepspeed"]
    if os.path.isabs(to):
        shutil.rmtree(to, ignore_errors=True)
    sample = meter.lines([python, "-B", HERE + "/converters.py", verb, b.set(name), to], peak=True)[0]
    whole = {"wall": sample.pop("whole_wall"), "cpu": sample.pop("whole_cpu")}
    b.report.add(row, what, side, sample)
    b.report.add(row, what + AS_RUN, side, whole)


def turns(b, row, what, name, first, chosen, words, tools):
    """Ours and theirs in turns; what both wrote is checked at last. tools: {side: (verb, as safetensors?)}"""
    out, tool = os.path.join(b.tmp, "out"), os.path.join(b.tmp, "tool")
    meter.warm(b.set(name))
    for rep in range(b.reps):
        ours(b, row, what, name, first, chosen, out)
        for side, (verb, checked) in tools.items() if rep < b.peer_reps else ():
            theirs(b, row, what, side, verb, name, tool)
            if rep == 0 and checked:
                check(b, name, tool, words)
    check(b, name, out, words)
    for where in (out, tool):
        shutil.rmtree(where)


def ratio(b, row, what, side, bounds, like=None):
    """Ours against the tool without its imports, then against all of its process."""
    for suffix in ("", AS_RUN):
        b.report.samples[row, what + suffix, "dcpfs"] = b.report.of(row, what, "dcpfs")
        b.report.ratio(row, what + suffix, side, bounds, "cpu", like=(row, (like or what) + suffix))


def limits(b, row, what, side):
    """Memory and bytes written; the tool's beside them."""
    most = functools.partial(b.report.most, row, unit="B", pick=lambda s, m: max(x[m] for x in s))
    most(what, "memory", (128, 64))
    most(what, "written", (1, 0))
    peer, ours = b.report.of(row, what, side)[0], b.report.of(row, what, "dcpfs")[0]
    b.report.note(f"row {row}, {what}: {side} held {peer['memory'] / 2**20:.0f} MiB more than after its imports and "
                  f"wrote {peer['disk'] / 2**20:.0f} MiB; cp wrote {ours['disk'] / 2**20:.0f} MiB, the daemon "
                  f"{ours['first'] / 2**10:.0f} KiB for an index of {ours['index'] / 2**10:.0f} KiB")


def needs(b, which):
    if not b.pythons[which]:
        raise meter.Failed(f"run.py --{which} names no python")


# ---- the rows ----

def row20(b):
    """ZeRO-3 to fp32 files: cp against zero_to_fp32; with the moments, against ds_to_universal."""
    needs(b, "deepspeed")
    key, prefixes = "embed_tokens.weight", [s + "." for s in families.STATES]
    first, what, side = f"raw/fp32.{key}.bin", "fp32", "zero_to_fp32"
    turns(b, 20, what, "zero3", first, ["safetensors/fp32.*"], prefixes[:1], {side: ("zero3", True)})
    ratio(b, 20, "first byte", side, FIRST, like=what)
    ratio(b, 20, what, side, ALL)
    limits(b, 20, what, side)
    for rep in range(b.peer_reps):
        theirs(b, 20, "one tensor", "lazy", "zero3-one", "zero3", key)
    ratio(b, 20, "first byte", "lazy", None, like="one tensor")
    what, side = "fp32 and moments", "universal"
    turns(b, 20, what, "zero3", first, [f"safetensors/{p}*" for p in prefixes], prefixes, {side: (side, False)})
    ratio(b, 20, what, side, ALL)
    limits(b, 20, what, side)


def row21(b):
    """Paddle's ranks to whole tensors: cp against merge_sharded_state_dict, and against numpy by hand."""
    needs(b, "paddle")
    key, what = "layers.0.attn.q_proj.weight", "merge"
    turns(b, 21, what, "paddle", f"raw/{key}.bin", ["safetensors/*"], [],
          {"paddle": ("paddle", True), "numpy": ("paddle-numpy", True)})
    # By hand is what people write who cannot use the tool; its bytes are told, not judged.
    for side, bounds in (("paddle", ALL), ("numpy", None)):
        ratio(b, 21, "first byte", side, FIRST, like=what)
        ratio(b, 21, what, side, bounds)
    limits(b, 21, what, "paddle")
    for rep in range(b.peer_reps):
        theirs(b, 21, "one tensor", "paddle", "paddle-one", "paddle", key)
    ratio(b, 21, "first byte", "paddle", None, like="one tensor")


FAMILIES = {"torch DCP": "whole10k", "torch DCP, 8 chunks each": "keys10k", "Hugging Face": "many-hf",
            "torch.save": "many-torch", "Paddle, distributed": "many-paddle", "Paddle, pdparams": "many-pdparams",
            "DeepSpeed ZeRO-3": "many-zero3", "Composer": "many-composer",
            "Megatron, mp_rank": "many-megatron"}


def check_index(b, name):
    """The index has all tensors, and one of them has its bytes."""
    said = subprocess.run([b.programs["dcpfs"], "index", "--json", b.set(name)], env=b.env, check=True,
                          capture_output=True).stdout
    found, want = json.loads(said)[-1], families.COUNT.get(name, families.MANY)
    if found["tensors"] != want or found["broken"]:
        raise meter.Failed(f"{name}: {found['tensors']} tensors, {found['broken']} broken; there are {want}")
    path = os.path.join(b.tmp, "example")
    key = meter.lines([b.python, "-B", HERE + "/converters.py", "example", name, path])[0]["key"]
    shown = subprocess.run([b.programs["dcpfs"], "cat", b.set(name), key], env=b.env, check=True,
                           capture_output=True).stdout
    with open(path, "rb") as f:
        if f.read() != shown:
            raise meter.Failed(f"{name}: {key} has wrong values")


def row22(b):
    """The index of 10,000 keys, or of parameters with two moments and a step each, by family."""
    for family, name in FAMILIES.items():
        meter.warm(b.set(name))
        for rep in range(b.reps):
            b.report.add(22, family, "dcpfs", b.dcpfs("index", "--rebuild", b.set(name), peak=True))
        try:
            check_index(b, name)
        except meter.Failed as e:
            b.report.note(f"row 22: {family} does not count: {e}")
            continue
        b.report.most(22, family, "cpu", None)
        b.report.most(22, family, "memory", (128, 64), "B", pick=lambda s, m: max(x[m] for x in s))


ROWS = {"20": row20, "21": row21, "22": row22}
NEEDS = {"20": ["zero3"], "21": ["paddle"], "22": list(FAMILIES.values())}
