/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of rules, held against arrays that are computed element by element: tensors of
 * random shapes, cut into random boxes and runs, stored in random orders or inside of items.
 *
 * covers: map, rules_int
 */
#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/rules/rules.h"
#include "tests/unit/t.h"
#include "tests/unit/t/random.h"

static uint64_t seed = 12;

static uint64_t any(uint64_t below)
{
	return t_random(&seed, below);
}

/* ---- arrays ---- */

enum { NDIM = 6, MOST = 4096 };

struct array {
	uint32_t ndim;
	uint64_t shape[NDIM];
	uint32_t at[MOST]; /* each element is a number of its own */
};

static uint64_t volume(const struct array *a)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < a->ndim; d++)
		n *= a->shape[d];
	return n;
}

static uint64_t flat(const struct array *a, const uint64_t *i)
{
	uint64_t n = 0;

	for (uint32_t d = 0; d < a->ndim; d++)
		n = n * a->shape[d] + i[d];
	return n;
}

static bool step(const uint64_t *len, uint32_t ndim, uint64_t *i)
{
	for (uint32_t d = ndim; d-- > 0; i[d] = 0)
		if (++i[d] < len[d])
			return true;
	return false;
}

/* ---- storing them ---- */

struct store {
	struct dcp_arena arena;
	struct dcp_buf bytes; /* the one file, of u32 */
	struct array array[6];
	const char *key[7];
	struct dcp_tensor tensor[6];
	bool items; /* some pieces are items */
	bool whole; /* each is one piece */
};

struct cut {
	struct store *s;
	const struct array *a;
	struct dcp_piece *p;
	size_t n;
};

static void *take(struct store *s, size_t n)
{
	void *p = dcp_arena_calloc(&s->arena, n + 1, sizeof(uint64_t));

	assert_non_null(p);
	return p;
}

/* Elements of the box, in an order of dimensions by strides that are made up. */
static void store_box(struct cut *c, const uint64_t *lo, const uint64_t *len)
{
	uint32_t ndim = c->a->ndim, order[NDIM];
	uint64_t *stride = take(c->s, ndim), *los = take(c->s, ndim), *lens = take(c->s, ndim),
		 n = 1, i[NDIM] = { 0 }, at;
	struct dcp_piece *p = &c->p[c->n++];
	uint32_t kind = (uint32_t)any(c->s->whole ? 2 : 4);
	uint32_t *file;

	for (uint32_t d = 0; d < ndim; d++) {
		order[d] = d;
		los[d] = lo[d];
		lens[d] = len[d];
	}
	for (uint32_t d = 1; kind == 0 && d < ndim; d++) {
		uint32_t other = (uint32_t)any(d + 1), was = order[d];

		order[d] = order[other];
		order[other] = was;
	}
	for (uint32_t d = ndim; d-- > 0;) {
		stride[order[d]] = n;
		n *= len[order[d]] + (kind == 0 ? any(2) : 0);
	}
	dcp_buf_grow(&c->s->bytes, any(3) * 4);
	*p = (struct dcp_piece){ .lo = los,
				 .len = lens,
				 .stride = kind == 0 ? stride : NULL,
				 .off = c->s->bytes.n,
				 .nbytes = n * 4,
				 .run_n = 1 };
	if (kind == 1 && c->s->items)
		p->enc = DCP_ENC_TORCH;
	file = dcp_buf_grow(&c->s->bytes, n * 4);
	assert_non_null(file);
	memset(file, 0xee, n * 4);
	for (uint32_t d = 0; d < ndim; d++)
		p->run_n *= len[d];
	do {
		uint64_t in[NDIM];

		at = 0;
		for (uint32_t d = 0; d < ndim; d++) {
			in[d] = lo[d] + i[d];
			at += i[d] * stride[d];
		}
		file[at] = c->a->at[flat(c->a, in)];
	} while (step(len, ndim, i));
	while (kind == 2 && c->n < 200 && p->run_n > 1 && any(4)) { /* runs of the box */
		uint64_t head = 1 + any(p->run_n - 1);

		c->p[c->n] = *p;
		p->run_n = head;
		p->nbytes = head * 4;
		p = &c->p[c->n++];
		p->run_lo += head;
		p->run_n -= head;
		p->off += head * 4;
		p->nbytes -= head * 4;
	}
}

static void cut_box(struct cut *c, const uint64_t *lo, const uint64_t *len, uint32_t depth)
{
	uint32_t ndim = c->a->ndim, d = ndim ? (uint32_t)any(ndim) : 0;
	uint64_t low[NDIM], high[NDIM], rest[NDIM];

	if (depth == 0 || ndim == 0 || len[d] < 2 || any(4) == 0) {
		store_box(c, lo, len);
		return;
	}
	memcpy(low, len, sizeof(low));
	memcpy(high, lo, sizeof(high));
	memcpy(rest, len, sizeof(rest));
	low[d] = 1 + any(len[d] - 1);
	high[d] += low[d];
	rest[d] -= low[d];
	cut_box(c, lo, low, depth - 1);
	cut_box(c, high, rest, depth - 1);
}

static void store_array(struct store *s, size_t i)
{
	struct array *a = &s->array[i];
	uint64_t zero[NDIM] = { 0 }, len[NDIM] = { 0 }, *shape = take(s, a->ndim);
	struct cut c = { .s = s, .a = a };

	assert_true(volume(a) <= MOST);
	for (uint32_t k = 0; k < volume(a); k++)
		a->at[k] = (uint32_t)(i << 24 | k);
	c.p = dcp_arena_calloc(&s->arena, 400, sizeof(*c.p));
	assert_non_null(c.p);
	memcpy(shape, a->shape, a->ndim * sizeof(*shape));
	memcpy(len, a->shape, a->ndim * sizeof(*len));
	cut_box(&c, zero, len, s->whole ? 0 : (uint32_t)any(5));
	s->tensor[i] = (struct dcp_tensor){ .key = s->key[i],
					    .dtype = DCP_DTYPE_U32,
					    .dtype_name = "U32",
					    .itemsize = 4,
					    .ndim = a->ndim,
					    .shape = shape,
					    .pieces = c.p,
					    .npieces = c.n };
}

static int list_all(void *ctx, int (*fn)(void *, uint64_t, const char *), void *fn_ctx,
		    struct dcp_err *err)
{
	const struct store *s = ctx;
	int rc = 0;

	(void)err;
	for (uint64_t i = 0; rc == 0 && s->key[i]; i++)
		rc = fn(fn_ctx, i, s->key[i]);
	return rc;
}

static int one_tensor(void *ctx, uint64_t number, struct dcp_arena *arena,
		      struct dcp_tensor *out, struct dcp_err *err)
{
	const struct store *s = ctx;

	(void)arena;
	(void)err;
	*out = s->tensor[number];
	return 0;
}

/* ---- what came out ---- */

struct got {
	const struct store *s;
	struct array array[12];
	char key[12][64];
	char error[12][256];
	size_t n;
};

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	(void)ctx;
	assert_string_equal(name, "f");
	*number = 0;
	return 0;
}

/* Element by element, each exactly once. */
static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct got *g = ctx;
	struct array *a = &g->array[g->n];
	uint8_t seen[MOST] = { 0 };

	assert_true(g->n < DCP_LEN(g->array));
	snprintf(g->key[g->n], sizeof(g->key[0]), "%s", t->key);
	snprintf(g->error[g->n], sizeof(g->error[0]), "%s", t->error ? t->error : "");
	g->n++;
	if (t->error)
		return 0;
	a->ndim = t->ndim;
	assert_true(t->ndim <= NDIM);
	memcpy(a->shape, t->shape, t->ndim * sizeof(*t->shape));
	for (size_t k = 0; k < t->npieces; k++) {
		const struct dcp_piece *p = &t->pieces[k];
		uint64_t i[NDIM] = { 0 }, n = 0;

		do {
			uint64_t in[NDIM], at = 0;

			for (uint32_t d = 0; d < t->ndim; d++) {
				in[d] = p->lo[d] + i[d];
				assert_true(in[d] < t->shape[d]);
				at = p->stride ? at + i[d] * p->stride[d]
					       : at * p->len[d] + i[d];
			}
			if (n >= p->run_lo && n < p->run_lo + p->run_n) {
				assert_int_equal(seen[flat(a, in)]++, 0);
				if (p->filter == DCP_FILTER_ZERO)
					continue;
				at = p->off / 4 + p->item_lo + at - p->run_lo;
				assert_int_equal(p->off % 4, 0);
				assert_true(p->item_n ? p->enc == DCP_ENC_TORCH && p->stride
						      : at * 4 + 4 <= p->off + p->nbytes);
				memcpy(&a->at[flat(a, in)], g->s->bytes.p + at * 4, 4);
			}
		} while (n++, step(p->len, t->ndim, i));
	}
	for (uint64_t k = 0; k < volume(a); k++)
		assert_int_equal(seen[k], 1);
	return 0;
}

static const struct dcp_rules_config config = {
	.heads = 4, .kv_heads = 2, .head_dim = 6, .hidden = 5, .vocab = 7
};

static void run(const char *rules, struct store *s, struct got *g)
{
	static const struct dcp_file_id file = { .name = "f" };
	struct dcp_rules_source from = { .list = list_all,
					 .tensor = one_tensor,
					 .ctx = s,
					 .files = &file,
					 .nfiles = 1,
					 .config = &config,
					 .qkv_order = "parts_last" };
	struct dcp_sink to = { .file = on_file, .tensor = on_tensor, .ctx = g };
	struct dcp_rules *r;
	struct dcp_err err = { 0 };

	if (dcp_rules_parse(rules, strlen(rules), "x", &r, &err) < 0)
		fail_msg("%s", err.msg);
	if (dcp_rules_map(r, &from, &to, NULL, &err) < 0)
		fail_msg("%s", err.msg);
	dcp_rules_free(r);
}

/* ---- how it should be: element (i0, i1, ...) of what comes out ---- */

typedef uint32_t expect_fn(const struct store *s, size_t out, const uint64_t *i);

static uint32_t in2(const struct store *s, size_t a, uint64_t i, uint64_t j)
{
	return s->array[a].at[flat(&s->array[a], (uint64_t[]){ i, j })];
}

static uint32_t in3(const struct store *s, size_t a, uint64_t i, uint64_t j, uint64_t k)
{
	return s->array[a].at[flat(&s->array[a], (uint64_t[]){ i, j, k })];
}

static uint32_t turned(const struct store *s, size_t out, const uint64_t *i)
{
	return in2(s, out, i[1], i[0]);
}

static uint32_t permuted(const struct store *s, size_t out, const uint64_t *i)
{
	return in3(s, out, i[1], i[2], i[0]); /* permute(2, 0, 1) */
}

/* The same elements in row-major order. */
static uint32_t reshaped(const struct store *s, size_t out, const uint64_t *i)
{
	return s->array[out].at[(i[0] * 9 + i[1]) * 2 + i[2]];
}

static uint32_t odd_shape(const struct store *s, size_t out, const uint64_t *i)
{
	return s->array[out].at[i[0] * 4 + i[1]]; /* (6, 10) as (15, 4) */
}

static uint32_t narrowed(const struct store *s, size_t out, const uint64_t *i)
{
	return in2(s, out, i[0], i[1] + 3);
}

static uint32_t unpadded(const struct store *s, size_t out, const uint64_t *i)
{
	return in2(s, out, i[0], i[1]);
}

/* Rows of zeros behind the last. */
static uint32_t padded(const struct store *s, size_t out, const uint64_t *i)
{
	return i[0] < 4 ? in2(s, out, i[0], i[1]) : 0;
}

/* Meta's pairs in each of 4 heads of 6 rows to halves. */
static uint32_t roped(const struct store *s, size_t out, const uint64_t *i)
{
	uint64_t head = i[0] / 6, r = i[0] % 6;

	return in2(s, out, head * 6 + (r < 3 ? 2 * r : 2 * (r - 3) + 1), i[1]);
}

static uint32_t first_roped(const struct store *s, size_t out, const uint64_t *i)
{
	return out ? in2(s, out, i[0], i[1]) : roped(s, out, i);
}

static uint32_t unroped(const struct store *s, size_t out, const uint64_t *i)
{
	uint64_t head = i[0] / 6, r = i[0] % 6;

	return in2(s, out, head * 6 + r / 2 + (r % 2 ? 3 : 0), i[1]);
}

/* 4 heads in 2 groups of (q q k v), of 3 rows each. */
static uint32_t cut_qkv(const struct store *s, size_t out, const uint64_t *i)
{
	uint64_t head = i[0] / 3, row = i[0] % 3,
		 at = out == 0 ? head / 2 * 4 + head % 2 : head * 4 + 1 + out;

	at = at * 3 + row;
	return s->array[0].ndim == 1 ? s->array[0].at[at] : in2(s, 0, at, i[1]);
}

/* 4 heads of 2 rows: of a bias queries, keys and values after one another, else row for row. */
static uint32_t cut_parts(const struct store *s, size_t out, const uint64_t *i)
{
	return s->array[0].ndim == 1 ? s->array[0].at[out * 8 + i[0]]
				     : in2(s, 0, i[0] * 3 + out, i[1]);
}

static uint32_t fused_qkv(const struct store *s, size_t out, const uint64_t *i)
{
	uint64_t head = i[0] / 3, row = i[0] % 3, group = head / 4, at = head % 4;

	(void)out;
	if (at < 2)
		return in2(s, 0, (group * 2 + at) * 3 + row, i[1]);
	return in2(s, at - 1, group * 3 + row, i[1]);
}

static uint32_t concatenated(const struct store *s, size_t out, const uint64_t *i)
{
	(void)out;
	return i[1] < 3 ? in2(s, 0, i[0], i[1]) : in2(s, 1, i[0], i[1] - 3);
}

static uint32_t parted(const struct store *s, size_t out, const uint64_t *i)
{
	static const uint64_t lo[] = { 0, 4, 6 };

	return in2(s, 0, i[0] + lo[out], i[1]);
}

static uint32_t in_turn(const struct store *s, size_t out, const uint64_t *i)
{
	return in2(s, 0, i[0] * 2 + out, i[1]);
}

static uint32_t of_two(const struct store *s, size_t out, const uint64_t *i)
{
	return in3(s, 0, out, i[0], i[1]);
}

/* Of each expert gate and up, which lie in turn. */
static uint32_t experts_in_turn(const struct store *s, size_t out, const uint64_t *i)
{
	const uint64_t at[] = { out / 2, i[0], out % 2, i[1] };

	return s->array[0].at[flat(&s->array[0], at)];
}

static uint32_t stacked(const struct store *s, size_t out, const uint64_t *i)
{
	static const size_t expert[] = { 1, 2, 0 }; /* told in the order 2, 0, 1 */

	(void)out;
	return in2(s, expert[i[1]], i[0], i[2]);
}

static uint32_t unstacked(const struct store *s, size_t out, const uint64_t *i)
{
	return in3(s, 0, i[0], out, i[1]);
}

/* Experts' (gate, up) side by side, in rows of inputs: one matrix each, turned. */
static uint32_t experts(const struct store *s, size_t out, const uint64_t *i)
{
	return in3(s, 0, out / 2, i[1], i[0] + out % 2 * 3);
}

/* And back: gate and up of each expert, in one. */
static uint32_t gathered(const struct store *s, size_t out, const uint64_t *i)
{
	(void)out;
	return i[2] < 3 ? in2(s, i[0] * 2, i[2], i[1]) : in2(s, i[0] * 2 + 1, i[2] - 3, i[1]);
}

/* Of each layer its experts, of each expert its halves. */
static uint32_t in_order(const struct store *s, size_t out, const uint64_t *i)
{
	return s->array[0].at[(out * 3 + i[0]) * 2 + i[1]];
}

/* Columns of each layer are what two keys had of it. */
static uint32_t apart_and_together(const struct store *s, size_t out, const uint64_t *i)
{
	return in2(s, 1 - i[1], out, i[0]); /* x.1 is told first */
}

/* Two ranks had columns of x and of y, two of each. */
static uint32_t of_shares(const struct store *s, size_t out, const uint64_t *i)
{
	return in2(s, i[0] / 2, i[1], i[0] % 2 + out * 2);
}

static uint32_t side_by_side(const struct store *s, size_t out, const uint64_t *i)
{
	return in3(s, i[2], i[0], i[1], i[3]);
}

struct shape {
	uint32_t ndim;
	uint64_t at[NDIM];
};

/* clang-format off */
static const struct {
	const char *what, *rules;
	const char *key[7];
	struct shape in[6];
	const char *out[7];
	struct shape want[6];
	expect_fn *fn;
	bool whole;
} cases[] = {
	{ "T", "* -> * : T", { "a" }, { { 2, { 5, 7 } } }, { "a" }, { { 2, { 7, 5 } } }, turned },
	{ "T of what is not turned yet", "* -> * : T(5)", { "a" }, { { 2, { 5, 7 } } }, { "a" }, { { 2, { 7, 5 } } }, turned },
	{ "T of what is turned already", "* -> * : T(4)", { "a" }, { { 2, { 7, 4 } } }, { "a" }, { { 2, { 7, 4 } } }, unpadded },
	{ "T of a row", "* -> * : T", { "a" }, { { 2, { 1, 7 } } }, { "a" }, { { 2, { 7, 1 } } }, turned },
	{ "permute", "a -> b : permute(2, 0, -2)", { "a" }, { { 3, { 4, 3, 5 } } }, { "b" },
	  { { 3, { 5, 4, 3 } } }, permuted },
	{ "reshape along edges", "a -> b : reshape(-1, 9, 2)", { "a" }, { { 2, { 6, 12 } } }, { "b" },
	  { { 3, { 4, 9, 2 } } }, reshaped },
	{ "reshape, ones in between", "a -> b : reshape(4, 9, 2)", { "a" }, { { 4, { 1, 8, 1, 9 } } }, { "b" },
	  { { 3, { 4, 9, 2 } } }, reshaped },
	{ "reshape of a vector", "a -> b : reshape(2*2, 18/2, 2)", { "a" }, { { 1, { 72 } } }, { "b" },
	  { { 3, { 4, 9, 2 } } }, reshaped },
	{ "reshape across edges", "a -> b : reshape(15, 4)", { "a" }, { { 2, { 6, 10 } } }, { "b" },
	  { { 2, { 15, 4 } } }, odd_shape },
	{ "narrow", "a -> b : narrow(-1, 3, 5)", { "a" }, { { 2, { 6, 10 } } }, { "b" }, { { 2, { 6, 5 } } }, narrowed },
	{ "unpad", "a -> b : unpad(vocab)", { "a" }, { { 2, { 10, 4 } } }, { "b" }, { { 2, { 7, 4 } } }, unpadded },
	{ "pad", "a -> b : pad(vocab)", { "a" }, { { 2, { 4, 3 } } }, { "b" }, { { 2, { 7, 3 } } }, padded },
	{ "unpad what has no padding", "a -> b : unpad(4, 1)", { "a" }, { { 2, { 7, 4 } } }, { "b" }, { { 2, { 7, 4 } } }, unpadded },
	{ "rope", "a -> b : rope(heads)", { "a" }, { { 2, { 24, 5 } } }, { "b" }, { { 2, { 24, 5 } } }, roped },
	{ "unrope", "a -> b : unrope(heads)", { "a" }, { { 2, { 24, 5 } } }, { "b" }, { { 2, { 24, 5 } } }, unroped },
	{ "rope of some", "a, b -> c, d : rope(heads, 0)", { "a", "b" }, { { 2, { 24, 5 } }, { 2, { 23, 5 } } }, { "c", "d" }, { { 2, { 24, 5 } }, { 2, { 23, 5 } } }, first_roped },
	{ "rope and back", "a -> b : rope(4) unrope(4)", { "a" }, { { 2, { 24, 3 } } }, { "b" }, { { 2, { 24, 3 } } }, unpadded },
	{ "qkv", "a -> q, k, v : qkv(heads, kv_heads)", { "a" }, { { 2, { 24, 5 } } }, { "q", "k", "v" }, { { 2, { 12, 5 } }, { 2, { 6, 5 } }, { 2, { 6, 5 } } }, cut_qkv },
	{ "qkv of a bias", "a -> q, k, v : qkv(4, 2)", { "a" }, { { 1, { 24 } } }, { "q", "k", "v" }, { { 1, { 12 } }, { 1, { 6 } }, { 1, { 6 } } }, cut_qkv },
	{ "qkv, parts first", "a -> q, k, v : qkv(4, 4, parts_first)", { "a" }, { { 1, { 24 } } }, { "q", "k", "v" }, { { 1, { 8 } }, { 1, { 8 } }, { 1, { 8 } } }, cut_parts },
	{ "qkv, as stored", "a -> q, k, v : qkv(heads, heads, stored)", { "a" }, { { 2, { 24, 5 } } }, { "q", "k", "v" }, { { 2, { 8, 5 } }, { 2, { 8, 5 } }, { 2, { 8, 5 } } }, cut_parts },
	{ "fuse_qkv", "q, k, v -> a : fuse_qkv(heads, kv_heads)", { "q", "k", "v" }, { { 2, { 12, 5 } }, { 2, { 6, 5 } }, { 2, { 6, 5 } } }, { "a" }, { { 2, { 24, 5 } } }, fused_qkv },
	{ "concat", "a, b -> c : concat(1)", { "a", "b" }, { { 2, { 4, 3 } }, { 2, { 4, 5 } } }, { "c" }, { { 2, { 4, 8 } } }, concatenated },
	{ "split by sizes", "a -> x, y, z : split(0, [4, 2, 3])", { "a" }, { { 2, { 9, 4 } } }, { "x", "y", "z" }, { { 2, { 4, 4 } }, { 2, { 2, 4 } }, { 2, { 3, 4 } } }, parted },
	{ "split by ratios", "a -> x, y, z : split(0, [heads, kv_heads, 2])", { "a" }, { { 2, { 8, 4 } } },
	  { "x", "y", "z" }, { { 2, { 4, 4 } }, { 2, { 2, 4 } }, { 2, { 2, 4 } } }, parted },
	{ "shares", "a, b -> x, y : concat(1) T shares(0) split(1, [2, 2]) reshape(-1, 3)", { "a", "b" },
	  { { 2, { 3, 4 } }, { 2, { 3, 4 } } }, { "x", "y" }, { { 2, { 4, 3 } }, { 2, { 4, 3 } } }, of_shares, true },
	{ "shares of columns", "a, b -> x : concat(2) shares(2)", { "a", "b" }, { { 3, { 3, 5, 4 } }, { 3, { 3, 5, 4 } } }, { "x" }, { { 4, { 3, 5, 2, 4 } } }, side_by_side, true },
	{ "one share", "* -> * : shares(0) reshape(-1, 4)", { "a" }, { { 2, { 7, 4 } } }, { "a" }, { { 2, { 7, 4 } } }, unpadded, true },
	{ "stack over a slot", "e.{e}.w -> w : stack(1, {e})", { "e.2.w", "e.0.w", "e.1.w" },
	  { { 2, { 4, 5 } }, { 2, { 4, 5 } }, { 2, { 4, 5 } } }, { "w" }, { { 3, { 4, 3, 5 } } }, stacked },
	{ "unstack", "w -> e.{e}.w : unstack(1, {e})", { "w" }, { { 3, { 4, 3, 5 } } },
	  { "e.0.w", "e.1.w", "e.2.w" }, { { 2, { 4, 5 } }, { 2, { 4, 5 } }, { 2, { 4, 5 } } }, unstacked },
	{ "rows in turn", "w -> x, y : pairs", { "w" }, { { 2, { 6, 4 } } }, { "x", "y" }, { { 2, { 3, 4 } }, { 2, { 3, 4 } } }, in_turn },
	{ "two of a kind", "w -> x, y : pairs", { "w" }, { { 3, { 2, 5, 4 } } }, { "x", "y" }, { { 2, { 5, 4 } }, { 2, { 5, 4 } } }, of_two },
	{ "experts in turn", "w -> {e}.x, {e}.y : unstack(0, {e}) pairs(1)", { "w" }, { { 4, { 2, 3, 2, 4 } } },
	  { "0.x", "0.y", "1.x", "1.y" }, { { 2, { 3, 4 } }, { 2, { 3, 4 } }, { 2, { 3, 4 } }, { 2, { 3, 4 } } }, experts_in_turn },
	{ "experts apart", "l.{i}.w -> l.{i}.{e}.gate, l.{i}.{e}.up : split(2, 2) unstack(0, {e}) T", { "l.3.w" },
	  { { 3, { 2, 4, 6 } } }, { "l.3.0.gate", "l.3.0.up", "l.3.1.gate", "l.3.1.up" },
	  { { 2, { 3, 4 } }, { 2, { 3, 4 } }, { 2, { 3, 4 } }, { 2, { 3, 4 } } }, experts },
	{ "layers and experts apart", "w -> l.{i+vocab}.{e} : unstack(0, {i}) unstack(0, {e})", { "w" },
	  { { 4, { 2, 2, 3, 2 } } }, { "l.7.0", "l.7.1", "l.8.0", "l.8.1" },
	  { { 2, { 3, 2 } }, { 2, { 3, 2 } }, { 2, { 3, 2 } }, { 2, { 3, 2 } } }, in_order },
	{ "and cut", "w -> {e}.{i}.g, {e}.{i}.u : unstack(0, {i}) unstack(0, {e}) split(0, 2)", { "w" },
	  { { 4, { 1, 3, 6, 2 } } }, { "0.0.g", "0.0.u", "1.0.g", "1.0.u", "2.0.g", "2.0.u" },
	  { { 2, { 3, 2 } }, { 2, { 3, 2 } }, { 2, { 3, 2 } }, { 2, { 3, 2 } }, { 2, { 3, 2 } }, { 2, { 3, 2 } } }, in_order },
	{ "apart over one slot, together over another", "x.{e} -> y.{i} : unstack(0, {i}) stack(1, {e})",
	  { "x.1", "x.0" }, { { 2, { 2, 3 } }, { 2, { 2, 3 } } }, { "y.0", "y.1" },
	  { { 2, { 3, 2 } }, { 2, { 3, 2 } } }, apart_and_together },
	{ "experts together", "l.{i}.{e}.g, l.{i}.{e}.u -> l.{i} : T concat(1) stack(0, {e})",
	  { "l.3.0.g", "l.3.0.u", "l.3.1.g", "l.3.1.u" },
	  { { 2, { 3, 4 } }, { 2, { 3, 4 } }, { 2, { 3, 4 } }, { 2, { 3, 4 } } }, { "l.3" },
	  { { 3, { 2, 4, 6 } } }, gathered },
};
/* clang-format on */

static void begin(struct store **s, struct got **g)
{
	*s = calloc(1, sizeof(**s));
	*g = calloc(1, sizeof(**g));
	assert_true(*s && *g);
	(*g)->s = *s;
	dcp_arena_init(&(*s)->arena, 64 << 20);
}

static void end(struct store *s, struct got *g)
{
	dcp_arena_finish(&s->arena);
	dcp_buf_finish(&s->bytes);
	free(s);
	free(g);
}

static void check_case(size_t c, bool items)
{
	struct store *s;
	struct got *g;
	uint64_t i[NDIM];

	begin(&s, &g);
	s->items = items;
	s->whole = cases[c].whole;
	for (size_t k = 0; cases[c].key[k]; k++) {
		s->key[k] = cases[c].key[k];
		s->array[k].ndim = cases[c].in[k].ndim;
		memcpy(s->array[k].shape, cases[c].in[k].at, sizeof(s->array[k].shape));
		store_array(s, k);
	}
	run(cases[c].rules, s, g);
	for (size_t k = 0; k < g->n; k++) {
		assert_string_equal(g->error[k], "");
		assert_non_null(cases[c].out[k]);
		assert_string_equal(g->key[k], cases[c].out[k]);
		assert_int_equal(g->array[k].ndim, cases[c].want[k].ndim);
		memset(i, 0, sizeof(i));
		for (uint32_t d = 0; d < g->array[k].ndim; d++)
			assert_int_equal(g->array[k].shape[d], cases[c].want[k].at[d]);
		do {
			if (g->array[k].at[flat(&g->array[k], i)] != cases[c].fn(s, k, i))
				fail_msg("%s: %s at [%llu, %llu, ...]", cases[c].what,
					 cases[c].out[k], (unsigned long long)i[0],
					 (unsigned long long)i[1]);
		} while (step(g->array[k].shape, g->array[k].ndim, i));
	}
	assert_null(cases[c].out[g->n]);
	end(s, g);
}

static void every_operation_agrees_with_its_reference(void **state)
{
	(void)state;
	for (size_t c = 0; c < DCP_LEN(cases); c++) {
		t_case(cases[c].what);
		for (int round = 0; round < 60; round++)
			check_case(c, round % 2);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_operation_agrees_with_its_reference),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
