# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as text or HTML: one row per prefix, at most ROWS of them."""
from __future__ import annotations

import html
from typing import TYPE_CHECKING, Iterable, NamedTuple

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .tensor import Tensor

ROWS = 20


class Row(NamedTuple):
    name: str  # a key, or a prefix and "*"
    tensors: list[Tensor]


def size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    return ""


def split(row: Row) -> list[Row]:
    """The rows one level deeper, or the row itself if there are none."""
    prefix, groups = row.name[:-1], dict[str, list["Tensor"]]()
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
            return rows
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
    return row.name, " ".join(dtypes), what, size(sum(t.nbytes for t in row.tensors))


def rows(ck: Checkpoint) -> tuple[str, list[tuple[str, str, str, str]]]:
    tensors = list(ck._scan().values())
    total = size(sum(t.nbytes for t in tensors))
    head = f"{ck.version} of {ck.source}: {ck.fact('format') or '?'}, {len(tensors)} tensors, {total}, {len(ck.objects)} objects"
    return head, [cells(r) for r in fold(tensors)] if tensors else []


def as_text(ck: Checkpoint) -> str:
    head, table = rows(ck)
    wide = [max((len(r[i]) for r in table), default=0) for i in range(4)]
    return "\n".join([head] + [f"  {n:<{wide[0]}}  {d:<{wide[1]}}  {s:<{wide[2]}}  {b:>{wide[3]}}" for n, d, s, b in table])


def as_html(ck: Checkpoint) -> str:
    head, table = rows(ck)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in r) + "</tr>" for r in table)
    return (f"<p>{html.escape(head)}</p><table><thead><tr><th>key</th><th>dtype</th><th>shape</th><th>size</th></tr></thead>"
            f"<tbody>{body}</tbody></table>")
