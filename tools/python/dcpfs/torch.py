# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch filled from any checkpoint, and written as one: tensors, DTensors and ShardedTensors, by all ranks together.

    dcpfs.torch.load_state_dict(state_dict, "/data/run1")                  # in place of torch.distributed.checkpoint.load
    dcp.load(state_dict, storage_reader=dcpfs.torch.Reader("/data/run1"))  # through torch's own planner
    dcpfs.torch.load("/data/model.pt")                                     # in place of torch.load, without pickle
    dcpfs.torch.save_state_dict(state_dict, "/data/run1/step-5")           # in place of torch.distributed.checkpoint.save
    dcp.save(state_dict, storage_writer=dcpfs.torch.Writer(path))          # through torch's own planner
"""
from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.planner_helpers import _init_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from . import tree
from ._lib import DcpfsError
from .array import Readable
from .checkpoint import Checkpoint
from .comm import TIMEOUT, together
from .dtype import DTYPES, FLOATS, torch_dtype
from .group import group
from .load import after, span, torch_target
from .plan import Plan
from .reader import Reader, leaf, plain
from .regions import regions, size
from .save import Saving, save
from .strided import Spans
from .writer import Writer

Source = Union[str, os.PathLike[str]]

__all__ = ["Filled", "Reader", "Writer", "load", "load_state_dict", "save_state_dict"]


class Filled(NamedTuple):
    """version: its name; missing: {key: why} of keys that kept their values (empty if strict); report: what happened on
    this rank, in bytes and nanoseconds."""

    version: str
    missing: dict[str, str]
    report: dict[str, Any]


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
    comm = group(process_group, no_dist)
    with together(comm, how.get("timeout", TIMEOUT)):
        whole = _whole(state_dict)
        flat, paths = flatten_state_dict(whole)
    if same_keys and comm:
        comm.same(flat)
    with Checkpoint(source, version, comm=comm, **how) as ck:
        values, filled = _fill(ck, flat, rename or str, strict)
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


def load(path: Source, map_location: Any = None, *, weights_only: bool = True, mmap: Optional[bool] = None,
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
    """As torch's function of this name: a new state dict of whole tensors and objects, of the keys given and those below
    them; nested as the framework nests them. storage_reader: a Reader, or torch's FileSystemReader. RuntimeError: neither it nor
    checkpoint_id is given. DcpfsError."""
    wanted = None if keys is None else {keys} if isinstance(keys, str) else set(keys)
    comm = group(process_group)
    if checkpoint_id is None and storage_reader is None:
        raise RuntimeError("checkpoint_id or storage_reader must say where the checkpoint is")
    source = checkpoint_id if checkpoint_id is not None else storage_reader.path
    if isinstance(storage_reader, Reader):
        how = {"version": storage_reader.version, **storage_reader.how, **how}
    with Checkpoint(source, comm=comm, **how) as ck:
        def asked(key: str) -> bool:
            words = ck.path(key)
            return wanted is None or any(".".join(words[:i + 1]) in wanted for i in range(len(words)))

        with ck.together():
            nodes = tree.skeleton(ck, lambda key: leaf(ck, key), asked)
        return dict(read(ck, nodes))


def read(ck: Checkpoint, node: Any, map_location: Any = None, mmap: bool = False) -> Any:
    """Collective if ranks opened @ck together. @node (dcpfs.tree) with tensors in the places of its Leafs."""
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


def _fill(ck: Checkpoint, flat: dict[str, Any], rename: Callable[[str], str], strict: bool) -> tuple[dict[str, Any], Filled]:
    """Fill tensors in place; return the values of the other leaves and of those on the meta device, and what to report."""
    plan, missing, streams, taken = Plan(ck), dict[str, str](), set[int](), Spans()
    later: list[tuple[torch.Tensor, torch.Tensor]] = []
    values: dict[str, Any] = {}
    objects: list[str] = []
    with ck.together():
        for key, old in flat.items():
            name = rename(key)
            try:
                if not isinstance(old, torch.Tensor) and not hasattr(old, "local_shards"):
                    values[key] = _object(ck, name, old, objects)
                    continue
                if name not in ck and name in ck.objects:  # as torch: an object replaces the tensor
                    values[key] = plain(ck, name)
                    continue
                tensor = {key: old}
                _init_state_dict(tensor)
                streams |= _want(ck, plan, name, tensor[key], later, taken)
                if tensor[key] is not old:
                    values |= tensor
            except (KeyError, DcpfsError) as e:
                code = e.code if isinstance(e, DcpfsError) else errno.ENOENT
                if code not in (errno.ENOENT, errno.EBADMSG):
                    raise
                missing[key] = e.text if isinstance(e, DcpfsError) else str(e.args[0])
        after(plan, streams)
        if missing and strict:
            raise DcpfsError(errno.ENOENT, next(iter(missing.values())) +
                             (f" (and {len(missing) - 1} more keys cannot be had)" if len(missing) > 1 else ""))
    plan.finish().execute()
    with ck.together():
        for local, staged in later:
            local.copy_(staged)
    return values, Filled(ck.version, missing, plan.report)


def _want(ck: Checkpoint, plan: Plan, name: str, tensor: Any, later: list[tuple[torch.Tensor, torch.Tensor]], taken: Spans) -> set[int]:
    """Streams of CUDA that may still use the memory that the plan is to fill. @later: what copy_() fills then, in this order."""
    stored, streams = ck[name].dtype, set[int]()
    for local, lo in regions(tensor, name):
        t = torch_target(local, name)
        own = t.address is not None and taken.take(t.address, span(t))
        straight = (own and (local.device.type == "cpu" or local.device.type == "cuda" and bool(ck.device)) and
                    (t.dtype == stored or {t.dtype, stored} <= FLOATS))
        to = local
        if not straight:
            to = torch.empty(local.shape, dtype=torch_dtype(stored) if stored in DTYPES else local.dtype)
            later.append((local, to))
            t = torch_target(to, name)
        plan.want(name, shape=size(tensor), lo=lo, length=None if lo is None else tuple(local.shape), dtype=t.dtype,
                  address=t.address or 0, stride=t.stride, keep=to)
        if t.stream is not None:
            streams.add(t.stream)
    return streams


def _object(ck: Checkpoint, name: str, old: Any, objects: list[str]) -> Any:
    """objects: all keys of objects, or none yet."""
    if name not in ck.objects:
        if name in ck:
            stored = ck[name]
            raise DcpfsError(errno.EINVAL, f"{name} is a tensor in the checkpoint, {stored.dtype}{list(stored.shape)}, and in the state dict "
                             f"a {type(old).__name__}: give a tensor to be filled, torch.empty({list(stored.shape)})")
        if not objects:
            objects.extend(ck.objects)
        items = tree.opened(ck, name, objects, lambda key: plain(ck, key))
        if items is not None:
            return items
    return plain(ck, name)
