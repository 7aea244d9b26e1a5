# SPDX-License-Identifier: Apache-2.0
"""State dicts of Paddle written by all ranks, gathered before where an optimizer is sharded."""
from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import uuid
import warnings
from typing import Any, Optional, Sequence, Union

import numpy as np
import paddle
import paddle.distributed as dist

from ._lib import DcpfsError
from .comm import FAILED, KINDS, OwnComm, as_error, together
from .dtype import of_torch
from .paddle_pickle import write
from .piece import Piece
from .save import FILE, OVERWRITE, Saving, flat
from .shown import shown

MASTER, SCHEDULER = "master_weights", "LR_Scheduler"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def save(state_dict: Any, path: Union[str, io.BytesIO], **configs: Any) -> None:
    """In place of paddle.incubate.distributed.utils.io.save(). Collective if gather_to is given and there are several ranks.

    gather_to: None: every caller writes what it has to its own path. A rank or a list of them: with state_type "opt" and
    a sharded optimizer they write what all ranks of the sharding group have together; otherwise every rank writes, as with
    Paddle. state_type: "params" or "opt". max_grouped_size: bytes (or "3G", "10M", "2K") that one round of the gathering may
    have in memory, of all ranks together; more than 32 MiB are never used, and the file is written as data comes.
    use_binary_format: one tensor as a stream. protocol: 2, 3 or 4 (Paddle's function ignores it).

    The file gets its name when it is complete. Errors are of the classes that Paddle raises.
    """
    how = {k: configs[k] for k in ("use_binary_format", "protocol") if k in configs}
    gather_to = configs.get("gather_to")
    if dist.get_world_size() == 1 or gather_to is None:
        write(state_dict, path, **how)
        return
    kind = configs.get("state_type")
    assert isinstance(kind, str) and kind in ("params", "opt"), f"with gather_to, state_type must be 'params' or 'opt', not {kind!r}"
    if re.search(f"{kind}$", str(path)) is None:
        warnings.warn(f"{kind} are saved as {path}, which does not end with {kind}", stacklevel=2)
    sharding, data = groups()
    if kind == "params":
        for group in (data, sharding):
            assert same_keys(state_dict, group), "ranks have different keys: parameters can be saved with data parallelism and sharding stage 1 or 2"
    if kind == "params" or sharding is None or sharding.nranks == 1 or same_keys(state_dict, sharding):
        write(state_dict, path, **how)
        return
    assert isinstance(gather_to, (list, tuple, int)), f"gather_to is a rank or a list of ranks, not {gather_to!r}"
    to = [gather_to] if isinstance(gather_to, int) else list(gather_to)
    limit = configs.get("max_grouped_size", "3G")
    try:
        gather(state_dict, path, [r for r in map(sharding.get_group_rank, to) if r >= 0], sharding, grouped_size(limit), **how)
    except Exception as e:
        error = as_error(e, -1)
        raise FAILED[KINDS.index(RuntimeError)](error.code, f"saving failed: {error.text}; a smaller max_grouped_size than {limit} needs less memory, "
                                                "and for sharding stage 1 paddle.save() of each rank is enough", error.rank) from e


def grouped_size(size: Union[int, str]) -> int:
    assert isinstance(size, (int, str)), f"max_grouped_size is a number or like 10K, 9M, 200G, not {size!r}"
    if isinstance(size, int):
        return size
    assert re.fullmatch("[0-9]+[GMK]", size), f"max_grouped_size is a number or like 10K, 9M, 200G, not {size!r}"
    return int(size[:-1]) * UNITS[size[-1]]


# ---- ranks ----

class GroupComm(OwnComm):
    """A group of paddle.distributed; None: all ranks. Only small messages go through it (with gloo, Paddle numbers what it sends so
    that all ranks must send equally often): ranks of a node share what one of them has read, each node reads for itself."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_initialized():
            dist.init_parallel_env()
        self._group = group if group is not None else dist.get_group(0)
        self._place = paddle.CPUPlace() if str(dist.get_backend(self._group)).upper() == "GLOO" else None
        super().__init__("paddle", self._group.rank, self._group.nranks, bulk=False)

    def gather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        parts: list[Any] = []
        dist.all_gather(parts, paddle.to_tensor(np.frombuffer(mine, np.uint8), place=self._place), group=self._group)
        out[:] = b"".join(part.numpy().tobytes() for part in parts)


def groups() -> tuple[Any, Any]:
    """The groups of sharding and of data parallelism. Without fleet all ranks are one sharding group."""
    from paddle.distributed import fleet

    try:
        hybrid = fleet.get_hybrid_communicate_group()
    except (AssertionError, AttributeError):
        return dist.get_group(0), None
    models, stages = hybrid.get_model_parallel_world_size(), hybrid.get_pipe_parallel_world_size()
    assert models == 1 and stages == 1, f"only data parallelism and sharding can be saved; these are {models} model parallel ranks and {stages} stages"
    return hybrid.get_sharding_parallel_group(), hybrid.get_data_parallel_group()


def every(data: bytes, group: Any, n: int) -> list[bytes]:
    """@data of all ranks, of at most @n bytes each."""
    cpu = str(dist.get_backend(group)).upper() == "GLOO"
    mine = np.zeros(n, np.uint8)
    mine[:len(data)] = np.frombuffer(data, np.uint8)
    parts: list[Any] = []
    dist.all_gather(parts, paddle.to_tensor(mine, place=paddle.CPUPlace() if cpu else None), group=group)
    return [p.numpy().tobytes() for p in parts]


def gathered(value: Any, group: Any) -> list[Any]:
    """@value of all ranks, in types of JSON."""
    text = json.dumps(value).encode()
    sizes = [int.from_bytes(b, "little") for b in every(len(text).to_bytes(8, "little"), group, 8)]
    return [json.loads(b[:n]) for b, n in zip(every(text, group, max(sizes)), sizes)]


def same_keys(state: Any, group: Any) -> bool:
    if group is None or group.nranks == 1:
        return True
    keys = list(map(str, state))
    return all(k == keys for k in gathered(keys, group))


# ---- gathering ----

def of_files(path: Any, to: Sequence[int], group: Any, comm: GroupComm) -> list[int]:
    """Collective. The ranks among @to that write: of ranks with one path the lowest. Equal paths may name files of different nodes, so each
    rank makes a file with a name of its own in its directory, and looks for files of other ranks there."""
    folder, name = os.path.split(os.path.abspath(path)) if group.rank in to else ("", "")
    mark = f".{name[:64]}.{uuid.uuid4().hex}" if name else ""
    try:
        with together(comm):
            if mark:
                os.makedirs(folder, exist_ok=True)
                open(os.path.join(folder, mark), "xb").close()
        marks = gathered([mark, name], group)
        same = [r for r in to if name and marks[r][1] == name and os.path.exists(os.path.join(folder, marks[r][0]))]
        lowest = gathered(min(same, default=-1), group)
    finally:
        with contextlib.suppress(OSError):
            if mark:
                os.unlink(os.path.join(folder, mark))
    return [r for r in to if lowest[r] == r]


def gather(state: dict[str, Any], path: Any, to: Sequence[int], group: Any, limit: int, protocol: int = 4,
           use_binary_format: bool = False) -> None:
    """Collective. Ranks @to of the group write the tensors of all ranks; the last rank's tensor counts if several have a key."""
    if use_binary_format and group.rank in to:
        raise NotImplementedError("with use_binary_format one tensor is saved, not a dict")
    if use_binary_format or not to:
        return
    if "://" in os.fspath(path):
        raise DcpfsError(errno.ENOTSUP, f"{shown(os.fspath(path))}: tensors are gathered into a file of a directory, not into a bucket")
    items: list[tuple[tuple[str, ...], Any]] = [((k,), v) for k, v in state.items() if k not in (MASTER, SCHEDULER)]
    comm = GroupComm(group)
    owners = of_files(path, to, group, comm)
    with comm, Saving(path, "paddle", comm, flags=FILE | OVERWRITE, protocol=protocol, gather_to=owners, max_grouped=max(1, limit)) as saving:
        with saving.together():
            if state.get(MASTER) is not None:
                assert isinstance(state[MASTER], dict), f"{MASTER} is not a dict but {type(state[MASTER])}"
                items += [((MASTER, k), v) for k, v in state[MASTER].items()]
            for words, value in items:
                if not isinstance(value, paddle.Tensor):
                    raise TypeError(f"{words[-1]} is not a tensor but {type(value)}")
                saving.add(".".join(words), piece_of(value), words)
            for words, value in flat({SCHEDULER: state[SCHEDULER]} if SCHEDULER in state else {}):
                saving.add_object(".".join(words), value, words)
        saving.write()


def piece_of(tensor: Any) -> Piece:
    local = tensor.cpu()
    shape = tuple(local.shape)
    return Piece(of_torch(local.dtype), shape, None, shape, local.data_ptr(), tuple(local.strides), local)
