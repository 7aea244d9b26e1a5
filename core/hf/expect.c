/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/text.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"

/* NAMED: keys of each kind that the line names; MAX_NAME: bytes of one key */
enum { NAMED = 3, MAX_NAME = 200 };
enum { NEAR_NAMES = 100 }; /* foreign keys that a missing key is compared with */

struct entry {
	struct dcp_rules_expected of;
	bool seen;
};

struct comparing {
	struct dcp_expected *x;
	const struct dcp_rules_config *config;
	struct dcp_intern keys, bare; /* by the same numbers */
	struct dcp_buf entries;       /* struct entry, by number in keys */
	struct dcp_arena arena;
	const char *foreign[NEAR_NAMES];
	size_t nforeign;
	bool quantized; /* according to config.json */
	bool some;      /* some tensors of the model are unknown, so other tensors are not
			 * foreign */
};

static int note_tensor(void *ctx, const struct dcp_rules_expected *of)
{
	struct comparing *c = ctx;
	struct entry e = { .of = *of };
	int rc = dcp_intern_str(&c->keys, of->key, NULL);

	if (rc > 0)
		rc = dcp_intern_str(&c->bare, of->bare, NULL);
	if (rc > 0)
		dcp_buf_add(&c->entries, &e, sizeof(e));
	return rc < 0 ? rc : dcp_buf_error(&c->entries);
}

static void say_key(const struct comparing *c, const char *what, const char *key,
		    const char *text)
{
	if (c->x->say)
		c->x->say(c->x->ctx, what, key, text);
}

static void put_shape(struct dcp_buf *b, const uint64_t *shape, uint32_t ndim)
{
	dcp_buf_str(b, "[");
	for (uint32_t d = 0; d < ndim; d++)
		dcp_buf_printf(b, "%s%llu", d ? ", " : "", (unsigned long long)shape[d]);
	dcp_buf_str(b, "]");
}

static bool is_float(enum dcp_dtype t)
{
	return t == DCP_DTYPE_F32 || t == DCP_DTYPE_F16 || t == DCP_DTYPE_BF16;
}

static void check_shape(const struct comparing *c, const struct dcp_row *row,
			const struct dcp_rules_expected *of)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	/* A quantized tensor has another shape, since its elements are packed. */
	if (!of->ndim || (c->quantized && !is_float(row->dtype)) ||
	    (row->ndim == of->ndim &&
	     memcmp(row->shape, of->shape, of->ndim * sizeof(*of->shape)) == 0))
		return;
	c->x->misshaped++;
	put_shape(&b, row->shape, row->ndim);
	dcp_buf_str(&b, " where config.json has ");
	put_shape(&b, of->shape, of->ndim);
	say_key(c, "shape", row->key, dcp_buf_error(&b) ? "" : b.p);
}

/* Endings of keys that replace a weight, or lie beside it, in a quantized model: GPTQ and AWQ,
 * compressed-tensors, fp8 with scales, bitsandbytes. */
static const char *const parts[] = {
	".qweight",
	".qzeros",
	".scales",
	".g_idx",
	".weight_packed",
	".weight_scale",
	".weight_scale_inv",
	".weight_scale_2",
	".weight_shape",
	".weight_g_idx",
	".weight_zero_point",
	".weight_global_scale",
	".input_scale",
	".input_zero_point",
	".input_global_scale",
	".weight.absmax",
	".weight.quant_map",
	".weight.nested_absmax",
};

/* The number of the model's tensor @key, which may also be a key of the model without its head. */
static uint32_t find_key(const struct comparing *c, const char *key, size_t n)
{
	uint32_t number = dcp_intern_find(&c->keys, key, n);

	return number == DCP_INTERN_NONE ? dcp_intern_find(&c->bare, key, n) : number;
}

static struct entry *weight_of(struct comparing *c, const char *key, size_t n,
			       const char *weight)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	uint32_t number;

	dcp_buf_add(&name, key, n);
	dcp_buf_str(&name, weight);
	number = dcp_buf_error(&name) ? DCP_INTERN_NONE : find_key(c, name.p, name.n);
	return number == DCP_INTERN_NONE ? NULL : DCP_ITEMS(c->entries, struct entry) + number;
}

/*
 * The weight that the tensor @key is a part of, or NULL. The ending of the key decides; if
 * config.json says that the model is quantized, every tensor below a module with a weight is a part
 * of that weight, too.
 */
static struct entry *part_of(struct comparing *c, const char *key)
{
	size_t n = strlen(key);
	struct entry *found = NULL;

	for (size_t i = 0; !found && i < DCP_LEN(parts); i++)
		if (dcp_ends_with(key, n, parts[i]))
			found = weight_of(c, key, n - strlen(parts[i]), ".weight");
	if (!found && (dcp_ends_with(key, n, "_blocks") || dcp_ends_with(key, n, "_scales")))
		found = weight_of(c, key, n - 7, ""); /* mxfp4 */
	for (size_t i = n; c->quantized && !found && i > 0; i--)
		if (key[i] == '.')
			found = weight_of(c, key, i, ".weight");
	return found;
}

/* Is the tensor a buffer that older releases saved, or a scale of a quantized cache of keys and
 * values? */
static bool is_buffer(const struct comparing *c, const char *key)
{
	static const char *const ends[] = { ".inv_freq",       ".position_ids",
					    ".attn.bias",      ".attn.masked_bias",
					    ".attention.bias", ".attention.masked_bias" };
	size_t n = strlen(key);
	bool is = c->quantized && dcp_ends_with(key, n, "_scale");

	for (size_t i = 0; i < DCP_LEN(ends); i++)
		is |= dcp_ends_with(key, n, ends[i]);
	return is;
}

static int look_at(struct comparing *c, const struct dcp_row *row)
{
	uint32_t number = find_key(c, row->key, strlen(row->key));
	struct entry *e = DCP_ITEMS(c->entries, struct entry), *of = NULL;

	if (number == DCP_INTERN_NONE)
		of = part_of(c, row->key);
	if (of) {
		of->seen = true;
		return 0;
	}
	if (is_float(row->dtype) && c->x->dtype && row->dtype != c->x->dtype)
		c->x->retyped++;
	if (number != DCP_INTERN_NONE) {
		e[number].seen = true;
		if (!row->broken)
			check_shape(c, row, &e[number].of);
		return 0;
	}
	if (c->some || dcp_rules_has_head(c->config, row->key) || is_buffer(c, row->key))
		return 0;
	c->x->foreign++;
	say_key(c, "foreign", row->key, "the model of config.json has no such tensor");
	if (c->nforeign == NEAR_NAMES)
		return 0;
	c->foreign[c->nforeign] = dcp_arena_strdup(&c->arena, row->key);
	return c->foreign[c->nforeign++] ? 0 : -ENOMEM;
}

static void say_missing(const struct comparing *c, const char *key)
{
	struct dcp_near near = dcp_near_to(key);
	const char *found = NULL;
	char text[300] = "it is not there";

	for (size_t i = 0; c->x->missing <= NEAR_NAMES && i < c->nforeign; i++)
		if (dcp_near_take(&near, c->foreign[i]))
			found = c->foreign[i];
	if (found)
		snprintf(text, sizeof(text), "it is not there, nearest is %.200s", found);
	say_key(c, "missing", key, text);
}

static int compare_rows(struct comparing *c, struct dcp_version *v)
{
	const struct entry *e = DCP_ITEMS(c->entries, struct entry);
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, false, &scan);

	while (rc >= 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = look_at(c, &row);
	c->x->tensors = c->entries.n / sizeof(*e);
	for (uint32_t i = 0; rc == 0 && i < c->x->tensors; i++) {
		c->x->needed += !e[i].of.optional;
		if (!e[i].seen && !e[i].of.optional) {
			c->x->missing++;
			say_missing(c, dcp_intern_text(&c->keys, i));
		}
	}
	return rc;
}

int dcp_hf_expect(struct dcp_version *v, struct dcp_expected *x, struct dcp_err *err)
{
	const struct dcp_rules_config *config = dcp_hf_config(v);
	struct comparing c = { .x = x, .config = config };
	int rc = 0;

	x->family = !config                 ? NULL
		    : config->model_type[0] ? config->model_type
		    : config->class_name[0] ? config->class_name
					    : NULL;
	if (!config || dcp_hf_adapter(v))
		return 0;
	x->dtype = config->dtype;
	c.quantized = config->quantized;
	dcp_arena_init(&c.arena, 64 << 20);
	rc = dcp_rules_expect(config, note_tensor, &c);
	c.some = rc == DCP_RULES_SOME;
	if (rc > 0 && compare_rows(&c, v) < 0)
		rc = -EIO;
	dcp_intern_finish(&c.keys);
	dcp_intern_finish(&c.bare);
	dcp_buf_finish(&c.entries);
	dcp_arena_finish(&c.arena);
	return rc < 0 ? dcp_err_say(err, rc) : rc;
}

/* ---- in one line ---- */

struct naming {
	struct dcp_buf
		names[3]; /* the first few names, one buffer for each kind of difference */
	unsigned n[3];
};

static const char *const whats[] = { "missing", "shape", "foreign" };

static void name_key(void *ctx, const char *what, const char *key, const char *text)
{
	struct naming *t = ctx;
	size_t i = 0;

	while (i + 1 < DCP_LEN(whats) && strcmp(what, whats[i]) != 0)
		i++;
	if (t->n[i]++ >= NAMED)
		return;
	dcp_buf_str(&t->names[i], t->n[i] > 1 ? ", " : "");
	dcp_buf_shown(&t->names[i], key, strnlen(key, MAX_NAME), "");
}

static void put_misfit(const struct dcp_expected *x, const struct naming *t,
		       struct dcp_buf *out)
{
	static const char *const says[] = { "missing", "of another shape",
					    "that the model does not have" };
	const uint64_t n[] = { x->missing, x->misshaped, x->foreign };
	const char *comma = "";

	dcp_buf_str(out, "not the model of its config.json (");
	dcp_buf_shown(out, x->family, strlen(x->family), "");
	dcp_buf_printf(out, ", %llu tensors): ", (unsigned long long)x->tensors);
	for (size_t i = 0; i < DCP_LEN(says); i++) {
		if (!n[i])
			continue;
		dcp_buf_printf(out, "%s%llu %s (%s%s)", comma, (unsigned long long)n[i],
			       says[i], t->names[i].p ? t->names[i].p : "",
			       n[i] > NAMED ? ", ..." : "");
		comma = ", ";
	}
}

int dcp_hf_fit(struct dcp_version *v, struct dcp_buf *out, struct dcp_err *err)
{
	struct naming t = { 0 };
	struct dcp_expected x = { .say = name_key, .ctx = &t };
	int rc = dcp_hf_expect(v, &x, err), fit = DCP_WHOLE;
	const char *name = rc == 0 && dcp_hf_of(v) ? dcp_hf_missing(dcp_hf_of(v)) : NULL;

	if (name) {
		fit = DCP_NO_CONFIG;
		dcp_hf_ask(dcp_hf_of(v), name, out);
	} else if (rc > 0 && x.missing + x.misshaped + x.foreign) {
		fit = x.missing == x.needed && !x.misshaped ? DCP_OTHER_NAMES : DCP_MISFIT;
		put_misfit(&x, &t, out);
	}
	for (size_t i = 0; i < DCP_LEN(t.names); i++) {
		rc = dcp_buf_error(&t.names[i]) < 0 ? -ENOMEM : rc;
		dcp_buf_finish(&t.names[i]);
	}
	if (dcp_buf_error(out) < 0)
		rc = -ENOMEM;
	return rc < 0 ? dcp_err_say(err, rc) : fit;
}
