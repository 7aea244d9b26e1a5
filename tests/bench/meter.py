# SPDX-License-Identifier: Apache-2.0
"""Clocks, memory, processes and mounts of the benchmark."""
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time

EVERYWHERE = os.sched_getaffinity(0)


class Failed(Exception):
    """A step could not be measured; its row is reported so and the others go on."""


def private_memory(pid, sharers=1):
    """Bytes that only this process holds: anonymous pages, and its share of those that @sharers processes have in common."""
    with open(f"/proc/{pid}/status") as f:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in f if line.startswith(("RssAnon", "RssShmem"))}
    return (kib["RssAnon"] + kib["RssShmem"] // sharers) << 10


def cpu_of(pid):
    return time.clock_gettime((~pid << 3) | 2)      # CPU time of a process, as clock_getcpuclockid() has it


def written_by(pid):
    """Bytes that a process sent towards the disk."""
    with open(f"/proc/{pid}/io") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("write_bytes:"))


class Peak:
    """The most private memory a process had, looked up every two milliseconds."""

    def __init__(self, pid, sharers=1):
        self.pid, self.sharers, self.most, self.stop = pid, sharers, 0, threading.Event()
        self.first = self.look()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def look(self):
        with contextlib.suppress(OSError, KeyError):    # it has ended
            self.most = max(self.most, private_memory(self.pid, self.sharers))
        return self.most

    def watch(self):
        while not self.stop.wait(0.002):
            self.look()

    def done(self):
        self.stop.set()
        self.thread.join()
        return self.most


@contextlib.contextmanager
def pinned(cpus):
    """Processes started inside run on these CPUs only."""
    os.sched_setaffinity(0, cpus or EVERYWHERE)
    try:
        yield
    finally:
        os.sched_setaffinity(0, EVERYWHERE)


def run(cmd, env=None, peak=False, stdout=subprocess.DEVNULL):
    """One process from start to end: wall and CPU seconds, bytes written, private memory if asked."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        p = subprocess.Popen(cmd, stdout=stdout, stderr=errors, env=env)
        watch = Peak(p.pid) if peak else None
        _, status, used = os.wait4(p.pid, 0)
        wall = time.perf_counter() - began
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode:
            errors.seek(0)
            raise Failed(f"{' '.join(cmd)}: exit {p.returncode}: "
                         f"{errors.read().decode(errors='replace').strip()[-400:]}")
    out = {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "disk": 512 * used.ru_oublock}
    if watch:
        out["memory"] = watch.done()
    return out


def lines(cmd, peak=False):
    """A program that prints JSON lines: the lines, and its peak memory over what it had at "ready"."""
    with tempfile.TemporaryFile() as errors:
        p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=errors, text=True)
        got, watch = [], None
        for line in p.stdout:
            if line.startswith("{"):
                got.append(json.loads(line))
            elif line.strip() == "ready" and peak:
                watch = Peak(p.pid)
        extra = watch.done() - watch.first if watch else 0
        if p.wait():
            errors.seek(0)
            raise Failed(f"{' '.join(cmd)}: exit {p.returncode}: "
                         f"{errors.read().decode(errors='replace').strip()[-400:]}")
    return [dict(g, memory=extra) for g in got] if watch else got


def evict(*paths):
    """Drop the cached pages of files and of whole directories."""
    for top in paths:
        names = [top] if os.path.isfile(top) else \
            [os.path.join(at, f) for at, _, files in os.walk(top) for f in files]
        for name in names:
            fd = os.open(name, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def warm(*paths):
    for top in paths:
        names = [top] if os.path.isfile(top) else \
            [os.path.join(at, f) for at, _, files in os.walk(top) for f in files]
        for name in names:
            with open(name, "rb", buffering=0) as f:
                while f.read(1 << 20):
                    pass


def mounted(where):
    """major:minor of what is mounted there, or None."""
    with open("/proc/self/mountinfo") as f:
        for line in f:
            words = line.split()
            if words[4] == where:
                return words[2]
    return None


class Mount:
    """A FUSE server in the foreground, from before its mount until after its unmount."""

    def __init__(self, cmd, where, env=None, cpus=None, readahead=4096, peak=False):
        self.where = os.path.realpath(where)
        self.errors = tempfile.TemporaryFile()
        began = time.perf_counter()
        with pinned(cpus):
            self.process = subprocess.Popen([*cmd], stdout=subprocess.DEVNULL, stderr=self.errors, env=env)
        self.pid = self.process.pid
        self.watch = Peak(self.pid) if peak else None
        while not (device := mounted(self.where)):
            if self.process.poll() is not None or time.perf_counter() - began > 120:
                self.fail("did not mount")
            time.sleep(0.001)
        os.stat(self.where)
        self.readahead = self.set_readahead(device, readahead)

    def set_readahead(self, device, kib):
        """As root the server's read-ahead becomes ours; else it stays what it is. Returns what it is."""
        path = f"/sys/class/bdi/{device}/read_ahead_kb"
        with contextlib.suppress(OSError):
            with open(path, "w") as f:
                f.write(str(kib))
        with contextlib.suppress(OSError), open(path) as f:
            return int(f.read())
        return None

    def fail(self, what):
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        raise Failed(f"{self.process.args[0]} {what}: "
                     f"{self.errors.read().decode(errors='replace').strip()[-400:]}")

    def memory(self):
        return private_memory(self.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.watch:
            self.watch.done()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            subprocess.run(["fusermount3", "-uz", self.where], check=False)
            self.process.kill()
            self.process.wait()
        if mounted(self.where):
            subprocess.run(["fusermount3", "-uz", self.where], check=False)
        self.errors.close()
