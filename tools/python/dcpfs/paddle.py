# SPDX-License-Identifier: Apache-2.0
"""State dicts of Paddle filled from any checkpoint, by all ranks together, and written as Paddle writes them.

    dcpfs.paddle.load_state_dict(state_dict, "/data/run1")     # in place of paddle.distributed.load_state_dict
    dcpfs.paddle.save(state_dict, "run1.pdopt", gather_to=0, state_type="opt")    # of paddle.incubate.distributed.utils.io
"""
from __future__ import annotations

import errno
import math
import os
import re
from typing import Any, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np
import paddle
import paddle.distributed as dist

from ._lib import DcpfsError
from .checkpoint import Checkpoint
from .comm import TIMEOUT, together
from .dtype import DTYPES, FLOATS, of_torch
from .paddle_io import GroupComm, save
from .plan import Plan
from .shown import shown

__all__ = ["MissingKey", "NoCheckpoint", "load_state_dict", "save"]
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EBADMSG)
MASTER, SUFFIX = "master_weights", "_fp32_master_0"


class NoCheckpoint(DcpfsError, AssertionError):
    """There is no checkpoint, or no complete checkpoint. Paddle's loader raises AssertionError."""


class MissingKey(DcpfsError, KeyError):
    """The checkpoint lacks a key of the state dict. Paddle's loader raises KeyError."""


class Piece(NamedTuple):
    """A box of a tensor: where it begins, its shape, its address in the memory of this process, strides in elements."""

    lo: tuple[int, ...]
    shape: tuple[int, ...]
    address: int
    stride: Optional[tuple[int, ...]]


def load_state_dict(state_dict: dict[str, Any], path: Union[str, os.PathLike[str]], process_group: Any = None,
                    coordinator_rank: int = 0, unique_id: Optional[int] = None, offload: bool = False,
                    mw_name_compatibility: bool = True, aoa_config: Any = None, safetensors: bool = False,
                    worker_groups: Any = None, comm_method: str = "broadcast", **how: Any) -> None:
    """Collective over the group. Fill @state_dict in place, as paddle.distributed.load_state_dict() does.

    Values are tensors, distributed tensors (filled by their mesh and placements) and ShardedWeights, also in nested dicts,
    whose keys are joined by dots. Keys of the checkpoint that are not asked for are ignored. Elements are converted to the
    tensor's dtype.

    unique_id: which save in the directory; None: the largest. mw_name_compatibility: a key X.master_weights.Y that is not
    there is looked for as X.Y_fp32_master_0, and the other way round. coordinator_rank: the rank, counted over all
    ranks, that finds the save and indexes it; if it is not in the group, the group's first rank does. offload, safetensors,
    worker_groups, comm_method: accepted, they change nothing here. how: io, exchange, threads, staging, timeout, cache.

    AssertionError, ValueError: for arguments that Paddle refuses. NoCheckpoint, MissingKey (names the nearest key),
    other DcpfsErrors (a shape that differs, too): before data moves, on all ranks. NotImplementedError: aoa_config, Partial.
    """
    comm = GroupComm(process_group) if dist.get_world_size() > 1 else None
    with together(comm, how.get("timeout", TIMEOUT)):
        if aoa_config is not None:
            raise NotImplementedError("aoa_config: convert names by a rule file of dcpfs, or load with Paddle")
        assert isinstance(state_dict, dict), f"The state_dict should be a dictionary.But now the type is {type(state_dict)}."
        assert unique_id is None or unique_id >= 0, f"{unique_id} should be >= 0"
        flat = dict(_leaves((), state_dict))
    if comm:
        ranks = range(comm.ranks) if process_group is None else process_group.ranks
        how = {"coordinator_rank": ranks.index(coordinator_rank) if coordinator_rank in ranks else 0, **how}
    with _opened(path, unique_id, comm, how) as ck:
        plan, staged = Plan(ck), list[tuple[Any, Any]]()
        with ck.together():
            try:
                for key, value in flat.items():
                    _want(ck, plan, _name(ck, key, mw_name_compatibility), value, staged)
            except KeyError as e:
                raise MissingKey(errno.ENOENT, str(e.args[0])) from None
            except DcpfsError as e:
                raise (NoCheckpoint(e.code, e.text, e.rank) if e.code in ABSENT else e) from None
        plan.finish().execute()
        for local, data in staged:
            paddle.assign(data.astype(local.dtype).to(local.place), local)


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for k, v in value.items():
            assert isinstance(k, str), f"The key should be str, but is {k}"
            yield from _leaves((*path, k), v)
    elif isinstance(value, paddle.Tensor) or hasattr(value, "local_tensor"):
        yield ".".join(path), value
    else:
        raise ValueError(f"The value of state_dict should be a paddle.Tensor, but got: {value}")


def _opened(path: Union[str, os.PathLike[str]], unique_id: Optional[int], comm: Any, how: dict[str, Any]) -> Checkpoint:
    # A directory with one save is a version by itself, which has the directory's name: the metadata file names the save.
    only = os.path.join(path, f"{unique_id}.metadata")
    version = "latest" if unique_id is None else str(unique_id)
    try:
        ck = Checkpoint(*((only, "latest") if os.path.isfile(only) else (path, version)), comm=comm, **how)
    except DcpfsError as e:
        if e.code in ABSENT:
            raise NoCheckpoint(e.code, e.text, e.rank) from None
        raise
    newest = ck.versions[-1:]
    if unique_id is None and newest and newest[0].name != ck.version and ck.fact("framework") == "paddle":
        text = (f"the newest save in {ck.source}, {newest[0].name}, is not complete: {newest[0].why}; "
                f"unique_id={ck.version} loads the one before")
        ck.close()
        raise NoCheckpoint(errno.EBADMSG, text)
    return ck


def _name(ck: Checkpoint, key: str, compatible: bool) -> str:
    """The key of the checkpoint for @key: itself, or the other name of a master weight."""
    if compatible and key not in ck:
        words = key.split(".")
        if MASTER in words:
            words.remove(MASTER)
            other = ".".join(words) + SUFFIX
        elif words[-1].endswith(SUFFIX):
            words[-1] = words[-1].replace(SUFFIX, "")
            words.insert(1, MASTER)
            other = ".".join(words)
        else:
            return key
        return other if other in ck else key
    return key


def _want(ck: Checkpoint, plan: Plan, name: str, value: Any, staged: list[tuple[Any, Any]]) -> None:
    stored = ck[name].dtype
    if isinstance(value, paddle.Tensor):
        if not value._is_initialized():  # this rank is not in its mesh
            return
        local, shape = (value._local_value() if value.is_dist() else value), tuple(value.shape)
    else:
        local, shape = value.local_tensor, tuple(value.global_shape)
    if not math.prod(local.shape):
        return
    dtype, to = of_torch(local.dtype), local
    if not local.place.is_cpu_place() or (dtype != stored and not {dtype, stored} <= FLOATS):
        row = DTYPES.get(stored)
        likeness = getattr(paddle, row.torch, None) if row and row.torch else None
        if likeness is None:
            raise TypeError(f"{shown(name)}: Paddle has no dtype for {stored}")
        to = paddle.empty(local.shape, likeness).cpu()
        staged.append((local, to))
        dtype = stored
    for piece in pieces(value, to, ck[name].itemsize if to is not local else DTYPES[dtype].size, name):
        plan.want(name, shape=shape, lo=piece.lo, length=piece.shape, dtype=dtype, address=piece.address, stride=piece.stride,
                  keep=to)


def pieces(value: Any, to: Any, itemsize: int, name: str) -> Iterator[Piece]:
    """Boxes of the whole tensor that @to, the local part of @value or a copy of it, holds."""
    shape, stride = tuple(to.shape), tuple(to.strides)
    if not isinstance(value, paddle.Tensor):
        run = value.flattened_range
        if not value.is_flattened or run is None:
            yield Piece(tuple(value.global_offset), shape, to.data_ptr(), stride)
            return
        if not to.is_contiguous() or math.prod(shape) != run.stop - run.start:
            raise ValueError(f"{shown(name)}: elements {run.start} to {run.stop} do not fit into {list(shape)}")
        for lo, box, at in boxes(tuple(value.local_shape), run.start, run.stop):
            yield Piece(tuple(a + b for a, b in zip(lo, value.global_offset)), box,
                        to.data_ptr() + (at - run.start) * itemsize, None)
    elif value.is_dist():
        part = held(tuple(value.shape), value.process_mesh, value.placements, dist.get_rank(), name)
        if part is None:
            return
        if part[1] != shape:
            raise NotImplementedError(f"{shown(name)}: {value.placements} gives {part[1]}, the local tensor is {shape}")
        yield Piece(part[0], shape, to.data_ptr(), stride)
    else:
        yield Piece((0,) * len(shape), shape, to.data_ptr(), stride)


def held(shape: Sequence[int], mesh: Any, placements: Sequence[Any], rank: int,
         name: str = "") -> Optional[tuple[tuple[int, ...], tuple[int, ...]]]:
    """First element and shape of the part that @rank holds of a tensor of @shape. None: the rank is not in the mesh. NotImplementedError: a
    placement is partial."""
    ids, lo, length = list(mesh.process_ids), [0] * len(shape), list(shape)
    if rank not in ids:
        return None
    at, cuts = ids.index(rank), []
    for i, p in enumerate(placements):
        if p.is_partial():
            raise NotImplementedError(f"{shown(name)} is {p}: a sum of its parts, of which none is stored")
        if p.is_shard():  # where two placements cut one dimension, only the text has dim and order
            said = re.search(r"dim=(-?\d+)(?:, shard_order=(\d+))?", str(p))
            if said is None:
                raise NotImplementedError(f"{shown(name)}: {p} is not understood")
            cuts.append((int(said[2] or 0), i, int(said[1]) % len(shape)))
    for _, i, d in sorted(cuts):
        n = mesh.shape[i]
        index, cut = at // math.prod(mesh.shape[i + 1:]) % n, -(-length[d] // n)  # the last ones get what is left
        first = min(length[d], cut * index)
        lo[d], length[d] = lo[d] + first, min(cut, length[d] - first)
    return tuple(lo), tuple(length)


def boxes(shape: Sequence[int], first: int, last: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """The elements [first, last) of a row-major tensor of @shape as boxes: where each begins, its shape, number of its first
    element."""
    if not shape:
        yield (), (), first
        return
    inner, at = math.prod(shape[1:]), first
    while at < last:
        row, skip = divmod(at, inner)
        rows = (last - at) // inner
        if not skip and rows:
            yield (row, *[0] * (len(shape) - 1)), (rows, *shape[1:]), at
            at += rows * inner
            continue
        end = min(last, (row + 1) * inner)
        for lo, box, n in boxes(shape[1:], skip, end - row * inner):
            yield (row, *lo), (1, *box), n + row * inner
        at = end
