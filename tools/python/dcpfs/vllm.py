# SPDX-License-Identifier: Apache-2.0
"""vLLM's own loading of weights, from any checkpoint that dcpfs reads: no mount, no conversion, no second copy.

    vllm serve /data/llama --load-format dcpfs --model-loader-extra-config '{"source": "/data/run1"}'

The directory that is served has config.json and the tokenizer; it may lack weights. Installing dcpfs registers the format:
vLLM calls register() in each of its processes, as it does with every entry point in vllm.general_plugins.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Optional

from .checkpoint import Checkpoint

__all__ = ["register"]
OPTIONS = {"source": None, "version": "latest", "rules": "auto", "part": None, "io": "auto", "partial": False}


def options(extra: Any) -> dict[str, Any]:
    """What --model-loader-extra-config says, completed. ValueError: a name that is not known."""
    extra = dict(extra or {})
    unknown = sorted(set(extra) - set(OPTIONS))
    if unknown:
        raise ValueError(f"--model-loader-extra-config: {', '.join(unknown)} is not one of {', '.join(OPTIONS)}")
    return {**OPTIONS, **extra}


def weights(model: str, how: dict[str, Any], count: Optional[Callable[[int], None]] = None) -> Iterator[tuple[str, Any]]:
    """Each weight under Hugging Face's name. It is read when the engine uses it, and no more of it than the engine cuts out for its
    rank. @model: the directory of the configuration; @count: told how many bytes are read."""
    from .lazy import Lazy

    # Closed with the last of them: engines may keep some, to use them when all have come.
    ck = Checkpoint(how["source"] or model, how["version"], rules=how["rules"], part=how["part"], io=how["io"], assets=model)
    for key in ck:
        yield key, Lazy(ck[key], count=count)


def torn(names: set[str], packed: dict[str, list[str]]) -> list[str]:
    """Names that are missing beside others which an engine keeps with them as one weight: k_proj beside q_proj and v_proj.
    @packed: the name of each joined module, and those of its parts."""
    parts = {part: together for together in packed.values() for part in together if len(together) > 1}
    missing = set()
    for name in names:
        words = name.split(".")
        for i, word in enumerate(words):
            others = (".".join((*words[:i], other, *words[i + 1:])) for other in parts.get(word, ()))
            missing.update(other for other in others if other not in names)
    return sorted(missing)


def register() -> None:
    """Tell vLLM of --load-format dcpfs."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    log = logging.getLogger("vllm.dcpfs")

    class Loader(BaseModelLoader):  # type: ignore[misc]
        def __init__(self, load_config: Any):
            super().__init__(load_config)
            self.how = options(load_config.model_loader_extra_config)

        def download_model(self, model_config: Any) -> None:
            """There is nothing to download: what is needed is read when it is."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            wanted = {name for name, _ in model.named_parameters()}
            read, began = [0], time.perf_counter()

            def count(nbytes: int) -> None:
                read[0] += nbytes

            given: set[str] = set()

            def each() -> Iterator[tuple[str, Any]]:
                for name, weight in weights(model_config.model, self.how, count):
                    given.add(name)
                    yield name, weight

            loaded = model.load_weights(each())
            log.info("dcpfs: this rank read %d bytes of weights in %.2f s", read[0], time.perf_counter() - began)
            # A quantized model makes some of its weights itself; others say what they took, but not of which parts it was joined.
            missing = torn(given, getattr(model, "packed_modules_mapping", None) or {})
            if loaded is not None and model_config.quantization is None:
                missing += sorted(wanted - loaded)
            if missing:
                said = (f"{self.how['source'] or model_config.model} has no {missing[0]} by the rules {self.how['rules']}"
                        f" (in all {len(missing)} weights are missing)")
                if not self.how["partial"]:
                    raise ValueError(f'{said}; "partial": true in --model-loader-extra-config goes on without')
                log.warning("dcpfs: %s", said)

    register_model_loader("dcpfs")(Loader)
