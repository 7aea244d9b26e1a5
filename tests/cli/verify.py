#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs verify: checksums of archives, copies in several files, what was interrupted, statements. Records: tests/cli/trust.py."""
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zipfile

sys.path.insert(0, "tests/mount")
from torch_files import Tensor, torch_save  # noqa: E402
from cli import BAD, DCPFS, GOLDEN, NO, OK, SCRATCH, USAGE, check, equal, fails, finish, run, write  # noqa: E402


def checksums_of_archives_are_compared():
    """A bit anywhere in a member of an archive: the file, the bytes, and the key that lies there, if one does."""
    source = SCRATCH / "crc" / "w.pt"
    source.parent.mkdir()
    torch_save(source, {"a.weight": Tensor(struct.pack("<24f", *range(24)), [4, 6]), "b": Tensor(struct.pack("<7f", *range(7)), [7])})
    whole = source.read_bytes()
    with zipfile.ZipFile(source) as z:
        members = [(m.filename, m.header_offset, m.file_size) for m in z.infolist()]
    said = json.loads(run("verify", "--json", source).stdout)
    equal((said["checksums"], said["damaged"], said["problems"]), (len([m for m in members if m[2]]), 0, []), "whole")
    for name, at, size in members:
        if not size:
            continue
        off = at + 30 + sum(struct.unpack("<2H", whole[at + 26:at + 30]))
        source.write_bytes(whole[:off + size // 2] + bytes([whole[off + size // 2] ^ 4]) + whole[off + size // 2 + 1:])
        got = run("verify", "--json", source)
        if not got.stdout:
            equal(got.returncode, BAD, f"{name}: metadata is refused")
            continue
        said = json.loads(got.stdout)
        found = said["problems"][0]
        equal((got.returncode, said["damaged"]), (BAD, 1), f"{name}: {got.stderr.decode()}")
        equal((found["file"], found["offset"], found["nbytes"]), ("w.pt", off, size), f"{name}: where")
        equal(found["key"], {"0": "a.weight", "1": "b"}.get(name.rsplit("/")[-1]) if "/data/" in name else None, f"{name}: whose")
        check("CRC-32" in found["why"] and (not found["key"] or "no other file has a copy" in found["why"]), found["why"])
    row = SCRATCH / "row"
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt", row)
    file = next(p for p in sorted((row / "step-20").iterdir()) if p.suffix == ".distcp")
    raw = bytearray(file.read_bytes())
    good = json.loads(run("verify", "--json", row, "20").stdout)
    check(good["checksums"] > 100 and not good["problems"], f"archives in a row: {good}")
    at = raw.index(run("cat", row, "20", "model.embed_tokens.weight").stdout[:64])
    raw[at + 3] ^= 1
    file.write_bytes(raw)
    said = json.loads(run("verify", "--json", row, "20").stdout)
    equal([p["key"] for p in said["problems"]], ["model.embed_tokens.weight"], f"a bit of one of them: {said}")
    check(said["problems"][0]["offset"] <= at < said["problems"][0]["offset"] + said["problems"][0]["nbytes"], f"byte {at}: {said['problems']}")


def false_ends_of_archives_are_given_up():
    """A file of thousands of ends that end no archive does not keep verify busy, and that is said."""
    top = SCRATCH / "ends"
    shutil.copytree(GOLDEN / "dcp-plain" / "ckpt", top)
    file = next(p for p in sorted(top.rglob("*.distcp")))
    file.write_bytes(file.read_bytes() + (b"PK\5\6" + bytes(18)) * 100000)
    began = time.monotonic()
    got = run("verify", "--json", file.parent)
    check(any("end none" in p["why"] and p["file"] == file.name for p in json.loads(got.stdout)["problems"]), f"{got}")
    equal(got.returncode, BAD, "a file whose checksums were not looked for")
    check(time.monotonic() - began < 60, f"it took {time.monotonic() - began:.0f} s")


def told(got):
    said = json.loads(got.stdout or b"{}")
    return {**said, "problems": sorted(map(repr, said.get("problems", [])))}


def copies_are_compared():
    """Elements that several files hold: a bit in either copy, and which has the recorded bytes."""
    top, record = SCRATCH / "copies", SCRATCH / "copies.digests"
    shutil.copytree(GOLDEN / "paddle-dist-flat" / "ckpt", top)
    good = json.loads(run("verify", "--json", top).stdout)
    check(good["copies"] > 0 and not good["problems"], f"copies: {good}")
    equal(run("verify", top, "--record", record).returncode, OK, "--record")
    seen = set()
    for file in sorted(p for p in top.rglob("*") if p.is_file() and p.suffix in (".distcp", ".safetensors", ".pdparams")):
        raw = file.read_bytes()
        for at in range(len(raw) // 8, len(raw), max(1, len(raw) // 6)):
            file.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
            got = run("verify", "--json", "-j", "1", "--check", record, top)
            more = run("verify", "--json", "-j", "5", "--check", record, top)
            equal((more.returncode, told(more)), (got.returncode, told(got)), f"five threads find what one finds: {file.name}, byte {at}")
            if got.stdout:
                seen |= {" ".join(p["why"].split("; ")[-1].split()[1:]) for p in json.loads(got.stdout)["problems"] if "its copy in" in p["why"]}
        file.write_bytes(raw)
    check("has the recorded bytes" in seen, f"a copy with the recorded bytes: {seen}")


def options_that_exclude_each_other_are_refused():
    top = GOLDEN / "paddle-dist-flat" / "ckpt"
    fails(USAGE, "both write to stdout", "verify", "--record", "-", "--json", top)
    fails(USAGE, "--no-cache leaves out", "verify", "--resume", "--no-cache", top)


def interrupted_reading_goes_on():
    top = SCRATCH / "resume" / "model.safetensors"
    write(top, {f"w{i}": ("F32", [4], struct.pack("<4f", i, 1, 2, 3)) for i in range(9)})
    os.utime(top, (1e9, 1e9))
    plain = json.loads(run("verify", "--json", top.parent).stdout)
    equal(json.loads(run("verify", "--json", "--resume", top.parent).stdout), plain, "nothing to go on with: all is read")
    big = SCRATCH / "resume2" / "model.safetensors"
    write(big, {f"w{i:02}": ("F32", [1 << 16], bytes([i]) * (4 << 16)) for i in range(40)})
    os.utime(big, (1e9, 1e9))
    env = dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache"))
    p = subprocess.Popen([DCPFS, "verify", "--rate", "1MB", "-j", "1", big.parent], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((SCRATCH / "cache").glob("*verify-xxh3*.kept")) or not any(f.stat().st_size > 100 for f in (SCRATCH / "cache").glob("*verify-xxh3*.kept")):
        time.sleep(0.05)
    p.terminate()
    p.wait()
    trace = run("verify", "--resume", "--json", "--json-progress", big.parent)
    read = [json.loads(line) for line in trace.stderr.decode().splitlines() if line.startswith("{")]
    equal(trace.returncode, OK, trace.stderr.decode())
    check(not read or read[-1].get("total", 0) < 40 * (4 << 16), f"all was read again: {read[-1:]}")
    one = run("verify", "--record", "-", big.parent).stdout
    equal(len(one.splitlines()), 40, "the record is whole")


def statements_are_records():
    source, record, text = GOLDEN / "hf-llama" / "ckpt", SCRATCH / "s.json", SCRATCH / "s.txt"
    for words in (), ("--sha256",):
        equal(run("verify", source, "--record", record, "--format", "in-toto", *words).returncode, OK, "in-toto")
        equal(run("verify", source, "--record", text, *words).returncode, OK, "text")
        said = json.loads(record.read_text())
        equal((said["_type"], said["predicateType"]), ("https://in-toto.io/Statement/v1", "urn:dcpfs:tensors:1"), "types")
        kind = "dcpfsTensorSha256" if words else "dcpfsTensorXxh3"
        equal({f"{s['digest'][kind]}  {s['name']}" for s in said["subject"]}, set(text.read_text().splitlines()), "subjects are lines")
        equal(run("verify", source, "--check", record).returncode, OK, "--check of a statement")
        said["subject"][0]["digest"][kind] = said["subject"][0]["digest"][kind][::-1]
        record.write_text(json.dumps(said))
        equal(run("verify", source, "--check", record).returncode, NO, "another digest")
    for bad in ("{}", "{", '{"_type": "https://in-toto.io/Statement/v1", "subject": [{"name": "w", "digest": {"sha256": "00"}}]}'):
        record.write_text(bad)
        fails(BAD, "s.json", "verify", source, "--check", record)
    fails(USAGE, "--format is that of --record", "verify", source, "--format", "in-toto")


checksums_of_archives_are_compared()
false_ends_of_archives_are_given_up()
copies_are_compared()
options_that_exclude_each_other_are_refused()
interrupted_reading_goes_on()
statements_are_records()
finish()
