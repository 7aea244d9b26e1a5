# SPDX-License-Identifier: Apache-2.0
"""All of a checkpoint as the nested dicts and lists that were saved."""
from __future__ import annotations

from typing import Any, Callable, Iterator, NamedTuple

from .checkpoint import Checkpoint


class Leaf(NamedTuple):
    """Stands for a tensor until it is read."""

    key: str


def skeleton(ck: Checkpoint, value: Callable[[str], Any], asked: Callable[[str], bool] = lambda key: True) -> dict[Any, Any]:
    """The checkpoint, or the keys of it that are asked for, with Leafs for tensors and value(key) for objects.

    Checkpoints keep the path of a key, not what its components index. What has the keys 0, 1, 2, ... becomes a list, or, of a file of
    torch.save(), the tuple that it was; the state of an optimizer keeps a dict, with integers. Empty dicts are there if the
    format stores them.
    """
    tuples = frozenset((ck.fact("tuples") or "").splitlines())
    root: dict[Any, Any] = {}
    for key in filter(asked, ck.objects):
        _put(root, ck.path(key), _leafs(value(key)))
    for key in filter(asked, ck):
        _put(root, ck.path(key), Leaf(key))
    return {k: _listed(v, k, tuples) for k, v in root.items()}


def opened(ck: Checkpoint, name: str, objects: list[str], value: Callable[[str], Any]) -> Any:
    """The object @name that the checkpoint has only as its items (name.0, ...; Composer's lists); None: nor that. objects: keys."""
    root: dict[Any, Any] = {}
    for key in objects:
        words = ck.path(key) if key.startswith(name + ".") else ()
        at = next((i for i in range(1, len(words)) if ".".join(words[:i]) == name), 0)
        if at:
            _put(root, words[at:], value(key))
    return _listed(root) if root else None


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
    if isinstance(node, dict):
        return type(node)((k, filled(v, get)) for k, v in node.items())
    return type(node)(filled(v, get) for v in node) if type(node) in (list, tuple) else node


def _put(root: dict[Any, Any], path: tuple[str, ...], value: Any) -> None:
    node = root
    for word in path[:-1]:
        node = node.setdefault(word, {})
        if not isinstance(node, dict):  # an object whose tensors are Leafs in it
            return
    node[path[-1]] = value


def _leafs(value: Any) -> Any:
    if isinstance(value, dict):
        return Leaf(value["$tensor"]) if value.keys() == {"$tensor"} else type(value)((k, _leafs(v)) for k, v in value.items())
    return type(value)(map(_leafs, value)) if type(value) in (list, tuple) else value


def _listed(node: Any, at: str = "", tuples: frozenset[str] = frozenset(), indexed: bool = True) -> Any:
    """@at: its key; tuples: keys of those."""
    if not isinstance(node, dict) or not node:
        return node
    optimizer = "param_groups" in node
    made = {k: _listed(v, f"{at}.{k}", tuples, not (optimizer and k == "state")) for k, v in node.items()}
    if not all(isinstance(k, str) and k.isdecimal() and str(int(k)) == k for k in made):
        return made
    numbered = {int(k): v for k, v in made.items()}
    if not indexed or set(numbered) != set(range(len(numbered))):
        return numbered if not indexed else made
    return (tuple if at in tuples else list)(numbered[i] for i in range(len(numbered)))
