/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/err.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "core/model/tensor.h"
#include "core/parse/parse.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

struct find_opts {
	int form;
	bool nan;
	const char *regex, *shape, *since;
	uint64_t least, most, jobs;
	struct opt_texts keys, dtypes;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	WALK_OPT_KEYS(struct find_opts),
	{ 0, "regex", "RE", "whose keys match the regular expression at their beginning",
	  OPT_TEXT, .off = offsetof(struct find_opts, regex) },
	{ 0, "dtype", "TYPE", "of that dtype or pattern: BF16, F8*; again for more", OPT_TEXTS,
	  .off = offsetof(struct find_opts, dtypes) },
	{ 0, "shape", "DIMS", "such as \"[*, 4096]\", \"[1024.., ...]\"", OPT_TEXT,
	  .off = offsetof(struct find_opts, shape) },
	{ 0, "least", "N", "of N bytes or more: 1MB", OPT_SIZE,
	  .off = offsetof(struct find_opts, least) },
	{ 0, "most", "N", "of N bytes or less", OPT_SIZE, .def = UINT64_MAX,
	  .off = offsetof(struct find_opts, most) },
	{ 0, "nan", NULL, "with NaN or infinity; reads the tensors", OPT_FLAG,
	  .off = offsetof(struct find_opts, nan) },
	{ 0, "changed-since", "V", "new, or not equal to that of version V", OPT_TEXT,
	  OPT_VERSION, offsetof(struct find_opts, since) },
	WALK_OPT_JOBS(struct find_opts),
	{ '1', "names", .help = "only keys, one a line", .kind = OPT_FORM,
	  .off = offsetof(struct find_opts, form), .def = OUT_NAMES },
	PICK_OPTS_READ(struct find_opts),
	PICK_OPTS_ROWS(struct find_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

/* ---- shapes ---- */

/* A range of lengths of a dimension; rest: any number of dimensions. */
struct dim {
	uint64_t least, most;
	bool rest;
};

struct shape {
	struct dim dim[DCP_MAX_NDIM];
	size_t n;
	bool given;
};

/* "*", "...", "4096", "1024..", "..64", "2..8"; blanks around it. False: it is none of these. */
static bool read_dim(const char *s, size_t n, struct dim *out)
{
	char text[48];
	char *low = text, *high;

	while (n && *s == ' ')
		s++, n--;
	while (n && s[n - 1] == ' ')
		n--;
	if (n == 0 || n >= sizeof(text))
		return false;
	memcpy(text, s, n);
	text[n] = '\0';
	*out = (struct dim){ 0, UINT64_MAX, strcmp(text, "...") == 0 };
	if (out->rest || strcmp(text, "*") == 0)
		return true;
	high = strstr(text, "..");
	if (!high)
		return opt_number(low, 10, &out->least) && opt_number(low, 10, &out->most);
	*high = '\0';
	high += 2;
	return (*low || *high) && (!*low || opt_number(low, 10, &out->least)) &&
	       (!*high || opt_number(high, 10, &out->most));
}

static enum cmd_exit read_shape(const char *text, struct shape *out)
{
	size_t n = text ? strlen(text) : 0;
	bool boxed = n > 1 && text[0] == '[' && text[n - 1] == ']';
	const char *p, *end;

	out->given = text;
	if (!text || (boxed && n == 2))
		return CMD_OK;
	p = text + boxed;
	end = text + n - boxed;
	for (bool more = true; more; p++) {
		const char *comma = memchr(p, ',', (size_t)(end - p));
		const char *stop = comma ? comma : end;

		if (out->n == DCP_MAX_NDIM ||
		    !read_dim(p, (size_t)(stop - p), &out->dim[out->n++]))
			return cmd_fail(CMD_USAGE,
					"find: --shape %s: a shape is numbers, ranges such as "
					"8..64, * for any number and ... for any dimensions, "
					"with commas between: \"[*, 4096]\"",
					text);
		more = comma;
		p = stop;
	}
	return CMD_OK;
}

/* Match as a glob: on a mismatch the last "..." takes another dimension. */
static bool fits_shape(const struct shape *s, const struct walk_key *k)
{
	size_t i = 0, d = 0, rest = SIZE_MAX, from = 0;

	while (d < k->ndim) {
		if (i < s->n && s->dim[i].rest) {
			rest = i++;
			from = d;
		} else if (i < s->n && k->shape[d] >= s->dim[i].least &&
			   k->shape[d] <= s->dim[i].most) {
			i++;
			d++;
		} else if (rest != SIZE_MAX) {
			i = rest + 1;
			d = ++from;
		} else {
			return false;
		}
	}
	while (i < s->n && s->dim[i].rest)
		i++;
	return i == s->n;
}

/* ---- finding ---- */

struct finding {
	const struct find_opts *o;
	struct pick p, old;
	struct walk_keys keys, old_keys;
	struct shape shape;
	struct dcp_regex *regex;
	struct dcp_arena arena;
	enum cmd_exit code;
	struct out out;
};

static bool is_of_dtype(const struct find_opts *o, const char *dtype)
{
	bool fits = o->dtypes.n == 0;

	for (size_t i = 0; i < o->dtypes.n && !fits; i++)
		fits = strcasecmp(o->dtypes.v[i], dtype) == 0 ||
		       dcp_name_matches(o->dtypes.v[i], dtype);
	return fits;
}

/* Keep the keys for which @keep is true. */
static void filter_keys(struct walk_keys *keys, bool (*keep)(void *ctx, size_t i), void *ctx)
{
	struct walk_key *k = WALK_KEYS(keys);
	size_t n = 0;

	for (size_t i = 0; i < WALK_NKEYS(keys); i++)
		if (keep(ctx, i))
			k[n++] = k[i];
	keys->all.n = n * sizeof(*k);
}

static bool fits_options(void *ctx, size_t i)
{
	struct finding *w = ctx;
	const struct walk_key *k = &WALK_KEYS(&w->keys)[i];

	return is_of_dtype(w->o, k->dtype_name) && k->nbytes >= w->o->least &&
	       k->nbytes <= w->o->most && (!w->shape.given || fits_shape(&w->shape, k)) &&
	       (!w->regex || dcp_regex_match(w->regex, k->key) > 0);
}

static bool has_changed(void *ctx, size_t i)
{
	const struct comparing *c = ctx;
	const struct pair key = { .name = WALK_KEYS(c->keys[1])[i].key };
	const struct pair *p = bsearch(&key, c->pairs, c->n, sizeof(key), compare_by_name);

	return p && p->state != CMP_EQUAL;
}

static int find_changed(struct finding *w)
{
	struct comparing c = { .p = { &w->old, &w->p },
			       .keys = { &w->old_keys, &w->keys },
			       .quick = true,
			       .jobs = (unsigned)w->o->jobs };
	int rc = compare_run(&c);

	if (rc == 0)
		filter_keys(&w->keys, has_changed, &c);
	w->code = c.code;
	free(c.pairs);
	return rc;
}

static bool has_nan(void *ctx, size_t i)
{
	const struct measuring *m = ctx;

	return measured_is_bad(&m->m[i]);
}

static int find_nan(struct finding *w)
{
	struct measuring m = { .p = &w->p, .keys = &w->keys, .jobs = (unsigned)w->o->jobs };
	int rc = measure_run(&m);

	if (rc == 0)
		filter_keys(&w->keys, has_nan, &m);
	w->code = w->code == CMD_OK ? m.code : w->code;
	measure_finish(&m);
	return rc;
}

static enum cmd_exit print_found(struct finding *w)
{
	/* clang-format off */
	static const struct out_field fields[] = {
		{ "key", "KEY", OUT_NAME }, { "dtype", "DTYPE" }, { "shape", "SHAPE" },
		{ "nbytes", "SIZE", OUT_BYTES }, { NULL }
	};
	/* clang-format on */
	struct out *o = &w->out;
	char shape[2048];
	enum cmd_exit code;

	out_list(o, NULL, fields);
	for (size_t i = 0; i < WALK_NKEYS(&w->keys); i++) {
		const struct walk_key *k = &WALK_KEYS(&w->keys)[i];

		out_row(o);
		out_put_str(o, "key", k->key);
		out_put_str(o, "dtype", k->dtype_name);
		out_put_str(o, "shape", dcp_dims_text(shape, sizeof(shape), k->shape, k->ndim));
		out_put_u64(o, "nbytes", k->nbytes);
		out_row_end(o);
	}
	out_list_end(o, false);
	code = out_flush(o);
	return code == CMD_OK && WALK_NKEYS(&w->keys) == 0 ? CMD_NO : code;
}

static enum cmd_exit prepare_search(struct finding *w)
{
	const struct find_opts *o = w->o;
	const struct opt_texts none = { .n = 0 };
	struct dcp_err err = { 0 };
	enum cmd_exit code = read_shape(o->shape, &w->shape);

	if (code == CMD_OK && o->regex &&
	    dcp_regex_compile(o->regex, &w->arena, &w->regex, &err) < 0)
		return cmd_fail(CMD_USAGE, "find: --regex %s: %s", o->regex, err.msg);
	if (code == CMD_OK)
		code = walk_keys(&w->p, &o->keys, &w->keys);
	if (code != CMD_OK || !o->since)
		return code;
	code = walk_pick(&w->old, w->p.ck.source, o->since, &o->pick, "find");
	return code == CMD_OK ? walk_keys(&w->old, &none, &w->old_keys) : code;
}

static enum cmd_exit run_find(const void *opts_in, const struct opt_args *args)
{
	const struct find_opts *o = opts_in;
	struct finding w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 24) };
	enum cmd_exit code = walk_open(&w.p, args, &o->pick, "find");
	int rc = 0;

	out_init(&w.out, o->form);
	if (code == CMD_OK)
		code = prepare_search(&w);
	if (code == CMD_OK) {
		filter_keys(&w.keys, fits_options, &w);
		if (o->since)
			rc = find_changed(&w);
		if (rc == 0 && o->nan)
			rc = find_nan(&w);
		code = rc < 0 ? cmd_fail(CMD_ENV, "find: %s", strerror(-rc)) : print_found(&w);
		code = w.code == CMD_OK ? code : w.code;
	}
	walk_keys_finish(&w.keys);
	walk_keys_finish(&w.old_keys);
	dcp_arena_finish(&w.arena);
	out_finish(&w.out);
	pick_finish(&w.p);
	if (o->since)
		pick_finish(&w.old);
	return code;
}

const struct cmd cmd_find = {
	.name = "find",
	.what = "list tensors by key, dtype, shape, size, NaNs, changes",
	.about = "List the tensors of a version that meet all conditions. Exits 1 when no "
		 "tensor does.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct find_opts),
	.run = run_find,
	.examples = { "dcpfs find /data/run1 --shape '[*, 4096]' --dtype BF16",
		      "dcpfs find /data/run1 2000 --changed-since 1000 --names" },
};
