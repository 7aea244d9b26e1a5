# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with weights from any checkpoint, under the names that transformers wants; no mount is needed.

    model = dcpfs.transformers.from_checkpoint("Qwen/Qwen3-8B", "/data/run1")
"""
from __future__ import annotations

import errno
import os
from typing import Any, Optional, Union

import transformers

from ._lib import DcpfsError
from .checkpoint import Checkpoint
from .plan import Plan

__all__ = ["from_checkpoint", "state_dict"]
Path = Union[str, os.PathLike[str]]


def state_dict(source: Path, mapping: str = "auto", *, config: Optional[Path] = None, version: Optional[str] = "latest",
               **how: Any) -> dict[str, Any]:
    """Tensors of torch under Hugging Face's keys, without optimizers. Arguments as from_checkpoint(). DcpfsError."""
    with Checkpoint(source, version, rules=mapping, assets=config if config and os.path.isdir(config) else None, **how) as ck:
        plan = Plan(ck)
        for key in ck:
            plan.want(key)
        plan.finish().execute()
        return {part.key: plan.array(part).torch() for part in plan.parts()}


def from_checkpoint(config: Path, source: Path, mapping: str = "auto", *, model_class: Any = None, dtype: Any = "auto",
                    version: Optional[str] = "latest", strict: bool = True, how: Optional[dict[str, Any]] = None, **kwargs: Any) -> Any:
    """A model as from_pretrained() gives it: in evaluation mode, weights tied, with the weights of a checkpoint.

    config: a directory with config.json, or what AutoConfig.from_pretrained() takes. mapping: which rules rename the keys, cut
    and join tensors: "auto", a preset (`dcpfs rules list`) or a file of rules. model_class: None is the first of the config's
    `architectures`. dtype: torch's, or "auto": the config's. strict: a weight of the model that the checkpoint lacks is an
    error; otherwise it is initialized. how: of dcpfs.open. kwargs: of from_pretrained (attn_implementation, device_map).

    DcpfsError: it cannot be read, or weights are missing. ValueError: the config names no class.
    """
    about = transformers.AutoConfig.from_pretrained(os.fspath(config))
    if model_class is None:
        names = about.architectures or []
        if not names or not hasattr(transformers, names[0]):
            raise ValueError(f"{config}: its architectures are {names}; give model_class")
        model_class = getattr(transformers, names[0])
    weights = state_dict(source, mapping, config=config, version=version, **(how or {}))
    model, info = model_class.from_pretrained(None, config=about, state_dict=weights, dtype=dtype, output_loading_info=True, **kwargs)
    missing = sorted(info["missing_keys"])
    if missing and strict:
        raise DcpfsError(errno.ENOENT, f"{source} has no {missing[0]} by the rules {mapping}" +
                         (f" (and {len(missing) - 1} more weights are missing)" if len(missing) > 1 else ""))
    return model
