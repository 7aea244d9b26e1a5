#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs scan: planted pickles are named and never run, whatever form, file or archive they hide in."""
import io
import json
import os
import pickle
import zipfile

import numpy

from cli import GOLDEN, NO, OK, SCRATCH, check, equal, finish, run, write

RNG = numpy.random.default_rng(int(os.environ.get("DCPFS_TEST_SEED", "20261128")))


class Call:
    """Pickled, it is a call of os.system."""
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def imported_names_are_judged():
    marker = SCRATCH / "ran"
    bad = Call(f"touch {marker}")
    top = SCRATCH / "scan"

    def scan(name, *words, code=NO):
        got = run("scan", "--json", *words, top / name)
        equal(got.returncode, code, f"scan {name}: {got.stderr.decode()}")
        return {(r["judged"], r["name"], r["file"]) for r in json.loads(got.stdout) if r["judged"] != "own"}

    def plant(name, raw, file="extra.pkl"):
        write(top / name / "model.safetensors", {"w": ("F32", [1], bytes(4))})
        (top / name / file).parent.mkdir(exist_ok=True)
        (top / name / file).write_bytes(raw)

    system = ("dangerous", f"{os.system.__module__}.system")
    for protocol in range(6):
        plant(f"p{protocol}", pickle.dumps({"a": [1, 2], "b": bad}, protocol))
        equal(scan(f"p{protocol}"), {(*system, "extra.pkl")}, f"protocol {protocol}")
    plant("row", b"".join(pickle.dumps(x, 2) for x in (0x1950a86a20f9469cfc6c, 1001, {}, bad, [])) + bytes(range(256)), "extra.pt")
    equal(scan("row"), {(*system, "extra.pt")}, "pickles in a row")
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps(bad, 2))
        z.writestr("archive/data/0", bytes(4))
    plant("zip", body.getvalue(), "training_args.bin")
    equal(scan("zip"), {(*system, "training_args.bin")}, "a member of an archive")
    plant("deep", RNG.bytes(3 << 20) + body.getvalue() + RNG.bytes(100), "sub/__0_0.distcp")
    equal(scan("deep"), {(*system, "sub/__0_0.distcp")}, "an archive inside of a file, below")
    edge = RNG.bytes((1 << 20) - 2).replace(b"PK", b"pk") + body.getvalue()
    plant("edge", edge, "x.distcp")
    equal(scan("edge"), {(*system, "x.distcp")}, "an archive across a boundary of what is read at a time")
    numpy.save(SCRATCH / "objects.npy", numpy.array([bad], object), allow_pickle=True)
    plant("npy", (SCRATCH / "objects.npy").read_bytes(), "objects.npy")
    equal(scan("npy"), {(*system, "objects.npy")}, "an array of objects")
    plant("computed", b"\x80\x04\x8c\x02osK\x01\x93.")
    equal(scan("computed"), {("unknown", None, "extra.pkl")}, "a name that is no text")
    plant("cut", pickle.dumps({"x": 1, "y": bad}, 4)[:-4])
    equal(scan("cut"), {(*system, "extra.pkl"), ("unknown", None, "extra.pkl")}, "a pickle that was cut")
    for what, raw in (("no mark", b"K\0" + b"0cos\nsystem\n(S'id'\ntR."), ("an unlisted name", b"\x8c\x01x0cos\nsystem\n(S'id'\ntR."),
                      ("protocol 0 after 2", pickle.dumps(1, 2) + b"cos\nsystem\n(S'id'\ntR."),
                      ("the ninth", pickle.dumps(1, 2) * 8 + b"cos\nsystem\n(S'id'\ntR."),
                      ("attributes of modules", b"\x80\x04ctorch.distributed.checkpoint.filesystem\nos.system\n(S'id'\ntR.")):
        plant(what, raw, "weights" if "unlisted" in what else "data.pkl")
        file = "weights" if "unlisted" in what else "data.pkl"
        name = "torch.distributed.checkpoint.filesystem.os.system" if "modules" in what else "os.system"
        equal(scan(what), {("dangerous", name, file)}, what)
    plant("many", pickle.dumps(1, 2) * 65)
    equal(scan("many"), {("unknown", None, "extra.pkl")}, "more pickles than are looked at")
    for what, raw in (("places", b"\x80\x04\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x940\x8c\x02osp10\n\x8c\x06systemp11\n00g1_0\ng1_1\n\x93."),
                      ("MEMOIZE", b"\x80\x04\x8c\x0bcollectionsq\x01\x8c\x02os\x94\x8c\x0bOrderedDict00h\x01\x8c\x0bOrderedDict\x93.")):
        plant(what, raw)
        check(any(r[:2] == ("unknown", None) for r in scan(what)), f"{what}: names are not followed")
    plant("imported", b"\x80\x04ctorch.distributed.checkpoint.filesystem\nos\n.")
    equal(scan("imported"), {("unknown", "torch.distributed.checkpoint.filesystem.os", "extra.pkl")}, "a module that a module imports")
    plant("text", b"config of a run\nwith words\n.", "notes")
    equal(scan("text", code=OK), set(), "text is no pickle")
    plant("links", b"N.")
    os.symlink(top / "zip", top / "links" / "more")
    equal(scan("links"), {("unknown", None, "more")}, "a link to a directory")
    member = io.BytesIO()
    with zipfile.ZipFile(member, "w") as z:
        z.writestr("run/data/model.pt", body.getvalue())
        z.writestr("d" * 300 + "/x.pt", pickle.dumps({}, 2))
    plant("nested", member.getvalue(), "all.zip")
    check((*system, "all.zip") in scan("nested"), "an archive in an archive")
    long = io.BytesIO()
    with zipfile.ZipFile(long, "w") as z:
        z.writestr("a" * 300 + "/data.pkl", pickle.dumps(bad, 2))
    plant("long", bytes(100) + long.getvalue(), "x.distcp")
    equal(scan("long"), {(*system, "x.distcp")}, "a member of a long name")
    plant("escape", b"\x93NUMPY\x01\0v\0" + b"{'descr': '\\x7cO', 'fortran_order': False, 'shape': (1,)}".ljust(117) + b"\n" + pickle.dumps(bad, 2), "o.npy")
    equal(scan("escape"), {(*system, "o.npy")}, "a header with escapes")
    plant("mine", b"cmylib.config\nRun\n)R.")
    equal(scan("mine"), {("unknown", "mylib.config.Run", "extra.pkl")}, "a name of a library")
    equal(scan("mine", "--allow", "mylib.*", code=OK), set(), "--allow")
    plant("fine", pickle.dumps({"a": numpy.float64(1), "b": {1, 2}, "c": 1j}, 2))
    equal(scan("fine", code=OK), set(), "numpy's own")
    for name, code in (("base", OK), ("call-as-root", NO), ("call-in-item", NO), ("call-in-modules", NO), ("cut-metadata", NO)):
        equal(run("scan", GOLDEN / "hostile" / name).returncode, code, f"hostile/{name}")
    for name in "dcp-fsdp2", "dcp-tp-fsdp", "hf-bin", "megatron-legacy", "deepspeed-z3", "paddle-plain", "torchao":
        got = run("scan", GOLDEN / name / "ckpt")
        equal(got.returncode, NO if name == "dcp-fsdp2" else OK, f"{name}: {got.stdout.decode()}")
    rows = [r for r in json.loads(run("scan", "--json", GOLDEN / "dcp-fsdp2" / "ckpt").stdout) if r["judged"] == "unknown"]
    check(all(r["key"] for r in rows), f"keys are named: {rows}")
    part = SCRATCH / "part"
    part.mkdir()
    (part / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-1.safetensors"}}', encoding="utf-8")
    (part / "training_args.bin").write_bytes(pickle.dumps(bad, 2))
    for words in (), ("latest",):
        got = run("scan", part, *words)
        check(got.returncode == NO and b"posix.system" in got.stdout and b"no complete version" in got.stderr, f"a version that is not complete: {got}")
    check(not marker.exists(), "a command was run")


imported_names_are_judged()
finish()
