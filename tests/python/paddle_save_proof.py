#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dcpfs writes in Paddle's formats, beside Paddle: files of dcpfs.paddle.save() against those of paddle.save() and of
paddle.incubate.distributed.utils.io.save(), of one process and of two ranks (gloo); what dcpfs export writes, read by Paddle and numpy.

Needs paddlepaddle; tests/run.sh --frameworks runs it.

usage: paddle_save_proof.py DCPFS
"""
import json
import os
import subprocess
import sys
import tempfile

import needs

needs.modules("DCPFS_TEST_PADDLE", "paddle")
import paddle
import base
from base import np
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.incubate.distributed.utils.io import save as theirs

try:
    from paddle.distributed.flex_checkpoint.dcp.load_state_dict import PATH_TO_CHECKPOINT_FILES as SEEN
except ImportError:  # up to 3.1
    SEEN = {}
from dcpfs.paddle import save  # noqa: E402

sys.path.insert(0, str(base.ROOT / "tests/gen"))
import paddle_ranks  # noqa: E402

paddle.set_device("cpu")
paddle.Tensor.cuda = lambda self, *a, **k: self  # Paddle's loader moves what it sends to a GPU
DCPFS = os.path.abspath(sys.argv[1])
FORMAT = "paddle-dist" if hasattr(paddle.distributed, "flex_checkpoint") else "paddle-dist-3.1"
TYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "C64", "C128"}


def content(path):
    with open(path, "rb") as f:
        return f.read()


def bits(value):
    return bytes(np.ascontiguousarray(np.asarray(value)).reshape(-1).view("u1"))


def same(a, b, at=""):
    """Equal dicts; returns how many tensors."""
    if isinstance(a, dict):
        assert isinstance(b, dict) and a.keys() == b.keys(), f"{at}: {a.keys()} {b.keys()}"
        return sum(same(v, b[k], f"{at}.{k}") for k, v in a.items())
    if not isinstance(a, paddle.Tensor):
        assert a == b, f"{at}: {a} {b}"
        return 0
    assert a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b) and a.name == b.name, f"{at}: {a} {b}"
    return 1


# ---- one process ----

def trained():
    paddle.seed(7)
    model = paddle.nn.Sequential(paddle.nn.Linear(30, 40), paddle.nn.Linear(40, 3))
    rate = paddle.optimizer.lr.NoamDecay(d_model=100, warmup_steps=100)
    optimizer = paddle.optimizer.Adam(learning_rate=rate, parameters=model.parameters())
    model(paddle.ones([2, 30])).sum().backward()
    optimizer.step()
    return model, optimizer


def files_agree_with_paddles(scratch):
    model, optimizer = trained()
    wide = paddle.arange(90000, dtype="float32").reshape([300, 300])
    for obj in (model.state_dict(), optimizer.state_dict(), {"m": model.state_dict(), "o": optimizer.state_dict(), "n": 3, "l": [wide, None]},
                wide, {"a": wide.astype("bfloat16"), "c": paddle.ones([0, 2]), "d": {"x": 1}}, {"a": wide, "b": wide}, [wide, wide], {}):
        for protocol in (2, 3, 4):
            paddle.save(obj, f"{scratch}/theirs", protocol=protocol)
            save(obj, f"{scratch}/ours", protocol=protocol)
            assert content(f"{scratch}/ours") == content(f"{scratch}/theirs"), (protocol, obj)
    paddle.save(wide, f"{scratch}/theirs", use_binary_format=True)
    save(wide, f"{scratch}/ours", use_binary_format=True)
    assert content(f"{scratch}/ours") == content(f"{scratch}/theirs")


def misuse_fails_as_in_paddle(scratch):
    """The same errors for the same mistakes."""
    w = {"w": paddle.ones([2])}
    for obj, path, how in ((w, f"{scratch}/", {}), (w, 3, {}), (w, f"{scratch}/x", {"use_binary_format": 1}),
                           ({"l": paddle.nn.Linear(2, 2)}, f"{scratch}/x", {}), (w, f"{scratch}/x", {"protocol": 5}),
                           (w, f"{scratch}/x", {"protocol": "4"})):
        got = []
        for f in (paddle.save, save):
            try:
                f(obj, path, **how)
                got.append(None)
            except Exception as e:
                got.append(type(e))
        assert got[0] and got[0] == got[1], (path, how, got)
    assert not [name for name in os.listdir(scratch) if name.startswith(".")], "something is left"


# ---- two ranks ----

def both(state, path, **how):
    """By Paddle and by us: equal dicts, or the same error."""
    got = []
    for name, f in (("theirs", theirs), ("ours", save)):
        try:
            f(state, f"{path}/{name}.{dist.get_rank()}.opt", **how)
            got.append(None)
        except Exception as e:
            got.append(type(e))
        dist.barrier()
    assert got[0] == got[1] or got[0] is not None is not got[1] and issubclass(got[1], got[0]), (how, got)
    here = [f"{path}/{name}.{dist.get_rank()}.opt" for name in ("theirs", "ours")]
    assert os.path.exists(here[0]) == os.path.exists(here[1]), how
    n = same(*map(paddle.load, here)) if os.path.exists(here[0]) else 0
    for file in here:
        if os.path.exists(file):
            os.unlink(file)
    return n


def to_one_path(state, path):
    """Both ranks write to one path, and to one name in directories of their own, which are as one where a link leads there."""
    rank, n = dist.get_rank(), 0
    os.makedirs(f"{path}/one/{rank}", exist_ok=True)
    if rank == 0:
        os.symlink("0", f"{path}/one/link")
    dist.barrier()
    for where, files in (("same.opt", 1), (f"{rank}/own.opt", 2), (f"{'link' if rank else 0}/linked.opt", 1)):
        for _ in range(2):  # the second replaces the first
            save(state, f"{path}/one/{where}", gather_to=[0, 1], state_type="opt")
        theirs(state, f"{path}/one/theirs.{rank}", gather_to=[0, 1], state_type="opt")
        dist.barrier()
        n += same(*map(paddle.load, (f"{path}/one/theirs.{rank}", f"{path}/one/{where}")))
        found = [os.path.join(at, name) for at, _, names in os.walk(f"{path}/one") for name in names]
        assert sum(name.endswith("/" + os.path.basename(where)) for name in found) == files, found
        assert not [name for name in found if os.path.basename(name).startswith(".")], found
        dist.barrier()
    return n


def ranks(path):
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    rank = dist.get_rank()
    model, optimizer = trained()
    whole = optimizer.state_dict()
    mine = {k: v for i, (k, v) in enumerate(whole.items()) if isinstance(v, paddle.Tensor) and i % 2 == rank}
    mine["LR_Scheduler"] = whole["LR_Scheduler"]
    masters = {"master_weights": {f"w{rank}.{i}": paddle.full([3, i], i + rank, dtype="float32") for i in range(1, 4)}}
    n = 0
    for gather_to in (0, 1, [0, 1], (0,)):
        for size in ("3G", "1K", 300, 1):
            n += both(mine, path, gather_to=gather_to, state_type="opt", max_grouped_size=size)
    n += both({**mine, **masters}, path, gather_to=[0, 1], state_type="opt", max_grouped_size="2K", protocol=4)
    n += to_one_path(mine, path)
    n += both(mine, path)
    n += both(model.state_dict(), path, gather_to=[0], state_type="params")
    for how in ({"gather_to": 0}, {"gather_to": 0, "state_type": "optimizer"}, {"gather_to": "0", "state_type": "opt"},
                {"gather_to": 0, "state_type": "opt", "max_grouped_size": "3X"},
                {"gather_to": 0, "state_type": "opt", "max_grouped_size": 2.5}, {"gather_to": 0, "state_type": "params"}):
        assert both(mine, path, **how) == 0, how
    assert both(mine, path, gather_to=0, state_type="opt", use_binary_format=True) == 0
    assert both({**mine, "n": 3}, path, gather_to=0, state_type="opt") == 0
    open(f"{path}/file", "a").close()
    try:  # a directory that only one rank needs, and cannot make
        save(mine, f"{path}/file/opt", gather_to=0, state_type="opt")
        raise AssertionError("it is saved below a file")
    except RuntimeError as e:
        assert f"{path}/file" in str(e) and str(e).startswith("rank 0: ") and e.rank == 0, e
    dist.barrier()
    if rank == 0:
        print(f"  {n} tensors equal", flush=True)


# ---- dcpfs export ----

def run(*args):
    return subprocess.run([DCPFS, *map(str, args)], check=True, stdout=subprocess.PIPE).stdout


def exports_keep_keys_and_bytes(scratch):
    """Keys and bytes as dcpfs has them in the source, which golden tests compare with what wrote it."""
    for folder, version in (("hf-llama", "llama"), ("hf-llama", "dtypes"), ("dcp-fsdp2", "latest"), ("paddle-plain", "p4")):
        source = (base.GOLDEN / folder / "ckpt", "--version", version)
        tensors = [t for t in json.loads(run("ls", "--json", *source))["tensors"] if t["dtype"] in TYPES and t["key"]]
        want = {t["key"]: run("cat", *source, t["key"]) for t in tensors}
        n = 0
        for protocol in (2, 3, 4):
            run("export", *source, f"{scratch}/w.pd", "--as", "paddle", "--protocol", protocol, "--force")
            got = dict(leaves(paddle.load(f"{scratch}/w.pd")))
            for key, data in want.items():
                assert bits(got[key]) == data, (folder, version, protocol, key)
                n += 1
        for layout in ((), ("--layout", "fsdp3")):
            run("export", *source, f"{scratch}/dist", "--as", FORMAT, "--force", *layout)
            state = {t["key"]: paddle.zeros(t["shape"], dtype_of(t["dtype"])) for t in tensors}
            SEEN.clear()
            dist.load_state_dict(state, f"{scratch}/dist")
            for key, data in want.items():
                assert bits(state[key]) == data, (folder, version, layout, key)
                n += 1
        out = f"{scratch}/vars-{folder}-{version}"
        run("export", *source, out, "--as", "paddle-vars")
        if version == "llama":
            for key, value in paddle.load(out).items():
                assert bits(value) == want[key], key
                n += 1
        run("export", *source, f"{scratch}/w.npz", "--as", "npz", "--force")
        with np.load(f"{scratch}/w.npz") as z:
            for key, data in want.items():
                assert z[key].tobytes() == data, (folder, version, "npz", key)
                n += 1
        print(f"  {folder} {version}: {n} tensors equal", flush=True)


def dtype_of(name):
    return {"BOOL": "bool", "BF16": "bfloat16"}.get(name) or {"F": "float", "I": "int", "U": "uint", "C": "complex"}[name[0]] + name[1:]


def leaves(value, path=()):
    if isinstance(value, (dict, list)):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(v, (*path, str(k)))
    else:
        yield ".".join(path), value


def main():
    if len(sys.argv) > 2:
        ranks(sys.argv[2])
        return
    with tempfile.TemporaryDirectory(prefix="dcpfs-paddle-") as scratch:
        for test in (files_agree_with_paddles, misuse_fails_as_in_paddle, exports_keep_keys_and_bytes):
            print(test.__name__, flush=True)
            test(scratch)
        if int(paddle.__version__.split(".")[0]) > 2:  # before, fleet has no sharding on the CPU
            print("two ranks", flush=True)
            paddle_ranks.run(2, ["-B", __file__, DCPFS, scratch], f"{scratch}/log")
            print("".join(line for line in open(f"{scratch}/log.0") if "equal" in line), end="")
    print("all equal")


if __name__ == "__main__":
    main()
