/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/paddle_world.h"

#include "core/base/base.h"
#include "tests/unit/t.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/random.h"

static uint64_t seed = 1;

uint64_t t_pw_random(uint64_t below)
{
	return t_random(&seed, below);
}

static const struct t_pw_type types[] = {
	{ "float32", "f4", "F32", "F32", 4 }, { "bfloat16", "u2", "U16", "BF16", 2 },
	{ "float64", "f8", "F64", "F64", 8 }, { "float8_e4m3fn", "i1", "I8", "F8_E4M3", 1 },
	{ "bool", "b1", "BOOL", "BOOL", 1 },  { "int64", "i8", "I64", "I64", 8 },
	{ "float16", "f2", "F16", "F16", 2 }, { "complex64", "c8", "C64", "C64", 8 },
};

/* ---- files ---- */

static void open_file(struct t_paddle_world *w, unsigned rank, unsigned uid)
{
	struct t_pw_file *f = &w->file[rank];

	*f = (struct t_pw_file){ 0 };
	snprintf(f->name, sizeof(f->name), "%u_%u.%s", rank, uid,
		 w->protocol || uid % 2 ? "distcp" : "safetensors");
	if (w->protocol)
		t_paddle_open(&f->data, w->protocol);
	else
		dcp_buf_printf(&f->header, "{\"__metadata__\":{}");
}

static void put_safetensors(struct t_pw_file *f, const struct t_pw_tensor *t, uint32_t ndim,
			    const int64_t *shape, const struct dcp_buf *bytes)
{
	dcp_buf_printf(&f->header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->key,
		       t->type->stored);
	for (uint32_t d = 0; d < ndim; d++)
		dcp_buf_printf(&f->header, "%s%d", d ? "," : "", (int)shape[d]);
	dcp_buf_printf(&f->header, "],\"data_offsets\":[%zu,%zu]}", f->data.n,
		       f->data.n + bytes->n);
	dcp_buf_add(&f->data, bytes->p, bytes->n);
}

static void put_array(struct t_paddle_world *w, unsigned rank, const struct t_pw_tensor *t,
		      uint32_t ndim, const int64_t *shape, const struct dcp_buf *bytes)
{
	struct t_pw_file *f = &w->file[rank];

	if (!w->protocol)
		put_safetensors(f, t, ndim, shape, bytes);
	else if (w->protocol <= 3 && bytes->n > t->type->size && t_pw_random(3) == 0)
		t_paddle_slices(&f->data, &f->big, t->key, t->type->numpy, ndim, shape,
				bytes->p, bytes->n, t->type->size,
				1 + t_pw_random(bytes->n / t->type->size));
	else
		t_paddle_array(&f->data, t->key, t->type->numpy, ndim, shape, bytes->p,
			       bytes->n);
}

static void close_file(struct t_paddle_world *w, unsigned rank, const struct t_dir *dir)
{
	struct t_pw_file *f = &w->file[rank];
	struct dcp_buf all = DCP_BUF_INIT;

	if (w->protocol) {
		if (f->big.n)
			t_paddle_sliced(&f->data, &f->big);
		t_paddle_close(&f->data);
		dcp_buf_add(&all, f->data.p, f->data.n);
	} else {
		uint64_t n;

		dcp_buf_str(&f->header, "}");
		n = f->header.n;
		dcp_buf_add(&all, &n, sizeof(n));
		dcp_buf_add(&all, f->header.p, f->header.n);
		dcp_buf_add(&all, f->data.p, f->data.n);
	}
	t_dir_put(dir, f->name, all.p, all.n);
	dcp_buf_finish(&all);
	dcp_buf_finish(&f->data);
	dcp_buf_finish(&f->big);
	dcp_buf_finish(&f->header);
}

/* ---- pieces ---- */

/* Elements of the box of @p, row-major, from those of the tensor. */
static void cut_out(const struct t_pw_tensor *t, const struct t_pd_piece *p,
		    struct dcp_buf *out)
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

static void store_piece(struct t_paddle_world *w, unsigned rank, const struct t_pw_tensor *t,
			struct t_pd_piece p)
{
	struct dcp_buf bytes = DCP_BUF_INIT;
	int64_t run = p.run[1] - p.run[0];

	p.key = t->key;
	p.dtype = t->type->paddle;
	p.ndim = t->ndim;
	memcpy(p.shape, t->shape, sizeof(p.shape));
	p.file = w->file[rank].name;
	cut_out(t, &p, &bytes);
	put_array(w, rank, t, p.flat ? 1 : t->ndim, p.flat ? &run : p.len, &bytes);
	assert_true(w->np < T_PW_PIECES);
	w->p[w->np++] = p;
	dcp_buf_finish(&bytes);
}

/* ---- meshes ---- */

struct mesh {
	unsigned n[2];
	int by[2]; /* the dimension of the tensor that it cuts; -1: none */
};

/* The box of the rank at @place; false: it has nothing. */
static bool box_of(const struct t_pw_tensor *t, const struct mesh *m, unsigned place,
		   struct t_pd_piece *p)
{
	const unsigned at[2] = { place / m->n[1], place % m->n[1] };

	*p = (struct t_pd_piece){ .replica = -1 };
	memcpy(p->len, t->shape, sizeof(p->len));
	for (int i = 0; i < 2; i++) {
		int64_t whole, each, lo;

		if (m->by[i] < 0)
			continue;
		whole = p->len[m->by[i]];
		each = (whole + m->n[i] - 1) / m->n[i];
		lo = each * at[i];
		p->lo[m->by[i]] += lo;
		p->len[m->by[i]] = DCP_MIN(each, whole - lo);
		if (p->len[m->by[i]] <= 0)
			return false;
	}
	return true;
}

static bool same_box(const struct t_pd_piece *a, const struct t_pd_piece *b)
{
	return memcmp(a->lo, b->lo, sizeof(a->lo)) == 0 &&
	       memcmp(a->len, b->len, sizeof(a->len)) == 0;
}

/*
 * One box and the ranks that have it. A: all store it, the first is named; B: the first stores
 * it; C: some one stores it, or all do and are numbered.
 */
static void store_copies(struct t_paddle_world *w, const struct t_pw_tensor *t,
			 struct t_pd_piece p, const unsigned *ranks, unsigned n)
{
	bool all = w->generation == 'C' && t_pw_random(2);
	unsigned main = w->generation == 'C' ? (unsigned)t_pw_random(n) : 0;

	for (unsigned i = 0; i < n; i++) {
		p.replica = all ? (int64_t)((i + n - main) % n) : -1;
		p.only_stored = all && i > 0;
		if (i == main || all || w->generation == 'A')
			store_piece(w, ranks[i], t, p);
		if (i != main && w->generation == 'A')
			w->np--;
	}
}

static void cut_by_mesh(struct t_paddle_world *w, const struct t_pw_tensor *t)
{
	static const unsigned sizes[][2] = { { 1, 1 }, { 1, 6 }, { 2, 3 }, { 3, 2 },
					     { 2, 2 }, { 1, 4 }, { 5, 1 } };
	const unsigned *n = sizes[t_pw_random(DCP_LEN(sizes))];
	struct mesh m = { { n[0], n[1] },
			  { (int)t_pw_random(t->ndim + 1) - 1,
			    (int)t_pw_random(t->ndim + 1) - 1 } };
	bool done[T_PW_RANKS] = { false };

	for (unsigned r = 0; r < n[0] * n[1]; r++) {
		unsigned ranks[T_PW_RANKS], nranks = 0;
		struct t_pd_piece p, q;

		if (done[r] || !box_of(t, &m, r, &p))
			continue;
		for (unsigned i = r; i < n[0] * n[1]; i++)
			if (box_of(t, &m, i, &q) && same_box(&p, &q)) {
				done[i] = true;
				ranks[nranks++] = i;
			}
		store_copies(w, t, p, ranks, nranks);
	}
}

/* ---- others ---- */

/* Generation C: runs of the flattening of two blocks, cut anywhere. */
static void flatten_blocks(struct t_paddle_world *w, const struct t_pw_tensor *t)
{
	int64_t half = t->shape[0] / 2, at[2] = { 0, half };
	uint64_t row = t->n / (uint64_t)t->shape[0];

	for (unsigned b = 0; b < 2; b++) {
		int64_t n = (b ? t->shape[0] - half : half), all = n * (int64_t)row, cut;
		struct t_pd_piece p = { .replica = -1, .flat = true };

		memcpy(p.len, t->shape, sizeof(p.len));
		p.lo[0] = at[b];
		p.len[0] = n;
		cut = (int64_t)t_pw_random((uint64_t)all + 1);
		p.run[1] = cut;
		if (cut)
			store_piece(w, 2 * b, t, p);
		p.run[0] = cut;
		p.run[1] = all;
		if (cut < all)
			store_piece(w, 2 * b + 1, t, p);
	}
}

/* New values for the box of @p. */
static void fill_box(struct t_pw_tensor *t, const struct t_pd_piece *p)
{
	for (uint64_t e = 0; e < t->n; e++) {
		uint64_t left = e;
		bool inside = true;

		for (uint32_t d = t->ndim; d-- > 0; left /= (uint64_t)t->shape[d]) {
			int64_t at = (int64_t)(left % (uint64_t)t->shape[d]) - p->lo[d];

			inside = inside && at >= 0 && at < p->len[d];
		}
		for (uint32_t i = 0; inside && i < t->type->size; i++)
			t->bytes[e * t->type->size + i] = (uint8_t)t_pw_random(256);
	}
}

/*
 * The whole and some boxes of it, listed in any order and each with values of its own: what
 * counts is the one listed last. Before C an offset names one file.
 */
static void overlap_boxes(struct t_paddle_world *w, struct t_pw_tensor *t)
{
	unsigned n = 2 + (unsigned)t_pw_random(T_PW_RANKS - 1);
	unsigned whole = (unsigned)t_pw_random(n), first = (unsigned)t_pw_random(T_PW_RANKS);
	size_t start = w->np;

	for (unsigned i = 0; i < n; i++) {
		struct t_pd_piece p = { .replica = -1 };
		bool taken = false;

		memcpy(p.len, t->shape, sizeof(p.len));
		for (uint32_t d = 0; i != whole && d < t->ndim; d++) {
			p.lo[d] = (int64_t)t_pw_random((uint64_t)t->shape[d]);
			p.len[d] = 1 + (int64_t)t_pw_random((uint64_t)(t->shape[d] - p.lo[d]));
		}
		for (size_t k = start; k < w->np; k++)
			taken |= memcmp(w->p[k].lo, p.lo, sizeof(p.lo)) == 0;
		taken |=
			i < whole && memcmp(p.lo, (int64_t[T_PD_NDIM]){ 0 }, sizeof(p.lo)) == 0;
		if (taken)
			continue;
		fill_box(t, &p);
		store_piece(w, (first + i) % T_PW_RANKS, t, p);
	}
}

static void make_tensor(struct t_paddle_world *w, unsigned k)
{
	struct t_pw_tensor *t = &w->t[k];
	unsigned how = (unsigned)t_pw_random(4);

	t->type = &types[t_pw_random(DCP_LEN(types))];
	t->ndim = 1 + (uint32_t)t_pw_random(3);
	t->n = 1;
	snprintf(t->key, sizeof(t->key), "m.w%u", k);
	memset(t->shape, 0, sizeof(t->shape));
	for (uint32_t d = 0; d < t->ndim; d++) {
		t->shape[d] = 2 + (int64_t)t_pw_random(9);
		t->n *= (uint64_t)t->shape[d];
	}
	for (uint64_t i = 0; i < t->n * t->type->size; i++)
		t->bytes[i] = (uint8_t)t_pw_random(256);
	if (how == 0)
		overlap_boxes(w, t);
	else if (how == 1 && w->generation == 'C')
		flatten_blocks(w, t);
	else
		cut_by_mesh(w, t);
}

void t_paddle_world(struct t_paddle_world *w, const struct t_dir *dir, unsigned uid)
{
	static const int protocols[] = { 2, 3, 4, 5, 0 };
	struct dcp_buf meta = DCP_BUF_INIT;
	char name[32];

	w->np = 0;
	w->generation = (char)('A' + t_pw_random(3));
	w->protocol = protocols[t_pw_random(w->generation == 'C' ? 5 : 4)];
	for (unsigned r = 0; r < T_PW_RANKS; r++)
		open_file(w, r, uid);
	for (unsigned k = 0; k < T_PW_KEYS; k++)
		make_tensor(w, k);
	t_paddle_meta(&meta, w->generation, w->p, w->np);
	for (unsigned r = 0; r < T_PW_RANKS; r++)
		close_file(w, r, dir);
	snprintf(name, sizeof(name), "%u.metadata", uid);
	t_dir_put(dir, name, meta.p, meta.n);
	dcp_buf_finish(&meta);
}
