# SPDX-License-Identifier: Apache-2.0
"""A process group of torch.distributed as the ranks that load together."""
from __future__ import annotations

import datetime
import errno
import hashlib
from typing import Any, Iterable, Optional, Sequence

import torch
import torch.distributed as dist

from ._lib import DcpfsError
from .comm import TIMEOUT, OwnComm


class GroupComm(OwnComm):
    """group None: the default group. With gloo or MPI, ranks also exchange bytes of tensors; with other backends (NCCL) only
    small messages go through the group, in memory of the device: each node reads for itself, or GPUs exchange by NCCL or
    CUDA IPC."""

    def __init__(self, group: Any = None) -> None:
        self._group = group if group is not None else dist.group.WORLD
        backend = str(dist.get_backend_config(self._group)) if hasattr(dist, "get_backend_config") else dist.get_backend(self._group)
        self._on_cpu = "gloo" in backend or "mpi" in backend
        self._peers = dist.get_process_group_ranks(self._group)
        super().__init__("torch", dist.get_rank(self._group), dist.get_world_size(self._group), bulk=self._on_cpu)

    def gather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        device = torch.device("cpu") if self._on_cpu else torch.device("cuda", torch.cuda.current_device())
        one, every = torch.frombuffer(mine, dtype=torch.uint8), torch.frombuffer(out, dtype=torch.uint8)
        parts = [torch.empty(len(mine), dtype=torch.uint8, device=device) for _ in self._peers]
        work = dist.all_gather(parts, one.to(device), group=self._group, async_op=True)
        work.wait(datetime.timedelta(seconds=timeout)) if self._on_cpu else work.wait()
        every.copy_(torch.cat(parts))

    def exchange(self, send: Sequence[memoryview], receive: Sequence[memoryview], timeout: float) -> None:
        works: list[Any] = []
        for r, peer in enumerate(self._peers):
            if r == self.rank:
                if len(send[r]):
                    receive[r][:] = send[r]
                continue
            if len(receive[r]):
                works.append(dist.irecv(torch.frombuffer(receive[r], dtype=torch.uint8), peer, group=self._group))
            if len(send[r]):
                works.append(dist.isend(torch.frombuffer(send[r], dtype=torch.uint8), peer, group=self._group))
        for work in works:
            work.wait(datetime.timedelta(seconds=timeout))

    def same(self, keys: Iterable[str]) -> None:
        """Collective. DcpfsError, on all ranks: their keys differ. Only rank 0 and the first differing rank send theirs."""
        mine = sorted(keys)
        digests = bytearray(32 * self.ranks)
        self.gather(memoryview(bytearray(hashlib.sha256(repr(mine).encode()).digest())), memoryview(digests), TIMEOUT)
        other = next((r for r in range(self.ranks) if digests[32 * r:32 * r + 32] != digests[:32]), None)
        if other is None:
            return
        told: list[Any] = [None] * self.ranks
        dist.all_gather_object(told, mine if self.rank in (0, other) else None, group=self._group)
        lack = [sorted(set(told[a]) - set(told[b])) for a, b in ((0, other), (other, 0))]
        said = [f"rank {a} wants {len(keys)} that rank {b} does not" + (f", as {keys[0]}" if keys else "")
                for (a, b), keys in zip(((0, other), (other, 0)), lack)]
        raise DcpfsError(errno.EINVAL, "ranks want different keys: " + "; ".join(said), other)


def group(process_group: Any = None, no_dist: bool = False) -> Optional[GroupComm]:
    """The group; the default group for None. Returns None for this process alone: there is no group, or no group is wanted."""
    return None if no_dist or not (dist.is_available() and dist.is_initialized()) else GroupComm(process_group)
