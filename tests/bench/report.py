# SPDX-License-Identifier: Apache-2.0
"""Samples become JSON lines, and JSON lines become one table of ratios against floors and goals."""
import json
import os
import statistics
import time


def load():
    with open("/proc/loadavg") as f:
        return float(f.read().split()[0])


def least(samples, what):
    return min(s[what] for s in samples)


def middle(samples, what):
    return statistics.median(s[what] for s in samples)


def seconds(x):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if x * scale >= 1 or unit == "us":
            return f"{x * scale:.3g} {unit}"


def mebibytes(x):
    return f"{x / 2**20:.1f} MiB"


def show(unit, x):
    return {"s": seconds, "B": mebibytes}.get(unit, lambda v: f"{v:.3g} {unit}")(x)


class Report:
    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")
        self.samples, self.table, self.notes = {}, [], []

    def write(self, **line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def add(self, row, what, side, sample, **facts):
        """One repetition of one side."""
        sample = {**sample, **facts, "load": load()}
        self.samples.setdefault((row, what, side), []).append(sample)
        self.write(**{**sample, "row": row, "what": what, "side": side, "at": round(time.time(), 1)})

    def of(self, row, what, side):
        return self.samples[row, what, side]

    def note(self, text):
        self.notes.append(text)
        self.write(note=text)

    def busy(self, metric, *sides):
        """Other processes used the CPUs while a clock ran: what it says is doubtful."""
        most = max(s["load"] for samples in sides for s in samples)
        return metric == "wall" and most > os.cpu_count() + 0.5

    def judge(self, row, what, metric, peer, ours, value, typical, bounds, more, pin, clock="", busy=False):
        floor, goal = bounds or (None, None)

        def holds(bound):
            return value >= bound if more else value <= bound
        verdict = "" if goal is None else "goal" if holds(goal) else "floor" if holds(floor) else "MISS"
        verdict += " ?" if verdict and busy else ""
        self.table.append((row, what, metric, peer, ours, f"{value:.3g}", f"{typical:.3g}", clock,
                           *(("", "") if goal is None else (f"{'>=' if more else '<='} {floor:g}", f"{goal:g}")),
                           verdict, pin))
        self.write(row=row, what=what, metric=metric, value=value, median=typical, floor=floor, goal=goal,
                   verdict=verdict, pin=pin)

    def compare(self, peer, ours, metric, pick, more):
        x, y = (pick(s, metric) for s in (peer, ours))
        return x / y if more else y / x

    def ratio(self, row, what, peer, bounds=None, metric="wall", more=True, per="", pin="free", like=None):
        """ours against peer, by minima and by medians. more: peer / ours, as a speed; else ours / peer.
        like: (row, what) whose samples of the peer are used. per: divide by ops or bytes for show.
        Judged by CPU seconds, the ratio by the clock is shown beside it."""
        a, b = self.of(*(like or (row, what)), peer), self.of(row, what, "dcpfs")

        def text(samples):
            out = []
            for pick in (least, middle):
                x = pick(samples, metric) / (samples[0][per] if per else 1)
                if per == "bytes":
                    out.append(f"{x * 1e9:.3g} s/GB" if metric == "cpu" else f"{1e-9 / x:.3g} GB/s")
                else:
                    out.append(seconds(x))
            return " / ".join(out)
        if per and a[0][per] != b[0][per]:
            scale = a[0][per] / b[0][per] if more else b[0][per] / a[0][per]
        else:
            scale = 1
        value, typical = (self.compare(a, b, metric, pick, more) / scale for pick in (least, middle))
        clock = "" if metric == "wall" else f"{self.compare(a, b, 'wall', least, more) / scale:.3g}"
        self.judge(row, what, metric, f"{peer} {text(a)}", text(b), value, typical, bounds, more, pin, clock,
                   self.busy(metric, a, b))

    def most(self, row, what, metric, bounds, unit="s", pin="free", pick=least):
        """An absolute bound on ours, which value and bounds state in ms or MiB."""
        samples, scale = self.of(row, what, "dcpfs"), 1e3 if unit == "s" else 2**-20
        value, typical = pick(samples, metric), middle(samples, metric)
        self.judge(row, what, metric + (", ms" if unit == "s" else ", MiB"), "",
                   f"{show(unit, value)} / {show(unit, typical)}", value * scale, typical * scale, bounds,
                   False, pin, busy=self.busy(metric, samples))

    def text(self):
        head = ("row", "what", "by", "peer min / median", "dcpfs min / median", "ratio", "median",
                "clock", "floor", "goal", "", "cpus")
        rows = [head, *self.table]
        wide = [max(len(str(r[i])) for r in rows) for i in range(len(head))]
        body = ["  ".join(str(c).ljust(w) for c, w in zip(r, wide)).rstrip() for r in rows]
        return "\n".join([body[0], "-" * len(body[0]), *body[1:], *("note: " + n for n in self.notes),
                          *(["?: the machine was busy, and this was measured by the clock"]
                            if any(" ?" in r[10] for r in self.table) else [])])
