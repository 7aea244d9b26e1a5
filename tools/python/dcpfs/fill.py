# SPDX-License-Identifier: Apache-2.0
"""The leaves of a state dict of torch, flattened, filled from a checkpoint."""
from __future__ import annotations

import errno
from typing import Any, Callable, Sequence

import torch
from torch.distributed.checkpoint.planner_helpers import _init_state_dict

from . import tree
from ._lib import DcpfsError
from .checkpoint import Checkpoint
from .dtype import DTYPES, FLOATS, torch_dtype
from .load import after, span, torch_target
from .plan import Plan
from .reader import plain
from .regions import regions, size
from .strided import Spans

ABSENT, BROKEN = errno.ENOENT, errno.EBADMSG  # what may be wrong with a key


def fill(ck: Checkpoint, flat: dict[str, Any], rename: Callable[[str], str], kept: Sequence[int]) -> tuple[
        dict[str, Any], dict[str, str], dict[str, Any]]:
    """Fill tensors in place; return the values of the other leaves and of those on the meta device, which keys
    keep their values and why, and the report. kept: which problems with a key leave it its value, ABSENT, BROKEN."""
    plan, missing, streams, taken = Plan(ck), dict[str, str](), set[int](), Spans()
    later: list[tuple[torch.Tensor, torch.Tensor]] = []
    values: dict[str, Any] = {}
    objects: list[str] = []
    fatal: list[str] = []
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
                code = e.code if isinstance(e, DcpfsError) else ABSENT
                if code not in (ABSENT, BROKEN):
                    raise
                missing[key] = e.text if isinstance(e, DcpfsError) else str(e.args[0])
                if code not in kept:
                    fatal.append(key)
        after(plan, streams)
        if fatal:
            raise DcpfsError(errno.ENOENT, missing[fatal[0]] + (f" (and {len(fatal) - 1} more keys cannot be had)" if len(fatal) > 1 else ""))
    plan.finish().execute()
    with ck.together():
        for local, staged in later:
            local.copy_(staged)
    return values, missing, plan.report


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
