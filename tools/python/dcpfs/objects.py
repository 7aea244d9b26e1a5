# SPDX-License-Identifier: Apache-2.0
"""Non-tensor state: from the JSON of the library to Python data, and back. No class is imported, nothing is executed.

Lists, tuples, sets, bytes, complex numbers, ranges, dates and dicts with any keys are restored as they were saved; so is plain data of other
classes of the standard library and of numpy (dcpfs.classes; torch.Size is a tuple, torch's dtypes, devices, layouts are their names; in dcpfs.torch
they are torch's). An object of another class becomes a dict with what is known of it, {"$class": "module.Name", "state": ...}, unless
dcpfs.open(classes=) names the class. A tensor inside is {"$tensor": KEY}.
"""
from __future__ import annotations

import base64
import collections
import datetime
import itertools
import json
import math
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from .classes import MADE, REFUSED, Pending, called, has_tensor
from .shown import shown

Makers = Mapping[str, Callable[[Any], Any]]


def number(kind: str) -> Callable[[Any], Any]:
    def make(value: Any) -> Any:
        try:
            import numpy as np
        except ImportError:
            return value
        return np.dtype(kind).type(value)

    return make


# Of {"$class": name, ...}.
CALLED: Makers = {**MADE, "complex": called(complex), "range": called(range), "slice": called(slice),
                  "torch.device": called(lambda *a: ":".join(map(str, a))),
                  **dict.fromkeys(("torch.dtype", "torch.qscheme", "torch.serialization._get_layout"), called(lambda name: name))}
# Of a value whose JSON has the form of another class's.
NAMED: Makers = {
    "tuple": tuple, "torch.Size": tuple, "frozenset": frozenset, "bytearray": bytearray, "collections.OrderedDict": collections.OrderedDict,
    "datetime.timedelta": lambda s: datetime.timedelta(seconds=s), "datetime.datetime": datetime.datetime.fromisoformat,
    "datetime.date": datetime.date.fromisoformat, "datetime.time": datetime.time.fromisoformat,
    **{f"numpy.{kind}": number(kind) for kind in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                                                  "float16", "float32", "float64", "complex64", "complex128")}}


def hashable(value: Any) -> Any:
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def ndarray(value: dict[str, Any]) -> Any:
    try:
        import numpy as np
    except ImportError:
        return {"$ndarray": value}
    data, shape = value["data"], value["shape"]
    if not isinstance(data, bytes):
        return np.array(data, value["dtype"]).reshape(shape)
    return np.frombuffer(data, value["dtype"]).reshape(shape, order="F" if value.get("fortran_order") else "C").copy()


def special(value: dict[str, Any], called: Makers, defer: bool) -> Any:
    """The value of a JSON object whose values are decoded already. defer: a value with tensors in it is Pending."""
    try:
        if "$bytes" in value:
            return base64.b64decode(value["$bytes"])
        if "$float" in value:
            return float(value["$float"])
        if "$dict" in value:
            return {hashable(k): v for k, v in value["$dict"]}
        if "$set" in value:
            return set(map(hashable, value["$set"]))
        if "$ndarray" in value:
            return ndarray(value["$ndarray"])
        make = called.get(value.get("$class", ""))
        if make is None:
            return value
        return Pending(make, value) if defer and has_tensor([*value.values()]) else make(value)
    except (*REFUSED, ImportError):
        return value


def numbered(classes: str) -> Iterator[tuple[int, str]]:
    """(4, "tuple") and so on, of "4:tuple 9"."""
    name = ""
    for word in classes.split():
        at, _, new = word.partition(":")
        name = new or name
        yield int(at), name


def decode(text: str, kind: str, classes: str = "", named: Makers = NAMED, called: Makers = CALLED,
           defer: bool = False) -> Any:
    """The value of an object of the Python class @kind, from its JSON, with the classes of values inside (dcpload_classes())."""
    if not classes:
        return _named(json.loads(text, object_hook=lambda value: special(value, called, defer)), kind, named)
    kinds, count = {**dict(numbered(classes)), 0: kind}, itertools.count()

    def made(node: Any) -> Any:
        kind = kinds.get(next(count), "")
        if isinstance(node, list):
            node = [made(v) for v in node]
        elif isinstance(node, dict):
            node = special({k: made(v) for k, v in node.items()}, called, defer)
        return _named(node, kind, named) if kind else node

    return made(json.loads(text))


def _named(value: Any, kind: str, named: Makers) -> Any:
    try:
        return named[kind](value) if kind in named else value
    except (ArithmeticError, TypeError, ValueError):
        return value


class Encoded(NamedTuple):
    json: str
    kind: str
    classes: str


class _Named(NamedTuple):
    """JSON of a value, and its class, which the JSON does not have."""

    kind: str
    value: Any


def encode(value: Any, key: str) -> Encoded:
    """The input of decode(). TypeError, with @key: it is not plain data."""
    classes, count, last = list[str](), itertools.count(), ""

    def bare(node: Any) -> Any:
        nonlocal last
        at = next(count)
        if isinstance(node, _Named):
            kind, node = node
            if at:
                classes.append(str(at) if kind == last else f"{at}:{kind}")
                last = kind
        if isinstance(node, list):
            return [bare(v) for v in node]
        return {k: bare(v) for k, v in node.items()} if isinstance(node, dict) else node

    return Encoded(json.dumps(bare(_plain(value, key)), allow_nan=False), _class(value), " ".join(classes))


def _plain(value: Any, key: str) -> Any:
    kind = _class(value)
    plain = _json(value, kind, key)
    return _Named(kind, plain) if kind in NAMED else plain


def _class(value: Any) -> str:
    kind = type(value)
    if kind.__name__ == "bool_":
        return "numpy.bool"  # as numpy 2 has it
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _json(value: Any, kind: str, key: str) -> Any:
    """@value as json.dumps() takes it, but for what is _Named inside."""
    def each(values: Any) -> list[Any]:
        return [_plain(v, key) for v in values]

    if value is None or kind in ("bool", "int", "str"):
        return value
    if kind == "float":
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind in ("list", "tuple", "torch.Size"):
        return each(value)
    if kind in ("dict", "collections.OrderedDict"):
        words = all(type(k) is str and not k.startswith("$") for k in value)
        return {k: _plain(v, key) for k, v in value.items()} if words else {"$dict": [each(kv) for kv in value.items()]}
    if kind in ("bytes", "bytearray"):
        return {"$bytes": base64.b64encode(value).decode()}
    if kind in ("set", "frozenset"):
        return {"$set": each(value)}
    if kind in ("complex", "range", "slice"):
        parts = {"complex": ("real", "imag")}.get(kind, ("start", "stop", "step"))
        return {"$class": kind, "args": each(getattr(value, name) for name in parts)}
    if kind == "datetime.timedelta":
        return value.total_seconds()
    if kind in ("datetime.datetime", "datetime.date", "datetime.time"):
        return value.isoformat()
    if kind == "torch.dtype":
        return {"$class": kind, "args": [str(value).removeprefix("torch.")]}
    if kind == "torch.device":
        return {"$class": kind, "args": [value.type] + ([] if value.index is None else [value.index])}
    if kind.startswith("numpy.") and hasattr(value, "item") and not getattr(value, "shape", (1,)):
        return _plain(value.item(), key)
    if kind == "numpy.ndarray" and value.dtype.kind in "biufc":
        raw = value.astype(value.dtype.newbyteorder("<")).tobytes()
        return {"$ndarray": {"dtype": value.dtype.newbyteorder("<").str, "shape": list(value.shape),
                             "data": {"$bytes": base64.b64encode(raw).decode()}}}
    raise TypeError(f"{shown(key)}: an object of class {shown(kind)} is not plain data, which a checkpoint can hold without pickling code")
