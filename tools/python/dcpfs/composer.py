# SPDX-License-Identifier: Apache-2.0
"""Composer's State filled from its checkpoints, monolithic and sharded, without pickle.

    import composer.utils.checkpoint
    composer.utils.checkpoint.load_checkpoint = dcpfs.composer.load_checkpoint     # Trainer(load_path=...) calls it
"""
from __future__ import annotations

import contextlib
import errno
import os
import pickle
import pickletools
import re
import tempfile
from typing import Any, Callable, Iterator, Optional, TypeVar, Union

import torch
import torch.distributed
from composer.utils import dist, reproducibility
from composer.utils.checkpoint import dist_cp_load, download_object_or_file, glob_filter
from composer.utils.file_helpers import extract_path_from_symlink, get_file
from composer.utils.misc import partial_format

from . import tree
from . import torch as ours
from ._lib import DcpfsError
from .checkpoint import Checkpoint
from .classes import foreign
from .comm import as_error, as_own
from .composer_url import bytes_bar, url_of
from .group import group
from .reader import Reader, leaf
from .shown import shown

__all__ = ["load_checkpoint"]
T = TypeVar("T")
Ignore = Union[list[str], Callable[[dict[str, Any]], None], None]


def load_checkpoint(path: str, state: Any, logger: Any, object_store: Any = None, load_weights_only: bool = False,
                    strict_model_weights: bool = True, progress_bar: bool = True, ignore_keys: Ignore = None,
                    exclude_algorithms: Optional[list[str]] = None, algorithm_passes: Optional[list[Any]] = None,
                    **how: Any) -> Optional[list[dict[str, Any]]]:
    """Collective over all ranks. Load a checkpoint into @state as composer.utils.checkpoint.load_checkpoint() does, and return
    the states of random generators by rank (None: there are none, or load_weights_only).

    path: a file, or with sharded state dicts of FSDP a directory. {run_name}, {rank}, {local_rank} and {node_rank} in it are
    those of rank 0. A name that ends with ".symlink", or has a neighbour with that ending, is followed. Of s3://, gs:// and
    hf://, and of object stores of S3 and of Google, only the bytes that are needed are read, once a job, and nothing is
    downloaded; from other stores Composer downloads the file, or all files of a sharded directory to each node. progress_bar
    counts these bytes. If state dicts are not sharded, any checkpoint with Composer's keys will do, even if it is sharded.
    ignore_keys: globs over paths ("state/model/layer1.*") whose bytes are not read, or a function that changes the dict.
    how: io, exchange, threads, staging, timeout, cache.

    FileNotFoundError, ValueError, RuntimeError as Composer's. DcpfsError: it cannot be read, or holds an object that only
    unpickling could make again; ignore_keys can leave that out.
    """
    path = partial_format(path, run_name=state.run_name)
    url = _together(lambda: url_of(path, object_store, state.fsdp_sharded_state_dict_enabled))
    if url is not None:
        how = {"progress": bytes_bar(url) if progress_bar else None, **how}
    if state.fsdp_sharded_state_dict_enabled:
        if state.fsdp_config is None:
            raise ValueError("Loading a sharded checkpoint requires passing an FSDP config to Trainer.")
        with contextlib.nullcontext(url) if url is not None else _directory(path, object_store) as folder:
            node = None
            if object_store is not None and url is None:  # each node has files of its own
                how = {"cache": "", **how}
                node = _node()
            rng = _sharded(folder, node, state, logger, load_weights_only, strict_model_weights, ignore_keys,
                           exclude_algorithms, algorithm_passes, how)
    else:
        with contextlib.nullcontext(url) if url is not None else _fetched(path, object_store, progress_bar) as file:
            known = _together(lambda: (file,) if url is not None else _known(file))
            ranks = None
            if len(set(dist.all_gather_object(known))) > 1:  # each node has a file of its own
                ranks, how = _node(), {"cache": "", **how}
            tree_ = _together(lambda: _monolithic(file, ranks, state, load_weights_only, ignore_keys, how))
            algorithms = {"exclude_algorithms": exclude_algorithms, "algorithm_passes": algorithm_passes}
            if load_weights_only:
                state.load_model_state(tree_["state"], logger, strict=strict_model_weights, **algorithms)
            else:
                state.load_state_dict(tree_["state"], logger, **algorithms)
            rng = None if load_weights_only else tree_.get("rng")
    _same_step(state)
    return rng


def _same_step(state: Any) -> None:
    step = state.timestamp.batch.value
    ends = [state.device.tensor_to_device(torch.tensor(step, dtype=torch.int64)) for _ in range(2)]
    for end, which in zip(ends, ("MAX", "MIN")):
        dist.all_reduce(end, reduce_operation=which)
    if ends[0].item() != ends[1].item():
        raise RuntimeError(f"Timestamp mismatch error: batch to resume from {step} is not the same on all ranks. Load a checkpoint "
                           "that all ranks have saved: autoresume=False, and load_path set to it, with its {rank}.")


def _known(file: str) -> tuple[str, int, int]:
    st = os.stat(file)
    return file, st.st_size, st.st_mtime_ns


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A new directory on each node, shared by its ranks."""
    with tempfile.TemporaryDirectory() if dist.get_local_rank() == 0 else contextlib.nullcontext("") as mine:
        try:
            yield dist.all_gather_object(mine)[dist.get_global_rank() - dist.get_local_rank()]
        finally:
            dist.barrier()


def _told(failure: Optional[Exception]) -> Optional[Exception]:
    """The failure in a class that other ranks can make."""
    try:
        pickle.loads(pickle.dumps(failure))
        return failure
    except Exception:
        return RuntimeError(f"{type(failure).__name__}: {failure}")


def _together(work: Callable[[], T]) -> T:
    """Call it; a failure on one rank is raised on all."""
    failure: Optional[Exception] = None
    try:
        done = work()
    except Exception as e:
        failure = e
    _agree(failure)
    return done


def _agree(failure: Optional[Exception]) -> None:
    """Collective. If any rank has a failure, all raise: ranks with a failure their own, others the first; among several ranks it names the
    rank."""
    told = dist.all_gather_object(_told(failure))
    rank = next((r for r, e in enumerate(told) if e is not None), -1)
    if failure is not None and len(told) == 1:
        raise failure
    if failure is not None:
        raise as_own(failure, dist.get_global_rank()) from failure
    if rank >= 0:
        raise as_error(told[rank], rank)


def _node() -> Any:
    """Collective. A process group of the ranks of this node."""
    return torch.distributed.new_subgroups(dist.get_local_world_size())[0]


def _local(path: str) -> str:
    path = os.path.realpath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{shown(str(path))} not found!")
    if not os.path.isdir(path):
        raise ValueError(f"load_path must be a directory when using sharded state dict. Got {shown(str(path))}")
    return path


def _files(metadata: str) -> set[str]:
    """Names of the files of a sharded checkpoint; the pickle with the names is not executed."""
    with open(metadata, "rb") as f:
        return {word for _, word, _ in pickletools.genops(f) if isinstance(word, str) and re.fullmatch(r"[^/]+\.distcp", word)}


@contextlib.contextmanager
def _directory(path: str, object_store: Any) -> Iterator[str]:
    """The local directory of @path: itself, or its files as the ranks of each node have downloaded them."""
    if object_store is None:
        yield _together(lambda: _local(path))
        return
    if path.endswith(".symlink"):
        path = _together(lambda: extract_path_from_symlink(path, object_store=object_store))
    with _folder() as folder:
        def download(names: list[str]) -> None:
            for name in names:
                download_object_or_file(os.path.join(path, name), os.path.join(folder, name), object_store)

        _together(lambda: download([".metadata"] if dist.get_local_rank() == 0 else []))
        names = _together(lambda: _files(os.path.join(folder, ".metadata")))
        _together(lambda: download(sorted(names)[dist.get_local_rank()::dist.get_local_world_size()]))
        yield folder


@contextlib.contextmanager
def _fetched(path: str, object_store: Any, progress_bar: bool) -> Iterator[str]:
    """The local file of @path: the file itself, or one that each node has downloaded."""
    path = path.format(rank=0, local_rank=0, node_rank=0)
    with _folder() as folder:
        place, signal = os.path.join(folder, os.path.basename(path.rstrip("/"))), os.path.join(folder, ".done")
        failure: Optional[Exception] = None
        if dist.get_local_rank() == 0:
            try:
                get_file(path, place, object_store=object_store, progress_bar=progress_bar)
            except Exception as e:
                failure = e
            open(signal, "wb").close()
        with dist.local_rank_zero_download_and_wait(signal):
            _agree(failure)
        yield os.path.realpath(place)


def _monolithic(file: str, ranks: Any, state: Any, weights_only: bool, ignore_keys: Ignore, how: dict[str, Any]) -> dict[str, Any]:
    """The result of torch.load(), without ignored and unneeded values; {"state": ...} at least. @ranks, a process group (None: all), read
    the file together."""
    with Checkpoint(file, comm=group(ranks), **how) as ck:
        with ck.together():
            nodes = tree.skeleton(ck, lambda key: leaf(ck, key))
        if callable(ignore_keys):
            nodes = ours.read(ck, nodes)
        with ck.together():
            if ignore_keys:
                (ignore_keys if callable(ignore_keys) else glob_filter(ignore_keys))(nodes)
            nodes["state"] = nodes.get("state", {})
            if weights_only:
                nodes = {"state": {k: v for k, v in nodes["state"].items() if k in ("model", "algorithms", "is_model_ddp")}}
            if state.load_monolith_rank0_only and dist.get_global_rank() != 0:
                nodes["state"] |= {k: None for k in ("model", "optimizers") if k in nodes["state"]}
            _check(nodes["state"])
        return nodes if callable(ignore_keys) else dict(ours.read(ck, nodes))


def _look(path: str, how: dict[str, Any]) -> tuple[list[tuple[str, ...]], dict[str, tuple[int, ...]]]:
    """Paths of all keys, and shapes of the states of random generators of CUDA by their ranks."""
    with Checkpoint(path, **how) as ck:
        words = [ck.path(key) for keys in (ck, ck.objects) for key in keys]
        return words, {w[1]: ck[f"rng.{w[1]}.cuda"].shape for w in words if w[0] == "rng" and w[2:] == ("cuda",)}


def _sharded(path: str, ranks: Any, state: Any, logger: Any, weights_only: bool, strict: bool, ignore_keys: Ignore,
             exclude_algorithms: Optional[list[str]], algorithm_passes: Optional[list[Any]],
             how: dict[str, Any]) -> Optional[list[dict[str, Any]]]:
    """From the directory @path; @ranks, a process group (None: all), load its tensors together."""
    words, seeds = _together(lambda: _look(path, how))
    at_root = any(w[0] == "optimizers" for w in words)
    wanted: dict[str, Any] = {"state": {"model": state.get_model_state_dict()}} if weights_only else {"state": state.state_dict()}
    if not weights_only:
        if at_root:  # before Composer 0.23
            wanted["state"].pop("optimizers", None)
        wanted["rng"] = reproducibility.get_rng_state()[:len({w[1] for w in words if w[0] == "rng" and len(w) == 3})]
        for i, one in enumerate(wanted["rng"]):
            if "cuda" in one and tuple(one["cuda"].shape) != seeds.get(str(i)):  # torch 2.1 made it shorter
                one["cuda"] = torch.zeros(seeds.get(str(i), ()), dtype=torch.uint8)
    if ignore_keys:
        (ignore_keys if callable(ignore_keys) else glob_filter(ignore_keys))(wanted)
        wanted["state"] = wanted.get("state", {})
    reader = Reader(path, **how)
    with torch.no_grad():
        if state.fsdp_config.load_planner is not None:
            dist_cp_load(wanted, reader, state.fsdp_config.load_planner)
        else:
            filled = ours.load_state_dict(wanted, path, process_group=ranks, strict=False, **how)
            # which torch 2.7 added
            wrong = [why for key, why in filled.missing.items() if not key.endswith(".decoupled_weight_decay")]
            if wrong:
                raise DcpfsError(errno.ENOENT, wrong[0] + (f" (and {len(wrong) - 1} more keys cannot be had)" if len(wrong) > 1 else ""))
        state.load_state_dict(wanted["state"], logger, strict=strict, exclude_algorithms=exclude_algorithms,
                              algorithm_passes=algorithm_passes)
        if at_root and not weights_only:
            from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict

            state._legacy_load_optim_state(load_sharded_optimizer_state_dict(
                model_state_dict=state.state_dict()["model"], optimizer_key="optimizers", storage_reader=reader))
    return wanted.get("rng")


def _check(nodes: dict[str, Any]) -> None:
    """DcpfsError: an object was not restored."""
    for attribute, value in nodes.items():
        for name, one in value.items() if isinstance(value, dict) else ():
            kind = foreign(one)
            if kind:
                raise DcpfsError(errno.EBADMSG, f"state/{attribute}/{name} has a {kind}, which only unpickling could make again; "
                                 f'ignore_keys=["state/{attribute}/{name}"] leaves it out')
