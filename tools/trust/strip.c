/* SPDX-License-Identifier: Apache-2.0 */
/* A strip: what has changed between two versions, a box for each layer and parameter of it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/text.h"
#include "tools/svg.h"
#include "tools/trust/compare.h"

enum { MAX_COLS = 512, MAX_ROWS = 256, CELL = 14, LABEL = 340, TOP = 40, NAME = 48 };

/* A pair, or several that have one place. */
struct box {
	const char *layer, *part; /* layer "": the key has no number */
	struct dcp_difference d;
	enum compare_state state;
	size_t col, row;
};

/* "layers.3" and "mlp.weight"; a key without a number is all part. */
static int place(struct box *b, const struct pair *p, struct dcp_arena *arena)
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

/* Number rows and columns; boxes of one place become one. Returns how many there are. */
static size_t join(struct box *b, size_t n, size_t *nrows, size_t *ncols)
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

static void draw(struct dcp_buf *out, const struct box *b)
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
		rc = place(&b[i], &w->pairs[i], &arena);
	n = rc == 0 ? join(b, w->n, &nrows, &ncols) : 0;
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
		draw(out, &b[i]);
	}
	/* Each row's name once. */
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
