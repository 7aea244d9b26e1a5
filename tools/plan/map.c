/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shard map: the index space of a tensor, cut by its stored pieces (dark edges) and by the
 * parts of ranks (colours).
 *
 * Two dimensions are drawn, those with the most cuts; where others are cut, too, the picture
 * is the slice at their index 0 and says so. A tensor of one dimension is a strip.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/tiling.h"
#include "tools/plan/plan.h"
#include "tools/svg.h"

enum {
	MAX_PARTS = 2048,  /* different parts that are drawn */
	MAX_RANKS = 65536, /* ranks whose parts are drawn */
	MAX_BOXES = 40000,
	LEGEND = 24, /* lines of a column, for files or ranks */
	MEMORY = 256 << 20,
};

#define LEFT 70.0
#define TOP 64.0
#define WIDTH 720.0
#define GAP 24.0
#define COLUMN 300.0

/* A part that some ranks have, the same for each of them. */
struct part {
	struct dcp_cut cut;
	uint64_t hash;
	struct dcp_buf ranks; /* "0, 8-11" */
	uint32_t first, last, n;
};

struct map {
	struct plan *p;
	struct dcp_tensor t;
	struct dcp_tiling tl;
	struct dcp_arena arena;
	struct part *part;
	size_t nparts, left_out;
	uint32_t x, y; /* the dimensions that are drawn; y == ndim: only x */
	bool sliced;
	double height;
	size_t boxes;
	struct dcp_buf *out;
	const struct part *now;
};

/* ---- parts ---- */

static uint64_t hash_of(const struct dcp_cut *cut)
{
	uint64_t run[3] = { cut->flat, cut->flat_lo, cut->flat_n };
	uint64_t h = dcp_hash64(run, sizeof(run));

	for (uint32_t d = 0; d < cut->ndim; d++)
		h = dcp_hash64_more(h, cut->axis[d].span,
				    cut->axis[d].n * sizeof(struct dcp_span));
	return h;
}

/* "0, 8-11": ranks come in order. */
static void add_rank(struct part *part, uint32_t rank)
{
	if (!part->n)
		part->first = rank;
	if (!part->n || rank != part->last + 1) {
		if (part->n && part->last != part->first)
			dcp_buf_printf(&part->ranks, "-%" PRIu32, part->last);
		dcp_buf_printf(&part->ranks, "%s%" PRIu32, part->n ? ", " : "", rank);
		part->first = rank;
	}
	part->last = rank;
	part->n++;
}

static void end_ranks(struct part *part)
{
	if (part->last != part->first)
		dcp_buf_printf(&part->ranks, "-%" PRIu32, part->last);
}

static int find_parts(struct map *m, struct dcp_err *err)
{
	const struct dcp_layout *l = m->p->to;

	m->part = dcp_arena_calloc(&m->arena, MAX_PARTS, sizeof(*m->part));
	if (!m->part)
		return -ENOMEM;
	m->left_out = dcp_layout_ranks(l) > MAX_RANKS;
	for (uint32_t r = 0; r < DCP_MIN(dcp_layout_ranks(l), (uint32_t)MAX_RANKS); r++) {
		struct dcp_cut cut;
		uint64_t volume = 0, hash;
		size_t i = 0;
		int rc = dcp_layout_cut(l, r, m->t.key, m->t.ndim, m->t.shape, &m->arena, &cut,
					err);

		if (rc < 0)
			return rc;
		if (rc == 0 || !dcp_cut_volume(&cut, &volume) || !volume)
			continue;
		hash = hash_of(&cut);
		while (i < m->nparts && m->part[i].hash != hash)
			i++;
		if (i == MAX_PARTS) {
			m->left_out++;
			continue;
		}
		if (i == m->nparts) {
			m->part[i].cut = cut;
			m->part[i].hash = hash;
			m->nparts++;
		}
		add_rank(&m->part[i], r);
	}
	for (size_t i = 0; i < m->nparts; i++)
		end_ranks(&m->part[i]);
	return 0;
}

/* ---- which dimensions ---- */

/* Number of stretches into which pieces and parts together cut dimension @d. */
static uint64_t cuts_of(const struct map *m, uint32_t d)
{
	uint64_t n = m->tl.ncell[d] - 1;

	for (size_t i = 0; i < m->nparts; i++) {
		const struct dcp_axis *a = &m->part[i].cut.axis[d];

		if (a->n && (a->n > 1 || a->span->n != m->t.shape[d]))
			n++;
	}
	return n;
}

static void choose_dims(struct map *m)
{
	uint64_t most[2] = { 0, 0 };
	uint32_t best[2] = { 0, 0 };
	size_t cut = 0;

	for (uint32_t d = 0; d < m->t.ndim; d++) {
		uint64_t n = cuts_of(m, d) * 2 + (m->t.shape[d] > 1);

		cut += n > 1;
		if (d == 0 || n > most[0]) {
			best[1] = best[0];
			most[1] = most[0];
			best[0] = d;
			most[0] = n;
		} else if (d == 1 || n > most[1]) {
			best[1] = d;
			most[1] = n;
		}
	}
	m->y = m->t.ndim > 1 ? DCP_MIN(best[0], best[1]) : m->t.ndim;
	m->x = m->t.ndim > 1 ? DCP_MAX(best[0], best[1]) : 0;
	m->sliced = cut > 2;
	m->height = 90;
	if (m->t.ndim > 1) {
		m->height = WIDTH * (double)m->t.shape[m->y] / (double)m->t.shape[m->x];
		m->height = DCP_MAX(DCP_MIN(m->height, 640.0), 200.0);
	}
}

/* ---- drawing ---- */

struct place {
	double x, y, w, h;
};

static double scale_at(const struct map *m, uint32_t d, uint64_t at, double size)
{
	return d < m->t.ndim && m->t.shape[d] ? size * (double)at / (double)m->t.shape[d]
	       : at                           ? size
					      : 0;
}

/* The rectangle of the box [lo, lo + n); false: it is outside of the slice. */
static bool place_of(const struct map *m, const uint64_t *lo, const uint64_t *n,
		     struct place *out)
{
	for (uint32_t d = 0; d < m->t.ndim; d++)
		if (d != m->x && d != m->y && lo[d] != 0)
			return false;
	*out = (struct place){ LEFT, TOP, WIDTH, m->height };
	if (m->t.ndim) {
		out->x = LEFT + scale_at(m, m->x, lo[m->x], WIDTH);
		out->w = scale_at(m, m->x, n[m->x], WIDTH);
	}
	if (m->y < m->t.ndim) {
		out->y = TOP + scale_at(m, m->y, lo[m->y], m->height);
		out->h = scale_at(m, m->y, n[m->y], m->height);
	}
	return true;
}

static int draw_meet(void *ctx, const struct dcp_meet *meet)
{
	struct map *m = ctx;
	size_t number = (size_t)(m->now - m->part);
	struct place at;
	char color[8], range[DCP_BOX_TEXT];

	if (!place_of(m, meet->lo, meet->n, &at))
		return 0;
	if (m->boxes++ == MAX_BOXES)
		return -E2BIG;
	svg_box(m->out, at.x, at.y, at.w, at.h, svg_color(color, (uint32_t)number), "#ffffff",
		at.w > 3 && at.h > 3 ? 0.6 : 0);
	svg_title(m->out, "rank%s %.80s: %.120s of %.120s", dcp_s(m->now->n),
		  m->now->ranks.p ? m->now->ranks.p : "",
		  dcp_box_text(range, sizeof(range), meet->lo, meet->n, m->t.ndim),
		  m->p->files[meet->piece->file].name);
	svg_close(m->out);
	if (at.w > 34 && at.h > 14)
		svg_text(m->out, at.x + at.w / 2, at.y + at.h / 2 + 4, SVG_MIDDLE, 11, "%.*s%s",
			 (int)(at.w / 7), m->now->ranks.p ? m->now->ranks.p : "",
			 m->now->ranks.n > (size_t)(at.w / 7) ? ".." : "");
	return 0;
}

static void draw_edges(struct map *m)
{
	for (size_t i = 0; i < m->t.npieces && m->boxes < MAX_BOXES; i++) {
		const struct dcp_piece *p = &m->t.pieces[i];
		uint64_t pos = p->run_lo, left = p->run_n, lo[DCP_MAX_NDIM], n[DCP_MAX_NDIM];
		struct place at;

		while (left) {
			dcp_run_box(m->t.ndim, p->len, &pos, &left, lo, n);
			for (uint32_t d = 0; d < m->t.ndim; d++)
				lo[d] += p->lo[d];
			if (!place_of(m, lo, n, &at))
				continue;
			m->boxes++;
			dcp_buf_printf(m->out,
				       "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' "
				       "fill='none' stroke='#111111' stroke-width='1.6' "
				       "pointer-events='none'/>\n",
				       at.x, at.y, at.w, at.h);
		}
	}
}

static void draw_axes(const struct map *m)
{
	if (m->t.ndim) {
		svg_text(m->out, LEFT, TOP - 8, SVG_LEFT, 11, "0");
		svg_text(m->out, LEFT + WIDTH, TOP - 8, SVG_RIGHT, 11, "%" PRIu64,
			 m->t.shape[m->x]);
		svg_text(m->out, LEFT + WIDTH / 2, TOP - 8, SVG_MIDDLE, 11,
			 "dimension %" PRIu32, m->x);
	}
	if (m->y < m->t.ndim) {
		svg_text(m->out, LEFT - 6, TOP + 10, SVG_RIGHT, 11, "0");
		svg_text(m->out, LEFT - 6, TOP + m->height, SVG_RIGHT, 11, "%" PRIu64,
			 m->t.shape[m->y]);
		svg_text(m->out, LEFT - 6, TOP + m->height / 2, SVG_RIGHT, 11, "dim %" PRIu32,
			 m->y);
	}
}

/* The legend below the picture: colours of files and ranks. */
static double draw_legend(struct map *m, double y)
{
	size_t shown = DCP_MIN(m->nparts, (size_t)LEGEND);
	char color[8];

	for (size_t i = 0; i < shown; i++) {
		double at = LEFT + (double)(i % 3) * (WIDTH / 3);
		double down = y + (double)(i / 3) * 18;

		svg_box(m->out, at, down, 12, 12, svg_color(color, (uint32_t)i), "#888888",
			0.5);
		svg_close(m->out);
		svg_text(m->out, at + 18, down + 10, SVG_LEFT, 11, "rank%s %.28s%s",
			 dcp_s(m->part[i].n), m->part[i].ranks.p ? m->part[i].ranks.p : "",
			 m->part[i].ranks.n > 28 ? ".." : "");
	}
	y += (double)((shown + 2) / 3) * 18;
	if (shown < m->nparts || m->left_out) {
		svg_text(m->out, LEFT, y + 12, SVG_LEFT, 11,
			 "and %zu more part%s; rest the pointer on one to see whose it is%s",
			 m->nparts - shown, dcp_s(m->nparts - shown),
			 m->left_out ? "; those of the last ranks are not drawn" : "");
		y += 18;
	}
	return y;
}

static void draw_head(const struct map *m)
{
	char shape[256], size[OUT_SIZE];
	uint64_t nbytes = 0;

	dcp_tensor_nbytes(&m->t, &nbytes);
	svg_text(m->out, LEFT, 22, SVG_LEFT, 15, "%.100s", m->t.key);
	svg_text(m->out, LEFT, 40, SVG_LEFT, 11,
		 "%s %s, %s: %zu stored piece%s (dark edges), %zu different part%s of %.40s%s",
		 m->t.dtype_name, dcp_dims_text(shape, sizeof(shape), m->t.shape, m->t.ndim),
		 out_size(size, nbytes), m->t.npieces, dcp_s(m->t.npieces), m->nparts,
		 dcp_s(m->nparts), dcp_layout_name(m->p->to),
		 m->sliced ? "; the slice at index 0 of other dimensions" : "");
}

static int draw_map(struct map *m)
{
	double legend = (double)((DCP_MIN(m->nparts, (size_t)LEGEND) + 2) / 3) * 18 + 24;
	int rc = 0;

	svg_begin(m->out, LEFT + WIDTH + GAP, TOP + m->height + GAP + legend, m->t.key);
	draw_head(m);
	for (size_t i = 0; rc == 0 && i < m->nparts; i++) {
		uint64_t volume = 0;

		m->now = &m->part[i];
		dcp_cut_volume(&m->now->cut, &volume);
		if (m->now->cut.flat)
			volume = m->now->cut.flat_n;
		rc = dcp_meet(&m->tl, &m->now->cut, 0, volume, draw_meet, m);
	}
	draw_edges(m);
	draw_axes(m);
	draw_legend(m, TOP + m->height + 14);
	if (rc == -E2BIG)
		svg_text(m->out, LEFT + WIDTH, TOP + m->height + 12, SVG_RIGHT, 11,
			 "the first %d boxes only", MAX_BOXES);
	svg_end(m->out);
	return dcp_buf_error(m->out);
}

enum cmd_exit plan_map(struct plan *p, int64_t id, struct dcp_buf *out)
{
	struct map m = { .p = p, .out = out };
	struct dcp_err err = { .msg = "out of memory" };
	bool empty;
	int rc;

	dcp_arena_init(&m.arena, MEMORY);
	rc = dcp_index_tensor(dcp_version_index(p->pick.ck.v), id, &m.arena, &m.t, &err);
	empty = rc == 0 && m.t.npieces == 0;
	if (rc == 0 && m.t.error) {
		rc = dcp_fail(&err, -EBADMSG, "%.200s: %.200s", m.t.key, m.t.error);
	}
	if (rc == 0 && !empty)
		rc = dcp_tiling_init(&m.tl, &m.t, &m.arena, &err);
	for (uint32_t d = 0; rc == 0 && d < m.t.ndim; d++)
		empty |= m.t.shape[d] == 0;
	if (rc == 0 && empty)
		rc = dcp_fail(&err, -EINVAL, "%.200s has no elements to be drawn", m.t.key);
	if (rc == 0)
		rc = find_parts(&m, &err);
	if (rc == 0) {
		choose_dims(&m);
		rc = draw_map(&m);
	}
	for (size_t i = 0; i < m.nparts; i++)
		dcp_buf_finish(&m.part[i].ranks);
	dcp_arena_finish(&m.arena);
	return rc < 0 ? cmd_fail(cmd_exit_of(rc), "%s", err.msg) : CMD_OK;
}

/* Overviews: each file as a bar with its readers, and the bytes that ranks send to each other. */

enum { MAX_FILES = 48, MAX_CELLS = 64 };

#define NAMES 200.0
#define BAR 700.0
#define LINE 18.0
#define TOP_DRAW 30.0

/* ---- files ---- */

struct bars {
	struct plan *p;
	struct dcp_buf *out;
	uint32_t *line; /* by file number: 1 + where it is drawn; 0: it is not */
	double per_byte;
	/* the file and rank that are being drawn */
	uint32_t rank;
	uint32_t file;
	uint64_t lo, hi, bytes;
};

static void put_bar(struct bars *b)
{
	char color[8], n[32];

	if (!b->bytes || !b->line[b->file])
		return;
	svg_box(b->out, NAMES + (double)b->lo * b->per_byte,
		TOP_DRAW + (double)(b->line[b->file] - 1) * LINE,
		(double)(b->hi - b->lo) * b->per_byte, LINE - 4, svg_color(color, b->rank),
		"#ffffff", 0.3);
	svg_title(b->out, "rank %" PRIu32 ": %s byte%s of %.200s, from %" PRIu64 " to %" PRIu64,
		  b->rank, out_count(n, b->bytes), dcp_s(b->bytes), b->p->files[b->file].name,
		  b->lo, b->hi);
	svg_close(b->out);
	if ((double)(b->hi - b->lo) * b->per_byte > 22)
		svg_text(b->out, NAMES + (double)(b->lo + b->hi) / 2 * b->per_byte,
			 TOP_DRAW + (double)(b->line[b->file] - 1) * LINE + 11, SVG_MIDDLE, 10,
			 "%" PRIu32, b->rank);
}

static int add_bar(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct bars *b = ctx;

	/* A part too narrow to be seen is drawn with the part before it. */
	bool narrow = (double)(off + n - b->lo) * b->per_byte < 1;

	if (b->bytes && (b->file != file || (b->rank != rank && !narrow))) {
		put_bar(b);
		b->bytes = 0;
	}
	if (!b->bytes) {
		b->lo = off;
		b->rank = rank;
	}
	b->file = file;
	b->hi = off + n;
	b->bytes += n;
	return 0;
}

/* Size of the file, decoded, in which pieces lie. */
static uint64_t size_of(const struct dcp_file_id *file)
{
	return file->unpacked ? file->unpacked : file->size;
}

/* Give the first MAX_FILES files that are read a line each; the largest size in @most. */
static uint32_t number_lines(const struct plan *p, uint32_t *line, uint64_t *most)
{
	uint32_t n = 0;

	*most = 1;
	for (size_t i = 0; i < p->nfiles && n < MAX_FILES; i++)
		if (p->is_read[i]) {
			line[i] = ++n;
			*most = DCP_MAX(*most, size_of(&p->files[i]));
		}
	return n;
}

enum cmd_exit plan_draw_files(struct plan *p, struct dcp_buf *out)
{
	dcp_auto_free uint32_t *line = calloc(p->nfiles + 1, sizeof(*line));
	struct bars b = { .p = p, .out = out, .line = line };
	uint64_t most;
	uint32_t n;

	if (!line)
		return cmd_fail(CMD_ENV, "out of memory");
	n = number_lines(p, line, &most);
	b.per_byte = BAR / (double)most;
	svg_begin(out, NAMES + BAR + 10, TOP_DRAW + n * LINE + (p->nread > n ? LINE : 0) + 6,
		  "which rank reads what of each file");
	svg_text(out, NAMES, 18, SVG_LEFT, 13, "which rank reads what of each file");
	for (size_t i = 0; i < p->nfiles; i++) {
		if (!line[i])
			continue;
		svg_text(out, NAMES - 6, TOP_DRAW + (line[i] - 1) * LINE + 11, SVG_RIGHT, 10,
			 "%.34s", p->files[i].name);
		svg_box(out, NAMES, TOP_DRAW + (line[i] - 1) * LINE,
			(double)size_of(&p->files[i]) * b.per_byte, LINE - 4, "#eeeeee", "none",
			0);
		svg_close(out);
	}
	dcp_job_reads(p->job, DCP_JOB_EACH, add_bar, &b);
	put_bar(&b);
	if (p->nread > n)
		svg_text(out, NAMES, TOP_DRAW + n * LINE + 12, SVG_LEFT, 11,
			 "and %zu more file%s", p->nread - n, dcp_s(p->nread - n));
	svg_end(out);
	return CMD_OK;
}

/* ---- exchange ---- */

/* Bytes between blocks of @each ranks, into @sum (cells by cells). */
static int sum_blocks(const struct plan *p, uint32_t each, uint32_t cells, uint64_t *sum,
		      struct dcp_err *err)
{
	uint32_t most = dcp_job_rows(p->ranks);
	dcp_auto_free uint64_t *rows = calloc((size_t)most * p->ranks, sizeof(*rows));

	if (!rows)
		return -ENOMEM;
	for (uint32_t first = 0; first < p->ranks; first += most) {
		uint32_t n = DCP_MIN(p->ranks - first, most);
		int rc = dcp_job_sends(p->job, first, n, rows, err);

		if (rc < 0)
			return rc;
		for (size_t i = 0; i < (size_t)n * p->ranks; i++) {
			uint32_t r = first + (uint32_t)(i / p->ranks);
			uint32_t s = (uint32_t)(i % p->ranks);

			sum[(size_t)(r / each) * cells + s / each] += s == r ? 0 : rows[i];
		}
	}
	return 0;
}

/* A matrix of ranks, or of blocks of ranks where there are too many. */
enum cmd_exit plan_draw_exchange(struct plan *p, struct dcp_buf *out)
{
	uint32_t each = (p->ranks + MAX_CELLS - 1) / MAX_CELLS;
	uint32_t cells = (p->ranks + each - 1) / each;
	dcp_auto_free uint64_t *sum = calloc((size_t)cells * cells, sizeof(*sum));
	struct dcp_err err = { .msg = "out of memory" };
	double side = DCP_MAX(DCP_MIN(520.0 / cells, 28.0), 8.0);
	uint64_t most = 1;
	char color[8], size[OUT_SIZE];

	if (!sum || sum_blocks(p, each, cells, sum, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	for (size_t i = 0; i < (size_t)cells * cells; i++)
		most = DCP_MAX(most, sum[i]);
	svg_begin(out, DCP_MAX(90 + cells * side, 400.0), 60 + cells * side,
		  "who sends how much to whom");
	svg_text(out, 60, 18, SVG_LEFT, 13, "who sends (rows) how much to whom (columns)");
	svg_text(out, 60, 36, SVG_LEFT, 10, "darkest: %s%s", out_size(size, most),
		 each > 1 ? "; each cell is a block of ranks" : "");
	for (uint32_t i = 0; i < cells; i++)
		for (uint32_t j = 0; j < cells; j++) {
			uint64_t v = sum[i * cells + j];

			svg_box(out, 60 + j * side, 46 + i * side, side, side,
				svg_shade(color,
					  v ? 0.08 + 0.92 * (double)v / (double)most : 0),
				"#dddddd", 0.4);
			svg_title(out, "%" PRIu32 " to %" PRIu32 ": %s", i * each, j * each,
				  out_size(size, v));
			svg_close(out);
		}
	for (uint32_t i = 0; i < cells; i += (cells + 15) / 16)
		svg_text(out, 54, 46 + i * side + side / 2 + 4, SVG_RIGHT, 10, "%" PRIu32,
			 i * each);
	svg_end(out);
	return CMD_OK;
}
