#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs save (dcpsave): files of several ranks against those that Paddle's io.save wrote; gathering in bounded rounds; misuse."""
import json
import os
import pickle
import random
import re
import signal
import socket
import struct
import subprocess
import time
import zipfile

from cli import DCPFS, GOLDEN, OK, SANITIZER, SCRATCH, USAGE, check, data, equal, finish

PADDLE = GOLDEN / "paddle-plain" / "ckpt"
STATE = SCRATCH / "state"


def start(ranks, *args):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = dict(os.environ, LC_ALL="C.UTF-8", DCPFS_CACHE=str(SCRATCH / "cache"), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(port), DCPLOAD_TIMEOUT="120",
               TORCHELASTIC_RESTART_COUNT=os.urandom(8).hex())  # another job may have the same port
    return [subprocess.Popen([DCPFS, "save", *map(str, args)], env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for r in range(ranks)]


def end(job):
    """Exit codes, what rank 0 printed, what all said."""
    said = [p.communicate(timeout=240) for p in job]
    text = b"".join(err for _, err in said)
    check(not SANITIZER.search(text), text.decode())
    return [p.returncode for p in job], said[0][0], text.decode()


def save(ranks, *args):
    codes, out, err = end(start(ranks, *args, "--json"))
    return json.loads(out) if equal(codes, [OK] * ranks, f"{ranks} ranks, {args}: {err}") else None


def refused(says, ranks, *args):
    codes, _, err = end(start(ranks, *args))
    equal(codes, [USAGE] * ranks, f"{ranks} ranks, {args}: {err}")
    check(says in err and err.count("dcpfs: ") - err.count("does not end with") == 1, f"{args}: {err!r} does not say {says!r} once")


class Bare(pickle.Unpickler):
    """A pickle of Paddle's without numpy: what arrays are made of."""

    class Array:
        def __init__(self, *args):
            self.args = args

        def __setstate__(self, state):
            self.args += state

        def __eq__(self, other):
            return str(self) == str(other)

        def __str__(self):
            return f"({', '.join(map(str, self.args))})"

    def find_class(self, module, name):
        return {"tuple": tuple, "encode": lambda text, code: text.encode(code)}.get(name, self.Array)


def load(path):
    with open(path, "rb") as f:
        return Bare(f).load()


def arrays(value):
    """Without names of tensors: what is not gathered has those that the program gave, and a checkpoint of others has none."""
    return {k: arrays(v) for k, v in value.items()} if isinstance(value, dict) else value[1] if isinstance(value, tuple) else value


def make_state(sizes):
    """Tensors of bytes, as many as the sizes."""
    STATE.mkdir()
    header, at = {}, 0
    for i, n in enumerate(sizes):
        header[f"w.{i}"] = {"dtype": "U8", "shape": [n], "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    (STATE / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + random.Random(5).randbytes(at))


def layout(name, mesh, rules):
    path = SCRATCH / f"{name}.dcpl"
    path.write_text(f"mesh {mesh}\n" + "".join(f"{rule}\n" for rule in rules))
    return path


def digests(path):
    return data("show", "--digest", "--json", path)


def tuples_stay_tuples():
    """Tuples inside an object stay tuples."""
    saved = {"pair": ((1, 2), [3, (4,)])}  # a tuple is one object, the items of a list would be many
    with zipfile.ZipFile(SCRATCH / "pair.pt", "w") as z:
        z.writestr("a/data.pkl", pickle.dumps(saved, 2))
        z.writestr("a/version", "3\n")
    save(1, SCRATCH / "pair.pt", SCRATCH / "pair.pdparams")
    equal(load(SCRATCH / "pair.pdparams")["pair"], saved["pair"], "classes of values in an object")


def files_agree_with_paddles():
    """Two ranks of the state that Paddle's two ranks had write what Paddle wrote."""
    of = [load(PADDLE / "not_gathered" / f"opt_rank{r}.pdopt") for r in (0, 1)]
    keys = [[k for k in d if k not in ("master_weights", "LR_Scheduler")] + ["master_weights." + k for k in d["master_weights"]] for d in of]
    ranks = layout("paddle", "sharding=2", [f"{k} only(sharding={r}) replicate" for r in (0, 1) for k in keys[r]])
    for to, who in (("0", [0]), ("1", [1]), ("0,1", [0, 1])):
        out = SCRATCH / f"gathered{len(who)}{to[0]}"
        out.mkdir()
        got = save(2, PADDLE, "not_gathered@opt", out / "g{rank}.pdopt", "--layout", ranks, "--gather-to", to, "--state-type", "opt",
                   "--max-grouped-size", 300)
        equal(sorted(os.listdir(out)), [".dcpfs-written", *(f"g{r}.pdopt" for r in who)], f"to {to}: files")
        for r in who:
            equal(load(out / f"g{r}.pdopt"), load(PADDLE / "gathered01" / f"opt_g{r}.pdopt"), f"to {to}: the file of rank {r}")
        check(got["gathered"] and got["grouped"] <= 300 and got["rounds"] == -(-max(sum_of(k) for k in keys) // 150), f"to {to}: {got}")
    save(2, PADDLE, "not_gathered@opt", SCRATCH / "own{rank}.pdopt", "--layout", ranks)
    for r in (0, 1):
        equal(arrays(load(SCRATCH / f"own{r}.pdopt")), arrays(of[r]), f"not gathered: rank {r}")
    save(2, PADDLE, "not_gathered@opt", SCRATCH / "one{rank}.pdopt", "--layout", layout("one", "s=2", ["LR_Scheduler.* only(s=0) replicate", "* replicate"]))
    equal(["LR_Scheduler" in load(SCRATCH / f"one{r}.pdopt") for r in (0, 1)], [True, False], "an object that one rank has")
    for protocol in (2, 3, 4):
        data("save", "--json", "--force", "--protocol", protocol, PADDLE, "gathered01@opt_g0", SCRATCH / "p.pdopt")
        equal(load(SCRATCH / "p.pdopt"), load(PADDLE / "gathered01" / "opt_g0.pdopt"), f"alone, protocol {protocol}")
    data("save", "--json", "--use-binary-format", PADDLE, "binary@f32.lod", SCRATCH / "f32")
    equal((SCRATCH / "f32").read_bytes(), (PADDLE / "binary" / "f32.lod").read_bytes(), "--use-binary-format")


def sum_of(keys):
    sizes = {t["key"]: t["nbytes"] for t in data("ls", "--json", PADDLE, "not_gathered@opt")["tensors"]}
    return sum(sizes[k] for k in keys)


def any_limit_saves_the_source(sizes):
    """One to four ranks, any limit: the tensors of the source, in as many rounds as the limit asks for."""
    want = digests(STATE)
    for ranks, limit in ((1, "3G"), (2, "1K"), (3, "70K"), (4, "1M"), (4, 100001), (4, "3G")):
        deal = layout("deal", f"s={ranks}", [f"w.{{*}} stage({len(sizes)})@s"])
        out = SCRATCH / "state.pdopt"
        got = save(ranks, STATE, out, "--layout", deal, "--gather-to", ranks - 1, "--state-type", "opt", "--max-grouped-size", limit, "--force")
        equal(digests(out), want, f"{ranks} ranks, {limit}")
        per = -(-len(sizes) // ranks)
        most = max(sum(sizes[r * per:(r + 1) * per]) for r in range(ranks))
        bytes_ = min(32 << 20, limit if isinstance(limit, int) else int(limit[:-1]) << {"K": 10, "M": 20, "G": 30}[limit[-1]])
        equal(got["rounds"], -(-most // (bytes_ // ranks)) if ranks > 1 else 0, f"{ranks} ranks, {limit}: rounds")
        check(got["grouped"] <= bytes_, f"{ranks} ranks, {limit}: {got['grouped']} bytes in a round")
    for r in range(3):
        (SCRATCH / f"at{r}").mkdir()
    save(3, STATE, SCRATCH / "at{rank}" / "w.pdparams", "--layout", "fsdp3")
    save(3, STATE, SCRATCH / "cut{rank}.pdparams", "--layout", "fsdp3")
    for r in range(3):
        equal((SCRATCH / f"at{r}" / "w.pdparams").read_bytes(), (SCRATCH / f"cut{r}.pdparams").read_bytes(), "{rank} in a directory's name")
        data("load", STATE, "--layout", "fsdp3", "--rank", r, "--dump", SCRATCH / "dump", "--json")
        dumped = (SCRATCH / "dump" / f"rank-{r:05}-of-00003.safetensors").rename(SCRATCH / "dump.safetensors")
        equal(digests(SCRATCH / f"cut{r}.pdparams"), digests(dumped), f"cut: rank {r}")


def misuse_is_refused():
    out, deal = SCRATCH / "no.pdopt", layout("deal2", "s=2", ["w.{0-1} only(s=0) replicate", "* only(s=1) replicate"])
    opt = ("--gather-to", "0", "--state-type", "opt")
    refused("--state-type must be params or opt", 2, STATE, out, "--layout", deal, "--gather-to", 0)
    refused("--max-grouped-size is a number or like", 2, STATE, out, *opt, "--max-grouped-size", "3X")
    refused("--max-grouped-size is a number or like", 2, STATE, out, *opt, "--max-grouped-size", "2.5")
    refused("not a rank or a list of ranks", 2, STATE, out, "--gather-to", "first", "--state-type", "opt")
    refused("there is no rank 2 to gather to, only 0 to 1", 2, STATE, out, "--gather-to", "0,2", "--state-type", "opt")
    refused("ranks have different keys", 2, STATE, out, "--layout", deal, "--gather-to", 0, "--state-type", "params")
    refused("the layout cuts tensors", 2, STATE, out, "--layout", layout("mixed", "s=2", ["w.0 only(s=0) replicate", "* shard(0)"]), *opt)
    refused("put {rank} into the name", 2, STATE, out, "--layout", "fsdp2")
    refused("since all have the same keys", 2, STATE, out, *opt)
    refused("is for one tensor, not for a dict", 1, STATE, out, "--use-binary-format")
    for protocol in (1, 5):
        refused(f'--protocol takes one of 2, 3, 4, not "{protocol}"', 1, STATE, out, "--protocol", protocol)
    refused("protocol 2 cannot be written by several ranks together", 2, STATE, out, "--layout", deal, *opt, "--protocol", 2)
    refused("fsdp3 has 3 ranks, 2 are running", 2, STATE, out, "--layout", "fsdp3")
    out.write_bytes(b"mine")
    refused("--force replaces it", 2, STATE, out, "--layout", deal, *opt)
    equal(out.read_bytes(), b"mine", "a file that is there")
    codes, _, err = end(start(2, STATE, SCRATCH / "weights", "--layout", deal, *opt))
    check(codes == [OK, OK] and "opt are saved as" in err and "does not end with opt" in err, f"a name that Paddle warns of: {err}")
    job = start(2, GOLDEN / "dcp-plain" / "ckpt", SCRATCH / "x.pdopt", "--layout", layout("half", "s=2", ["*w* only(s=0) replicate", "* replicate"]), *opt)
    codes, _, err = end(job)
    check(codes == [USAGE] * 2 and "--skip leaves it out" in err, f"what Paddle does not gather: {codes} {err}")


def killed_ranks_end_the_save():
    """One of three is killed: the others end, and nothing is left that is taken for a file."""
    deal = layout("deal3", "s=3", ["w.{*} stage(9)@s"])
    for victim in (0, 2):
        out = SCRATCH / f"killed{victim}"
        out.mkdir()
        job = start(3, STATE, out / "k.pdopt", "--layout", deal, "--gather-to", 0, "--state-type", "opt", "--max-grouped-size", 600)
        while job[0].poll() is None and not (out / ".k.pdopt.dcpfs-journal").exists():
            time.sleep(0.002)
        job[victim].send_signal(signal.SIGKILL)
        codes, _, err = end(job)
        names = os.listdir(out)
        if not (out / "k.pdopt").exists():
            check(all(codes), f"rank {victim} killed: {codes} {err}")
            check(victim == 0 and all(n.startswith(".k.pdopt.dcpfs-") for n in names) or not names, f"rank {victim} killed: left {names}")


def signals_stop_saves():
    """Ctrl-C and SIGTERM: the exit code that shells expect, a line that says what is left, and the next save removes that."""
    deal = layout("deal4", "s=2", ["w.{*} stage(9)@s"])
    for sig in signal.SIGINT, signal.SIGTERM:
        out = SCRATCH / sig.name / "k.pdopt"
        args = (STATE, out, "--layout", deal, "--gather-to", 0, "--state-type", "opt", "--max-grouped-size", 600, "--force")
        part = out.parent / ".k.pdopt.dcpfs-part"
        out.parent.mkdir()
        for _ in range(20):
            job = start(2, *args)
            while job[0].poll() is None and not part.exists():
                time.sleep(0.001)
            job[1].send_signal(signal.SIGSTOP)  # so the other waits for it
            there = part.exists()
            job[0].send_signal(sig)
            said = job[0].communicate()[1].decode()
            job[1].send_signal(signal.SIGCONT)
            job[1].communicate()
            if there and part.exists():
                break
        equal((job[0].returncode, said), (-sig, f"dcpfs: save: stopped: {part} is left; another save to that name removes it\n"), sig.name)
        save(2, *args)
        equal(sorted(os.listdir(out.parent)), [".dcpfs-written", "k.pdopt"], f"after {sig.name}: what is left")


SIZES = [300000, 1, 0, 40000, 70000, 5, 200001, 8, 100]
make_state(SIZES)
for test in (tuples_stay_tuples, files_agree_with_paddles, lambda: any_limit_saves_the_source(SIZES), misuse_is_refused,
             killed_ranks_end_the_save, signals_stop_saves):
    test()
finish()
