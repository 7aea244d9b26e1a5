# SPDX-License-Identifier: Apache-2.0
"""Objects from their description in a pickle, {"$class": "module.Name", "args": [...], "state": ...}, with values decoded already.

MADE: plain data of the standard library and of numpy, by constructors of those alone. makers(): classes that the caller names. Makers raise
ArithmeticError, LookupError, TypeError or ValueError if a description does not fit their class.
"""
from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import errno
import fractions
import math
import pathlib
import re
import types
import uuid
from typing import Any, Callable, Iterable, Mapping, Union

from ._lib import DcpfsError

Said = dict[str, Any]
Makers = Mapping[str, Callable[[Said], Any]]
Classes = Union[Iterable[type], Mapping[str, type]]
REFUSED = (ArithmeticError, LookupError, TypeError, ValueError)


def said(value: Said, *names: str) -> list[Any]:
    """The parts of a description. ValueError: it has other parts, too."""
    if not value.keys() <= {"$class", *names}:
        raise ValueError(f"more than {names}")
    return [value.get(name) for name in names]


def called(make: Callable[..., Any], *kinds: Any) -> Callable[[Said], Any]:
    """A maker that calls @make with the arguments; kinds: their types, if given."""
    def of(value: Said) -> Any:
        args = said(value, "args")[0] or []
        if kinds and not all(isinstance(arg, kinds) for arg in args):
            raise TypeError(f"{args} are not {kinds}")
        return make(*args)

    return of


def _fraction(*args: Any) -> fractions.Fraction:
    if len(args) == 1 and not re.fullmatch(r"-?\d+(/\d+)?", args[0]):  # "1e999999999" would take for ever
        raise ValueError(args[0])
    return fractions.Fraction(*args)


def _deque(value: Said) -> Any:
    args, items = said(value, "args", "items")
    before, most = args or ([], None)
    return collections.deque([*before, *(items or [])], most)


FACTORIES = {kind.__name__: kind for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)} | {
    f"collections.{kind.__name__}": kind for kind in (collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque)}


def mapping(name: str, items: dict[Any, Any]) -> dict[Any, Any]:
    """A mapping of the class @name, such as "collections.defaultdict:list" with the maker of its values; @items itself if the class is
    another."""
    kind, _, factory = name.partition(":")
    if kind == "collections.OrderedDict":
        return collections.OrderedDict(items)
    if kind == "collections.Counter":
        return collections.Counter[Any](items)
    return collections.defaultdict(FACTORIES.get(factory), items) if kind == "collections.defaultdict" and (factory in FACTORIES or not factory) else items


def _ordered(value: Said) -> Any:
    state, pairs = said(value, "state", "dict")
    made = collections.OrderedDict[Any, Any](pairs or {})
    vars(made).update(state or {})
    return made


def _counter(value: Said) -> Any:
    args, pairs = said(value, "args", "dict")
    return mapping("collections.Counter", {**(args or [{}])[0], **(pairs or {})})


def _defaultdict(value: Said) -> Any:
    args, pairs = said(value, "args", "dict")
    names = [name for name in FACTORIES if args[0] == {"$class": "type", "args": [name]}] if args and args[0] is not None else [""]
    return mapping(f"collections.defaultdict:{names[0]}", pairs or {})


def _uuid(value: Said) -> uuid.UUID:
    return uuid.UUID(int=said(value, "state")[0]["int"])


def _namespace(kind: Any) -> Callable[[Said], Any]:
    return lambda value: kind(**said(value, "args", "state")[1])


def _path(name: str) -> Any:
    kind = getattr(pathlib, name)
    try:
        kind()
        return kind
    except NotImplementedError:  # of the other system
        return getattr(pathlib, f"Pure{name}")


# ---- numpy ----


def _type(code: str) -> Any:
    import numpy as np

    if not re.fullmatch(r"[?biufcSUVmMO]\d{0,9}", code) or np.dtype(code).char in "gG":  # long doubles differ between machines
        raise TypeError(code)
    return np.dtype(code)


def _dtype(value: Said) -> Any:
    import numpy as np

    args, state = said(value, "args", "state")
    kind, parts = _type(args[0]), [*(state or []), *[None] * 9][:9]
    _, order, within, names, fields, size, _, flags, more = parts
    if names:
        columns = [fields[name] for name in names]
        return np.dtype({"names": list(names), "formats": [c[0] for c in columns], "offsets": [c[1] for c in columns], "itemsize": size},
                        align=bool(flags & 0x80))
    if within:
        return np.dtype((within[0], tuple(within[1])))
    if kind.kind in "mM" and more:
        unit, number = more[1][0].decode(), more[1][1]
        if not re.fullmatch("[A-Za-z]{1,7}", unit):
            raise ValueError(unit)
        kind = np.dtype(kind.char + "8" if unit == "generic" else f"{kind.char}8[{int(number)}{unit}]")
    return kind.newbyteorder(order) if order in ("<", ">") else kind


def _plain(kind: Any, shape: tuple[int, ...], data: bytes) -> None:
    """TypeError: arrays of this type are not plain data. ValueError: @data is not an array of this shape."""
    import numpy as np

    if not isinstance(kind, np.dtype) or kind.hasobject:
        raise TypeError(f"{kind}")
    if len(data) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{len(data)} bytes for {kind}{list(shape)}")


def _array(value: Said) -> Any:
    import numpy as np

    args, state = said(value, "args", "state")
    _, shape, kind, fortran, data = state
    if args[0] != {"$class": "type", "args": ["numpy.ndarray"]}:
        raise TypeError(f"{args[0]}")
    order: Any = "F" if fortran else "C"
    if kind == np.dtype(object) and isinstance(data, list) and not any(map(foreign, data)):
        made = np.empty(len(data), object)
        for i, one in enumerate(data):
            made[i] = one
        return made.reshape(tuple(shape), order=order)
    _plain(kind, tuple(shape), data)
    return np.ndarray(tuple(shape), kind, data, order=order).copy(order)


def _buffer(value: Said) -> Any:
    """An array of protocol 5."""
    import numpy as np

    data, kind, shape, order = said(value, "args")[0]
    _plain(kind, tuple(shape), data)
    return np.ndarray(tuple(shape), kind, data, order=order).copy(order)


def _scalar(value: Said) -> Any:
    import numpy as np

    kind, data = said(value, "args")[0]
    _plain(kind, (), data)
    made = np.ndarray((), kind, data)[()]
    return made.copy() if isinstance(made, np.void) else made


PATHS = ("PurePosixPath", "PosixPath", "PureWindowsPath", "WindowsPath")
MADE: Makers = {
    "decimal.Decimal": called(decimal.Decimal, str), "fractions.Fraction": called(_fraction, int, str), "uuid.UUID": _uuid,
    "collections.deque": _deque, "collections.OrderedDict": _ordered, "collections.Counter": _counter, "collections.defaultdict": _defaultdict, "datetime.timezone": called(datetime.timezone, datetime.timedelta, str),
    "types.SimpleNamespace": _namespace(types.SimpleNamespace), "argparse.Namespace": _namespace(argparse.Namespace),
    **{f"{module}.{name}": called(_path(name), str) for module in ("pathlib", "pathlib._local") for name in PATHS},
    "numpy.dtype": _dtype,
    **{f"numpy.{core}.numeric._frombuffer": _buffer for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.{name}": make for core in ("core", "_core") for name, make in (("_reconstruct", _array), ("scalar", _scalar))},
}


# ---- the caller's ----


def makers(classes: Classes) -> Makers:
    """Makers of the classes that the caller allows, by their own or by given names. TypeError: an entry is no class."""
    named = classes if isinstance(classes, Mapping) else {f"{c.__module__}.{c.__qualname__}": c for c in classes if _is_class(c)}
    return {name: _maker(name, kind) for name, kind in named.items() if _is_class(kind)}


def _is_class(kind: Any) -> bool:
    if isinstance(kind, type):
        return True
    raise TypeError(f"classes= takes classes, or a dict from names to classes; {kind!r} is none")


def _maker(name: str, kind: type) -> Callable[[Said], Any]:
    def of(value: Said) -> Any:
        try:
            return _instance(kind, value)
        except Exception as e:  # whatever their code does
            raise DcpfsError(errno.EBADMSG, f"{name} cannot be made of what is stored: {type(e).__name__}: {e}") from e

    return of


def _member(kind: Any, by: Any) -> Any:
    """The member of an enumeration: pickles name it by value, some by name."""
    named = kind.__members__.get(by) if isinstance(by, str) else None
    try:
        valued = kind(by)
    except ValueError:
        if named is None:
            raise
        return named
    if named is not None and named is not valued:
        raise ValueError(f"{by!r} is the name of one member and the value of another")
    return valued


def _of_base(kind: Any, args: Any) -> Any:
    """The items of a namedtuple of protocols 0 and 1, which has the class tuple. None: it is not a namedtuple."""
    stored = isinstance(args, (list, tuple)) and len(args) == 2 and args[0] == {"$class": "type", "args": ["tuple"]}
    return tuple.__new__(kind, args[1]) if stored and issubclass(kind, tuple) else None


def _instance(kind: Any, value: Said) -> Any:
    """As unpickling would: call the class with its arguments, or leave it uninitialized without arguments; then set its state."""
    args, kwargs, state, items, pairs = said(value, "args", "kwargs", "state", "items", "dict")
    if any(c.__module__ == "torch.nn.modules.module" for c in kind.__mro__):
        raise TypeError("it is a torch.nn.Module: make one, and load its state_dict()")
    if issubclass(kind, enum.Enum):
        return _member(kind, args[0])
    made = _of_base(kind, args)
    if made is None:
        made = kind.__new__(kind, **(kwargs or {})) if args is None else kind(*args, **(kwargs or {}))
    if state is not None and hasattr(made, "__setstate__"):
        made.__setstate__(state)
    elif state is not None:
        own, slots = state if isinstance(state, (list, tuple)) and len(state) == 2 else (state, None)
        vars(made).update(own or {}) if own else None
        for name, one in (slots or {}).items():
            setattr(made, name, one)
    if items:
        made.extend(items)
    for key, one in (pairs or {}).items():
        made[key] = one
    return made


# ---- what is not made yet ----


class Pending:
    """An object that is made when its tensors are loaded."""

    def __init__(self, make: Callable[[Said], Any], value: Said) -> None:
        self.make, self.value = make, value

    def made(self, value: Said) -> Any:
        try:
            return self.make(value)
        except REFUSED:
            return value


def has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() == {"$tensor"} or any(map(has_tensor, value.values()))
    return isinstance(value, Pending) or isinstance(value, (list, tuple)) and any(map(has_tensor, value))


def foreign(value: Any) -> str:
    """The class of the first object inside that was not restored; "": all were restored."""
    if isinstance(value, Pending):
        return foreign([*value.value.values()])
    if isinstance(value, dict):
        return str(value["$class"]) if "$class" in value else foreign([*value.values()])
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        value = [*vars(value).values()]
    return next((f for v in value if (f := foreign(v))), "") if isinstance(value, (list, tuple, collections.deque)) else ""
