#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.torch beside torch.distributed.checkpoint: saved by both on one mesh, loaded on another by both, equal tensor by
tensor, optimizer state included. FSDP2, tensor parallel, both, HSDP, ShardedTensor, uneven sizes; gloo on the CPU.

Needs torch; tests/run.sh --frameworks runs it. Data comes from a seed.

usage: torch_proof.py [CASE...|device]
"""
import argparse
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import gc
import io
import os
import pathlib
import random
import sys
import tempfile
import uuid
from unittest import mock

import needs

needs.modules("DCPFS_TEST_TORCH", "torch")
import torch
import base
from base import dcpfs, np
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch._dynamo  # FSDP and DTensor do; here once for all processes
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dcpfs.torch  # noqa: E402


class Net(nn.Module):
    """Sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(29, 18)
        self.up, self.down = nn.Linear(18, 22), nn.Linear(22, 18, bias=False)
        self.norm = nn.LayerNorm(18)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))

    def forward(self, x):
        h = self.norm(self.embed(x))
        return h + self.down(torch.relu(self.up(h)))


def fsdp(net, world):
    return fully_shard(net, mesh=init_device_mesh("cpu", (world,)))


def tp(net, world):
    mesh = init_device_mesh("cpu", (world,))
    return parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def both(net, world):
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for part in (net.up, net.down):
        fully_shard(part, mesh=mesh["dp"])
    return fully_shard(net, mesh=mesh["dp"])


def hsdp(net, world):
    return fully_shard(net, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("r", "s")))


def plain(net, world):
    return net


WAYS = {"fsdp": fsdp, "tp": tp, "both": both, "hsdp": hsdp, "plain": plain}
# Saved by (way, ranks), loaded by (way, ranks).
CASES = {
    "fsdp-fsdp": (("fsdp", 2), ("fsdp", 3)),
    "fsdp-tp": (("fsdp", 3), ("tp", 2)),
    "tp-both": (("tp", 2), ("both", 4)),
    "both-fsdp": (("both", 4), ("fsdp", 8)),
    "both-hsdp": (("both", 4), ("hsdp", 4)),
    "hsdp-plain": (("hsdp", 4), ("plain", 1)),
}


OURS = ("-ours", "-later", "-writer")  # the same, written by dcpfs


class Counter:
    """Stateful, as trainers have them."""

    def __init__(self, n=0):
        self.n, self.rates = n, [0.0]

    def state_dict(self):
        return {"n": self.n, "rates": self.rates}

    def load_state_dict(self, state):
        self.n, self.rates = state["n"], state["rates"]


def trained(way, world, steps, seed):
    torch.manual_seed(seed)
    net = WAYS[way](Net(), world)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    for _ in range(steps):
        out = net(torch.arange(8).reshape(2, 4))
        (out.full_tensor() if isinstance(out, DTensor) else out).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def state(net, optimizer, n):
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim, "counter": Counter(n), "extra": {"list": [torch.full((2, 3), float(n)), n, "text"],
                                                                          "pair": (1, 0.5)}}


def leaves(tree, at=""):
    if isinstance(tree, Counter):
        tree = tree.state_dict()
    if isinstance(tree, (dict, list)):
        for k, v in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(v, f"{at}.{k}")
    else:
        yield at, tree._local_tensor if isinstance(tree, DTensor) else tree


def same(mine, theirs):
    mine, theirs = dict(leaves(mine)), dict(leaves(theirs))
    assert mine.keys() == theirs.keys(), mine.keys() ^ theirs.keys()
    for key, a in theirs.items():
        b = mine[key]
        equal = torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        assert equal, f"{key}: {b} is not {a}"
    return len(theirs)


def save(rank, world, way, path):
    net, optimizer = trained(way, world, 3, seed=1)
    net.seen += 5
    dcp.save(state(net, optimizer, 7), checkpoint_id=path)
    dcpfs.torch.save_state_dict(state(net, optimizer, 7), path + "-ours")
    later = state(net, optimizer, 7)
    with dcpfs.torch.save_state_dict(later, path + "-later", asynchronous=True, staging=4000):
        for _, leaf in leaves(later):
            if isinstance(leaf, torch.Tensor):
                leaf.zero_()
    net, optimizer = trained(way, world, 3, seed=1)
    net.seen += 5
    dcp.save(state(net, optimizer, 7), checkpoint_id=path + "-writer", storage_writer=dcpfs.torch.Writer())
    if rank == 0:
        alike(path)
    dist.barrier()


def alike(path):
    """What dcp.save() says of keys, shapes and boxes, ours do."""
    def known(path):
        meta = dcp.FileSystemReader(path).read_metadata()
        return {k: (v.size, v.properties.dtype, sorted((tuple(c.offsets), tuple(c.sizes)) for c in v.chunks if c.sizes.numel()))
                if hasattr(v, "chunks") else None for k, v in meta.state_dict_metadata.items()}

    for ending in OURS:
        assert known(path + ending) == known(path), ending


def load(rank, world, way, path):
    net, optimizer = trained(way, world, 1, seed=2)
    theirs = state(net, optimizer, 0)
    ours, through = copy.deepcopy(theirs), copy.deepcopy(theirs)
    dcp.load(theirs, checkpoint_id=path)
    got = dcpfs.torch.load_state_dict(ours, path, cache="")
    assert not got.missing
    n = same(ours, theirs)
    for ending in OURS:
        saved = state(*trained(way, world, 1, seed=2), 0)
        dcp.load(saved, checkpoint_id=path + ending)
        same(saved, theirs)
    dcp.load(through, storage_reader=dcpfs.torch.Reader(path, cache=""))
    same(through, theirs)
    for exchange in ("never", "node", "all"):
        again = copy.deepcopy(theirs)
        for _, leaf in leaves(again):
            if isinstance(leaf, torch.Tensor):
                leaf.zero_()
        dcpfs.torch.load_state_dict(again, path, cache="", exchange=exchange, coordinator_rank=world - 1)
        same(again, theirs)
    set_state_dict(net, optimizer, model_state_dict=ours["model"], optim_state_dict=ours["optim"])
    missing(rank, path, ours)
    alone(rank, path, ours)
    by_key(path)
    return n


def missing(rank, path, tree):
    """One rank wants what is not there: all fail alike, and nothing has changed."""
    want = {"model": dict(tree["model"])}
    if rank == 0:
        want["model"]["norm.weigth"] = torch.zeros(18)
    try:
        dcpfs.torch.load_state_dict(want, path, cache="")
        raise AssertionError("nothing was missing")
    except dcpfs.DcpfsError as e:
        assert e.code == 2 and 'Nearest: "model.norm.weight"' in e.text, e
    with dcpfs.open(path, cache="") as ck:
        read = {key: torch.load(io.BytesIO(ck.objects.raw(key)), weights_only=True) for key in ck.objects}
        assert read and all(value == ck.objects[key] for key, value in read.items()), read
    got = dcpfs.torch.load_state_dict(want, path, strict=False, cache="")
    assert list(got.missing) == (["model.norm.weigth"] if rank == 0 else []), got


def alone(rank, path, tree):
    """What fails on one rank alone fails on all, and none waits."""
    def fails(kind, said, work):
        try:
            work()
        except Exception as e:
            assert isinstance(e, kind) and said in str(e), repr(e)
        else:
            raise AssertionError(f"{said}: nothing failed")

    def lost(tensor):
        raise dcpfs.DcpfsError(5, "no pages")

    given = [torch.zeros(2)] if rank == 0 else {"model": tree["model"]}
    fails(TypeError, "state_dict is a list, not a dict", lambda: dcpfs.torch.load_state_dict(given, path, cache=""))
    fails(TypeError, "state_dict is a list, not a dict", lambda: dcpfs.torch.save_state_dict(given, path + "-none"))
    with mock.patch.object(dcpfs.Tensor, "mapped", lost) if rank == 0 else contextlib.nullcontext():
        fails(dcpfs.DcpfsError, "no pages", lambda: dcpfs.torch.load_file(path, mmap=True, comm=dcpfs.torch.group(), cache=""))


def by_key(path):
    theirs = dcp.state_dict_loader._load_state_dict_from_keys("model", checkpoint_id=path)
    ours = dcpfs.torch._load_state_dict_from_keys("model", checkpoint_id=path, cache="")
    same(ours, theirs)


def cut_tensors_are_loaded(rank, world, way, path):
    """DTensors of many placements, and conversions, without a model."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    torch.manual_seed(3)
    whole = {f"t{i}": torch.randn(shape).to(dtype) for i, (shape, dtype) in enumerate([
        ((5, 7), torch.float32), ((1, 9), torch.bfloat16), ((13,), torch.float64), ((3, 2, 5), torch.float16), ((2, 2), torch.int64)])}
    ways = [(Shard(0), Shard(0)), (Shard(0), Replicate()), (Replicate(), Shard(0)), (Replicate(), Replicate())]
    dcp.save({k: distribute_tensor(v, mesh, ways[i % 4]) for i, (k, v) in enumerate(whole.items())}, checkpoint_id=path)
    for shift in range(4):
        tree = {k: distribute_tensor(torch.zeros_like(v), mesh, ways[(i + shift) % 4]) for i, (k, v) in enumerate(whole.items())}
        dcpfs.torch.load_state_dict(tree, path, cache="")
        for k, v in whole.items():
            assert torch.equal(tree[k].full_tensor(), v), k
    wide = {k: torch.zeros(v.shape, dtype=torch.float64).t().contiguous().t() for k, v in whole.items() if v.ndim <= 2}
    dcpfs.torch.load_state_dict(wide, path, cache="")
    for k, v in wide.items():
        assert torch.equal(v, whole[k].double()), k
    flat = dcpfs.torch.load_file(path, cache="")
    assert all(torch.equal(flat[k], v) for k, v in whole.items())
    return len(whole)


def sharded_tensors_are_loaded(rank, world, way, path):
    """ShardedTensor, as FSDP1 has them."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(world)])
    t = sharded_tensor.rand(spec, 10, 3)
    dcp.save({"t": t}, checkpoint_id=path)
    ours = {"t": sharded_tensor.zeros(spec, 10, 3)}
    dcpfs.torch.load_state_dict(ours, path, cache="")
    for a, b in zip(ours["t"].local_shards(), t.local_shards()):
        assert torch.equal(a.tensor, b.tensor)
    some = dist.new_group([0, 2])  # the other rank does something else meanwhile
    if rank != 1:
        part = {"t": torch.zeros(10, 3)}
        dcpfs.torch.load_state_dict(part, path, process_group=some, cache="")
        mine = ours["t"].local_shards()[0]
        top = mine.metadata.shard_offsets[0]
        assert torch.equal(part["t"][top:top + len(mine.tensor)], mine.tensor)
    return 1


def files_give_what_torch_gives(rank, world, way, path):
    """What torch.load() gives of a file, read and mapped."""
    torch.manual_seed(4)
    state = {"w": torch.randn(300, 7), "t": torch.randn(5, 6).to(torch.bfloat16).t(), "pair": (torch.ones(2), [{"x": (torch.zeros(1), "y")}, ({"z": 1},)]),
             "list": [torch.arange(3), {"n": 1, "e": [(), 1]}],
             "size": (torch.Size([4]), [torch.float16, torch.device("cuda", 1)]), "sets": ({3, (4, b"5")}, frozenset({"x"})), "plain": [(1, [2.5, (None, True)]), range(3), 1 - 2j, slice(1, None), "text", 2 ** 90],
             "numpy": [np.float64(1.5), (np.int8(-3), np.bool_(True))], "array": (np.arange(4, dtype="f4").reshape(2, 2), bytearray(b"ab")),
             "ints": {0: {"e": torch.ones(1)}, 5: 2}, "texts": {"0": torch.ones(1), "1": 3}, "keys": {(0, "a"): torch.ones(1), None: 1, "w": 2, -1: 3},
             "ordered": collections.OrderedDict([("0", torch.ones(1)), ("1", collections.OrderedDict())]), "counts": collections.Counter("abca"), "numbers": collections.Counter([3, 3, 1]),
             "seen": collections.defaultdict(list, {0: [torch.ones(1)], "x": []}), "lazy": collections.defaultdict(collections.Counter), "bare": collections.defaultdict(None, {"0": 1}), "none": {}, "deep": {"a": {"b": [{}]}, "c": {}, "w": torch.ones(1), "d": {}}, "sgd": torch.optim.SGD([torch.ones(1)]).state_dict(), "rng": random.getstate(), "time": datetime.timedelta(hours=3, microseconds=1), "when": (datetime.datetime(2026, 11, 23, 9),)}
    torch.save(state, path)
    for mmap in (False, True):
        ours, theirs = dcpfs.torch.load_file(path, mmap=mmap, cache=""), torch.load(path, weights_only=False, mmap=mmap)
        assert (path in open("/proc/self/maps").read()) == mmap
        exactly(ours, theirs, "")
        assert order(ours) == order(theirs), order(ours)
        ours["w"][0] = 1  # memory of its own
        exactly(ours["w"][1:], torch.load(path, weights_only=False)["w"][1:], "w")
        del ours, theirs
        gc.collect()
    for root in collections.OrderedDict(w=torch.ones(1)), collections.Counter("ab"), [torch.ones(2), {"x": 1}], (torch.ones(1), 2), torch.ones(3), 5, {}, {3: torch.ones(1)}:
        torch.save(root, path)
        exactly(dcpfs.torch.load_file(path, cache=""), torch.load(path), str(root))
    nested(path + "-dcp")
    return len(state)


Point = collections.namedtuple("Point", "x y")


class Color(enum.Enum):
    RED, BLUE = 1, "b"


class Mode(enum.IntFlag):
    A, B = 1, 2


@dataclasses.dataclass
class Info:
    step: int
    weight: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    a: int
    b: float = 2.0


CLASSES = (Point, Color, Mode, Info, Pair)
COMMON = {
    "mappings": (collections.Counter("abca"), collections.Counter({2: 1}), collections.defaultdict(list, {1: [2]}), collections.defaultdict(collections.OrderedDict),
                 collections.OrderedDict(b=1, a={}), (collections.defaultdict(None, x=1), collections.Counter())),
    "deque": collections.deque([1, (2, 3)], 5), "path": (pathlib.PurePosixPath("/a/b"), pathlib.Path("c"), pathlib.Path(), pathlib.PureWindowsPath("c:/x")),
    "decimal": [decimal.Decimal("1.50"), fractions.Fraction(-3, 7)], "uuid": uuid.UUID(int=5), "namespace": argparse.Namespace(lr=0.5, path=pathlib.Path("x")),
    "zone": datetime.timezone(datetime.timedelta(hours=2)), "layout": (torch.strided, torch.sparse_coo, torch.per_tensor_affine),
    "text": np.array(["a", "bcd"]), "bytes": np.array([[b"a", b"bc"]], order="F"), "rows": np.array([(1, 2.5, "x")], dtype=[("a", "i4"), ("b", "f8"), ("c", "U3")]),
    "scalars": (np.str_("hi"), np.bytes_(b"hi"), np.array([(1, 2.5)], dtype=[("a", ">i4"), ("b", "f8", (2,))])[0], np.array([""])[0]),
    "dtypes": [np.dtype("f4"), np.dtype(">i2"), np.dtype("M8[25s]"), np.dtype("U"), np.dtype([("a", "i4"), ("b", "f8", (2,))], align=True)],
    "dates": (np.datetime64("2026-01-02T03:04"), np.timedelta64(5, "s"), np.array(["2026-01-02", "NaT"], dtype="M8[D]"), np.array([1, 2], dtype="m8[us]")),
    "objects": np.array([1, "a", None], dtype=object), "deep": [(1, {decimal.Decimal(2): {uuid.UUID(int=9)}})]}
OWN = {"point": Point(1, torch.ones(2)), "color": (Color.RED, Color.BLUE), "mode": Mode.A | Mode.B, "info": Info(2, [torch.ones(1), pathlib.Path("p")]), "pair": [Pair(3)]}


def alike_objects(a, b, at):
    if isinstance(b, (np.ndarray, np.void)):
        assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape, (at, a, b)
        assert a.tolist() == b.tolist() if b.dtype.hasobject else a.tobytes() == b.tobytes(), (at, a, b)
    elif isinstance(b, torch.Tensor):
        assert torch.equal(a, b), at
    elif isinstance(b, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), (at, a, b)
        for i, (x, y) in enumerate(zip(a, b)):
            alike_objects(x, y, f"{at}.{i}")
    elif isinstance(b, Info):
        alike_objects([type(a), a.step, a.weight], [Info, b.step, b.weight], at)
    else:
        assert type(a) is type(b) and a == b and getattr(a, "default_factory", None) is getattr(b, "default_factory", None), (at, a, b)


def classes_are_made_where_named(rank, world, way, path):
    """Plain data of the standard library, numpy and torch is made; classes of a program only where they are named."""
    for protocol in range(1, 6):  # torch itself reads no tensor of protocol 0
        torch.save(COMMON | OWN, path, pickle_protocol=protocol)
        for allowed in (), CLASSES:
            got = dcpfs.torch.load_file(path, cache="", classes=allowed)
            for key, value in (COMMON | OWN if allowed else COMMON).items():
                alike_objects(got[key], value, f"{protocol} {key}")
            assert allowed or got["point"]["$class"].endswith(".Point") and got["info"]["state"]["step"] == 2, got["point"]
    dcp.save(COMMON | OWN, checkpoint_id=path + "-dcp")
    for allowed in (), CLASSES:
        for key, value in (COMMON | OWN).items():
            for fill in (lambda state: dcpfs.torch.load_state_dict(state, path + "-dcp", cache="", classes=allowed),
                         lambda state: dcp.load(state, storage_reader=dcpfs.torch.Reader(path + "-dcp", cache="", classes=allowed))):
                flat = {key: None}
                try:
                    fill(flat)
                except (dcpfs.DcpfsError, dcp.api.CheckpointException) as e:
                    assert not allowed and key in OWN and "classes=[...] with that class makes it" in str(e), (key, e)
                else:
                    alike_objects(flat[key], value, key)
                    assert allowed or key in COMMON, key
    try:
        dcpfs.open(path, cache="", classes=["Point"])
        raise AssertionError("a text is no class")
    except TypeError as e:
        assert "'Point' is none" in str(e), e
    return len(COMMON | OWN)


def nested(path):
    """Tuples that hold tensors; dicts whose keys look like indices; parts of a list."""
    def saved(n):
        return {"pair": (torch.full((2,), n), 3 * n), "list": [torch.full((1,), n), [torch.full((2,), n), n]], "texts": {"0": torch.full((2,), n)},
                "optim": {"state": {0: {"e": torch.full((1,), n)}}, "param_groups": [{"params": [0], "lr": n}]}}

    dcp.save(saved(2), checkpoint_id=path)
    for reader in {"checkpoint_id": path}, {"storage_reader": dcpfs.torch.Reader(path, cache="")}:
        theirs = saved(0)
        dcp.load(theirs, **reader)
        exactly(theirs, saved(2), str(reader))
        for keys in None, "texts", {"optim.state.0", "pair"}:
            theirs = dcp.state_dict_loader._load_state_dict_from_keys(keys, checkpoint_id=path)
            read = dcp.state_dict_loader._load_state_dict_from_keys(keys, **reader)
            exactly(read, theirs, str(keys))
            exactly(dcpfs.torch._load_state_dict_from_keys(keys, cache="", **reader), theirs, str(keys))
    ours = saved(0)
    dcpfs.torch.load_state_dict(ours, path, cache="")
    exactly(ours, saved(2), "ours")
    exactly(dcpfs.torch.load_file(path, cache=""), saved(2), "loaded")
    exactly(dcpfs.torch._load_state_dict_from_keys("list.1", checkpoint_id=path, cache=""), {"list": [None, saved(2)["list"][1]]}, "part")


def the_reader_shows_metadata(rank, world, way, path):
    """The Reader shows keys, kinds, shapes and dtypes of .metadata, and gives objects as torch reads them."""
    def known(reader):
        return {k: (type(v).__name__, *((v.size, v.properties.dtype) if hasattr(v, "size") else ()))
                for k, v in reader.read_metadata().state_dict_metadata.items()}

    def values(keys, reader, failed):
        got = dict.fromkeys(keys)
        try:
            dcp.load(got, storage_reader=reader)
            return got
        except dcp.api.CheckpointException as e:
            if len(keys) > 1:
                return {k: v for key in keys for k, v in values([key], reader, failed).items()}
            failed[keys[0]] = f"{keys[0]}: {e}"
            return {}

    seen, same, foreign, old = 0, 0, {}, {}
    for place in sorted(p.parent for p in base.GOLDEN.rglob(".metadata") if base.GOLDEN / "hostile" not in p.parents):
        try:
            theirs = known(dcp.FileSystemReader(place))
        except ModuleNotFoundError:  # of the framework that saved it
            continue
        ours = dcpfs.torch.Reader(place, cache="")
        assert known(ours) == theirs, (place, known(ours).items() ^ theirs.items())
        seen += 1
        wanted = values([key for key, kind in theirs.items() if kind == ("BytesStorageMetadata",)], dcp.FileSystemReader(place), old)
        for key, value in values(list(wanted), ours, foreign).items():
            exactly(value, wanted[key], f"{place} {key}")
            same += 1
    print(f"  {seen} checkpoints; {len(old)} objects that torch does not read any more, {len(foreign)} of other classes")
    assert seen > 30 and same > 300 and all("only unpickling could make again" in why for why in foreign.values()), (seen, same, foreign)
    return same


def casts_agree_with_torch(rank, world, way, path):
    """What .to() makes of every number of 8 and 16 bits, and of many of 32 and 64."""
    torch.manual_seed(5)
    small = {t: torch.arange(256).to(torch.uint8).view(t) for t in (torch.float8_e4m3fn, torch.float8_e5m2)}
    stored = {str(t): v for t, v in small.items()} | {str(t): torch.arange(-2 ** 15, 2 ** 15).to(torch.int16).view(t) for t in (torch.bfloat16, torch.float16)}
    stored["random"] = torch.randint(-2 ** 31, 2 ** 31, (1 << 18,)).to(torch.int32).view(torch.float32)
    stored["double"] = torch.randint(-2 ** 63, 2 ** 63 - 1, (1 << 16,)).view(torch.float64)
    stored["halfway"] = torch.cat([v.float().view(torch.int32) + d for v in small.values() for d in (-1, 0, 1, 1 << 19, 1 << 20)]).view(torch.float32)
    torch.save(stored, path)
    for to, bits in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16), (torch.float16, torch.int16), *((t, torch.uint8) for t in small)):
        mine = {k: torch.empty(v.shape, dtype=to) for k, v in stored.items()}
        dcpfs.torch.load_state_dict(mine, path, cache="")
        for key, v in stored.items():
            ours, theirs = mine[key], v.to(to)
            same = (ours.view(bits) == theirs.view(bits)) | (ours.float().isnan() & theirs.float().isnan())
            assert same.all(), (key, to, [(v[i], ours[i], theirs[i]) for i in (~same).nonzero().flatten()[:3]])
    return len(stored)


def device():
    """Tensors on a GPU, filled through the host and straight, while kernels of torch still use them."""
    if not torch.cuda.is_available():
        print("torch sees no CUDA device", file=sys.stderr)
        sys.exit(77)
    torch.manual_seed(6)
    whole = {"w": torch.randn(700, 300), "b": torch.randn(300).to(torch.bfloat16), "d": torch.randn(40, 9, dtype=torch.float64),
             "n": torch.arange(1000), "t": torch.randn(64, 33).half()}
    with tempfile.TemporaryDirectory(prefix="dcpfs-torch-") as path:
        dcp.save({"m": whole, "step": 5}, checkpoint_id=path)
        for where in (None, "cuda:0", "auto"):
            for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
                with torch.cuda.stream(stream):
                    got = {k: torch.ones_like(v, device="cuda") for k, v in whole.items()}
                    got["t"] = torch.ones(33, 64, device="cuda").t()  # strides, and another dtype
                    busy = torch.ones(4000, 4000, device="cuda")
                    for _ in range(20):
                        busy = busy @ busy * 0
                    for v in got.values():  # queued behind
                        v.zero_()
                    state = {"m": got, "step": 0}
                    filled = dcpfs.torch.load_state_dict(state, path, cache="", device=where)
                for k, v in whole.items():
                    assert state["m"][k] is got[k] and torch.equal(got[k].cpu(), v.to(got[k].dtype)), (where, k)
                assert state["step"] == 5 and bool(filled.report["device"]) == (where is not None), filled.report
        loaded = dcpfs.torch.load_file(path, map_location="cuda", cache="")["m"]
        straight = dcpfs.load(path, device="cuda:0", comm=None, cache="")
        for k, v in whole.items():
            assert torch.equal(loaded[k].cpu(), v) and torch.equal(straight[f"m.{k}"].torch().cpu(), v), k
    print("all equal")


def order(v):
    return [(k, order(x)) for k, x in v.items()] if isinstance(v, dict) else [order(x) for x in v] if isinstance(v, (list, tuple)) else None


def exactly(a, b, at):
    assert type(a) is type(b), f"{at}: {type(a)} is not {type(b)}"
    if isinstance(b, dict):
        assert a.keys() == b.keys() and getattr(a, "default_factory", None) is getattr(b, "default_factory", None), at
        for k in b:
            exactly(a[k], b[k], f"{at}.{k}")
    elif isinstance(b, (list, tuple)):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b)):
            exactly(x, y, f"{at}.{i}")
    elif hasattr(b, "dtype") and getattr(b, "shape", ()):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all(), at
    else:
        assert a == b or a != a and b != b, f"{at}: {a} is not {b}"  # NaN


def rank_main(rank, world, work, way, path, meet):
    os.environ |= {"LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    try:
        n = work(rank, world, way, path)
        if rank == 0 and n:
            print(f"  {way} x {world}: {n} leaves equal", flush=True)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run(scratch, work, way, world, path):
    meet = tempfile.mktemp(dir=scratch)
    mp.start_processes(rank_main, args=(world, work, way, path, meet), nprocs=world, start_method="fork")


def main():
    asked = sys.argv[1:]
    if asked == ["device"]:
        return device()
    with tempfile.TemporaryDirectory(prefix="dcpfs-torch-") as scratch:
        for name, ((way, world), (other, ranks)) in CASES.items():
            if not asked or name in asked:
                print(name, flush=True)
                run(scratch, save, way, world, f"{scratch}/{name}")
                run(scratch, load, other, ranks, f"{scratch}/{name}")
        for work, world in ((cut_tensors_are_loaded, 4), (sharded_tensors_are_loaded, 3), (files_give_what_torch_gives, 1), (classes_are_made_where_named, 1), (the_reader_shows_metadata, 1), (casts_agree_with_torch, 1)):
            name = work.__name__
            if not asked or name in asked:
                print(name, flush=True)
                run(scratch, work, name, world, f"{scratch}/{name}")
    print("all equal")


if __name__ == "__main__":
    main()
