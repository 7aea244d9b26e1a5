/* SPDX-License-Identifier: Apache-2.0 */
/*
 * universal_checkpoint_info: the record by the framework above DeepSpeed of how its parameters are
 * cut over tensor-parallel ranks, as lists of regular expressions. The first list that matches a
 * name decides, and affine_map comes before all lists. A name in no list is cut along its first
 * dimension.
 *
 * Megatron-DeepSpeed writes a dozen patterns. DeepSpeed's own AutoTP writes one for each parameter,
 * "^layers\.0\.weight$": such patterns are looked up by name. GPT-NeoX records nothing like this,
 * see neox.c.
 */
#include "core/format/deepspeed/deepspeed_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/parse/parse.h"

/*
 * affine_map of universal_checkpoint_info (since 0.19): for every rank, the blocks of the whole
 * tensor that it holds, as offsets and strides in the whole and in the rank's tensor.
 *
 *	{"logical_shape": [6, 4], "ranks": {0: {"shard_shape": [3, 4], "pieces": [
 *		{"shape": [3, 4], "source": [0, [4, 1]], "dest": [0, [4, 1]],
 *		 "locations": [0], "scale": 1.0}]}, ...}}
 *
 * All writers describe boxes in row-major order, where source is the whole and dest the rank's
 * tensor; other blocks are refused. Scaled blocks are refused, too: no file has their values.
 */

static const char senseless[] = "its affine_map is invalid";

struct reading {
	struct dcp_deepspeed *ds;
	struct dcp_deepspeed_map *map;
	const char *why;
};

static int refuse_rule(struct reading *r, const char *why)
{
	r->why = why;
	return 0;
}

/* Read the numbers of @v into the arena. If @ndim is NULL, there must be one for each dimension of
 * the whole; else @ndim is their number. */
static int take_dims(struct reading *r, struct dcp_pv v, const uint64_t **out, uint32_t *ndim)
{
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t n;

	if (!dcp_torch_dims(v, dims, &n) || (!ndim && n != r->map->ndim))
		return refuse_rule(r, senseless);
	*out = dcp_arena_dup(&r->ds->arena, dims, n, sizeof(*dims));
	if (ndim)
		*ndim = n;
	return *out ? 0 : -ENOMEM;
}

/* Read @v, the [offset, strides] of a box of lengths @len in @shape, and find its first element. */
static int take_corner(struct reading *r, struct dcp_pv v, const uint64_t *shape,
		       const uint64_t *len, const uint64_t **out)
{
	size_t n;
	const struct dcp_pv *pair = dcp_pv_items(v, &n);
	const uint64_t *stride = NULL;
	uint64_t *at, step = 1, off;
	int rc;

	if (n != 2 || !dcp_pv_u64(pair[0], &off))
		return refuse_rule(r, senseless);
	rc = take_dims(r, pair[1], &stride, NULL);
	if (rc < 0 || r->why)
		return rc;
	at = dcp_arena_calloc(&r->ds->arena, (size_t)r->map->ndim + 1, sizeof(*at));
	if (!at)
		return -ENOMEM;
	*out = at;
	for (uint32_t d = r->map->ndim; d-- > 0; step *= shape[d]) {
		if (shape[d] == 0)
			return refuse_rule(r, senseless);
		at[d] = off / step % shape[d];
		if (len[d] > 1 && stride[d] != step)
			return refuse_rule(r,
					   "its affine_map is of another order than row-major, "
					   "which is not supported");
		if (len[d] > shape[d] - at[d])
			return refuse_rule(r, senseless);
	}
	return off < step ? 0 : refuse_rule(r, senseless);
}

/* Is @rank the first of the ranks that hold the same block? Only that rank's block counts. */
static bool is_first(struct dcp_pv locations, uint64_t rank)
{
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(locations, &n);
	uint64_t other;

	for (size_t i = 0; i < n; i++)
		if (dcp_pv_u64(item[i], &other) && other < rank)
			return false;
	return true;
}

static int take_piece(struct reading *r, struct dcp_pv v, const uint64_t *shard, uint64_t rank,
		      struct dcp_deepspeed_block *out, size_t *n)
{
	const struct dcp_pv *scale = dcp_pv_get(v, "scale");
	const uint64_t *len = NULL;
	uint64_t volume;
	int rc = take_dims(r, dcp_pv_at(v, "shape"), &len, NULL);

	if (rc < 0 || r->why)
		return rc;
	if (scale && (scale->type != DCP_PV_FLOAT || scale->f < 1 || scale->f > 1))
		return refuse_rule(r, "its ranks hold it scaled (affine_map): no file has it");
	if (!dcp_shape_volume(len, r->map->ndim, &volume))
		return refuse_rule(r, senseless);
	if (volume == 0 || !is_first(dcp_pv_at(v, "locations"), rank))
		return 0;
	out[*n].len = len;
	rc = take_corner(r, dcp_pv_at(v, "source"), r->map->shape, len, &out[*n].at);
	if (rc == 0 && !r->why)
		rc = take_corner(r, dcp_pv_at(v, "dest"), shard, len, &out[*n].from);
	*n += rc == 0 && !r->why;
	return rc;
}

static int take_rank(struct reading *r, uint64_t rank, struct dcp_pv v,
		     struct dcp_deepspeed_shard *out)
{
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(v, "pieces"), &n);
	struct dcp_deepspeed_block *block;
	uint64_t volume;
	int rc = take_dims(r, dcp_pv_at(v, "shard_shape"), &out->shape, NULL);

	if (rc < 0 || r->why)
		return rc;
	if (!dcp_shape_volume(out->shape, r->map->ndim, &volume))
		return refuse_rule(r, senseless);
	block = dcp_arena_calloc(&r->ds->arena, n + 1, sizeof(*block));
	if (!block)
		return -ENOMEM;
	out->block = block;
	for (size_t i = 0; rc == 0 && !r->why && i < n; i++)
		rc = take_piece(r, item[i], out->shape, rank, block, &out->n);
	return rc;
}

/* Read one parameter of an affine_map. @why: the reason why it cannot be used, or NULL. 0 or
 * -ENOMEM. */
static int dcp_deepspeed_read_map(struct dcp_deepspeed *ds, struct dcp_pv v,
				  struct dcp_deepspeed_map *out, const char **why)
{
	struct reading r = { .ds = ds, .map = out };
	size_t n;
	const struct dcp_pv *kv = dcp_pv_pairs(dcp_pv_at(v, "ranks"), &n);
	struct dcp_deepspeed_shard *shard;
	uint64_t volume, rank;
	int rc = take_dims(&r, dcp_pv_at(v, "logical_shape"), &out->shape, &out->ndim);

	if (rc == 0 && !r.why && (!kv || !dcp_shape_volume(out->shape, out->ndim, &volume)))
		r.why = senseless;
	shard = dcp_arena_calloc(&ds->arena, n + 1, sizeof(*shard));
	if (!shard)
		return -ENOMEM;
	out->shard = shard;
	out->n = n;
	for (size_t i = 0; rc == 0 && !r.why && i < n; i++) {
		if (!dcp_pv_u64(kv[2 * i], &rank) || rank >= n || shard[rank].shape)
			r.why = senseless;
		else
			rc = take_rank(&r, rank, kv[2 * i + 1], &shard[rank]);
	}
	*why = r.why;
	return rc;
}

enum { MAX_PATTERNS = 256, MAX_NAME = 4096, MAP_VERSION = 1 };

enum {
	LIST_VOCABULARY = DCP_DEEPSPEED_CUT_COUNT,
	LIST_REFUSED = DCP_DEEPSPEED_LIST_REFUSED,
	LIST_UNKNOWN = DCP_DEEPSPEED_LIST_UNKNOWN,
};

struct pattern {
	struct dcp_regex *re; /* NULL: it matches a single name, in rules->names */
	const char *text;
	uint8_t list; /* enum dcp_deepspeed_cut, or one of those above */
	const struct dcp_deepspeed_sub *sub;
	const struct dcp_deepspeed_map *map;
	uint64_t height; /* as in struct dcp_deepspeed_rule */
	const char *why; /* why such names cannot be joined, or NULL */
};

struct dcp_deepspeed_rules {
	struct dcp_buf patterns, exact; /* struct pattern, each */
	size_t n;
	struct dcp_intern names; /* list and name -> number in exact */
	uint64_t vocabulary;     /* its number of rows; 0: not recorded */
	bool widths;             /* sub_param_shard_widths must be there (version 0.4) */
	bool complete; /* by AutoTP: a name in no list is cut along its first dimension, or is no
			  parameter */
	const char *why; /* not NULL: why nothing can be joined */
};

static const struct {
	const char *name;
	uint8_t list;
} lists[] = {
	{ "tp_replicated_parameter_patterns", DCP_DEEPSPEED_CUT_REPLICATED },
	{ "parameter_to_average_patterns", DCP_DEEPSPEED_CUT_AVERAGED },
	{ "parameter_with_2_sub_params_cat_dim_0", DCP_DEEPSPEED_CUT_HALVES },
	{ "parameter_with_row_parallelism_patterns", DCP_DEEPSPEED_CUT_COLUMNS },
	{ "vocabulary_parameter_patterns", LIST_VOCABULARY },
};

/* Is @p "^name$", with special characters escaped? Then @out is list and name. */
static bool is_exact(const char *p, uint8_t list, struct dcp_buf *out)
{
	dcp_buf_reset(out);
	dcp_buf_printf(out, "%u/", list);
	if (*p++ != '^')
		return false;
	for (; *p && strcmp(p, "$") != 0; p++) {
		if (*p == '\\' && p[1] && strchr(".-+*?()[]{}|^$ /\\", p[1]))
			p++;
		else if (strchr(".+*?()[]{}|^$\\", *p))
			return false;
		dcp_buf_add(out, p, 1);
	}
	return *p && !dcp_buf_error(out);
}

static int add_exact(struct dcp_deepspeed *ds, const struct pattern *p,
		     const struct dcp_buf *name)
{
	struct dcp_deepspeed_rules *rules = ds->rules;
	int rc = dcp_intern_add(&rules->names, name->p, name->n, DCP_INTERN_NONE, NULL);

	if (rc == 1)
		dcp_buf_add(&rules->exact, p, sizeof(*p));
	return rc < 0 || dcp_buf_error(&rules->exact) ? -ENOMEM : 0;
}

static int add_text(struct dcp_deepspeed *ds, const char *text, struct pattern p)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	struct dcp_deepspeed_rules *rules = ds->rules;
	struct dcp_err why = { 0 };
	int rc;

	p.text = dcp_arena_strdup(&ds->arena, text);
	if (!p.text)
		return -ENOMEM;
	if (is_exact(text, p.list, &name))
		return add_exact(ds, &p, &name);
	if (rules->n == MAX_PATTERNS) {
		rules->why = "universal_checkpoint_info has too many patterns";
		return 0;
	}
	rc = dcp_regex_compile(text, &ds->arena, &p.re, &why);
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0) {
		rules->why = dcp_arena_strdup(&ds->arena, why.msg);
		return rules->why ? 0 : -ENOMEM;
	}
	dcp_buf_add(&rules->patterns, &p, sizeof(p));
	rules->n++;
	return dcp_buf_error(&rules->patterns);
}

static int add_neox(struct dcp_deepspeed *ds, uint64_t width)
{
	struct dcp_deepspeed_known known[DCP_DEEPSPEED_NEOX];
	int rc = 0;

	dcp_deepspeed_neox(ds, width, known);
	for (size_t i = 0; rc == 0 && i < DCP_DEEPSPEED_NEOX; i++)
		rc = add_text(ds, known[i].pattern,
			      (struct pattern){ .list = known[i].list,
						.height = known[i].height,
						.why = known[i].why });
	return rc;
}

static int add_pattern(struct dcp_deepspeed *ds, struct dcp_pv v, struct pattern p)
{
	return dcp_pv_str(v) ? add_text(ds, dcp_pv_str(v), p) : 0;
}

static int add_patterns(struct dcp_deepspeed *ds, const struct dcp_pv *list, uint8_t kind)
{
	size_t n = 0;
	const struct dcp_pv *item = list ? dcp_pv_items(*list, &n) : NULL;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = add_pattern(ds, item[i], (struct pattern){ .list = kind });
	return rc;
}

/* ---- parameters made of others (fused QKV) ---- */

static int take_widths(struct dcp_deepspeed *ds, struct dcp_pv v, uint64_t **out, uint32_t *n)
{
	size_t len = 0;
	const struct dcp_pv *item = dcp_pv_items(v, &len);

	*out = dcp_arena_calloc(&ds->arena, len + 1, sizeof(**out));
	if (!*out)
		return -ENOMEM;
	for (size_t i = 0; i < len; i++)
		if (!dcp_pv_u64(item[i], &(*out)[i]) || (*out)[i] > INT64_MAX)
			return -EINVAL;
	*n = (uint32_t)len;
	return 0;
}

static bool adds_up(const uint64_t *width, uint32_t n, uint64_t all)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		if (dcp_ckd_add(&sum, sum, width[i]))
			return false;
	return sum == all;
}

/* Read {"patterns": [..], "shape": ((q, k, v), -1), "partition_dim": 0}, or a SubparamShape object
 * with these fields. */
static int take_sub(struct dcp_deepspeed *ds, struct dcp_pv v, struct dcp_deepspeed_sub *sub)
{
	const struct dcp_pv *shape = dcp_pv_get(v, "shape"),
			    *dim = dcp_pv_get(v, "partition_dim");
	const struct dcp_pv *item;
	uint64_t at = 0;
	size_t n = 0;
	int rc = 0;

	item = shape ? dcp_pv_items(*shape, &n) : NULL;
	if (!item || !dim || !dcp_pv_u64(*dim, &at) || at >= n || n > DCP_MAX_NDIM)
		return -EINVAL;
	sub->ndim = (uint32_t)n;
	sub->dim = (uint32_t)at;
	sub->shape = dcp_arena_calloc(&ds->arena, n, sizeof(*sub->shape));
	if (!sub->shape)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		uint64_t *widths = NULL, len;
		uint32_t nwidths = 0;

		if (item[i].type == DCP_PV_INT && item[i].i < 0) {
			sub->shape[i] = DCP_DEEPSPEED_OPEN;
		} else if (dcp_pv_u64(item[i], &len)) {
			sub->shape[i] = len;
		} else {
			rc = take_widths(ds, item[i], &widths, &nwidths);
			for (uint32_t k = 0; rc == 0 && k < nwidths; k++)
				if (dcp_ckd_add(&sub->shape[i], sub->shape[i], widths[k]))
					rc = -EINVAL;
		}
		if (i == at) {
			sub->width = widths;
			sub->nwidths = nwidths;
		}
	}
	return rc;
}

/* Read sub_param_shard_widths[pattern]: for each sub-tensor, the share of every rank. */
static int take_shards(struct dcp_deepspeed *ds, struct dcp_pv info, struct dcp_pv pattern,
		       struct dcp_deepspeed_sub *sub)
{
	const struct dcp_pv *all = dcp_pv_get(info, "sub_param_shard_widths"), *of, *item;
	size_t n = 0;
	int rc = 0;

	of = all && dcp_pv_str(pattern) ? dcp_pv_get(*all, dcp_pv_str(pattern)) : NULL;
	item = of ? dcp_pv_items(*of, &n) : NULL;
	sub->unequal = !item && ds->rules->widths;
	if (!item)
		return 0;
	if (n != sub->nwidths)
		return -EINVAL;
	sub->shard = dcp_arena_calloc(&ds->arena, n, sizeof(*sub->shard));
	if (!sub->shard)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		uint32_t len = 0;

		rc = take_widths(ds, item[i], &sub->shard[i], &len);
		if (rc == 0 && i > 0 && len != sub->nshards)
			rc = -EINVAL;
		if (rc == 0 && !adds_up(sub->shard[i], len, sub->width[i]))
			rc = -EINVAL;
		sub->nshards = len;
	}
	return rc;
}

static int take_subs(struct dcp_deepspeed *ds, struct dcp_pv info)
{
	const struct dcp_pv *all = dcp_pv_get(info, "parameter_with_sub_params");
	size_t n = 0, npatterns;
	const struct dcp_pv *item = all ? dcp_pv_items(*all, &n) : NULL;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		const struct dcp_pv *patterns = dcp_pv_get(item[i], "patterns"), *p;

		p = patterns ? dcp_pv_items(*patterns, &npatterns) : NULL;
		for (size_t k = 0; rc == 0 && p && k < npatterns; k++) {
			struct dcp_deepspeed_sub *sub =
				dcp_arena_calloc(&ds->arena, 1, sizeof(*sub));

			if (!sub)
				return -ENOMEM;
			rc = take_sub(ds, item[i], sub);
			if (rc == 0)
				rc = take_shards(ds, info, p[k], sub);
			if (rc == 0)
				rc = add_pattern(
					ds, p[k],
					(struct pattern){ .list = DCP_DEEPSPEED_CUT_SUBS,
							  .sub = sub });
		}
	}
	if (rc == -EINVAL) {
		ds->rules->why = "parameter_with_sub_params is invalid";
		rc = 0;
	}
	return rc;
}

/* ---- all of it ---- */

static int take_map(struct dcp_deepspeed *ds, struct dcp_pv pattern, struct dcp_pv v)
{
	struct dcp_deepspeed_map *map = dcp_arena_calloc(&ds->arena, 1, sizeof(*map));
	struct pattern p = { .list = DCP_DEEPSPEED_CUT_MAP, .map = map };
	int rc = map ? dcp_deepspeed_read_map(ds, v, map, &p.why) : -ENOMEM;

	return rc == 0 ? add_pattern(ds, pattern, p) : rc;
}

/* Read affine_map. Some layouts (of fused projections) are only in affine_map and in no list. So if
 * its version is unknown, the lists cannot replace it, and nothing is joined. */
static int take_maps(struct dcp_deepspeed *ds, struct dcp_pv info)
{
	const struct dcp_pv *all = dcp_pv_get(info, "affine_map");
	const struct dcp_pv *params = all ? dcp_pv_get(*all, "params") : NULL;
	const struct dcp_pv *version = all ? dcp_pv_get(*all, "version") : NULL;
	uint64_t number;
	size_t n = 0;
	const struct dcp_pv *kv = params ? dcp_pv_pairs(*params, &n) : NULL;
	int rc = 0;

	if (version && (!dcp_pv_u64(*version, &number) || number > MAP_VERSION))
		ds->rules->why = "affine_map is of a version that is not known yet: "
				 "convert the checkpoint with DeepSpeed's ds_to_universal";
	for (size_t i = 0; rc == 0 && !ds->rules->why && i < n; i++)
		rc = take_map(ds, kv[2 * i], kv[2 * i + 1]);
	return rc;
}

static int take_refused(struct dcp_deepspeed *ds, struct dcp_pv info)
{
	const struct dcp_pv *not = dcp_pv_get(info, "autotp_unsupported_parameter_patterns");
	const struct dcp_pv *kv;
	size_t n = 0;
	int rc = 0;

	ds->rules->complete = not != NULL;
	kv = not ? dcp_pv_pairs(*not, &n) : NULL;
	for (size_t i = 0; rc == 0 && kv && i < n; i++) {
		const char *why = dcp_pv_str(kv[2 * i + 1]);

		why = dcp_deepspeed_text(ds, "DeepSpeed says that it cannot be joined: %.200s",
					 why ? why : "no reason is given");
		rc = why ? add_pattern(ds, kv[2 * i],
				       (struct pattern){ .list = LIST_REFUSED, .why = why })
			 : -ENOMEM;
	}
	return rc;
}

static bool needs_widths(struct dcp_pv info)
{
	const struct dcp_pv *v = dcp_pv_get(info, "universal_checkpoint_version");

	return v && ((v->type == DCP_PV_FLOAT && v->f >= 0.4) ||
		     (v->type == DCP_PV_INT && v->i > 0));
}

int dcp_deepspeed_take_rules(struct dcp_deepspeed *ds, struct dcp_pv from)
{
	const struct dcp_pv *info = dcp_pv_get(from, "universal_checkpoint_info"), *v;
	const struct dcp_pv *args = dcp_pv_get(from, "args");
	uint64_t width;
	int rc = 0;

	if (info && !dcp_pv_is_mapping(*info))
		info = NULL;
	if (!info &&
	    !(args && dcp_pv_is_mapping(*args) && dcp_deepspeed_is_neox(*args, &width)))
		return 0;
	if (ds->rules || ds->tp < 2)
		return 0;
	ds->rules = dcp_arena_calloc(&ds->arena, 1, sizeof(*ds->rules));
	if (!ds->rules)
		return -ENOMEM;
	if (!info)
		return add_neox(ds, width);
	ds->rules->widths = needs_widths(*info);
	v = dcp_pv_get(*info, "original_vocab_size");
	if (v)
		dcp_pv_u64(*v, &ds->rules->vocabulary);
	for (size_t i = 0; rc == 0 && i < DCP_LEN(lists); i++)
		rc = add_patterns(ds, dcp_pv_get(*info, lists[i].name), lists[i].list);
	if (rc == 0)
		rc = take_subs(ds, *info);
	if (rc == 0)
		rc = take_maps(ds, *info);
	return rc == 0 ? take_refused(ds, *info) : rc;
}

void dcp_deepspeed_rules_finish(struct dcp_deepspeed *ds)
{
	if (!ds->rules)
		return;
	dcp_buf_finish(&ds->rules->patterns);
	dcp_buf_finish(&ds->rules->exact);
	dcp_intern_finish(&ds->rules->names);
}

/* The first pattern of the list that matches @name; if matching failed, the pattern that failed,
 * and @why is set. */
static const struct pattern *find_pattern(const struct dcp_deepspeed_rules *rules, uint8_t list,
					  const char *name, const char **why)
{
	const struct pattern *p = DCP_ITEMS(rules->patterns, struct pattern);
	const struct pattern *exact = DCP_ITEMS(rules->exact, struct pattern);
	char key[MAX_NAME + 8];
	int n = snprintf(key, sizeof(key), "%u/%s", list, name);
	uint32_t number = dcp_intern_find(&rules->names, key, (size_t)n);

	if (number != DCP_INTERN_NONE)
		return &exact[number];
	for (size_t i = 0; i < rules->n; i++) {
		int rc = p[i].list == list ? dcp_regex_match(p[i].re, name) : 0;

		if (rc < 0)
			*why = "a pattern of universal_checkpoint_info cannot be matched with "
			       "its name";
		if (rc)
			return &p[i];
	}
	return NULL;
}

const char *dcp_deepspeed_rule(const struct dcp_deepspeed *ds, const char *name,
			       struct dcp_deepspeed_rule *out)
{
	static const uint8_t order[] = { DCP_DEEPSPEED_CUT_MAP,
					 DCP_DEEPSPEED_CUT_REPLICATED,
					 DCP_DEEPSPEED_CUT_AVERAGED,
					 DCP_DEEPSPEED_CUT_SUMMED,
					 DCP_DEEPSPEED_CUT_HALVES,
					 DCP_DEEPSPEED_CUT_SUBS,
					 DCP_DEEPSPEED_CUT_COLUMNS,
					 DCP_DEEPSPEED_CUT_ROWS,
					 LIST_UNKNOWN };
	const struct pattern *p;
	const char *why = NULL;

	*out = (struct dcp_deepspeed_rule){ .cut = DCP_DEEPSPEED_CUT_ROWS, .by_default = true };
	if (!ds->rules)
		return "no file has a universal_checkpoint_info that says how its "
		       "tensor-parallel ranks share it";
	if (ds->rules->why)
		return ds->rules->why;
	out->complete = ds->rules->complete;
	if (strlen(name) > MAX_NAME)
		return "its name is too long to be looked up in universal_checkpoint_info";
	p = find_pattern(ds->rules, LIST_REFUSED, name, &why);
	if (p)
		return why ? why : p->why;
	for (size_t i = 0; !p && i < DCP_LEN(order); i++)
		p = find_pattern(ds->rules, order[i], name, &why);
	if (p && (why || p->why))
		return why ? why : p->why;
	if (p)
		*out = (struct dcp_deepspeed_rule){ .cut = (enum dcp_deepspeed_cut)p->list,
						    .pattern = p->text,
						    .sub = p->sub,
						    .map = p->map,
						    .height = p->height };
	/* a map describes the whole without padding */
	if (!out->map && find_pattern(ds->rules, LIST_VOCABULARY, name, &why)) {
		if (why)
			return why;
		if (!ds->rules->vocabulary)
			return "it is padded, and no original_vocab_size says how far";
		out->rows = ds->rules->vocabulary;
		out->by_default = false;
	}
	return NULL;
}
