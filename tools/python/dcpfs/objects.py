# SPDX-License-Identifier: Apache-2.0
"""Non-tensor state: from the JSON of the library to Python data. No class is imported, nothing is executed.

Tuples, sets, bytes, complex numbers, ranges, dates and dicts with any keys are restored; so are numpy arrays if numpy is
installed. torch's dtypes and devices become their names. An object of another class becomes a dict with what is known of it:
{"$class": "module.Name", "state": ...}. A tensor inside is {"$tensor": KEY}.
"""
from __future__ import annotations

import base64
import datetime
import json
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
