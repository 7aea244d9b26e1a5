# SPDX-License-Identifier: Apache-2.0
"""SGLang's loading of weights, from any checkpoint that dcpfs reads: no mount, no conversion, no second copy.

    sglang serve /data/llama --load-format dcpfs --model-loader-extra-config '{"source": "/data/run1"}'

The directory that is served has config.json and the tokenizer; it may lack weights. SGLang calls register() in each of its processes, as
it does with every entry point in sglang.srt.plugins. It has no list of loaders to add to, but takes a class as a format.
"""
from __future__ import annotations

import logging
from typing import Any

from . import engine

__all__ = ["register"]
FORMAT = "dcpfs"


def make_loader() -> Any:
    """A loader derived from SGLang's own class."""
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader.loader import DefaultModelLoader

    class Loader(DefaultModelLoader):  # type: ignore[misc]
        def __init__(self, load_config: Any):
            self.how, self.starting = engine.options(load_config.model_loader_extra_config), None
            # SGLang's own loader refuses options and formats that it does not know; its search for files is not used here.
            load_config.load_format, load_config.model_loader_extra_config = LoadFormat.AUTO, {}
            super().__init__(load_config)

        def download_model(self, model_config: Any) -> None:
            """There is nothing to download: bytes are read when they are needed."""

        def _get_weights_iterator(self, source: Any, **how: Any) -> Any:
            if source.model_config is None:  # further files that some models name beside their own
                return super()._get_weights_iterator(source, **how)
            return engine.weights(source.model_or_path, self.how)

        def load_model(self, *, model_config: Any, device_config: Any) -> Any:
            self.starting = model_config
            try:
                return super().load_model(model_config=model_config, device_config=device_config)
            finally:
                self.starting = None

        def load_weights_and_postprocess(self, model: Any, weights: Any, target_device: Any) -> None:
            config = self.starting
            if config is None:  # a running model gets some new weights: the others stay
                super().load_weights_and_postprocess(model, weights, target_device)
                return
            engine.fill(model, config.model_path, self.how, weights, lambda each: self.load_weights_only(model, each, target_device),
                        logging.getLogger("sglang.dcpfs"), config.quantization is not None)
            self.postprocess_weights(model, target_device)

    return Loader


def register() -> None:
    """Tell SGLang of --load-format dcpfs."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import add_load_format_choices

    def as_class(config: Any) -> None:
        """Replace the name, which SGLang's enumeration of formats lacks, by the class before it is looked up."""
        if config.load_format == FORMAT:
            config.load_format = make_loader()

    HookRegistry.register("sglang.srt.configs.load_config.LoadConfig._verify_load_format", as_class, HookType.BEFORE)
    add_load_format_choices([FORMAT])
