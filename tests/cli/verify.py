#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs verify: checksums of archives, copies in several files, what was interrupted, statements. Records: tests/cli/trust.py."""
import base64
import hashlib
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
from cli import BAD, DCPFS, GOLDEN, NO, OK, SCRATCH, USAGE, check, equal, fails, finish, run, sample, write  # noqa: E402


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
        for at in sample(range(len(raw) // 8, len(raw), max(1, len(raw) // 6))):
            file.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
            got = run("verify", "--json", "-j", "1", "--check", record, top)
            more = run("verify", "--json", "-j", "5", "--check", record, top)
            equal((more.returncode, told(more)), (got.returncode, told(got)), f"five threads find what one finds: {file.name}, byte {at}")
            if got.stdout:
                seen |= {" ".join(p["why"].split("; ")[-1].split()[1:]) for p in json.loads(got.stdout)["problems"] if "its copy in" in p["why"]}
        file.write_bytes(raw)
    check("has the recorded bytes" in seen, f"a copy with the recorded bytes: {seen}")


def unreadable_tensors_are_counted():
    top = SCRATCH / "short" / "step-20"
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20", top)
    os.truncate(top / "__1_0.distcp", 30000)
    told = json.loads(run("verify", "--json", top).stdout)
    check(0 < told["unreadable"] < told["tensors"], f"of a file that was cut off: {told}")
    said = run("verify", top).stdout.decode()
    check(f"; {told['unreadable']} cannot be read; {told['damaged']} damaged;" in said, f"the sums are not those of the report: {said}")


def conflicting_options_are_refused():
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


def signed(name, sig="sha256"):
    """A copy of a model with a manifest that the package model-signing wrote."""
    top = SCRATCH / name
    shutil.rmtree(top, ignore_errors=True)
    shutil.copytree(GOLDEN / "hf-llama" / "ckpt" / "gpt2-tied", top)
    shutil.copy(GOLDEN / "model-signing" / f"{sig}.sig", top / "model.sig")
    return top


def restate(path, change):
    """Change the statement in a bundle; its signature is then wrong, which is not looked at."""
    bundle = json.loads(path.read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    change(statement)
    if "predicate" in statement and statement["subject"]:
        digests = b"".join(bytes.fromhex(r["digest"]) for r in statement["predicate"]["resources"])
        statement["subject"][0]["digest"]["sha256"] = hashlib.sha256(digests).hexdigest()
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    path.write_text(json.dumps(bundle))


def manifests_of_model_signing_are_compared():
    """Files and parts of files, by SHA-256 and BLAKE2b: a bit of a file, one that is gone or grew, one that is not listed."""
    for sig, n in {"sha256": 3, "blake2": 3, "sha256-shards": 6, "blake2-shards": 4}.items():
        top = signed(sig, sig)
        said = json.loads(run("verify", "--json", top).stdout)
        equal((said["model_sig"], said["problems"]), ({"agree": n, "unknown": 0, "signature_checked": False}, []), sig)
        check(b"its signature was not checked" in run("verify", top).stdout, "the text says what was not checked")
        file = top / "config.json"
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b"gpt2", b"gpt3", 1))
        got = run("verify", "--json", top)
        said = json.loads(got.stdout)
        equal((got.returncode, [(p["file"], "digest" in p["why"]) for p in said["problems"]]), (BAD, [("config.json", True)]), f"{sig}: a changed file")
        file.write_bytes(whole + b" ")
        said = json.loads(run("verify", "--json", top).stdout)
        equal({p["file"] for p in said["problems"]}, {"config.json"}, f"{sig}: a longer file")
        file.unlink()
        got = run("verify", "--json", top)
        equal(got.returncode, BAD, f"{sig}: a missing file")
        check("it is not there" in json.loads(got.stdout)["problems"][0]["why"], got.stdout)
        file.write_bytes(whole)
        model = top / "model.safetensors"
        raw = bytearray(model.read_bytes())
        raw[-9000] ^= 1
        model.write_bytes(raw)
        problem = json.loads(run("verify", "--json", top).stdout)["problems"][0]
        equal(problem["file"], "model.safetensors", f"{sig}: a bit of a tensor")
        check("shards" not in sig or problem["offset"] <= len(raw) - 9000 < problem["offset"] + problem["nbytes"] < len(raw) + 1, problem)
        write(top / "model.safetensors", {"w": ("F32", [1], bytes(4))})
        check(run("verify", top).returncode == BAD, f"{sig}: another file")


def uncovered_files_are_reported():
    top = signed("more")
    restate(top / "model.sig", lambda s: s["predicate"]["resources"].pop())
    fails(BAD, "model.safetensors: model.sig does not list it", "verify", top)
    top = signed("more", "sha256-shards")
    restate(top / "model.sig", lambda s: s["predicate"]["resources"].pop())
    fails(BAD, "model.sig does not list these bytes of it", "verify", top)
    top = signed("more")
    restate(top / "model.sig", lambda s: s["predicate"]["resources"].clear())
    said = json.loads(run("verify", "--json", top).stdout)
    equal({p["file"] for p in said["problems"]}, {"config.json", "generation_config.json", "model.safetensors"}, "an empty list")
    restate(top / "model.sig", lambda s: s["predicate"].setdefault("serialization", {}).update(ignore_paths=["config.json", "generation_config.json"]))
    said = json.loads(run("verify", "--json", top).stdout)
    equal({p["file"] for p in said["problems"]}, {"model.safetensors"}, "without the paths that it ignores")
    restate(top / "model.sig", lambda s: s.update(predicateType="https://example.org/other"))
    fails(BAD, "its statement is a https://example.org/other, which is not known", "verify", top)


def hostile_manifests_are_reported():
    """Names that lead outside, wrong forms and unknown algorithms: a reason each, and nothing outside is opened."""
    outside = SCRATCH / "outside"
    outside.write_text("secret")
    for name in ("../outside", str(outside), "a/../../outside", "", "."):
        top = signed("hostile")
        restate(top / "model.sig", lambda s, name=name: s["predicate"]["resources"].append(
            {"name": name, "algorithm": "sha256", "digest": hashlib.sha256(b"secret").hexdigest()}))
        got = run("verify", "--json", top)
        equal((got.returncode, json.loads(got.stdout)["model_sig"]["agree"]), (BAD, 3), f"name {name!r}")
    (signed("hostile") / "link").symlink_to(outside)
    top = SCRATCH / "hostile"
    restate(top / "model.sig", lambda s: s["predicate"]["resources"].append(
        {"name": "link", "algorithm": "sha256", "digest": hashlib.sha256(b"secret").hexdigest()}))
    equal(json.loads(run("verify", "--json", top).stdout)["model_sig"]["agree"], 3, "a link that leads out")
    for text in (b"", b"{", b"[]", b"{}", b"\x80\x02", b'{"dsseEnvelope": {"payload": "!!", "payloadType": "application/vnd.in-toto+json"}}',
                 b'{"dsseEnvelope": {"payload": "e30=", "payloadType": "application/vnd.in-toto+json"}}'):
        top = signed("hostile")
        (top / "model.sig").write_bytes(text)
        fails(BAD, "it is no manifest of model-signing", "verify", top)
    for change in (lambda r: r.update(digest="00"), lambda r: r.update(digest="xx" * 32), lambda r: r.pop("name"), lambda r: r.update(digest=1)):
        top = signed("hostile")
        bundle = json.loads((top / "model.sig").read_text())
        statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        change(statement["predicate"]["resources"][0])
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        (top / "model.sig").write_text(json.dumps(bundle))
        equal(run("verify", top).returncode, BAD, "a wrong entry")
    top = signed("hostile")
    bundle = json.loads((top / "model.sig").read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["subject"][0]["digest"]["sha256"] = "0" * 64
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (top / "model.sig").write_text(json.dumps(bundle))
    fails(BAD, "is not the digest that it states", "verify", top)
    top = signed("hostile", "blake3")
    got = run("verify", "--json", top)
    equal((got.returncode, json.loads(got.stdout)["model_sig"]), (OK, {"agree": 0, "unknown": 3, "signature_checked": False}), "BLAKE3")
    check(b"3 digests are by blake3, which is not known here" in got.stderr and b"these files were not compared" in got.stderr, got.stderr)


def unreadable_manifests_are_reported():
    """They are there, so nobody may take the files for compared."""
    top = signed("unread")
    sig = top / "model.sig"
    whole = sig.read_text()
    (top.parent / "outside.sig").write_text(whole)
    for make, why in (sig.mkdir, "a directory"), (lambda: os.mkfifo(sig), "a FIFO"), (lambda: sig.symlink_to("../outside.sig"), "leads outside"):
        shutil.rmtree(top)
        top = signed("unread")
        sig.unlink()
        make()
        fails(BAD, f"it cannot be read: model.sig: {why}", "verify", top)
    shutil.rmtree(top)
    top = signed("unread")
    restate(sig, lambda s: s.update(x=[0] * 4_100_000))
    fails(BAD, "it cannot be read: JSON has more than 4000000 values", "verify", top)


def one_file_is_compared_alone():
    """What its manifest lists of the files beside it is not looked at."""
    top = signed("beside")
    (top / "config.json").write_text("{}")
    said = json.loads(run("verify", "--json", top / "model.safetensors").stdout)
    equal((said["model_sig"]["agree"], said["problems"]), (1, []), "of one file")


def manifests_above_a_version_are_compared():
    """One for a directory of versions: what it lists of others is not looked at."""
    top = SCRATCH / "above"
    for name in ("step-1", "step-2"):
        shutil.copytree(GOLDEN / "hf-llama" / "ckpt" / "gpt2-tied", top / name)
    shutil.copy(GOLDEN / "model-signing" / "sha256.sig", top / "model.sig")

    def both(s):
        s["predicate"]["resources"] = [{**r, "name": f"{d}/{r['name']}"} for d in ("step-1", "step-2") for r in s["predicate"]["resources"]]

    restate(top / "model.sig", both)
    (top / "step-1" / "config.json").write_text("{}")
    for version, code, agree in ("step-2", OK, 3), ("step-1", BAD, 2):
        got = run("verify", "--json", top, version)
        equal((got.returncode, json.loads(got.stdout)["model_sig"]["agree"]), (code, agree), version)
    old = signed("old")
    restate(old / "model.sig", lambda s: s.update(predicateType="https://model_signing/Digests/v0.1", subject=[
        {"name": r["name"], "digest": {"sha256": r["digest"]}} for r in s.pop("predicate")["resources"]]))
    equal(json.loads(run("verify", "--json", old).stdout)["model_sig"]["agree"], 3, "the form before 1.0")


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
    fails(USAGE, "--format is for --record only", "verify", source, "--format", "in-toto")


checksums_of_archives_are_compared()
false_ends_of_archives_are_given_up()
copies_are_compared()
unreadable_tensors_are_counted()
conflicting_options_are_refused()
interrupted_reading_goes_on()
statements_are_records()
manifests_of_model_signing_are_compared()
uncovered_files_are_reported()
hostile_manifests_are_reported()
unreadable_manifests_are_reported()
one_file_is_compared_alone()
manifests_above_a_version_are_compared()
finish()
