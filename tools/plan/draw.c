/* SPDX-License-Identifier: Apache-2.0 */
/* Overviews: each file as a bar of those who read it, and who sends how much to whom. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "tools/plan/plan.h"
#include "tools/svg.h"

enum { MAX_FILES = 48, MAX_CELLS = 64 };

#define NAMES 200.0
#define BAR 700.0
#define LINE 18.0
#define TOP 30.0

/* ---- files ---- */

struct bars {
	struct plan *p;
	struct dcp_buf *out;
	uint32_t *line; /* by file number: 1 + where it is drawn; 0: it is not */
	double per_byte;
	/* of the file and rank that is being drawn */
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
		TOP + (double)(b->line[b->file] - 1) * LINE,
		(double)(b->hi - b->lo) * b->per_byte, LINE - 4, svg_color(color, b->rank),
		"#ffffff", 0.3);
	svg_title(b->out, "rank %" PRIu32 ": %s byte%s of %.200s, from %" PRIu64 " to %" PRIu64,
		  b->rank, out_count(n, b->bytes), dcp_s(b->bytes), b->p->files[b->file].name,
		  b->lo, b->hi);
	svg_close(b->out);
	if ((double)(b->hi - b->lo) * b->per_byte > 22)
		svg_text(b->out, NAMES + (double)(b->lo + b->hi) / 2 * b->per_byte,
			 TOP + (double)(b->line[b->file] - 1) * LINE + 11, SVG_MIDDLE, 10,
			 "%" PRIu32, b->rank);
}

static int add_bar(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct bars *b = ctx;

	/* What is too narrow to be seen is drawn with what comes before it. */
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

/* Of what the pieces lie in. */
static uint64_t size_of(const struct dcp_file_id *file)
{
	return file->unpacked ? file->unpacked : file->size;
}

/* The files that are read, the first MAX_FILES of them, each its line; the longest in @most. */
static uint32_t lines(const struct plan *p, uint32_t *line, uint64_t *most)
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
	n = lines(p, line, &most);
	b.per_byte = BAR / (double)most;
	svg_begin(out, NAMES + BAR + 10, TOP + n * LINE + (p->nread > n ? LINE : 0) + 6,
		  "which rank reads what of each file");
	svg_text(out, NAMES, 18, SVG_LEFT, 13, "which rank reads what of each file");
	for (size_t i = 0; i < p->nfiles; i++) {
		if (!line[i])
			continue;
		svg_text(out, NAMES - 6, TOP + (line[i] - 1) * LINE + 11, SVG_RIGHT, 10,
			 "%.34s", p->files[i].name);
		svg_box(out, NAMES, TOP + (line[i] - 1) * LINE,
			(double)size_of(&p->files[i]) * b.per_byte, LINE - 4, "#eeeeee", "none",
			0);
		svg_close(out);
	}
	dcp_job_reads(p->job, DCP_JOB_EACH, add_bar, &b);
	put_bar(&b);
	if (p->nread > n)
		svg_text(out, NAMES, TOP + n * LINE + 12, SVG_LEFT, 11, "and %zu more file%s",
			 p->nread - n, dcp_s(p->nread - n));
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

/* Ranks by ranks, or blocks of them where there are more than can be seen apart. */
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
