/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/browse/screen.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/model/measure/stats.h"
#include "core/store/io/files.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
#include "tools/out.h"
#include "tools/trust/trust.h"

enum { BAR = 40, MOST_LINES = 100000 };

static void begin_text(struct browse_text *t)
{
	t->text.n = t->lines.n = 0;
}

/* Add a line, made printable. */
static void add_line(struct browse_text *t, const char *text)
{
	uint64_t at = t->text.n;

	dcp_buf_add(&t->lines, &at, sizeof(at));
	out_text(&t->text, text);
	dcp_buf_add(&t->text, "", 1);
}

__attribute__((format(printf, 2, 3))) static void put_line(struct browse_text *t,
							   const char *fmt, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, fmt);
	if (vasprintf(&text, fmt, args) < 0)
		text = NULL;
	va_end(args);
	if (text)
		add_line(t, text);
	else
		add_line(t, strerror(ENOMEM));
	free(text);
}

static void put_key(struct browse_text *t, const struct browse_item *item)
{
	const struct walk_key *k = item->tensor;
	char shape[1024], size[64];

	begin_text(t);
	put_line(t, "key       %s", k->key);
	put_line(t, "dtype     %s", k->dtype_name);
	put_line(t, "shape     %s", dcp_dims_text(shape, sizeof(shape), k->shape, k->ndim));
	put_line(t, "elements  %" PRIu64, k->elements);
	put_line(t, "size      %s", out_size_exact(size, k->nbytes));
}

/* The reads that make up the tensor. */
void browse_plan(struct browse_text *t, const struct pick *p, const struct browse_item *item)
{
	dcp_auto_view struct dcp_view *view = NULL;
	const struct dcp_tensor *tensor;
	struct dcp_err err = { 0 };

	put_key(t, item);
	add_line(t, "");
	if (dcp_view_open(p->ck.v, item->id, DCP_AS_RAW, NULL, &view, &err) < 0) {
		put_line(t, "cannot be read: %s", err.msg);
		return;
	}
	tensor = dcp_view_tensor(view);
	if (tensor->alias_of)
		put_line(t, "its bytes are those of %s", tensor->alias_of);
	put_line(t, "%zu piece%s, of which each is bytes of a file:", tensor->npieces,
		 tensor->npieces == 1 ? "" : "s");
	for (size_t i = 0; i < tensor->npieces && i < MOST_LINES; i++) {
		const struct dcp_piece *at = &tensor->pieces[i];
		char box[DCP_BOX_TEXT];

		put_line(t, "  %s  %s, %" PRIu64 " bytes at %" PRIu64 "%s%s",
			 dcp_box_text(box, sizeof(box), at->lo, at->len, tensor->ndim),
			 dcp_files_name(dcp_version_files(p->ck.v), at->file), at->nbytes,
			 at->off, at->filter ? ", " : "", dcp_filter_name(at->filter));
	}
	if (tensor->npieces > MOST_LINES)
		put_line(t, "  (and %zu more, which dcpfs show prints)",
			 tensor->npieces - MOST_LINES);
}

/* Show progress. True: the user gave up. */
static bool is_given_up(void *ctx, uint64_t done, uint64_t all)
{
	int key = screen_key(0);
	unsigned rows, cols;
	char line[80];

	screen_size(&rows, &cols);
	snprintf(line, sizeof(line), " reading: %d %%; Esc gives it up",
		 (int)(100.0 * (double)done / (double)all));
	if (strlen(line) < cols)
		screen_line(rows ? rows - 1 : 0, line, true);
	screen_show();
	return key == SCREEN_ESCAPE || key == SCREEN_INTERRUPT || key == 'q';
}

static void put_bins(struct browse_text *t, const struct dcp_stats_bins *bins)
{
	uint64_t most = 1;

	for (size_t i = 0; i < 2 * DCP_STATS_BINS; i++)
		most = DCP_MAX(most, (&bins->n[0][0])[i]);
	for (size_t neg = 2; neg-- > 0;)
		for (size_t i = 0; i < DCP_STATS_BINS; i++) {
			size_t at = neg ? DCP_STATS_BINS - 1 - i : i;
			uint64_t n = bins->n[neg][at];
			char bar[BAR + 1] = "";

			memset(bar, '#', (size_t)((double)n / (double)most * BAR));
			if (n)
				put_line(t, "  %s2^%-4d %14" PRIu64 "  %s", neg ? "-" : " ",
					 (int)at + DCP_STATS_BIN_LEAST, n, bar);
		}
}

bool browse_numbers(struct browse_text *t, const struct pick *p, struct dcp_measures *known,
		    const struct browse_item *item, bool histogram, char *said, size_t size)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	dcp_auto_free struct dcp_stats_bins *bins = histogram ? calloc(1, sizeof(*bins)) : NULL;
	const struct dcp_measure_stop stop = { is_given_up, NULL };
	const struct walk_key *k = item->tensor;
	struct dcp_err err = { 0 };
	struct dcp_stats_fields all;
	struct dcp_measured m;
	struct dcp_row row;
	int rc = histogram && !bins ? -ENOMEM
				    : dcp_index_by_id(dcp_version_index(p->ck.v),
						      DCP_ROW_TENSOR, item->id, &arena, &row);

	if (rc == 0)
		rc = dcp_measures_get(known, &row, bins, &stop, &m, &err);
	if (rc < 0) {
		if (rc != -EINTR)
			snprintf(said, size, "%s", err.msg[0] ? err.msg : strerror(-rc));
		return false;
	}
	put_key(t, item);
	add_line(t, "");
	dcp_stats_fields(&(struct dcp_stats_of){ .s = &m.s,
						 .unwritten = m.unwritten,
						 .dtype = k->dtype,
						 .ndim = k->ndim,
						 .shape = k->shape },
			 &all);
	for (const struct dcp_stats_field *f = all.field; f < all.field + all.n; f++)
		if (f->kind == DCP_FIELD_COUNT)
			put_line(t, "%-9s %" PRIu64, f->name, f->count);
		else if (f->kind == DCP_FIELD_NUMBER)
			put_line(t, "%-9s %.6g", f->name, f->number);
		else
			put_line(t, "%-9s %s", f->name, f->text ? f->text : "");
	if (bins) {
		add_line(t, "");
		add_line(t, "how many numbers lie between powers of two:");
		put_bins(t, bins);
	}
	return true;
}

/* An object as JSON, a line for each member and element. */
void browse_object(struct browse_text *t, const struct pick *p, const struct browse_item *item)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	dcp_auto_buf struct dcp_buf line = DCP_BUF_INIT;
	struct dcp_object o = { 0 };
	struct dcp_err err = { 0 };
	int rc = dcp_index_object(dcp_version_index(p->ck.v), item->id, &arena, &o, &err);
	int depth = 0;
	bool quoted = false;

	begin_text(t);
	put_line(t, "key   %s", item->key);
	put_line(t, "type  %s", rc == 0 && o.type ? o.type : "");
	if (rc < 0 || !o.json)
		put_line(t, "cannot be read: %s", o.error ? o.error : err.msg);
	for (size_t i = 0; rc == 0 && i < o.json_len; i++) {
		char c = o.json[i];
		bool opens = !quoted && (c == '{' || c == '['),
		     closes = !quoted && (c == '}' || c == ']');

		if (t->lines.n >= sizeof(uint64_t) * MOST_LINES) {
			add_line(t, "(and more, which dcpfs cat prints)");
			return;
		}
		if (quoted && c == '\\' && i + 1 < o.json_len)
			dcp_buf_add(&line, &o.json[i++], 1);
		else if (c == '"')
			quoted = !quoted;
		depth -= closes;
		dcp_buf_add(&line, &o.json[i], 1);
		if (!opens && (quoted || c != ',') && i + 1 < o.json_len)
			continue;
		depth += opens;
		add_line(t, line.p ? line.p : "");
		line.n = 0;
		for (int d = 0; d < 2 * depth && d < 60; d++)
			dcp_buf_str(&line, " ");
	}
}
