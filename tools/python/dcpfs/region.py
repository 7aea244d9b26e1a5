# SPDX-License-Identifier: Apache-2.0
"""The region of an index such as t[2:4, :, ::2]: a box with steps, its reversed dimensions, and the shape of the result."""
from __future__ import annotations

import operator
from typing import Any, NamedTuple


class Region(NamedTuple):
    lo: list[int]
    len: list[int]
    step: list[int]
    box: list[int]  # elements of each dimension
    flip: list[int]  # dimensions read backwards
    shape: tuple[int, ...]  # of the result: without dimensions indexed by integers


def region(index: Any, shape: tuple[int, ...]) -> Region:
    """The region of an index of integers, slices, None and one Ellipsis, as in numpy. IndexError: outside; TypeError: something
    else."""
    words = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, w in enumerate(words) if w is Ellipsis]
    given = sum(w is not None and w is not Ellipsis for w in words)
    if len(dots) > 1 or given > len(shape):
        raise IndexError(f"{given} indices and {len(dots)} ellipses for {len(shape)} dimensions")
    at = dots[0] if dots else len(words)
    words[at:at + 1] = [slice(None)] * (len(shape) - given)
    r, out, d = Region([], [], [], [], [], ()), [], 0
    for w in words:
        if w is None:
            out.append(1)
            continue
        n = shape[d]
        if isinstance(w, slice):
            every = range(n)[w]
            count, first, step = len(every), every.start, every.step
            if step < 0:
                r.flip.append(d)
                first, step = (every[-1] if count else 0), -step
            out.append(count)
        else:
            if isinstance(w, bool) or bool(getattr(w, "shape", False)):
                raise TypeError("a tensor of a checkpoint is indexed by integers, slices, ... and None, not by truth or arrays")
            i = operator.index(w)
            if not -n <= i < n:
                raise IndexError(f"index {i} is outside of dimension {d}, which has {n} elements")
            first, count, step = i % n, 1, 1
        r.lo.append(first if count else 0)
        r.len.append((count - 1) * step + 1 if count else 0)
        r.step.append(step)
        r.box.append(count)
        d += 1
    return r._replace(shape=tuple(out))


def flipped(data: memoryview, box: list[int], itemsize: int, d: int) -> memoryview:
    """@data, of shape @box, with dimension @d reversed."""
    inner = itemsize
    for n in box[d + 1:]:
        inner *= n
    n, out = box[d], bytearray(len(data))
    whole = n * inner
    for at in range(0, len(data), max(whole, 1)):
        if inner <= n:  # every byte of the elements, in one stride each
            for b in range(inner):
                out[at + b:at + whole:inner] = bytes(data[at + b:at + whole:inner])[::-1]
        else:
            for i in range(n):
                out[at + i * inner:at + (i + 1) * inner] = data[at + (n - 1 - i) * inner:at + (n - i) * inner]
    return memoryview(out)
