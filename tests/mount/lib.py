# SPDX-License-Identifier: Apache-2.0
"""What every mount test needs: a private directory, mounts that end, checks that name their case.

A test is a file of functions; the last line is `lib.main(one, two, ...)`. Every function runs,
also when an earlier one failed; `python3 posix.py writes names` runs those two only.

    DCPFS_PROGRAM      the dcpfs to test (meson sets it)
    DCPFS_TEST_SEED    the seed of everything random; the one in use is printed
    DCPFS_TEST_KEEP    keep the working directory, and say where it is
    DCPFS_TEST_BLIND   mounts get no watch from inotify
"""
import atexit
import contextlib
import ctypes
import errno
import faulthandler
import glob
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import platform
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.path.append(str(ROOT / "tests"))

from sample import least, sample  # noqa: E402, F401: for the tests

PROGRAM = os.environ.get("DCPFS_PROGRAM", "dcpfs")
PROGRAM = os.path.abspath(PROGRAM) if "/" in PROGRAM else PROGRAM  # programs run in directories of their own
SKIP = 77
PATIENCE = 120       # seconds until a predicate must hold; sanitizers and busy machines are slow
NO_CONFIG = "hf/ has no config.json, which from_pretrained needs: --hf-assets DIR"  # said of most golden checkpoints
APPEARS = 5          # idle seconds (Idle) in which the mount promises to notice a change of its source
WATCHDOG = 300       # seconds until a function that hangs loses its daemons
MAX_TOLD = 40        # failures that are printed

SEED = int(os.environ.get("DCPFS_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
DIRTY = re.compile(r"(ERROR|WARNING): (Address|Leak|Thread)Sanitizer|AddressSanitizer:|runtime error:|Assertion .* failed")

failures = []
_case = [""]
_mounts = []
_numbers = iter(range(1 << 30))


# ---- checks ----

def case(text):
    """Name what is checked from here on; shown in front of failures."""
    _case[0] = text


def fail(what):
    failures.append(what)
    if len(failures) <= MAX_TOLD:
        print(f"FAIL {_case[0]}: {what}", flush=True)
    return False


def check(ok, what):
    return bool(ok) or fail(what)


def short(value):
    text = repr(value)
    return text if len(text) <= 300 else text[:200] + f"... ({len(text)} characters)"


def equal(got, want, what):
    return got == want or fail(f"{what}: got {short(got)}, want {short(want)}")


def errno_of(call, *args, **kwargs):
    """The name of the errno that a call fails with; None when it does not fail."""
    try:
        call(*args, **kwargs)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e.errno))
    return None


def fails(names, call, *args, **kwargs):
    """The call must fail with one of these, written "EIO ESTALE"."""
    got = errno_of(call, *args, **kwargs)
    return got in names.split() or fail(f"{call.__name__}{short(args)}: got {got}, want {names}")


class Idle:
    """Seconds that mounts let pass: without those in which a thread of theirs ran or waited for a core, so that how slow or
    busy the machine is makes no difference."""

    def __init__(self):
        self.began, self.known, self.worked = time.monotonic(), self.threads(), 0.0

    @staticmethod
    def threads():
        """{thread: seconds that it ran or could have}"""
        found = {}
        for m in filter(Mount.running, _mounts):
            for path in glob.glob(f"/proc/{m.pid}/task/*/schedstat"):
                with contextlib.suppress(OSError), open(path, encoding="ascii") as f:
                    found[path] = sum(map(int, f.read().split()[:2])) / 1e9
        return found

    def seconds(self):
        now = self.threads()
        self.worked += sum(n - self.known.get(thread, 0) for thread, n in now.items())
        self.known.update(now)
        return time.monotonic() - self.began - self.worked


def wait(predicate, what, seconds=PATIENCE):
    """Ask until it is so, then return what it said; a failure after so many seconds, which a short deadline counts as Idle does."""
    end = time.monotonic() + max(seconds, PATIENCE)
    idle = Idle() if seconds < PATIENCE else None
    while True:
        late = time.monotonic() > end or idle and idle.seconds() > seconds
        got = predicate()
        if got:
            return got
        if late:
            fail(f"not within {seconds} s: {what}")
            return got
        time.sleep(0.02)


def rng(*what):
    """Random numbers that depend on the seed and on what they are for."""
    return random.Random(":".join(map(str, (SEED, *what))))


# ---- the working directory ----

def _remove(path):
    if os.environ.get("DCPFS_TEST_KEEP"):
        print(f"kept: {path}")
    else:
        subprocess.run(["chmod", "-R", "u+rwX", str(path)], stderr=subprocess.DEVNULL)  # copies of a mount
        shutil.rmtree(path, ignore_errors=True)


WORK = pathlib.Path(tempfile.mkdtemp(prefix="dcpfs-mount."))
atexit.register(_remove, WORK)


def become(*argv):
    """Go on as another program, and leave nothing behind."""
    _remove(WORK)
    os.execvp(argv[0], argv)


def fresh(name):
    """A new empty directory."""
    path = WORK / f"{name}.{next(_numbers)}"
    path.mkdir()
    return path


def copy(src, dst):
    """A copy that may be damaged, with the times of the original. A mount sees all of it at once, however slowly it is made."""
    dst = pathlib.Path(dst)
    dst.parent.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(shutil.copytree(src, fresh("copy") / dst.name, symlinks=True)).rename(dst)


def joined(entry):
    """Composer's manifests write a key as its path; in dcpfs the components are joined with dots."""
    return {**entry, "key": ".".join(entry["path"])}


def golden_sources(name):
    """[(directory of versions, its part of the manifest as golden() has it)]: Composer's lie in several."""
    if not name.startswith("composer"):
        return [golden(name)]
    manifest = json.loads((GOLDEN / name / "manifest.json").read_text(encoding="utf-8"))
    sources = {}
    for v in manifest["versions"]:
        at = (GOLDEN / name / "ckpt" / v["name"]).parent
        sources.setdefault(at, {})[os.path.basename(v["name"])] = {
            "more": False, **v, "refused": False, "broken": [],
            **{kind: {x["key"]: x for x in map(joined, v[kind])} for kind in ("tensors", "objects")}}
    return list(sources.items())


def golden(name):
    """(directory of versions, manifest with one entry a version as the mount names it)."""
    manifest = json.loads((GOLDEN / name / "manifest.json").read_text(encoding="utf-8"))
    versions = {}
    for v in manifest["versions"]:
        # A file beside the others of a directory is no version there: its keys are below its name. One a rank, and
        # no metadata: below "rank<r>".
        m = re.fullmatch(r"(.*)/(?:checkpoint_)?(.*)\.pt", v["name"])
        below = f"rank{m[2]}" if m and m[2].isdigit() else m and m[2]
        into = versions.setdefault(m[1] if m else v["name"], {
            "complete": True, "refused": False, "tensors": {}, "objects": {}, "aliases": [],
            "broken": [], "more": v.get("more", "objects" not in v or "sharded_objects" in v)})
        into["complete"] &= v["complete"]
        into["refused"] |= v.get("expect", "").startswith("refuse")
        into["aliases"] += v.get("aliases", [])
        into["broken"] += v.get("refused", [])
        for kind in ("tensors", "objects"):
            for x in v.get(kind, []):
                x = {**x, **x.get("megatron", {})}  # as it is, where it is stored in another shape
                if "/" in x["key"] and len(x["path"]) > 1:
                    x["key"] = ".".join(x["path"])
                if str(x.get("json")).startswith("<"):
                    x["json"] = None  # a class, which has no form in JSON
                if below:
                    x = {**x, "key": f"{below}.{x['key']}", "path": [below, *x["path"]]}
                into[kind][x["key"]] = x
    return GOLDEN / name / "ckpt", versions


# ---- can this machine mount at all? ----

def _capable():
    """Is CAP_SYS_ADMIN in effect?"""
    with open("/proc/self/status", encoding="ascii") as f:
        return int(re.search(r"^CapEff:\s*(\w+)", f.read(), re.M)[1], 16) >> 21 & 1


def why_not():
    """Why nothing can be mounted here; None when it can."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as e:
        return f"/dev/fuse: {e.strerror}"
    helper = shutil.which("fusermount3")
    if not helper:
        return "fusermount3 is not installed"
    if not _capable() and not os.stat(helper).st_mode & 0o4000:
        return "not root, and fusermount3 is not set-user-id"
    return None


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(SKIP)


def replace_python(why):
    """Go on with the python that has the packages this one lacks, or skip."""
    python = os.environ.get("DCPFS_TEST_PYTHON", "")
    if python and os.environ.get("DCPFS_TEST_REPLACED") != python:
        os.environ["DCPFS_TEST_REPLACED"] = python
        become(python, *sys.argv)
    skip(f"{why}; tests/run.sh makes a python that has it")


def sanitized():
    """Was the program built with the address or the thread sanitizer?"""
    with open(shutil.which(PROGRAM) or PROGRAM, "rb") as f:
        return re.search(b"__[at]san_init", f.read()) is not None


# ---- mounts ----

def without_watches():
    """Called in a child before it becomes another program: inotify_add_watch() finds the user's limit reached."""
    load, equals, give = 0x20, 0x15, 0x06  # of linux/bpf_common.h
    number = {"x86_64": 254, "aarch64": 27}[platform.machine()]
    code = b"".join(struct.pack("HBBI", *x) for x in (
        (load, 0, 0, 0), (equals, 0, 1, number), (give, 0, 0, 0x50000 | errno.ENOSPC), (give, 0, 0, 0x7fff0000)))
    text = ctypes.create_string_buffer(code, len(code))
    if _libc.prctl(22, 2, struct.pack("HP", 4, ctypes.addressof(text))):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        os.write(2, b"no filter of system calls: inotify stays\n")



def unescape(text):
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def mounted(path):
    """The line of mountinfo on top at this place: {"type", "source", "options", "super"} or None."""
    found = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            front, _, back = line.rstrip("\n").partition(" - ")
            front, back = front.split(" "), back.split(" ")
            if unescape(front[4]) == str(path):
                found = {"type": back[0], "source": unescape(back[1]), "options": front[5], "super": back[2],
                         "device": front[2]}
    return found


def all_mounted():
    """Where dcpfs is mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        return [unescape(line.split(" ")[4]) for line in f if " - fuse.dcpfs " in line]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def sha(data):
    return hashlib.sha256(data).hexdigest()


def alive(pid):
    """Does the process run? (A zombie does not.)"""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def run(*argv, timeout=PATIENCE, **kwargs):
    """Run a program to its end: a CompletedProcess with text."""
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, errors="surrogateescape",
                          timeout=timeout, **kwargs)


def ok(*argv, **kwargs):
    """Run a program that must succeed; its stdout."""
    done = run(*argv, **kwargs)
    check(done.returncode == 0, f"{argv[0]} exits {done.returncode}: {short(done.stderr)}")
    return done.stdout


def knows(options):
    """Are these options of dcpfs mount? Not every build or release has them all."""
    page = run(PROGRAM, "mount", "--help").stdout
    return all(o.split("=")[0] in page for o in options)


def environment(cache=None):
    env = {**os.environ, "DCPFS_CACHE": str(cache or WORK / "cache"), "LC_ALL": "C.UTF-8"}
    for name in ("XDG_CACHE_HOME", "NOTIFY_SOCKET"):
        env.pop(name, None)
    return env


def stacks(pid):
    """Where each thread of a process is, as far as this machine tells."""
    if shutil.which("gdb"):
        return run("gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12").stdout
    lines = []
    for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            lines.append(" ".join((task / name).read_text().strip() for name in ("comm", "wchan", "syscall")))
    return "\n".join(lines)


class Mount:
    """A mount in the foreground, its words in a log. As a context it must end well."""

    def __init__(self, source, *options, cache=None, at=None, verb=("mount", "-f"), prefix=(), cwd=None,
                 program=None, answers=True, stays=False, blind=bool(os.environ.get("DCPFS_TEST_BLIND"))):
        self.at = pathlib.Path(at) if at else fresh("mnt")
        self.log_path = WORK / f"log.{next(_numbers)}"
        self.stays = stays  # until the end, not only until the end of the test that made it
        self.argv = [*map(str, prefix), str(program or PROGRAM), *verb, *map(str, options), str(source), str(self.at)]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=environment(cache), cwd=cwd or WORK,
                                            preexec_fn=without_watches if blind else None)
        _mounts.append(self)
        if answers:
            wait(lambda: self.answers() or self.process.poll() is not None, f"{self.argv} answers")
            if self.process.poll() is not None:
                raise RuntimeError(f"exit {self.process.returncode}: {' '.join(self.argv)}\n{self.log()}")

    @property
    def pid(self):
        return self.process.pid

    def answers(self):
        m = mounted(self.at)
        return bool(m) and m["type"] == "fuse.dcpfs" and errno_of(os.stat, self.at) in (None, "EACCES")

    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="surrogateescape")

    def running(self):
        return self.process.poll() is None

    def versions(self):
        return sorted(n for n in os.listdir(self.at) if n not in (".dcpfs", "by-key", "latest", "tags"))

    def latest(self):
        with contextlib.suppress(FileNotFoundError):
            return os.readlink(self.at / "latest")

    def index(self, version="latest"):
        """index.json with the entries by key."""
        doc = json.loads(read(self.at / version / "index.json"))
        return {**doc, "tensors": {t["key"]: t for t in doc["tensors"]},
                "objects": {o["key"]: o for o in doc["objects"]}}

    def control(self, name):
        return json.loads(read(self.at / ".dcpfs" / name))

    def stats(self):
        return {k: int(n) for k, n in map(str.split, read(self.at / ".dcpfs" / "stats").decode().splitlines())}

    def settled(self):
        """Wait until every version was opened or refused."""
        wait(lambda: all(v["state"] != "not opened yet" for v in self.control("status.json")["versions"]),
             "every version is opened")
        return self

    def unmount(self, exit_code=0):
        if mounted(self.at):
            done = run("fusermount3", "-u", "--", self.at)
            check(done.returncode == 0, f"unmounting: {done.stderr}")
        self.ends(exit_code)

    def ends(self, exit_code=0):
        """The daemon must go, and leave nothing behind."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            fail(f"the daemon did not end\n{stacks(self.pid)}")
            self.destroy()
            return
        equal(code, exit_code, f"exit code of the daemon, which said {short(self.log())}")
        check(not mounted(self.at) or exit_code, "still mounted after the daemon ended")
        check(not DIRTY.search(self.log()), f"sanitizer: {self.log()[:6000]}")

    def destroy(self):
        """Whatever state it is in: away with it."""
        if mounted(self.at):
            run("fusermount3", "-uz", "--", self.at)
        if self.running():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)  # without a mount it ends by itself
        if self.running():
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)  # one that sits in a request of its own may not die

    def __enter__(self):
        return self

    def __exit__(self, kind, value, tb):
        if kind is None:
            self.unmount()
        else:
            self.destroy()
            check(not DIRTY.search(self.log()), f"sanitizer: {self.log()[:6000]}")


def mount(source, *options, **kwargs):
    return Mount(source, *options, **kwargs)


def _destroy_all():
    for m in _mounts:
        m.destroy()


atexit.register(_destroy_all)


def _watchdog():
    """A test that hangs in a request cannot be killed; without its daemon it wakes up."""
    print(f"FAIL {_case[0]}: nothing moved for {WATCHDOG} s", flush=True)
    failures.append("watchdog")
    faulthandler.dump_traceback(sys.stdout)
    for m in _mounts:
        if m.running():
            m.process.kill()


# ---- reading ----

_libc = ctypes.CDLL(None, use_errno=True)


def forget(fd):
    """Drop the cached pages of an open file, so that the daemon is asked again."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def outcome(path, fd=None):
    """(bytes, None) or (None, errno name) of reading a whole file past the kernel's cache."""
    mine = fd is None
    try:
        if mine:
            fd = os.open(path, os.O_RDONLY)
        try:
            forget(fd)
            parts, at = [], 0
            while part := os.pread(fd, 1 << 20, at):
                parts.append(part)
                at += len(part)
            return b"".join(parts), None
        finally:
            if mine:
                os.close(fd)
    except OSError as e:
        return None, errno.errorcode[e.errno]


# ---- the run ----

def _terminated(number, frame):
    sys.exit(f"ended by signal {number}")


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # or what a caller (nohup, sh with &) ignores would be ignored by what is started
signal.signal(signal.SIGINT, signal.default_int_handler)


def directory_calls():
    """opendir and its family of the C library, and a readdir that gives a name, or name and inode, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir64.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    for f in (libc.readdir64, libc.telldir, libc.closedir, libc.rewinddir):
        f.argtypes = [ctypes.c_void_p]
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]

    def entry(d, inode=False):
        p = libc.readdir64(d)
        name = ctypes.string_at(p + 19) if p else None  # struct dirent64: u64, s64, u16, u8, name
        return (name, ctypes.c_uint64.from_address(p).value) if inode and p else name

    return libc, entry


def main(*tests):
    print(f"seed: DCPFS_TEST_SEED={SEED}", flush=True)
    signal.signal(signal.SIGTERM, _terminated)
    wanted = sys.argv[1:]
    if not shutil.which(PROGRAM):
        sys.exit(f"no program {PROGRAM}: set DCPFS_PROGRAM")
    why = why_not()
    if why:
        skip(why)
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        dog = threading.Timer(WATCHDOG, _watchdog)
        dog.daemon = True
        dog.start()
        before, began = len(failures), time.monotonic()
        case(test.__name__)
        try:
            test()
        except Exception:  # the next test may still tell something
            fail(traceback.format_exc())
        for m in _mounts:
            if not m.stays:
                m.destroy()
        print(f"{'ok  ' if len(failures) == before else 'FAIL'} {test.__name__} "
              f"({time.monotonic() - began:.1f} s)", flush=True)
        dog.cancel()
    if len(failures) > MAX_TOLD:
        print(f"... and {len(failures) - MAX_TOLD} more")
    print(f"{len(failures)} failures" if failures else "all well")
    sys.exit(1 if failures else 0)
