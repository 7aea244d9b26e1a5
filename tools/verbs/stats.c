/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/number.h"
#include "core/base/text.h"
#include "core/model/measure/stats.h"
#include "core/store/cache/kept.h"
#include "core/store/io/files.h"
#include "core/store/io/handles.h"
#include "core/store/view/view.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/walk.h"

struct stats_opts {
	int form, by;
	bool nan, histogram;
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

/* What is kept of a tensor from one call to the next. */
struct measured {
	int64_t id;
	uint64_t key; /* hash of the key */
	struct dcp_stats s;
	uint8_t done, unwritten;
};

struct row {
	const char *name;
	const struct walk_key *key; /* NULL: several */
	struct measured m;
	struct dcp_stats_bins *bins;
	uint64_t tensors;
	bool mixed; /* several dtypes */
};

struct measuring {
	const struct stats_opts *o;
	struct pick p;
	struct walk_keys keys;
	struct row *rows;
	size_t nrows;
	size_t *by_id; /* number of the row that has the id, from 1; 0: none has */
	uint64_t most; /* the greatest id */
	enum cmd_exit code;
	struct dcp_arena arena;
	struct out out;
};

/* ---- reading ---- */

struct found {
	struct dcp_stats s;
	bool begun;
	struct dcp_stats_bins bins; /* with --histogram; else there is no room for it */
};

static int look(void *ctx, const struct walk_item *item, void *found, uint64_t first,
		const void *a, const void *b, size_t n)
{
	const struct measuring *w = ctx;
	const struct walk_key *k = item->key[0];
	struct found *f = found;
	enum dcp_dtype t = k->dtype;

	if (!f->begun)
		dcp_stats_init(&f->s);
	f->begun = true;
	if (dcp_stats_is_opaque(t))
		dcp_stats_add(&f->s, NULL, DCP_DTYPE_U8, first * k->itemsize, a,
			      n * k->itemsize);
	else
		dcp_stats_add(&f->s, w->o->histogram ? &f->bins : NULL, t,
			      first * dcp_stats_values(t), a, n);
	return 0;
}

static void done(void *ctx, const struct walk_item *item, void *found, size_t nspans, int rc,
		 unsigned side, const struct dcp_err *err)
{
	struct measuring *w = ctx;
	struct row *r = &w->rows[item->tag];
	size_t size = w->o->histogram ? sizeof(struct found) : offsetof(struct found, bins);
	enum cmd_exit code;

	if (rc < 0) {
		code = cmd_fail(cmd_exit_of(rc), "%s: %s: %s", w->p.ck.name, item->key[0]->key,
				err->msg[0] ? err->msg : strerror(-rc));
		w->code = w->code == CMD_OK ? code : w->code;
		return;
	}
	dcp_stats_init(&r->m.s);
	if (w->o->histogram)
		r->bins = dcp_arena_calloc(&w->arena, 1, sizeof(*r->bins));
	for (size_t i = 0; i < nspans; i++) {
		const struct found *f = (const void *)((const char *)found + i * size);

		if (!f->begun)
			continue;
		dcp_stats_join(&r->m.s, &f->s);
		for (size_t k = 0; k < DCP_STATS_BINS && r->bins; k++) {
			r->bins->n[0][k] += f->bins.n[0][k];
			r->bins->n[1][k] += f->bins.n[1][k];
		}
	}
	r->m.done = 1;
}

/* Does a hole of its file, where nothing was ever written, take the place of all of the piece? */
static bool is_hole(const struct dcp_view *view, const struct dcp_piece *piece)
{
	const struct dcp_file *file;
	bool hole = false;
	off_t at;

	if (piece->filter != DCP_FILTER_NONE || piece->enc != DCP_ENC_PLAIN ||
	    dcp_files_hold(dcp_view_files(view), piece->file, true, &file, NULL) < 0)
		return false;
	if (file->fd >= 0) {
		at = lseek(file->fd, (off_t)piece->off, SEEK_DATA);
		hole = at < 0 ? errno == ENXIO : (uint64_t)at >= piece->off + piece->nbytes;
	}
	dcp_files_release(dcp_view_files(view), piece->file);
	return hole;
}

/* A block of a file system is data if any byte of it is: at least the middle of the tensor is a hole. */
static bool is_unwritten(struct measuring *w, const struct row *r)
{
	dcp_auto_view struct dcp_view *view = NULL;
	const struct dcp_tensor *t;
	struct dcp_err err;
	bool hole;

	if (r->m.s.n == 0 || r->m.s.zeros != r->m.s.n || !dcp_stats_is_constant(&r->m.s) ||
	    dcp_view_open(w->p.ck.v, r->key->id, DCP_AS_RAW, NULL, &view, &err) < 0)
		return false;
	t = dcp_view_tensor(view);
	hole = t->npieces > 0;
	for (size_t i = 0; i < t->npieces && hole; i++) {
		struct dcp_piece p = t->pieces[i];
		uint64_t block = 4096, rest = p.nbytes > 3 * block ? block : 0;

		p.off += rest;
		p.nbytes -= 2 * rest;
		hole = is_hole(view, &p);
	}
	return hole;
}

static uint64_t hash_of(const struct walk_key *k)
{
	return dcp_hash64(k->key, strlen(k->key));
}

/* What is known from an earlier call. */
static int read_kept(struct measuring *w)
{
	dcp_auto_buf struct dcp_buf kept = DCP_BUF_INIT;
	int rc = w->o->histogram ? -ENOENT : dcp_kept_read(w->p.ck.v, "stats", &kept);
	size_t n = DCP_NITEMS(kept, struct measured);
	const struct measured *all = DCP_ITEMS(kept, struct measured);

	if (rc < 0 || kept.n % sizeof(*all))
		return rc == -ENOMEM ? rc : 0;
	for (size_t i = 0; i < w->nrows; i++) {
		/* They are in the order of the rows' ids, which count from 1. */
		uint64_t at = (uint64_t)w->rows[i].key->id - 1;

		if (at < n && all[at].done && all[at].id == w->rows[i].key->id &&
		    all[at].key == hash_of(w->rows[i].key))
			w->rows[i].m = all[at];
	}
	return 0;
}

static void write_kept(struct measuring *w)
{
	dcp_auto_buf struct dcp_buf kept = DCP_BUF_INIT;

	if (dcp_kept_read(w->p.ck.v, "stats", &kept) < 0)
		dcp_buf_reset(&kept);
	for (size_t i = 0; i < w->nrows; i++) {
		struct measured *m =
			dcp_buf_at(&kept, (size_t)w->rows[i].key->id - 1, sizeof(*m));

		if (!m)
			return;
		if (w->rows[i].m.done)
			*m = w->rows[i].m;
		m->id = w->rows[i].key->id;
		m->key = hash_of(w->rows[i].key);
	}
	dcp_kept_write(w->p.ck.v, "stats", kept.p, kept.n);
}

/* The row of a tensor that is looked at, by its id; NULL: it is not. */
static struct row *row_of(struct measuring *w, int64_t id)
{
	size_t at = id > 0 && (uint64_t)id <= w->most ? w->by_id[id] : 0;

	return at ? &w->rows[at - 1] : NULL;
}

static int measure(struct measuring *w)
{
	struct walk walk = {
		.version = { w->p.ck.v },
		.jobs = (unsigned)w->o->jobs,
		.rate = w->o->rate,
		.found = w->o->histogram ? sizeof(struct found) : offsetof(struct found, bins),
		.look = look,
		.done = done,
		.ctx = w,
		.what = "measuring",
	};
	int rc;

	w->nrows = WALK_NKEYS(&w->keys);
	w->rows = calloc(w->nrows + 1, sizeof(*w->rows));
	walk.items = calloc(w->nrows + 1, sizeof(*walk.items));
	for (size_t i = 0; i < w->nrows; i++)
		w->most = DCP_MAX(w->most, (uint64_t)WALK_KEYS(&w->keys)[i].id);
	w->by_id = calloc(w->most + 1, sizeof(*w->by_id));
	if (!w->rows || !walk.items || !w->by_id) {
		free(walk.items);
		return -ENOMEM;
	}
	for (size_t i = 0; i < w->nrows; i++)
		w->rows[i] = (struct row){ .name = WALK_KEYS(&w->keys)[i].key,
					   .key = &WALK_KEYS(&w->keys)[i],
					   .tensors = 1 };
	for (size_t i = 0; i < w->nrows; i++)
		w->by_id[w->rows[i].key->id] = i + 1;
	rc = read_kept(w);
	for (size_t i = 0; i < w->nrows; i++)
		if (!w->rows[i].m.done &&
		    !(w->rows[i].key->alias_of && row_of(w, w->rows[i].key->alias_of)))
			walk.items[walk.n++] =
				(struct walk_item){ { w->rows[i].key, NULL }, i };
	if (rc == 0)
		rc = walk_run(&walk);
	for (size_t i = 0; i < w->nrows && rc == 0; i++) {
		struct row *r = &w->rows[i], *of = row_of(w, r->key->alias_of);

		if (!r->m.done && of) {
			r->m = of->m;
			r->bins = of->bins;
		} else if (r->m.done) {
			r->m.unwritten = r->m.unwritten || is_unwritten(w, r);
		}
	}
	if (rc == 0 && walk.n && !w->o->histogram)
		write_kept(w);
	free(walk.items);
	return rc;
}

/* ---- groups ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

/* Rows of one group become one. */
static int group(struct measuring *w)
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

		if (!r->m.done)
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

static bool is_shown(const struct measuring *w, const struct row *r)
{
	return r->m.done && (!w->o->nan || r->m.s.nans || r->m.s.infs);
}

static enum cmd_exit print(struct measuring *w)
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
	struct measuring w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	enum cmd_exit code = walk_open(&w.p, args, &o->pick, "stats");
	int rc;

	out_init(&w.out, o->form);
	if (code == CMD_OK)
		code = walk_keys(&w.p, &o->keys, &w.keys);
	if (code == CMD_OK) {
		rc = measure(&w);
		if (rc == 0 && o->by != WALK_BY_KEY)
			rc = group(&w);
		code = rc < 0 ? cmd_fail(CMD_ENV, "stats: %s", strerror(-rc)) : print(&w);
	}
	free(w.rows);
	free(w.by_id);
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
