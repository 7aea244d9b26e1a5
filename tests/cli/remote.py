#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sources on servers: the same as from files, by few requests; and never a byte of what a server got wrong."""
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import sys
import threading
import time

from cli import BAD, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run, sample, write
from served import KEYS, SERVER, TOP, files_of, hf, load, s3, skip_without_libcurl, wait, web


def both(verb, source, url, *args):
    a, b = run(verb, TOP / source, *args), run(verb, url, *args)
    check(a.returncode == b.returncode, f"{verb} {url} {args}: {b.returncode} {b.stderr}")
    equal(b.stdout.replace(url.rstrip("/").encode(), b""), a.stdout.replace(str(TOP.resolve() / source).encode(), b""), f"{verb} of {url} {args}")


def verbs_agree_with_files():
    for source in ("dcp-fsdp2/ckpt", "hf-llama/ckpt/llama", "torch-save/ckpt", "paddle-dist/ckpt"):
        got = run("ls", "--json", TOP / source)
        if got.returncode != OK:
            continue
        listed = data("ls", "--json", TOP / source, "latest")
        key = listed["tensors"][0]["key"]
        for url in (s3(source), web(source)):
            both("cat", source, url, "latest", key)
    outs = []
    for i, source in enumerate((TOP / "dcp-fsdp2/ckpt", s3("dcp-fsdp2/ckpt"), web("dcp-fsdp2/ckpt"))):
        outs.append(SCRATCH / f"out{i}")
        got = run("export", source, "latest", outs[-1], "--as", "safetensors", "--verify")
        check(got.returncode == OK, f"export of {source}: {got.stderr}")
    equal(files_of(outs[1]), files_of(outs[0]), "exported from a bucket")
    equal(files_of(outs[2]), files_of(outs[0]), "exported from a web server")


def loads_agree_with_files():
    source = "dcp-fsdp2/ckpt"
    for words in ((), ("--layout", "fsdp1"), ("--exchange", "all")):
        reports = [data("load", s, "--json", "--check", *words) for s in (TOP / source, s3(source))]
        equal(*([r[k] for k in ("version", "parts", "needed", "checked")] for r in reports), f"load {words}")
        check(reports[1]["checked"], "every byte was compared")


def files_are_read_ahead():
    """Of a program that reads in order, several requests at a time are ahead; each byte is asked for once, none of the tensor that
    follows; the end of a mount stops them."""
    size, top, source = 64 << 20, SCRATCH / "mnt-ahead", s3("ahead")
    want = os.urandom(size)
    write(TOP / "ahead/model.safetensors", {"w": ("U8", [size], want), "x": ("U8", [size // 4], bytes(size // 4))})
    top.mkdir()
    flying, most, lock = [0], [0], threading.Lock()

    def slow(r):
        """Answers take a while; how many are asked for meanwhile?"""
        if "Range" in r.headers:
            with lock:
                flying[0] += 1
                most[0] = max(most[0], flying[0])
            time.sleep(0.2)
            with lock:
                flying[0] -= 1
    run("ls", source)
    SERVER.fault = slow
    try:
        SERVER.taken()
        got = run("cat", source, "latest", "w", "--as", "raw", "--no-cache")
        check(got.stdout == want, f"bytes of cat: {got.stderr}")
        asked_once(size, "cat")
        check(most[0] >= 4, f"requests at a time for cat: {most[0]}")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return
        got = run("mount", source, top, "--no-cache")
        check(got.returncode == OK, f"mount: {got.stderr}")
        most[0] = 0
        SERVER.taken()
        with open(top / "latest/raw/w.bin", "rb", buffering=0) as f:
            came = b""
            while part := f.read(1 << 20):
                came += part
        check(came == want, "bytes of a mount")
        asked_once(size, "a mount")
        check(most[0] >= 4, f"requests at a time for a mount: {most[0]}")
        run("umount", top)
        # some is read, and what is asked ahead of that does not come
        run("mount", source, top, "--no-cache", DCPFS_STALL="30", DCPFS_TIMEOUT="60")
        hung = []
        SERVER.fault = lambda r: "hang" if int(r.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")[0]) >= 6 << 20 and not hung.append(1) else None
        with open(top / "latest/raw/w.bin", "rb", buffering=0) as f:
            check(f.read(4 << 20) == want[:4 << 20], "what is before")
        wait(lambda: hung)
        began = time.monotonic()
        got = run("umount", top)
        check(got.returncode == OK and time.monotonic() - began < 20, f"an end while bytes are on their way: {time.monotonic() - began:.1f} s {got.stderr}")
    finally:
        SERVER.fault = lambda r: None
        run("umount", top)
        shutil.rmtree(TOP / "ahead")


def asked_once(size, what):
    asked = [r[2].removeprefix("bytes=").split("-") for r in SERVER.taken() if r[2]]
    came = sum(int(b) + 1 - int(a) for a, b in asked)
    check(came <= size + (2 << 20), f"{what} asked for {came} of {size} bytes: {asked}")


def one_file_is_a_source():
    source = "hf-llama/ckpt/llama"
    name = next(p.name for p in sorted((TOP / source).glob("*.safetensors")))
    both("ls", f"{source}/{name}", s3(f"{source}/{name}"), "--json", "latest")
    both("ls", f"{source}/{name}", f"{SERVER.url}/web/{source}/{name}", "--json", "latest")


def the_hub_is_read():
    both("ls", "hf-llama/ckpt/llama", "hf://org/model/hf-llama/ckpt/llama", "--json", "latest")
    equal(SERVER.bearer, "Bearer hf_secret", "the token is sent to the Hub")


def redirects_of_the_hub_are_kept():
    """Where the Hub leads is kept until it expires, and asked for anew when the server there refuses."""
    write_items(TOP / "led")
    source = hf("led")

    def asked():
        return [r[1].partition("?")[0] for r in SERVER.taken() if "/api/" not in r[1]]

    def resolved(names):
        return sum("/resolve/" in n for n in names), sum("/web/" in n for n in names)
    for lasts, want in (3600, lambda led, came: led == 2 and came > led), (None, lambda led, came: led == came > 2), (5, lambda led, came: led == came > 2):
        SERVER.hub_lasts = lasts
        shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
        SERVER.taken()
        got = run("verify", source, "--no-cache", "-j", "1")
        check(got.returncode == OK, f"{got.stderr}")
        led = resolved(asked())
        check(want(*led), f"URLs that last {lasts}: requests that were led, and came: {led}")
    # Two files, .metadata and the data: once each, and the data once more, since one URL is refused.
    SERVER.hub_lasts = 3600
    seen = []
    SERVER.fault = lambda r: 403 if r.name.endswith(".distcp") and "/web/" in r.name and not seen.append(1) and len(seen) == 2 else None
    try:
        got = run("verify", source, "--no-cache", "-j", "1")
    finally:
        SERVER.fault = lambda r: None
    led = resolved(asked())
    check(got.returncode == OK and led[0] in (2, 3) and len(seen) > 2, f"one is refused: {led} {got.stderr}")
    fails_of = run("verify", source, "--no-cache", HF_TOKEN="hf_secret")
    check(b"signature" not in fails_of.stdout + fails_of.stderr, "no signature is shown")


def write_items(top, n=16, shape=(1 << 18,)):
    """A checkpoint of DCP with @n tensors, of 1 MiB each, and a scalar."""
    keys = {f"layers.{i}.weight": shape for i in range(n)} | {"step": ()}
    header, at = {}, 0
    for key, shape in keys.items():
        n = 4 * math.prod(shape)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    plain = SCRATCH / "items.safetensors"
    plain.write_bytes(len(text).to_bytes(8, "little") + text + bytes(i * 7 & 255 for i in range(at)))
    got = run("export", plain, top, "--as", "torch-dcp")
    check(got.returncode == OK, f"export: {got.stderr}")


def requests_are_few():
    write_items(TOP / "items")
    source = s3("items")
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    SERVER.taken()
    run("ls", source, "latest")
    first = SERVER.taken()
    equal([r[1].partition("?")[0] for r in first], ["/bucket/", "/bucket/items/.metadata"], "requests of a first look")
    run("ls", source, "latest")
    equal(len(SERVER.taken()), 1, "requests of a second look")
    # one tensor of several: the metadata, and its item
    for words in ((), ("--no-cache",)):
        shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
        asked = asked_of("cat", source, "latest", "layers.7.weight", *words)
        equal(len(asked), 2, f"requests of a tensor: {asked}")
        lo, hi = (int(x) for x in asked[1][2].removeprefix("bytes=").split("-"))
        check(hi - lo < (1 << 20) + (1 << 20), f"bytes of a tensor: {asked}")
    both("cat", "items", source, "latest", "layers.7.weight")


def costs_agree_with_the_readme():
    """The table of costs in core/remote/README.md: its commands ask for at most what it says, and for no less than half of that."""
    write_items(TOP / "costs/step-1")
    write_items(TOP / "costs/step-2")
    rows = re.findall(r"^\| `dcpfs (.*)` \| ([^`]*) \|$", pathlib.Path("core/remote/README.md").read_text(), re.M)
    check(len(rows) >= 10, f"rows of the table: {rows}")
    for words, numbers in sample(rows):
        numbers = [float(n) for n in numbers.split("|")]
        words = words.replace("SOURCE", s3("costs")).split()
        shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
        for most in numbers[:3], numbers[3:]:
            SERVER.taken()
            got = run(*words)
            check(got.returncode == OK, f"{words}: {got.stderr}")
            asked = SERVER.taken()
            parts = [r[2].removeprefix("bytes=").split("-") for r in asked if r[2]]
            is_ = [len(asked) - len(parts), len(parts), sum(int(b) + 1 - int(a) for a, b in parts) / 1e6]
            check(all(n <= m for n, m in zip(is_, most)) and all(n >= m / 2 for n, m in zip(is_[:2], most)), f"{words}: {is_}, the table has {most}")


def small_tensors_are_read_together():
    """A rank alone reads long tensors straight to where they are wanted, and others by 2 MiB and more."""
    write(TOP / "small/model.safetensors", {f"layers.{i}.bias": ("U8", [8 << 10], bytes(8 << 10)) for i in range(256)})
    write(TOP / "long/model.safetensors", {f"layers.{i}.weight": ("F32", [1 << 20], bytes(4 << 20)) for i in range(4)})
    for source, words, most in ("small", (), 3), ("long", (), 4), ("long", ("--dtype", "BF16"), 10):
        asked = [r for r in asked_of("load", s3(source), "--no-cache", *words) if r[2]]
        check(len(asked) <= most + 1, f"load {source} {words}: {len(asked)} requests")  # one more is for the header


def asked_of(*words):
    """The requests for bytes of files, not lists, of a command that succeeds."""
    SERVER.taken()
    got = run(*words)
    check(got.returncode == OK, f"{words}: {got.stderr}")
    return [r for r in SERVER.taken() if "list-type" not in r[1]]


def requests_are_counted():
    source = s3("dcp-fsdp2/ckpt")
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    SERVER.taken()
    SERVER.fault = lambda r: 503 if r.number == 3 else None
    try:
        got = data("load", source, "--json")
    finally:
        SERVER.fault = lambda r: None
    asked = SERVER.taken()
    equal((got["requests"], got["retries"]), (len(asked), 1), f"requests of a load: {asked}")
    check(got["origin"].startswith(f"S3 at {SERVER.url}") and got["wire"] >= got["needed"], f"origin and bytes: {got}")
    text = run("load", source).stdout.decode()
    check("  requests  1, 0 of them again; " in text and "  origin    S3 at " in text, f"requests of a second load: {text}")
    equal([data("load", TOP / "dcp-fsdp2/ckpt", "--json")[k] for k in ("origin", "requests", "wire")], [None, 0, 0], "of files")


def ranks_fetch_each_byte_once():
    """By whatever layout, and with nothing kept: 1.00 to 1.02 of the bytes that there are."""
    write_items(TOP / "job", 4, (1 << 10, 1 << 11))
    source, total = s3("job"), sum(p.stat().st_size for p in (TOP / "job").rglob("*.distcp"))
    (SCRATCH / "mixed").write_text("mesh tp=2\nlayers.0.* replicate\n*.weight shard(1)@tp\n* replicate\n")
    for ranks, layout in (1, "fsdp1"), (2, "fsdp2"), (2, SCRATCH / "mixed"), (4, "fsdp4"), (4, "dim1x4"):
        for words in (("--no-cache",), ()) if ranks == 4 else (("--no-cache",),):
            shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
            SERVER.taken()
            codes, said = load(source, ranks, "--layout", layout, *words)
            asked = [r[2].removeprefix("bytes=").split("-") for r in SERVER.taken() if r[2]]
            came = sum(int(b) + 1 - int(a) for a, b in asked)
            check(codes == [OK] * ranks and 1 <= came / total <= 1.02,
                  f"{layout} by {ranks}, {words}: {came / total:.3f} of the bytes, {len(asked)} requests: {said}")
            if not words:
                codes, said = load(source, ranks, "--layout", layout)
                equal([r for r in SERVER.taken() if r[2]], [], f"requests of a second load of {layout}")


def second_reads_ask_for_nothing():
    source = s3("dcp-fsdp2/ckpt")
    key = data("ls", "--json", TOP / "dcp-fsdp2/ckpt", "latest")["tensors"][0]["key"]
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    check(asked_of("cat", source, "latest", key), "a first read asks")
    equal(asked_of("cat", source, "latest", key), [], "requests of a second read")
    check(asked_of("cat", source, "latest", key, "--no-cache"), "--no-cache asks")
    run("load", source, "--check")
    equal(asked_of("load", source, "--check"), [], "requests of a second load")
    check(asked_of("load", source, "--no-cache"), "--no-cache asks")
    size = data("cache", "size", "--json")["remote"]
    check(size["files"] and size["bytes"], f"size: {size}")
    kept = list((SCRATCH / "cache/remote").iterdir())
    equal({(SCRATCH / "cache/remote").stat().st_mode & 0o777, *(p.stat().st_mode & 0o777 for p in kept)}, {0o700, 0o600}, "rights")
    # damage is asked for again, and never shown
    for path in kept:
        text = bytearray(path.read_bytes())
        text[:4096] = bytes(b ^ 0xff for b in text[:4096])
        path.write_bytes(text)
    both("cat", "dcp-fsdp2/ckpt", source, "latest", key)
    equal(data("load", source, "--check", "--json")["checked"], data("load", TOP / "dcp-fsdp2/ckpt", "--check", "--json")["checked"], "checked")
    equal(asked_of("load", source, "--check"), [], "requests once it is mended")
    check(data("cache", "clean", "--json")["remote"]["removed"] == size["files"], "clean removes all")


def warm_fetches_everything():
    source, files = s3("dcp-fsdp2/ckpt"), TOP / "dcp-fsdp2/ckpt"
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    got = data("warm", source, "--json")
    check(got["remote"] and got["requests"] and got["kept"] and not got["unkept"] and not got["failed"], f"warm: {got}")
    equal(asked_of("load", source, "--check"), [], "requests after warm")
    equal(data("warm", source, "--json")["kept"], 0, "warm once more")
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    listed = data("ls", "--json", files, "latest")["tensors"]
    one = data("warm", source, "--json", "--keys", listed[0]["key"])
    equal((one["tensors"], one["bytes"]), (1, listed[0]["nbytes"]), "warm of one key")
    equal(asked_of("cat", source, "latest", listed[0]["key"]), [], "requests of that key")
    part = data("warm", source, "--json", "--layout", "fsdp2", "--rank", "1")
    check(0 < part["bytes"] < got["bytes"], f"warm of a rank: {part}")
    local = data("warm", files, "--json")
    equal((local["bytes"], local["remote"], local["requests"]), (got["bytes"], False, 0), "warm of files")
    fails(USAGE, "leave out --no-cache", "warm", source, "--no-cache")
    fails(USAGE, "--layout and --rank", "warm", source, "--rank", "1")
    fails(USAGE, "no rank 2 of fsdp2, only 0 to 1", "warm", source, "--layout", "fsdp2", "--rank", "2")
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    fails(ENV, "could not be kept", "warm", source, "--cache-limit", "1000")


def the_limit_of_kept_bytes_holds():
    source = s3("dcp-fsdp2/ckpt")
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    run("export", source, "latest", SCRATCH / "limited", "--as", "safetensors", "--cache-limit", "0")
    size = data("cache", "size", "--json")["remote"]
    equal((size["files"], size["bytes"]), (0, 0), "nothing is kept with a limit of nothing")


def untagged_objects_are_not_kept():
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    SERVER.no_tags = True
    try:
        both("ls", "hf-llama/ckpt/llama", web("hf-llama/ckpt/llama"), "--json", "latest")
    finally:
        SERVER.no_tags = False
    equal(list((SCRATCH / "cache").glob("remote/*")), [], "kept by a time alone")


def long_lists_are_read():
    """More than fit on a page, in one directory and in many."""
    SERVER.page = 10
    try:
        both("ls", "dcp-fsdp2/ckpt", s3("dcp-fsdp2/ckpt"), "--json", "latest")
        both("ls", "composer-ranks/ckpt", s3("composer-ranks/ckpt"), "--json")
        both("ls", "deepspeed-3d/ckpt", s3("deepspeed-3d/ckpt"), "--json", "latest")
    finally:
        SERVER.page = 1000


def passing_faults_are_survived():
    """What passes is not seen: every third request fails, each in another way."""
    key = data("ls", "--json", TOP / "dcp-fsdp2/ckpt", "latest")["tensors"][0]["key"]
    for fault in sample((503, 500, 429, "reset", "short", "wrong range", "other size", "no range", "retry-after")):
        shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
        count = [0]

        def sometimes(r, fault=fault, count=count):
            count[0] += 1
            return fault if count[0] % 3 == 1 and ("distcp" in r.path or fault in (503, 500, 429, "reset", "retry-after")) else None
        SERVER.fault = sometimes
        try:
            both("cat", "dcp-fsdp2/ckpt", s3("dcp-fsdp2/ckpt"), "latest", key)
        finally:
            SERVER.fault = lambda r: None
    SERVER.fault = lambda r, seen=[]: "stall" if "distcp" in r.path and not seen.append(1) and len(seen) == 1 else None
    try:
        both("cat", "dcp-fsdp2/ckpt", s3("dcp-fsdp2/ckpt"), "latest", key)
    finally:
        SERVER.fault = lambda r: None


def answers_of_wrong_length_are_survived():
    """Reads that were complete are filled again, and what is kept on the disk is right."""
    source = TOP / "shifted"
    write(source / "model.safetensors", {f"w{i:02}": ("F32", [1 << 16], os.urandom(1 << 18)) for i in range(40)})
    kept, not_kept = ([*itertools.product((True, False), ("shifted", "cut"), [words])] for words in ((), ("--no-cache",)))
    for once, fault, words in sample(kept + not_kept[::-1]):
        shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
        run("ls", s3("shifted"), *words)
        SERVER.fault = lambda r, seen=[], once=once, fault=fault: fault if len(r.headers.get("Range") or "") > 20 and (not once or not seen.append(1) and len(seen) < 3) else None
        try:
            for out in SCRATCH / "shifted-out", SCRATCH / "shifted-again":
                shutil.rmtree(out, ignore_errors=True)
                got = run("export", s3("shifted"), out, "--as", "safetensors", *words, DCPFS_TIMEOUT="1" if not once else "20")
                if once:
                    equal((out / "model.safetensors").read_bytes()[-10 << 20:], (source / "model.safetensors").read_bytes()[-10 << 20:],
                          f"bytes, {fault}, {words}: {got.stderr}")
                else:
                    check(got.returncode not in (OK, NO), f"nothing but such answers: {got.returncode} {got.stderr}")
        finally:
            SERVER.fault = lambda r: None
        shutil.rmtree(SCRATCH / "shifted-out", ignore_errors=True)
        run("export", s3("shifted"), SCRATCH / "shifted-out", "--as", "safetensors", *words)
        equal((SCRATCH / "shifted-out/model.safetensors").read_bytes()[-10 << 20:], (source / "model.safetensors").read_bytes()[-10 << 20:],
              f"bytes after {fault}, {words}")
    shutil.rmtree(source)


def lasting_faults_are_errors():
    """What lasts is an error, and never wrong bytes."""
    key = data("ls", "--json", TOP / "dcp-fsdp2/ckpt", "latest")["tensors"][0]["key"]
    for fault, says in (("wrong range", "with \"bytes"), ("other size", "with \"bytes"), ("no range", "without a Content-Range"),
                        ("compressed", "Content-Encoding"), (403, "HTTP 403"), ("to:http://169.254.169.254/x", "link-local"),
                        ("to:ftp://127.0.0.1/x", "not followed"), ("to:file:///etc/passwd", "not followed")):
        shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
        run("ls", s3("dcp-fsdp2/ckpt"), "latest")  # indexed, so that only data is asked for
        SERVER.fault = lambda r, fault=fault: fault if "distcp" in r.path else None
        try:
            got = run("cat", s3("dcp-fsdp2/ckpt"), "latest", key, "--no-cache", DCPFS_TIMEOUT="1")
            check(got.returncode not in (OK, NO) and got.stdout == b"" and says.encode() in got.stderr,
                  f"{fault}: {got.returncode} {got.stdout[:50]} {got.stderr}")
        finally:
            SERVER.fault = lambda r: None
    for fault, says in (("doctype", "document type"), ("cut", "not XML"), ("endless", "does not end")):
        SERVER.fault = lambda r, fault=fault: fault if "list-type" in r.path else None
        try:
            fails(BAD, says, "ls", s3("dcp-fsdp2/ckpt"))
        finally:
            SERVER.fault = lambda r: None
    SERVER.fault = lambda r: "climbing names" if "list-type" in r.path else None
    try:
        both("ls", "dcp-fsdp2/ckpt", s3("dcp-fsdp2/ckpt"), "--json", "latest")
    finally:
        SERVER.fault = lambda r: None


def changed_objects_are_noticed():
    """An object that was written over is another content, also where its length and name stay."""
    source = TOP / "changing"
    shutil.copytree(TOP / "hf-llama/ckpt/llama", source)
    paths = list(source.glob("*.safetensors"))
    listed = data("ls", "--json", source, "latest")
    key = listed["tensors"][0]["key"]
    both("cat", "changing", s3("changing"), "latest", key)

    def write_over():
        for path in paths:
            path.write_bytes(path.read_bytes()[:-64] + bytes(64))
    # between the list and the read
    SERVER.fault = lambda r, done=[]: write_over() if ".safetensors" in r.path and not done and not done.append(1) else None
    try:
        got = run("cat", s3("changing"), "latest", key, "--no-cache")
        check(got.returncode != OK and got.stdout == b"" and b"changed" in got.stderr, f"changed while it was read: {got}")
    finally:
        SERVER.fault = lambda r: None
    both("cat", "changing", s3("changing"), "latest", key)


def wrong_credentials_are_refused():
    fails(ENV, "SignatureDoesNotMatch", "ls", s3("dcp-fsdp2/ckpt"), AWS_SECRET_ACCESS_KEY="wrong")
    got = fails(ENV, "HTTP 403", "ls", s3("dcp-fsdp2/ckpt"), AWS_NO_SIGN_REQUEST="1")
    check(KEYS[1].encode() not in got.stderr, "no secret in a message")
    (SCRATCH / ".aws").mkdir()
    (SCRATCH / ".aws/credentials").write_text(f"[default]\naws_access_key_id = x\n[other]\naws_access_key_id={KEYS[0]}\naws_secret_access_key = {KEYS[1]}\n")
    got = run("ls", s3("dcp-fsdp2/ckpt"), AWS_ACCESS_KEY_ID=None, AWS_PROFILE="other")
    check(got.returncode == OK, f"by a profile: {got.stderr}")
    kept = b"".join(p.read_bytes() for p in (SCRATCH / "cache").rglob("*") if p.is_file())
    check(KEYS[1].encode() not in kept and b"hf_secret" not in kept and b"signature=secret" not in kept, "no secret in the cache")


def wrong_urls_are_refused():
    fails(ENV, "nothing is there", "ls", s3("no/such/run"))
    for url in ("s3://", "s3://b", "s3:///key", "gs://", "gs://a b/c"):
        fails(USAGE, "BUCKET/PREFIX", "ls", url)
    for verb in (("mount",), (), ("export", "--as", "npz"), ("diff", GOLDEN)):
        fails(USAGE, "BUCKET/PREFIX", *verb, "s3://", SCRATCH)
    fails(USAGE, "BUCKET/PREFIX", "save", GOLDEN / "dcp-fsdp2" / "ckpt", "s3://")
    for verb in ("load", "tree", "show", "index", "verify", "stats", "plan"):
        fails(USAGE, "https://HOST/", verb, "https:///")
    fails(USAGE, "no \"..\"", "ls", s3("a/../b"))
    fails(ENV, "for this machine only", "ls", "http://192.0.2.1/run/")
    fails(USAGE, "https://HOST/", "ls", "https://example.org:99999/run/")
    fails(USAGE, "without a user", "ls", "https://user:word@example.org/run/")
    for url in ("hf://", "hf://model", "hf://org/", "hf:///model"):
        fails(USAGE, "hf://ORG/MODEL", "ls", url)
    SERVER.taken()
    for url in (s3("layouts/x.dcpl"), f"{SERVER.url}/layouts/x.dcpl"):
        fails(ENV, "No such file", "plan", "--layout", url, GOLDEN / "dcp-fsdp2" / "ckpt")
    equal(SERVER.taken(), [], "requests for a layout, which is a file")


def doctor_asks_the_server():
    about = " ".join(run("doctor", s3("dcp-fsdp2/ckpt")).stdout.decode().split())
    check(f"it answers: S3 at {SERVER.url}, region us-east-1, credentials: environment" in about, f"doctor: {about[-800:]}")
    check("all that is complete can be read" in about and KEYS[1] not in about, f"doctor: {about[-800:]}")
    got = run("doctor", s3("dcp-fsdp2/ckpt"), AWS_SECRET_ACCESS_KEY="wrong")
    check(got.returncode == NO and b"SignatureDoesNotMatch" in got.stdout, f"doctor, refused: {got.stdout[-800:]}")
    about = run("doctor", "hf://org/model/dcp-fsdp2/ckpt").stdout
    check(b"commit 0123456789ab, credentials: a token" in b" ".join(about.split()) and b"hf_secret" not in about, f"doctor of the Hub: {about[-800:]}")


def silent_servers_are_reported():
    began = time.monotonic()
    got = run("ls", s3("dcp-fsdp2/ckpt"), AWS_ENDPOINT_URL="http://127.0.0.1:9")
    check(got.returncode == ENV and b"onnect" in got.stderr and time.monotonic() - began < 30, f"nothing answers: {got.returncode} {got.stderr}")


skip_without_libcurl()
tests = (verbs_agree_with_files, loads_agree_with_files, files_are_read_ahead, one_file_is_a_source, the_hub_is_read,
         redirects_of_the_hub_are_kept, requests_are_few, costs_agree_with_the_readme, requests_are_counted,
         small_tensors_are_read_together, ranks_fetch_each_byte_once, second_reads_ask_for_nothing, warm_fetches_everything,
         the_limit_of_kept_bytes_holds, untagged_objects_are_not_kept, long_lists_are_read, passing_faults_are_survived,
         answers_of_wrong_length_are_survived, lasting_faults_are_errors, changed_objects_are_noticed,
         wrong_credentials_are_refused, wrong_urls_are_refused, doctor_asks_the_server, silent_servers_are_reported)
chosen = sys.argv[2:]
for test in tests:
    if not chosen or test.__name__ in chosen:
        began = time.monotonic()
        test()
        print(f"{test.__name__}: {time.monotonic() - began:.1f} s")
finish()
