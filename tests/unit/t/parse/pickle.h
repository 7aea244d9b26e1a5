/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_pickle: a parsed pickle as one line of text, in the notation of tests/gen/pickles.py.
 *
 *	None True 7 L0000000000000000 01 (too long for 64 bits: little-endian hex)
 *	f3ff0000000000000 's' b'bytes' a'bytearray' (1,) [1,] {1:2,} set(1,) frozen(1,)
 *	<module name> id(x) call(f,args) new(cls,args,kw=..) state=.. list=[..] dict={..}
 */
#pragma once
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"

enum { T_PICKLE_DEEP = 7 }; /* cycles are cut here, by both sides */

static inline void t_pickle_show(struct dcp_buf *b, struct dcp_pv v, int depth);

static inline void t_pickle_quote(struct dcp_buf *b, const char *open, struct dcp_pv v)
{
	dcp_buf_printf(b, "%s'", open);
	for (uint64_t i = 0; v.node->data && i < v.node->n; i++) {
		uint8_t c = (uint8_t)v.node->data[i];

		if (c < 0x20 || c > 0x7e || c == '\'' || c == '\\')
			dcp_buf_printf(b, "\\x%02x", c);
		else
			dcp_buf_printf(b, "%c", c);
	}
	if (!v.node->data)
		dcp_buf_printf(b, "@%llu+%llu", (unsigned long long)v.node->src_off,
			       (unsigned long long)v.node->n);
	dcp_buf_str(b, "'");
}

static inline void t_pickle_items(struct dcp_buf *b, const char *open, struct dcp_pv v,
				  const char *close, int depth)
{
	dcp_buf_str(b, open);
	for (uint32_t i = 0; i < v.node->nitems; i++) {
		t_pickle_show(b, v.node->items[i], depth + 1);
		dcp_buf_str(b, v.type == DCP_PV_DICT && i % 2 == 0 ? ":" : ",");
	}
	dcp_buf_str(b, close);
}

static inline void t_pickle_part(struct dcp_buf *b, const char *name, struct dcp_pv v,
				 int depth)
{
	if (v.type == DCP_PV_NONE)
		return;
	dcp_buf_str(b, name);
	t_pickle_show(b, v, depth + 1);
}

static inline void t_pickle_object(struct dcp_buf *b, const struct dcp_pobj *o, int depth)
{
	dcp_buf_str(b, o->called ? "call(" : "new(");
	t_pickle_show(b, o->callable, depth + 1);
	dcp_buf_str(b, ",");
	t_pickle_show(b, o->args, depth + 1);
	t_pickle_part(b, ",kw=", o->kwargs, depth);
	if (o->built) {
		dcp_buf_str(b, ",state=");
		t_pickle_show(b, o->state, depth + 1);
	}
	t_pickle_part(b, ",list=", o->list, depth);
	t_pickle_part(b, ",dict=", o->dict, depth);
	dcp_buf_str(b, ")");
}

static inline void t_pickle_show(struct dcp_buf *b, struct dcp_pv v, int depth)
{
	uint64_t bits;

	if (depth > T_PICKLE_DEEP) {
		dcp_buf_str(b, "...");
		return;
	}
	switch ((enum dcp_pv_type)v.type) {
	case DCP_PV_NONE:
		dcp_buf_str(b, "None");
		break;
	case DCP_PV_BOOL:
		dcp_buf_str(b, v.b ? "True" : "False");
		break;
	case DCP_PV_INT:
		dcp_buf_printf(b, "%lld", (long long)v.i);
		break;
	case DCP_PV_FLOAT:
		memcpy(&bits, &v.f, sizeof(bits));
		dcp_buf_printf(b, "f%016llx", (unsigned long long)bits);
		break;
	case DCP_PV_BIGINT:
		dcp_buf_str(b, "L");
		for (uint64_t i = 0; i < v.node->n; i++)
			dcp_buf_printf(b, "%02x", (uint8_t)v.node->data[i]);
		break;
	case DCP_PV_STR:
		assert_int_equal(v.node->data[v.node->n], 0);
		t_pickle_quote(b, "", v);
		break;
	case DCP_PV_BYTES:
		t_pickle_quote(b, "b", v);
		break;
	case DCP_PV_BYTEARRAY:
		t_pickle_quote(b, "a", v);
		break;
	case DCP_PV_TUPLE:
		t_pickle_items(b, "(", v, ")", depth);
		break;
	case DCP_PV_LIST:
		t_pickle_items(b, "[", v, "]", depth);
		break;
	case DCP_PV_SET:
		t_pickle_items(b, "set(", v, ")", depth);
		break;
	case DCP_PV_FROZENSET:
		t_pickle_items(b, "frozen(", v, ")", depth);
		break;
	case DCP_PV_DICT:
		t_pickle_items(b, "{", v, "}", depth);
		break;
	case DCP_PV_GLOBAL:
		dcp_buf_printf(b, "<%s %s>", v.node->module, v.node->name);
		break;
	case DCP_PV_OBJECT:
		t_pickle_object(b, v.node->obj, depth);
		break;
	case DCP_PV_PERSID:
		dcp_buf_str(b, "id(");
		t_pickle_show(b, v.node->items[0], depth + 1);
		dcp_buf_str(b, ")");
		break;
	}
}

/* Caller frees. */
static inline char *t_pickle_text(struct dcp_pv v)
{
	struct dcp_buf b = DCP_BUF_INIT;

	t_pickle_show(&b, v, 0);
	return dcp_buf_take(&b);
}

/* The whole of a small file, in memory of exactly its size. Caller frees. */
static inline char *t_slurp(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	char *p;

	if (!f)
		fail_msg("%s: %s", path, strerror(errno));
	fseek(f, 0, SEEK_END);
	*n = (size_t)ftell(f);
	rewind(f);
	p = malloc(*n ? *n : 1);
	assert_int_equal(fread(p, 1, *n, f), *n);
	fclose(f);
	return p;
}
