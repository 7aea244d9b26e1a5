/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random needs of up to five ranks, against a map of blocks: the ranges of a rank are
 * exactly what it touches, and chunks bring in the union of all, each block once, in order,
 * in slots that hold them; messages bring the runs alone. Members that need other bytes, and
 * about as many, are told from those that do not. covers: chunk
 */
#include "tests/unit/t.h"
#include "tests/unit/t/random.h"

#include "core/model/job/chunk.h"

enum { FILES = 3, BLOCKS = 200, RANKS = 5 };

static uint64_t seed;

static uint64_t below(uint64_t n)
{
	return t_random(&seed, n);
}

/* Runs of one or two dimensions; those that lie close are one range, holes included. */
static struct dcp_chunk_need random_need(uint8_t map[FILES][BLOCKS])
{
	struct dcp_chunk_need need = { .file = (uint32_t)below(FILES) };
	struct dcp_strided *s = &need.s;
	uint64_t extent;

	s->run = 1 + below(below(2) ? 20000 : 300);
	s->ndim = (uint32_t)below(3);
	for (uint32_t k = s->ndim; k-- > 0;) {
		uint64_t inner =
			k + 1 < s->ndim ? s->count[k + 1] * s->file_stride[k + 1] : s->run;

		s->count[k] = 2 + below(4);
		s->file_stride[k] = inner + below(below(2) ? 60000 : 100);
	}
	if (s->ndim == 2 && below(2)) /* the file's order is not that of the destination */
		*s = (struct dcp_strided){ .run = s->run,
					   .ndim = 2,
					   .count = { s->count[1], s->count[0] },
					   .file_stride = { s->file_stride[1],
							    s->file_stride[0] } };
	extent = dcp_strided_extent(s);
	if (extent > BLOCKS * DCP_CHUNK_BLOCK) {
		s->ndim = 0;
		extent = s->run;
	}
	s->off = below(BLOCKS * DCP_CHUNK_BLOCK - extent + 1);
	for (uint64_t i = 0; i < (s->ndim > 0 ? s->count[0] : 1); i++)
		for (uint64_t j = 0; j < (s->ndim > 1 ? s->count[1] : 1); j++) {
			uint64_t at = s->off + (s->ndim > 0 ? i * s->file_stride[0] : 0) +
				      (s->ndim > 1 ? j * s->file_stride[1] : 0);

			for (uint64_t b = at / DCP_CHUNK_BLOCK;
			     b <= (at + s->run - 1) / DCP_CHUNK_BLOCK; b++)
				map[need.file][b] = 1;
		}
	return need;
}

/* All of @map lies in ranges, in order and apart; what else does is in a hole that is no
 * longer than those that are read along. */
static void check_ranges(const struct dcp_chunk_range *v, size_t n, uint8_t map[FILES][BLOCKS])
{
	static uint8_t got[FILES][BLOCKS];

	memset(got, 0, sizeof(got));
	for (size_t i = 0; i < n; i++) {
		assert_true(v[i].lo < v[i].hi && v[i].lo % DCP_CHUNK_BLOCK == 0 &&
			    v[i].hi % DCP_CHUNK_BLOCK == 0 &&
			    v[i].hi <= BLOCKS * DCP_CHUNK_BLOCK);
		assert_true(!i || v[i - 1].file < v[i].file ||
			    (v[i - 1].file == v[i].file && v[i - 1].hi < v[i].lo));
		for (uint64_t b = v[i].lo / DCP_CHUNK_BLOCK; b < v[i].hi / DCP_CHUNK_BLOCK; b++)
			got[v[i].file][b] = 1;
	}
	for (uint32_t f = 0; f < FILES; f++)
		for (uint64_t b = 0, hole = 0; b < BLOCKS; b++) {
			assert_true(got[f][b] >= map[f][b]);
			hole = got[f][b] && !map[f][b] ? hole + 1 : 0;
			assert_true(hole <= DCP_STRIDED_NEAR / DCP_CHUNK_BLOCK + 1);
		}
	memcpy(map, got, sizeof(got));
}

static void check_chunks(const struct dcp_chunks *c, uint64_t slot, bool slack,
			 uint8_t map[FILES][BLOCKS])
{
	static uint8_t got[FILES][BLOCKS];
	uint64_t unique = 0;

	memset(got, 0, sizeof(got));
	assert_true(c->n == 0 || (c->first[0] == 0 && c->first[c->n] == c->nstretch));
	for (size_t k = 0; k < c->n; k++) {
		uint64_t used = 0;

		assert_true(c->first[k] < c->first[k + 1]);
		for (size_t i = c->first[k]; i < c->first[k + 1]; i++) {
			const struct dcp_chunk_stretch *s = &c->stretch[i];

			assert_true(s->at >= used && s->at % DCP_CHUNK_BLOCK == 0);
			used = s->at + s->n;
			assert_true(s->n == s->hi - s->lo ||
				    (slack && s->n == s->hi - s->lo + DCP_CHUNK_BLOCK));
			assert_true(!i || c->stretch[i - 1].file < s->file ||
				    c->stretch[i - 1].hi <= s->lo);
			/* What goes on in the next has its slack. */
			if (slack && i + 1 < c->nstretch && s[1].file == s->file &&
			    s[1].lo == s->hi)
				assert_true(s->n > s->hi - s->lo);
			for (uint64_t b = s->lo / DCP_CHUNK_BLOCK; b < s->hi / DCP_CHUNK_BLOCK;
			     b++)
				assert_int_equal(got[s->file][b]++, 0);
			unique += s->hi - s->lo;
		}
		assert_true(used <= slot);
	}
	assert_memory_equal(got, map, sizeof(got));
	assert_int_equal(unique, c->unique);
}

/* For messages: all runs, and nothing else. */
static void check_exact(const struct dcp_chunk_need *need)
{
	uint64_t bytes = dcp_strided_bytes(&need->s), sum = 0, inside = 0;
	struct dcp_chunk_range *v;
	size_t n;

	assert_int_equal(dcp_chunk_ranges(need, 1, true, &v, &n), 0);
	assert_int_equal(n == 0, dcp_strided_extent(&need->s) > bytes);
	for (size_t i = 0; i < n; i++) {
		assert_true(v[i].file == need->file && (!i || v[i - 1].hi < v[i].lo));
		sum += v[i].hi - v[i].lo;
	}
	for (uint64_t i = 0; i < (need->s.ndim > 0 ? need->s.count[0] : 1); i++)
		for (uint64_t j = 0; j < (need->s.ndim > 1 ? need->s.count[1] : 1); j++) {
			uint64_t at = need->s.off +
				      (need->s.ndim > 0 ? i * need->s.file_stride[0] : 0) +
				      (need->s.ndim > 1 ? j * need->s.file_stride[1] : 0);

			for (size_t k = 0; k < n; k++)
				inside += v[k].lo <= at && at + need->s.run <= v[k].hi;
		}
	assert_int_equal(inside * need->s.run, n ? bytes : 0);
	assert_true(sum <= bytes);
	free(v);
}

/* Bytes of files, in the order in which they are sent. */
struct sent {
	uint64_t at[1 << 13];
	uint64_t n;
};

static int send(void *ctx, const struct dcp_chunk_series *s)
{
	struct sent *sent = ctx;

	assert_true(s->count && s->run && (s->count == 1 || s->step > s->run));
	for (uint64_t i = 0; i < s->count; i++)
		for (uint64_t b = 0; b < s->run && sent->n < DCP_LEN(sent->at); b++)
			sent->at[sent->n++] = s->off + i * s->step + b;
	return 0;
}

/* All of the runs of dimensions @k and up are where @in says: byte @at of what was sent. */
static void check_sent(const struct sent *sent, const struct dcp_strided *s,
		       const struct dcp_strided *in, uint32_t k, uint64_t off, uint64_t at)
{
	for (uint64_t i = 0; k < s->ndim && i < s->count[k]; i++)
		check_sent(sent, s, in, k + 1, off + i * s->file_stride[k],
			   at + i * in->file_stride[k]);
	for (uint64_t b = 0; k == s->ndim && b < s->run; b++)
		assert_int_equal(sent->at[at + b], off + b);
}

/* Packed or not: what is sent of runs is no more than they are, and where it is looked for. */
static void check_packed(const struct dcp_strided *s)
{
	static struct sent sent;
	struct dcp_strided in = dcp_chunk_packed(s);

	if (dcp_strided_bytes(s) > DCP_LEN(sent.at))
		return;
	sent.n = 0;
	assert_int_equal(dcp_chunk_pack(s, send, &sent), 0);
	assert_int_equal(sent.n, dcp_strided_bytes(s));
	check_sent(&sent, s, &in, 0, s->off, 0);
}

/* What is dense in an order that is not the file's is one range, not one of each of its
 * 2^36 runs. */
static void dense_needs_are_one_range(void **state)
{
	const uint64_t n = 1 << 18;
	const struct dcp_chunk_need need = { .s = { .off = 8,
						    .run = 2,
						    .ndim = 3,
						    .count = { n, 2, n },
						    .file_stride = { 4, 2, 4 * n } } };
	struct dcp_chunk_range *v;
	size_t ranges;

	(void)state;
	assert_int_equal(dcp_chunk_ranges(&need, 1, true, &v, &ranges), 0);
	assert_int_equal(ranges, 1);
	assert_int_equal(v->lo, 8);
	assert_int_equal(v->hi, 8 + 4 * n * n);
	free(v);
}

static void random_chunks_cover_all(void **state)
{
	(void)state;
	for (unsigned turn = 0; turn < 400; turn++) {
		static uint8_t map[RANKS][FILES][BLOCKS], all[FILES][BLOCKS];
		struct dcp_chunk_range *v[RANKS] = { NULL };
		const struct dcp_chunk_range *of[RANKS];
		size_t n[RANKS];
		struct dcp_chunks *c;
		uint32_t ranks;
		uint64_t slot;
		bool slack;

		seed = turn;
		ranks = 1 + (uint32_t)below(RANKS);
		slot = (2 + below(30)) * DCP_CHUNK_BLOCK;
		slack = below(2);
		memset(map, 0, sizeof(map));
		memset(all, 0, sizeof(all));
		for (uint32_t r = 0; r < ranks; r++) {
			struct dcp_chunk_need need[40];
			size_t count = below(DCP_LEN(need));

			for (size_t i = 0; i < count; i++) {
				need[i] = random_need(map[r]);
				check_exact(&need[i]);
				check_packed(&need[i].s);
			}
			n[r] = 0;
			assert_int_equal(dcp_chunk_ranges(need, count, false, &v[r], &n[r]), 0);
			check_ranges(v[r], n[r], map[r]);
			of[r] = v[r];
			for (size_t i = 0; i < sizeof(all); i++)
				((uint8_t *)all)[i] |= ((uint8_t *)map[r])[i];
		}
		assert_int_equal(dcp_chunks_create(of, n, ranks, slot, slack, &c), 0);
		check_chunks(c, slot, slack, all);
		dcp_chunks_free(c);
		for (uint32_t r = 0; r < ranks; r++)
			free(v[r]);
	}
}

static void members_apart_are_recognised(void **state)
{
	static const struct {
		const char *what;
		uint64_t lo[4], hi[4]; /* in blocks; of each member */
		uint32_t members;
		bool apart;
	} cases[] = {
		{ "halves", { 0, 500 }, { 500, 1000 }, 2, true },
		{ "one alone", { 0 }, { 1000 }, 1, true },
		{ "no member needs anything", { 0 }, { 0 }, 3, true },
		{ "one in 50 in common", { 0, 500 }, { 520, 1000 }, 2, true },
		{ "one more", { 0, 500 }, { 521, 1000 }, 2, false },
		{ "the same", { 0, 0 }, { 1000, 1000 }, 2, false },
		{ "a quarter above the mean", { 0, 625 }, { 625, 1000 }, 2, true },
		{ "one more", { 0, 626 }, { 626, 1000 }, 2, false },
		{ "one needs everything", { 0, 0 }, { 1000, 0 }, 2, false },
		{ "the last of four most",
		  { 0, 200, 400, 600 },
		  { 200, 400, 600, 1000 },
		  4,
		  false },
		{ "the last of four least",
		  { 0, 300, 600, 900 },
		  { 300, 600, 900, 1000 },
		  4,
		  true },
	};

	(void)state;
	for (size_t k = 0; k < DCP_LEN(cases); k++) {
		struct dcp_chunk_range v[4];
		const struct dcp_chunk_range *of[4];
		struct dcp_chunks *c;
		size_t n[4];

		t_case(cases[k].what);
		for (uint32_t m = 0; m < cases[k].members; m++) {
			v[m] = (struct dcp_chunk_range){ 0, 0, cases[k].lo[m] * DCP_CHUNK_BLOCK,
							 cases[k].hi[m] * DCP_CHUNK_BLOCK };
			of[m] = &v[m];
			n[m] = v[m].hi > v[m].lo;
		}
		assert_int_equal(dcp_chunks_create(of, n, cases[k].members, 1 << 20, false, &c),
				 0);
		assert_int_equal(c->apart, cases[k].apart);
		dcp_chunks_free(c);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dense_needs_are_one_range),
		cmocka_unit_test(random_chunks_cover_all),
		cmocka_unit_test(members_apart_are_recognised),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
