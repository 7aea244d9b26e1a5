# SPDX-License-Identifier: Apache-2.0
"""State dicts of Paddle written by all ranks, gathered before where an optimizer is sharded."""
from __future__ import annotations

import io
import json
import re
import warnings
from typing import Any, Iterator, Optional, Sequence, Union

import numpy as np
import paddle
import paddle.distributed as dist

from .paddle_pickle import Named, write

MASTER, SCHEDULER = "master_weights", "LR_Scheduler"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def save(state_dict: Any, path: Union[str, io.BytesIO], **configs: Any) -> None:
    """In place of paddle.incubate.distributed.utils.io.save(). Collective if gather_to is given and there are several ranks.

    gather_to: None: every caller writes what it has to its own path. A rank or a list of them: with state_type "opt" and
    a sharded optimizer they write what all ranks of the sharding group have together; otherwise every rank writes, as with
    Paddle. state_type: "params" or "opt". max_grouped_size: bytes (or "3G", "10M", "2K") that one round of the gathering may
    have in memory, all ranks' together. use_binary_format: one tensor as a stream. protocol: 2, 3 or 4 (Paddle's function ignores it).

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
            assert same_keys(state_dict, group), "ranks have other keys: parameters can be saved with data parallelism and sharding stage 1 or 2"
    if kind == "params" or sharding is None or sharding.nranks == 1 or same_keys(state_dict, sharding):
        write(state_dict, path, **how)
        return
    assert isinstance(gather_to, (list, tuple, int)), f"gather_to is a rank or a list of ranks, not {gather_to!r}"
    to = [gather_to] if isinstance(gather_to, int) else list(gather_to)
    limit = configs.get("max_grouped_size", "3G")
    try:
        whole = gather(state_dict, dist.get_rank() in to, sharding, grouped_size(limit))
        if whole is not None:
            write(whole, path, **how)
    except Exception as e:
        raise RuntimeError(f"saving failed: {e}; a smaller max_grouped_size than {limit} needs less memory, and for sharding "
                           "stage 1 paddle.save() of each rank is enough") from e


def grouped_size(size: Union[int, str]) -> int:
    assert isinstance(size, (int, str)), f"max_grouped_size is a number or like 10K, 9M, 200G, not {size!r}"
    if isinstance(size, int):
        return size
    assert re.fullmatch("[0-9]+[GMK]", size), f"max_grouped_size is a number or like 10K, 9M, 200G, not {size!r}"
    return int(size[:-1]) * UNITS[size[-1]]


# ---- ranks ----

def groups() -> tuple[Any, Any]:
    """Those of sharding and of data parallelism. Without fleet all ranks are one sharding group."""
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


def told(value: Any, group: Any) -> list[Any]:
    """@value of all ranks; what JSON can say."""
    text = json.dumps(value).encode()
    sizes = [int.from_bytes(b, "little") for b in every(len(text).to_bytes(8, "little"), group, 8)]
    return [json.loads(b[:n]) for b, n in zip(every(text, group, max(sizes)), sizes)]


def same_keys(state: Any, group: Any) -> bool:
    if group is None or group.nranks == 1:
        return True
    keys = list(map(str, state))
    return all(k == keys for k in told(keys, group))


# ---- gathering ----

def gather(state: dict[str, Any], here: bool, group: Any, limit: int) -> Optional[dict[str, Any]]:
    """Collective. The tensors of all ranks of the group, where @here is set; of a key that several have that of the last one."""
    mine: list[tuple[tuple[str, ...], Any]] = [((k,), v) for k, v in state.items() if k not in (MASTER, SCHEDULER)]
    if state.get(MASTER) is not None:
        assert isinstance(state[MASTER], dict), f"{MASTER} is no dict but {type(state[MASTER])}"
        mine += [((MASTER, k), v) for k, v in state[MASTER].items()]
    wrong = next((f"{k[-1]} is no tensor but {type(v)}" for k, v in mine if not isinstance(v, paddle.Tensor)), None)
    arrays = [] if wrong else [np.ascontiguousarray(v.numpy()) for _, v in mine]
    said = told([wrong, [[k, str(a.dtype), a.shape] for (k, _), a in zip(mine, arrays)]], group)
    for r, (text, _) in enumerate(said):
        if text:
            raise TypeError(f"rank {r}: {text}")
    whole = [[(tuple(k), np.empty(shape, dtype)) for k, dtype, shape in items if here] for _, items in said]
    sizes = [sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for _, dtype, shape in items) for _, items in said]
    one = max(1, limit // group.nranks)
    out = [Stream([a for _, a in items]) for items in whole]
    own = Stream(arrays)
    for at in range(0, max(sizes), one):
        n = min(one, max(sizes) - at)
        parts = every(own.read(n), group, n)
        for s, size, part in zip(out, sizes, parts):
            if here and at < size:
                s.write(part[:size - at])
    if not here:
        return None
    result: dict[str, Any] = {MASTER: {}} if any(k[0] == MASTER for items in whole for k, _ in items) or MASTER in state else {}
    for path, a in (x for items in whole for x in items):
        (result[MASTER] if path[:-1] else result)[path[-1]] = Named(path[-1], a)
    if SCHEDULER in state:
        result[SCHEDULER] = state[SCHEDULER]
    return result


class Stream:
    """The bytes of several arrays in a row."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._left = [a.reshape(-1).view(np.uint8).data for a in arrays if a.nbytes]

    def _some(self, n: int) -> Iterator[memoryview]:
        while n and self._left:
            head = self._left[0]
            yield head[:n]
            self._left[:1] = [head[n:]] if len(head) > n else []
            n -= min(n, len(head))

    def read(self, n: int) -> bytes:
        return b"".join(self._some(n))

    def write(self, data: bytes) -> None:
        at = 0
        for part in self._some(len(data)):
            part[:] = data[at:at + len(part)]
            at += len(part)
