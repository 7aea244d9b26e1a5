/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random checkpoints of every generation and protocol, shards of every kind, against the bytes
 * they were made of.
 * covers: paddle_dist, cover
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/parse/dir.h"
#include "core/store/index.h"
#include "core/store/version.h"
#include "core/store/view.h"
#include "tests/unit/t_dir.h"
#include "tests/unit/t_paddle.h"
#include "tests/unit/t_sink.h"

/* ---- random checkpoints ---- */

static uint64_t seed = 88172645463325252ull;

static uint64_t rnd(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

enum { RANKS = 4, KEYS = 6, MAX_PIECES = KEYS * RANKS * 3, MAX_BYTES = 16384 };

static const struct type {
	const char *paddle, *numpy, *name;
	uint32_t size;
} types[] = {
	{ "float32", "f4", "F32", 4 }, { "bfloat16", "u2", "BF16", 2 },
	{ "float64", "f8", "F64", 8 }, { "float8_e4m3fn", "i1", "F8_E4M3", 1 },
	{ "bool", "b1", "BOOL", 1 },   { "int64", "i8", "I64", 8 },
	{ "float16", "f2", "F16", 2 }, { "complex64", "c8", "C64", 8 },
};

struct tensor {
	char key[16];
	const struct type *type;
	uint32_t ndim;
	int64_t shape[T_PD_NDIM];
	uint64_t n; /* elements */
	uint8_t bytes[MAX_BYTES];
};

struct world {
	char generation;
	int protocol;
	struct tensor t[KEYS];
	struct t_pd_piece p[MAX_PIECES];
	size_t np;
	char file[RANKS][32];
	struct dcp_buf data[RANKS];
};

/* Elements of the box of @p, row-major, from those of the tensor. */
static void cut_out(const struct tensor *t, const struct t_pd_piece *p, struct dcp_buf *out)
{
	uint64_t n = 1, from, to;

	for (uint32_t d = 0; d < t->ndim; d++)
		n *= (uint64_t)p->len[d];
	from = p->flat ? (uint64_t)p->run[0] : 0;
	to = p->flat ? (uint64_t)p->run[1] : n;
	for (uint64_t e = from; e < to; e++) {
		uint64_t left = e, at = 0, i[T_PD_NDIM] = { 0 };

		for (uint32_t d = t->ndim; d-- > 0; left /= (uint64_t)p->len[d])
			i[d] = left % (uint64_t)p->len[d] + (uint64_t)p->lo[d];
		for (uint32_t d = 0; d < t->ndim; d++)
			at = at * (uint64_t)t->shape[d] + i[d];
		dcp_buf_add(out, t->bytes + at * t->type->size, t->type->size);
	}
}

static void store(struct world *w, unsigned rank, const struct tensor *t, struct t_pd_piece p)
{
	struct dcp_buf bytes = DCP_BUF_INIT;
	int64_t run = p.run[1] - p.run[0];

	p.key = t->key;
	p.dtype = t->type->paddle;
	p.ndim = t->ndim;
	memcpy(p.shape, t->shape, sizeof(p.shape));
	p.file = w->file[rank];
	cut_out(t, &p, &bytes);
	t_paddle_array(&w->data[rank], t->key, t->type->numpy, p.flat ? 1 : t->ndim,
		       p.flat ? &run : p.len, bytes.p ? bytes.p : "", bytes.n);
	assert_true(w->np < MAX_PIECES);
	w->p[w->np++] = p;
	dcp_buf_finish(&bytes);
}

/* Ceil chunks of one dimension; what is empty is not stored, as Paddle has it. */
static void shard(struct world *w, const struct tensor *t)
{
	uint32_t d = (uint32_t)rnd(t->ndim);
	int64_t each = (t->shape[d] + RANKS - 1) / RANKS;

	for (unsigned r = 0; r < RANKS; r++) {
		struct t_pd_piece p = { .replica = -1 };

		memcpy(p.len, t->shape, sizeof(p.len));
		p.lo[d] = each * r;
		p.len[d] = DCP_MIN(each, t->shape[d] - p.lo[d]);
		if (p.len[d] > 0)
			store(w, r, t, p);
	}
}

/* Generation C: runs of the flattening of two blocks, cut anywhere. */
static void flatten(struct world *w, const struct tensor *t)
{
	int64_t half = t->shape[0] / 2, at[2] = { 0, half };
	uint64_t row = t->n / (uint64_t)t->shape[0];

	for (unsigned b = 0; b < 2; b++) {
		int64_t n = (b ? t->shape[0] - half : half), all = n * (int64_t)row, cut;
		struct t_pd_piece p = { .replica = -1, .flat = true };

		memcpy(p.len, t->shape, sizeof(p.len));
		p.lo[0] = at[b];
		p.len[0] = n;
		cut = (int64_t)rnd((uint64_t)all + 1);
		p.run[1] = cut;
		if (cut)
			store(w, 2 * b, t, p);
		p.run[0] = cut;
		p.run[1] = all;
		if (cut < all)
			store(w, 2 * b + 1, t, p);
	}
}

/* Boxes of rows that overlap, as 3.2 makes of runs. */
static void overlap(struct world *w, const struct tensor *t)
{
	int64_t at = 0;

	for (unsigned r = 0; r < RANKS; r++) {
		struct t_pd_piece p = { .replica = -1 };
		int64_t from = at - (int64_t)rnd((uint64_t)DCP_MIN(at, 2) + 1);
		int64_t to = at + (int64_t)rnd((uint64_t)(t->shape[0] - at) + 1);

		if (r == RANKS - 1)
			to = t->shape[0];
		memcpy(p.len, t->shape, sizeof(p.len));
		p.lo[0] = from;
		p.len[0] = to - from;
		if (to > from)
			store(w, r, t, p);
		at = to;
	}
}

/* Each rank has all of it; one is named, or all are. */
static void replicate(struct world *w, const struct tensor *t)
{
	unsigned named = (unsigned)rnd(RANKS);
	bool all = w->generation == 'C' && rnd(2);

	for (unsigned r = 0; r < RANKS; r++) {
		struct t_pd_piece p = { .replica = all ? (int64_t)r : -1 };

		memcpy(p.len, t->shape, sizeof(p.len));
		p.only_stored = all && r > 0;
		store(w, r, t, p);
		if (!all && r != named)
			w->np--;
	}
}

static void make_tensor(struct world *w, unsigned k)
{
	struct tensor *t = &w->t[k];
	unsigned how;

	t->type = &types[rnd(DCP_LEN(types))];
	t->ndim = 1 + (uint32_t)rnd(3);
	t->n = 1;
	snprintf(t->key, sizeof(t->key), "m.w%u", k);
	memset(t->shape, 0, sizeof(t->shape));
	for (uint32_t d = 0; d < t->ndim; d++) {
		t->shape[d] = 2 + (int64_t)rnd(9);
		t->n *= (uint64_t)t->shape[d];
	}
	for (uint64_t i = 0; i < t->n * t->type->size; i++)
		t->bytes[i] = (uint8_t)rnd(256);
	how = (unsigned)rnd(4);
	if (how == 0)
		replicate(w, t);
	else if (how == 1 && w->generation == 'C')
		flatten(w, t);
	else if (how == 2 && w->generation == 'C')
		overlap(w, t);
	else
		shard(w, t);
}

static void write_world(struct world *w, const struct t_dir *dir, uint64_t uid)
{
	struct dcp_buf meta = DCP_BUF_INIT;
	char name[32];

	w->np = 0;
	w->generation = (char)('A' + rnd(3));
	w->protocol = 2 + (int)rnd(4);
	for (unsigned r = 0; r < RANKS; r++) {
		snprintf(w->file[r], sizeof(w->file[r]), "%u_%u.distcp", r, (unsigned)uid);
		t_paddle_open(&w->data[r], w->protocol);
	}
	for (unsigned k = 0; k < KEYS; k++)
		make_tensor(w, k);
	t_paddle_meta(&meta, w->generation, w->p, w->np);
	snprintf(name, sizeof(name), "%u.metadata", (unsigned)uid);
	for (unsigned r = 0; r < RANKS; r++) {
		t_paddle_close(&w->data[r]);
		t_dir_put(dir, w->file[r], w->data[r].p, w->data[r].n);
		dcp_buf_finish(&w->data[r]);
	}
	t_dir_put(dir, name, meta.p, meta.n);
	dcp_buf_finish(&meta);
}

/* What cannot be done: text of protocol 2 must stay whole. */
static bool may_fail(const struct world *w, const struct dcp_tensor *t)
{
	return w->protocol == 2 && strstr(t->error, "encoded as a whole");
}

static void check_told(const struct world *w, const struct t_sink *s)
{
	assert_int_equal(s->ntensors, KEYS);
	for (unsigned k = 0; k < KEYS; k++) {
		const struct tensor *want = &w->t[k];
		const struct dcp_tensor *t = t_sink_tensor(s, want->key);
		struct dcp_err err = { 0 };
		size_t n;
		char *bytes;

		if (t->error && may_fail(w, t))
			continue;
		assert_int_equal(t->ndim, want->ndim);
		assert_string_equal(t->dtype_name,
				    w->generation == 'A' && want->type->size == 1 &&
						    want->type->name[0] == 'F'
					    ? "I8" /* nobody says that they are floats */
					    : want->type->name);
		for (uint32_t d = 0; d < t->ndim; d++)
			assert_int_equal(t->shape[d], want->shape[d]);
		assert_int_equal(t->npath, w->generation == 'A' ? 1 : 2);
		bytes = t_sink_read(s, t, &n, &err);
		if (!bytes)
			fail_msg("%c %s: %s", w->generation, t->key, err.msg);
		assert_int_equal(n, want->n * want->type->size);
		assert_memory_equal(bytes, want->bytes, n);
		free(bytes);
	}
}

static void random_checkpoints(void **state)
{
	static struct world w;

	(void)state;
	for (int round = 0; round < 300; round++) {
		struct dcp_err err = { 0 };
		enum dcp_match match;
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };

		t_dir_make(&tree, "paddle");
		write_world(&w, &tree, 12);
		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&s, &dir);
		if (dcp_format_probe(&dir, &match, NULL, 0)->load(&in, &err) < 0)
			fail_msg("round %d: %s", round, err.msg);
		assert_int_equal(match, DCP_MATCH_YES);
		check_told(&w, &s);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* ---- through index and view ---- */

/* Text of protocol 2 is decoded at first use; runs and cut boxes are found. */
static void read_through_views(void **state)
{
	static struct world w;

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct dcp_store_opts opts = { .no_map = round & 1 };
		struct dcp_err err = { 0 };
		struct dcp_version *v;
		struct dcp_scan scan;
		struct t_dir tree;

		t_dir_make(&tree, "paddle");
		write_world(&w, &tree, 3);
		assert_int_equal(dcp_scan(tree.root, &scan, &err), 0);
		assert_int_equal(scan.n, 1);
		if (dcp_version_open(tree.root, &scan.found[0], &opts, &v, &err) < 0)
			fail_msg("%s", err.msg);
		for (unsigned k = 0; k < KEYS; k++) {
			const struct tensor *want = &w.t[k];
			uint64_t size = want->n * want->type->size;
			char *got = malloc(size);
			struct dcp_arena arena;
			struct dcp_view *view;
			struct dcp_row row;

			dcp_arena_init(&arena, 1 << 20);
			assert_int_equal(dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR,
							  want->key, &arena, &row),
					 0);
			if (!row.broken) {
				if (dcp_view_open(v, row.id, DCP_AS_RAW, NULL, &view, &err) < 0)
					fail_msg("%s: %s", want->key, err.msg);
				assert_int_equal(dcp_view_size(view), size);
				assert_int_equal(dcp_view_read(view, 0, got, size), 0);
				assert_memory_equal(got, want->bytes, size);
				dcp_view_close(view);
			} else {
				assert_int_equal(w.protocol, 2);
			}
			dcp_arena_finish(&arena);
			free(got);
		}
		dcp_version_close(v);
		dcp_scan_finish(&scan);
		t_dir_remove(&tree);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_checkpoints),
		cmocka_unit_test(read_through_views),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
