/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/jsonw.h"
#include "core/parse/pyjson/pyjson_int.h"

enum {
	SPELL_DEPTH = 8,  /* tuples inside a key */
	SPELL_MAX = 4096, /* bytes of a key that is not a str */
	FEW_PAIRS = 16,   /* more pairs need memory for the comparison of keys */
};

/* ---- how Python's str() spells a key ---- */

static void spell_int(struct dcp_buf *b, struct dcp_pv v)
{
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, b, false);
	if (v.type == DCP_PV_BIGINT)
		dcp_jsonw_bigint(&w, (const uint8_t *)v.node->data, v.node->n);
	else
		dcp_jsonw_i64(&w, v.i);
}

static void spell_float(struct dcp_buf *b, double f)
{
	struct dcp_jsonw w;

	if (isnan(f) || isinf(f)) {
		dcp_buf_str(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return;
	}
	dcp_jsonw_init(&w, b, false);
	dcp_jsonw_f64(&w, f);
}

/* repr() of text: in single quotes, unless the text contains them and no double quotes. */
static void spell_quoted(struct dcp_buf *b, const char *p, size_t n, bool ascii)
{
	char quote = memchr(p, '\'', n) && !memchr(p, '"', n) ? '"' : '\'';

	dcp_buf_add(b, &quote, 1);
	for (size_t i = 0; i < n && b->n < SPELL_MAX; i++) {
		unsigned char c = (unsigned char)p[i];

		if (c == '\n')
			dcp_buf_str(b, "\\n");
		else if (c == '\t')
			dcp_buf_str(b, "\\t");
		else if (c == '\r')
			dcp_buf_str(b, "\\r");
		else if (c == '\\' || c == (unsigned char)quote)
			dcp_buf_printf(b, "\\%c", c);
		else if (c < 0x20 || c == 0x7f || (ascii && c > 0x7f))
			dcp_buf_printf(b, "\\x%02x", c);
		else
			dcp_buf_add(b, &p[i], 1);
	}
	dcp_buf_add(b, &quote, 1);
}

static void spell_value(struct dcp_buf *b, struct dcp_pv v, int depth);

static void spell_items(struct dcp_buf *b, const struct dcp_pv *item, size_t n, bool tuple,
			int depth)
{
	dcp_buf_str(b, "(");
	for (size_t i = 0; i < n && b->n < SPELL_MAX; i++) {
		dcp_buf_str(b, i ? ", " : "");
		spell_value(b, item[i], depth + 1);
	}
	dcp_buf_str(b, tuple && n == 1 ? ",)" : ")");
}

/* Spell an instance like a call, as far as it is known. */
static void spell_object(struct dcp_buf *b, struct dcp_pv v, int depth)
{
	struct dcp_pyjson_look l;

	dcp_pyjson_look(v, &l);
	if (l.form == DCP_PYJSON_TEXT) {
		dcp_buf_add(b, l.text.node->data, l.text.node->n);
		return;
	}
	dcp_buf_str(b, dcp_pyjson_type(v));
	if (l.form == DCP_PYJSON_LIST)
		spell_items(b, l.items, l.nitems, false, depth);
	else if (l.form == DCP_PYJSON_CLASS)
		spell_items(b, l.args, l.nargs, false, depth);
}

/* In a tuple, text is in quotes, as by repr(). */
static void spell_value(struct dcp_buf *b, struct dcp_pv v, int depth)
{
	const struct dcp_pv *item;
	size_t n = 0;

	if (depth > SPELL_DEPTH) {
		dcp_buf_str(b, "...");
		return;
	}
	switch ((enum dcp_pv_type)v.type) {
	case DCP_PV_NONE:
		dcp_buf_str(b, "None");
		return;
	case DCP_PV_BOOL:
		dcp_buf_str(b, v.b ? "True" : "False");
		return;
	case DCP_PV_INT:
	case DCP_PV_BIGINT:
		spell_int(b, v);
		return;
	case DCP_PV_FLOAT:
		spell_float(b, v.f);
		return;
	case DCP_PV_STR:
		spell_quoted(b, v.node->data, v.node->n, false);
		return;
	case DCP_PV_BYTES:
		dcp_buf_str(b, "b");
		spell_quoted(b, v.node->data ? v.node->data : "", v.node->data ? v.node->n : 0,
			     true);
		return;
	case DCP_PV_TUPLE:
		item = dcp_pv_items(v, &n);
		spell_items(b, item, n, true, depth);
		return;
	case DCP_PV_GLOBAL:
		if (strcmp(dcp_pyjson_type(v), "type") == 0)
			dcp_buf_printf(b, "<class '%s'>", dcp_pyjson_class(v));
		else
			dcp_buf_str(b, v.node->full);
		return;
	case DCP_PV_OBJECT:
		spell_object(b, v, depth);
		return;
	case DCP_PV_LIST:
	case DCP_PV_SET:
	case DCP_PV_FROZENSET:
	case DCP_PV_DICT:
	case DCP_PV_BYTEARRAY:
	case DCP_PV_PERSID: /* as keys rare, or impossible in Python */
		dcp_buf_printf(b, "<%s>", dcp_pyjson_type(v));
		return;
	}
}

/* ---- paths ---- */

int dcp_pyjson_path_init(struct dcp_pyjson_path *p, const char *const *prefix, size_t n)
{
	memset(p, 0, sizeof(*p));
	for (size_t i = 0; i < n; i++) {
		int r = dcp_pyjson_push(p, prefix[i], strlen(prefix[i]));

		if (r < 0)
			return r;
	}
	return 0;
}

void dcp_pyjson_path_finish(struct dcp_pyjson_path *p)
{
	for (size_t i = 0; i < DCP_NITEMS(p->text, struct dcp_buf); i++)
		dcp_buf_finish(&DCP_ITEMS(p->text, struct dcp_buf)[i]);
	dcp_buf_finish(&p->text);
	dcp_buf_finish(&p->part);
	dcp_buf_finish(&p->key);
	dcp_buf_finish(&p->spelled);
}

int dcp_pyjson_push(struct dcp_pyjson_path *p, const char *s, size_t n)
{
	struct dcp_buf *text = dcp_buf_at(&p->text, p->n, sizeof(*text));
	const char **part = dcp_buf_at(&p->part, p->n, sizeof(*part)), *nul;

	if (!text || !part)
		return -ENOMEM;
	dcp_buf_reset(text);
	for (; n && (nul = memchr(s, '\0', n)); n -= (size_t)(nul + 1 - s), s = nul + 1) {
		dcp_buf_add(text, s, (size_t)(nul - s));
		dcp_buf_str(text, "\\x00");
	}
	dcp_buf_add(text, s, n);
	*part = text->p;
	p->n += dcp_buf_error(text) == 0;
	return dcp_buf_error(text);
}

int dcp_pyjson_push_index(struct dcp_pyjson_path *p, size_t i)
{
	char s[24], *at = s + sizeof(s);

	do
		*--at = (char)('0' + i % 10);
	while (i /= 10);
	return dcp_pyjson_push(p, at, (size_t)(s + sizeof(s) - at));
}

int dcp_pyjson_push_key(struct dcp_pyjson_path *p, struct dcp_pv key)
{
	if (key.type == DCP_PV_STR)
		return dcp_pyjson_push(p, key.node->data, key.node->n);
	dcp_buf_reset(&p->spelled);
	spell_value(&p->spelled, key, 0);
	if (dcp_buf_error(&p->spelled) < 0 || !p->spelled.p)
		return -ENOMEM;
	return dcp_pyjson_push(p, p->spelled.p, p->spelled.n);
}

void dcp_pyjson_pop(struct dcp_pyjson_path *p)
{
	p->n--;
}

const char *dcp_pyjson_path_key(struct dcp_pyjson_path *p, size_t n)
{
	dcp_buf_reset(&p->key);
	dcp_buf_add(&p->key, "", 0);
	for (size_t i = 0; i < n; i++) {
		if (i)
			dcp_buf_add(&p->key, ".", 1);
		dcp_buf_str(&p->key, dcp_pyjson_parts(p)[i]);
	}
	if (dcp_buf_error(&p->key) < 0)
		return NULL;
	return p->key.p ? p->key.p : "";
}

int dcp_pyjson_trail_find(const struct dcp_pyjson_trail *t, struct dcp_pv v)
{
	for (size_t i = t->n; i-- > 0;)
		if (t->at[i].node == v.node)
			return (int)i;
	return -1;
}

/* ---- duplicate keys ---- */

static bool same_key(struct dcp_pv a, struct dcp_pv b)
{
	if (a.type == DCP_PV_STR && b.type == DCP_PV_STR)
		return a.node == b.node || (a.node->n == b.node->n &&
					    memcmp(a.node->data, b.node->data, a.node->n) == 0);
	if ((a.type == DCP_PV_INT || a.type == DCP_PV_BOOL) &&
	    (b.type == DCP_PV_INT || b.type == DCP_PV_BOOL)) /* True is 1 */
		return (a.type == DCP_PV_INT ? a.i : a.b) == (b.type == DCP_PV_INT ? b.i : b.b);
	return a.type == DCP_PV_NONE && b.type == DCP_PV_NONE;
}

static uint64_t hash_key(struct dcp_pv v, uint64_t seed)
{
	int64_t number = v.type == DCP_PV_INT ? v.i : v.type == DCP_PV_BOOL && v.b;

	return v.type == DCP_PV_STR ? dcp_hash64_more(seed, v.node->data, v.node->n)
				    : dcp_hash64_more(seed, &number, sizeof(number));
}

/* Note that pair @i has the key of @first; the table of last values is made when first needed. */
static int note_duplicate(uint32_t **last, size_t npairs, size_t first, size_t i)
{
	if (!*last) {
		*last = malloc(npairs * sizeof(**last));
		if (!*last)
			return -ENOMEM;
		for (size_t k = 0; k < npairs; k++)
			(*last)[k] = (uint32_t)k;
	}
	(*last)[first] = (uint32_t)i;
	(*last)[i] = UINT32_MAX;
	return 0;
}

int dcp_pyjson_duplicates(const struct dcp_pv *kv, size_t npairs, uint32_t **last)
{
	uint32_t few[2 * FEW_PAIRS] = { 0 },
			 *table = few; /* pair number + 1; nitems fits in 32 bits */
	size_t cap = DCP_LEN(few);
	/* The address of the memory is not in the file, so no file can aim at one slot. */
	uint64_t seed = (uintptr_t)kv;
	int r = 0;

	*last = NULL;
	while (cap < npairs * 2)
		cap *= 2;
	if (cap > DCP_LEN(few))
		table = calloc(cap, sizeof(*table));
	if (!table)
		return -ENOMEM;
	for (size_t i = 0; r == 0 && i < npairs; i++) {
		size_t at;

		if (kv[2 * i].type != DCP_PV_STR && kv[2 * i].type != DCP_PV_INT &&
		    kv[2 * i].type != DCP_PV_BOOL && kv[2 * i].type != DCP_PV_NONE)
			continue;
		at = hash_key(kv[2 * i], seed) & (cap - 1);
		while (table[at] && !same_key(kv[2 * (table[at] - 1)], kv[2 * i]))
			at = (at + 1) & (cap - 1);
		if (table[at])
			r = note_duplicate(last, npairs, table[at] - 1, i);
		else
			table[at] = (uint32_t)i + 1;
	}
	if (table != few)
		free(table);
	if (r < 0)
		free(*last);
	return r;
}
