# SPDX-License-Identifier: Apache-2.0
"""All of a checkpoint as the nested dicts and lists that were saved."""
from __future__ import annotations

import ast
import copy
import re
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

from .checkpoint import Checkpoint
from .classes import MADE, REFUSED, Pending, mapping

TEXT, PLACE, CLASS = "\t", "\n", "\r\n"  # no path begins with one of these
QUOTED = re.compile("['\"]")  # without these, text that is no literal has no mark TEXT
MISSING = 1 << 16  # items of a list that may be absent: they become None


class Leaf(NamedTuple):
    """Stands for a tensor until it is read."""

    key: str


class Node(dict[Any, Any]):
    """A container that the checkpoint stores by its items, by the components of their paths; a dict that is a leaf is not a Node."""


Classes = dict[tuple[str, ...], str]


def classes(ck: Checkpoint) -> Classes:
    """What the format says of containers, by path: "list", "tuple", "dict", "keys" (a dict whose keys are no text), "leaf"; by TEXT
    and the path of a key of such a dict: the key is text; by PLACE and the path of an empty container: its position; by CLASS and the path of a mapping
    that is no dict: its class."""
    lines = (line.split("\t") for line in (ck.fact("containers") or "").split("\n") if line)
    mark = {"text": (TEXT,)}
    return {(*mark.get(kind, (PLACE,) if kind.isdecimal() else (CLASS,) if "." in kind else ()), *words): kind for kind, *words in lines}


def skeleton(ck: Checkpoint, value: Callable[[str], Any], asked: Optional[Callable[[str], bool]] = None) -> Any:
    """The checkpoint, or the keys of it that are asked for, with Leafs for tensors and value(key) for objects.

    Files of torch.save() say what containers were. Elsewhere what has the keys 0, 1, 2, ... becomes a list;
    torch.distributed.checkpoint distinguishes lists from dicts, whose keys it made text. The state of an optimizer, beside param_groups,
    is a dict with integer keys if they are numbers; but if keys are asked for, it is as torch gives it.
    """
    known, root = classes(ck), Node()
    for key, is_tensor in ck.ordered():
        if not asked or asked(key):
            _put(root, ck.path(key), Leaf(key) if is_tensor else leafs(value(key)))
    for path, kind in () if asked else list(known.items()):
        if path and (path[0] == PLACE or kind == "dict"):
            _put_empty(root, path[1:] if path[0] == PLACE else path, int(kind) if path[0] == PLACE else None)
    if known.get(()) == "leaf" and len(root) == 1:
        return next(iter(root.values()))
    known.setdefault((), "dict")
    return _shaped(root, (), known, asked is None)


def opened(ck: Checkpoint, name: str, objects: list[str], value: Callable[[str], Any]) -> Any:
    """The object @name that the checkpoint has only as its items (name.0, ...; Composer's lists); None: there are no items either. objects:
    keys."""
    root, above = Node(), tuple[str, ...]()
    for key in objects:
        words = ck.path(key) if key.startswith(name + ".") else ()
        at = next((i for i in range(1, len(words)) if ".".join(words[:i]) == name), 0)
        if at:
            above = words[:at]
            _put(root, words[at:], value(key))
    return _shaped(root, above, classes(ck), True) if root else None


def indexed(ck: Checkpoint) -> Callable[[tuple[str, ...]], tuple[Union[str, int], ...]]:
    """A function that gives a path as torch has it: with integers where they are indices of lists."""
    known = classes(ck)

    def path(words: tuple[str, ...]) -> tuple[Union[str, int], ...]:
        return tuple(int(w) if i and known.get(words[:i]) in ("list", "tuple") and w.isdecimal() else w for i, w in enumerate(words))

    return path


def keys(node: Any) -> Iterator[str]:
    """Keys of the Leafs in @node, each once."""
    seen: dict[str, None] = {}

    def note(key: str) -> Leaf:
        seen[key] = None
        return Leaf(key)

    filled(node, note)
    return iter(seen)


def filled(node: Any, get: Callable[[str], Any]) -> Any:
    """@node with get(key) for each Leaf."""
    if isinstance(node, Leaf):
        return get(node.key)
    if isinstance(node, Pending):
        return node.made(filled(node.value, get))
    if isinstance(node, dict):
        return _each(node, lambda v: filled(v, get))
    return type(node)(filled(v, get) for v in node) if type(node) in (list, tuple) else node


def _each(node: dict[Any, Any], of: Callable[[Any], Any]) -> dict[Any, Any]:
    """A mapping of the same class with of(value) for each value."""
    made = copy.copy(node)
    for k, v in node.items():
        made[k] = of(v)
    return made


def _above(root: Node, path: tuple[str, ...]) -> Optional[Node]:
    """The container of the last word of @path; None: an object whose tensors are Leafs in it."""
    node = root
    for word in path[:-1]:
        node = node.setdefault(word, Node())
        if not isinstance(node, Node):
            return None
    return node


def _put(root: Node, path: tuple[str, ...], value: Any) -> None:
    node = _above(root, path)
    if node is not None and not isinstance(node.get(path[-1]), Leaf):
        node[path[-1]] = value


def _put_empty(root: Node, path: tuple[str, ...], place: Optional[int]) -> None:
    """Put an empty container; empty containers inside it were put before."""
    node = _above(root, path)
    if node is None:
        return
    value = node.setdefault(path[-1], Node())
    if place is not None:
        behind = [(k, node.pop(k)) for k in [k for k in node if k != path[-1]][place:]]
        node[path[-1]] = node.pop(path[-1], value)
        node.update(behind)


def leafs(value: Any) -> Any:
    """An object with Leafs for the tensors in it."""
    if isinstance(value, Pending):
        return Pending(value.make, leafs(value.value))
    if isinstance(value, dict):
        return Leaf(value["$tensor"]) if value.keys() == {"$tensor"} else _each(value, leafs)
    return type(value)(map(leafs, value)) if type(value) in (list, tuple) else value


def _shaped(node: Any, path: tuple[str, ...], known: Classes, optimizers: bool, numbered: bool = False) -> Any:
    """Turn Nodes into their original containers. numbered: keys that can be integers become integers."""
    if not isinstance(node, Node):
        return node
    made = {k: _shaped(v, (*path, k), known, optimizers, optimizers and k == "state" and "param_groups" in node) for k, v in node.items()}
    numbers = {int(k): v for k, v in made.items() if k.isdecimal() and str(int(k)) == k} if made else {}
    kind, named = known.get(path), known.get((CLASS, *path), "")
    if len(numbers) == len(made) > 0 and (kind is None or numbered):
        kind = "keys" if numbered else "list" if max(numbers) < len(made) else None
    if kind in ("list", "tuple") and len(numbers) == len(made) and max(numbers, default=0) < 2 * len(made) + MISSING:
        return (tuple if kind == "tuple" else list)(numbers.get(i) for i in range(max(numbers, default=-1) + 1))
    spelled = {k if (TEXT, *path, k) in known else _literal(k): v for k, v in made.items()} if kind == "keys" else made
    return mapping(named, spelled if len(spelled) == len(made) else made)  # 1 and True are one key


def _literal(word: str) -> Any:
    """The key with this str()."""
    try:
        key = ast.literal_eval(word) if not QUOTED.search(word) else _spelled(ast.parse(word.lstrip(" \t"), mode="eval").body)
        hash(key)
        return key
    except (*REFUSED, SyntaxError, MemoryError, RecursionError):
        return word


def _spelled(node: ast.expr) -> Any:
    """A literal, or an object of MADE: decimal.Decimal('2')."""
    if isinstance(node, ast.Tuple):
        return tuple(map(_spelled, node.elts))
    if isinstance(node, ast.Call) and not node.keywords:
        return MADE[ast.unparse(node.func)]({"args": [*map(_spelled, node.args)]})
    return ast.literal_eval(node)
