#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint.load(), load_state_dict() and _load_state_dict_from_keys() promise, clause by clause: each
case gives them and dcpfs the same arguments, and compares what was filled, byte by byte, and whether it failed.

Needs torch; tests/run.sh --frameworks runs it.

usage: torch_semantics.py [CASE...]
"""
import copy
import functools
import inspect
import io
import itertools
import os
import pathlib
import pickle
import sys
import tempfile

import safetensors.torch as safetensors_torch
import torch_proof
from torch_proof import Counter, dcp, dcpfs, dist, exactly, np, torch
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, FileSystemReader, utils
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

CASES = {}  # name: (function, number of ranks)
load = functools.partial(dcpfs.torch.load_state_dict, cache="", timeout=60)


def case(ranks):
    def add(work):
        CASES[work.__name__] = work, ranks
        return work
    return add


def reader(path):
    return dcpfs.torch.Reader(path, cache="")


def saved(path, seed=3):
    """A checkpoint that all ranks save together, and what is in it."""
    torch.manual_seed(seed)
    state = {"model": {"w": torch.randn(13, 5), "b": torch.randn(7).to(torch.bfloat16), "layers.0": {"n": torch.arange(6).reshape(2, 3)}},
             "scale": torch.tensor(2.5 + seed), "step": 100 + seed, "info": {"list": [1, [torch.full((2,), float(seed)), "two"]], "pair": (None, 0.5)}}
    dcp.save(state, checkpoint_id=path)
    dist.barrier()
    return state


def blank(tree):
    """The same, with nothing of it."""
    if isinstance(tree, dict):
        return {k: blank(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(blank(v) for v in tree)
    return torch.zeros_like(tree) if isinstance(tree, torch.Tensor) else -1


def outcome(work, *args):
    try:
        return work(*args), None
    except (Exception, CheckpointException) as e:
        return None, e


def alike(make, theirs, *ours, says=""):
    """make() filled by theirs() and each of ours(): equal, or all fail, ours with a text that has @says in it. What came of it."""
    want = make()
    _, wrong = outcome(theirs, want)
    for one in ours:
        got = make()
        _, failure = outcome(one, got)
        assert (failure is None) == (wrong is None), (wrong, failure)
        assert failure is None or says in str(failure), failure
        exactly(got, want, "")
    assert bool(wrong) == bool(says), wrong
    return want


# ---- what is filled ----

@case(1)
def tensors_are_filled_in_place(rank, world, way, path):
    """Tensors of any strides and dtype are filled where they are, and not a byte beside them."""
    whole = {"f": torch.randn(6, 4) * 50, "h": (torch.randn(6, 4) * 50).to(torch.bfloat16), "i": torch.arange(24).reshape(6, 4) - 12,
             "c": torch.randn(6, 4, dtype=torch.complex64), "o": torch.rand(6, 4) > 0.5, "e": torch.zeros(0, 4), "s": torch.tensor(7.5)}
    dcp.save(whole, checkpoint_id=path)
    dtypes = torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.uint8, torch.bool, torch.complex64
    strides = {"rows": (4, 1), "columns": (1, 6), "every second": (8, 2), "padded": (5, 1)}
    for dtype in dtypes:
        for name, stride in strides.items():
            memory = []

            def make():
                memory.append({k: torch.full((64 * dtype.itemsize,), 0x5a, dtype=torch.uint8) for k in whole})
                return {k: memory[-1][k].view(dtype).as_strided(v.shape, stride[:v.ndim], 3) for k, v in whole.items()}

            def filled(by, state):
                places = {k: (id(v), v.data_ptr(), v.stride()) for k, v in state.items()}
                by(state)
                assert places == {k: (id(v), v.data_ptr(), v.stride()) for k, v in state.items()}, (dtype, name)

            state, wrong = make(), None
            _, wrong = outcome(filled, lambda s: dcp.load(s, checkpoint_id=path), state)
            for by in (lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path))):
                _, failure = outcome(filled, by, make())
                assert bool(failure) == bool(wrong), (dtype, name, wrong, failure)
                if not wrong:
                    exactly(memory[-1], memory[0], f"{dtype}, {name}")


@case(2)
def tensors_without_memory_are_replaced(rank, world, way, path):
    """Tensors without memory are replaced by new ones, in nested dicts and as DTensors, too."""
    full = saved(path)
    mesh = torch_proof.init_device_mesh("cpu", (world,))
    dcp.save({"d": distribute_tensor(full["model"]["w"], mesh, [Shard(0)])}, checkpoint_id=path + "-d")

    def make():
        return {"model": {k: v.to("meta") for k, v in full["model"].items() if k != "layers.0"}, "scale": torch.empty((), device="meta")}

    alike(make, lambda s: dcp.load(s, checkpoint_id=path), lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path)))
    for by in (lambda s: dcp.load(s, checkpoint_id=path + "-d"), lambda s: load(s, path + "-d")):
        state = {"d": distribute_tensor(torch.zeros(13, 5, device="meta"), mesh, [Shard(0)])}
        by(state)
        assert torch.equal(state["d"].full_tensor(), full["model"]["w"])


@case(1)
def objects_are_replaced(rank, world, way, path):
    """Objects are replaced in the state dict; one of a class that only unpickling could make is an error."""
    full = saved(path)
    alike(lambda: blank(full), lambda s: dcp.load(s, checkpoint_id=path), lambda s: load(s, path))
    dcp.save({"counter": Counterfeit(), "step": 1}, checkpoint_id=path + "-class")
    for by in (lambda s: load(s, path + "-class"), lambda s: dcp.load(s, storage_reader=reader(path + "-class"))):
        state = {"counter": None, "step": 0}
        _, failure = outcome(by, state)
        assert "which only unpickling could make again" in str(failure) and state == {"counter": None, "step": 0}, (failure, state)


@case(1)
def wrappers_are_filled_by_copies(rank, world, way, path):
    """Tensors that are not their memory are filled by their own copy_(), alone and as local parts of DTensors."""
    from torch.testing._internal.two_tensor import TwoTensor

    full = {"w": torch.randn(8, 16), "h": torch.randn(8, 16).bfloat16(), "v": torch.randn(512) * 3}
    dcp.save(full, checkpoint_id=path)
    mesh = torch_proof.init_device_mesh("cpu", (world,))
    kinds = {"two": lambda v: TwoTensor(torch.zeros_like(v), torch.ones_like(v)), "parameter": lambda v: torch.nn.Parameter(torch.zeros_like(v)),
             "subclass": lambda v: torch.zeros_like(v).as_subclass(Mine), "quantized": lambda v: torch.quantize_per_tensor(v.float() * 0, 0.1, 0, torch.qint8),
             "conjugate": lambda v: torch.zeros_like(v, dtype=torch.complex64).conj(), "negative": lambda v: torch.zeros_like(v, dtype=torch.complex64).conj().imag,
             "distributed": lambda v: DTensor.from_local(TwoTensor(torch.zeros_like(v), torch.ones_like(v)), mesh, [Shard(0)])}
    try:
        from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor
        from torchao.float8.config import Float8LinearConfig
        from torchao.float8.float8_linear import LinearMMConfig  # noqa: F401
    except ImportError:
        pass
    else:
        kinds["float8"] = lambda v: WeightWithDynamicFloat8CastTensor(torch.zeros_like(v), LinearMMConfig(), torch.float8_e4m3fn)
    try:
        from torchao.optim.subclass_8bit import OptimState8bit
        from torchao.quantization import Float8Tensor
    except ImportError:
        pass
    else:
        kinds["8bit"] = lambda v: OptimState8bit.zeros((512,)) if v.shape == (512,) else torch.zeros_like(v)
        kinds["torchao"] = lambda v: Float8Tensor.from_hp(torch.zeros_like(v)) if v.ndim == 2 else torch.zeros_like(v)
    for name, kind in kinds.items():
        def make():
            torch.manual_seed(5)
            return {k: kind(v) for k, v in full.items()}

        made = []
        for by in (lambda s: dcp.load(s, checkpoint_id=path), lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path)),
                   lambda s: name != "distributed" and dcpfs.load(path, into=s, comm=None, cache="")):
            state = make()
            made.append((state, outcome(by, state)[1]))
        for state, wrong in made[1:3] if name == "distributed" else made[1:]:
            assert bool(wrong) == bool(made[0][1]), (name, wrong, made[0][1])
            for k, v in full.items() if not wrong else ():
                mine, theirs = shown(state[k]), shown(made[0][0][k])
                assert torch.equal(mine, theirs) and theirs.any(), (name, k, mine, theirs)
                assert name not in ("two", "parameter", "subclass", "distributed") or torch.equal(mine, v), (name, k)


class Mine(torch.Tensor):
    """A class of its own, in memory as any other."""


def shown(tensor):
    """The elements of a tensor of any class."""
    tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if hasattr(tensor, "a"):
        assert torch.equal(tensor.a, tensor.b)
        tensor = tensor.a
    tensor = tensor.dequantize() if tensor.is_quantized or hasattr(tensor, "qdata") or hasattr(tensor, "codes") else tensor
    return getattr(tensor, "_tensor", tensor).detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()


def apart(load_):
    """Fills what is not the memory that a state's tensors share."""
    def filled(state):
        memory = state.pop("memory")
        load_(state)
        state["memory"] = memory
    return filled


@case(1)
def shared_memory_keeps_torchs_order(rank, world, way, path):
    """Memory that two elements or two tensors share: an error, or torch's order. Autograd knows what was changed."""
    full = {"a": torch.randn(4, 4), "b": torch.randn(4, 4), "c": torch.randn(4, 4).double(), "s": torch.randn(())}
    dcp.save(full, checkpoint_id=path)
    ways = (lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path)),
            lambda s: dcpfs.load(path, into=dict(sorted(s.items())), comm=None, cache=""))
    for one in torch.zeros(4).expand(4, 4), torch.zeros(4, 1).expand(4, 4), torch.zeros(()).expand(4, 4), torch._efficientzerotensor((4, 4)):
        _, wrong = outcome(lambda s: dcp.load(s, checkpoint_id=path), {"a": one})
        assert wrong
        for by in ways:
            _, wrong = outcome(by, {"a": one})
            assert "memory" in str(wrong), (one.stride(), wrong)
    freed = torch.zeros(4, 4)
    freed.untyped_storage().resize_(0)
    for one, text in (torch.zeros(16).as_strided((4, 4), (1, 1)), "share memory"), (freed, "has no memory"), (torch.zeros(4, 4).to_sparse(), "dense"):
        for by in ways:  # which torch fills in an order that depends on its kernels, ends at, or refuses
            _, wrong = outcome(by, {"a": one})
            assert text in str(wrong), wrong
    dcpfs.torch.save_state_dict({"e": torch.arange(3.0).expand(2, 3)}, path + "-e")
    assert torch.equal(dcpfs.torch.load_file(path + "-e", cache="")["e"], torch.arange(3.0).expand(2, 3))
    from torch.testing._internal.two_tensor import TwoTensor
    _, wrong = outcome(dcpfs.torch.save_state_dict, {"t": TwoTensor(torch.zeros(2), torch.zeros(2))}, path + "-t")
    assert "TwoTensor has no memory of its own" in str(wrong), wrong
    for keys in "ab", "ba", "ca", "ac", "bca", "abc":
        for views in ([(), ()], [(slice(2),), (slice(1, 3),)]), ([(), ()], [(), (slice(None), slice(2))]):
            def make():
                memory = torch.zeros(5, 4)
                made = {k: memory[i % 2:][:4] for i, k in enumerate(keys)}
                return {**made, "memory": memory}

            alike(make, *map(apart, (lambda s: dcp.load(s, checkpoint_id=path), *ways)))
    for by in ways:
        for make in (lambda: torch.zeros(4, 4, requires_grad=True), lambda: torch.nn.Parameter(torch.zeros(4, 4)), lambda: torch.zeros(4, 4).t()):
            state = {"a": make()}
            used = (state["a"] * torch.ones(4, 4, requires_grad=True)).sum()
            before = state["a"]._version
            by(state)
            assert state["a"]._version > before and torch.equal(state["a"], full["a"])
            _, wrong = outcome(used.backward)
            assert "modified by an inplace operation" in str(wrong), wrong
        with torch.inference_mode():
            state = {"a": torch.zeros(4, 4), "s": torch.zeros(())}
        by(state)
        assert torch.equal(state["a"], full["a"]) and state["s"] == full["s"]


@case(2)
def files_are_written_in_torchs_order(rank, world, way, path):
    """Tensors that share memory, of shards in several files: torch writes file by file, the ones first that its plan meets first."""
    mesh = torch_proof.init_device_mesh("cpu", (world,))
    torch.manual_seed(4)
    for dims in itertools.product((0, 1), repeat=2):
        full = {k: distribute_tensor(torch.randn(4, 4), mesh, [Shard(d)]) for k, d in zip("bc", dims)}
        if rank:
            full["a"] = "a value in the second rank's file"
        dcp.save(full, checkpoint_id=path)
        for keys, at in itertools.product(("bc", "cb", "abc", "acb"), (-3, -2, 0, 1)):
            def make(target):
                memory, made = torch.zeros(10, 4), {}
                for k in keys:
                    made[k] = "" if k == "a" else target(memory[3 if k == keys[-1] else 3 + at:][:4])
                return {**made, "memory": memory}

            ways = (lambda s: dcp.load(s, checkpoint_id=path), lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path)))
            for cut in (lambda whole: whole), *(lambda whole, d=d: DTensor.from_local(whole.chunk(2, d)[rank], mesh, [Shard(d)]) for d in (0, 1)):
                alike(lambda: make(cut), *map(apart, ways))


@case(2)
def kinds_must_fit(rank, world, way, path):
    """A tensor where an object is stored gives way to it; an object where a tensor is stored is an error, in a partial load, too."""
    full = saved(path)
    mesh = torch_proof.init_device_mesh("cpu", (world,))
    for make in (lambda: {"step": torch.zeros(3), "info": {"pair": torch.zeros(())}}, lambda: {"step": torch.zeros(3, device="meta")},
                 lambda: {"step": distribute_tensor(torch.zeros(4), mesh, [Shard(0)])}, lambda: {"step": torch.nn.Parameter(torch.zeros(()))}):
        got = alike(make, lambda s: dcp.load(s, checkpoint_id=path), lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path)))
        assert got["step"] == full["step"], got
    for partial in False, True:
        for value in 0, None, [1], "x", np.zeros(()):
            alike(lambda: {"scale": value if rank == 0 else torch.zeros(())},
                  lambda s: dcp.load(s, checkpoint_id=path, planner=DefaultLoadPlanner(allow_partial_load=partial)),
                  lambda s: load(s, path, strict=not partial), lambda s: dcp.load(s, storage_reader=reader(path)), says="scale")


class Counterfeit:
    """No Stateful, no plain data."""

    def __init__(self):
        self.n = 3


# ---- which keys ----

@case(2)
def differing_keys_are_named(rank, world, way, path):
    """Ranks may want different keys; whoever asks is told the differences of both, on all ranks."""
    full = saved(path)
    mine = {"model": {"w": 0}} if rank else {"step": 0, "scale": 0}

    def make():
        return {k: blank(full[k]) for k in mine}

    alike(make, lambda s: dcp.load(s, checkpoint_id=path), lambda s: load(s, path))

    def asked(state):
        utils._assert_same_keys(state)
        dcp.load(state, checkpoint_id=path)

    text = "rank 0 wants 2 that rank 1 does not, as scale; rank 1 wants 3 that rank 0 does not, as model.b"
    alike(make, asked, lambda s: load(s, path, same_keys=True), says=text)
    alike(lambda: blank(full), asked, lambda s: load(s, path, same_keys=True))


@case(2)
def missing_keys_fail_all(rank, world, way, path):
    """A key that is missing on one rank fails on all; with a partial load it keeps its value, and is listed."""
    full = saved(path)
    for extra in ({}, {"model": {"v": torch.zeros(3)}}, {"steps": -1}, {"info": {"list": [0, [torch.zeros(2), "x", 5]]}}):
        def make():
            state = blank(full)
            for key, value in extra.items() if rank == 0 else ():
                state[key] = {**state.get(key, {}), **copy.deepcopy(value)} if isinstance(value, dict) else value
            return state

        says = next(iter(extra), "")
        alike(make, lambda s: dcp.load(s, checkpoint_id=path), lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path)), says=says)
        got = []
        alike(make, lambda s: dcp.load(s, checkpoint_id=path, planner=DefaultLoadPlanner(allow_partial_load=True)),
              lambda s: got.append(load(s, path, strict=False)))
        listed = [key for key in got[0].missing if key.startswith(says)]
        assert len(got[0].missing) == len(listed) == (bool(extra) and rank == 0), got[0].missing


@case(2)
def differing_shapes_fail_all(rank, world, way, path):
    """A shape that differs on one rank fails on all, in a partial load, too."""
    full = saved(path)
    for wrong in torch.zeros(13, 6), torch.zeros(65), torch.zeros(5, 13), torch.zeros(()):
        def make():
            return {"model": {"w": wrong.clone() if rank == 0 else torch.zeros(13, 5)}}

        for partial in False, True:
            alike(make, lambda s: dcp.load(s, checkpoint_id=path, planner=DefaultLoadPlanner(allow_partial_load=partial)),
                  lambda s: load(s, path, strict=not partial), lambda s: dcp.load(s, storage_reader=reader(path)), says="model.w")


@case(2)
def keys_are_loaded_by_name(rank, world, way, path):
    """_load_state_dict_from_keys(): by name and by prefix, whose end is that of a path's component; each rank its own. (Of
    items in a list torch 2.15 also gives those before, or fails.)"""
    saved(path)
    theirs = dcp.state_dict_loader._load_state_dict_from_keys
    ours = functools.partial(dcpfs.torch._load_state_dict_from_keys, cache="")
    for words in (None, "model", "model.w", {"model.w", "step"}, "model.layers", "model.layers.0", "model.layers.0.n", "nothing", set(), "",
                  "info", "info.list", "info.pair", "mode", "w", {"scale", "nothing"}, ["step", "step"],
                  "model.w" if rank else "step"):
        want, got = theirs(words, checkpoint_id=path), ours(words, checkpoint_id=path)
        exactly(got, want, str(words))
        exactly(ours(words, storage_reader=FileSystemReader(path)), want, str(words))
        exactly(ours(words, storage_reader=reader(path)), want, str(words))
        exactly(theirs(words, storage_reader=reader(path)), want, str(words))
    saved(f"{path}-two/step-1", seed=1)
    saved(f"{path}-two/step-2", seed=2)
    exactly(ours("step", storage_reader=dcpfs.torch.Reader(path + "-two", "step-1", cache="")), {"step": 101}, "version")
    for by in theirs, ours:
        _, failure = outcome(by, "step")
        assert isinstance(failure, RuntimeError), failure


# ---- the function of torch's name ----

class Counting(FileSystemReader):
    """A StorageReader that is not torch's own: it alone knows how to read."""

    read = 0

    def read_data(self, plan, planner):
        self.read += len(plan.items)
        return super().read_data(plan, planner)


@case(2)
def load_takes_torchs_arguments(rank, world, way, path):
    """dcpfs.torch.load() has the signature of dcp.load(): readers and planners of all kinds fill the same."""
    here, there = (inspect.signature(f).parameters.values() for f in (dcpfs.torch.load, dcp.load))
    assert [(p.name, p.kind, p.default) for p in here] == [(p.name, p.kind, p.default) for p in there]
    full, os.environ["XDG_CACHE_HOME"] = saved(path), path + "-cache"
    if rank == 0:
        os.makedirs(path + "-hf")
        safetensors_torch.save_file({"w": full["model"]["w"]}, path + "-hf/a.safetensors")
        safetensors_torch.save_file({"b": full["model"]["b"]}, path + "-hf/b.safetensors")
    dcp.save(full, checkpoint_id=path + "-whole", planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    dist.barrier()
    both = dcp.load, dcpfs.torch.load
    for how in {"checkpoint_id": path}, {"checkpoint_id": pathlib.Path(path)}, {"checkpoint_id": f"file://{path}"}, \
            {"storage_reader": FileSystemReader(path)}, {"storage_reader": FileSystemReader("/nowhere"), "checkpoint_id": path}, \
            {"storage_reader": reader(path)}, {"storage_reader": Counting(path)}, {"checkpoint_id": path, "planner": Elsewhere()}, \
            {"storage_reader": FileSystemReader(path), "planner": DefaultLoadPlanner(flatten_sharded_tensors=False)}, {"checkpoint_id": path, "no_dist": True}:
        alike(lambda: blank(full), *(functools.partial(by, **how) for by in both))
        assert not isinstance(how.get("storage_reader"), Counting) or how["storage_reader"].read >= 14
    alike(lambda: blank({"w": full["model"]["w"], "b": full["model"]["b"]}),
          *(functools.partial(by, storage_reader=dcp.HuggingFaceStorageReader(path + "-hf")) for by in both))
    alike(lambda: blank(full), *(functools.partial(by, checkpoint_id=path + "-whole", planner=DefaultLoadPlanner(flatten_state_dict=False)) for by in both))
    for partial in False, True:
        how = {"checkpoint_id": path, "planner": DefaultLoadPlanner(allow_partial_load=partial)}
        alike(lambda: {"model": {"w": torch.zeros(13, 5), "gone": torch.ones(2)}, "step": 0}, *(functools.partial(by, **how) for by in both),
              says="" if partial else "model.gone")
    dcp.save({"counter": Counterfeit(), "step": 1}, checkpoint_id=path + "-class")
    state = {"counter": None, "step": 0}
    _, failure = outcome(lambda: dcpfs.torch.load(state, checkpoint_id=path + "-class", planner=DefaultLoadPlanner(allow_partial_load=True)))
    assert "which only unpickling could make again" in str(failure) and state["step"] == 0, failure


@case(2)
def load_fails_as_torch_does(rank, world, way, path):
    """Wrong calls of dcpfs.torch.load() fail as those of dcp.load() do, on all ranks, with the rank that failed."""
    full, os.environ["XDG_CACHE_HOME"] = saved(path), path + "-cache"

    def raises(says, state, *args, who=None, **how):
        states = [state(), state()]
        wrong, failure = (outcome(functools.partial(by, **how), s, *args)[1] for by, s in zip((dcp.load, dcpfs.torch.load), states))
        assert isinstance(failure, type(wrong)) and wrong is not None and says in str(failure), (wrong, failure)
        if isinstance(wrong, CheckpointException):
            assert isinstance(failure, dcpfs.DcpfsError) and failure.failures.keys() <= wrong.failures.keys() and type(pickled_again(failure)) is type(failure)
            assert who is None or failure.rank == who and str(failure).startswith(f"rank {who}: "), failure
        return failure

    raises("checkpoint_id", lambda: blank(full))
    raises("checkpoint_id", lambda: blank(full), checkpoint_id="")
    raises("unexpected keyword", lambda: blank(full), checkpoint_id=path, strict=False)
    raises("positional", lambda: blank(full), FileSystemReader(path), 3)
    raises("", lambda: blank(full), FileSystemReader(path), storage_reader=FileSystemReader(path))
    for who in range(world):
        raises("model.gone", lambda: {"model": {"gone": torch.ones(2)}} if rank == who else blank(full), checkpoint_id=path, who=who)
        raises("model.w", lambda: {"model": {"w": torch.ones(2)}} if rank == who else blank(full), checkpoint_id=path, who=who)
        raises("scale", lambda: {"scale": 5} if rank == who else blank(full), checkpoint_id=path, who=who)
        raises("gone", lambda: {"gone": 1} if rank == who else blank(full), checkpoint_id=path, planner=DefaultLoadPlanner(flatten_sharded_tensors=False), who=who)
        raises("", lambda: blank(full), checkpoint_id=path + "-none" if rank == who else path, who=who)
    for work in (lambda: dcpfs.torch.load(path), lambda: dcpfs.torch.load(path, "cpu"), lambda: dcpfs.torch.load(pathlib.Path(path), mmap=True),
                 lambda: dcpfs.torch.load(path if rank else blank(full), checkpoint_id=path)):
        _, failure = outcome(work)
        assert isinstance(failure, TypeError) and (rank == 0 or "load_file" in str(failure)), failure
    for how, says in ({"storage_reader": path}, "storage_reader is a str, not a StorageReader"), ({"checkpoint_id": path, "planner": 3}, "planner is a int"):
        _, failure = outcome(functools.partial(dcpfs.torch.load, blank(full), **how))
        assert isinstance(failure, TypeError) and says in str(failure) and failure.rank in range(world), failure


def pickled_again(failure):
    return pickle.loads(pickle.dumps(failure))


# ---- who loads ----

@case(3)
def a_rank_alone_loads(rank, world, way, path):
    """A rank alone, while the others do something else; and without any group."""
    full = saved(path)
    theirs, ours = (lambda s: dcp.load(s, checkpoint_id=path, no_dist=True)), (lambda s: load(s, path, no_dist=True))
    for one in range(world):
        if rank == one:
            alike(lambda: blank(full), theirs, ours, lambda s: dcp.load(s, storage_reader=reader(path), no_dist=True),
                  lambda s: dcp.load_state_dict(s, reader(path), no_dist=True))
        dist.barrier()
    dist.destroy_process_group()
    exactly(alike(lambda: blank(full), theirs, ours, lambda s: load(s, path), lambda s: dcp.load(s, storage_reader=reader(path))), full, "")
    for name in "step", None:
        exactly(dcpfs.torch._load_state_dict_from_keys(name, checkpoint_id=path, cache=""),
                dcp.state_dict_loader._load_state_dict_from_keys(name, checkpoint_id=path), "")


@case(3)
def any_rank_coordinates(rank, world, way, path):
    """Any rank of the group coordinates: it alone makes the global plan, and finds the version."""
    full = saved(f"{path}/step-1")
    saved(f"{path}/step-2", seed=4)
    for group, ranks in ((None, [0, 1, 2]), (dist.new_group([0, 2]), [0, 2]), (dist.new_group([2, 1]), [1, 2])):
        for one in range(len(ranks)) if rank in ranks else ():
            seen = []

            def theirs(state, source):
                planner = Told()
                dcp.load_state_dict(state, source, group, coordinator_rank=one, planner=planner)
                seen.append(planner.told)

            version = "step-1" if ranks[one] == rank else None
            alike(lambda: blank(full), lambda s: theirs(s, FileSystemReader(f"{path}/step-1")), lambda s: theirs(s, reader(f"{path}/step-1")),
                  lambda s: load(s, path, version, group, coordinator_rank=one))
            assert seen[0] == seen[1] and ("create_global_plan" in seen[0]) == (ranks[one] == rank), seen
            _, failure = outcome(load, blank(full), path, "step-2" if ranks[one] == rank else "step-1", group, True)
            assert "step-1" in str(failure) and "step-2" in str(failure), failure
        dist.barrier()


@case(4)
def groups_load_beside_each_other(rank, world, way, path):
    """Groups of ranks load beside each other, also into DTensors of a mesh that has only some of the ranks."""
    every = [saved(f"{path}-{i}", seed=i) for i in range(2)]
    meshes = [DeviceMesh("cpu", [0, 2]), DeviceMesh("cpu", [1, 3])]
    made = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    which = rank % 2
    for exchange in "never", "node", "all":
        exactly(alike(lambda: blank(every[which]), lambda s: dcp.load(s, checkpoint_id=f"{path}-{which}", process_group=made[which]),
                      lambda s: load(s, f"{path}-{which}", process_group=made[which], exchange=exchange)), every[which], "")

    def make():
        return {"model": {k: DTensor.from_local(torch.zeros(7 - rank // 2 if rank % 2 == i else 0, 5), meshes[i], [Shard(0)], shape=(13, 5), stride=(5, 1))
                          for i, k in ((which, "w"),)}}

    def parts(by):
        def filled(state):
            by(state)
            state["model"] = {k: v.to_local() for k, v in state["model"].items()}
        return filled

    alike(make, parts(lambda s: dcp.load(s, checkpoint_id=f"{path}-0", process_group=made[which])),
          parts(lambda s: load(s, f"{path}-0", process_group=made[which])), parts(lambda s: load(s, f"{path}-0")),
          parts(lambda s: dcp.load(s, storage_reader=reader(f"{path}-0"), process_group=made[which])))
    part = meshes[0]  # of which two ranks are no members
    states = [{"model": {"w": distribute_tensor(torch.zeros(13, 5), part, [Shard(0)])}} for _ in range(2)]
    dcp.load(states[0], checkpoint_id=f"{path}-0")
    load(states[1], f"{path}-0")
    exactly(*(s["model"]["w"].to_local() for s in states), "")
    dist.barrier()


@case(3)
def a_failure_fails_all(rank, world, way, path):
    """What fails on one rank fails on all: a checkpoint that one does not see, a state dict that is none."""
    full = saved(path)
    for one in range(world):
        where = path + "x" if rank == one else path
        alike(lambda: blank(full), lambda s: dcp.load(s, checkpoint_id=where), lambda s: load(s, where), says="x")


# ---- what is called ----

class Told(DefaultLoadPlanner):
    """Notes which of its methods were called."""

    def __init__(self, **how):
        super().__init__(**how)
        self.told = []

    def __getattribute__(self, name):
        if name in ("set_up_planner", "create_local_plan", "create_global_plan", "finish_plan"):
            self.told.append(name)
        return super().__getattribute__(name)


class Elsewhere(Told):
    """Gives each piece memory of its own, and has what came twice as large; counts it; notes objects."""

    def resolve_tensor(self, item):
        at = super().resolve_tensor(item)
        return torch.full([n + 1 for n in at.shape], -1.0, dtype=at.dtype)[tuple(slice(n) for n in at.shape)]

    def commit_tensor(self, item, tensor):
        super().resolve_tensor(item).add_(tensor * 2)
        assert tensor.shape == torch.Size(item.lengths)

    def load_bytes(self, item, value):
        self.told.append(item.dest_index.fqn)
        value = torch.load(value, weights_only=True)
        super().load_bytes(item, io.BytesIO(pickled([value, item.storage_index.fqn])))


def pickled(value):
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


@case(2)
def hooks_of_planners_are_called(rank, world, way, path):
    """A planner's hooks: one gives a piece its destination, one commits it, one has the bytes of an object; it may leave items out."""
    full = saved(path)
    mesh = torch_proof.init_device_mesh("cpu", (world,))
    whole = torch.randn(5, 3)
    dist.broadcast(whole, 0)
    dcp.save({"d": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=path + "-d")
    seen = []

    def by(state, **where):
        one = Elsewhere()
        dcp.load(state, planner=one, **where)
        seen.append(sorted(one.told))

    got = alike(lambda: blank(full), lambda s: by(s, checkpoint_id=path), lambda s: by(s, storage_reader=reader(path)))
    assert torch.equal(got["model"]["w"], 2 * full["model"]["w"]) and got["step"] == [103, "step"], got
    assert seen[0] == seen[1] and ("create_global_plan" in seen[0]) == (rank == 0), seen
    for placement in Shard(0), Shard(1):
        states = [{"d": distribute_tensor(torch.zeros(5, 3), mesh, [placement])} for _ in range(2)]
        for state, where in zip(states, ({"checkpoint_id": path + "-d"}, {"storage_reader": reader(path + "-d")})):
            by(state, **where)
        exactly(*(s["d"].to_local() for s in states), str(placement))
        assert torch.equal(states[1]["d"].full_tensor(), 2 * whole)

    def less(state, **where):
        class Some(DefaultLoadPlanner):
            def create_local_plan(self):
                plan = super().create_local_plan()
                return type(plan)([i for i in plan.items if i.dest_index.fqn != "model.w"])

            def resolve_tensor(self, item):
                at = super().resolve_tensor(item)
                return at[:1] if item.dest_index.fqn == wrong else at

        dcp.load(state, planner=Some(), **where)

    wrong = ""
    alike(lambda: blank(full), lambda s: less(s, checkpoint_id=path), lambda s: less(s, storage_reader=reader(path)))
    wrong = "model.layers.0.n"  # for which there is too little memory
    for where in {"checkpoint_id": path}, {"storage_reader": reader(path)}:
        _, failure = outcome(lambda: less(blank(full), **where))
        assert "size" in str(failure) and "(1, 3)" in str(failure).replace("[", "(").replace("]", ")"), failure


class Spy(Counter):
    """A Stateful that says when it is called."""

    def __init__(self, name, log, *more):
        super().__init__()
        self.name, self.log, self.w = name, log, torch.zeros(2)

    def state_dict(self):
        self.log.append(f"get {self.name}")
        return {"n": self.n, "rates": self.rates, "w": self.w}

    def load_state_dict(self, state):
        self.log.append(f"set {self.name} {state}")
        super().load_state_dict(state)


class SpyDict(Spy, dict):
    """One that is a dict as well."""


@case(2)
def stateful_objects_are_asked_in_order(rank, world, way, path):
    """state_dict() before, in order of the keys; load_state_dict() after all is there, and not when any rank failed."""
    first = {"b": Spy("b", []), "a": SpyDict("a", []), "c": {"x": torch.ones(3)}}
    for i, one in enumerate((first["a"], first["b"])):
        one.n, one.rates = 5 + i, [0.25 * i]
        one.w += i + 1
    dcp.save(first, checkpoint_id=path)
    for extra in {}, {"d": torch.zeros(1)}:
        logs = []

        def make():
            logs.append([])
            state = {"c": {"x": torch.zeros(3)}, "b": Spy("b", logs[-1]), "a": SpyDict("a", logs[-1])}
            return state | (extra if rank == 1 else {})

        def plain(by):
            def filled(state):
                try:
                    by(state)
                finally:
                    assert isinstance(state["a"], SpyDict)
                    state.update({k: [state[k].n, state[k].rates, state[k].w] for k in "ab"})
            return filled

        alike(make, plain(lambda s: dcp.load(s, checkpoint_id=path)), plain(lambda s: load(s, path)),
              plain(lambda s: dcp.load(s, storage_reader=reader(path))), says="d" if extra else "")
        assert logs[0] == logs[1] == logs[2] and [line[:5] for line in logs[0]] == ["get a", "get b", "set a", "set b"][:2 if extra else 4], logs


@case(2)
def load_state_dict_calls_no_stateful(rank, world, way, path):
    """The function of this name, which calls no Stateful."""
    full = saved(path)
    alike(lambda: blank(full), lambda s: dcp.load_state_dict(s, FileSystemReader(path)), lambda s: dcp.load_state_dict(s, reader(path)), lambda s: load(s, path))
    alike(lambda: {"model": Counter()}, lambda s: dcp.load_state_dict(s, FileSystemReader(path)), lambda s: dcp.load_state_dict(s, reader(path)), says="model")


def main():
    asked = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="dcpfs-torch-") as scratch:
        for name, (work, ranks) in CASES.items():
            if not asked or name in asked:
                print(f"{name}, {ranks} ranks: {work.__doc__.splitlines()[0]}", flush=True)
                torch_proof.run(scratch, work, name, ranks, f"{scratch}/{name}")
    print("all equal")


if __name__ == "__main__":
    main()
