#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An export that is killed, has no room, or would replace something: OUT is complete or not there, nothing else is taken
for a checkpoint, and the next export goes on or starts again.

usage: export_crash.py DCPFS [KILLS]
"""
import fcntl
import hashlib
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile

from cli import BAD, DCPFS, ENV, GOLDEN, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run, sample

SEED = int(os.environ.get("DCPFS_TEST_SEED", "0")) or random.randrange(1 << 30)
KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else len(sample(range(12)))
MB = 1 << 20
FORMATS = ("safetensors", "torch-dcp", "torch-save")


def make_source(path, sizes):
    """A safetensors file of tensors of bytes."""
    path.mkdir()
    header, at = {}, 0
    for i, n in enumerate(sizes):
        header[f"w.{i}"] = {"dtype": "U8", "shape": [n], "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for i, n in enumerate(sizes):
            f.write(random.Random(i).randbytes(n))


def start(*args, ranks={}, **more):
    env = dict(os.environ, LC_ALL="C.UTF-8", DCPFS_CACHE=str(SCRATCH / "cache")) | ranks
    return subprocess.Popen([DCPFS, "export", *map(str, args)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def halt(p):
    """Stop it. When this returns no thread of it runs any more, or it has ended."""
    if p.poll() is None:
        os.kill(p.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, p.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


LIST = ".dcpfs-written"


def tree(path):
    """Names and contents below a path, or of a file. The list of them differs, as times do."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and p.name != LIST)
    return {str(p.relative_to(path.parent)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def hidden(place):
    return sorted(p.name for p in place.iterdir() if p.name.startswith(".") and p.name != LIST)


def clear(place):
    subprocess.run(["rm", "-rf", str(place)], check=True)
    place.mkdir()


def killed_exports_are_resumed(source, place):
    for form in FORMATS:
        name = "out.pt" if form == "torch-save" else "out"
        out = place / name
        clear(place)
        begin = time.monotonic()
        equal(start("--as", form, source, out).wait(), OK, f"{form}: whole")
        long, want = time.monotonic() - begin, tree(out)
        resumed = 0
        for i in range(KILLS):
            clear(place)
            p = start("--as", form, "--jobs", "1", source, out)
            time.sleep(random.uniform(0, long * 1.2))
            p.send_signal(signal.SIGKILL)
            p.communicate()
            got = tree(out)
            check(got in (None, want), f"{form}: killed: something else stands at OUT")
            check(all(n.startswith(".out") and ".dcpfs-" in n for n in hidden(place)), f"{form}: left {hidden(place)}")
            listed = run("ls", "--versions", "--json", place)
            names = [v["name"] for v in json.loads(listed.stdout)] if listed.returncode == OK else []
            check(names in ([], ["out"], [name]) and (got or not names), f"{form}: killed: ls sees {names}")
            if got:
                continue
            more = ["--resume"] if i % 2 else []
            said = data("export", "--as", form, "--json", *more, source, out)
            resumed += said["kept"] > 0 if said else 0
            equal(tree(out), want, f"{form}: after a kill, {more}")
            equal(hidden(place), [], f"{form}: what was left after that")
        print(f"{form}: {KILLS} kills, {resumed} went on from what was there")


def planned(journal):
    """Has it more than the mark and the room that are there before its plan?"""
    try:
        return journal.read_bytes()[:8] == b"dcpfsSV1"
    except FileNotFoundError:
        return False


def changed_leftovers_are_written_again(source, place):
    """Bytes of a killed export that changed meanwhile are written again; an export of something else starts again."""
    for what in ("bytes", "other"):
        out = place / "out"
        part, journal = place / ".out.dcpfs-part" / ".dcpfs-last", place / ".out.dcpfs-journal"
        for _ in range(20):
            clear(place)
            p = start("--as", "safetensors", "--jobs", "1", source, out)
            while p.poll() is None and not planned(journal):
                time.sleep(0.001)
            halt(p)
            p.kill()
            p.communicate()
            if part.exists():
                break
        check(part.exists(), f"{what}: never killed in time")
        if what == "bytes":
            with open(part, "r+b") as f:
                f.seek(100000)
                f.write(b"damage")
            data("export", "--as", "safetensors", "--json", "--resume", "--verify", source, out)
        else:
            got = run("export", "--as", "safetensors", "--json", "--resume", "--skip", "w.0", "--verify", source, out)
            check(b"is of other options" in got.stderr, f"it starts again, and says why: {got.stderr}")
            equal(json.loads(got.stdout)["kept"], 0, "resumed an export of other keys")
        equal(hidden(place), [], f"{what}: what was left")


def signals_stop_exports(source, place):
    """Ctrl-C and SIGTERM: the exit code that shells expect, and a line that says what is left."""
    left, out = place / ".out.dcpfs-part", place / "out"
    for sig in signal.SIGINT, signal.SIGTERM:
        for _ in range(20):
            clear(place)
            p = start("--as", "safetensors", "--jobs", "1", source, out)
            while p.poll() is None and not planned(place / ".out.dcpfs-journal"):
                time.sleep(0.001)
            p.send_signal(sig)
            said = p.communicate()[1].decode()
            if left.exists():
                break
        equal((p.returncode, said), (-sig, f"dcpfs: export: stopped: {left} is left; --resume goes on with it, another export to that name "
                                           "removes it\n"), f"stopped by {sig.name}")
        data("export", "--as", "safetensors", "--json", "--resume", source, out)
        equal(hidden(place), [], "resumed after that")
    run("index", source, DCPFS_CACHE=place / "cache")
    index = next((place / "cache").glob("*.dcpx"))
    index.unlink()
    with open(f"{index}.lock", "w") as lock:  # as another process that builds the index: it is waited for
        fcntl.flock(lock, fcntl.LOCK_EX)
        p = start("--as", "safetensors", source, place / "early", ranks={"DCPFS_CACHE": str(place / "cache")})
        while p.poll() is None and not int(open(f"/proc/{p.pid}/status").read().split("SigCgt:")[1].split()[0], 16) & 2:
            time.sleep(0.001)
        p.send_signal(signal.SIGINT)
        said = p.communicate()[1].decode()
    equal((p.returncode, said), (-signal.SIGINT, "dcpfs: export: stopped: nothing is left\n"), "early")


def size_limits_leave_nothing(source, place):
    """Files may have so many bytes only: a full disk for those who cannot mount one."""
    def limit(n):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n, n))

    for i, n in enumerate([0, 10, 5000, MB, 3 * MB, 7 * MB, 12 * MB]):
        for form in sample(FORMATS, i):
            clear(place)
            out = place / ("out.pt" if form == "torch-save" else "out")
            p = start("--as", form, source, out, preexec_fn=lambda: limit(n))
            said = p.communicate()[1].decode()
            equal(p.returncode, ENV, f"{form}, files of {n} bytes: exit code ({said.strip()})")
            check("File too large" in said and "out" in said, f"{form}, files of {n} bytes: {said!r}")
            equal(list(place.iterdir()), [], f"{form}, files of {n} bytes: what is left")


def full_disks_leave_nothing(source, place):
    clear(place)
    for i, n in enumerate((1, 5, 12)):
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n}m", "tmpfs", place], capture_output=True).returncode:
            print("no tmpfs may be mounted here: limits of file sizes stand in for full disks")
            return
        try:
            for form in sample(FORMATS, i):
                got = run("export", "--as", form, source, place / "out.pt" if form == "torch-save" else place / "out")
                equal(got.returncode, ENV, f"{form}, {n} MiB of disk: exit code ({got.stderr.decode()})")
                check(b"No space left" in got.stderr and b"removed again" in got.stderr, f"{form}, {n} MiB: {got.stderr.decode()}")
                for to in ("", "new/above/"):
                    got = run("export", "--dry-run", "--as", form, source, place / to / ("out.pt" if form == "torch-save" else "out"))
                    equal((got.returncode, b"No space left" in got.stderr), (ENV, True), f"{form}, {n} MiB: a dry run into {to or 'the top'}: {got.stderr.decode()}")
                equal(list(place.iterdir()), [], f"{form}, {n} MiB of disk: what is left")
        finally:
            subprocess.run(["umount", place], check=True)


def existing_files_are_protected(source, place):
    clear(place)
    out, file = place / "out", place / "w.safetensors"
    export = ("export", "--as", "safetensors", source)
    out.mkdir()
    equal(run(*export, out).returncode, OK, "an empty directory is taken")
    want = tree(out)
    fails(USAGE, "--force replaces it", *export, out)
    equal(run(*export, out / "sub.safetensors").returncode, OK, "into a directory that is there")
    equal(run(*export, "--force", "--skip", "w.1", out).returncode, OK, "--force")
    check(tree(out) not in (None, want) and not (out / "sub.safetensors").exists(), "--force replaces all of it")
    file.write_bytes(b"mine")
    fails(USAGE, "--force replaces it", *export, file)
    equal(file.read_bytes(), b"mine", "a file that is there")
    fails(USAGE, "w.safetensors was not written by dcpfs", *export, "--force", file)
    shutil.copyfile(source / "model.safetensors", file)  # weights of others are lost as well as any other file
    fails(USAGE, "w.safetensors was not written by dcpfs", *export, "--force", file)
    file.unlink()
    for _ in range(2):
        equal(run(*export, "--force", file).returncode, OK, "--force of a name that is free, and of what it wrote")
    os.utime(file)
    fails(USAGE, "w.safetensors was changed since dcpfs wrote it", *export, "--force", file)
    for form, name in (("safetensors", "m.safetensors"), ("torch-save", "n.pt"), ("npz", "n.npz"), ("paddle", "n.pdparams"), ("paddle-binary", "n.pdiparams")):
        one = place / name
        one.write_bytes(b"my notes\n" * 20)
        fails(USAGE, f"{name} was not written by dcpfs", "export", "--as", form, "--force", source, one)
        equal(one.read_bytes(), b"my notes\n" * 20, f"{form}: a file of that name")
        one.unlink()
        for _ in range(2):
            equal(run("export", "--as", form, "--force", "--keys", "w.4", source, one).returncode, OK, f"{form}: --force of what it wrote")
    equal(run("export", "--as", "torch-save", "--force", source, place / "n.pt").returncode, OK, "of another content")
    before = tree(source)
    fails(USAGE, "which is read", *export, "--force", source)
    (place / "link").symlink_to(source)
    fails(USAGE, "which is read", *export, "--force", place / "link" / "w.safetensors")
    (place / "leaf").symlink_to(source / "model.safetensors")
    fails(USAGE, "lies in", *export, "--force", place / "leaf")
    fails(USAGE, "which is read", "load", source, "--dump", source / "ranks")
    fails(USAGE, "which is read", "load", source, "--trace", source / "t.svg")
    equal(tree(source), before, "the source")
    (place / "above").mkdir()
    shutil.copy(file, place / "above" / "w.safetensors")
    fails(USAGE, "holds", "export", "--as", "safetensors", "--force", place / "above" / "w.safetensors", place / "above")
    (place / "notes").mkdir()
    (place / "notes" / "thesis.txt").write_text("mine")
    fails(USAGE, "notes/thesis.txt was not written by dcpfs", *export, "--force", place / "notes")
    shutil.copytree(source, place / "theirs")
    fails(USAGE, "theirs/model.safetensors was not written by dcpfs", *export, "--force", place / "theirs")
    shutil.rmtree(place / "theirs")
    own = place / "own"
    for form, to in (("torch-save", "npy"), ("npy", "torch-dcp"), ("torch-dcp", "paddle-vars"), ("paddle-vars", "safetensors")):
        equal(run("export", "--as", form, "--force", "--keys", "w.4", source, own).returncode, OK, f"{form} in place of what was there")
        for name in ("train.py", "other.pt", "config.json", ".hidden", "sub/deep/x", "sub/", "link"):  # what dcpfs did not write stays
            foreign = own / name
            if name == "link":
                foreign.symlink_to(source)
            elif name.endswith("/"):
                foreign.mkdir()
            else:
                foreign.parent.mkdir(parents=True, exist_ok=True)
                foreign.write_text("{}")
            had = tree(own)
            fails(USAGE, f"own/{'sub/' if name.startswith('sub') else name} was not written by dcpfs", "export", "--as", to, "--force", source, own)
            equal((tree(own), hidden(place)), (had, []), f"{form}: {name} beside it")
            subprocess.run(["rm", "-r", own / name.split("/")[0]], check=True)
        one = next(p for p in sorted(own.rglob("*")) if p.is_file() and p.name != LIST)
        was = one.stat()
        for change in ("time", "length"):
            if change == "length":
                os.truncate(one, was.st_size + 1)
                os.utime(one, ns=(was.st_atime_ns, was.st_mtime_ns))
            else:
                os.utime(one, ns=(0, was.st_mtime_ns + 1))
            fails(USAGE, f"own/{one.relative_to(own)} was changed since dcpfs wrote it", "export", "--as", to, "--force", source, own)
        os.truncate(one, was.st_size)
        os.utime(one, ns=(was.st_atime_ns, was.st_mtime_ns))
    subprocess.run(["cp", "-a", own, place / "copy"], check=True)
    equal(run(*export, "--force", place / "copy").returncode, OK, "a copy with its times")
    (own / LIST).write_text("1 2\nx y z\n99999999999999999999 1 model.safetensors\n\0\n5 5 ../../up\n")
    fails(USAGE, " was not written by dcpfs", *export, "--force", own)
    (own / LIST).unlink()
    os.mkfifo(own / LIST)
    fails(USAGE, " was not written by dcpfs", *export, "--force", own)
    (own / LIST).unlink()
    (own / LIST).symlink_to("/etc/passwd")
    fails(USAGE, " was not written by dcpfs", *export, "--force", own)
    (own / LIST).unlink()
    assets = place / "assets"
    assets.mkdir()
    (assets / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
    (assets / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                                                     {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (assets / "1_Pooling").mkdir()
    (assets / "1_Pooling" / "config.json").write_text("{}")
    model = place / "sentences"
    for _ in range(2):  # directories of its own are replaced
        equal(run(*export, "--hf", "--hf-assets", assets, "--partial", "--force", model).returncode, OK, "--force of a model with directories")
        check((model / "1_Pooling" / "config.json").exists(), f"a model with directories: {tree(model)}")
    (model / "1_Pooling" / "mine").write_text("mine")
    fails(USAGE, "sentences/1_Pooling/mine was not written by dcpfs", *export, "--force", model)
    said = json.loads(run("ls", "--json", "--versions", model).stdout)
    equal([v["complete"] for v in said], [True], "the list is not taken for anything")
    own = place / "job"
    equal(run(*export, own).returncode, OK, "for several ranks")
    (own / "mine").write_text("mine")
    equal((place / "notes" / "thesis.txt").read_text(), "mine", "what is not a checkpoint")
    all_ = job(source, own, "safetensors")
    said = [p.communicate()[1] for p in all_]
    equal(([p.returncode for p in all_], [len(s.splitlines()) > 0 for s in said]), ([USAGE] * 3, [True, False, False]),
          f"all ranks end with the code of what is there, one says it: {said}")
    (place / "d.pt").mkdir()
    fails(USAGE, "is a directory", "export", "--as", "torch-save", source, place / "d.pt")
    fails(USAGE, "which is read", *export, source / "inside")
    fails(USAGE, "which is read", *export, source / "w.safetensors")
    equal(run(*export, place / "made" / "too" / "such").returncode, OK, "directories above that are missing")
    fails(ENV, "No such file", *export, place / "made" / "no" / ".." / "such")
    fails(USAGE, "which is read", *export, source / "new" / "out")
    check(not (source / "new").exists(), "nothing is made in the source")
    fails(USAGE, "formats are", "export", "--as", "nonsense", source, place / "x")
    fails(USAGE, "--as FORMAT is needed", "export", source, place / "x")
    (place / ".theirs.dcpfs-part").mkdir()
    (place / ".theirs.dcpfs-part" / "file").write_text("mine")
    fails(USAGE, "was not left by dcpfs", *export, place / "theirs")
    equal((place / ".theirs.dcpfs-part" / "file").read_text(), "mine", "a directory of another program")


def complete_exports_are_not_resumed(source, place):
    """What is complete is not resumed, and no error; what is something else is one."""
    clear(place)
    out = place / "out"
    export = ("export", "--as", "safetensors", "--resume", source, out)
    whole = data(*export, "--json")
    want = tree(out)
    for n in (1, 3):
        all_ = job(source, out, "safetensors", "--resume", "--json", n=n)
        said = [p.communicate() for p in all_]
        check([p.returncode for p in all_] == [OK] * n and b"nothing to resume" in said[0][1], f"{n} resume what is complete: {said}")
        equal(json.loads(said[0][0])["kept"], sum([5 * MB + 3, 1, 0, 9 * MB, 70000, 8 * MB + 1] + [1000] * 50), f"{n}: all was there")
    check(b"out is complete\n" in run(*export, "--verify").stderr, "verified")
    equal((whole["kept"], tree(out), hidden(place)), (0, want, []), "what is complete")
    fails(USAGE, "differs from what is to be written", *export, "--skip", "w.1")
    with open(out / "model.safetensors", "r+b") as f:
        f.seek(-1, 2)
        f.write(b"?")
    fails(BAD, "is not what was read", *export, "--verify")
    fails(USAGE, "out/model.safetensors was changed since", *export, "--force")
    (out / "model.safetensors").unlink()
    equal(run(*export, "--force").returncode, OK, "--force --resume")
    equal(tree(out), want, "--force --resume")


def dry_runs_write_nothing(source, place):
    """What would be written is said, nothing is made, and the exit code is that of the export."""
    for form, name in (("safetensors", "out"), ("torch-dcp", "new/above/out"), ("torch-save", "out.pt"), ("npy", "npy")):
        clear(place)
        out = place / name
        args = ("--as", form, "--skip", "w.2", source, out)
        said = data("export", "--dry-run", "--json", *args)
        text = run("export", "--dry-run", *args)
        equal((text.returncode, list(place.iterdir())), (OK, []), f"{form}: a dry run makes nothing ({text.stderr})")
        check(f"{out} would be written: {form}, " in text.stdout.decode(), f"{form}: {text.stdout}")
        real = data("export", "--json", *args)
        there = {str(p.relative_to(out)): p.stat().st_size for p in out.rglob("*") if p.is_file() and p.name != LIST} if out.is_dir() else {out.name: out.stat().st_size}
        equal({f["name"]: f["bytes"] for f in said["dry_run"]}, there, f"{form}: files and bytes")
        equal([said[k] for k in ("tensors", "files", "bytes", "left_out")], [real[k] for k in ("tensors", "files", "bytes", "left_out")], form)
        was = tree(out)
        for code, more in (USAGE, ()), (OK, ("--force",)), (OK, ("--resume",)):
            equal(run("export", "--dry-run", *more, *args).returncode, code, f"{form}: {more}, OUT is there")
        equal((tree(out), hidden(place)), (was, []), f"{form}: what is there")
    (out / "mine").write_text("mine")
    fails(USAGE, "npy/mine was not written by dcpfs", "export", "--dry-run", "--force", *args)
    (place / ".npy.dcpfs-journal").write_bytes(b"dcpfs")
    (place / ".npy.dcpfs-part").mkdir()
    run("export", "--dry-run", *args)
    equal(hidden(place), [".npy.dcpfs-journal", ".npy.dcpfs-part"], "what a killed export left stays")


def progress_is_json(source, place):
    """Lines of JSON on stderr, which end with all of it; without the option nothing."""
    clear(place)
    got = run("export", "--as", "safetensors", "--jobs", "1", "--json-progress", source, place / "out")
    lines = [json.loads(line) for line in got.stderr.decode().splitlines()]
    check(lines and all(set(line) == {"doing", "unit", "done", "total", "rate"} for line in lines), f"progress: {got.stderr[:500]}")
    last = [line for line in lines if line["unit"] == "bytes"][-1]
    check(last["done"] == last["total"] > 20 * MB and "writing model.safetensors" == last["doing"], f"progress: {last}")
    equal(run("export", "--as", "safetensors", source, place / "silent").stderr, b"", "progress that nobody asked for")


def two_exports_exclude_each_other(source, place):
    clear(place)
    first = start("--as", "safetensors", source, place / "out")
    while first.poll() is None and not (place / ".out.dcpfs-part").exists():  # made when the journal is locked
        time.sleep(0.001)
    halt(first)
    if first.poll() is None and (place / ".out.dcpfs-journal").exists():
        fails(ENV, "being written by another process", "export", "--as", "safetensors", source, place / "out")
    first.send_signal(signal.SIGCONT)
    first.communicate()
    equal(first.returncode, OK, "the first of two")
    equal(hidden(place), [], "what two left")


def changed_sources_are_refused(source, place):
    """A file of the source that is cut while it is read: an error, and nothing is left."""
    clear(place)
    copy = place / "copy"
    subprocess.run(["cp", "-r", source, copy], check=True)
    out = SCRATCH / "cut"
    p = start("--as", "safetensors", "--jobs", "1", copy, out)
    while p.poll() is None and not (SCRATCH / ".cut.dcpfs-journal").exists():
        time.sleep(0.001)
    os.truncate(copy / "model.safetensors", 100000)
    said = p.communicate()[1].decode()
    check(p.returncode in (OK, ENV, BAD) and (p.returncode == OK) == out.exists(), f"cut meanwhile: {p.returncode} {said}")
    check(p.returncode == OK or said.startswith("dcpfs: "), f"cut meanwhile: {said!r}")
    equal([n for n in hidden(SCRATCH) if "cut" in n], [], "cut meanwhile: what is left")


def changed_output_is_noticed(source, place):
    """What was written is changed before it is read back."""
    for _ in range(20):
        clear(place)
        p = start("--as", "safetensors", "--verify", source, place / "out")
        part = place / ".out.dcpfs-part" / "model.safetensors"
        while p.poll() is None and not part.exists():
            pass
        halt(p)
        if part.exists():
            was = part.stat().st_mtime_ns
            with open(part, "r+b") as f:
                f.seek(-1, 2)
                last = f.read(1)
                f.seek(-1, 2)
                f.write(bytes([last[0] ^ 1]))
            os.utime(part, ns=(was, was))  # or it would be another file, not another content
        p.send_signal(signal.SIGCONT)
        said = p.communicate()[1].decode()
        if p.returncode != OK:
            check("what was written is not what was read: bytes from " in said, f"changed before it was verified: {said!r}")
            equal(list(place.iterdir()), [], "changed before it was verified: what is left")
            return
    check(False, "never changed in time")


def job(source, out, form, *more, n=3, each=lambda r: ()):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = dict(WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DCPLOAD_TIMEOUT="120",
               TORCHELASTIC_RESTART_COUNT=os.urandom(8).hex())  # another job may have the same port
    source_of = source if callable(source) else lambda r: source
    return [start("--as", form, "--jobs", "1", *more, *each(r), source_of(r), out, ranks=dict(env, RANK=str(r), LOCAL_RANK=str(r)))
            for r in range(n)]


def noted(place):
    """Pieces that a journal has as done."""
    for p in place.glob(".*.dcpfs-journal"):
        try:
            journal = p.read_bytes()
        except FileNotFoundError:  # all are done
            continue
        return sum(struct.unpack_from("<QII", journal, 24 + at)[2] != 0 for at in range(0, len(journal) - 39, 16))
    return 0


def killed_ranks_are_resumed(source, place):
    """Three processes, all killed at any time: as many as there are then go on, each with what is its own to write."""
    resumed = 0
    for i in range(max(3, KILLS // 2)):
        form = FORMATS[i % 3]
        out = place / ("out.pt" if form == "torch-save" else "out")
        clear(place)
        equal(start("--as", form, source, out).wait(), OK, f"{form}: whole")
        want = tree(out)
        clear(place)
        all_, enough = job(source, out, form), random.randrange(4)
        while any(p.poll() is None for p in all_) and noted(place) < enough:
            time.sleep(0.001)
        for p in random.sample(all_, 3):
            p.kill()
        for p in all_:
            p.communicate()
        got, before = tree(out), noted(place)
        check(got in (None, want), f"{form}: three killed: something else stands at OUT")
        if got:
            continue
        n = 1 + i % 4
        again = job(source, out, form, "--resume", "--json", n=n)
        said = [p.communicate() for p in again]
        equal([p.returncode for p in again], [OK] * n, f"{form}: {n} go on: {said}")
        equal(tree(out), want, f"{form}: {n} went on after three were killed")
        equal(hidden(place), [], f"{form}: what was left after that")
        kept = json.loads(said[0][0])["kept"]
        check((kept > 0) == (before > 0), f"{form}: {before} pieces were noted, {kept} bytes kept by {n}")
        resumed += kept > 0
    print(f"three processes: {resumed} times others went on")


def every_way_to_write_agrees(source, place):
    """What the kernel copies from file to file, or what goes past the page cache, is the same."""
    for form in FORMATS:
        out = place / ("out.pt" if form == "torch-save" else "out")
        clear(place)
        said = data("export", "--as", form, "--json", source, out)
        want = tree(out)
        equal(said["copied"], 0 if form != "safetensors" else said["bytes"] - head_of(out), f"{form}: copied by the kernel")
        said = data("export", "--as", form, "--json", "--direct", "--verify", "--force", source, out)
        equal((tree(out), said["copied"]), (want, 0), f"{form}: --direct")
        check(said["direct"] == 0 or 22 * MB - 20 * 4096 < said["direct"] <= 22 * MB + 70004, f"{form}: {said['direct']} bytes past the page cache")


def head_of(path):
    return 8 + int.from_bytes((path / "model.safetensors").read_bytes()[:8], "little")


def ranks_write_the_same_bytes(source, place):
    """Up to eight processes write the same bytes as one; when one of them dies, the others end and nothing is left."""
    few = GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20"
    for n, form, what in [(n, (*FORMATS, "paddle-dist", "paddle")[n % 5], few) for n in range(1, 9)] + [(3, form, source) for form in FORMATS]:
        clear(place)
        name = "out.pt" if form == "torch-save" else "out"
        equal(start("--as", form, what, place / name).wait(), OK, f"{form}: alone")
        want = tree(place / name)
        clear(place)
        for r, p in enumerate(job(what, place / name, form, n=n)):
            said = p.communicate()[1].decode()
            equal(p.returncode, OK, f"{form}: rank {r} of {n}: {said}")
        check(want and tree(place / name) == want, f"{form}: {what} by {n}")
    clear(place)
    said = [p.communicate()[1].decode() for p in job(source, place / "out", "safetensors", each=lambda r: ["--skip", "w.0"] if r == 1 else [])]
    check('--skip is "" on rank 0 and "w.0" on rank 1' in said[0], f"other options: {said}")
    equal(list(place.iterdir()), [], "other options: what is left")
    said = [p.communicate()[1].decode() for p in job(lambda r: few if r == 1 else source, place / "out", "safetensors")]
    check("rank 1 sees another checkpoint in" in said[0], f"another source: {said}")
    equal(list(place.iterdir()), [], "another source: what is left")
    (place / "out").mkdir()
    (place / "out" / "kept").touch()
    for words, says in (([], f"rank 0: {place}/out exists already"), (["--keys", "("], "")):
        ended = [(p.communicate()[1].decode(), p.returncode) for p in job(source, place / "out", "safetensors", *words)]
        alone = start("--as", "safetensors", *words, source, place / "out")
        alone.communicate()
        equal([code for _, code in ended], [alone.returncode] * 3, f"{words}: exit codes of three, and of one: {ended}")
        check(ended[0][0].count("rank 0") == bool(says) and says in ended[0][0] and not any(said for said, _ in ended[1:] if says),
              f"{words}: {ended}")
    for victim in (0, 1, 2):
        clear(place)
        all_ = job(source, place / "out", "safetensors")
        while all_[0].poll() is None and not (place / ".out.dcpfs-journal").exists():
            time.sleep(0.001)
        all_[victim].kill()
        for p in all_:
            p.communicate(timeout=240)
        check(victim == 0 or hidden(place) == [], f"rank {victim} killed: left {hidden(place)}")
        if not (place / "out").exists():
            check(all(p.returncode for p in all_), f"rank {victim} killed: {[p.returncode for p in all_]}")
        equal(start("--as", "safetensors", "--force", source, place / "out").wait(), OK, f"after rank {victim} was killed")
        equal(hidden(place), [], f"after rank {victim} was killed: what is left")


def memory_does_not_grow(source, place):
    """Private memory does not grow with the checkpoint."""
    clear(place)
    most = {}
    for form in FORMATS:
        p = start("--as", form, "--jobs", "4", source, place / ("out.pt" if form == "torch-save" else "out"))
        most[form] = 0
        while p.poll() is None:
            try:
                status = open(f"/proc/{p.pid}/status").read()
            except OSError:
                break
            for line in status.splitlines():
                if line.startswith("RssAnon:"):
                    most[form] = max(most[form], int(line.split()[1]) << 10)
            time.sleep(0.002)
        p.communicate()
        clear(place)
    print("private memory: " + ", ".join(f"{k} {v / MB:.1f} MiB" for k, v in most.items()))
    if "Sanitizer" not in open(DCPFS, "rb").read().decode("latin1"):
        check(max(most.values()) < 64 * MB, f"private memory: {most}")


print(f"seed {SEED}")
random.seed(SEED)
big, place = SCRATCH / "source", SCRATCH / "place"
place.mkdir()
make_source(big, [5 * MB + 3, 1, 0, 9 * MB, 70000, 8 * MB + 1] + [1000] * 50)
run("index", big)
killed_exports_are_resumed(big, place)
changed_leftovers_are_written_again(big, place)
signals_stop_exports(big, place)
size_limits_leave_nothing(big, place)
full_disks_leave_nothing(big, place)
existing_files_are_protected(big, place)
dry_runs_write_nothing(big, place)
progress_is_json(big, place)
complete_exports_are_not_resumed(big, place)
two_exports_exclude_each_other(big, place)
changed_sources_are_refused(big, place)
changed_output_is_noticed(big, place)
ranks_write_the_same_bytes(big, place)
killed_ranks_are_resumed(big, place)
every_way_to_write_agrees(big, place)
memory_does_not_grow(big, place)
finish()
