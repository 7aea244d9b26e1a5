#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints written to a bucket: the same bytes as in a directory, the completing file last, and nothing left of what failed."""
import hashlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/origin")
from cli import BAD, DCPFS, ENV, GOLDEN, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run, write
from server import Server

KEYS = ("AKIDEXAMPLE", "wJalr/XUtnFEMI+K7MDENG")
TOP = SCRATCH / "top"
TOP.mkdir()
SERVER = Server(TOP)
SERVER.keys = KEYS
os.environ.update(AWS_ENDPOINT_URL=SERVER.url, AWS_ACCESS_KEY_ID=KEYS[0], AWS_SECRET_ACCESS_KEY=KEYS[1], DCPFS_TIMEOUT="20", DCPFS_STALL="3",
                  HOME=str(SCRATCH))
for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "http_proxy", "HTTP_PROXY"):
    os.environ.pop(name, None)
SOURCE = GOLDEN / "dcp-fsdp2/ckpt"
BIG = SCRATCH / "big"  # several parts of 8 MiB, and tensors that end in the middle of one


def s3(path):
    return f"s3://bucket/{path}"


def files_of(top):
    """Names, and hashes of what is in them."""
    return {p.relative_to(top).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(top.rglob("*")) if p.is_file() and p.name != ".dcpfs-written"}


def make_big():
    write(BIG / "model.safetensors", {f"layer.{i}": ("F32", [n // 4], os.urandom(n))
                                      for i, n in enumerate((20 << 20, 4, 5 << 20, 400, 9 << 20, 1 << 20))})


def faults(fault):
    SERVER.fault = fault


def no_faults():
    SERVER.fault = lambda r: None


def nothing_left(what, *keys):
    equal(SERVER.uploads, {}, f"{what}: uploads that are left")
    for key in keys:
        check(not (TOP / key).exists() or not files_of(TOP / key), f"{what}: {key} is left: {list(files_of(TOP / key))}")


def buckets_get_what_directories_get():
    """Of formats with checksums before and after the data, with an index, with pickles; small, and of many parts."""
    for source, formats in ((SOURCE, ("torch-save", "torch-dcp", "npz", "paddle-dist")), (BIG, ("torch-save", "safetensors"))):
        for name in formats:
            here, there = SCRATCH / f"{source.name}-{name}", f"{source.name}/{name}"
            words = ("latest",) if source == SOURCE else ()
            run("export", source, *words, here, "--as", name)
            got = run("export", source, *words, s3(there), "--as", name, *(["--verify"] if name != "paddle-dist" else []))
            check(got.returncode == OK, f"to {there}: {got.stderr}")
            equal(files_of(TOP / there), files_of(here), f"files of {there}")
            nothing_left(there.replace("/", "-"))
    empty = SCRATCH / "empty"
    write(empty / "model.safetensors", {"none": ("F32", [0], b""), "nor": ("I64", [3, 0], b"")})
    for words in ("npz",), ("torch-save",), ("safetensors",):
        run("export", empty, SCRATCH / f"empty-{words[0]}", "--as", *words)
        got = run("export", empty, s3(f"empty-{words[0]}"), "--as", *words)
        equal((got.returncode, files_of(TOP / f"empty-{words[0]}")), (OK, files_of(SCRATCH / f"empty-{words[0]}")), f"no byte of data, {words}: {got.stderr}")
    codes, said = job(3, "export", empty, s3("empty-ranks"), "--comm", "env", "--insecure", "--as", "npz")
    equal((codes, files_of(TOP / "empty-ranks")), ([OK] * 3, files_of(SCRATCH / "empty-npz")), f"no byte of data, by ranks: {said}")
    got = run("export", BIG, SCRATCH / "in-shards", "--as", "safetensors", "--max-shard-size", "12MB")
    SERVER.written.clear()
    got = run("export", BIG, s3("in-shards"), "--as", "safetensors", "--max-shard-size", "12MB")
    equal(files_of(TOP / "in-shards"), files_of(SCRATCH / "in-shards"), "in shards")
    equal(SERVER.written[-1], "in-shards/model.safetensors.index.json", "the file that completes it is the last")
    got = run("export", BIG, s3("one/weights.safetensors"), "--as", "safetensors", "--verify")
    check(got.returncode == OK, f"one file: {got.stderr}")
    equal(list(files_of(TOP / "one")), ["weights.safetensors"], "one file")


def nothing_is_overwritten():
    got = run("export", SOURCE, "latest", s3("again"), "--as", "torch-dcp")
    check(got.returncode == OK, f"first: {got.stderr}")
    before = files_of(TOP / "again")
    got = fails(USAGE, "exists already", "export", SOURCE, "latest", s3("again/"), "--as", "safetensors")
    check(b"--force" in got.stderr, "it says how")
    equal(files_of(TOP / "again"), before, "what is there stays")
    got = run("export", SOURCE, "latest", s3("again"), "--as", "safetensors", "--force", "--verify")
    check(got.returncode == OK, f"with --force: {got.stderr}")
    equal(list(files_of(TOP / "again")), ["model.safetensors"], "what is replaced is removed")
    (TOP / "again/thesis.tex").write_text("years of work")
    fails(USAGE, "again/thesis.tex was not written by dcpfs", "export", SOURCE, "latest", s3("again"), "--as", "safetensors", "--force")
    equal(sorted(files_of(TOP / "again")), ["model.safetensors", "thesis.tex"], "nothing is lost")
    (TOP / "name").write_text("an object")
    fails(USAGE, "is not a directory", "export", SOURCE, "latest", s3("name"), "--as", "safetensors")
    # another program takes the name between the list and the end
    faults(lambda r: (TOP / "race").mkdir(exist_ok=True) or (TOP / "race/.metadata").write_text("theirs") and None
           if "partNumber" in r.path else None)
    fails(USAGE, "another program wrote it meanwhile", "export", SOURCE, "latest", s3("race"), "--as", "torch-dcp")
    no_faults()
    equal(files_of(TOP / "race"), {".metadata": hashlib.sha256(b"theirs").hexdigest()}, "theirs stays, ours is removed")
    equal(SERVER.uploads, {}, "no uploads are left")


def passing_faults_are_survived():
    """Every third request fails, each in another way; and answers that are lost after the work was done."""
    for fault in (503, 500, 429, "reset", "retry-after"):
        count = [0]

        def sometimes(r, fault=fault, count=count):
            count[0] += 1
            return fault if count[0] % 3 == 1 else None
        faults(sometimes)
        source, words = (BIG, ()) if fault == 503 else (SOURCE, ("latest",))
        want = files_of(SCRATCH / f"{source.name}-torch-save")
        got = run("export", source, *words, s3(f"faults/{fault}"), "--as", "torch-save")
        check(got.returncode == OK, f"{fault}: {got.stderr}")
        no_faults()
        check(files_of(TOP / f"faults/{fault}") == want, f"{fault}: other bytes")
        equal(SERVER.uploads, {}, f"{fault}: no uploads are left")
    seen = set()

    def lost(r):
        is_end = r.command == "POST" and "uploadId" in r.query or r.command == "PUT" and not r.query
        if not is_end or r.name in seen:
            return None
        seen.add(r.name)
        return "lost answer"
    faults(lost)
    got = run("export", SOURCE, "latest", s3("faults/lost"), "--as", "torch-dcp", "--verify")
    no_faults()
    check(got.returncode == OK and len(seen) == 2, f"answers that are lost: {seen} {got.stderr}")


def lasting_faults_leave_nothing():
    """It is an error, it says which, and nothing is left."""
    for fault, says, where in ((403, "HTTP 403", "partNumber"), (507, "HTTP 507", "partNumber"), (400, "HTTP 400", "uploads="),
                               (403, "HTTP 403", ".metadata"), (503, "HTTP 503", "partNumber"),
                               (200, "SlowDown", "?uploadId=")):  # S3 may find out after it has said 200
        faults(lambda r, fault=fault, where=where: fault if r.command in ("PUT", "POST") and where in r.path else None)
        got = run("export", SOURCE, "latest", s3("failed"), "--as", "torch-dcp", DCPFS_TIMEOUT="1")
        no_faults()
        check(got.returncode not in (OK, 1) and says.encode() in got.stderr, f"{fault} of {where}: {got.returncode} {got.stderr}")
        nothing_left(f"{fault} of {where}", "failed")
        check(KEYS[1].encode() not in got.stderr, "no secret in a message")
    got = fails(ENV, "SignatureDoesNotMatch", "export", SOURCE, "latest", s3("failed"), "--as", "torch-dcp", AWS_SECRET_ACCESS_KEY="wrong")
    fails(ENV, "no such bucket", "export", SOURCE, "latest", "s3://elsewhere/run", "--as", "torch-dcp")
    fails(USAGE, "needs a name there", "export", SOURCE, "latest", "s3://bucket/", "--as", "torch-dcp")
    fails(BAD, "written to a directory, to s3://", "export", SOURCE, "latest", f"{SERVER.url}/web/x/", "--as", "torch-dcp")
    fails(USAGE, "for directories, not for buckets", "export", SOURCE, "latest", s3("failed"), "--as", "torch-dcp", "--resume")
    shutil.copytree(SOURCE, TOP / "source")
    fails(USAGE, "lie in each other", "export", s3("source"), "latest", s3("source/out"), "--as", "torch-dcp")
    got = run("export", s3("source"), "latest", s3("from-bucket"), "--as", "torch-dcp")
    check(files_of(TOP / "from-bucket") == files_of(SCRATCH / "ckpt-torch-dcp"), f"from a bucket to it: {got.stderr}")


def stopped_saves_abort_uploads():
    """A signal aborts uploads; a kill leaves them, and the next save says so."""
    for verb, sig, left in (("save", signal.SIGINT, 0), ("export", signal.SIGINT, 0), ("export", signal.SIGKILL, 1)):
        faults(lambda r: time.sleep(0.5) if "partNumber" in r.path else None)
        job = subprocess.Popen([DCPFS, verb, BIG, s3("stopped"), *(("--as", "safetensors", "--jobs", "1") if verb == "export" else ())], stderr=subprocess.PIPE,
                               env=dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache")))
        until = time.monotonic() + 60
        while not SERVER.uploads and time.monotonic() < until:
            time.sleep(0.02)
        job.send_signal(sig)
        said = job.communicate(timeout=120)[1]
        no_faults()
        equal(job.returncode, -sig, f"{verb} stopped by {sig}: {said}")
        check(sig == signal.SIGKILL or b"uploads that are not complete are taken back" in said, f"{verb}: {said}")
        until = time.monotonic() + 20
        while len(SERVER.uploads) != left and time.monotonic() < until:
            time.sleep(0.05)
        equal(len(SERVER.uploads), left, f"uploads of {verb} left by {sig}")
        check(not (TOP / "stopped").exists() or not files_of(TOP / "stopped"), "nothing is seen")
    fails(ENV, "an upload of 2026-01-02T03:04:05.000Z is not ended", "export", BIG, s3("stopped"), "--as", "safetensors")
    got = run("export", BIG, s3("stopped"), "--as", "safetensors", "--force")
    check(got.returncode == OK, f"--force aborts it: {got.stderr}")
    nothing_left("after --force")


def sources_are_not_written_into():
    """Nor into what is mounted from there."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return
    run("export", BIG, s3("read"), "--as", "safetensors")
    at = SCRATCH / "mnt"
    at.mkdir()
    run("mount", s3("read"), at)
    try:
        for out in "read", "read/below":
            fails(USAGE, "lie in each other", "export", at / "latest/hf", s3(out), "--as", "safetensors", "--force")
    finally:
        run("umount", at)


def files_of_others_are_not_replaced():
    """--force replaces what was there, and nothing that another program writes while it runs."""
    theirs = TOP / "taken" / "model.safetensors"
    run("export", BIG, s3("taken"), "--as", "torch-save")

    def fault(r):
        if r.command == "PUT" and not theirs.exists():
            theirs.parent.mkdir(exist_ok=True)
            theirs.write_bytes(b"theirs")
    faults(fault)
    try:
        got = run("export", BIG, s3("taken"), "--as", "safetensors", "--force")
    finally:
        no_faults()
    check(got.returncode != OK and theirs.read_bytes() == b"theirs", f"{got.returncode}: {got.stderr}")


def memory_is_bounded():
    """160 MiB go through 100 MiB of memory of the process's own; what is mapped of the source is not its own."""
    if b"__asan_" in pathlib.Path(DCPFS).read_bytes():
        return  # the shadow of a sanitizer has no room in the limit; the default build tests it
    source = SCRATCH / "heavy"
    write(source / "model.safetensors", {f"w{i}": ("F32", [40 << 18], bytes(40 << 20)) for i in range(4)})
    got = subprocess.run([DCPFS, "export", source, s3("heavy"), "--as", "torch-save", "--jobs", "2"], capture_output=True,
                         env=dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache")),
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (100 << 20, 100 << 20)))
    equal(got.returncode, OK, f"in 100 MiB: {got.stderr}")
    shutil.rmtree(source)
    shutil.rmtree(TOP / "heavy", ignore_errors=True)


def job(ranks, *args):
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache"), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
               DCPLOAD_TIMEOUT="120", TORCHELASTIC_RESTART_COUNT=os.urandom(8).hex())
    all = [subprocess.Popen([DCPFS, *map(str, args)], env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE) for r in range(ranks)]
    said = [p.communicate(timeout=240) for p in all]
    return [p.returncode for p in all], b"".join(err for _, err in said).decode()


def ranks_write_together():
    """A file is written by one rank; each writes some."""
    for words in (("--as", "safetensors", "--max-shard-size", "6MB"), ("--as", "torch-dcp", "--layout", "fsdp4")):
        here, there = SCRATCH / ("ranks" + words[-1]), "ranks" + words[-1]
        run("export", BIG, here, *words)
        codes, said = job(3, "export", BIG, s3(there), "--comm", "env", "--insecure", *words)
        equal(codes, [OK] * 3, f"by three ranks, {words}: {said}")
        equal(list(files_of(TOP / there)), list(files_of(here)), f"files by three ranks, {words}")
        check(files_of(TOP / there) == files_of(here), f"by three ranks, {words}: other bytes")
        nothing_left(there)


if b"no libcurl" in run("ls", s3("x/y")).stderr:
    print("built without libcurl")
    sys.exit(77)
make_big()
chosen = sys.argv[2:]
for test in (buckets_get_what_directories_get, nothing_is_overwritten, passing_faults_are_survived, lasting_faults_leave_nothing,
             stopped_saves_abort_uploads, sources_are_not_written_into, files_of_others_are_not_replaced, memory_is_bounded,
             ranks_write_together):
    if not chosen or test.__name__ in chosen:
        began = time.monotonic()
        test()
        print(f"{test.__name__}: {time.monotonic() - began:.1f} s")
finish()
