/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner by itself: no files, no bytes.
 *
 *	plan reshard [REPS]     what one rank of 768 reads of 1,000 tensors that 1,024 ranks
 *	                        wrote
 *	plan segments [REPS]    how fast segments and descriptors of one tensor are computed
 *
 * reshard gives a JSON line for each of four ways, a repetition each:
 *   "one tensor again"  one tiling, asked 1,000 times: as peers.py asks torch
 *   "tilings there"     1,000 tilings, made before, as open views have them
 *   "from pieces"       pieces in memory, tiled first
 *   "from packed rows"  each tensor unpacked as from its index row, and tiled first: of both,
 *                       as much as the rank's cut is near
 * segments: one line a shape of tensor and cut, as {"what", "n", "wall", "cpu"}.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/strided.h"
#include "core/model/geometry/tiling.h"
#include "core/model/tensor.h"

enum { TENSORS = 1000, WRITERS = 1024, READERS = 768, RANK = 300, ROWS = 3072, COLS = 8 };

static double read_seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "plan: %s\n", what);
		exit(1);
	}
}

/* One tensor in a grid of pieces, each at the front of a file of its own. */
struct tensor {
	struct dcp_tensor t;
	uint64_t shape[2];
	struct dcp_piece *pieces;
	struct dcp_tiling tl;
};

static void make_tensor(struct tensor *x, uint64_t rows, uint64_t cols, uint64_t down,
			uint64_t across, struct dcp_arena *arena)
{
	size_t n = down * across;
	uint64_t *ends = dcp_arena_calloc(arena, n, 4 * sizeof(*ends));

	x->shape[0] = rows;
	x->shape[1] = cols;
	x->pieces = dcp_arena_calloc(arena, n, sizeof(*x->pieces));
	must(ends && x->pieces, "out of memory");
	for (size_t i = 0; i < n; i++, ends += 4) {
		uint64_t r = i / across, c = i % across;

		ends[0] = rows * r / down;
		ends[1] = cols * c / across;
		ends[2] = rows * (r + 1) / down - ends[0];
		ends[3] = cols * (c + 1) / across - ends[1];
		x->pieces[i] = (struct dcp_piece){ .lo = ends,
						   .len = ends + 2,
						   .run_n = ends[2] * ends[3],
						   .nbytes = ends[2] * ends[3] * 2,
						   .file = (uint32_t)i };
	}
	x->t = (struct dcp_tensor){ .key = "k",
				    .dtype = DCP_DTYPE_BF16,
				    .itemsize = 2,
				    .ndim = 2,
				    .shape = x->shape,
				    .pieces = x->pieces,
				    .npieces = n };
}

static int count_part(void *ctx, const struct dcp_strided *s)
{
	(void)s;
	++*(uint64_t *)ctx;
	return 0;
}

static void say_time(const char *what, uint64_t n, double wall, double cpu)
{
	printf("{\"what\": \"%s\", \"n\": %llu, \"wall\": %.9f, \"cpu\": %.9f}\n", what,
	       (unsigned long long)n, read_seconds(CLOCK_MONOTONIC) - wall,
	       read_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
	fflush(stdout);
}

/* ---- one rank's part of many tensors ---- */

static void time_reshard(int reps)
{
	static struct tensor x[TENSORS];
	const uint64_t lo[2] = { (uint64_t)ROWS * RANK / READERS, 0 };
	const uint64_t len[2] = { (uint64_t)ROWS * (RANK + 1) / READERS - lo[0], COLS };
	struct dcp_buf row = DCP_BUF_INIT;
	struct dcp_arena arena, again;
	struct dcp_cut cut;

	dcp_arena_init(&arena, 1u << 30);
	dcp_arena_init(&again, 1u << 30);
	for (int i = 0; i < TENSORS; i++) {
		make_tensor(&x[i], ROWS, COLS, WRITERS, 1, &arena);
		must(dcp_tiling_init(&x[i].tl, &x[i].t, &arena, NULL) == 0, "no tiling");
	}
	dcp_pack_pieces(&row, &x[0].t);
	dcp_cut_box(&cut, 2, lo, len, &arena);
	for (int r = 0; r < reps; r++) {
		double wall = read_seconds(CLOCK_MONOTONIC),
		       cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
		struct dcp_tiling tl;
		uint64_t n = 0;

		for (int i = 0; i < TENSORS; i++)
			dcp_strided_emit(&x[0].tl, &cut, count_part, &n);
		say_time("one tensor again", n, wall, cpu);

		n = 0;
		wall = read_seconds(CLOCK_MONOTONIC);
		cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
		for (int i = 0; i < TENSORS; i++)
			dcp_strided_emit(&x[i].tl, &cut, count_part, &n);
		say_time("tilings there", n, wall, cpu);

		n = 0;
		wall = read_seconds(CLOCK_MONOTONIC);
		cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
		for (int i = 0; i < TENSORS; i++) {
			must(dcp_tiling_init(&tl, &x[i].t, &again, NULL) == 0, "no tiling");
			dcp_strided_emit(&tl, &cut, count_part, &n);
			dcp_arena_reset(&again);
		}
		say_time("from pieces", n, wall, cpu);

		n = 0;
		wall = read_seconds(CLOCK_MONOTONIC);
		cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
		for (int i = 0; i < TENSORS; i++) {
			struct dcp_tensor t = x[i].t;
			struct dcp_piece *pieces;
			struct dcp_box box;

			must(dcp_cut_bounds(&cut, &box), "an empty cut");
			must(dcp_unpack_part(row.p, row.n, 2, &box, &again, &pieces, &t.npieces,
					     NULL) == 0,
			     "not packed");
			t.pieces = pieces;
			must(dcp_tiling_init_part(&tl, &t, &box, &again, NULL) == 0,
			     "no tiling");
			dcp_strided_emit(&tl, &cut, count_part, &n);
			dcp_arena_reset(&again);
		}
		say_time("from packed rows", n, wall, cpu);
	}
	dcp_buf_finish(&row);
	dcp_arena_finish(&again);
	dcp_arena_finish(&arena);
}

/* ---- one tensor ---- */

static void time_descriptors(int reps)
{
	static const struct {
		const char *what;
		uint64_t rows, cols, down, across;
		uint64_t lo, len; /* of the columns */
	} kinds[] = {
		{ "all of 8 column pieces", 100000, 8192, 1, 8, 0, 8192 },
		{ "all of 1024 row pieces", 8192, 64, 1024, 1, 0, 64 },
		{ "all of 16 x 16 pieces", 8192, 512, 16, 16, 0, 512 },
		{ "a column over 1024 row pieces", 8192, 64, 1024, 1, 8, 8 },
	};

	for (size_t k = 0; k < DCP_LEN(kinds); k++) {
		uint64_t lo[2] = { 0, kinds[k].lo }, len[2] = { kinds[k].rows, kinds[k].len };
		struct dcp_arena arena;
		struct dcp_cut cut;
		struct tensor x;
		char what[64];

		dcp_arena_init(&arena, 1u << 30);
		make_tensor(&x, kinds[k].rows, kinds[k].cols, kinds[k].down, kinds[k].across,
			    &arena);
		must(dcp_tiling_init(&x.tl, &x.t, &arena, NULL) == 0, "no tiling");
		dcp_cut_box(&cut, 2, lo, len, &arena);
		for (int r = 0; r < reps; r++) {
			double wall = read_seconds(CLOCK_MONOTONIC);
			double cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
			uint64_t n = 0;

			dcp_strided_emit(&x.tl, &cut, count_part, &n);
			snprintf(what, sizeof(what), "descriptors, %s", kinds[k].what);
			say_time(what, n, wall, cpu);
		}
		dcp_arena_finish(&arena);
	}
}

int main(int argc, char **argv)
{
	int reps = argc > 2 ? atoi(argv[2]) : 5;

	if (argc > 1 && !strcmp(argv[1], "reshard"))
		time_reshard(reps);
	else if (argc > 1 && !strcmp(argv[1], "descriptors"))
		time_descriptors(reps);
	else
		must(false, "usage: plan reshard|descriptors [REPS]");
	return 0;
}
