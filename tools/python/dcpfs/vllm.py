# SPDX-License-Identifier: Apache-2.0
"""vLLM's own loading of weights, from any checkpoint that dcpfs reads: no mount, no conversion, no second copy.

    vllm serve /data/llama --load-format dcpfs --model-loader-extra-config '{"source": "/data/run1"}'

The directory that is served has config.json and the tokenizer; it may lack weights. Installing dcpfs registers the format:
vLLM calls register() in each of its processes, as it does with every entry point in vllm.general_plugins.
"""
from __future__ import annotations

import logging
from typing import Any

from . import engine

__all__ = ["register"]


def register() -> None:
    """Tell vLLM of --load-format dcpfs."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class Loader(BaseModelLoader):  # type: ignore[misc]
        def __init__(self, load_config: Any):
            super().__init__(load_config)
            self.how = engine.options(load_config.model_loader_extra_config)

        def download_model(self, model_config: Any) -> None:
            """There is nothing to download: bytes are read when they are needed."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            each = engine.weights(model_config.model, self.how)
            engine.fill(model, model_config.model, self.how, each, model.load_weights, logging.getLogger("vllm.dcpfs"),
                        model_config.quantization is not None)

    register_model_loader("dcpfs")(Loader)
