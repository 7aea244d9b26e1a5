# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as text or HTML, with at most ROWS rows, one for each prefix; and a report as one line."""
from __future__ import annotations

import html
from typing import Any, Iterable, NamedTuple

from .shown import shown
from .tensor import Tensor

ROWS = 20
WAYS = ("io", "exchange")  # numbers of dcpload.h
COUNTS = {"ranks", "local_ranks", "nodes", "parts", "calls", "nccl", "files", "tensors", "objects", "rounds"}  # others are bytes


class Row(NamedTuple):
    name: str  # a key, or a prefix and "*"
    tensors: list[Tensor]


def size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    return ""


class Report(dict[str, Any]):
    """A report by name: bytes, nanoseconds (_ns), counts, words. Its text has the values other than 0, without ways and reasons (_why)."""

    def __repr__(self) -> str:
        return f"Report({', '.join(self._line(k, v) for k, v in self.items() if v and k not in WAYS and not k.endswith('_why'))})"

    @staticmethod
    def _line(name: str, value: Any) -> str:
        if name.endswith("_ns"):
            return f"{name[:-3]} {value / 1e9:.3g} s"
        return f"{name} {shown(value) if isinstance(value, str) else value if name in COUNTS else size(value)}"


def split(row: Row) -> list[Row]:
    """The rows one level deeper, or the row itself if there are none."""
    prefix, groups = row.name[:-1], dict[str, list[Tensor]]()
    for t in row.tensors:
        head, dot, _ = t.key[len(prefix):].partition(".")
        groups.setdefault(prefix + head + dot, []).append(t)
    return [Row(ts[0].key if len(ts) == 1 else name + "*", ts) for name, ts in groups.items()]


def fold(tensors: Iterable[Tensor], limit: int = ROWS) -> list[Row]:
    """Rows for @tensors: the largest prefixes are unfolded first, up to @limit rows."""
    rows, tried = [Row("*", list(tensors))], set[str]()
    while True:
        open_ = [r for r in rows if len(r.tensors) > 1 and r.name not in tried]
        if not open_:
            return [r for r in rows if r.tensors]
        row = max(open_, key=lambda r: len(r.tensors))
        deeper = split(row)
        tried.add(row.name)
        if len(rows) - 1 + len(deeper) <= limit:
            at = rows.index(row)
            rows[at:at + 1] = deeper


def cells(row: Row) -> tuple[str, str, str, str]:
    """Name, dtype, shape or count, bytes."""
    dtypes = sorted({t.dtype or "?" for t in row.tensors})
    dtypes[3:] = ["..."] if len(dtypes) > 4 else dtypes[3:]
    what = (str(list(row.tensors[0].shape)) if not row.name.endswith("*") else f"{len(row.tensors)} tensors")
    return shown(row.name), shown(" ".join(dtypes)), what, size(sum(t.nbytes for t in row.tensors))


def as_text(head: str, tensors: list[Tensor]) -> str:
    table = [cells(r) for r in fold(tensors)]
    wide = [max((len(r[i]) for r in table), default=0) for i in range(4)]
    return "\n".join([shown(head)] + [f"  {n:<{wide[0]}}  {d:<{wide[1]}}  {s:<{wide[2]}}  {b:>{wide[3]}}" for n, d, s, b in table])


def as_html(head: str, tensors: list[Tensor]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells(r)) + "</tr>" for r in fold(tensors))
    return (f"<p>{html.escape(shown(head))}</p><table><thead><tr><th>key</th><th>dtype</th><th>shape</th><th>size</th></tr></thead>"
            f"<tbody>{body}</tbody></table>")
