# SPDX-License-Identifier: Apache-2.0
"""A StorageWriter for torch.distributed.checkpoint that writes every format dcpfs knows."""
from __future__ import annotations

import io
import os
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .group import group
from .piece import Box
from .save import PARTIAL, REPLACE, Saving


class Writer(StorageWriter):
    """`dcp.save(state_dict, storage_writer=dcpfs.torch.Writer(path))`. Torch's planner decides which rank writes which item; the files,
    .metadata included, are written by dcpfs. process_group, no_dist: as given to dcp.save(). replace: an existing checkpoint is replaced
    when the new checkpoint is complete. strict: an item that the format cannot hold is an error, otherwise it is listed in left. how:
    threads, timeout, max_shard, protocol (dcpfs.save)."""

    def __init__(self, path: Union[str, os.PathLike[str], None] = None, format: str = "torch-dcp", *, replace: bool = False,
                 strict: bool = True, process_group: Any = None, no_dist: bool = False, **how: Any) -> None:
        super().__init__()
        self.path, self.format, self._how = path, format, how
        self._flags = REPLACE * replace | PARTIAL * (not strict)
        self._group, self._no_dist = process_group, no_dist
        self.left: dict[str, str] = {}

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None) -> None:
        if checkpoint_id is not None:
            self.path = checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self.path is None:
            raise ValueError("dcpfs.torch.Writer needs a path, or dcp.save() a checkpoint_id")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        assert self.path is not None
        comm = group(self._group, self._no_dist)
        with Saving(self.path, self.format, comm, flags=self._flags, **self._how) as saving:
            with saving.together():
                for item in plan.items:
                    _add(saving, item, planner)
            self.left = saving.write().left
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(index=i.index, size_in_bytes=i.tensor_storage_size() or 0, storage_data=None)
                         for i in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        pass

    def storage_meta(self) -> Optional[StorageMeta]:
        return None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike[str]]) -> bool:
        return True


def _add(saving: Saving, item: WriteItem, planner: SavePlanner) -> None:
    key = item.index.fqn
    path = getattr(planner, "mappings", {}).get(key, ())
    data = planner.resolve_data(item)
    if item.type != WriteItemType.BYTE_IO:
        assert item.tensor_data is not None and isinstance(data, torch.Tensor)
        chunk = item.tensor_data.chunk
        saving.add(key, Box(data, tuple(chunk.offsets), tuple(item.tensor_data.size)), path)
        return
    find = getattr(planner, "lookup_object", None)
    assert isinstance(data, io.BytesIO)
    value = find(item.index) if find else torch.load(data, weights_only=True)
    saving.add_object(key, value, path)
