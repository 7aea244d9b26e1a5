/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "core/model/measure/stats.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

struct stats_opts {
	int form, by;
	bool nan, histogram, over_time;
	const char *file; /* of --svg */
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
	{ 0, "over-time", NULL,
	  "of all versions: numbers of KEY, or --keys, and norms of updates", OPT_FLAG,
	  .off = offsetof(struct stats_opts, over_time) },
	WALK_OPT_JOBS(struct stats_opts),
	{ 0, "rate", "N", "read at most N bytes a second: 200MB", OPT_SIZE,
	  .off = offsetof(struct stats_opts, rate) },
	PICK_OPTS_READ(struct stats_opts),
	PICK_OPTS_ROWS(struct stats_opts),
	PICK_OPT_FORM(struct stats_opts, "csv", OUT_CSV, "print comma-separated values"),
	PICK_OPT_SVG(struct stats_opts, "with --over-time: draw both norms"),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

struct listing {
	const struct stats_opts *o;
	struct pick p;
	struct walk_keys keys;
	struct measure_row *rows;
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
		w->rows[w->nrows++] = (struct measure_row){ .name = WALK_KEYS(&w->keys)[i].key,
							    .key = &WALK_KEYS(&w->keys)[i],
							    .m = measured->m[i],
							    .bins = measured->bins[i],
							    .tensors = 1 };
	return w->rows ? 0 : -ENOMEM;
}

/* ---- groups ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct measure_row *)a)->name,
		      ((const struct measure_row *)b)->name);
}

/* Join the rows of each group. */
static int group_rows(struct listing *w)
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
		struct measure_row *r = &w->rows[i], *to = n ? &w->rows[n - 1] : NULL;

		if (!r->m.head.done)
			continue;
		if (!to || strcmp(to->name, r->name) != 0) {
			w->rows[n++] = *r;
			continue;
		}
		if (to->key->dtype != r->key->dtype)
			to->mixed = true;
		dcp_stats_join(&to->m.s, &r->m.s);
		/* Integers of different types cannot be compared, nor places in different
		 * tensors. */
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

static void put_text_bins(struct out *o, const struct measure_row *r)
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

static void put_nan(struct out *o, const struct measure_row *r)
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

static bool is_shown(const struct listing *w, const struct measure_row *r)
{
	return r->m.head.done && (!w->o->nan || measured_is_bad(&r->m));
}

static enum cmd_exit print_rows(struct listing *w)
{
	struct out *o = &w->out;
	bool text = o->form == OUT_TEXT, table = !text || !(w->o->nan || w->o->histogram);
	uint64_t shown = 0;
	enum cmd_exit code;

	out_list(o, NULL, measure_fields);
	for (size_t i = 0; i < w->nrows; i++) {
		const struct measure_row *r = &w->rows[i];

		if (!is_shown(w, r))
			continue;
		shown++;
		if (text && w->o->nan)
			put_nan(o, r);
		else if (text && w->o->histogram && r->bins)
			put_text_bins(o, r);
		else if (table)
			measure_put_row(o, r);
	}
	out_list_end(o, table);
	code = out_flush(o);
	if (code == CMD_OK && w->o->nan && shown)
		code = CMD_NO;
	return w->code == CMD_OK ? code : w->code;
}

static enum cmd_exit run_stats(const void *opts_in, const struct opt_args *args)
{
	const struct stats_opts *o = opts_in;
	struct listing w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	struct measuring measuring = { .p = NULL };
	const struct opt_texts key = { { args->operand[PICK_VERSION] }, 1 };
	enum cmd_exit code;
	int rc;

	if (o->over_time && (o->nan || o->histogram || o->by || args->named))
		return cmd_fail(CMD_USAGE, "stats: --over-time is of all versions, and has "
					   "no --version, --nan, --histogram or --by");
	if (o->over_time && o->keys.n && args->operand[PICK_VERSION])
		return cmd_fail(CMD_USAGE, "stats: --over-time is of all versions: name keys "
					   "by --keys, or one after SOURCE");
	if (!o->over_time && o->form == OUT_SVG)
		return cmd_fail(CMD_USAGE, "stats: --svg draws numbers of all versions: add "
					   "--over-time");
	if (o->over_time) /* --over-time reads all versions, so the second word is a key */
		return overtime(args->operand[PICK_SOURCE], &o->pick,
				args->operand[PICK_VERSION] ? &key : &o->keys,
				(unsigned)o->jobs, o->rate, o->form, o->file);
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
			rc = group_rows(&w);
		code = rc < 0 ? cmd_fail(CMD_ENV, "stats: %s", strerror(-rc)) : print_rows(&w);
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
	.what = "print statistics of tensors, and find NaNs",
	.about =
		"Print minimum, maximum, mean, standard deviation and norm of the finite "
		"numbers "
		"of each tensor, and how many are zero, denormal, NaN or infinite. Results are "
		"kept beside the index: a second call reads nothing.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct stats_opts),
	.run = run_stats,
	.examples = { "dcpfs stats /data/run1 2000 --by layer",
		      "dcpfs stats /data/run1 --over-time model.norm.weight" },
};
