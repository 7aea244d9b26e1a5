# SPDX-License-Identifier: Apache-2.0
"""dcpfs status: what a mount does, as text and as JSON, and what is said of mounts that do not answer."""
import json
import mmap
import os
import signal
import subprocess
import sys
import time

import lib
from lib import check, equal, run, wait

SOURCE = lib.GOLDEN / "dcp-fsdp2" / "ckpt"


def status(at, *words, code=0):
    done = run(lib.PROGRAM, "status", at, *words, env=lib.environment())
    equal(done.returncode, code, f"exit code: {done.stderr}")
    return done


def status_agrees_with_control_files():
    """JSON has what the mount's own files have, before and after reading; text has the same in words."""
    with lib.mount(SOURCE) as m:
        m.settled()
        before = json.loads(status(m.at, "--interval", "0", "--json").stdout)
        check("rates" not in before and "interval_s" not in before, "no rates")
        told = json.loads(lib.read(m.at / ".dcpfs" / "status.json"))
        for name in ("source", "pid", "latest", "mounted", "dcpfs"):
            equal(before[name], told[name], name)
        equal(before["mountpoint"], str(m.at), "mount point")
        equal(before["versions"], {"shown": 2, "open": 2, "refused": 0, "incomplete": 1}, "versions")
        equal(before["errors"], {"broken_keys": 0, "failures": 0}, "errors")
        check(before["process"]["memory_bytes"] > 1 << 20 and 3 < before["process"]["descriptors"] < 1000, f"{before['process']}")
        size = sum(len(lib.read(p)) for p in (m.at / "latest" / "raw").iterdir())
        for p in (m.at / "latest" / "raw").iterdir():
            os.close(os.open(p, os.O_RDONLY))
        after = json.loads(status(m.at, "--json", "--interval", "300").stdout)
        check(after["totals"]["read_bytes"] >= before["totals"]["read_bytes"] + size, f"bytes: {before['totals']}, {after['totals']}")
        check(after["file_cache"]["hits"] >= before["file_cache"]["hits"] + 50, f"hits: {after['file_cache']}")
        check(after["interval_s"] >= 0.3 and set(after["rates"]) == set(after["totals"]), "rates")
        equal(after["rates"]["read_bytes"] < 1000, True, f"its own reading is not in the rate: {after['rates']}")
        text = status(m.at, "--interval", "0").stdout
        for word in (str(SOURCE), str(m.pid), "2 shown, 2 open, 0 refused, 1 incomplete", "step-20", "errors      none"):
            check(word in text, f"{word!r} in {text}")
        check("server" not in text, "nothing of servers")


def rates_are_those_of_readers():
    """While a program reads, the rate is what it reads."""
    with lib.mount(SOURCE) as m:
        m.settled()
        reader = subprocess.Popen([sys.executable, "-c", "import sys\nwhile True:\n for p in sys.argv[1:]: open(p, 'rb').read()",
                                   *map(str, (m.at / "latest" / "safetensors").iterdir())])
        wait(lambda: m.stats()["read"] > 200, "it reads")
        got = json.loads(status(m.at, "--json", "--interval", "1500").stdout)
        reader.kill()
        reader.wait()
        check(got["rates"]["open"] > 5 and got["totals"]["open"] > 50, f"{got['rates']}")


def users_are_counted_once():
    """A process that has a file open, or mapped after it closed it, or stands in a directory is counted once."""
    with lib.mount(SOURCE) as m:
        m.settled()
        path = next((m.at / "latest" / "raw").iterdir())

        def clients():
            return json.loads(status(m.at, "--json", "--interval", "0").stdout)["clients"]

        equal(clients(), 0, "nobody")
        with open(path, "rb") as f:
            equal(clients(), 1, "open")
            equal(json.loads(status(m.at, "--json", "--interval", "0").stdout)["process"]["open_files"], 1, "open files")
            pages = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        equal(clients(), 1, "mapped")
        pages.close()
        inside = subprocess.Popen(["sleep", "60"], cwd=m.at / "latest")
        wait(lambda: clients() == 1, "inside")
        inside.kill()
        inside.wait()
        equal(clients(), 0, "nobody again")


def failures_are_counted():
    """Keys that cannot be read are counted, and where they are named is said."""
    with lib.mount(lib.GOLDEN / "torch-ranks" / "ckpt") as m:
        m.settled()
        text = status(m.at, "--interval", "0").stdout
        check("errors      1 broken key, 0 failures: .dcpfs/errors.json\n" in text, f"errors: {text}")
        equal(json.loads(status(m.at, "--interval", "0", "--json").stdout)["errors"], {"broken_keys": 1, "failures": 0}, "as JSON")
        equal(len(json.loads(lib.read(m.at / ".dcpfs" / "errors.json"))), 1, "errors.json")


def other_places_are_refused():
    """What is no mount, what is dead and what hangs is said, each in one line."""
    place = lib.fresh("plain")
    equal(status(place, code=2).stderr, f"dcpfs: {place} is not a mount point; \"findmnt -t fuse.dcpfs\" lists those of dcpfs\n", "a directory")
    equal(status(place / "absent", code=3).stderr, f"dcpfs: {place}/absent: No such file or directory\n", "nothing")
    check("of type proc" in status("/proc", code=2).stderr, "another mount")
    with lib.mount(SOURCE) as m:
        m.settled()
        os.kill(m.pid, signal.SIGSTOP)
        began = time.monotonic()
        said = status(m.at, "--interval", "0", code=3).stderr
        os.kill(m.pid, signal.SIGCONT)
        check("does not answer" in said and said.count("\n") == 1, f"stopped: {said}")
        check(time.monotonic() - began < 60, "it does not wait for ever")
        status(m.at, "--interval", "0")
    m = lib.Mount(SOURCE, at=lib.fresh("mnt"))
    os.kill(m.pid, signal.SIGKILL)
    wait(lambda: not lib.alive(m.pid), "it ends")
    said = status(m.at, code=3).stderr
    check("holds a dead mount" in said and f"dcpfs umount {m.at}" in said and said.count("\n") == 1, f"dead: {said}")
    equal(run(lib.PROGRAM, "umount", m.at, env=lib.environment()).returncode, 0, "umount")


lib.main(status_agrees_with_control_files, rates_are_those_of_readers, users_are_counted_once, failures_are_counted,
         other_places_are_refused)
