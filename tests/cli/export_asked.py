#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs export: keys, dtypes and layouts that are asked for, what is left out, and what is refused.

usage: export_asked.py DCPFS
"""
import array
import json
import os
import pickle
import shutil
import struct
import subprocess
import zipfile

from cli import BAD, DCPFS, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run

N = 70000  # elements: more than are converted at once
SOURCE = SCRATCH / "source"
GPT2 = GOLDEN / "hf-llama" / "ckpt" / "gpt2-tied"


def write(path, tensors):
    """A safetensors file: {key: (dtype, shape, bytes)}."""
    header, at = {}, 0
    for key, (dtype, shape, body) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(body)]}
        at += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body for _, _, body in tensors.values()))


def read(path):
    """{key: (dtype, bytes)} of such a file."""
    body = path.read_bytes()
    n = struct.unpack_from("<Q", body)[0]
    return {k: (e["dtype"], body[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]])
            for k, e in json.loads(body[8:8 + n]).items() if k != "__metadata__"}


def export(form, *options, source=SOURCE, ending=""):
    """The report, with the path of what was written."""
    out = SCRATCH / f"out-{len(list(SCRATCH.iterdir()))}{ending}"
    return data("export", "--as", form, "--json", *options, source, out) | {"out": out}


def left(report):
    return {x["key"]: x["why"] for x in report["left_out"]}


def dtypes_are_converted():
    values = array.array("f", (float(i % 251) for i in range(N)))
    write(SOURCE / "model.safetensors", {
        "a.w": ("F32", [N], values.tobytes()), "a.n": ("I32", [3], bytes(12)), "b.w": ("F32", [2, 2], bytes(range(16))),
        **{f"f.{i}": ("F8_E4M3", [2], b"01") for i in range(3)}})
    got = read(export("safetensors", "--dtype", "BF16", "--verify", "--keys", "a", ending=".safetensors")["out"])
    upper = b"".join(values.tobytes()[i + 2:i + 4] for i in range(0, 4 * N, 4))
    check(got["a.w"] == ("BF16", upper), "--dtype BF16: numbers that fit are not their upper halves")
    equal(got["a.n"], ("I32", bytes(12)), "--dtype BF16: integers stay")
    equal(sorted(got), ["a.n", "a.w"], "--keys a")
    got = read(export("safetensors", "--keys", "a", "--skip", "a.n", ending=".safetensors")["out"])
    equal(sorted(got), ["a.w"], "--keys a --skip a.n")
    said = run("export", "--as", "npz", SOURCE, SCRATCH / "three.npz").stdout.decode()
    check("left out: 3 tensors f.0, f.1, f.2: numpy has no such numbers" in said, f"three are left out: {said}")


def is_changed(form, source, out, says, was, *options):
    """One byte of these in what was written is another, which --verify sees."""
    files = [p for p in ([out] if out.is_file() else out.iterdir()) if was in p.read_bytes()]
    equal(len(files), 1, f"{form}: files with {was}")
    body = files[0].read_bytes()
    files[0].write_bytes(body.replace(was, was[:-1] + bytes([was[-1] ^ 1])))
    fails(BAD, says, "export", "--as", form, *options, "--resume", "--verify", source, out)
    files[0].write_bytes(body)


def objects_and_files_are_verified():
    """--verify compares objects and files that go along, also where what was one object is several that are read back."""
    with zipfile.ZipFile(SCRATCH / "objects.pt", "w") as z:
        z.writestr("a/data.pkl", pickle.dumps({"step": 20041, "pair": (20042, [20043]), "text": "before", "flat": [20044, [20045]]}, 2))
        z.writestr("a/version", "3\n")
    for form, ending in (("torch-save", ".pt"), ("torch-dcp", ""), ("paddle", ".pdparams")):
        out = export(form, "--verify", source=SCRATCH / "objects.pt", ending=ending)["out"]
        for n, key in zip(range(20041, 20046), ("step", "pair", "pair", "flat", "flat")):
            is_changed(form, SCRATCH / "objects.pt", out, key + ": what was written is not what was read: another value", struct.pack("<H", n))
    source, opened = GOLDEN / "dcp-plain" / "ckpt" / "all", SCRATCH / "opened.pt"
    data("export", "--as", "torch-save", "--json", "--verify", "--keys", "obj", "--skip", "obj.true", source, opened)
    at = opened.read_bytes().index(b"K\x01", opened.read_bytes().index(b"tuple_with_tensor"))
    is_changed("torch-save", source, opened, "obj.tuple_with_tensor", opened.read_bytes()[at - 20:at + 2], "--keys", "obj", "--skip", "obj.true")
    (SOURCE / "config.json").write_text('{"model_type": "none"}')
    out = export("safetensors", "--verify")["out"]
    is_changed("safetensors", SOURCE, out, "config.json: what was written is not what was read: bytes from", b"one")
    (SOURCE / "config.json").unlink()


def damage_is_no_success():
    """What cannot be read, or is not there, is not a success."""
    source, out = SCRATCH / "torn", SCRATCH / "torn.pt"
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20", source)
    (source / "__1_0.distcp").unlink()
    for verb in (("export", "--as", "torch-save"), ("save",)):
        fails(BAD, "__1_0.distcp: No such file", *verb, source, out)
        check(not out.exists(), f"{verb[0]}: a damaged source leaves nothing")
    for form in ("torch-save", "safetensors"):  # an object that is damaged, where there is a place for it and where there is none
        fails(BAD, "epoch cannot be read", "export", "--as", form, "--keys", "dataloader.rank1.epoch", source, SCRATCH / "none")
    check(left(export("torch-save", "--partial", source=source, ending=".pt")), "--partial lists what it leaves out")
    data("export", "--as", "torch-save", "--json", "--keys", "dataloader.rank0.epoch", GOLDEN / "dcp-fsdp2" / "ckpt", "step-20", SCRATCH / "epoch.pt")
    shutil.copy(GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20" / "__1_0.distcp", source)
    (source / "__1_0.distcp").chmod(0)
    bound = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]  # or root reads everything
    if os.geteuid() or subprocess.run([*bound, "true"], stderr=subprocess.DEVNULL).returncode == 0:
        got = subprocess.run([*([] if os.geteuid() else bound), DCPFS, "export", "--as", "torch-save", source, out],
                             env=dict(os.environ, DCPFS_CACHE=""), capture_output=True)
        equal(got.returncode, ENV, f"a file that may not be read: {got.stderr}")
    for verb in (("export", "--as", "torch-save"), ("save",)):
        fails(NO, 'no key "nosuch"', *verb, "--keys", "a", "--keys", "nosuch", SOURCE, out)
        fails(NO, "is left to write", *verb, "--skip", "*", SOURCE, out)
    (SCRATCH / "some.dcpl").write_text("mesh a=2\na.* shard(0)\n")
    fails(BAD, "no rule matches", "export", "--as", "torch-dcp", "--layout", SCRATCH / "some.dcpl", SOURCE, SCRATCH / "some")


def layouts_cut_exports():
    half = SCRATCH / "half.dcpl"
    half.write_text("mesh a=2\na.* shard(0)\n* only(a=0) shard(0)\n")
    got = export("torch-dcp", "--layout", half, "--keys", "a", "--keys", "b")
    equal(left(got), {"b.w": "in this layout its parts overlap, or some of it no rank has"}, "no rank has half of b.w")
    export("torch-dcp", "--layout", "fsdp3", "--verify", source=GPT2)
    export("torch-dcp", "--layout", "fsdp3", "--verify", "--jobs", "1", "--keys", "a.w")  # one part after the other
    for form in "safetensors", "torch-save":
        out = export(form, "--layout", "fsdp2", "--verify")["out"]
        if form == "safetensors":
            equal([v["name"] for v in data("ls", "--versions", "--json", out)], sorted(n for n in os.listdir(out) if n[0] != "."), "what each rank has is a version")
        last = sorted(out.iterdir())[-1]
        body = bytearray(last.read_bytes())
        at = -1
        if form == "torch-save":
            with zipfile.ZipFile(last) as z:
                at = max((one for one in z.infolist() if "/data/" in one.filename), key=lambda one: one.file_size).header_offset
            at += 30 + sum(struct.unpack_from("<HH", body, at + 26))
        body[at] ^= 1
        last.write_bytes(body)
        fails(BAD, "is not what was read: bytes from", "export", "--as", form, "--layout", "fsdp2", "--resume", "--verify", SOURCE, out)
    (SCRATCH / "both.dcpl").write_text("mesh a=2\n* replicate\n")
    got = export("torch-dcp", "--layout", SCRATCH / "both.dcpl")
    check(all((got["out"] / f"__{r}_0.distcp").stat().st_size for r in range(2)), "what both have one rank writes alone")


def unfit_options_are_refused():
    """Options that the format has no use for, and names that promise something else."""
    for form, says, *options in (("npz", "--layout is not for npz; it is for safetensors, torch-dcp, ", "--layout", "fsdp2"),
                                 ("safetensors", "--protocol is not for safetensors; it is for torch-dcp, paddle", "--protocol", "2"),
                                 ("paddle", 'takes one of 2, 3, 4, not "5"', "--protocol", "5"),
                                 ("torch-save", "--max-shard-size is not for torch-save; it is for safetensors", "--max-shard-size", "1M"),
                                 ("paddle-vars", "cannot --verify: paddle-vars does not keep the keys", "--verify"),
                                 ("safetensors", "is not for --layout", "--max-shard-size", "1M", "--layout", "fsdp2"),
                                 ("safetensor", "nearest is safetensors; formats are "), ("npx", "nearest is npy; "),
                                 ("safetensors", "--dtype takes one of stored, F32, BF16", "--dtype", "half")):
        fails(USAGE, says, "export", "--as", form, *options, SOURCE, SCRATCH / "x")
    fails(USAGE, "is not for one file", "export", "--as", "safetensors", "--max-shard-size", "1M", SOURCE, SCRATCH / "x.safetensors")
    for form, name, says in (("torch-dcp", "x.safetensors", "a file of safetensors; torch-dcp writes a directory (/"),
                             ("safetensors", "x.pt", "a file of torch-save; safetensors writes a directory, or a file called .safetensors"),
                             ("paddle", "x.npz", "a file of npz; paddle writes a directory, or a file called .pdparams")):
        fails(USAGE, says, "export", "--as", form, SOURCE, SCRATCH / name)
    equal(run("export", "--as", "torch-dcp", SOURCE, f"{SCRATCH}/dir.safetensors/").returncode, OK, "a slash makes a directory")
    check((SCRATCH / "dir.safetensors" / ".metadata").exists(), "a directory of that name")
    export("safetensors", "--dtype", "bf16", "--keys", "a.w")


def forbidden_paths_are_named():
    """What may not be read or written is a matter of the environment, and named as it was given."""
    source, place = SCRATCH / "theirs", SCRATCH / "locked"
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", f"DCPFS_CACHE={SCRATCH}/none", "LC_ALL=C.UTF-8", DCPFS]
    if os.geteuid() or subprocess.run([*other, "version"], capture_output=True, check=False).returncode:
        print("files without permission left out: that takes root, and another user who can run the program")
        return
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt" / "step-20", source)
    os.chmod(source / "__1_0.distcp", 0)
    place.mkdir()
    os.chmod(SCRATCH, 0o755)
    for words in (["cat", source, "model.norm.weight"], ["load", source], ["export", "--as", "torch-save", source, SCRATCH / "x"]):
        got = subprocess.run([*other, *words], capture_output=True, check=False)
        equal(got.returncode, ENV, f"{words}: {got.stderr}")
        check(b"Permission denied" in got.stderr, f"{words}: {got.stderr}")
    for at, to, says in ((source, SCRATCH / "x", "__1_0.distcp: Permission denied"), (GPT2.absolute(), place / "x", f"{place}: no file can be made there: Permission denied")):
        if at != source and subprocess.run([*other, "ls", at], capture_output=True, check=False).returncode:
            continue  # this tree is closed to everyone
        got = subprocess.run([*other, "export", "--as", "torch-save", at, to], capture_output=True, check=False)
        equal(got.returncode, ENV, f"{to}: {got.stderr}")
        check(says in got.stderr.decode() and "journal" not in got.stderr.decode(), f"{to}: {got.stderr}")


def shared_bytes_are_written_once():
    """Tensors with the same bytes, of which one is not exported; a tensor and an object with the same key."""
    packed = (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R(K\1K\4\x85cnumpy\ndtype\nU\2u1K\0K\1\x87R"
              b"(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89U\4abcdtb")
    (SCRATCH / "same.pdparams").write_bytes(b"\x80\2}(U\1a}U\1b" + packed + b"sU\3a.bK\5u.")
    equal(left(export("torch-save", source=SCRATCH / "same.pdparams", ending=".pt")), {"a.b": "a tensor has the same key"}, "one key twice")
    bare = GOLDEN / "hf-bin" / "ckpt" / "gpt2-tied"
    got = export("torch-save", "--skip", "transformer.wte.weight", "--verify", source=bare, ending=".pt")
    want = data("show", "--digest", "--json", bare, "lm_head.weight")
    equal(data("show", "--digest", "--json", got["out"], "lm_head.weight"), want, "without the one it shares bytes with")
    (SCRATCH / "tie.rules").write_text("* -> *\ntie model.lm_head.weight = model.embed.weight\n")
    (SCRATCH / "assets").mkdir()
    (SCRATCH / "assets" / "config.json").write_text('{"tie_word_embeddings": true}')
    got = export("torch-save", "--hf", "--hf-rules", SCRATCH / "tie.rules", "--hf-assets", SCRATCH / "assets",
                 source=GOLDEN / "torch-save" / "ckpt" / "zip.pt", ending=".pt")
    equal(left(got), {"model.lm_head.weight": "it is tied to another"}, "tied")


dtypes_are_converted()
objects_and_files_are_verified()
damage_is_no_success()
layouts_cut_exports()
unfit_options_are_refused()
forbidden_paths_are_named()
shared_bytes_are_written_once()
finish()
