#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/golden/pickle/: pickles of every protocol by CPython, and what they hold.

Run by hand: python3 tests/gen/pickles.py [DIRECTORY]. What stands in a .txt comes from CPython's
own unpickler written in Python, with calls replaced by notes of them; the notation is explained
in tests/unit/t/parse/pickle.h.
"""
import collections, datetime, decimal, enum, io, os, pathlib, pickle, random, struct, sys, types

if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of str
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, "PYTHONHASHSEED": "0"})

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/pickle")
DEEP = 7
Global = collections.namedtuple("Global", "module name")


class Id:
    def __init__(self, pid):
        self.pid = pid


class Object:
    """What a call or a class would have made."""

    def __init__(self, callable_, args, called, kwargs=None):
        self.callable, self.args, self.called, self.kwargs = callable_, args, called, kwargs
        self.built, self.state, self.list, self.dict = False, None, None, None

    def extend(self, items):
        self.list = (self.list or []) + list(items)

    def __setitem__(self, key, value):
        self.dict = (self.dict or []) + [(key, value)]

    def append(self, item):
        self.extend([item])

    add = append


class Set(list):
    """A set that keeps the order of the stream."""
    add = list.append


class Frozen(tuple):
    pass


class Inert(pickle._Unpickler):
    """CPython's unpickler, where nothing is imported or called."""
    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module, name):
        return Global(module, name)

    def persistent_load(self, pid):
        return Id(pid)

    def load_reduce(self):
        args = self.stack.pop()
        self.stack[-1] = Object(self.stack[-1], args, True)

    def load_newobj(self):
        args = self.stack.pop()
        self.stack[-1] = Object(self.stack[-1], args, False)

    def load_newobj_ex(self):
        kwargs, args = self.stack.pop(), self.stack.pop()
        self.stack[-1] = Object(self.stack[-1], args, False, kwargs)

    def _instantiate(self, klass, args):
        self.append(Object(klass, tuple(args), False))

    def load_build(self):
        state = self.stack.pop()
        self.stack[-1].state, self.stack[-1].built = state, True

    def load_empty_set(self):
        self.append(Set())

    def load_frozenset(self):
        items = self.pop_mark()
        self.append(Frozen(items))

    for code, f in ((pickle.EMPTY_SET, load_empty_set), (pickle.FROZENSET, load_frozenset),
                    (pickle.REDUCE, load_reduce), (pickle.NEWOBJ, load_newobj),
                    (pickle.NEWOBJ_EX, load_newobj_ex), (pickle.BUILD, load_build)):
        dispatch[code[0]] = f


def quote(b):
    return "'" + "".join(chr(c) if 0x20 <= c <= 0x7e and c not in b"'\\" else f"\\x{c:02x}" for c in b) + "'"


def number(n):
    if -2**63 <= n < 2**63:
        return str(n)
    size = 9
    while not -(1 << size * 8 - 1) <= n < 1 << size * 8 - 1:
        size += 1
    return "L" + n.to_bytes(size, "little", signed=True).hex()


def show(v, depth=0):
    if depth > DEEP:
        return "..."
    each = lambda vs: "".join(show(x, depth + 1) + "," for x in vs)
    pairs = lambda ps: "{" + "".join(f"{show(k, depth + 1)}:{show(x, depth + 1)}," for k, x in ps) + "}"
    if v is None or isinstance(v, bool):
        return str(v)
    if isinstance(v, int):
        return number(v)
    if isinstance(v, float):
        return "f" + struct.pack(">d", v).hex()
    if isinstance(v, str):
        return quote(v.encode("utf-8", "surrogatepass"))
    if isinstance(v, Global):
        return f"<{v.module} {v.name}>"
    if isinstance(v, Id):
        return f"id({show(v.pid, depth + 1)})"
    if isinstance(v, (bytes, bytearray)):
        return ("a" if isinstance(v, bytearray) else "b") + quote(v)
    if isinstance(v, (Set, Frozen)):
        return ("set(" if isinstance(v, Set) else "frozen(") + each(v) + ")"
    if isinstance(v, tuple):
        return "(" + each(v) + ")"
    if isinstance(v, list):
        return "[" + each(v) + "]"
    if isinstance(v, dict):
        return pairs(v.items())
    s = "call(" if v.called else "new("
    s += show(v.callable, depth + 1) + "," + show(v.args, depth + 1)
    if v.kwargs is not None:
        s += ",kw=" + show(v.kwargs, depth + 1)
    if v.built:
        s += ",state=" + show(v.state, depth + 1)
    if v.list is not None:
        s += ",list=" + show(v.list, depth + 1)
    if v.dict is not None:
        s += ",dict=" + "{" + "".join(f"{show(k, depth + 2)}:{show(x, depth + 2)}," for k, x in v.dict) + "}"
    return s + ")"


# ---- things to pickle ----

class Plain:
    def __init__(self, **kw):
        self.__dict__.update(kw)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a, self.b = 1, "two"


class Keywords:
    def __new__(cls, *, x):
        return object.__new__(cls)

    def __getnewargs_ex__(self):
        return (), {"x": 5}


class Listy(list):
    pass


class Dicty(dict):
    pass


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Positional:
    def __getstate__(self):
        return 1, None, "x"

    def __setstate__(self, state):
        pass


class Size(tuple):
    def __reduce__(self):
        return Size, (tuple(self),)


Point = collections.namedtuple("Point", "x y")


def classes(protocol):
    listy, dicty = Listy([1, 2]), Dicty({"k": 1})
    listy.note = "n"
    loop = []
    loop.append(loop)
    knot = Plain(name="knot")
    knot.inside = [knot]
    pair = ([],)
    pair[0].append(pair)
    shared = ["shared"]
    return [Plain(), Plain(a=1, b=[2]), Keywords(x=5), listy, dicty, Color.RED, Color.BLUE, Positional(),
            Point(1, 2), loop, knot, pair, [shared, shared], collections.OrderedDict([("a", 1), ("b", 2)]),
            collections.OrderedDict(), collections.Counter("aab"), collections.defaultdict(list, {"x": [1]}),
            complex(1, -2), slice(1, None, 2), range(5), datetime.timedelta(3, 4), datetime.date(2020, 2, 29),
            decimal.Decimal("1.5"), Plain, len, int, types.SimpleNamespace(a=1), set("abc"), frozenset((1, 2)),
            [Size((r % 3, 0)) for r in range(70)], [Size((i, "s")) for i in range(3)],
            {Point(i, i): Size((i,)) for i in range(3)}, pathlib.PurePosixPath("/a/b")] + ([Slots()] if protocol >= 2 else [])


def edges():
    texts = ["", "a", "it's", 'two"', "back\\slash", "line\nfeed\r", "nul\0", "\x7f\x80\xff", "\u20ac", "\U0001f600",
             "\ud800", "x" * 256, "\\u0041", "e\u0301" * 10]
    numbers = [s * (1 << b) + d for b in (0, 7, 8, 15, 16, 31, 32, 63, 64, 127, 600)
               for s in (1, -1) for d in (-1, 0, 1)]
    floats = [0.0, -0.0, 1.5, -1e300, 5e-324, float("inf"), float("-inf"), float("nan"), 0.1]
    blobs = [b"", b"\0", bytes(range(120, 140)), b"b" * 257]
    return [texts, numbers, floats, blobs, [bytearray(b) for b in blobs], [(), [], {}, set(), frozenset()],
            [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (None, True, False)], list(range(20)), dict.fromkeys(range(20))]


def random_value(rng, depth):
    some = lambda: [random_value(rng, depth - 1) for _ in range(rng.randrange(5))]
    key = lambda: rng.choice([rng.randrange(100), "k%d" % rng.randrange(100), (rng.randrange(9), "t"), None, b"k"])
    kinds = ["none", "bool", "int", "float", "str", "bytes"]
    if depth > 0:
        kinds += ["tuple", "list", "dict", "set", "tuple", "list", "dict", "plain", "size"]
    kind = rng.choice(kinds)
    return {
        "none": lambda: None, "bool": lambda: rng.random() < 0.5,
        "int": lambda: rng.randrange(-1 << rng.choice([4, 8, 16, 31, 40, 63, 90]), 1 << rng.choice([4, 8, 16, 31, 40, 63, 90])),
        "float": lambda: rng.uniform(-1e6, 1e6),
        "str": lambda: "".join(rng.choice("abc._\u00e9\u4e2d\\\n'") for _ in range(rng.randrange(12))),
        "bytes": lambda: rng.randbytes(rng.randrange(12)),
        "tuple": lambda: tuple(some()), "list": some, "dict": lambda: {key(): v for v in some()},
        "set": lambda: {key() for _ in range(rng.randrange(4))},
        "plain": lambda: Plain(**{"f%d" % i: v for i, v in enumerate(some())}),
        "size": lambda: Size((rng.randrange(3), rng.randrange(3))),
    }[kind]()


class Persistent(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Id) else None


def put(name, value, protocol):
    f = io.BytesIO()
    Persistent(f, protocol).dump(value)
    (OUT / f"{name}-{protocol}.pkl").write_bytes(f.getvalue())
    note(f"{name}-{protocol}", f.getvalue())


def note(name, data, **kw):
    (OUT / f"{name}.txt").write_text(show(Inert(io.BytesIO(data), **kw).load()) + "\n")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for protocol in range(6):
        rng = random.Random(20 + protocol)
        if protocol != 4 and protocol != 1:
            put("edges", edges(), protocol)
        put("classes", classes(protocol), protocol)
        put("random", [random_value(rng, 4) for _ in range(70)], protocol)
        put("ids", [Id("7" if protocol == 0 else ("storage", Plain, "0", "cpu", 6)), "text"], protocol)
