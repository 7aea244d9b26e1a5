/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops: the opcode table: name, code, and the shape of what follows the code.
 *
 * Names and codes are those of CPython's pickletools. Private to core/parse/pickle*.c.
 */
#pragma once

/*
 * Shape of an argument. The first seven have nothing to check but their size; LEN* are a
 * length and that many bytes; LINE* end at a newline; GET* name a memo entry.
 */
enum pickle_arg {
	PICKLE_ARG_UNKNOWN,
	PICKLE_ARG_NONE,
	PICKLE_ARG_1,
	PICKLE_ARG_2,
	PICKLE_ARG_4,
	PICKLE_ARG_8,
	PICKLE_ARG_LEN1,
	PICKLE_ARG_LEN4,
	PICKLE_ARG_LEN8,
	PICKLE_ARG_SLEN4, /* signed length */
	PICKLE_ARG_GET1,
	PICKLE_ARG_GET4,
	PICKLE_ARG_GETLINE,
	PICKLE_ARG_LINE,
	PICKLE_ARG_LINE2,
	PICKLE_ARG_FRAME,
	PICKLE_ARG_PROTO,
	PICKLE_ARG_STOP,
	PICKLE_ARG_REFUSED,
};

/* clang-format off */
#define PICKLE_OPS(X)                     \
	/* protocol 0 */                  \
	X(MARK,             0x28, NONE)   \
	X(STOP,             0x2e, STOP)   \
	X(POP,              0x30, NONE)   \
	X(DUP,              0x32, NONE)   \
	X(FLOAT,            0x46, LINE)   \
	X(INT,              0x49, LINE)   \
	X(LONG,             0x4c, LINE)   \
	X(NONE,             0x4e, NONE)   \
	X(PERSID,           0x50, LINE)   \
	X(REDUCE,           0x52, NONE)   \
	X(STRING,           0x53, LINE)   \
	X(UNICODE,          0x56, LINE)   \
	X(APPEND,           0x61, NONE)   \
	X(BUILD,            0x62, NONE)   \
	X(GLOBAL,           0x63, LINE2)  \
	X(DICT,             0x64, NONE)   \
	X(GET,              0x67, GETLINE) \
	X(INST,             0x69, LINE2)  \
	X(LIST,             0x6c, NONE)   \
	X(PUT,              0x70, LINE)   \
	X(SETITEM,          0x73, NONE)   \
	X(TUPLE,            0x74, NONE)   \
	/* protocol 1 */                  \
	X(EMPTY_TUPLE,      0x29, NONE)   \
	X(POP_MARK,         0x31, NONE)   \
	X(BINFLOAT,         0x47, 8)      \
	X(BININT,           0x4a, 4)      \
	X(BININT1,          0x4b, 1)      \
	X(BININT2,          0x4d, 2)      \
	X(BINPERSID,        0x51, NONE)   \
	X(BINSTRING,        0x54, SLEN4)  \
	X(SHORT_BINSTRING,  0x55, LEN1)   \
	X(BINUNICODE,       0x58, LEN4)   \
	X(EMPTY_LIST,       0x5d, NONE)   \
	X(APPENDS,          0x65, NONE)   \
	X(BINGET,           0x68, GET1)   \
	X(LONG_BINGET,      0x6a, GET4)   \
	X(OBJ,              0x6f, NONE)   \
	X(BINPUT,           0x71, 1)      \
	X(LONG_BINPUT,      0x72, 4)      \
	X(SETITEMS,         0x75, NONE)   \
	X(EMPTY_DICT,       0x7d, NONE)   \
	/* protocol 2 */                  \
	X(PROTO,            0x80, PROTO)  \
	X(NEWOBJ,           0x81, NONE)   \
	X(EXT1,             0x82, REFUSED) \
	X(EXT2,             0x83, REFUSED) \
	X(EXT4,             0x84, REFUSED) \
	X(TUPLE1,           0x85, NONE)   \
	X(TUPLE2,           0x86, NONE)   \
	X(TUPLE3,           0x87, NONE)   \
	X(NEWTRUE,          0x88, NONE)   \
	X(NEWFALSE,         0x89, NONE)   \
	X(LONG1,            0x8a, LEN1)   \
	X(LONG4,            0x8b, SLEN4)  \
	/* protocol 3 */                  \
	X(BINBYTES,         0x42, LEN4)   \
	X(SHORT_BINBYTES,   0x43, LEN1)   \
	/* protocol 4 */                  \
	X(SHORT_BINUNICODE, 0x8c, LEN1)   \
	X(BINUNICODE8,      0x8d, LEN8)   \
	X(BINBYTES8,        0x8e, LEN8)   \
	X(EMPTY_SET,        0x8f, NONE)   \
	X(ADDITEMS,         0x90, NONE)   \
	X(FROZENSET,        0x91, NONE)   \
	X(NEWOBJ_EX,        0x92, NONE)   \
	X(STACK_GLOBAL,     0x93, NONE)   \
	X(MEMOIZE,          0x94, NONE)   \
	X(FRAME,            0x95, FRAME)  \
	/* protocol 5 */                  \
	X(BYTEARRAY8,       0x96, LEN8)   \
	X(NEXT_BUFFER,      0x97, REFUSED) \
	X(READONLY_BUFFER,  0x98, REFUSED)
/* clang-format on */

#define PICKLE_OP_ENUM(name, code, arg) PICKLE_##name = code,
enum pickle_op { PICKLE_OPS(PICKLE_OP_ENUM) };
#undef PICKLE_OP_ENUM

#define PICKLE_HIGHEST_PROTOCOL 5
