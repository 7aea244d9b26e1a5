# SPDX-License-Identifier: Apache-2.0
"""Non-tensor state: from the JSON of the library to Python data, and back. No class is imported, nothing is executed.

Tuples, sets, bytes, complex numbers, ranges, dates and dicts with any keys are restored; so are numpy arrays if numpy is
installed. torch's dtypes and devices become their names. An object of another class becomes a dict with what is known of it:
{"$class": "module.Name", "state": ...}. A tensor inside is {"$tensor": KEY}.
"""
from __future__ import annotations

import base64
import datetime
import json
import math
from typing import Any, Callable

CLASSES: dict[str, Callable[..., Any]] = {
    "complex": complex, "range": range, "slice": slice, "torch.device": lambda *a: ":".join(map(str, a)),
    "torch.dtype": lambda name: name}
WHOLE: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple, "torch.Size": tuple, "frozenset": frozenset, "bytearray": bytearray,
    "datetime.timedelta": lambda s: datetime.timedelta(seconds=s), "datetime.datetime": datetime.datetime.fromisoformat,
    "datetime.date": datetime.date.fromisoformat, "datetime.time": datetime.time.fromisoformat}


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


def special(value: dict[str, Any]) -> Any:
    """What a JSON object stands for; its values are decoded already."""
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
    make = CLASSES.get(value.get("$class", ""))
    if make and value.keys() <= {"$class", "args"}:
        return make(*value.get("args", ()))
    return value


def decode(text: str, kind: str) -> Any:
    """The value of an object of the Python class @kind, from its JSON."""
    value = json.loads(text, object_hook=special)
    try:
        return WHOLE[kind](value) if kind in WHOLE else value
    except (TypeError, ValueError):
        return value


def foreign(value: Any) -> str:
    """The class of the first object inside that was not restored; "": all were."""
    if isinstance(value, dict):
        if "$class" in value:
            return str(value["$class"])
        return next((f for v in value.values() if (f := foreign(v))), "")
    return next((f for v in value if (f := foreign(v))), "") if isinstance(value, (list, tuple)) else ""


def encode(value: Any, key: str) -> tuple[str, str]:
    """JSON of @value, and the name of its class, which decode() takes. TypeError, with @key: it is no plain data."""
    return json.dumps(_plain(value, key), allow_nan=False), _class(value)


def _class(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any, key: str) -> Any:
    """@value as json.dumps() takes it."""
    def each(values: Any) -> list[Any]:
        return [_plain(v, key) for v in values]

    kind = _class(value)
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
    raise TypeError(f"{key}: a {kind} is no plain data, which a checkpoint can hold without pickling code")
