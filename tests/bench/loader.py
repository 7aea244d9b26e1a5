# SPDX-License-Identifier: Apache-2.0
"""The rows of the loader: jobs of dcpfs load beside torch.distributed.checkpoint.load, plain reads and reads of a mount."""
import glob
import hashlib
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess

import gen
import meter

BIG = "model." + gen.BIG


def load(b, ranks, *words, source="model", reps=3, peak=False):
    """One job, its ranks found by the environment: the last of several loads into the same memory."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    env = dict(b.env, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    jobs = [subprocess.Popen([b.programs["dcpfs"], "load", b.set(source), "--json", "--repeat", str(reps), *words],
                             env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdout=subprocess.PIPE, text=True)
            for r in range(ranks)]
    watch = [meter.Peak(j.pid, ranks) for j in jobs] if peak else []
    said = [j.communicate()[0] for j in jobs]
    if any(j.returncode for j in jobs):
        raise meter.Failed(f"dcpfs load {' '.join(words)}: {[j.returncode for j in jobs]}")
    told = json.loads(said[0])
    each = told["per_rank"]
    out = {"wall": told["seconds"], "cpu": sum(r["cpu_s"] for r in each), "bytes": told["needed"], "read": told["read"],
           "unique": told["unique"], "calls": sum(r["calls"] for r in each), "staging": max(r["staging"] for r in each)}
    if peak:
        out["memory"] = max(w.done() - r["needed"] for w, r in zip(watch, each))
    return out


def digest(parts, dim):
    """Of the tensors that have dimension @dim: {key: (shape, bytes)}. peers.py has the same."""
    h = hashlib.sha256()
    for key in sorted(parts):
        shape, data = parts[key]
        if len(shape) > dim:
            h.update(key.encode())
            h.update(data)
    return h.hexdigest()


def dumped(b, source, ranks, layout, dim):
    """Digests of what each rank of a job holds."""
    into, out = os.path.join(b.tmp, "dump"), []
    load(b, ranks, "--layout", layout, "--dump", into, source=source, reps=1)
    for path in sorted(glob.glob(glob.escape(into) + "/*.safetensors")):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            start = f.tell()
            parts = {}
            for key, t in header.items():
                if key != "__metadata__":
                    f.seek(start + t["data_offsets"][0])
                    parts[key] = (t["shape"], f.read(t["data_offsets"][1] - t["data_offsets"][0]))
        out.append(digest(parts, dim))
    shutil.rmtree(into)
    return out


def named(source, dim, ranks):
    return f"{8 if source == 'model' else 2} -> {ranks}, {'rows' if dim == 0 else 'columns'}"


def resharded(b, row, source, dim, ranks, bounds):
    what = named(source, dim, ranks)
    layout = f"dim{dim}x{ranks}"
    b.warm(source)
    for rep in range(b.peer_reps):
        for sample in b.peers("reshard", b.set(source), str(dim), str(ranks)):
            theirs = sample.pop("digests")
            b.report.add(row, what, "torch", sample)
        for exchange in ("never", "node"):
            b.report.add(row, f"{what}, {exchange}", "dcpfs", load(b, ranks, "--layout", layout, "--exchange", exchange, source=source))
    if dumped(b, source, ranks, layout, dim) != theirs:
        raise meter.Failed(f"{what}: ranks hold other bytes than torch's")
    for exchange in ("never", "node"):
        b.report.ratio(row, f"{what}, {exchange}", "torch", bounds if exchange == "never" else None, "cpu", per="bytes",
                       like=(row, what))


def row1(b):
    """A checkpoint of 8 ranks loaded by 2, rows: dcp.load into DTensors, and dcpload. CPU of all ranks."""
    resharded(b, 1, "model", 0, 2, (3, 5))


def row2(b):
    """One of 2 ranks loaded by 8, rows and columns; one of 8 by 2, columns."""
    resharded(b, 2, "model2", 0, 8, (6, 15))
    resharded(b, 2, "model", 1, 2, (4, 7))
    resharded(b, 2, "model2", 1, 8, (4, 7))


def row3(b):
    """Bytes that a node reads past its page cache, of the distinct pages that its ranks need; calls a MiB delivered."""
    for source, dim, ranks in (("model", 1, 2), ("model2", 0, 8), ("model2", 1, 8)):
        cut = named(source, dim, ranks)
        what = cut + ", once a node"
        b.index(source)
        torch = b.report.samples.get((2, cut, "torch")) or b.peers("reshard", b.set(source), str(dim), str(ranks))
        for rep in range(b.peer_reps):
            b.report.add(3, what, "dcpfs", load(b, ranks, "--layout", f"dim{dim}x{ranks}", "--exchange", "node", "--io", "direct", "--cold",
                                                source=source, reps=1))
        ours = b.report.of(3, what, "dcpfs")
        ratios = sorted(s["read"] / s["unique"] for s in ours)
        calls = sorted(s["calls"] / (s["bytes"] / 2**20) for s in ours)
        b.report.judge(3, what, "bytes", f"torch {torch[0]['read'] / ours[0]['unique']:.2f}", f"{ratios[0]:.4f}", ratios[-1],
                       ratios[len(ratios) // 2], (1.05, 1.02), False, "free")
        b.report.judge(3, f"{what}, calls a MiB", "calls", "", f"{calls[0]:.3g}", calls[-1], calls[len(calls) // 2], (16, 16), False, "free")


def row4(b):
    """All of it cold, by 2 ranks, against the better of 8 MiB and of 16 times 1 MiB O_DIRECT in the same round: the median of
    the rounds' ratios, as a disk may be shared with others. Of rows no rank needs what the other does, of columns every page, and
    of all of it every byte; each is read once."""
    files = sorted(glob.glob(glob.escape(b.set("model")) + "/*.distcp"))
    b.index("model")
    ways = {"8 MiB": ("-b", 8192), "16 x 1 MiB": ("-t", 16)}
    layouts = {"rows": "fsdp2", "columns": "dim1x2", "all by both": "dim2x2"}

    def measure(side):
        if side in layouts:
            got = load(b, 2, "--layout", layouts[side], "--cold")
            return dict(got, bytes=got["read"])
        got = [b.client("-d", *ways[side], "-e", f, "seq", f)[0] for f in files]
        return {k: sum(g[k] for g in got) for k in ("wall", "cpu", "bytes")}
    b.turns(4, "cold", (*ways, *layouts), measure, 7 * b.peer_reps)
    rates = {side: [s["bytes"] / s["wall"] for s in b.report.of(4, "cold", side)] for side in (*ways, *layouts)}
    middles = {side: f"{statistics.median(r) / 1e9:.3g} GB/s" for side, r in rates.items()}
    for cut in layouts:
        ratios = sorted(ours / max(theirs) for ours, *theirs in zip(rates[cut], *(rates[w] for w in ways)))
        middle = statistics.median(ratios)
        b.report.judge(4, f"cold, {cut}, {len(ratios)} rounds", "wall", ", ".join(middles[w] for w in ways), middles[cut], middle, middle,
                       (0.90, 0.97), True, "free", busy=b.report.busy("wall", b.report.of(4, "cold", cut)))
        b.report.note(f"row 4, {cut}: rounds between {ratios[0]:.2f} and {ratios[-1]:.2f}, half of them between "
                      f"{ratios[len(ratios) // 4]:.2f} and {ratios[len(ratios) * 3 // 4]:.2f}; CPU "
                      f"{statistics.median(s['cpu'] / s['bytes'] for s in b.report.of(4, 'cold', cut)) * 1e9:.3f} s/GB")


def row13(b):
    """One tensor of 512 MiB from the backing files, against reads of the mount."""
    b.warm("model")
    for what, bounds, options in (("mount by O_DIRECT", (1.3, 1.5), ["-d"]), ("mount, cold pages", (3, 4.5), [])):
        with b.mount("model") as m:
            path = f"{m.version}/raw/{BIG}.bin"

            def measure(side, m=m, path=path, options=options):
                if side == "dcpfs":
                    return load(b, 1, "--keys", BIG, "--comm", "alone")
                return b.client(*options, "-e", path, "seq", path, mount=m)[0]
            b.turns(13, what, ("mount", "dcpfs"), measure, b.peer_reps)
        b.report.ratio(13, what, "mount", bounds, "cpu", per="bytes")


def row14(b):
    """Memory of a rank beyond its destination, with one tensor of 1 GiB in one chunk, by 2 ranks."""
    b.warm("giant")
    for sample in b.peers("reshard", b.set("giant"), "0", "2"):
        b.report.add(14, "torch", "torch", sample)
    torch = max(s["memory"] for s in b.report.of(14, "torch", "torch"))
    for what, *words in (("never", "--exchange", "never"), ("node, O_DIRECT", "--exchange", "node", "--io", "direct"),
                         ("node, O_DIRECT, --staging 4M", "--exchange", "node", "--io", "direct", "--staging", "4M")):
        for rep in range(b.peer_reps):
            b.report.add(14, what, "dcpfs", load(b, 2, "--layout", "fsdp2", *words, source="giant", reps=1, peak=True))
        b.report.most(14, what, "memory", (64, 8), "B", pick=lambda s, m: max(x[m] for x in s))
    b.report.note(f"row 14: a rank of torch held {torch / 2**20:.0f} MiB more than before")


def row18(b):
    """CPU of the loader against one plain read of the same files, warm, by one process; with the row of FUSE."""
    files = sorted(glob.glob(glob.escape(b.set("model")) + "/*.distcp"))
    b.warm("model")

    def measure(side):
        if side == "dcpfs":
            return load(b, 1, "--comm", "alone", "--threads", "1")
        got = [b.client("seq", f)[0] for f in files]
        return {k: sum(g[k] for g in got) for k in ("wall", "cpu", "bytes")}
    b.turns(18, "loader", ("read", "dcpfs"), measure, b.peer_reps)
    b.report.ratio(18, "loader", "read", (1.5, 1.1), "cpu", more=False, per="bytes")


ROWS = {"1": row1, "2": row2, "3": row3, "4": row4, "13": row13, "14": row14, "18": row18}
NEEDS = {"2": ["model", "model2"], "3": ["model", "model2"], "14": ["giant"]}
