# SPDX-License-Identifier: Apache-2.0
"""What the tests of the program dcpfs share: running it, and saying what differs.

Every test is called as  TEST.py DCPFS  and runs in the project root.
"""
import collections
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from sample import SAMPLE, least, sample  # noqa: E402, F401: for the tests

DCPFS = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "dcpfs"
GOLDEN = pathlib.Path("tests/golden")
OK, NO, USAGE, ENV, BAD = range(5)
SANITIZER = re.compile(rb"AddressSanitizer|LeakSanitizer|runtime error:")

_scratch = tempfile.TemporaryDirectory(prefix="dcpfs-cli-")
SCRATCH = pathlib.Path(_scratch.name)
_wrong = 0
_checked = 0
_starts = collections.Counter()


def is_searched_for_leaks(verb):
    """Of a line of a test that starts @verb again and again, each SAMPLEth start: the search takes a third of it."""
    caller = sys._getframe(1)
    while caller.f_code.co_filename == __file__:
        caller = caller.f_back
    where = verb, caller.f_code.co_filename, caller.f_lineno
    _starts[where] += 1
    return _starts[where] % SAMPLE == 1 % SAMPLE


def run(*args, stdin=None, stdout=subprocess.PIPE, cwd=None, **env):
    """The finished process, its output in bytes. Environment variables by name; None unsets one."""
    full = dict(os.environ, LC_ALL="C.UTF-8", DCPFS_CACHE=str(SCRATCH / "cache"), TERM="dumb")
    full.pop("COLUMNS", None)
    if not is_searched_for_leaks(args[:1]):
        full["ASAN_OPTIONS"] = full.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    for name, value in env.items():
        full.pop(name, None)
        if value is not None:
            full[name] = str(value)
    got = subprocess.run([DCPFS, *map(str, args)], stdin=stdin or subprocess.DEVNULL, stdout=stdout,
                         stderr=subprocess.PIPE, env=full, cwd=cwd, timeout=240)
    if SANITIZER.search(got.stderr) or got.returncode < 0:
        check(False, f"dcpfs {' '.join(map(str, args))}: died: {got.returncode} {got.stderr.decode()}")
    return got


def data(*args, **env):
    """The JSON of a command that must succeed."""
    got = run(*args, **env)
    check(got.returncode == OK and not got.stderr,
          f"dcpfs {' '.join(map(str, args))}: exit {got.returncode}: {got.stderr.decode()}")
    return json.loads(got.stdout) if got.returncode == OK else None


def check(good, message):
    global _wrong, _checked
    _checked += 1
    if not good:
        _wrong += 1
        print(message)
    return good


def equal(got, want, what):
    return check(got == want, f"{what}: got {got!r}, want {want!r}")


def fails(code, says, *args, **env):
    """The command must fail with @code and one line (hints may follow, indented) that has @says in it."""
    got = run(*args, **env)
    words = f"dcpfs {' '.join(map(str, args))}"
    text = got.stderr.decode("utf-8", "replace")
    lines = text.splitlines()
    equal(got.returncode, code, f"{words}: exit code ({text.strip()})")
    check(lines and lines[0].startswith("dcpfs: "), f"{words}: no message, or not ours: {text!r}")
    check(all(line.startswith("  ") for line in lines[1:]), f"{words}: a stack of messages: {text!r}")
    check(says in text, f"{words}: message {text!r} does not say {says!r}")
    return got


def write(path, tensors, metadata=None):
    """A safetensors file: {key: (dtype, shape, bytes)}."""
    about, body = ({} if metadata is None else {"__metadata__": metadata}), b""
    for key, (dtype, shape, raw) in tensors.items():
        about[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def header(raw):
    """What the header of a safetensors file says."""
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])


def finish():
    print(f"{_checked} checks, {_wrong} wrong")
    sys.exit(1 if _wrong or not _checked else 0)
