/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/model/measure/stats.h"
#include "core/model/tensor.h"
#include "core/store/cache/cache.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"
#include "tools/svg.h"
#include "tools/trust/trust.h"

const char *const compare_states[] = { "equal",     "close",     "differs",    "dtype", "shape",
				       "only in A", "only in B", "unreadable", "object" };

struct found {
	struct dcp_difference d;
	bool begun;
};

static int compare_span(void *ctx, const struct walk_item *item, void *found, uint64_t first,
			const void *a, const void *b, size_t n)
{
	const struct comparing *w = ctx;
	struct found *f = found;

	if (!f->begun)
		dcp_difference_init(&f->d);
	f->begun = true;
	dcp_difference_add(&f->d, &w->tolerance, item->key[0]->dtype, a, item->key[1]->dtype, b,
			   item->key[0]->itemsize, first, n);
	return w->quick && (w->tolerates ? f->d.far : f->d.changed);
}

static void judge_pair(const struct comparing *w, struct pair *p)
{
	bool same_type =
		p->a->dtype == p->b->dtype && strcmp(p->a->dtype_name, p->b->dtype_name) == 0;

	if (p->d.changed == 0 && same_type)
		p->state = CMP_EQUAL;
	else if (w->tolerates && p->d.far == 0 && !dcp_stats_is_opaque(p->a->dtype))
		p->state = CMP_CLOSE;
	else
		p->state = same_type ? CMP_DIFFERS : CMP_DTYPE;
}

static void end_pair(void *ctx, const struct walk_item *item, void *found, size_t nspans,
		     int rc, unsigned side, const struct dcp_err *err)
{
	struct comparing *w = ctx;
	struct pair *p = &w->pairs[item->tag];
	enum cmd_exit code;

	dcp_difference_init(&p->d);
	if (rc < 0) {
		p->state = CMP_UNREAD;
		code = cmd_fail(cmd_exit_of(rc), "%s: %s: %s", w->p[side]->ck.name,
				item->key[side]->key, err->msg[0] ? err->msg : strerror(-rc));
		w->code = w->code == CMD_OK ? code : w->code;
		return;
	}
	for (size_t i = 0; i < nspans; i++) {
		const struct found *f = (const struct found *)found + i;

		if (f->begun)
			dcp_difference_join(&p->d, &f->d);
	}
	judge_pair(w, p);
}

static bool same_shape(const struct walk_key *a, const struct walk_key *b)
{
	return a->ndim == b->ndim && dcp_dims_compare(a->shape, b->shape, a->ndim) == 0;
}

/* Compare without reading; false: the pair must be read. */
static bool is_known(struct pair *p)
{
	bool known = true;

	dcp_difference_init(&p->d);
	if (!p->b)
		p->state = CMP_ONLY_A;
	else if (!p->a)
		p->state = CMP_ONLY_B;
	else if (!same_shape(p->a, p->b))
		p->state = CMP_SHAPE;
	else if ((p->a->dtype != p->b->dtype ||
		  (p->a->dtype == DCP_DTYPE_OTHER &&
		   strcmp(p->a->dtype_name, p->b->dtype_name) != 0)) &&
		 !dcp_can_differ(p->a->dtype, p->b->dtype))
		p->state = CMP_DTYPE;
	else if (p->a->itemsize != p->b->itemsize && p->a->dtype == p->b->dtype)
		p->state = CMP_DTYPE;
	else
		known = false;
	return known;
}

/* Are both tensors equal by the digests that dcpfs verify has kept? Differing digests only mean
 * that the tensors must be read. */
static bool has_same_digest(const struct dcp_buf *digests, const struct pair *p)
{
	const struct record_kept *a = dcp_kept_at(&digests[0], sizeof(*a), p->a->id, p->a->key);
	const struct record_kept *b = dcp_kept_at(&digests[1], sizeof(*b), p->b->id, p->b->key);

	return a && b && memcmp(a->text, b->text, sizeof(a->text)) == 0;
}

static int compare_all(struct comparing *w, const struct dcp_buf *digests)
{
	size_t na = WALK_NKEYS(w->keys[0]), nb = WALK_NKEYS(w->keys[1]), i = 0, k = 0;
	const struct walk_key *a = WALK_KEYS(w->keys[0]), *b = WALK_KEYS(w->keys[1]);
	struct walk walk = { .version = { w->p[0]->ck.v, w->p[1]->ck.v },
			     .jobs = w->jobs,
			     .rate = w->rate,
			     .found = sizeof(struct found),
			     .look = compare_span,
			     .done = end_pair,
			     .ctx = w,
			     .what = "comparing" };
	int rc;

	w->pairs = calloc(na + nb + 1, sizeof(*w->pairs));
	walk.items = calloc(na + nb + 1, sizeof(*walk.items));
	if (!w->pairs || !walk.items) {
		free(walk.items);
		return -ENOMEM;
	}
	while (i < na || k < nb) {
		int order = i == na ? 1 : k == nb ? -1 : strcmp(a[i].key, b[k].key);
		struct pair *p = &w->pairs[w->n];

		p->a = order <= 0 ? &a[i++] : NULL;
		p->b = order >= 0 ? &b[k++] : NULL;
		p->name = p->a ? p->a->key : p->b->key;
		p->tensors = 1;
		if (is_known(p)) {
			; /* is_known() has set it */
		} else if (has_same_digest(digests, p)) {
			p->state = CMP_EQUAL;
			p->d.n = p->a->elements;
			w->skipped += p->a->nbytes;
		} else {
			walk.items[walk.n++] = (struct walk_item){ { p->a, p->b }, w->n };
		}
		w->n++;
	}
	rc = walk_run(&walk);
	free(walk.items);
	return rc;
}

int compare_run(struct comparing *w)
{
	struct dcp_buf digests[2] = { DCP_BUF_INIT, DCP_BUF_INIT };
	int rc = 0;

	for (unsigned s = 0; s < 2 && rc == 0; s++)
		rc = dcp_kept_records(w->p[s]->ck.v, "digests", sizeof(struct record_kept),
				      &digests[s]);
	if (rc == 0)
		rc = compare_all(w, digests);
	for (unsigned s = 0; s < 2; s++)
		dcp_buf_finish(&digests[s]);
	return rc;
}

int compare_by_name(const void *a, const void *b)
{
	return strcmp(((const struct pair *)a)->name, ((const struct pair *)b)->name);
}

/* ---- rows ---- */

static void put_ulps(struct out *o, const uint64_t *ulps)
{
	dcp_jsonw_put_array(&o->json, "ulps");
	for (unsigned i = 0; i < DCP_DIFFER_ULPS; i++) {
		if (!ulps[i])
			continue;
		dcp_jsonw_object(&o->json);
		dcp_jsonw_put_u64(&o->json, "from", i ? 1ull << (i - 1) : 0);
		dcp_jsonw_put_u64(&o->json, "to", i ? (1ull << (i - 1)) * 2 - 1 : 0);
		dcp_jsonw_put_u64(&o->json, "count", ulps[i]);
		dcp_jsonw_end(&o->json);
	}
	dcp_jsonw_end(&o->json);
}

static const char *shape_text(char *buf, size_t size, const struct walk_key *k)
{
	return k ? dcp_dims_text(buf, size, k->shape, k->ndim) : NULL;
}

/* The text of a state for people. */
static const char *state_text(char *buf, size_t size, const struct pair *p)
{
	char a[512], b[512];

	if (p->state == CMP_SHAPE && p->tensors == 1)
		snprintf(buf, size, "shape %s | %s", shape_text(a, sizeof(a), p->a),
			 shape_text(b, sizeof(b), p->b));
	else if (p->state == CMP_DTYPE && p->tensors == 1)
		snprintf(buf, size, "dtype %s | %s", p->a->dtype_name, p->b->dtype_name);
	else
		snprintf(buf, size, "%s", compare_states[p->state]);
	return buf;
}

/* clang-format off */
const struct out_field compare_fields[] = {
	{ "kind" }, { "name", "KEY", OUT_NAME }, { "state" }, { NULL, "STATE", OUT_STATE },
	{ "tensors" }, { "dtype_a" }, { "dtype_b" }, { "shape_a" }, { "shape_b" },
	{ "elements" }, { "changed", "CHANGED", OUT_SOME }, { "fraction", "PART", OUT_PART },
	{ "first", "FIRST" }, { "beyond" }, { "nonfinite" },
	{ "max_abs", "MAX ABS", OUT_NUMBER }, { "mean_abs", "MEAN ABS", OUT_NUMBER },
	{ "max_rel", "MAX REL", OUT_NUMBER }, { "mean_rel" },
	{ "relative_l2", "REL L2", OUT_NUMBER }, { "cosine", "COSINE", OUT_COSINE }, { NULL }
};
/* clang-format on */

static void put_number(struct out *o, const char *name, bool there, double v)
{
	out_put_f64(o, name, there && isfinite(v) ? v : NAN);
}

/* People see numbers only of changed tensors. */
void compare_put_row(struct out *o, const struct pair *p, const char *kind, bool quick)
{
	const struct dcp_difference *d = &p->d;
	bool some = !quick && (d->changed || o->form != OUT_TEXT), numbers = d->pairs && some;
	const struct walk_key *a = p->tensors == 1 ? p->a : NULL;
	const struct walk_key *b = p->tensors == 1 ? p->b : NULL;
	char text[2048];

	out_row(o);
	out_put_str(o, "kind", kind);
	out_put_str(o, "name", p->name);
	out_put_str(o, "state", compare_states[p->state]);
	out_put_str(o, "STATE", state_text(text, sizeof(text), p));
	out_put_u64(o, "tensors", p->tensors);
	out_put_str(o, "dtype_a", a ? a->dtype_name : NULL);
	out_put_str(o, "dtype_b", b ? b->dtype_name : NULL);
	out_put_str(o, "shape_a", shape_text(text, sizeof(text), a));
	out_put_str(o, "shape_b", shape_text(text, sizeof(text), b));
	out_put_u64(o, "elements", d->n);
	if (quick)
		out_put_str(o, "changed", NULL);
	else
		out_put_u64(o, "changed", d->changed);
	out_put_f64(o, "fraction", some && d->n ? (double)d->changed / (double)d->n : NAN);
	out_put_str(o, "first",
		    a && d->changed ? walk_place(text, sizeof(text), a, d->first) : NULL);
	out_put_u64(o, "beyond", d->far);
	out_put_u64(o, "nonfinite", d->nans);
	put_number(o, "max_abs", numbers, d->max_abs);
	put_number(o, "mean_abs", numbers, d->sum_abs / (double)d->pairs);
	put_number(o, "max_rel", numbers, d->max_rel);
	put_number(o, "mean_rel", numbers, d->sum_rel / (double)d->pairs);
	put_number(o, "relative_l2", numbers, dcp_difference_relative(d));
	put_number(o, "cosine", numbers, dcp_difference_cosine(d));
	if (o->form == OUT_JSON && numbers)
		put_ulps(o, d->ulps);
	out_row_end(o);
}

/* ---- the strip of changes: a box for each layer and parameter ---- */

enum { MAX_COLS = 512, MAX_ROWS = 256, CELL = 14, LABEL = 340, TOP = 40, NAME = 48 };

/* A pair, or several pairs in one place. */
struct box {
	const char *layer, *part; /* layer "": the key has no number */
	struct dcp_difference d;
	enum compare_state state;
	size_t col, row;
};

/* Split a key into layer and part, "layers.3" and "mlp.weight"; a key without a number is all
 * part. */
static int place_box(struct box *b, const struct pair *p, struct dcp_arena *arena)
{
	const struct walk_key *k = p->a ? p->a : p->b;
	dcp_auto_buf struct dcp_buf layer = DCP_BUF_INIT, kind = DCP_BUF_INIT;
	struct walk_key rest = *k;
	size_t n;

	walk_group(WALK_BY_LAYER, k, &layer);
	n = layer.p ? strlen(layer.p) : 0;
	*b = (struct box){ .layer = "", .d = p->d, .state = p->state };
	if (n && n <= strlen(k->key) && layer.p[n - 1] >= '0' && layer.p[n - 1] <= '9' &&
	    (k->key[n] == '.' || !k->key[n])) {
		b->layer = dcp_arena_strdup(arena, layer.p);
		rest.key += n + (k->key[n] == '.');
	}
	walk_group(WALK_BY_KIND, &rest, &kind);
	b->part = kind.p ? dcp_arena_strdup(arena, kind.p) : NULL;
	return b->layer && b->part ? 0 : -ENOMEM;
}

static int by_part(const void *a, const void *b)
{
	return strcmp(((const struct box *)a)->part, ((const struct box *)b)->part);
}

static int by_place(const void *a, const void *b)
{
	const struct box *x = a, *y = b;
	int order = strverscmp(x->layer, y->layer);

	return order ? order : (x->row > y->row) - (x->row < y->row);
}

/* Number rows and columns, and join boxes in one place. Returns the number of boxes. */
static size_t join_boxes(struct box *b, size_t n, size_t *nrows, size_t *ncols)
{
	size_t m = 0;

	if (n)
		qsort(b, n, sizeof(*b), by_part);
	for (size_t i = 0; i < n; i++) {
		*nrows += !i || strcmp(b[i].part, b[i - 1].part) != 0;
		b[i].row = *nrows - 1;
	}
	if (n)
		qsort(b, n, sizeof(*b), by_place);
	for (size_t i = 0; i < n; i++) {
		bool same = m && strcmp(b[m - 1].layer, b[i].layer) == 0;

		if (same && b[m - 1].row == b[i].row) {
			dcp_difference_join(&b[m - 1].d, &b[i].d);
			b[m - 1].state = DCP_MAX(b[m - 1].state, b[i].state);
			continue;
		}
		*ncols += !same;
		b[m] = b[i];
		b[m++].col = *ncols - 1;
	}
	return m;
}

static void draw_box(struct dcp_buf *out, const struct box *b)
{
	double part = b->d.n ? (double)b->d.changed / (double)b->d.n : 0;
	char color[8];
	const char *fill = b->state == CMP_EQUAL   ? "#e8e8e8"
			   : b->state <= CMP_DTYPE ? svg_shade(color, 0.15 + 0.85 * part)
						   : "#d9534f";

	svg_box(out, LABEL + (double)b->col * CELL, TOP + (double)b->row * CELL, CELL - 1,
		CELL - 1, fill, "none", 0);
	svg_title(out, "%.150s%s%.150s: %s, %.4g%% changed", b->layer, *b->layer ? "." : "",
		  b->part, compare_states[b->state], 100 * part);
	svg_close(out);
}

int compare_strip(const struct comparing *w, const char *title, struct dcp_buf *out)
{
	struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct box *b = calloc(w->n + 1, sizeof(*b));
	size_t nrows = 0, ncols = 0, n, last = SIZE_MAX;
	int rc = b ? 0 : -ENOMEM;

	for (size_t i = 0; i < w->n && rc == 0; i++)
		rc = place_box(&b[i], &w->pairs[i], &arena);
	n = rc == 0 ? join_boxes(b, w->n, &nrows, &ncols) : 0;
	svg_begin(out, LABEL + (double)DCP_MIN(ncols, (size_t)MAX_COLS) * CELL + 20,
		  TOP + (double)DCP_MIN(nrows, (size_t)MAX_ROWS) * CELL + 30, title);
	svg_text(out, 4, 16, SVG_LEFT, 13, "%.200s", title);
	for (size_t i = 0; i < n; i++) {
		const char *number = strrchr(b[i].layer, '.');

		if (b[i].col >= MAX_COLS || b[i].row >= MAX_ROWS)
			continue;
		if (b[i].col != last && b[i].col % 4 == 0)
			svg_text(out, LABEL + (double)b[i].col * CELL, TOP - 6, SVG_LEFT, 10,
				 "%.12s", number ? number + 1 : b[i].layer);
		last = b[i].col;
		draw_box(out, &b[i]);
	}
	/* Write the name of each row once. */
	if (n)
		qsort(b, n, sizeof(*b), by_part);
	for (size_t i = 0; i < n; i++)
		if ((!i || b[i].row != b[i - 1].row) && b[i].row < MAX_ROWS)
			svg_text(out, LABEL - 6, TOP + (double)b[i].row * CELL + 11, SVG_RIGHT,
				 11, "%s%.*s", strlen(b[i].part) > NAME ? ".." : "", NAME,
				 strlen(b[i].part) > NAME ? b[i].part + strlen(b[i].part) - NAME
							  : b[i].part);
	if (nrows > MAX_ROWS || ncols > MAX_COLS)
		svg_text(out, 4, TOP + (double)DCP_MIN(nrows, (size_t)MAX_ROWS) * CELL + 20,
			 SVG_LEFT, 11, "the first %d of %zu layers and %d of %zu parameters",
			 MAX_COLS, ncols, MAX_ROWS, nrows);
	svg_end(out);
	free(b);
	dcp_arena_finish(&arena);
	return rc < 0 ? rc : dcp_buf_error(out);
}

enum { CHUNK = 256 << 10 };

/* The version without some files: other copies of their elements are read. */
struct without {
	struct pick p;
	bool open;
	uint32_t *file;
	size_t n;
};

/* State that the threads share. */
struct team {
	struct copies *w;
	pthread_mutex_t
		lock;  /* for opening the version once more, and for reports of bad copies */
	size_t next;   /* atomic, as the counts below: the next key */
	uint64_t done; /* bytes read */
	int64_t start_ns;
	int rc;
};

struct comparing_copies {
	struct team *t;
	const struct walk_key *key;
	struct without other;
	char *buf[2];
};

static void close_without(struct without *o)
{
	if (o->open)
		pick_finish(&o->p);
	o->open = false;
	free(o->file);
	o->file = NULL;
}

static enum cmd_exit open_without(struct comparing_copies *c, const uint32_t *file, size_t n)
{
	const struct copies *w = c->t->w;
	struct without *o = &c->other;
	enum cmd_exit code = CMD_OK;

	if (o->open && o->n == n && memcmp(o->file, file, n * sizeof(*file)) == 0)
		return CMD_OK;
	close_without(o);
	o->file = calloc(n, sizeof(*file));
	if (!o->file)
		return cmd_fail(CMD_ENV, "verify: %s", strerror(ENOMEM));
	memcpy(o->file, file, n * sizeof(*file));
	o->n = n;
	o->open = true;
	pthread_mutex_lock(&c->t->lock);
	code = c->t->rc < 0
		       ? CMD_ENV /* reported by another thread */
		       : walk_pick(&o->p, w->p->ck.source, w->p->ck.name, w->opts, "verify");
	if (code != CMD_OK)
		__atomic_store_n(&c->t->rc, -EIO, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&c->t->lock);
	for (size_t i = 0; code == CMD_OK && i < n; i++)
		dcp_files_avoid(dcp_version_files(o->p.ck.v), file[i]);
	if (code != CMD_OK)
		close_without(o);
	return code;
}

/* The cut of a piece, as an array of its own. */
static int cut_of(const struct dcp_piece *p, uint32_t ndim, struct dcp_arena *arena,
		  struct dcp_cut *out)
{
	uint64_t volume = 1;
	int rc = dcp_cut_box(out, ndim, p->lo, p->len, arena);

	for (uint32_t d = 0; d < ndim; d++)
		volume *= p->len[d]; /* a part of a tensor, whose volume fits */
	if (rc == 0 && p->run_n != volume) {
		out->flat = true;
		out->flat_lo = p->run_lo;
		out->flat_n = p->run_n;
	}
	return rc;
}

static void tell_bad(struct comparing_copies *c, const struct copies_bad *bad)
{
	pthread_mutex_lock(&c->t->lock);
	c->t->w->bad(c->t->w->ctx, bad);
	pthread_mutex_unlock(&c->t->lock);
}

static void compare_views(struct comparing_copies *c, const struct dcp_view *a,
			  const struct dcp_view *b, struct copies_bad *bad)
{
	uint64_t size = dcp_view_size(a);
	int rc = size == dcp_view_size(b) ? 0 : -EBADMSG;

	bad->bytes = size;
	bad->first = UINT64_MAX;
	for (uint64_t at = 0; rc == 0 && at < size; at += CHUNK) {
		size_t n = (size_t)DCP_MIN((uint64_t)CHUNK, size - at);

		if (dcp_view_read(a, at, c->buf[0], n) < 0)
			return; /* reading all tensors reports it */
		rc = dcp_view_read(b, at, c->buf[1], n);
		walk_wait_for_rate(c->t->start_ns, c->t->w->rate,
				   __atomic_add_fetch(&c->t->done, 2 * n, __ATOMIC_RELAXED));
		if (rc < 0 || memcmp(c->buf[0], c->buf[1], n) == 0)
			continue;
		for (size_t i = 0; i < n; i++)
			if (c->buf[0][i] != c->buf[1][i]) {
				bad->first = DCP_MIN(bad->first, at + i);
				bad->differ++;
			}
	}
	bad->why = rc < 0 ? dcp_err_noted(rc) : NULL;
	if (rc < 0 || bad->differ)
		tell_bad(c, bad);
	else
		__atomic_add_fetch(&c->t->w->equal, 1, __ATOMIC_RELAXED);
}

/* Compare a piece with all its copies; each copy is read without the files of the copies before
 * it. */
static int compare_piece(struct comparing_copies *c, const struct dcp_tensor *t,
			 const struct dcp_piece *p)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 26);
	dcp_auto_view struct dcp_view *first = NULL;
	uint32_t *file = dcp_arena_calloc(&arena, (size_t)t->ncopies + 1, sizeof(*file));
	struct dcp_err err = { 0 };
	struct dcp_cut cut;
	size_t n = 1;
	int rc = file ? cut_of(p, t->ndim, &arena, &cut) : -ENOMEM;

	if (rc == 0)
		rc = dcp_view_open(c->t->w->p->ck.v, c->key->id, DCP_AS_RAW, &cut, &first,
				   &err);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0; /* reading all tensors reports it */
	file[0] = p->file;
	for (size_t k = 0; k < t->ncopies; k++) {
		const struct dcp_piece *copy = &t->copies[k];
		dcp_auto_view struct dcp_view *view = NULL;
		struct copies_bad bad = { .key = c->key,
					  .file = p->file,
					  .other = copy->file,
					  .off = p->enc == DCP_ENC_PLAIN ? p->off : 0,
					  .n = p->enc == DCP_ENC_PLAIN ? p->nbytes : 0 };

		if (dcp_piece_compare(copy, p, t->ndim) != 0)
			continue;
		if (open_without(c, file, n) != CMD_OK)
			return -EIO; /* reported; the rest is not compared */
		file[n++] = copy->file;
		rc = dcp_view_open(c->other.p.ck.v, c->key->id, DCP_AS_RAW, &cut, &view, &err);
		if (rc == -ENOMEM)
			return rc;
		bad.why = err.msg;
		if (rc < 0) {
			tell_bad(c, &bad);
		} else {
			bad.with = c->other.p.ck.v;
			compare_views(c, first, view, &bad);
		}
	}
	return 0;
}

static int compare_key(struct comparing_copies *c)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_index *ix = dcp_version_index(c->t->w->p->ck.v);
	struct dcp_tensor t;
	int rc = dcp_index_tensor(ix, c->key->id, &arena, &t, NULL);

	for (size_t k = 0; rc == 0 && t.ncopies && k < t.npieces; k++)
		rc = compare_piece(c, &t, &t.pieces[k]);
	return rc;
}

static void *compare_next(void *ctx)
{
	struct comparing_copies *c = ctx;
	struct team *t = c->t;
	const struct walk_keys *keys = t->w->keys;
	size_t i;

	while ((i = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED)) < WALK_NKEYS(keys) &&
	       __atomic_load_n(&t->rc, __ATOMIC_RELAXED) == 0) {
		int rc = 0;

		c->key = &WALK_KEYS(keys)[i];
		if (!c->key->alias_of)
			rc = compare_key(c);
		if (rc < 0)
			__atomic_store_n(&t->rc, rc, __ATOMIC_RELAXED);
	}
	close_without(&c->other);
	return NULL;
}

int copies_check(struct copies *w)
{
	struct team t = { .w = w, .start_ns = dcp_now_ns(CLOCK_MONOTONIC) };
	struct comparing_copies jobs[WALK_MAX_JOBS] = { 0 };
	unsigned n = walk_count_jobs(w->jobs);

	pthread_mutex_init(&t.lock, NULL);
	for (unsigned i = 0; i < n; i++) {
		jobs[i] = (struct comparing_copies){ .t = &t,
						     .buf = { malloc(CHUNK), malloc(CHUNK) } };
		t.rc = jobs[i].buf[0] && jobs[i].buf[1] ? t.rc : -ENOMEM;
	}
	if (t.rc == 0)
		dcp_team_run(n, compare_next, jobs, sizeof(*jobs));
	for (unsigned i = 0; i < n; i++) {
		free(jobs[i].buf[0]);
		free(jobs[i].buf[1]);
	}
	pthread_mutex_destroy(&t.lock);
	return t.rc;
}
