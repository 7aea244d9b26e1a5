#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs browse in a pseudo-terminal: what stands on the screen after each key, and a terminal that is sane afterwards."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata

import numpy

sys.path.insert(0, "tests/mount")
from cli import DCPFS, ENV, GOLDEN, SCRATCH, USAGE, check, equal, fails, finish, run, write  # noqa: E402

UP, DOWN, RIGHT, LEFT, PAGE_DOWN, ENTER, ESCAPE, INTERRUPT = "\033OA", "\033OB", "\033OC", "\033OD", "\033[6~", "\r", "\033", "\003"
NONE = "this build has no ncurses; build it with -Dncurses=enabled"


class Terminal:
    """A program on a terminal of the kind vt100, and the characters on it."""

    def __init__(self, *args, rows=24, cols=80, term="vt100", leads=True):
        self.at, self.raw = [0, 0], b""
        self.blank(rows, cols)
        self.master, slave = pty.openpty()
        self.size(rows, cols)
        self.before = termios.tcgetattr(slave)
        env = dict(os.environ, TERM=term, LC_ALL="C.UTF-8", DCPFS_CACHE=str(SCRATCH / "browse-cache"))
        if term != "vt100":  # ncurses itself frees no terminal that it could not set up
            env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        self.program = subprocess.Popen([DCPFS, "browse", *map(str, args)], stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
                                        preexec_fn=lambda: leads and fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.slave = slave

    def size(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))

    def blank(self, rows, cols):
        self.rows, self.cols, self.region, self.cells = rows, cols, (0, rows - 1), [[" "] * cols for _ in range(rows)]

    def scroll(self, way):
        """The cursor goes a line up or down, and where the region that scrolls ends all of it moves instead."""
        top, bottom = self.region
        if self.at[0] != (bottom if way > 0 else top):
            self.at[0] += way
        else:
            self.cells[top:bottom + 1] = [*self.cells[top + 1:bottom + 1], [" "] * self.cols] if way > 0 else [[" "] * self.cols, *self.cells[top:bottom]]

    def resize(self, rows, cols):
        self.blank(rows, cols)
        self.size(rows, cols)

    def draw(self, data):
        """Only what ncurses sends to a vt100."""
        text, i = data.decode("utf-8", "replace"), 0
        while i < len(text):
            m = re.compile(r"\033\[([?0-9;]*)([A-Za-z])|\033[()][AB0]|\033[=>78DEHM]").match(text, i)
            c = text[i]
            if m:
                n = [int(x or 0) for x in (m[1] or "").strip("?").split(";")] if m[1] is not None else [0]
                if m[2] == "H":
                    self.at = [max(n[0], 1) - 1, max(n[1] if len(n) > 1 else 1, 1) - 1]
                elif m[2] in ("A", "B", "C", "D"):
                    way = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}[m[2]]
                    self.at = [self.at[0] + way[0] * max(n[0], 1), self.at[1] + way[1] * max(n[0], 1)]
                elif m[2] in ("J", "K"):
                    row, col = self.at
                    if n[0] == 1:
                        self.cells[row][:col + 1] = [" "] * (col + 1)
                    else:
                        self.cells[row][col:] = [" "] * (self.cols - col)
                    for r in range(row + 1, self.rows if m[2] == "J" else 0):
                        self.cells[r] = [" "] * self.cols
                elif m[2] == "r":
                    self.region = (max(n[0], 1) - 1, (n[1] if len(n) > 1 and n[1] else self.rows) - 1)
                    self.at = [0, 0]
                elif m[0] in ("\033D", "\033M"):
                    self.scroll(1 if m[0] == "\033D" else -1)
                i = m.end()
                continue
            if c == "\r":
                self.at[1] = 0
            elif c == "\n":
                self.scroll(1)
            elif c == "\b":
                self.at[1] -= 1
            elif unicodedata.combining(c):
                self.cells[self.at[0]][self.at[1] - 1] += c
            elif c >= " ":
                wide = unicodedata.east_asian_width(c) in "WF"
                if self.at[1] + wide >= self.cols:
                    self.at = [self.at[0] + 1, 0]
                if self.at[0] < self.rows:
                    self.cells[self.at[0]][self.at[1]] = c
                    if wide:  # its second half
                        self.cells[self.at[0]][self.at[1] + 1] = ""
                self.at[1] += 1 + wide
            i += 1

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.cells)

    def read(self, seconds=0.05):
        while select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.raw += data
            self.draw(data)

    def shows(self, what, keys=""):
        """After these keys the screen has this, within a time that only a broken program takes."""
        os.write(self.master, keys.encode())
        end = time.monotonic() + 60
        while time.monotonic() < end and not re.search(what, self.text(), re.M):
            self.read()
        return check(re.search(what, self.text(), re.M), f"after {keys!r} no {what!r} on\n{self.text()}")

    def ends(self, keys=None, code=0):
        if keys:
            os.write(self.master, keys.encode())
        end = time.monotonic() + 60
        while self.program.poll() is None and time.monotonic() < end:
            self.read()
        self.read()
        equal(self.program.poll(), code, f"exit code; the screen was\n{self.text()}")
        equal(termios.tcgetattr(self.slave), self.before, "the terminal's modes are as before")
        os.close(self.slave)
        os.close(self.master)


def model():
    path = SCRATCH / "browse" / "model.safetensors"
    layers = {f"model.layers.{i}.w": ("F32", [2, 3], numpy.arange(6, dtype="<f4").tobytes()) for i in range(12)}
    write(path, {**layers, "model.norm": ("F32", [4], numpy.array([1.5, -2, float("nan"), 1e-3], "<f4").tobytes()),
                 "big": ("I64", [2], numpy.array([2**63 - 1, -5], "<i8").tobytes()),
                 "evil\033[2J\u202ename": ("U8", [1], b"\7")})
    return path.parent


def a_tree_is_walked_and_searched(top):
    t = Terminal(top)
    t.shows(r"^\+ model\. +13 keys")
    t.shows(r"evil\\x1b\[2J")
    check(b"\033[2J\xe2\x80\xae" not in t.raw and "\u202e" not in t.text(), "foreign names are spelled out")
    check(re.search(rb"\033\[[0-9;]*7m", t.raw), "the item that a key would open stands out")
    t.shows(r"^\+ layers\. +12 keys", DOWN * 9 + ENTER)
    t.shows(r"(?s)\+ 2\..*\+ 10\.", ENTER)
    t.shows(r"^  w +F32 \[2, 3\] +24 B", RIGHT)
    t.shows(r"^\+ layers\.", LEFT + LEFT)
    t.shows(r"search: NORM$", "/NORM")
    t.shows(r"^  model\.norm +F32 \[4\]")
    equal([line.split()[0] for line in t.text().split("\n")[1:-1] if line], ["model.norm"], "only what was found")
    t.shows(r"^ model\.norm|keys with NORM", ENTER)
    t.ends("q")


def values_and_plan_are_the_tensors(top):
    t = Terminal(top)
    t.shows(r"model\.")
    t.shows(r"search: norm", "/norm")
    t.shows(r"Enter: open", ENTER)
    t.shows(r"^\[0\] +1\.5 +-2 +nan +0\.001", "v")
    t.shows(r"^nan +1$", "h")
    t.shows(r"^first_nan \[2\]")
    t.shows(r"^  -2\^1 +1 +#+$")
    want = re.search(r"(\d+)$", run("show", "--json", top, "latest", "model.norm").stdout.decode().split('"offset": ')[1].split(",")[0])[1]
    t.shows(rf"model\.safetensors, 16 bytes at {want}", "p")
    check("its bytes are those of" not in t.text() and "(and " not in t.text(), f"one piece of its own\n{t.text()}")
    t.shows(r"search: big", LEFT + "/big")
    t.shows(r"9223372036854775807 +-5", ENTER + "v")
    t.ends("q")
    t = Terminal(GOLDEN / "dcp-fsdp2" / "ckpt", "20")
    t.shows(r"search: dtypes|search: step", "/step")
    t.shows(r"object", ENTER)
    t.shows(r"^type +\w", ENTER)
    t.ends("q")
    t = Terminal(GOLDEN / "torch-save" / "ckpt", "big_endian.pt")
    t.shows("search: lm_head", "/lm_head")
    t.shows("^key +model.lm_head.weight", ENTER + "p")
    check("its bytes are those of model.embed.weight" in t.text(), f"an alias\n{t.text()}")
    t.ends("q")


def members_of_objects_have_lines_of_their_own():
    t = Terminal(GOLDEN / "deepspeed-z2" / "ckpt", "global_step10", rows=12)
    t.shows("search: ds_conf", "/ds_conf")
    t.shows("object", ENTER)
    t.shows(r'(?s)^\{\n  "train_micro_batch_size_per_gpu":2,\n  "optimizer":\{\n    "type":"Adam",\n', ENTER)
    t.shows(r'(?s)^  "scheduler":\{\n    "type":"WarmupLR",\n.*\n      "warmup_num_steps":7\}\}\}\n Left: back', DOWN * 60)
    t.ends("q")


def statistics_are_kept_as_stats_keeps_them(top):
    """Those of dcpfs stats are shown without reading the tensor, and stats finds those measured here."""
    kept = lambda: {p.name: p.stat().st_size for p in (SCRATCH / "browse-cache").rglob("*.kept")}  # noqa: E731
    one = top.parent / "kept"
    write(one / "model.safetensors", {"w": ("F32", [4], numpy.array([1.5, -2, 3, 1e-3], "<f4").tobytes())})
    t = Terminal(one)
    t.shows(r"^  w ", "")
    before = kept()
    t.shows(r"^max +3$", "s")
    check("powers of two" not in t.text(), "no histogram was asked for")
    t.ends("q")
    after = kept()
    check(after != before, "what was measured is kept")
    env = dict(os.environ, DCPFS_CACHE=str(SCRATCH / "browse-cache"))
    told = subprocess.run([DCPFS, "stats", "--json", one], env=env, capture_output=True, text=True)
    equal(json.loads(told.stdout)[0]["max"], 3, "stats has it")
    equal(kept(), after, "and kept nothing more")
    t = Terminal(one)
    t.shows(r"^  w ")
    t.shows(r"powers of two(?s:.*)-2\^1 +1 +#", "h")
    t.ends("q")


def wide_characters_take_two_columns():
    """The columns of a line stay in place whatever the key is written in, and a mark takes none."""
    top = SCRATCH / "browse-wide"
    names = ["plain", "重み層", "가중치", "cafe\u0301"]
    write(top / "model.safetensors", {f"{n}{'x' * 90}{n}" if long else n: ("U8", [1], b"1") for n in names for long in (False, True)})
    t = Terminal(top, cols=60)
    t.shows("q: quit|Enter: open")
    t.shows("가중치 ")
    lines = [line for line in t.text().split("\n")[1:-1] if line]
    equal(len(lines), 8, "a line each")
    width = lambda s: sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in s)  # noqa: E731
    equal({width(line[:line.index("U8")]) for line in lines}, {width(lines[0][:lines[0].index("U8")])}, f"U8 begins in one column\n{t.text()}")
    check(all(width(line) < 60 for line in lines), "they fit")
    t.shows("search: 重", "/重み\x7f")
    t.shows("^  重み層 ", ENTER)
    t.ends("q")


def warnings_do_not_stand_on_the_screen(top):
    """What a library prints is shown in the last line, and whole after the end."""
    t = Terminal(top)
    t.shows("Enter: open")
    with open(f"/proc/{t.program.pid}/fd/2", "a", encoding="utf-8") as f:
        f.write("first warning\nsecond warning\n")
    t.shows(r"^ second warning$", "x")
    check("first warning" not in t.text(), "one line of them")
    t.shows("Enter: open", "x")
    t.ends("q")
    check(b"first warning\r\nsecond warning" in t.raw, "both are printed after the end")


def the_screen_follows_its_size(top):
    t = Terminal(top, rows=10, cols=60)
    t.shows(r"^\+ model\.")
    t.resize(24, 100)
    t.shows(r"(?s)^\+ model\. +13 keys {2,}\d+ B.*q: quit")
    for rows, cols in (3, 20), (1, 1), (2, 5), (1, 200), (24, 80):
        t.resize(rows, cols)
        t.read(0.2)
        check(t.program.poll() is None, f"{rows} rows of {cols}")
    t.shows(r"^\+ model\.", "x")
    t.ends("q")


def every_end_restores_the_terminal(top):
    for keys in "q", INTERRUPT:
        t = Terminal(top)
        t.shows(r"q: quit")
        t.ends(keys)
    for number in signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGABRT, signal.SIGSEGV:
        t = Terminal(top)
        t.shows(r"q: quit")
        with open(f"/proc/{t.program.pid}/fd/2", "a", encoding="utf-8") as f:
            f.write("why it ends\n")
        t.program.send_signal(number)
        t.ends(code=-number)
        check(b"why it ends" in t.raw, f"{number}: what was said is printed")
    for keys in "", "/norm":  # a terminal that is gone, of which no signal tells
        t = Terminal(top, leads=False)
        t.shows(r"search: norm" if keys else r"q: quit", keys)
        os.close(t.slave)
        os.close(t.master)
        try:
            equal(t.program.wait(60), 0, "it ends with its terminal")
        except subprocess.TimeoutExpired:
            t.program.kill()
            check(False, "it does not end with its terminal")


def other_outputs_are_refused(top):
    fails(USAGE, "used on a terminal", "browse", top)
    t = Terminal(top, term="no-such-terminal")
    t.ends(code=ENV)
    check("TERM" in t.text(), t.text())
    t = Terminal(SCRATCH / "not-there")
    t.program.wait()
    t.read()
    check(t.program.returncode != 0 and "not-there" in t.text(), t.text())


source = model()
first = Terminal(source)
first.shows(f"q: quit|{NONE}")
if NONE in first.text():
    first.ends(code=ENV)
else:
    first.shows("q: quit")
    first.ends("q")
    a_tree_is_walked_and_searched(source)
    values_and_plan_are_the_tensors(source)
    members_of_objects_have_lines_of_their_own()
    statistics_are_kept_as_stats_keeps_them(source)
    wide_characters_take_two_columns()
    warnings_do_not_stand_on_the_screen(source)
    the_screen_follows_its_size(source)
    every_end_restores_the_terminal(source)
    other_outputs_are_refused(source)
finish()
