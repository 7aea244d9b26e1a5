#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes hostile checkpoints: what an attacker would send, built byte by byte without torch.

usage: hostile_more.py DIRECTORY [CASE...]     (without names: all; "list" names them)

Every case is a directory; its function's sentence says what is wrong with it, and its mark what must
happen: "refuse" - the source is refused, in one line, with exit code 4; "open" - it opens, and the
key "good" has its true bytes whatever befalls the others; "any" - either, but soon and in little memory.
tests/cli/attack.py makes the small ones each time it runs. Here: calls, bombs, sizes and keys;
hostile_files.py has the rest.
"""
import pathlib
import struct
import sys

from evil import *


# ---------------------------------------------------------------- calls


def for_calls(position, expect):
    def add(make):
        for which, opcodes in CALLS.items():
            def one(d, make=make, opcodes=opcodes):
                c = Ckpt(d)
                raw = make(c, opcodes)
                c.write(raw)
            one.__doc__ = make.__doc__
            CASES[f"call-{which}-{position}"] = (expect, one)
        return make
    return add


@for_calls("root", "refuse")
def _(c, call_):
    """The pickle is a call."""
    return pickled(call_)


@for_calls("as-state-dict", "refuse")
def _(c, call_):
    """A dict of the metadata is a call."""
    c.more["state_dict_metadata"] = call_


@for_calls("key", "open")
def _(c, call_):
    """A key is a call."""
    c.state.append((call_, tensor()))
    c.storage.append((call_, info()))


@for_calls("value", "open")
def _(c, call_):
    """Values are calls."""
    c.state.append(("bad", call_))
    c.storage.append((index("bad", (0,)), call_))


@for_calls("planner", "open")
def _(c, call_):
    """Paths are calls, or hold them."""
    c.planner = pairs([("good", call_), (call_, ("x",)), ("bad", (call_, "x"))])


@for_calls("fields", "open")
def _(c, call_):
    """Every field is a call."""
    c.state.append(("bad", built(name(META, "TensorStorageMetadata"), {"properties": call_, "size": call_, "chunks": call_})))
    c.state.append(("worse", tensor(chunks=[call_])))
    c.storage.append((index("bad", (0,)), info(call_, call_, call_)))
    c.storage.append((index(call_), info()))


@for_calls("setstate", "open")
def _(c, call_):
    """An object gets a call for its state, and a call gets a state."""
    c.state.append(("bad", Raw(name(META, "TensorStorageMetadata") + b")\x81" + call_ + b"b")))
    c.state.append(("worse", Raw(call_ + enc({"chunks": []}) + b"b")))


@for_calls("memoized", "open")
def _(c, call_):
    """A call fetched through the memo in many places."""
    c.state += [("bad", Raw(call_ + put(1))), ("worse", get(1))]
    c.storage.append((get(1), get(1)))


@for_calls("in-item", "open")
def _(c, call_):
    """Byte items that are, hold and are keyed by calls."""
    c.item("is", call_)
    c.item("holds", {"a": [call_], "b": (call_,)})
    c.item("keyed", pairs([(call_, 1)]))
    c.item("state", Raw(name("x", "Y") + b")\x81" + call_ + b"b"))


@for_calls("in-tensor", "open")
def _(c, call_):
    """A tensor's stream holds a call."""
    c.tensor("bad", saved(pickled(call_), GOOD))
    c.tensor("worse", saved(pickled([rebuild((6,)), call_]), GOOD))


# ---------------------------------------------------------------- bombs


def doubled(n, leaf=b"]", level=lambda one: b"](" + one + one + b"e"):
    """2^n leaves: each level is a list of the one below, twice."""
    out = bytearray(leaf + put(0))
    for i in range(n):
        out += b"0" + level(get(i)) + put(i + 1)
    return Raw(bytes(out))


def both_keys(one):
    return b"}(" + enc("a") + one + enc("b") + one + b"u"


@case("open")
def memo_bomb_in_item(d):
    """2^60 lists in a byte item of a kilobyte."""
    c = Ckpt(d)
    c.item("bomb", doubled(60))
    c.write()


@case("open")
def memo_bomb_of_text(d):
    """A million characters 2^20 times."""
    c = Ckpt(d)
    c.item("bomb", doubled(20, leaf=enc("x" * 1000000)))
    c.write()


@case("open")
def memo_bombs_many(d):
    """Fifty keys with a bomb each."""
    c = Ckpt(d)
    for i in range(50):
        c.item(f"bomb{i}", doubled(60, leaf=enc("text")))
    c.write()


@case("open")
def memo_bomb_dict(d):
    """2^60 entries of nested dicts: as many keys, were they told."""
    c = Ckpt(d)
    c.item("bomb", doubled(60, enc({"leaf": 1}), both_keys))
    c.write()


@case("open")
def memo_bomb_tensors(d):
    """A tensor reached 2^60 ways."""
    c = Ckpt(d)
    c.bytes("bomb", saved(pickled(doubled(60, rebuild((6,)), both_keys)), GOOD))
    c.write()


@case("open")
def memo_bomb_tuples_of_tensors(d):
    """A tensor reached 2^40 ways inside tuples."""
    c = Ckpt(d)
    c.bytes("bomb", saved(pickled(doubled(40, rebuild((6,)), lambda one: one + one + b"\x86")), GOOD))
    c.write()


@case("open")
def memo_bomb_in_metadata(d):
    """The bomb is a size, a key, a path and a value."""
    c = Ckpt(d)
    c.state += [(doubled(60), tensor()), ("bad", get(60)), ("worse", built(name(META, "TensorStorageMetadata"), get(60)))]
    c.storage.append((get(60), get(60)))
    c.planner = pairs([(get(60), get(60)), ("good", (get(60),))])
    c.write()


@case("any")
def dup_bomb(d):
    """DUP and TUPLE2, sixty times."""
    c = Ckpt(d)
    c.state.append(("bad", Raw(b"N" + b"2\x86" * 60)))
    c.write()


def deep(opener, closer, n=1000000):
    return Raw(opener * n + closer * n)


def for_depths(kinds):
    for which, opcodes in kinds.items():
        def in_metadata(d, opcodes=opcodes):
            """A value a million levels deep in .metadata."""
            c = Ckpt(d)
            c.state.append(("bad", opcodes()))
            c.write()

        def in_item(d, opcodes=opcodes):
            """A value a million levels deep in a byte item."""
            c = Ckpt(d)
            c.item("bad", opcodes())
            c.write()
        CASES[f"deep-{which}-in-metadata"] = ("refuse", in_metadata)
        CASES[f"deep-{which}-in-item"] = ("open", in_item)


for_depths({
    "lists": lambda: deep(b"](", b"e"),
    "tuples": lambda: Raw(b")" + b"\x85" * 1000000),
    "dicts": lambda: Raw(b"}(" + (enc("k") + b"}(") * 1000000 + b"u" * 1000001),
    "calls": lambda: Raw(b"cx\ny\n" + b")R" * 1000000),
    "states": lambda: Raw(b"cx\ny\n)R" * 1000000 + b"N" + b"b" * 1000000),
    "marks": lambda: Raw(b"(" * 1000000 + b"t" * 1000000),
    "persids": lambda: Raw(b"N" + b"Q" * 1000000),
})


@case("any")
def deep_through_memo(d):
    """A list that holds itself, and two that hold each other."""
    c = Ckpt(d)
    c.item("self", Raw(b"]" + put(0) + get(0) + b"a"))
    c.item("each", Raw(b"]" + put(0) + b"]" + put(1) + get(0) + b"a" + b"a"))
    c.item("dict", Raw(b"}" + put(0) + enc("k") + get(0) + b"s"))
    c.write()


# ---------------------------------------------------------------- sizes


@case("open")
def shapes(d):
    """Shapes that wrap, do not fit, or are too many."""
    c = Ckpt(d)
    for i, shape in enumerate([(2**62,), (2**62, 2**62), (2**32, 2**32), (2**63,), (2**64,), (-1,), (2**31, 2**31, 4), (1,) * 65,
                               (1,) * 64, (0, 2**63), (2**61, 0), (2**33, 2**29 + 1, 8), (2**200,), (6, 2**60), (3.0,)]):
        shape = [Raw(b"G" + struct.pack(">d", x)) if isinstance(x, float) else x for x in shape]
        c.tensor(f"s{i}", shape=shape)
        c.tensor(f"c{i}", chunks=[chunk(shape, shape)], lo=shape)
        c.tensor(f"d{i}", shape=shape, chunks=[chunk([0] * len(shape), (6,) + (1,) * (len(shape) - 1))])
    c.write()


@case("open")
def places(d):
    """Offsets and lengths at and beyond 2^63."""
    c = Ckpt(d)
    for i, (off, n) in enumerate([(2**63, 1), (2**63 - 1, 1), (2**63 - 1, 0), (2**64 - 1, 2), (0, 2**63), (0, 2**64), (-1, 5), (5, -1),
                                  (2**62, 2**62), (0, 0), (1, 0), (2**40, 100), (2**500, 1)]):
        c.tensor(f"p{i}", storage=info(off=off, n=n))
        c.state.append((f"b{i}", BYTES))
        c.storage.append((index(f"b{i}"), info(off=off, n=n)))
    c.write()


@case("open")
def views(d):
    """Streams whose tensor is not what the metadata says."""
    c = Ckpt(d)
    for i, kw in enumerate([dict(stride=(2**62,)), dict(stride=(-1,)), dict(offset=2**62), dict(offset=-1), dict(numel=2**62),
                            dict(numel=-1), dict(key="../../x"), dict(key="9"), dict(key=""), dict(stride=(0,)), dict(stride=(1, 1))]):
        c.tensor(f"v{i}", tensor_item(**kw))
    c.tensor("other", saved(pickled(rebuild((2, 3))), GOOD))
    c.tensor("long", saved(pickled(rebuild((6,))), GOOD * 2))
    c.write()


def shared(c, n, value, entry=None):
    """@n keys with one @value through the memo, and one storage info."""
    c.state.append(("k0", Raw(value + put(7))))
    c.state += [(f"k{i}", get(7)) for i in range(1, n)]
    if entry:
        c.storage.append((index("k0", (0,)), Raw(entry + put(8))))
        c.storage += [(index(f"k{i}", (0,)), get(8)) for i in range(1, n)]


def many_chunks(n, shape=None):
    """@n times the same chunk, two bytes each."""
    one = chunk((0,), (1,)) + b"q\x00"
    return Raw(b"](" + one + b"h\x00" * (n - 1) + b"e")


@case("any")
def one_key_ten_million_chunks(d):
    """The same chunk ten million times."""
    c = Ckpt(d)
    c.state.append(("bad", tensor((10**7,), many_chunks(10**7))))
    c.write()


@case("any")
def shared_chunk_list(d):
    """A hundred thousand keys with one list of ten thousand chunks: 10^9 in 2 MB."""
    c = Ckpt(d)
    shared(c, 100000, tensor((10**5,), many_chunks(10**4)))
    c.write()


@case("any")
def shared_huge_chunk_list(d):
    """A thousand keys with one list of a million chunks."""
    c = Ckpt(d)
    shared(c, 1000, tensor((10**6,), many_chunks(10**6)))
    c.write()


@case("any")
def shared_wide_chunk_list(d):
    """Ten thousand keys, ten thousand chunks of 64 dimensions with big numbers: 1.3 KB each."""
    c = Ckpt(d)
    one = chunk((2**62,) * 64, (1,) * 64) + b"q\x00"
    shared(c, 10000, tensor((2,) * 64, Raw(b"](" + one + b"h\x00" * 9999 + b"e")))
    c.write()


@case("any")
def shared_path(d):
    """A hundred thousand keys whose path is one tuple of ten thousand parts."""
    c = Ckpt(d)
    n = 100000
    shared(c, n, tensor(), info(n=len(c.data)))
    path = Raw(b"(" + enc("p") + b"q\x00" + b"h\x00" * 9999 + b"t" + put(9))
    c.planner = pairs([("k0", path)] + [(f"k{i}", get(9)) for i in range(1, n)])
    c.write()


@case("any")
def shared_long_file_name(d):
    """A hundred thousand places in a file whose name has 16 MiB."""
    c = Ckpt(d)
    n = 100000
    shared(c, n, tensor(), info("x" * (16 << 20), n=5))
    c.write()


@case("any")
def shared_long_fqn(d):
    """A hundred thousand places of one key of 16 MiB."""
    c = Ckpt(d)
    key = "x" * (16 << 20)
    c.state.append((key, tensor()))
    c.storage.append((Raw(index(key, (0,)) + put(5)), Raw(info() + put(6))))
    c.storage += [(get(5), get(6)) for i in range(100000)]
    c.write()


@case("any")
def shared_long_dtype(d):
    """A hundred thousand keys with a dtype of 16 MiB."""
    c = Ckpt(d)
    shared(c, 100000, tensor(dtype="x" * (16 << 20)), info())
    c.write()


@case("any")
def one_item_many_keys(d):
    """A hundred thousand keys that all stand for one byte item of 4 MiB."""
    c = Ckpt(d)
    place = c.append(saved(pickled([0] * (4 << 20))))
    c.state += [(f"k{i}", BYTES) for i in range(100000)]
    c.storage.append((index("k0"), Raw(info(**place) + put(8))))
    c.storage += [(index(f"k{i}"), get(8)) for i in range(1, 100000)]
    c.write()


@case("any")
def one_archive_many_keys(d):
    """A hundred thousand byte keys in one archive of 65534 members."""
    c = Ckpt(d)
    place = c.append(saved(pickled(None), more=[(f"a/{i}", b"") for i in range(65000)]))
    c.state += [(f"k{i}", BYTES) for i in range(100000)]
    c.storage.append((index("k0"), Raw(info(**place) + put(8))))
    c.storage += [(index(f"k{i}"), get(8)) for i in range(1, 100000)]
    c.write()


@case("open")
def cells(d):
    """Boxes whose corners never agree: n cuts in each of three dimensions."""
    c = Ckpt(d)
    n = 3000
    boxes = [chunk((i, i, i), (1, 1, 1)) for i in range(n)]
    c.state.append(("bad", tensor((n, n, n), boxes)))
    place = info(**c.append(saved(pickled(rebuild((1, 1, 1), numel=1)), GOOD[:4])))
    c.storage.append((index("bad", (0, 0, 0)), Raw(place + put(8))))
    c.storage += [(index("bad", (i, i, i)), get(8)) for i in range(1, n)]
    c.write()


@case("open")
def cells_that_fit(d):
    """A valid brick wall: every row is cut elsewhere."""
    c = Ckpt(d)
    n = 1500
    place = Raw(info(**c.append(saved(pickled(rebuild((1, n), numel=n)), bytes(4 * n)))) + put(8))
    boxes, places_ = [], []
    for i in range(n):
        for lo, hi in ((0, i), (i, n)):
            if hi > lo:
                boxes.append(chunk((i, lo), (1, hi - lo)))
                places_.append((index("wall", (i, lo)), get(8) if places_ else place))
    c.state.append(("wall", tensor((n, n), boxes)))
    c.storage += places_
    c.write()


@case("open")
def cells_64_dims(d):
    """Two thousand boxes in 64 dimensions, each cut twice: 2^64 cells."""
    c = Ckpt(d)
    shape = (2,) * 64
    boxes = [chunk([i >> k & 1 for k in range(64)], (1,) * 64) for i in range(2000)]
    c.state.append(("bad", tensor(shape, boxes)))
    c.storage += [(index("bad", [i >> k & 1 for k in range(64)]), info(n=len(c.data))) for i in range(2000)]
    c.write()


# ---------------------------------------------------------------- keys


@case("any")
def keys_a_million_long(d):
    """A million keys of a kilobyte."""
    c = Ckpt(d)
    one = Raw(tensor() + put(7))
    with open(c.d / ".metadata", "wb") as f:
        head = metadata(c.state, c.storage)
        at = head.index(b"u", head.index(b"state_dict_metadata"))
        cut = head.index(enc("planner_data"))
        assert head[cut - 1:cut] == b"u", at
        f.write(head[:cut - 1])
        f.write(enc("k" * 1000 + "first") + one)
        for i in range(1000000):
            f.write(enc(f"{i:07d}" + "k" * 1000) + get(7))
        f.write(head[cut - 1:])
    (c.d / "__0_0.distcp").write_bytes(c.data)


@case("any")
def key_of_64_mib(d):
    """One key of 64 MiB."""
    c = Ckpt(d)
    c.tensor("k" * (64 << 20))
    c.write()


@case("open")
def key_of_2_mib(d):
    """A tensor's and an object's key of 2 MiB: longer than an index keeps."""
    c = Ckpt(d)
    c.tensor("k" * (2 << 20))
    c.item("o" * (2 << 20), 1)
    c.write()


@case("open")
def key_of_2_mib_in_item(d):
    """The same inside a byte item, and a path of two million parts."""
    c = Ckpt(d)
    c.bytes("o", saved(pickled({"k" * (2 << 20): rebuild((6,)), "l": rebuild((6,))}), GOOD))
    c.write()


@case("any")
def keys_batched(d):
    """A million keys of a kilobyte, a thousand at a time."""
    c = Ckpt(d)
    one = Raw(tensor() + put(7))
    head = metadata(c.state, c.storage)
    cut = head.index(enc("planner_data"))
    with open(c.d / ".metadata", "wb") as f:
        f.write(head[:cut - 1] + enc("first") + one + b"u")
        for i in range(1000):
            f.write(b"(" + b"".join(enc(f"{i:04d}.{j:04d}" + "k" * 1000) + get(7) for j in range(1000)) + b"u")
        f.write(head[cut:])
    (c.d / "__0_0.distcp").write_bytes(c.data)


@case("any")
def bombs_in_many_keys(d):
    """Ten thousand keys with one bomb of a kilobyte."""
    c = Ckpt(d)
    place = c.append(saved(pickled(doubled(60))))
    c.state += [(f"k{i}", BYTES) for i in range(10000)]
    c.storage += [(index(f"k{i}"), info(**place)) for i in range(10000)]
    c.write()


@case("any")
def bombs_of_their_own(d):
    """A thousand keys with a bomb of their own each."""
    c = Ckpt(d)
    for i in range(1000):
        c.item(f"bomb{i}", doubled(60, leaf=enc(f"text {i}")))
    c.write()


@case("any")
def text_bombs_of_their_own(d):
    """A hundred keys of which each is a hundred megabytes of text in 100 KB."""
    c = Ckpt(d)
    for i in range(100):
        c.item(f"bomb{i}", Raw(b"](" + enc("x" * 100000) + put(0) + get(0) * 1000 + b"e"))
    c.write()


@case("open")
def keys_strange(d):
    """Empty, dots, slashes, NUL, lone surrogates, NFC and NFD, case, numbers, 300 bytes."""
    c = Ckpt(d)
    for key in ["", ".", "..", "/", "//", "../..", "a/b", "a\0b", "\0", "\ud800", "x\udfff", "\u00e9", "e\u0301", "Good", "GOOD",
                "n" * 300, "n" * 299 + "m", "%2F", "%", "%2E", "\n", "\x1b[2J", "\u202e", "-rf", "~", "a~0123456789abcdef",
                "latest", ".dcpfs", "README.txt", " ", "\U0010ffff", "\ufffe", "good.npy", "k.bin"]:
        c.tensor(key)
    c.state += [(1, tensor()), (None, tensor()), (True, tensor()), ((1, 2), tensor()), (-5, BYTES), (b"bytes", tensor())]
    c.item("\ud800obj", {"\ud800": "\udfff", "\0": "\0"})
    c.item("a\0b.o", 1)
    c.write()


@case("open")
def keys_twice(d):
    """The same key many times, as tensor and as object."""
    c = Ckpt(d)
    for i in range(3000):
        c.state.append(("twice", tensor() if i % 2 else BYTES))
    c.write()


@case("any")
def good_twice(d):
    """The key "good" in two versions."""
    c = Ckpt(d)
    c.tensor("good", saved(pickled(rebuild((6,))), bytes(24)))
    c.write()


@case("open")
def path_components(d):
    """Paths of strange parts: climbing, empty, far too many, of other types."""
    c = Ckpt(d)
    for i in range(8):
        c.tensor(f"p{i}")
    c.planner = pairs([("p0", ("..", "..", "etc")), ("p1", ("",) * 10000), ("p2", ("a\0b", "\ud800")), ("p3", (1, None, 2.5 and True)),
                       ("p4", ()), ("p5", Raw(b"(" + enc("x") * 100000 + b"t")), ("p6", "text"), ("p7", ("/", "\x1b[2J"))])
    c.write()


def main():
    import hostile_files  # noqa: F401: its cases

    out = pathlib.Path(sys.argv[1])
    wanted = sys.argv[2:] or sorted(CASES)
    for which in wanted:
        if which == "list":
            print("\n".join(f"{n} {CASES[n][0]}" for n in sorted(CASES)))
            return
        CASES[which][1](out / which)


if __name__ == "__main__":
    main()
