# SPDX-License-Identifier: Apache-2.0
"""The leaves of a state dict of torch, flattened, filled from a checkpoint."""
from __future__ import annotations

import errno
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
from torch.distributed.checkpoint.planner_helpers import _init_state_dict

from . import tree
from ._lib import DcpfsError
from .checkpoint import Checkpoint
from .dtype import DTYPES, FLOATS, torch_dtype
from .load import Target, after, span, torch_target
from .order import Region, writes
from .plan import Plan
from .reader import plain
from .regions import regions, size
from .strided import shared

ABSENT, BROKEN = errno.ENOENT, errno.EBADMSG  # what may be wrong with a key


class _Want(NamedTuple):
    """A wanted tensor: its key and the local tensors to fill, with the place of each (None: the whole) and its memory."""

    name: str
    stored: str = ""  # dtype; "": it is an object
    shape: tuple[int, ...] = ()
    parts: list[tuple[torch.Tensor, Optional[tuple[int, ...]], Target]] = []

    def regions(self) -> list[Region]:
        return [Region(lo or (0,) * local.ndim, local.shape) for local, lo, _ in self.parts]


def fill(ck: Checkpoint, flat: dict[str, Any], rename: Callable[[str], str], kept: Sequence[int]) -> tuple[
        dict[str, Any], dict[str, str], dict[str, Any]]:
    """Fill tensors in place. Return the values of other leaves and of tensors on the meta device, the keys that keep their values with the
    reasons, and the report. kept: problems after which a key keeps its value, ABSENT, BROKEN."""
    plan, missing = Plan(ck), dict[str, str]()
    values: dict[str, Any] = {}
    wants: list[_Want] = []
    objects: list[str] = []
    fatal: list[str] = []
    with ck.together():
        for key, old in flat.items():
            name = rename(key)
            try:
                tensor = {key: old}
                if not isinstance(old, torch.Tensor) and not hasattr(old, "local_shards"):
                    values[key] = _object(ck, name, old, objects)
                elif name not in ck and name in ck.objects:  # as torch: an object replaces the tensor
                    values[key] = plain(ck, name)
                else:
                    _init_state_dict(tensor)
                    stored = ck[name].dtype
                    parts = [(local, lo, torch_target(local, name)) for local, lo in regions(tensor[key], name)]
                    wants.append(_Want(name, stored, size(tensor[key]), parts))
                    if tensor[key] is not old:
                        values |= tensor
                    continue
                wants.append(_Want(name))
            except (KeyError, DcpfsError) as e:
                code = e.code if isinstance(e, DcpfsError) else ABSENT
                if code not in (ABSENT, BROKEN):
                    raise
                missing[key] = e.text if isinstance(e, DcpfsError) else str(e.args[0])
                if code not in kept:
                    fatal.append(key)
        later = _plan(ck, plan, wants)
        if fatal:
            raise DcpfsError(errno.ENOENT, missing[fatal[0]] + (f" (and {len(fatal) - 1} more keys cannot be had)" if len(fatal) > 1 else ""))
    plan.finish().execute()
    with ck.together():
        later()
    return values, missing, plan.report


def _plan(ck: Checkpoint, plan: Plan, wants: Sequence[_Want]) -> Callable[[], None]:
    """Add all wants. Returns a function to call after the load: it fills tensors that the library cannot fill by address, and tensors that
    share memory in torch's order."""
    common = iter(shared([(t.address or 0, span(t) if t.address else 0) for w in wants for *_, t in w.parts]))
    staged = dict[tuple[int, int], torch.Tensor]()
    ordered, streams = set[tuple[int, int]](), set[int]()
    for i, w in enumerate(wants):
        for j, (local, lo, t) in enumerate(w.parts):
            if t.stream is not None:
                streams.add(t.stream)
            to, both = local, next(common)
            if both:
                ordered.add((i, j))
            if both or t.address is None or not (local.device.type == "cpu" or local.device.type == "cuda" and ck.device) or (
                    t.dtype != w.stored and not {t.dtype, w.stored} <= FLOATS):
                to = staged[i, j] = torch.empty(local.shape, dtype=torch_dtype(w.stored) if w.stored in DTYPES else local.dtype)
                t = torch_target(to, w.name)
            plan.want(w.name, shape=w.shape, lo=lo, length=None if lo is None else tuple(local.shape), dtype=t.dtype,
                      address=t.address or 0, stride=t.stride, keep=to)
    after(plan, streams)

    def finish() -> None:
        for i, j in staged.keys() - ordered:
            wants[i].parts[j][0].copy_(staged[i, j])
        for i, j, at in writes(ck, [(w.name, w.regions()) for w in wants]) if ordered else ():
            if (i, j) in ordered:
                wants[i].parts[j][0][at].copy_(staged[i, j][at])

    return finish


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
