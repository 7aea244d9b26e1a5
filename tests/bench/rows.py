# SPDX-License-Identifier: Apache-2.0
"""The rows: what is measured, and how. Peer and dcpfs take turns; each row is one function.

Row numbers are those of the table of goals in README.md.
"""
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time

import convert
import gen
import loader
import meter

HERE = os.path.dirname(os.path.abspath(__file__))
BIG = "model." + gen.BIG
ONE_CPU = {max(meter.EVERYWHERE)}          # the last: interrupts tend to sit on the first
PIN = f"cpu {max(ONE_CPU)}"
# One of the keys that are real, and its shape.
KEY = {"keys100k": ("model.layers.130.block_sparse_moe.experts.26.w3.weight", 64, 8),
       "keys10k": ("model.layers.13.block_sparse_moe.experts.3.w1.weight", 64, 32),
       "model": ("model.layers.0.norm.weight", 2048)}


class Bench:
    """Where things are, and the report."""

    def __init__(self, args, report, tmp):
        self.data, self.python, self.quick, self.report = args.data, args.python, args.quick, report
        self.programs, self.tmp = args.programs, tmp
        self.pythons = {"deepspeed": args.deepspeed, "paddle": args.paddle}
        self.reps = 3 if args.quick else 7
        self.peer_reps = 1 if args.quick else 3         # of peers that take many seconds
        self.env = dict(os.environ, DCPFS_CACHE=os.path.join(self.data, "cache"), LC_ALL="C")
        self.mounts = 0

    def set(self, name):
        return os.path.join(self.data, name)

    def dcpfs(self, *words, **how):
        return meter.run([self.programs["dcpfs"], *words], env=self.env, **how)

    def point(self):
        self.mounts += 1
        where = os.path.join(self.tmp, f"m{self.mounts}")
        os.mkdir(where)
        return where

    def mount(self, name, *options, cpus=None, threads=1, env=None, peak=False):
        where = self.point()
        m = meter.Mount([self.programs["dcpfs"], "mount", "-f", self.set(name), where, "--readahead", "4096",
                         "--threads", str(threads), *options], where, env or self.env, cpus, peak=peak)
        m.version = os.path.realpath(os.path.join(where, "latest"))
        return m

    def null(self, pieces, *options, cpus=None, threads=1):
        where = self.point()
        return meter.Mount([self.programs["null_fuse"], "-t", str(threads), *options, where, *pieces], where,
                           self.env, cpus)

    def client(self, *words, mount=None, cpus=None):
        daemon = ["-p", str(mount.pid)] if mount else []
        with meter.pinned(cpus):
            return meter.lines([self.programs["client"], *daemon, *map(str, words)])

    def peers(self, *words, reps=1, peak=False):
        return meter.lines([self.python, "-B", os.path.join(HERE, "peers.py"), "--reps", str(reps), *words],
                           peak=peak)

    def index(self, name):
        self.dcpfs("index", self.set(name))

    def warm(self, name):
        self.index(name)
        meter.warm(self.set(name))

    def turns(self, row, what, sides, measure, reps):
        """measure(side) for every side in turns, each time beginning with another; one round before that is not counted."""
        for rep in range(-1, reps):
            for side in sides[rep % len(sides):] + sides[:rep % len(sides)]:
                sample = measure(side)
                if rep >= 0:
                    self.report.add(row, what, side, sample)


# ---- metadata ----

def row5(b):
    """One tensor out of a checkpoint, by a process that starts for it."""
    bounds = {"keys100k": (100, 1000), "keys10k": (100, 250), "model": (100, 150)}
    for name, (key, *shape) in KEY.items():
        source, what = b.set(name), f"one tensor, {name}, pages cold"
        b.index(name)
        for rep in range(b.peer_reps if name == "keys100k" else max(2, b.peer_reps)):
            meter.evict(source)
            b.report.add(5, what, "torch", meter.run([b.python, "-B", HERE + "/peers.py", "one", source, key,
                                                      *map(str, shape)]))
        for rep in range(b.reps):
            meter.evict(source, b.env["DCPFS_CACHE"])
            b.report.add(5, what, "dcpfs", b.dcpfs("cat", source, key))
        b.report.ratio(5, what, "torch", bounds[name], "cpu")
        what = f"one tensor, {name}, pages warm"
        for rep in range(3 * b.reps):
            b.report.add(5, what, "dcpfs", b.dcpfs("cat", source, key))
        b.report.most(5, what, "wall", (30, 10))
    for rep in range(3 * b.reps):
        b.report.add(5, "a process that does nothing", "dcpfs", meter.run(["true"]))
    b.report.most(5, "a process that does nothing", "wall", None)


def row6(b):
    """The index of 100,000 keys in 8 chunks each against torch's own reading of the metadata."""
    what, source = "index, 100k keys x 8", b.set("keys100k")
    meter.warm(source + "/.metadata")
    for rep in range(b.peer_reps):
        for sample in b.peers("metadata", source, peak=True):
            b.report.add(6, what, "torch", sample)
        b.report.add(6, what, "dcpfs", b.dcpfs("index", source, "--rebuild", peak=True))
    for rep in range(b.reps - b.peer_reps):
        b.report.add(6, what, "dcpfs", b.dcpfs("index", source, "--rebuild", peak=True))
    b.report.ratio(6, what, "torch", (8, 20), "cpu")
    b.report.most(6, what, "memory", (128, 44), "B", pick=lambda s, m: max(x[m] for x in s))
    b.report.note("row 6: torch's read_metadata held "
                  f"{max(x['memory'] for x in b.report.of(6, what, 'torch')) / 2**20:.0f} MiB more than before")


def row7(b):
    """From the start of `dcpfs mount` to its return, when the mount answers."""
    for name in ("keys100k", "model"):
        b.index(name)
        for rep in range(3 * b.reps):
            where = b.point()
            began = time.perf_counter()
            b.dcpfs("mount", b.set(name), where)
            b.report.add(7, f"mount again, {name}", "dcpfs", {"wall": time.perf_counter() - began})
            subprocess.run(["umount", where], check=True)
        b.report.most(7, f"mount again, {name}", "wall", (50, 5))


def row8(b):
    """100,000 names: listed, listed again, by find, by ls -l; against the same names on the disk."""
    plain, pin = os.path.join(b.set("names"), "many", ""), ONE_CPU
    b.index("keys100k")

    def command(side, mount, what, *words):
        with meter.pinned(pin):
            used = meter.cpu_of(mount.pid) if mount else 0
            sample = meter.run([*words], env=b.env)
            sample["cpu"] += meter.cpu_of(mount.pid) - used if mount else 0
            b.report.add(8, what, side, sample)

    def tour(side, where, mount=None):
        for what in ("list", "list again", "list again"):
            b.report.add(8, what, side, b.client("list", where, mount=mount, cpus=pin)[0])
        for _ in range(2):
            command(side, mount, "find", "find", where)
        command(side, mount, "ls -l after a listing", "ls", "-l", where)
        command(side, mount, "ls -l", "ls", "-l", where)
    for rep in range(b.reps):
        tour("ext4", plain)
        with b.mount("keys100k", cpus=pin) as m:
            tour("dcpfs", m.version + "/raw/", m)
        with b.mount("keys100k", cpus=pin) as m:
            command("dcpfs", m, "ls -l of a fresh mount", "ls", "-l", m.version + "/raw/")
    for what, bounds, like in (("list", (2, 1.3), None), ("list again", (1, 0.35), None),
                               ("find", (1.5, 0.5), None), ("ls -l", (1.5, 0.8), None),
                               ("ls -l after a listing", None, None),
                               ("ls -l of a fresh mount", None, (8, "ls -l"))):
        b.report.ratio(8, what, "ext4", bounds, "cpu", more=False, pin=PIN, like=like)


def row9(b):
    """open + read 4 KiB + close of 10,000 files: the first time after the mount, and again."""
    plain = os.path.join(b.set("names"), "small")
    sets = {"whole10k": "", "keys10k": ", 8 chunks each"}
    for name in sets:
        b.index(name)

    def rounds(side, mode, where, mount=None):
        for i, sample in enumerate(b.client("-n", 4, "open", where, mount=mount, cpus=ONE_CPU)):
            b.report.add(9, ("again" if i else "first") + mode, side, sample)
    for rep in range(b.reps):
        for mode, ours, null in ((", no open", ["--no-open"], ["-o"]), (", with open", [], [])):
            rounds("ext4", mode, plain)
            with b.null([plain + "/000000:0:4096"], *null, cpus=ONE_CPU) as m:
                rounds("null", mode, m.where + "/names", m)
            for name, kind in sets.items():
                with b.mount(name, *ours, cpus=ONE_CPU) as m:
                    rounds("dcpfs", mode + kind, m.version + "/raw", m)
    how = {"metric": "cpu", "more": False, "per": "ops", "pin": PIN}
    for mode, bound in ((", no open", True), (", with open", False)):
        b.report.ratio(9, "again" + mode, "ext4", (2, 1.0) if bound else None, **how)
        b.report.ratio(9, "again" + mode, "null", None, **how)
        b.report.ratio(9, "first" + mode, "null", (1.5, 1.15) if bound else None, **how)
        b.report.ratio(9, "first" + mode + ", 8 chunks each", "null", None, like=(9, "first" + mode), **how)


def row17(b):
    """What one rank of 768 reads of 1,000 tensors in 1,024 pieces each: the planner alone."""
    for sample in b.peers("read-items", reps=max(2, b.peer_reps)):
        b.report.add(17, "one tensor again", "torch", sample)
    for sample in meter.lines([b.programs["plan"], "reshard", str(3 * b.reps)]):
        b.report.add(17, sample.pop("what"), "dcpfs", sample)
    b.report.ratio(17, "one tensor again", "torch", (50, 500), "cpu")
    for what in ("tilings there", "from pieces", "from packed rows"):
        b.report.ratio(17, what, "torch", (50, 500) if what == "tilings there" else None, "cpu",
                       like=(17, "one tensor again"))
    what = "one rank's plan, 100k keys"
    for sample in b.peers("local-plan", reps=max(2, b.peer_reps)):
        b.report.add(17, what, "torch", sample)
    for sample in meter.lines([b.programs["job"], "rank", str(3 * b.reps)]):
        b.report.add(17, sample.pop("what"), "dcpfs", sample)
    b.report.ratio(17, what, "torch", (20, 120), "cpu")


def row_job(b):
    """The plan of a whole job of 1,024 ranks and 100,000 tensors; descriptors a second."""
    samples = meter.lines([b.programs["job"], "whole", str(b.reps)])
    for sample in samples:
        b.report.add("job", sample.pop("what"), "dcpfs", sample)
    for what in dict.fromkeys(what for row, what, side in b.report.samples if row == "job"):
        b.report.most("job", what, "cpu", (2000, 500) if what.startswith("plan") else None)
    for what in ("plan: dense, 16 x 8 x 8 ranks", "plan: no two alike, flattened"):
        b.report.most("job", what, "peak", (512, 256), "B", pick=lambda s, m: max(x[m] for x in s))
    for sample in meter.lines([b.programs["plan"], "descriptors", str(b.reps)]):
        b.report.add("job", sample.pop("what"), "dcpfs", sample)
    for what in dict.fromkeys(what for row, what, side in b.report.samples if row == "job"):
        first = b.report.of("job", what, "dcpfs")[0]
        if what.startswith("descriptors"):
            least = min(s["cpu"] for s in b.report.of("job", what, "dcpfs"))
            b.report.note(f"{what}: {first['n']:,}, {first['n'] / least:.3g} a second")


# ---- bytes ----

def pieces_of(b, mount, key):
    """Where the bytes of a tensor lie, for the server that does nothing else but send them."""
    with open(mount.version + "/index.json", encoding="utf-8") as f:
        tensors = json.load(f)["tensors"]
    return [f"{b.set('model')}/{p['file']}:{p['offset']}:{p['nbytes']}"
            for t in tensors if t["key"] == key for p in t["pieces"]]


@contextlib.contextmanager
def big_file(b, **how):
    """The big tensor through both servers, out of the same pages: {side: (mount, path)}."""
    with b.mount("model", **how) as ours, b.null(pieces_of(b, ours, BIG), **how) as null:
        if null.readahead != ours.readahead:
            b.report.note(f"read-ahead differs: null {null.readahead}, dcpfs {ours.readahead} KiB")
        yield {"null": (null, null.where + "/data"), "dcpfs": (ours, f"{ours.version}/raw/{BIG}.bin")}


def row10(b):
    """Sequential reads of 512 MiB, and from the same runs row 18, CPU seconds per GB."""
    b.warm("model")

    def read(paths, *words, evict=False, cpus=None):
        def measure(side):
            mount, path = paths[side]
            extra = ["-e", path] if evict else []
            return b.client(*words, *extra, "seq", path, mount=mount, cpus=cpus)[0]
        return measure
    both = ("null", "dcpfs")
    # Where the scheduler puts a server's threads can stay for as long as it lives: mount often.
    for rep in range(b.reps):
        with big_file(b) as paths:
            if rep == 0:
                subprocess.run(["cmp", paths["null"][1], paths["dcpfs"][1]], check=True)
            b.turns(10, "cold", both, read(paths, evict=True), 2)
            b.turns(10, "warm", both, read(paths), 2)
        with big_file(b, cpus=ONE_CPU) as paths:
            b.turns(10, "O_DIRECT x1", both, read(paths, "-d", cpus=ONE_CPU), 2)
        with big_file(b, threads=2) as paths:
            b.turns(10, "O_DIRECT x2, 2 workers", both, read(paths, "-d", "-t", 2), 2)
            b.turns(10, "cold, 2 workers", both, read(paths, evict=True), 2)
    for what, pin in (("cold", "free"), ("warm", "free"), ("O_DIRECT x1", PIN), ("O_DIRECT x2, 2 workers", "free"),
                      ("cold, 2 workers", "free")):
        bounds = None if what.startswith("cold,") else (0.85, 0.95)
        b.report.ratio(10, what, "null", bounds, "wall" if pin == "free" else "cpu", per="bytes", pin=pin)
    for what, pin in (("O_DIRECT x1", PIN), ("cold", "free")):
        for side in both:
            b.report.samples[18, what, side] = b.report.of(10, what, side)
        b.report.ratio(18, what, "null", (1.5, 1.05), "cpu", more=False, per="bytes", pin=pin)


def row11(b):
    """A column cut across the row shards of 512 MiB, against all of it read the same way."""
    meter.warm(b.set("wide"))
    b.index("wide")
    for parts, run, bounds in ((8, "4 KiB", (0.7, 0.9)), (64, "512 B", (0.5, 0.75))):
        what = f"column cut, runs of {run}, O_DIRECT"
        with b.mount("wide", cpus=ONE_CPU) as m:
            paths = {"whole": f"{m.version}/raw/w.bin", "dcpfs": f"{m.version}/shard/dim1x{parts}/3/raw/w.bin"}

            def direct(side, m=m, paths=paths):
                return b.client("-d", "seq", paths[side], mount=m, cpus=ONE_CPU)[0]
            b.turns(11, what, ("whole", "dcpfs"), direct, b.reps)
        b.report.ratio(11, what, "whole", bounds, "cpu", per="bytes", pin=PIN)
        what = f"column cut, runs of {run}, O_DIRECT, free"
        with b.mount("wide") as m:
            path = f"{m.version}/shard/dim1x{parts}/3/raw/w.bin"

            def either(side, m=m, path=path, parts=parts):
                if side == "dcpfs":
                    return b.client("-d", "seq", path, mount=m)[0]
                return b.peers("columns", b.set("wide"), str(parts), "3")[0]
            b.turns(11, what, ("numpy", "dcpfs"), either, b.reps)
        b.report.ratio(11, what, "numpy", (1, 1.5), "cpu", per="bytes")


# Room for every file of `model`; one file may take an eighth of it.
PASSTHROUGH = ("--passthrough", "4096")


def row12(b):
    """Files that the kernel reads without the daemon."""
    said = subprocess.run([b.programs["dcpfs"], "mount", "--help"], capture_output=True, text=True, check=False)
    if "--passthrough" not in said.stdout + said.stderr:
        b.report.note("row 12: this dcpfs has no passthrough")
        return
    b.warm("model")
    real = os.path.join(b.tmp, "big")
    with b.mount("model", *PASSTHROUGH) as m:
        path = f"{m.version}/raw/{BIG}.bin"
        shutil.copyfile(path, real)
        b.turns(12, "passthrough", ("disk", "dcpfs"),
                lambda side: b.client("seq", path if side == "dcpfs" else real)[0], b.reps)
    b.report.ratio(12, "passthrough", "disk", (0.95, 0.99), per="bytes")


def row19(b):
    """4 KiB at random places, O_DIRECT, client and server on one CPU."""
    b.warm("model")
    with big_file(b, cpus=ONE_CPU) as paths:
        def measure(side):
            mount, path = paths[side]
            return b.client("-d", "-c", 20000, "rand", path, mount=mount, cpus=ONE_CPU)[0]
        b.turns(19, "4 KiB random", ("null", "dcpfs"), measure, b.reps)
    b.report.ratio(19, "4 KiB random", "null", (0.8, 0.95), "cpu", per="ops", pin=PIN)


# ---- conversion ----

@functools.lru_cache(None)
def copied(b):
    """The safetensors files of `model`, copied out of the mount; measured and checked."""
    out = os.path.join(b.tmp, "copy")
    b.warm("model")
    with b.mount("model", threads=2) as m:
        for rep in range(b.reps):
            shutil.rmtree(out, ignore_errors=True)
            used, watch = meter.cpu_of(m.pid), meter.Peak(m.pid)
            sample = meter.run(["cp", "-r", m.version + "/safetensors", out], peak=True)
            sample["cpu"] += meter.cpu_of(m.pid) - used
            sample["memory"] += watch.done()
            sample["disk"] = sum(e.stat().st_size for e in os.scandir(out))
            b.report.add(15, "to safetensors", "dcpfs", sample)
            # Pages stay in the mount's cache: a second copy would only be a copy.
            meter.evict(m.version + "/safetensors")
    b.peers("check", out)
    return out


def row15(b):
    """DCP to safetensors files: cp out of the mount against torch's two steps."""
    copied(b)
    for rep in range(b.reps):
        with convert.fresh(b, "model", f"raw/{BIG}.bin") as m:
            pass
        b.report.add(15, "first byte", "dcpfs", m.first)
    files = [os.path.join(b.tmp, "model.pt"), os.path.join(b.tmp, "model.safetensors")]
    for rep in range(b.peer_reps):
        *samples, size = b.peers("two-step", b.set("model"), *files, peak=True)
        for sample in samples:
            b.report.add(15, "to safetensors", "torch", dict(sample, disk=size["disk"]))
        for f in files:
            os.unlink(f)
    b.report.ratio(15, "first byte", "torch", convert.FIRST, "cpu", like=(15, "to safetensors"))
    b.report.ratio(15, "to safetensors", "torch", (4, 8), "cpu")
    b.report.most(15, "to safetensors", "memory", (256, 64), "B", pick=lambda s, m: max(x[m] for x in s))
    peer, ours = (b.report.of(15, "to safetensors", s)[0] for s in ("torch", "dcpfs"))
    b.report.note(f"row 15: torch held {peer['memory'] / 2**20:.0f} MiB and wrote {peer['disk'] / 2**20:.0f} MiB; "
                  f"cp wrote {ours['disk'] / 2**20:.0f} MiB")


def row16(b):
    """load_file + clone of the same files through the mount and on the disk."""
    real = copied(b)
    meter.warm(real)
    for way, words in (("load_file, ", ()), ("passthrough, ", PASSTHROUGH)):
        with b.mount("model", *words, threads=2) as m:
            for sample in b.peers("load-file", real, m.version + "/safetensors", reps=b.reps):
                side, what = ("disk", "dcpfs")[sample.pop("side")], way + sample.pop("what")
                b.report.add(16, what, side, sample)
        b.report.ratio(16, way + "fresh", "disk", (0.8, 0.95), "cpu", per="bytes")
        b.report.ratio(16, way + "reused", "disk", (0.6, 0.75), "cpu", per="bytes")
        b.report.ratio(16, way + "first", "disk", None, "cpu", per="bytes")


def memory(b):
    """Private memory of the daemon: with many keys, and while bytes flow."""
    b.index("keys100k")
    with b.mount("keys100k", threads=2) as m:
        b.report.add("mem", "100k keys, mounted", "dcpfs", {"memory": m.memory()})
        b.client("stat", m.version + "/raw")
        meter.run(["cat", f"{m.version}/raw/{KEY['keys100k'][0]}.bin"])
        b.report.add("mem", "100k keys, listed and stat", "dcpfs", {"memory": m.memory()})
    b.warm("model")
    with b.mount("model", threads=2) as m:
        path = f"{m.version}/raw/{BIG}.bin"

        def flow():
            b.client("-n", 2, "-d", "-t", 2, "seq", path)
            b.client("-n", 2, "-e", path, "seq", path)
        flow()
        before = m.memory()
        for _ in range(2 if b.quick else 5):
            flow()
        b.report.add("mem", "growth by bytes served", "dcpfs", {"memory": max(0, m.memory() - before)})
    for what, bounds in (("100k keys, mounted", (64, 32)), ("100k keys, listed and stat", (64, 32)),
                         ("growth by bytes served", (4, 1))):
        b.report.most("mem", what, "memory", bounds, "B")


ROWS = {**loader.ROWS, "5": row5, "6": row6, "7": row7, "8": row8, "9": row9, "10": row10, "11": row11, "12": row12, "15": row15,
        "16": row16, "17": row17, "job": row_job, "19": row19, **convert.ROWS, "mem": memory}
# The sets of gen.py that a row reads, if not only `model`.
NEEDS = {"5": KEY, "6": ["keys100k"], "7": ["keys100k", "model"], "8": ["keys100k", "names"],
         "9": ["names", "whole10k", "keys10k"], "11": ["wide"], "17": [], "job": [], "mem": ["keys100k", "model"], **convert.NEEDS, **loader.NEEDS}


def measure(b, wanted):
    for name in wanted:
        print(f"row {name}: {' '.join(ROWS[name].__doc__.split())}", file=sys.stderr, flush=True)
        try:
            ROWS[name](b)
        except (meter.Failed, OSError, subprocess.SubprocessError, KeyError) as e:
            b.report.note(f"row {name}: not measured: {e}")
