# SPDX-License-Identifier: Apache-2.0
"""Shared parts of loading into vLLM and SGLang: options, weights that are read on use, and a check that a model got all of them."""
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from .checkpoint import Checkpoint

__all__ = ["fill", "options", "weights"]
OPTIONS = {"source": None, "version": "latest", "rules": "auto", "part": None, "io": "auto", "partial": False}


def options(extra: Any) -> dict[str, Any]:
    """The options of --model-loader-extra-config, completed. ValueError: an unknown name."""
    extra = dict(extra or {})
    unknown = sorted(set(extra) - set(OPTIONS))
    if unknown:
        raise ValueError(f"--model-loader-extra-config: {', '.join(unknown)} is not one of {', '.join(OPTIONS)}")
    return {**OPTIONS, **extra}


def weights(about: str, how: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each weight under Hugging Face's name. It is read when the engine uses it, and only the part that the engine cuts out for its rank.
    @about: the directory of the configuration, which is the source, too, unless @how names a source."""
    from .lazy import Lazy

    # Closed with the last of them: engines may keep some, to use them when all have come.
    ck = Checkpoint(how["source"] or about, how["version"], rules=how["rules"], part=how["part"], io=how["io"], assets=about)
    for key in ck:
        yield key, Lazy(ck[key])


class Marks:
    """Marks in the empty parameters of a model, and the elements that still have them after the engine has loaded. Engines join weights (q,
    k and v; experts) and do not say which parts came, so each element is marked with a NaN that no arithmetic makes. Integers and
    numbers of one byte have no such NaN: the engine has to name the parameters of such numbers that it loaded, if it names any."""

    BITS = {2: ("int16", 0x7FA5), 4: ("int32", 0x7FA5A5A5), 8: ("int64", 0x7FF5A5A5A5A5A5A5)}

    def __init__(self, model: Any):
        self.model, self.vectors = model, {}
        for name, _, bits, mark in self.bits():
            if bits.dim() < 2:  # which engines make with useful values, as those of a norm
                self.vectors[name] = bits.clone()
            bits.fill_(mark)

    def bits(self) -> Iterator[tuple[str, Any, Any, int]]:
        """Each parameter that can be marked: its name, itself, its elements as integers, the mark."""
        import torch

        for name, of in self.model.named_parameters():
            if of.is_floating_point() and of.itemsize in self.BITS and not of.is_meta and type(of.data) is torch.Tensor:
                kind, mark = self.BITS[of.itemsize]
                yield name, of, of.data.view(getattr(torch, kind)), mark

    def left(self, taken: Any) -> dict[str, str]:
        """Parameters, with a count of elements, that no weight came for. They become zero; a vector gets the engine's values back. @taken:
        names of loaded parameters, or something else if the engine names none."""
        found, marked = {}, set()
        for name, of, bits, mark in self.bits():
            marked.add(name)
            missing = bits == mark
            if n := int(missing.sum()):
                found[name] = f"{n} of its {of.numel()} elements are missing"
                before = self.vectors.get(name)
                bits.masked_fill_(missing, 0) if before is None else bits.copy_(before.where(missing, bits))
        if isinstance(taken, (set, frozenset)):
            found |= {name: "nothing came for it" for name, _ in self.model.named_parameters() if name not in marked and name not in taken}
        return found


def fill(model: Any, about: str, how: dict[str, Any], each: Iterator[tuple[str, Any]], load: Callable[[Iterator[tuple[str, Any]]], Any],
         log: logging.Logger, quantized: bool) -> None:
    """Have @load take @each of weights(@about, @how), and check that @model is filled. @quantized: the engine makes some weights itself, so
    there is no check. ValueError: no weight came for an element."""
    read, began, given = [0], time.perf_counter(), []

    def count(nbytes: int) -> None:
        read[0] += nbytes

    def counted() -> Iterator[tuple[str, Any]]:
        for name, weight in each:
            given.append(name)
            yield name, weight.counted(count) if hasattr(weight, "counted") else weight

    marks = None if quantized else Marks(model)
    taken = load(counted())
    log.info("dcpfs: this rank read %d bytes of weights in %.2f s", read[0], time.perf_counter() - began)
    missing = marks.left(taken) if marks else {}
    if not missing:
        return
    name, much = next(iter(missing.items()))
    beside = [n for n in given if n.startswith(".".join(name.split(".")[:-2]) + ".")]
    said = (f"{how['source'] or about} does not fill {name} by the rules {how['rules']}: {much}"
            f" (beside it came {', '.join(beside[:8]) or 'nothing'}; in all {len(missing)} weights lack something)")
    if not how["partial"]:
        raise ValueError(f'{said}; "partial": true in --model-loader-extra-config goes on with zeros')
    log.warning("dcpfs: %s", said)
