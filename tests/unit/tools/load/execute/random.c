/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors at random, stored in any pieces of three files, loaded by 1 to 5 ranks, which are threads
 * on one or more nodes, by random layouts and into random regions of memory, in every way: element
 * by element what the pieces say, and no byte outside. DCPFS_TEST_SEED repeats a case,
 * DCPFS_TEST_SECONDS goes on for longer.
 * covers: rounds, tools/load/plan/keyset, tools/load/place/stretch
 */
#include "tests/unit/t.h"

#include "core/base/system.h"
#include "core/model/layout/layout.h"
#include "tests/unit/t/comm.h"
#include "tests/unit/t/fake.h"
#include "tests/unit/t/load.h"
#include "tests/unit/t/model/layout.h"
#include "tests/unit/t/model/rule.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/random.h"
#include "tools/load/load.h"

enum { RANKS = 5, FILES = 3, TENSORS = 40, WANTS = 10, GUARD = 0xa5, MARGIN = 64 };
enum { FILE_BYTES = 768 << 10 };

/* One case. */
struct world {
	struct t_dir d;
	uint8_t *file[FILES];
	struct t_plan plan[TENSORS];
	char key[TENSORS][16];
	const char *keys[TENSORS]; /* those that the layout can cut */
	uint32_t n, nkeys, ranks, node[RANKS];
	uint64_t seed;
	struct dcp_layout *layout; /* NULL: regions */
	char text[T_RULE_TEXT];
	const char *dtype;
	struct dcpload_config config;
};

static struct world world;
static _Atomic uint64_t elements, regions;

/* ---- making it up ---- */

/* One of those of this size; OTHER has any. */
static enum dcp_dtype random_dtype(uint32_t size, struct t_choice *c)
{
	enum dcp_dtype fit[DCP_DTYPE_COUNT];
	size_t n = 0;

	for (int t = DCP_DTYPE_F64; t < DCP_DTYPE_COUNT; t++)
		if (dcp_dtype_info((enum dcp_dtype)t)->size == size)
			fit[n++] = (enum dcp_dtype)t;
	return n && t_pick(c, 8) ? fit[t_pick(c, n)] : DCP_DTYPE_OTHER;
}

static void random_tensor(struct world *w, uint32_t i, struct t_choice *c)
{
	struct t_plan *p = &w->plan[i];
	uint64_t base[FILES];
	uint32_t named;

	t_plan_tensor(p, c);
	snprintf(w->key[i], sizeof(w->key[i]), "%c.%u.w", (char)('a' + t_pick(c, 3)), i);
	p->t.key = w->key[i];
	p->t.path = &p->t.key;
	p->t.npath = 1;
	p->t.dtype = random_dtype(p->t.itemsize, c);
	p->t.dtype_name =
		p->t.dtype == DCP_DTYPE_OTHER ? "odd" : dcp_dtype_info(p->t.dtype)->name;
	for (size_t f = 0; f < FILES; f++) {
		base[f] = t_pick(c, FILE_BYTES - p->used[f]);
		if (t_pick(c, 3) == 1)
			base[f] -= base[f] % 4096;
	}
	named = (uint32_t)t_pick(c, 4);
	for (size_t k = 0; k < p->t.npieces; k++) {
		struct dcp_piece *piece = &p->pieces[k];
		uint64_t filter = t_pick(c, 24);

		piece->off += base[piece->file];
		piece->swap &= named == 1;
		piece->filter = DCP_FILTER_NONE;
		if (filter == 1 && dcp_dtype_can_negate(p->t.dtype))
			piece->filter = DCP_FILTER_NEG;
		if (filter == 2 && !piece->stride && piece->run_n &&
		    p->t.dtype != DCP_DTYPE_F8_E8M0) { /* which has no 0 */
			piece->filter = DCP_FILTER_ZERO;
			piece->off = piece->nbytes = 0;
			piece->swap = false;
		}
	}
}

/* Those that every rank of the layout can cut. */
static void find_keys(struct world *w)
{
	w->nkeys = 0;
	for (uint32_t i = 0; i < w->n; i++) {
		const struct dcp_tensor *t = &w->plan[i].t;
		int rc = 0;

		for (uint32_t r = 0; r < dcp_layout_ranks(w->layout) && rc >= 0; r++) {
			struct dcp_arena arena;
			struct dcp_cut cut;

			dcp_arena_init(&arena, 1 << 20);
			rc = dcp_layout_cut(w->layout, r, t->key, t->ndim, t->shape, &arena,
					    &cut, NULL);
			dcp_arena_finish(&arena);
		}
		if (rc >= 0)
			w->keys[w->nkeys++] = t->key;
	}
}

static void random_world(struct world *w, uint64_t seed)
{
	static const char *const dtypes[] = { NULL, NULL, "F32", "BF16", "F16", "F8_E4M3" };
	static const uint32_t ios[] = { DCPLOAD_IO_BUFFERED, DCPLOAD_IO_DIRECT, DCPLOAD_IO_AUTO,
					DCPLOAD_IO_MOUNT };
	static const uint32_t ways[] = { DCPLOAD_EXCHANGE_NEVER, DCPLOAD_EXCHANGE_NODE,
					 DCPLOAD_EXCHANGE_ALL, DCPLOAD_EXCHANGE_ALL,
					 DCPLOAD_EXCHANGE_AUTO };
	struct t_choice c = { .seed = seed };

	w->seed = seed;
	w->n = 1 + (uint32_t)t_pick(&c, t_pick(&c, 4) ? 6 : TENSORS);
	for (uint32_t i = 0; i < w->n; i++)
		random_tensor(w, i, &c);
	w->ranks = 1 + (uint32_t)t_pick(&c, RANKS);
	for (uint32_t r = 0, nodes = 0; r < w->ranks; r++) {
		w->node[r] = (uint32_t)t_pick(&c, DCP_MIN(nodes + 1, 3u));
		nodes += w->node[r] == nodes;
	}
	w->config = (struct dcpload_config){
		.size = sizeof(w->config),
		.io = ios[t_pick(&c, DCP_LEN(ios))],
		.exchange = ways[t_pick(&c, DCP_LEN(ways))],
		.threads = (uint32_t)t_pick(&c, 3),
		.staging = t_pick(&c, 4) ? 1 : 0,
		.timeout_ms = 60000,
		.cache = "",
	};
	w->dtype = dtypes[t_pick(&c, DCP_LEN(dtypes))];
	if (getenv("DCPFS_DEVICE") && t_pick(&c, 4)) /* what the processor can compare */
		w->config.device = "cuda,managed";
	w->layout = NULL;
	if (t_pick(&c, 2)) {
		t_rule_layout(w->text, 12, &c);
		w->layout = t_layout(w->text);
		for (uint32_t i = 0; i < w->n;
		     i++) /* what its padding is converted to is not 0 */
			if (w->plan[i].t.dtype == DCP_DTYPE_F8_E8M0)
				w->plan[i].t.dtype = DCP_DTYPE_U8,
				w->plan[i].t.dtype_name = "U8";
		find_keys(w);
		t_dir_text(&w->d, "random.dcpl", w->text);
	}
}

/* What the family finds in the one version. */
static int emit(const struct dcp_sink *s)
{
	static const char *const names[FILES] = { "f0", "f1", "f2" };
	int rc = 0;

	for (uint32_t f = 0, number; f < FILES && rc >= 0; f++) {
		rc = dcp_emit_file(s, names[f], &number);
		assert_true(rc < 0 || number == f + 1); /* COMMIT is file 0 */
	}
	for (uint32_t i = 0; i < world.n && rc >= 0; i++) {
		struct dcp_piece piece[T_PLAN_PIECES];
		struct dcp_tensor t = world.plan[i].t;

		memcpy(piece, t.pieces, t.npieces * sizeof(*piece));
		for (size_t k = 0; k < t.npieces; k++)
			piece[k].file++;
		t.pieces = piece;
		rc = dcp_emit_tensor(s, &t);
	}
	return rc;
}

/* ---- the plain reference ---- */

/* The element at @at, of stored dtype, little-endian. */
static void stored(const struct world *w, const struct dcp_tensor *t, const uint64_t *at,
		   uint8_t *out)
{
	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];
		uint64_t number = 0, element = 0;
		bool in = true;

		for (uint32_t d = 0; d < t->ndim; d++) {
			in &= at[d] >= p->lo[d] && at[d] < p->lo[d] + p->len[d];
			number = number * p->len[d] + (at[d] - p->lo[d]);
			element += p->stride ? (at[d] - p->lo[d]) * p->stride[d] : 0;
		}
		if (!in || number < p->run_lo || number >= p->run_lo + p->run_n)
			continue;
		memset(out, 0, t->itemsize);
		if (p->filter == DCP_FILTER_ZERO)
			return;
		number = p->stride ? element : number - p->run_lo;
		memcpy(out, w->file[p->file] + p->off + number * t->itemsize, t->itemsize);
		for (uint32_t k = 0, unit = dcp_dtype_swap_unit(t->dtype, t->itemsize);
		     p->swap && k < t->itemsize; k += unit)
			for (uint32_t b = 0; b < unit / 2; b++) {
				uint8_t was = out[k + b];

				out[k + b] = out[k + unit - 1 - b];
				out[k + unit - 1 - b] = was;
			}
		if (p->filter == DCP_FILTER_NEG)
			dcp_dtype_negate(t->dtype, out, 1, false);
		return;
	}
	abort(); /* pieces tile the tensor */
}

/* The same as @to, of @size bytes. */
static void shown(const struct world *w, const struct dcp_tensor *t, const uint64_t *at,
		  enum dcp_dtype to, uint8_t *out)
{
	uint8_t as_is[16];

	stored(w, t, at, as_is);
	if (to != t->dtype)
		dcp_dtype_cast(t->dtype, to, out, as_is, 1);
	else
		memcpy(out, as_is, t->itemsize);
	elements++;
}

static const struct dcp_tensor *by_key(const struct world *w, const char *key)
{
	for (uint32_t i = 0; i < w->n; i++)
		if (strcmp(w->key[i], key) == 0)
			return &w->plan[i].t;
	return NULL;
}

/* ---- a layout ---- */

static int want_layout(const struct world *w, uint32_t rank, struct dcpload_plan *plan,
		       struct dcpload_error *err)
{
	const struct dcpload_select select = {
		.size = sizeof(select), .keys = w->keys, .nkeys = w->nkeys, .dtype = w->dtype
	};

	return w->nkeys ? dcpload_want_layout(plan, "random",
					      rank % dcp_layout_ranks(w->layout), &select, err)
			: 0;
}

/* Everything that the rank holds is there, and is what is stored; padding is zeros. */
static int check_layout(const struct world *w, uint32_t rank, struct dcpload_plan *plan)
{
	uint64_t n = 0, at[T_PLAN_DIMS], volume;
	struct dcpload_part part;
	int bad = 0;

	for (uint32_t k = 0; k < w->nkeys; k++) {
		const struct dcp_tensor *t = by_key(w, w->keys[k]);
		enum dcp_dtype to = w->dtype ? dcp_dtype_from_name(w->dtype) : t->dtype;
		struct dcp_arena arena;
		struct dcp_cut cut;

		dcp_arena_init(&arena, 1 << 20);
		if (t->dtype != DCP_DTYPE_F32 && !dcp_dtype_can_cast(t->dtype, DCP_DTYPE_F32))
			to = t->dtype;
		if (dcp_layout_cut(w->layout, rank % dcp_layout_ranks(w->layout), t->key,
				   t->ndim, t->shape, &arena, &cut, NULL) == 1) {
			for (n = 0; dcpload_part(plan, n, &part) == 0; n++)
				if (strcmp(part.key, t->key) == 0)
					break;
			bad += expect(dcpload_part(plan, n, &part) == 0 && part.complete);
			bad += expect(dcp_cut_volume(&cut, &volume) &&
				      part.nbytes == volume * part.itemsize);
			for (uint64_t e = 0; e < volume && !bad; e++) {
				uint8_t want[16] = { 0 };

				if (t_cut_at(&cut, e, at))
					shown(w, t, at, to, want);
				bad += expect(!memcmp((char *)part.data + e * part.itemsize,
						      want, part.itemsize));
			}
		}
		dcp_arena_finish(&arena);
	}
	return bad;
}

/* ---- regions ---- */

struct region {
	const struct dcp_tensor *t;
	enum dcp_dtype to;
	uint64_t lo[T_PLAN_DIMS], len[T_PLAN_DIMS], n;
	int64_t stride[T_PLAN_DIMS];
	bool whole, strided, own;
	uint8_t *memory; /* MARGIN bytes around it */
	uint64_t bytes;
};

/* Strides of dimensions in a random order, some with gaps. */
static void random_strides(struct region *g, struct t_choice *c)
{
	uint32_t order[T_PLAN_DIMS], n = g->t->ndim;
	uint64_t step = 1 + t_pick(c, 2), span = 1;

	for (uint32_t d = 0; d < n; d++)
		order[d] = d;
	for (uint32_t d = n; d > 1; d--) {
		uint32_t j = (uint32_t)t_pick(c, d), x = order[d - 1];

		order[d - 1] = order[j];
		order[j] = x;
	}
	for (uint32_t k = n; k-- > 0;) {
		uint32_t d = order[k];

		g->stride[d] = (int64_t)step;
		span += g->len[d] ? (g->len[d] - 1) * step : 0;
		step = step * DCP_MAX(g->len[d], 1u) + (t_pick(c, 4) ? 0 : t_pick(c, 5));
	}
	g->bytes = span;
}

static void random_region(const struct world *w, struct region *g, struct t_choice *c)
{
	const struct dcp_tensor *t = &w->plan[t_pick(c, w->n)].t;
	int64_t step = 1;

	*g = (struct region){ .t = t, .to = t->dtype, .n = 1, .own = t_pick(c, 4) == 1 };
	if (t_pick(c, 2))
		g->to = (enum dcp_dtype)(DCP_DTYPE_F64 + t_pick(c, DCP_DTYPE_COUNT - 1));
	if (g->to != t->dtype && !dcp_dtype_can_cast(t->dtype, g->to))
		g->to = t->dtype;
	g->whole = t_pick(c, 5) == 1;
	for (uint32_t d = t->ndim; d-- > 0;) {
		g->lo[d] = g->whole ? 0 : t_pick(c, t->shape[d]);
		g->len[d] = g->whole ? t->shape[d] : t_pick(c, t->shape[d] - g->lo[d] + 1);
		if (!g->whole && t_pick(c, 2))
			g->len[d] = t->shape[d] - g->lo[d];
		g->n *= g->len[d];
		g->stride[d] = step;
		step *= (int64_t)g->len[d];
	}
	g->bytes = g->n;
	g->strided = !g->own && t_pick(c, 2);
	if (g->strided)
		random_strides(g, c);
	g->bytes *= g->to == t->dtype ? t->itemsize : dcp_dtype_info(g->to)->size;
}

static int want_region(struct region *g, struct dcpload_plan *plan, struct dcpload_error *err)
{
	struct dcpload_want want = { .size = sizeof(want),
				     .ndim = g->t->ndim,
				     .key = g->t->key,
				     .shape = g->t->shape,
				     .lo = g->whole ? NULL : g->lo,
				     .len = g->whole ? NULL : g->len,
				     .stride = g->strided ? g->stride : NULL,
				     .dtype = dcp_dtype_info(g->to)->name };

	if (g->to == g->t->dtype)
		want.dtype = NULL;
	if (!g->own) {
		g->memory = malloc(g->bytes + 2 * MARGIN);
		memset(g->memory, GUARD, g->bytes + 2 * MARGIN);
		want.dst = g->memory + MARGIN;
	}
	return dcpload_want(plan, &want, err);
}

static int check_region(const struct world *w, const struct region *g,
			struct dcpload_plan *plan, uint64_t number)
{
	uint32_t size = g->to == g->t->dtype ? g->t->itemsize : dcp_dtype_info(g->to)->size;
	uint64_t all = g->bytes + 2 * MARGIN;
	uint8_t *want = malloc(all), *to = want + MARGIN;
	struct dcpload_part part;
	int bad = expect(dcpload_part(plan, number, &part) == 0 && part.complete &&
			 part.nbytes == g->n * size);

	memset(want, GUARD, all);
	for (uint64_t e = 0; e < g->n; e++) {
		uint64_t at[T_PLAN_DIMS], rest = e, place = 0;

		for (uint32_t d = g->t->ndim; d-- > 0; rest /= g->len[d]) {
			at[d] = g->lo[d] + rest % g->len[d];
			place += rest % g->len[d] * (uint64_t)g->stride[d];
		}
		shown(w, g->t, at, g->to, to + place * size);
	}
	if (g->own)
		bad += expect(!g->n || !memcmp(part.data, to, part.nbytes));
	else
		bad += expect(!memcmp(g->memory, want, all));
	free(want);
	regions++;
	if (bad)
		fprintf(stderr, "%s: %s of %u bytes to %s, %u dimensions, %zu pieces%s%s\n",
			g->t->key, g->t->dtype_name, g->t->itemsize,
			dcp_dtype_info(g->to)->name, g->t->ndim, g->t->npieces,
			g->strided ? ", strided" : "", g->own ? "" : ", own memory");
	return bad;
}

/* ---- loading ---- */

/* As if ranks were on several machines. */
static void scatter(const struct world *w, struct dcpload *ck)
{
	uint32_t me = ck->comm->rank;

	ck->nnodes = ck->nlocal = 0;
	for (uint32_t r = 0; r < w->ranks; r++) {
		ck->node[r] = w->node[r];
		ck->nnodes = DCP_MAX(ck->nnodes, w->node[r] + 1);
		if (r == me)
			ck->self = ck->nlocal;
		if (w->node[r] == w->node[me])
			ck->local[ck->nlocal++] = r;
	}
}

static int rank_load(const struct dcpload_comm *comm, void *arg)
{
	struct world *w = arg;
	struct t_choice c = { .seed = w->seed * 31 + comm->rank };
	struct region g[WANTS] = { 0 };
	uint32_t ng = w->layout ? 0 : (uint32_t)t_pick(&c, WANTS + 1);
	struct dcpload_report report = { .size = sizeof(report) };
	struct dcpload_error err = { 0 };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	int bad = 0, rc = dcpload_open(comm, w->d.root, &w->config, &ck, &err);

	if (rc == 0) {
		scatter(w, ck);
		rc = dcpload_plan_create(ck, w->seed % 2 ? DCPLOAD_PARTIAL : 0, &plan, &err);
	}
	if (rc == 0 && w->layout)
		rc = want_layout(w, comm->rank, plan, &err);
	for (uint32_t i = 0; i < ng && rc == 0; i++) {
		random_region(w, &g[i], &c);
		rc = want_region(&g[i], plan, &err);
	}
	if (rc == 0)
		rc = dcpload_plan_finish(plan, &err);
	if (rc == 0)
		rc = dcpload_execute(plan, &err);
	if (rc == 0 && dcpload_check(plan, &err) < 0)
		bad += expect(fprintf(stderr, "rank %u, check: %s\n", comm->rank, err.text) <
			      0);
	if (rc < 0)
		bad += expect(fprintf(stderr, "rank %u: %s\n", comm->rank, err.text) < 0);
	if (rc == 0 && w->layout)
		bad += check_layout(w, comm->rank, plan);
	for (uint32_t i = 0; i < ng && rc == 0; i++)
		bad += check_region(w, &g[i], plan, i);
	if (rc == 0) {
		dcpload_plan_report(plan, &report);
		bad += expect(report.staging <= (w->config.staging
							 ? (uint64_t)(1 << 20) + (300 << 10)
							 : DCP_STRIPE_STAGING));
	}
	for (uint32_t i = 0; i < ng; i++)
		free(g[i].memory);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return bad;
}

static double seconds(void)
{
	return (double)dcp_now_ns(CLOCK_MONOTONIC) / 1e9;
}

static void random_jobs_are_loaded(void **state)
{
	const char *given = getenv("DCPFS_TEST_SECONDS");
	double end = seconds() + (given ? strtod(given, NULL) : 1.5);
	uint64_t first = t_random_seed(1), n = 0;
	struct world *w = &world;

	(void)state;
	print_message("           DCPFS_TEST_SEED=0x%llx\n", (unsigned long long)first);
	t_dir_make(&w->d, "test_load");
	for (uint32_t f = 0; f < FILES; f++) {
		char name[16];

		w->file[f] = malloc(FILE_BYTES);
		for (size_t i = 0; i < FILE_BYTES; i++)
			w->file[f][i] = (uint8_t)t_load_byte(i, f);
		snprintf(name, sizeof(name), "step-1/f%u", f);
		t_dir_put(&w->d, name, w->file[f], FILE_BYTES);
	}
	t_dir_text(&w->d, "step-1/COMMIT", "");
	t_fake.emit = emit;
	do {
		random_world(w, first + n++);
		if (t_comm_run(w->ranks, rank_load, w))
			fail_msg("DCPFS_TEST_SEED=0x%llx: %u ranks, exchange %u, io %u, %s",
				 (unsigned long long)w->seed, w->ranks, w->config.exchange,
				 w->config.io, w->layout ? w->text : "regions");
		dcp_layout_free(w->layout);
	} while (seconds() < end);
	print_message("           %ju cases, %ju regions, %ju elements\n", (uintmax_t)n,
		      (uintmax_t)regions, (uintmax_t)elements);
	for (uint32_t f = 0; f < FILES; f++)
		free(w->file[f]);
	t_dir_remove(&w->d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_jobs_are_loaded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
