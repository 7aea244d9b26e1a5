/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/trust.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/store/cache/cache.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"

struct found {
	struct dcp_stats s;
	bool begun;
	struct dcp_stats_bins bins; /* only with --histogram; otherwise not allocated */
};

static int measure_span(void *ctx, const struct walk_item *item, void *found, uint64_t first,
			const void *a, const void *b, size_t n)
{
	const struct measuring *w = ctx;
	const struct walk_key *k = item->key[0];
	struct found *f = found;

	if (!f->begun)
		dcp_stats_init(&f->s);
	f->begun = true;
	dcp_measure_add(&f->s, w->histogram ? &f->bins : NULL, k->dtype, k->itemsize, first, a,
			n);
	return 0;
}

static void end_measuring(void *ctx, const struct walk_item *item, void *found, size_t nspans,
			  int rc, unsigned side, const struct dcp_err *err)
{
	struct measuring *w = ctx;
	struct dcp_measured *m = &w->m[item->tag];
	struct dcp_stats_bins *bins = NULL;
	size_t size = w->histogram ? sizeof(struct found) : offsetof(struct found, bins);
	enum cmd_exit code;

	if (rc < 0) {
		code = cmd_fail(cmd_exit_of(rc), "%s: %s: %s", w->p->ck.name, item->key[0]->key,
				err->msg[0] ? err->msg : strerror(-rc));
		w->code = w->code == CMD_OK ? code : w->code;
		return;
	}
	dcp_stats_init(&m->s);
	if (w->histogram)
		w->bins[item->tag] = bins = dcp_arena_calloc(&w->arena, 1, sizeof(*bins));
	for (size_t i = 0; i < nspans; i++) {
		const struct found *f = (const void *)((const char *)found + i * size);

		if (!f->begun)
			continue;
		dcp_stats_join(&m->s, &f->s);
		for (size_t k = 0; k < DCP_STATS_BINS && bins; k++) {
			bins->n[0][k] += f->bins.n[0][k];
			bins->n[1][k] += f->bins.n[1][k];
		}
	}
	m->head.done = 1;
}

/* Take records of earlier calls. */
static int take_kept(struct measuring *w, size_t n)
{
	const struct walk_key *k = WALK_KEYS(w->keys);
	dcp_auto_buf struct dcp_buf kept = DCP_BUF_INIT;
	int rc = w->histogram
			 ? 0
			 : dcp_kept_records(w->p->ck.v, DCP_MEASURED, sizeof(*w->m), &kept);

	for (size_t i = 0; i < n; i++) {
		const struct dcp_measured *m =
			dcp_kept_at(&kept, sizeof(*m), k[i].id, k[i].key);

		if (m)
			w->m[i] = *m;
	}
	return rc;
}

static void keep_measured(struct measuring *w, size_t n)
{
	const struct walk_key *k = WALK_KEYS(w->keys);
	dcp_auto_buf struct dcp_buf all = DCP_BUF_INIT;
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++)
		if (w->m[i].head.done)
			rc = dcp_kept_put(&all, sizeof(*w->m), k[i].id, k[i].key, &w->m[i]);
	if (rc == 0)
		dcp_kept_share(w->p->ck.v, DCP_MEASURED, sizeof(*w->m), &all);
}

int measure_run(struct measuring *w)
{
	struct walk walk = {
		.version = { w->p->ck.v },
		.jobs = w->jobs,
		.rate = w->rate,
		.found = w->histogram ? sizeof(struct found) : offsetof(struct found, bins),
		.look = measure_span,
		.done = end_measuring,
		.ctx = w,
		.what = "measuring",
	};
	const struct walk_key *k = WALK_KEYS(w->keys);
	size_t n = WALK_NKEYS(w->keys), *tie;
	int rc;

	w->arena = (struct dcp_arena)DCP_ARENA_INIT((size_t)1 << 32);
	w->m = calloc(n + 1, sizeof(*w->m));
	w->bins = calloc(n + 1, sizeof(struct dcp_stats_bins *));
	walk.items = calloc(n + 1, sizeof(*walk.items));
	tie = walk_ties(w->keys);
	if (!w->m || !w->bins || !walk.items || !tie) {
		free(walk.items);
		free(tie);
		return -ENOMEM;
	}
	rc = take_kept(w, n);
	for (size_t i = 0; i < n; i++)
		if (!w->m[i].head.done && !tie[i] && !w->known)
			walk.items[walk.n++] = (struct walk_item){ { &k[i], NULL }, i };
	if (rc == 0)
		rc = walk_run(&walk);
	for (size_t i = 0; i < n && rc == 0; i++) {
		size_t of = tie[i];

		if (!w->m[i].head.done && of) {
			w->m[i] = w->m[of - 1];
			w->bins[i] = w->bins[of - 1];
		} else if (w->m[i].head.done) {
			w->m[i].unwritten |=
				dcp_measure_is_unwritten(w->p->ck.v, k[i].id, &w->m[i].s);
		}
	}
	if (rc == 0 && walk.n && !w->histogram)
		keep_measured(w, n);
	free(walk.items);
	free(tie);
	return rc;
}

void measure_finish(struct measuring *w)
{
	free(w->m);
	free(w->bins);
	dcp_arena_finish(&w->arena);
}

/* ---- rows ---- */

struct dcp_stats_of measure_of(const struct measure_row *r)
{
	return (struct dcp_stats_of){ .s = &r->m.s,
				      .dtype = r->key->dtype,
				      .several = r->tensors > 1,
				      .mixed = r->mixed,
				      .unwritten = r->m.unwritten,
				      .ndim = r->key->ndim,
				      .shape = r->key->shape };
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

/* clang-format off */
const struct out_field measure_fields[] = {
	{ "name", "KEY", OUT_NAME }, { "tensors" }, { "dtype" }, { "n" },
	{ "min", "MIN", OUT_NUMBER, .none = "-" }, { "max", "MAX", OUT_NUMBER, .none = "-" },
	{ "mean", "MEAN", OUT_NUMBER, .none = "-" }, { "std", "STD", OUT_NUMBER, .none = "-" },
	{ "norm", "NORM", OUT_NUMBER, .none = "-" }, { "zeros" }, { NULL, "ZEROS", OUT_PART },
	{ "denormals", "DENORMAL", OUT_SOME }, { "nan" }, { "inf" }, { NULL, "NAN" },
	{ "first_nan" }, { "first_inf" }, { "note", "NOTE" }, { NULL }
};
/* clang-format on */

static void put_field(struct out *o, const struct dcp_stats_field *f, bool some)
{
	char text[32];

	if (f->kind == DCP_FIELD_COUNT) {
		out_put_u64(o, f->name, f->count);
	} else if (f->kind != DCP_FIELD_NUMBER) {
		out_put_str(o, f->name, f->text);
	} else if (o->form == OUT_TEXT) {
		snprintf(text, sizeof(text), "%.5g", f->number);
		out_put_str(o, f->name, some ? text : NULL);
	} else {
		out_put_f64(o, f->name, f->number);
	}
}

/* Put a number in the form for people. */
static void put_shown(struct out *o, const struct dcp_stats *s, const char *after)
{
	char text[64];

	if (strcmp(after, "zeros") == 0 && s->zeros) {
		out_put_f64(o, "ZEROS", (double)s->zeros / (double)s->n);
	} else if (strcmp(after, "inf") == 0 && (s->nans || s->infs)) {
		snprintf(text, sizeof(text), "%" PRIu64 " NaN, %" PRIu64 " Inf", s->nans,
			 s->infs);
		out_put_str(o, "NAN", text);
	}
}

void measure_put_row(struct out *o, const struct measure_row *r)
{
	struct dcp_stats_of of = measure_of(r);
	bool some = r->m.s.finite && !dcp_stats_is_opaque(r->key->dtype);
	struct dcp_stats_fields all;

	dcp_stats_fields(&of, &all);
	out_row(o);
	out_put_str(o, "name", r->name);
	out_put_u64(o, "tensors", r->tensors);
	out_put_str(o, "dtype", r->mixed ? NULL : r->key->dtype_name);
	if (o->form == OUT_JSON)
		dcp_stats_fields_json(&all, &o->json);
	for (size_t i = 0; o->form != OUT_JSON && i < all.n; i++) {
		put_field(o, &all.field[i], some);
		put_shown(o, &r->m.s, all.field[i].name);
	}
	if (o->form == OUT_JSON && r->bins)
		put_bins(o, r->bins);
	out_row_end(o);
}
