#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/bad/pickle/: one file for each fault, named after it. Run by hand.

tests/unit/parse/pickle/files.c says what each must be refused with.
"""
import pathlib, struct, sys

sys.set_int_max_str_digits(0)

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/bad/pickle")
OUT.mkdir(parents=True, exist_ok=True)


def put(name, data):
    (OUT / f"{name}.pkl").write_bytes(data)


le32 = lambda n: struct.pack("<I", n)
le64 = lambda n: struct.pack("<Q", n)
OBJ = b"cm\nC\n)\x81"

# cut, or claiming more than there is
put("empty-file", b"")
put("no-stop", b"\x80\x04N")
put("protocol-without-number", b"\x80")
put("protocol-6", b"\x80\x06N.")
put("frame-past-end", b"\x80\x04\x95" + le64(3) + b"N.")
put("frame-longest", b"\x95" + le64(2**64 - 1) + b"N.")
put("short-unicode-past-end", b"\x8c\xc8" + b"a" * 10 + b".")
put("unicode-past-end", b"X" + le32(2**32 - 1) + b"aaaa.")
put("unicode8-past-end", b"\x8d" + le64(2**64 - 1) + b"aaaa.")
put("bytes-past-end", b"B" + le32(6) + b"aaaa.")
put("bytes8-past-end", b"\x8e" + le64(2**63) + b"aaaa.")
put("bytearray8-past-end", b"\x96" + le64(2**40) + b"aaaa.")
put("string-negative", b"T" + le32(2**32 - 1) + b"aaaa.")
put("long4-negative", b"\x8b" + le32(2**31) + b"aaaa.")
put("long1-past-end", b"\x8a\x09aaaa.")
put("long4-too-long", b"\x8b" + le32(4097) + b"\x01" * 4097 + b".")
put("line-open", b"cmodule\nname")

# opcodes that are refused
put("opcode-unknown", b"N0\xfe.")
put("ext1", b"\x82\x01.")
put("ext2", b"\x83\x01\x00.")
put("ext4", b"\x84\x01\x00\x00\x00.")
put("next-buffer", b"\x97.")
put("readonly-buffer", b"N\x98.")

# stack and marks
put("stop-on-nothing", b".")
put("stop-on-two", b"NN.")
put("stop-on-mark", b"N(.")
put("inst-on-full-stack", b"N" * 63 + b"(im\nC\n.")  # a fuzz find: wrote behind the stack
put("pop-nothing", b"0N.")
put("dup-nothing", b"2.")
put("dup-mark", b"N(2.")
put("tuple-without-mark", b"NNt.")
put("tuple2-of-one", b"N\x86.")
put("tuple1-of-mark", b"N(\x85.")
put("pop-mark-without-mark", b"N1.")
put("appends-without-list", b"(Ne.")
put("appends-without-mark", b"]Ne.")
put("append-below-mark", b"](Na.")
put("reduce-on-one", b"N\x52.")
put("build-on-one", b"Nb.")
put("obj-without-class", b"(o.")
put("inst-without-mark", b"im\nC\n.")
put("stack-global-of-one", b"\x8c\x01m\x93.")
put("persid-of-nothing", b"Q.")

# types
put("setitem-on-list", b"]NNs.")
put("setitem-on-int", b"K\x01NNs.")
put("setitems-on-tuple", b")(NNu.")
put("setitems-odd", b"}(NNNu.")
put("dict-odd", b"(NNNd.")
put("append-on-dict", b"}Na.")
put("append-on-tuple", b")Na.")
put("appends-on-set", b"\x8f(Ne.")
put("additems-on-list", b"](N\x90.")
put("additems-on-frozenset", b"(\x91(N\x90.")
put("build-on-dict", b"}}b.")
put("build-on-global", b"cm\nC\n}b.")
put("build-on-int", b"K\x01}b.")
put("reduce-calls-int", b"K\x01)R.")
put("reduce-calls-str", b"\x8c\x01f)R.")
put("reduce-without-tuple", b"cm\nf\n]R.")
put("newobj-of-list", b"])\x81.")
put("newobj-without-tuple", b"cm\nC\nN\x81.")
put("newobj-ex-without-dict", b"cm\nC\n))\x92.")
put("newobj-ex-without-tuple", b"cm\nC\n}}\x92.")
put("obj-of-int", b"(K\x01o.")
put("stack-global-of-int", b"\x8c\x01mK\x01\x93.")
put("stack-global-of-bytes", b"C\x01m\x8c\x01f\x93.")
put("stack-global-nul", b"\x8c\x01m\x8c\x02f\x00\x93.")
put("global-nul", b"cm\x00\nf\n.")
put("global-not-utf8", b"cm\xff\nf\n.")

# the memo
put("memo-get-unknown", b"h\x00.")
put("memo-get-later", b"h\x00]q\x00.")
put("memo-get-far", b"j\xff\xff\xff\xff.")
put("memo-get-text-unknown", b"g123456789\n.")
put("memo-get-not-number", b"Np0\ng0x\n.")
put("memo-get-negative", b"Np0\ng-1\n.")
put("memo-put-not-number", b"Np\n.")
put("memo-put-longest", b"Np99999999999999999999\n.")
put("memo-put-nothing", b"q\x00N.")
put("memo-put-mark", b"N(q\x001.")
put("memoize-nothing", b"\x94N.")
put("memoize-after-holes", b"Nq\x05\x94.")

# numbers and text
put("int-empty", b"I\n.")
put("int-hex", b"I0x10\n.")
put("int-octal", b"I010\n.")
put("int-space", b"I 1\n.")
put("int-minus", b"I-\n.")
put("int-too-long", b"I" + b"9" * 9999 + b"\n.")
put("long-over-limit", b"L" + str(1 << 4096 * 8 - 1).encode() + b"L\n.")
put("long-no-digits", b"LL\n.")
put("float-empty", b"F\n.")
put("float-hex", b"F0x1p3\n.")
put("float-comma", b"F1,5\n.")
put("float-text-behind", b"F1.5x\n.")
put("string-no-quotes", b"Sabc\n.")
put("string-one-quote", b"S'\n.")
put("string-quotes-differ", b"S'abc\"\n.")
put("string-bad-hex", b"S'\\xg0'\n.")
put("string-cut-hex", b"S'\\x4'\n.")
put("string-backslash-last", b"S'a\\'\n.")
put("unicode-bad-escape", b"V\\u12g4\n.")
put("unicode-cut-escape", b"V\\u12\n.")
put("unicode-too-large", b"V\\U00110000\n.")
put("utf8-lone-byte", b"\x8c\x01\xff.")
put("utf8-overlong", b"\x8c\x02\xc0\xaf.")
put("utf8-overlong-3", b"\x8c\x03\xe0\x80\xaf.")
put("utf8-cut", b"\x8c\x02\xe2\x82.")
put("utf8-too-large", b"X" + le32(4) + b"\xf4\x90\x80\x80.")
put("utf8-late", b"X" + le32(40) + b"a" * 39 + b"\x80.")
put("persid-not-utf8", b"P\xff\n.")

# nesting: more than 500 levels through everything that can nest
put("deep-lists", b"]" * 502 + b"a" * 501 + b".")
put("deep-tuples", b")" + b"\x85" * 501 + b".")
put("deep-dicts", b"}N" * 501 + b"}" + b"s" * 501 + b".")
put("deep-calls", b"cm\nf\n" * 260 + b")" + b"R\x85" * 260 + b".")
put("deep-objects", b"cm\nC\n" * 260 + b")" + b"\x81\x85" * 260 + b".")
put("deep-states", OBJ * 501 + b"N" + b"b" * 501 + b".")
put("deep-ids", b")" + b"Q" * 501 + b".")
put("deep-sets", b"\x8f(" * 501 + b"\x8f" + b"\x90" * 501 + b".")
put("deep-frozensets", b"(" * 502 + b"\x91" * 502 + b".")
put("deep-list-in-itself", b"]q\x00" + b"h\x00a" * 501 + b".")
