# SPDX-License-Identifier: Apache-2.0
"""A StorageReader for torch.distributed.checkpoint that reads every family dcpfs knows."""
from __future__ import annotations

import errno
import io
import os
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from . import strided, tree
from ._lib import DcpfsError
from .checkpoint import Checkpoint, Entry
from .classes import called, foreign
from .dtype import torch_dtype
from .load import span, torch_target
from .order import Region, writes
from .plan import Plan
from .shown import shown
from .strided import shared


SERVERS = ("s3://", "gs://", "https://", "http://", "hf://")  # that libdcpload itself reads from
NAMED = {"torch.Size": torch.Size, "torch.torch_version.TorchVersion": torch.torch_version.TorchVersion}


def _torchs(kind: type) -> Any:
    """The maker of one of torch's constants, by its name."""
    def of(name: str) -> Any:
        value = getattr(torch, name.removeprefix("torch."))
        if not isinstance(value, kind):
            raise TypeError(name)
        return value

    return called(of, str)


CALLED = {"torch.dtype": _torchs(torch.dtype), "torch.device": called(torch.device), "torch.qscheme": _torchs(torch.qscheme),
          "torch.serialization._get_layout": _torchs(torch.layout)}


def leaf(ck: Checkpoint, key: str) -> Any:
    """An object as torch.load() would give it, except for tensors in it. KeyError, DcpfsError."""
    return ck.objects.made(key, NAMED, CALLED)


def plain(ck: Checkpoint, key: str, entry: Optional[Entry] = None) -> Any:
    """An object as torch.load() would give it; tensors in it are read, by this process alone. KeyError. DcpfsError: also when only
    unpickling could make it again."""
    if entry and entry.why:
        raise DcpfsError(errno.EBADMSG, f"{key}: {entry.why}")
    stored = ck.decoded(entry.item, NAMED, CALLED, True) if entry and entry.item else leaf(ck, key)
    value = tree.filled(tree.leafs(stored), lambda inside: ck[inside].torch())
    kind = foreign(value)
    if kind:
        raise DcpfsError(errno.EBADMSG, f"{key} is a {kind}, which only unpickling could make again; classes=[...] with that class makes it of "
                         "what is stored, and Checkpoint.objects gives that as it is")
    return value


class Reader(StorageReader):
    """`dcp.load(state_dict, storage_reader=dcpfs.torch.Reader(path))`. Each rank reads the items that torch's planner asks for. For the
    planner a tensor is one chunk, however it is stored. Tensors of dtypes that torch lacks, and unreadable tensors, are left out. If the
    version has a .metadata, keys and kinds are exactly those in it; otherwise all that dcpfs shows. how: io, threads, cache and the like
    (dcpfs.open)."""

    def __init__(self, path: Union[str, os.PathLike[str]], version: Optional[str] = "latest", **how: Any) -> None:
        super().__init__()
        self.path, self.version, self.how = path, version, how
        self._ck: Optional[Checkpoint] = None
        self._entries: dict[str, Entry] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """Opened on first access. DcpfsError: it cannot be opened."""
        if self._ck is None:
            self._ck = Checkpoint(self.path, self.version, **self.how)
            self._entries = self._ck.entries()
        return self._ck

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None) -> None:
        if checkpoint_id is not None:
            self.path, self._ck = checkpoint_id, None

    def read_metadata(self, *args: Any, **kwargs: Any) -> md.Metadata:
        """Tensors and objects. DcpfsError: the checkpoint cannot be opened."""
        ck, entries, known = self.checkpoint, dict[str, md.STORAGE_TYPES](), self._entries
        objects = [key for key, entry in known.items() if entry.is_object] if known else list(ck.objects)
        paths, inside = {ck.path(key) for key in objects if not known}, set[str]()
        for key in [key for key, entry in known.items() if not entry.is_object] if known else ck:
            words = ck.path(key) if paths else ()
            if any(words[:n] in paths for n in range(1, len(words))):
                inside.add(key)  # its path is the object's
            try:
                t = ck[key]
                properties = md.TensorProperties(dtype=torch_dtype(t.dtype))
            except (DcpfsError, TypeError):
                continue
            size = torch.Size(t.shape)
            chunk = md.ChunkStorageMetadata(offsets=torch.Size([0] * t.ndim), sizes=size)
            entries[key] = md.TensorStorageMetadata(properties=properties, size=size, chunks=[chunk])
        for key in objects:
            entries.setdefault(key, md.BytesStorageMetadata())
        path = tree.indexed(ck)
        return md.Metadata(state_dict_metadata=entries, planner_data={
            key: (key,) if key in inside else path(key in known and known[key].path or ck.path(key)) for key in entries})

    def set_up_storage_reader(self, metadata: md.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        ck, wants, targets = self.checkpoint, Plan(self.checkpoint), []
        asked: list[tuple[str, list[Region]]] = []
        for item in plan.items:
            key = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                data = io.BytesIO()
                torch.save(plain(ck, key, self._entries.get(key)), data)
                data.seek(0)
                planner.load_bytes(item, data)
                if key in ck.objects:
                    asked.append((key, []))
                continue
            target = strided.plain(planner.resolve_tensor(item), key)
            if target.shape != item.lengths:
                raise ValueError(f"{shown(key)}: the planner gave a tensor of size {tuple(target.shape)} for a piece of {tuple(item.lengths)}")
            if not asked or asked[-1][0] != key:
                asked.append((key, []))
            asked[-1][1].append(Region(item.storage_offsets, item.lengths))
            targets.append((item, target, torch_target(target, key), (len(asked) - 1, len(asked[-1][1]) - 1)))
        common = shared([(t.address or 0, span(t) if t.address else 0) for *_, t, _ in targets])
        staged, ordered = [], dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]()
        for (item, target, t, place), both in zip(targets, common):
            key, to = item.storage_index.fqn, target
            stored = ck[key].dtype
            if both or t.address is None or target.device.type != "cpu" or t.dtype != stored:
                to = torch.empty(target.shape, dtype=torch_dtype(stored))
                if both:
                    ordered[place] = target, to
                else:
                    staged.append((target, to))
            wants.want(key, lo=tuple(item.storage_offsets), length=tuple(item.lengths), address=to.data_ptr(),
                       stride=tuple(to.stride()), keep=to)
        wants.finish().execute()
        for target, to in staged:
            target.copy_(to)
        for want, region, at in writes(ck, asked) if ordered else ():
            if (want, region) in ordered:
                target, to = ordered[want, region]
                target[at].copy_(to[at])
        for item, target, *_ in targets:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike[str]]) -> bool:
        return os.fspath(checkpoint_id).startswith(SERVERS) or os.path.exists(checkpoint_id)
