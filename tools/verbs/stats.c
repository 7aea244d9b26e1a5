/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/number.h"
#include "core/base/text.h"
#include "core/model/measure/stats.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/measure.h"
#include "tools/trust/overtime.h"

struct stats_opts {
	int form, by;
	bool nan, histogram, over_time;
	uint64_t jobs, rate;
	struct opt_texts keys;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	WALK_OPT_KEYS(struct stats_opts),
	WALK_OPT_BY(struct stats_opts),
	{ 0, "nan", NULL, "only tensors with NaN or infinity; exit 1 if any", OPT_FLAG,
	  .off = offsetof(struct stats_opts, nan) },
	{ 0, "histogram", NULL, "how many numbers lie between powers of two", OPT_FLAG,
	  .off = offsetof(struct stats_opts, histogram) },
	{ 0, "over-time", NULL, "of all versions: numbers of --keys, and the norm of updates",
	  OPT_FLAG, .off = offsetof(struct stats_opts, over_time) },
	WALK_OPT_JOBS(struct stats_opts),
	{ 0, "rate", "N", "read at most N bytes a second: 200MB", OPT_SIZE,
	  .off = offsetof(struct stats_opts, rate) },
	PICK_OPT_VERSION,
	PICK_OPTS(struct stats_opts),
	PICK_OPTS_HF(struct stats_opts),
	PICK_OPT_PARTIAL(struct stats_opts),
	PICK_OPT_JSON(struct stats_opts),
	PICK_OPT_TSV(struct stats_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

struct row {
	const char *name;
	const struct walk_key *key; /* NULL: several */
	struct measured m;
	struct dcp_stats_bins *bins;
	uint64_t tensors;
	bool mixed; /* several dtypes */
};

struct listing {
	const struct stats_opts *o;
	struct pick p;
	struct walk_keys keys;
	struct row *rows;
	size_t nrows;
	enum cmd_exit code;
	struct dcp_arena arena;
	struct out out;
};

static int make_rows(struct listing *w, const struct measuring *measured)
{
	w->code = measured->code;
	w->rows = calloc(WALK_NKEYS(&w->keys) + 1, sizeof(*w->rows));
	for (size_t i = 0; w->rows && i < WALK_NKEYS(&w->keys); i++)
		w->rows[w->nrows++] = (struct row){ .name = WALK_KEYS(&w->keys)[i].key,
						    .key = &WALK_KEYS(&w->keys)[i],
						    .m = measured->m[i],
						    .bins = measured->bins[i],
						    .tensors = 1 };
	return w->rows ? 0 : -ENOMEM;
}

/* ---- groups ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

/* Rows of one group become one. */
static int group(struct listing *w)
{
	size_t n = 0;

	for (size_t i = 0; i < w->nrows; i++) {
		dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;

		walk_group((enum walk_by)w->o->by, w->rows[i].key, &name);
		w->rows[i].name = name.p ? dcp_arena_strdup(&w->arena, name.p) : NULL;
		if (!w->rows[i].name)
			return -ENOMEM;
	}
	if (w->nrows)
		qsort(w->rows, w->nrows, sizeof(*w->rows), by_name);
	for (size_t i = 0; i < w->nrows; i++) {
		struct row *r = &w->rows[i], *to = n ? &w->rows[n - 1] : NULL;

		if (!r->m.head.done)
			continue;
		if (!to || strcmp(to->name, r->name) != 0) {
			w->rows[n++] = *r;
			continue;
		}
		if (to->key->dtype != r->key->dtype)
			to->mixed = true;
		dcp_stats_join(&to->m.s, &r->m.s);
		/* Integers of several types do not compare, nor do places in several tensors. */
		to->m.unwritten = to->m.unwritten && r->m.unwritten;
		to->tensors++;
		for (size_t k = 0; k < DCP_STATS_BINS && to->bins && r->bins; k++) {
			to->bins->n[0][k] += r->bins->n[0][k];
			to->bins->n[1][k] += r->bins->n[1][k];
		}
	}
	w->nrows = n;
	return 0;
}

/* ---- printing ---- */

static bool has_numbers(const struct row *r)
{
	return !dcp_stats_is_opaque(r->key->dtype);
}

/* Least or greatest of integers of 64 bits, which doubles do not hold. */
static const char *exact(char *buf, const struct row *r, bool most)
{
	int64_t key = most ? r->m.s.high : r->m.s.low;

	if (r->mixed || r->m.s.n == 0 ||
	    (r->key->dtype != DCP_DTYPE_I64 && r->key->dtype != DCP_DTYPE_U64))
		return NULL;
	if (r->key->dtype == DCP_DTYPE_I64)
		snprintf(buf, 32, "%" PRId64, key);
	else
		snprintf(buf, 32, "%" PRIu64, (uint64_t)key ^ (uint64_t)1 << 63);
	return buf;
}

/* Memory that was never written has numbers that no training makes. */
static bool looks_random(const struct row *r)
{
	const struct dcp_stats *s = &r->m.s;

	return s->n >= 64 && s->huge > s->n / 16 && has_numbers(r) &&
	       r->key->dtype != DCP_DTYPE_I64 && r->key->dtype != DCP_DTYPE_U64;
}

static const char *note_of(const struct row *r)
{
	const struct dcp_stats *s = &r->m.s;

	if (r->m.unwritten)
		return "never written";
	if (looks_random(r))
		return "looks uninitialised";
	if (s->n && s->zeros == s->n)
		return "zero";
	if (r->tensors == 1 && dcp_stats_is_constant(s))
		return "constant";
	return has_numbers(r) ? "" : "bytes";
}

static void put_bins(struct out *o, const struct dcp_stats_bins *bins)
{
	dcp_jsonw_put_array(&o->json, "histogram");
	for (size_t neg = 2; neg-- > 0;)
		for (size_t i = 0; i < DCP_STATS_BINS; i++) {
			size_t at = neg ? DCP_STATS_BINS - 1 - i : i;
			double low = ldexp(1, (int)at + DCP_STATS_BIN_LEAST);

			if (!bins->n[neg][at])
				continue;
			dcp_jsonw_object(&o->json);
			dcp_jsonw_put_f64(&o->json, "from", neg ? -2 * low : low);
			dcp_jsonw_put_f64(&o->json, "to", neg ? -low : 2 * low);
			dcp_jsonw_put_u64(&o->json, "count", bins->n[neg][at]);
			dcp_jsonw_end(&o->json);
		}
	dcp_jsonw_end(&o->json);
}

static void put_limit(struct out *o, const char *name, const struct row *r, bool most)
{
	char text[32];

	if (!has_numbers(r) || !r->m.s.finite) {
		out_put_f64(o, name, NAN);
	} else if (exact(text, r, most) && o->form == OUT_JSON) {
		dcp_jsonw_key(&o->json, name);
		dcp_jsonw_raw(&o->json, text, strlen(text));
	} else if (exact(text, r, most)) {
		out_tsv(o, text);
	} else {
		out_put_f64(o, name, most ? r->m.s.max : r->m.s.min);
	}
}

static void put_first(struct out *o, const char *name, const struct row *r, uint64_t first)
{
	char text[1024];

	if (r->tensors > 1 || first == DCP_NO_INDEX)
		out_put_str(o, name, NULL);
	else
		out_put_str(o, name,
			    walk_place(text, sizeof(text), r->key,
				       first / dcp_stats_values(r->key->dtype)));
}

static void put_row(struct out *o, const struct row *r)
{
	const struct dcp_stats *s = &r->m.s;
	bool some = has_numbers(r) && s->finite;

	out_row(o);
	out_put_str(o, "name", r->name);
	out_put_u64(o, "tensors", r->tensors);
	out_put_str(o, "dtype", r->mixed ? NULL : r->key->dtype_name);
	out_put_u64(o, "n", s->n);
	put_limit(o, "min", r, false);
	put_limit(o, "max", r, true);
	out_put_f64(o, "mean", some ? s->mean : NAN);
	out_put_f64(o, "std", some ? dcp_stats_std(s) : NAN);
	out_put_f64(o, "norm", some ? dcp_stats_norm(s) : NAN);
	out_put_u64(o, "zeros", s->zeros);
	out_put_u64(o, "denormals", s->subnormals);
	out_put_u64(o, "nan", s->nans);
	out_put_u64(o, "inf", s->infs);
	put_first(o, "first_nan", r, s->first_nan);
	put_first(o, "first_inf", r, s->first_inf);
	out_put_str(o, "note", note_of(r));
	if (o->form == OUT_JSON && r->bins)
		put_bins(o, r->bins);
	out_row_end(o);
}

static const char *number(char buf[32], double v)
{
	snprintf(buf, 32, "%.5g", v);
	return buf;
}

static void put_text_row(struct out_table *t, const struct row *r)
{
	const struct dcp_stats *s = &r->m.s;
	bool some = has_numbers(r) && s->finite;
	char buf[32];

	out_table_cell(t, r->name);
	for (int most = 0; most < 2; most++)
		out_table_cell(t, !some                 ? "-"
				  : exact(buf, r, most) ? buf
							: number(buf, most ? s->max : s->min));
	out_table_cell(t, some ? number(buf, s->mean) : "-");
	out_table_cell(t, some ? number(buf, dcp_stats_std(s)) : "-");
	out_table_cell(t, some ? number(buf, dcp_stats_norm(s)) : "-");
	if (s->zeros && s->n)
		out_table_printf(t, "%.3g%%", 100.0 * (double)s->zeros / (double)s->n);
	else
		out_table_cell(t, "");
	out_table_cell(t, s->subnormals ? out_count(buf, s->subnormals) : "");
	if (s->nans || s->infs)
		out_table_printf(t, "%" PRIu64 " NaN, %" PRIu64 " Inf", s->nans, s->infs);
	else
		out_table_cell(t, "");
	out_table_cell(t, note_of(r));
}

static void put_text_bins(struct out *o, const struct row *r)
{
	enum { BAR = 40 };
	uint64_t most = 1;

	out_text(&o->buf, r->name);
	dcp_buf_str(&o->buf, "\n");
	for (size_t i = 0; i < 2 * DCP_STATS_BINS; i++)
		most = DCP_MAX(most, (&r->bins->n[0][0])[i]);
	for (size_t neg = 2; neg-- > 0;)
		for (size_t i = 0; i < DCP_STATS_BINS; i++) {
			size_t at = neg ? DCP_STATS_BINS - 1 - i : i;
			uint64_t n = r->bins->n[neg][at];
			size_t bar = (size_t)((double)n / (double)most * BAR);

			if (!n)
				continue;
			dcp_buf_printf(&o->buf, "  %s2^%-4d %14" PRIu64 "  ", neg ? "-" : " ",
				       (int)at + DCP_STATS_BIN_LEAST, n);
			for (size_t k = 0; k < bar; k++)
				dcp_buf_str(&o->buf, "#");
			dcp_buf_str(&o->buf, "\n");
		}
}

static void put_nan(struct out *o, const struct row *r)
{
	const struct dcp_stats *s = &r->m.s;
	unsigned values = dcp_stats_values(r->key->dtype);
	char place[1024];

	out_text(&o->buf, r->name);
	dcp_buf_str(&o->buf, ":");
	if (s->nans)
		dcp_buf_printf(&o->buf, " %" PRIu64 " NaN", s->nans);
	if (s->nans && r->tensors == 1)
		dcp_buf_printf(&o->buf, ", the first at %s",
			       walk_place(place, sizeof(place), r->key, s->first_nan / values));
	if (s->infs)
		dcp_buf_printf(&o->buf, "%s %" PRIu64 " Inf", s->nans ? ";" : "", s->infs);
	if (s->infs && r->tensors == 1)
		dcp_buf_printf(&o->buf, ", the first at %s",
			       walk_place(place, sizeof(place), r->key, s->first_inf / values));
	dcp_buf_str(&o->buf, "\n");
}

static bool is_shown(const struct listing *w, const struct row *r)
{
	return r->m.head.done && (!w->o->nan || r->m.s.nans || r->m.s.infs);
}

static enum cmd_exit print(struct listing *w)
{
	static const struct out_col cols[] = {
		{ "KEY", .flex = true },
		{ "MIN", .right = true },
		{ "MAX", .right = true },
		{ "MEAN", .right = true },
		{ "STD", .right = true },
		{ "NORM", .right = true },
		{ "ZEROS", .right = true },
		{ "DENORMAL", .right = true },
		{ "NAN" },
		{ "NOTE" },
	};
	struct out *o = &w->out;
	struct out_table table;
	uint64_t shown = 0;
	enum cmd_exit code;

	out_table_init(&table, cols, DCP_LEN(cols));
	out_list(o, NULL,
		 "name tensors dtype n min max mean std norm zeros denormals nan inf first_nan "
		 "first_inf note");
	for (size_t i = 0; i < w->nrows; i++) {
		const struct row *r = &w->rows[i];

		if (!is_shown(w, r))
			continue;
		shown++;
		if (o->form != OUT_TEXT)
			put_row(o, r);
		else if (w->o->nan)
			put_nan(o, r);
		else if (w->o->histogram && r->bins)
			put_text_bins(o, r);
		else
			put_text_row(&table, r);
	}
	out_list_end(o);
	if (o->form == OUT_TEXT && !w->o->nan && !w->o->histogram)
		out_table_print(&table, o, 0);
	out_table_finish(&table);
	code = out_flush(o);
	if (code == CMD_OK && w->o->nan && shown)
		code = CMD_NO;
	return w->code == CMD_OK ? code : w->code;
}

static enum cmd_exit run(const void *opts_in, const struct opt_args *args)
{
	const struct stats_opts *o = opts_in;
	struct listing w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	struct measuring measuring = { .p = NULL };
	enum cmd_exit code;
	int rc;

	if (o->over_time && (o->nan || o->histogram || o->by || args->operand[PICK_VERSION]))
		return cmd_fail(CMD_USAGE, "stats: --over-time is of all versions, and has "
					   "no --nan, --histogram or --by");
	if (o->over_time)
		return overtime(args->operand[PICK_SOURCE], &o->pick, &o->keys,
				(unsigned)o->jobs, o->rate, o->form);
	code = walk_open(&w.p, args, &o->pick, "stats");
	out_init(&w.out, o->form);
	if (code == CMD_OK)
		code = walk_keys(&w.p, &o->keys, &w.keys);
	if (code == CMD_OK) {
		measuring = (struct measuring){ .p = &w.p,
						.keys = &w.keys,
						.histogram = o->histogram,
						.jobs = (unsigned)o->jobs,
						.rate = o->rate };
		rc = measure_run(&measuring);
		if (rc == 0)
			rc = make_rows(&w, &measuring);
		if (rc == 0 && o->by != WALK_BY_KEY)
			rc = group(&w);
		code = rc < 0 ? cmd_fail(CMD_ENV, "stats: %s", strerror(-rc)) : print(&w);
	}
	measure_finish(&measuring);
	free(w.rows);
	walk_keys_finish(&w.keys);
	dcp_arena_finish(&w.arena);
	out_finish(&w.out);
	pick_finish(&w.p);
	return code;
}

const struct cmd cmd_stats = {
	.name = "stats",
	.what = "what the numbers of tensors are like, and where NaNs are",
	.about =
		"Print minimum, maximum, mean, standard deviation and norm of the finite "
		"numbers "
		"of each tensor, and how many are zero, denormal, NaN or infinite. Results are "
		"kept beside the index: a second call reads nothing.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct stats_opts),
	.run = run,
	.examples = { "dcpfs stats /data/run1 2000 --by layer",
		      "dcpfs stats /data/run1 --nan" },
};
