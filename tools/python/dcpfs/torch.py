# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch filled from any checkpoint, and written as one: tensors, DTensors and ShardedTensors, by all ranks together.

    dcpfs.torch.load(state_dict, checkpoint_id="/data/run1")               # in place of torch.distributed.checkpoint.load
    dcpfs.torch.load_state_dict(state_dict, "/data/run1", strict=False)    # the same, with options and a report
    dcp.load(state_dict, storage_reader=dcpfs.torch.Reader("/data/run1"))  # through torch's own planner
    dcpfs.torch.load_file("/data/model.pt")                                # in place of torch.load, without pickle
    dcpfs.torch.save_state_dict(state_dict, "/data/run1/step-5")           # in place of torch.distributed.checkpoint.save
    dcp.save(state_dict, storage_writer=dcpfs.torch.Writer(path))          # through torch's own planner
"""
from __future__ import annotations

import contextlib
import functools
import os
import traceback
from collections.abc import Mapping
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._storage_utils import _storage_setup
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.utils import _api_bc_check

from . import tree
from ._lib import DcpfsError
from .array import Readable
from .checkpoint import Checkpoint
from .comm import TIMEOUT, as_error, together
from .fill import ABSENT, BROKEN, fill
from .group import GroupComm, group
from .plan import Plan
from .reader import Reader, leaf
from .save import Saving, save
from .writer import Writer

Source = Union[str, os.PathLike[str]]

__all__ = ["Filled", "Reader", "Writer", "load", "load_file", "load_state_dict", "save_state_dict"]


class Filled(NamedTuple):
    """version: its name; missing: {key: why} of keys that kept their values (empty if strict); report: what happened on
    this rank, in bytes and nanoseconds."""

    version: str
    missing: dict[str, str]
    report: dict[str, Any]


def _refuse_path(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> None:
        first = args[0] if args else kwargs.get("state_dict", kwargs.get("path"))
        if isinstance(first, (str, os.PathLike)):
            with together(group(kwargs.get("process_group"), kwargs.get("no_dist", False))):
                raise TypeError(f"dcpfs.torch.load() fills a state dict, as torch.distributed.checkpoint.load(); "
                                f"dcpfs.torch.load_file({os.fspath(first)!r}) gives what torch.load() would")
        function(*args, **kwargs)

    return checked


@_refuse_path
@_api_bc_check
def load(state_dict: dict[str, Any], *, checkpoint_id: Optional[Source] = None, storage_reader: Any = None, planner: Any = None,
         process_group: Any = None, no_dist: bool = False) -> None:
    """torch.distributed.checkpoint.load(), with its arguments and effects, for a checkpoint of any family.

    checkpoint_id: a path of a checkpoint, or of a directory of versions, of which the newest is taken. storage_reader: dcpfs reads the path of a
    dcpfs.torch.Reader, which may have options (a version), and of a FileSystemReader; any other StorageReader reads for itself, as fsspec's does
    for a URL. planner: None and DefaultLoadPlanner() load as load_state_dict() does; with allow_partial_load absent keys, and no others, keep
    their values. Any other planner plans what dcpfs.torch.Reader, or the other storage_reader, reads.

    RuntimeError: neither checkpoint_id nor storage_reader is given. TypeError: state_dict is a path or no dict, or planner or storage_reader
    is of another kind. What fails later is the same on all ranks: a DcpfsError that is a CheckpointException of torch, too.
    """
    with together(group(process_group, no_dist)):
        for name, value, kind in ("storage_reader", storage_reader, dcp.StorageReader), ("planner", planner, dcp.LoadPlanner):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
        reader, source, how = _stored(checkpoint_id, storage_reader)
    default = type(planner) is dcp.DefaultLoadPlanner and planner.flatten_state_dict and planner.flatten_sharded_tensors
    if source is not None and (planner is None or default):
        kept = (ABSENT,) if planner is not None and planner.allow_partial_load else ()
        _load(state_dict, source, group(process_group, no_dist), kept, fails=lambda: _as_torch(Exception), **how)
    else:
        with _as_torch(dcp.CheckpointException):
            dcp.load(state_dict, storage_reader=reader, planner=planner, process_group=process_group, no_dist=no_dist)


def _stored(checkpoint_id: Optional[Source], reader: Any) -> tuple[Any, Optional[Source], dict[str, Any]]:
    """The StorageReader, and the path and options with which Checkpoint() can read in its place; None: only the reader itself can read."""
    if reader is None and not checkpoint_id:
        raise RuntimeError("checkpoint_id or storage_reader must say where the checkpoint is")
    if reader is None:
        reader = Reader(checkpoint_id) if Reader.validate_checkpoint_id(checkpoint_id) or "://" not in os.fspath(checkpoint_id) else (
            _storage_setup(None, checkpoint_id, reader=True))
    elif checkpoint_id is not None:
        reader.reset(checkpoint_id)
    how = {"version": reader.version, **reader.how} if type(reader) is Reader else {}
    return reader, reader.path if type(reader) in (Reader, dcp.FileSystemReader) else None, how


@functools.lru_cache(maxsize=None)
def _torchs(kind: type[DcpfsError]) -> type[DcpfsError]:
    def failures(self: Any) -> Any:
        return getattr(self.__cause__, "failures", {max(self.rank, 0): (self, traceback.extract_tb(self.__traceback__))})

    name = "Checkpoint" + kind.__name__
    made: type[DcpfsError] = type(name, (kind, dcp.CheckpointException), {
        "__module__": __name__, "__doc__": f"A {kind.__name__} that torch's users catch, too.", "failures": property(failures)})
    globals()[name] = made  # where pickle looks for it
    return made


@contextlib.contextmanager
def _as_torch(kind: type[BaseException]) -> Iterator[None]:
    """Failures of this kind become a DcpfsError that is a CheckpointException of torch as well."""
    try:
        yield
    except kind as e:
        rank, first = -1, e
        if isinstance(e, dcp.CheckpointException):
            rank, (first, _) = min(e.failures.items())
        error = as_error(first, rank)
        raise _torchs(type(error))(error.code, error.text, error.rank) from e


def load_state_dict(state_dict: dict[str, Any], source: Source, version: Optional[str] = "latest", process_group: Any = None,
                    strict: bool = True, *, no_dist: bool = False, same_keys: bool = False,
                    rename: Optional[Callable[[str], str]] = None, **how: Any) -> Filled:
    """Collective over the group. Fill @state_dict in place, as torch.distributed.checkpoint.load() does.

    Nested dicts and lists are flattened to keys joined by dots. Tensors, on any device, get their region, converted to
    their dtype: the whole tensor, a DTensor's local part, each shard of a ShardedTensor. Those on the meta device are replaced
    by new ones in the memory of the group's device. Stateful objects are asked for state_dict() and given it by
    load_state_dict(), in order of their keys. Other leaves are replaced by objects of the checkpoint (Python data:
    None, bool, int, float, str, bytes, lists, tuples, dicts, sets, torch.dtype, torch.device).

    process_group: None is the default group, or this process alone if there is none or with no_dist. rename: from
    a key of the state dict to that of the checkpoint. strict: a key that is missing, or an object that only
    unpickling could restore, is an error; otherwise it keeps its value. same_keys: ranks that want different keys are an error; otherwise
    each gets what it wants. how: io, exchange, threads, staging, timeout, cache, coordinator_rank,
    device: "cuda:0" or the like (dcpfs.open) fills tensors on that GPU where they are, after what is queued in torch's current
    stream; without it they are loaded into the host's memory and copied.

    TypeError: state_dict is not a dict. DcpfsError: the same on all ranks; before data moves when keys, shapes or dtypes do not fit.
    """
    return _load(state_dict, source, group(process_group, no_dist), () if strict else (ABSENT, BROKEN), rename=rename or str,
                 same_keys=same_keys, version=version, **how)


def _load(state_dict: dict[str, Any], source: Source, comm: Optional[GroupComm], kept: Sequence[int], *, rename: Callable[[str], str] = str,
          same_keys: bool = False, fails: Callable[[], Any] = contextlib.nullcontext, **how: Any) -> Filled:
    """As load_state_dict(). kept: problems after which a key keeps its value. fails: a context for code that is not the caller's."""
    with together(comm, how.get("timeout", TIMEOUT)):
        whole = _whole(state_dict)
        flat, paths = flatten_state_dict(whole)
    with fails():
        if same_keys and comm:
            comm.same(flat)
        with Checkpoint(source, comm=comm, **how) as ck:
            values, missing, report = fill(ck, flat, rename, kept)
            filled = Filled(ck.version, missing, report)
    for key, value in values.items():
        set_element(whole, paths[key], value)
    for key, value in whole.items():
        if isinstance(state_dict.get(key), Stateful):
            state_dict[key].load_state_dict(value)
        elif key in state_dict:  # what a Stateful has taken out is not put back
            state_dict[key] = value
    return filled


def save_state_dict(state_dict: dict[str, Any], path: Source, process_group: Any = None, *, no_dist: bool = False,
                    format: str = "torch-dcp", **how: Any) -> Saving:
    """Collective over the group. Write @state_dict as torch.distributed.checkpoint.save() does, or in another format of
    dcpfs.formats().

    Tensors that are no DTensors or ShardedTensors are the same on all ranks that have them. Objects are plain data; nothing else
    could be loaded without executing what a file says. how, and what is returned: dcpfs.save(); asynchronous=True copies tensors
    first. TypeError: state_dict is not a dict, or holds what is not plain data. DcpfsError: the same on all ranks; nothing is left then.
    """
    comm = group(process_group, no_dist)
    with together(comm, how.get("timeout", TIMEOUT)):
        whole = _whole(state_dict)
    return save(whole, path, format, comm=comm, **how)


def load_file(path: Source, map_location: Any = None, *, weights_only: bool = True, mmap: Optional[bool] = None,
         version: Optional[str] = "latest", **how: Any) -> Any:
    """All of a checkpoint as torch.load() would give it: nested dicts and lists (dcpfs.tree.skeleton), with tensors and Python
    data; nothing is unpickled. Objects of unknown classes become dicts with what is known of them.

    map_location: a device, or its name; a dict such as {"cpu": "cuda:0"}; a function of a storage and "cpu". How tensors
    were placed when they were saved does not matter. mmap: True maps tensors whose bytes are one aligned run in a file, as Tensor.mapped()
    does, and reads the others; memory grows with what is used. weights_only changes nothing: classes are never made.
    DcpfsError: something cannot be read."""
    with Checkpoint(path, version, **how) as ck:
        with ck.together():
            nodes = tree.skeleton(ck, lambda key: leaf(ck, key))
        return read(ck, nodes, map_location, bool(mmap))


def _load_state_dict_from_keys(keys: Union[set[str], str, None] = None, *, checkpoint_id: Optional[Source] = None,
                               storage_reader: Any = None, process_group: Any = None, **how: Any) -> dict[str, Any]:
    """As torch's function of this name: a new state dict of whole tensors and objects for the given keys and those below them, nested as
    the framework nests them. checkpoint_id, storage_reader: as load(). RuntimeError: neither is given. DcpfsError."""
    reader, source, options = _stored(checkpoint_id, storage_reader)
    if source is None:
        return dict(dcp.state_dict_loader._load_state_dict_from_keys(keys, storage_reader=reader, process_group=process_group))
    wanted = None if keys is None else {keys} if isinstance(keys, str) else set(keys)
    comm = group(process_group)
    with Checkpoint(source, comm=comm, **{**options, **how}) as ck:
        def asked(key: str) -> bool:
            words = ck.path(key)
            return wanted is None or any(".".join(words[:i + 1]) in wanted for i in range(len(words)))

        with ck.together():
            nodes = tree.skeleton(ck, lambda key: leaf(ck, key), asked)
        return dict(read(ck, nodes))


def read(ck: Checkpoint, node: Any, map_location: Any = None, mmap: bool = False) -> Any:
    """Collective if ranks opened @ck together. Replace the Leafs of @node (dcpfs.tree) by tensors."""
    plan, arrays = Plan(ck), dict[str, Readable]()
    with ck.together():
        for key in tree.keys(node):
            mapped = ck[key].mapped() if mmap else None
            if mapped is None:
                plan.want(key)
            else:
                arrays[key] = mapped
    plan.finish().execute()
    arrays.update((part.key, plan.array(part)) for part in plan.parts())
    tensors = {key: _moved(a.torch(), map_location) for key, a in arrays.items()}
    return tree.filled(node, tensors.__getitem__)


def _moved(tensor: torch.Tensor, to: Any) -> torch.Tensor:
    if isinstance(to, dict):
        to = to.get("cpu")
    if callable(to):
        storage = to(tensor.untyped_storage(), "cpu")
        return tensor if storage is None else torch.empty(0, dtype=tensor.dtype, device=storage.device).set_(
            storage, 0, tensor.shape, tensor.stride())
    return tensor if to is None else tensor.to(to)


def _whole(state_dict: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict is a {type(state_dict).__name__}, not a dict")
    return {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in sorted(state_dict.items(), key=lambda kv: str(kv[0]))}
