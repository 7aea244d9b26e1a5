/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts against a reference that deals elements out one by one, every placement by example, and
 * what cannot be cut.
 * covers: layout
 */
#include "tests/unit/t/model/layout.h"
#include "tests/unit/t/random.h"

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/tensor.h"

enum { MAX_ELEMENTS = 1 << 16 };

static uint64_t seed = 1;

static uint64_t rnd(uint64_t below)
{
	return t_random(&seed, below);
}

/* The reference: which part of @parts gets place @k of @n? */

struct rule {
	enum { CHUNK, BALANCED, PAD, SIZES, GROUPS, STRIDED, INTERLEAVE } kind;
	int dim, mesh, arg, list[8], nlist;
};

static int ceil_div(int n, int parts)
{
	return (n + parts - 1) / parts;
}

static int in_chunk(int n, int parts, int k)
{
	return n ? k / ceil_div(n, parts) : 0;
}

static int owner(const struct rule *r, int n, int parts, int k)
{
	int part, len, sum = 0, lo = 0;

	switch (r->kind) {
	case CHUNK:
	case PAD:
		return in_chunk(n, parts, k);
	case BALANCED:
		for (part = 0;; part++, lo += len) {
			len = n / parts + (part < n % parts);
			if (k < lo + len)
				return part;
		}
	case SIZES:
		for (part = 0; k >= lo + r->list[part]; part++)
			lo += r->list[part];
		return part;
	case GROUPS:
		for (int i = 0; i < r->nlist; i++)
			sum += r->list[i];
		for (part = 0;; part++, lo += len) {
			len = r->list[part] * (n / sum);
			if (k < lo + len)
				return in_chunk(len, parts, k - lo);
		}
	case STRIDED:
		len = ceil_div(n, r->arg);
		lo = k / len * len;
		return in_chunk(DCP_MIN(len, n - lo), parts, k - lo);
	case INTERLEAVE:
		return k / r->arg % parts;
	}
	return -1;
}

static void deal(const struct rule *r, struct t_list *list, int parts, int me)
{
	struct t_list out = { 0 };
	int n = (int)list->n;

	for (int k = 0; k < n; k++)
		if (owner(r, n, parts, k) == me)
			out.at[out.n++] = list->at[k];
	while (r->kind == PAD && (int)out.n < ceil_div(n, parts))
		out.at[out.n++] = T_HOLE;
	*list = out;
}

/* A random rule for a dimension that is @n long now, over @parts; its text into @text. */
static struct rule random_rule(int dim, char name, int n, int parts, char *text)
{
	static const char *const words[] = { "", ", balanced", ", pad" };
	struct rule r = { .kind = (int)rnd(7), .dim = dim, .arg = 1 + (int)rnd(4) };
	char *at = text;

	if (r.kind == SIZES) {
		r.nlist = parts;
		for (int i = 0, left = n; i < parts; i++, left -= r.list[i - 1])
			r.list[i] = i == parts - 1 ? left : (int)rnd(left + 1);
	}
	if (r.kind == GROUPS) {
		r.nlist = 1 + (int)rnd(3);
		for (int i = 0, sum = 0; i < r.nlist; i++) {
			r.list[i] = i == r.nlist - 1 && n > sum ? n - sum : 1 + (int)rnd(3);
			sum += r.list[i];
			if (i == r.nlist - 1 && n % sum != 0)
				r.kind = CHUNK;
		}
	}
	if (r.kind <= PAD)
		sprintf(text, "shard(%d%s)@%c", dim, words[r.kind], name);
	else if (r.kind == STRIDED || r.kind == INTERLEAVE)
		sprintf(text, "%s(%d,%d)@%c", r.kind == STRIDED ? "strided" : "interleave", dim,
			r.arg, name);
	else {
		at += sprintf(at, "shard(%d, %s=[", dim, r.kind == SIZES ? "sizes" : "groups");
		for (int i = 0; i < r.nlist; i++)
			at += sprintf(at, "%s%d", i ? "," : "", r.list[i]);
		sprintf(at, "])@%c", name);
	}
	return r;
}

/* Element numbers of the product of @axis, row-major; T_HOLE where one of them is. */
static size_t product(const struct t_list *axis, uint32_t ndim, const uint64_t *shape, int *out)
{
	size_t n = 1;

	out[0] = 0;
	for (uint32_t d = 0; d < ndim; d++) {
		static int old[MAX_ELEMENTS];

		memcpy(old, out, n * sizeof(*out));
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < axis[d].n; k++)
				out[i * axis[d].n + k] =
					old[i] == T_HOLE || axis[d].at[k] == T_HOLE
						? T_HOLE
						: old[i] * (int)shape[d] + axis[d].at[k];
		n *= axis[d].n;
	}
	return n;
}

static size_t cut_elements(const struct dcp_cut *cut, const uint64_t *shape, int *out)
{
	struct t_list axis[DCP_MAX_NDIM];
	uint64_t volume, dims[DCP_MAX_NDIM];
	size_t n;

	for (uint32_t d = 0; d < cut->ndim; d++)
		axis[d] = t_list_of(&cut->axis[d]);
	n = product(axis, cut->ndim, shape, out);
	if (cut->flat) {
		assert_true(cut->flat_lo + cut->flat_n <= n);
		memmove(out, out + cut->flat_lo, cut->flat_n * sizeof(*out));
		for (uint64_t i = 0; i < cut->pad; i++)
			out[cut->flat_n + i] = T_HOLE;
		n = cut->flat_n + cut->pad;
	}
	assert_true(dcp_cut_volume(cut, &volume));
	assert_int_equal(volume, n);
	assert_int_equal(dcp_cut_shape(cut, dims), cut->flat ? 1 : cut->ndim);
	return n;
}

/* A random layout and what it should give to a rank. */
struct trial {
	uint32_t mdim, ndim, size[3];
	uint64_t shape[3];
	struct rule rule[3];
	bool flat, tight;
	char text[1024];
};

/* Sizes after a padded or uneven cut differ between ranks, so lists are given only to the
 * first rule of a dimension. */
static void make_trial(struct trial *t)
{
	char *at = t->text;
	bool used[3] = { false };

	*t = (struct trial){ .mdim = 1 + (uint32_t)rnd(3), .ndim = 1 + (uint32_t)rnd(3) };
	for (uint32_t d = 0; d < t->ndim; d++)
		t->shape[d] = rnd(18);
	at += sprintf(at, "mesh");
	for (uint32_t m = 0; m < t->mdim; m++) {
		t->size[m] = 1 + (uint32_t)rnd(5);
		at += sprintf(at, " %c=%u", 'a' + (int)m, t->size[m]);
	}
	at += sprintf(at, "\n*");
	t->flat = rnd(4) == 0;
	t->tight = t->flat && rnd(2);
	for (uint32_t m = 0; m + t->flat < t->mdim; m++) {
		int dim = (int)rnd(t->ndim);
		char text[128];

		do {
			t->rule[m] = random_rule(dim, (char)('a' + m), (int)t->shape[dim],
						 (int)t->size[m], text);
		} while (used[dim] && (t->rule[m].kind == SIZES || t->rule[m].kind == GROUPS));
		used[dim] = true;
		at += sprintf(at, " %s", text);
	}
	if (t->flat)
		sprintf(at, " flat%s@%c", t->tight ? "(tight)" : "", 'a' + (int)t->mdim - 1);
}

static size_t want_elements(const struct trial *t, const uint32_t *at, int *out)
{
	struct t_list axis[3] = { 0 };
	int n, c, kept = 0, last = (int)t->mdim - 1;

	for (uint32_t d = 0; d < t->ndim; d++)
		for (int i = 0; i < (int)t->shape[d]; i++)
			axis[d].at[axis[d].n++] = i;
	for (uint32_t m = 0; m + t->flat < t->mdim; m++)
		deal(&t->rule[m], &axis[t->rule[m].dim], (int)t->size[m], (int)at[m]);
	n = (int)product(axis, t->ndim, t->shape, out);
	if (!t->flat)
		return (size_t)n;
	c = ceil_div(n, (int)t->size[last]);
	for (int k = 0; k < n; k++)
		if (k / c == (int)at[last])
			out[kept++] = out[k];
	while (!t->tight && kept < c)
		out[kept++] = T_HOLE;
	return (size_t)kept;
}

static void random_layouts_deal_out_every_element_once(void **state)
{
	static int got[MAX_ELEMENTS], want[MAX_ELEMENTS], seen[MAX_ELEMENTS];

	(void)state;
	print_message("           seed %ju\n", (uintmax_t)seed);
	for (int round = 0; round < 3000; round++) {
		struct dcp_layout *l;
		struct trial t;
		size_t all = 1;

		make_trial(&t);
		l = t_layout(t.text);
		for (uint32_t d = 0; d < t.ndim; d++)
			all *= t.shape[d];
		memset(seen, 0, sizeof(seen));
		for (uint32_t rank = 0; rank < dcp_layout_ranks(l); rank++) {
			uint32_t at[DCP_LAYOUT_MAX_DIMS];
			struct dcp_arena arena;
			struct dcp_cut cut;
			size_t n;

			dcp_arena_init(&arena, 1 << 20);
			dcp_layout_coords(l, rank, at);
			assert_int_equal(dcp_layout_cut(l, rank, "w", t.ndim, t.shape, &arena,
							&cut, NULL),
					 1);
			n = cut_elements(&cut, t.shape, got);
			if (n != want_elements(&t, at, want) ||
			    memcmp(got, want, n * sizeof(*got)) != 0)
				fail_msg("round %d, rank %u of %s", round, rank, t.text);
			for (size_t i = 0; i < n; i++)
				if (got[i] != T_HOLE)
					seen[got[i]]++;
			dcp_arena_finish(&arena);
		}
		for (size_t i = 0; i < all; i++)
			if (seen[i] != 1)
				fail_msg("element %zu is dealt out %d times by %s", i, seen[i],
					 t.text);
		dcp_layout_free(l);
	}
}

/* clang-format off */
static const struct {
	const char *what, *rule, *shape;
	uint32_t rank;
	const char *want; /* spans of each axis, then the flat run; "none" */
} rows[] = {
	{ "even cuts evenly", "shard(0, even)@b", "8x2", 1, "2+2/0+2" },
	{ "the last dimension", "shard(-1)@b", "2x8", 2, "0+2/4+2" },
	{ "colwise of a matrix", "colwise@b", "8x2", 1, "2+2/0+2" },
	{ "colwise of a vector", "colwise@b", "8", 3, "6+2" },
	{ "colwise of experts", "colwise@b", "3x8x2", 3, "0+3/6+2/0+2" },
	{ "colwise of a scalar", "colwise@b", "", 3, "" },
	{ "rowwise of a matrix", "rowwise@b", "2x8", 1, "0+2/2+2" },
	{ "rowwise leaves a vector whole", "rowwise@b", "8", 1, "0+8" },
	{ "packed", "colwise(groups=[1,1])@b", "16x1", 1, "2+2,10+2/0+1" },
	{ "groups as ratios", "shard(0, groups=[4,1,1])@b", "48", 1, "8+8,34+2,42+2" },
	{ "groups as sizes", "shard(0, groups=[4,2,2])@a", "8", 4, "2+2,5+1,7+1" },
	{ "groups cut balanced", "shard(0, groups=[3,3], balanced)@a", "6", 4, "2+1,5+1" },
	{ "spans that touch are one", "shard(0, groups=[4,4])@a shard(0)@b", "8", 1, "1+1" },
	{ "a part of no group", "shard(0, groups=[1,1])@b", "2", 3, "-" },
	{ "zeros behind a padded part", "shard(0, pad)@b", "5", 2, "4+1,0" },
	{ "all zeros", "shard(0, pad)@b", "5", 3, "0,0" },
	{ "optional without the dimension", "shard(1, optional)@b", "5", 3, "0+5" },
	{ "two cuts of one dimension", "shard(0)@a shard(0)@b", "13", 6, "11+2" },
	{ "in the other order", "shard(0)@b shard(0)@a", "13", 6, "10+2" },
	{ "a strided shard over a shard", "strided(0,4)@a shard(0)@b", "16", 6, "10+2" },
	{ "ZeRO: the last part has zeros", "flat@b", "3x3", 3, "0+3/0+3 9+0 pad 3" },
	{ "ZeRO: the third", "flat@b", "3x3", 2, "0+3/0+3 6+3 pad 0" },
	{ "Megatron: a multiple", "flat(pad=4)@b", "3x3", 2, "0+3/0+3 8+1 pad 3" },
	{ "flat without zeros", "flat(tight)@b", "3x3", 3, "0+3/0+3 9+0 pad 0" },
	{ "flat of a flat run", "flat@a flat@b", "3x3", 7, "0+3/0+3 9+0 pad 2" },
	{ "flat of a flat run, its zeros", "flat@a flat@b", "3x3", 5, "0+3/0+3 7+2 pad 0" },
	{ "flat of a shard", "shard(1)@a flat@b", "3x3", 5, "0+3/2+1 1+1 pad 0" },
	{ "flat of a scalar", "flat@b", "", 1, " 1+0 pad 1" },
	{ "flat of a scalar, optional", "flat(optional)@b", "", 1, "" },
	{ "nothing to cut", "shard(0)@b", "0x4", 2, "-/0+4" },
	{ "only: not mine", "only(a=0) shard(0)@b", "8", 4, "none" },
	{ "only: mine", "only(a=0) shard(0)@b", "8", 3, "6+2" },
	{ "only: first or last", "only(b=0|-1) shard(0)@a", "8", 7, "4+4" },
	{ "only: neither", "only(b=0|-1) shard(0)@a", "8", 6, "none" },
	{ "only: both dimensions", "only(a=1, b=2-3) replicate", "8", 6, "0+8" },
	{ "only: one of both", "only(a=1, b=2-3) replicate", "8", 2, "none" },
	{ "drop", "drop", "8", 0, "none" },
	{ "stage: mine", "stage(10)@b", "8", 2, "0+8" },
	{ "stage: another's", "stage(10)@b", "8", 3, "none" },
	{ "stage: by sizes", "stage(10, sizes=[6,1,1,2])@b", "8", 2, "0+8" },
	{ "two stages", "stage(12)@a stage(12)@b", "8", 6, "0+8" },
	{ "two stages, one of them", "stage(12)@a stage(12)@b", "8", 2, "none" },
	{ "torch", "[Replicate(), Shard(dim=0)]", "8", 1, "2+2" },
	{ "torch with modules", "(dist.Replicate(), torch.distributed.tensor._StridedShard(0, split_factor=2))", "16", 1, "2+2,10+2" },
	{ "paddle", "dims_mapping=[-1, 1]", "2x8", 1, "0+2/2+2" },
	{ "paddle, bare", "[1,-1]", "8x2", 1, "2+2/0+2" },
};

static const struct {
	const char *rule, *shape, *says;
	int code;
} refused[] = {
	{ "shard(1)@b", "8", "test:2: key w6.7, rank 1: shard(1)@b: the tensor has 1 dimension; write optional to replicate it", -EINVAL },
	{ "shard(-3)@b", "8x8", "test:2: key w6.7, rank 1: shard(-3)@b: the tensor has 2 dimensions; write optional to replicate it", -EINVAL },
	{ "shard(0, even)@b", "6", "test:2: key w6.7, rank 1: shard(0, even)@b: dimension 0: 6 is not a multiple of 4", -EINVAL },
	{ "shard(0, last)@b", "5", "test:2: key w6.7, rank 1: shard(0, last)@b: dimension 0: 3 times 2 is more than 5: nothing is left for the last", -EINVAL },
	{ "shard(0, sizes=[1,2,3,4])@b", "11", "test:2: key w6.7, rank 1: shard(0, sizes=[1,2,3,4])@b: dimension 0: the sizes add up to 10, the length is 11", -EINVAL },
	{ "shard(0, groups=[2,1])@b", "8", "test:2: key w6.7, rank 1: shard(0, groups=[2,1])@b: dimension 0: the groups add up to 3, which does not divide the length 8", -EINVAL },
	{ "shard(0, groups=[2,1], even)@b", "24x1", NULL, 0 },
	{ "shard(0, groups=[2,1], even)@b", "9", "test:2: key w6.7, rank 1: shard(0, even, groups=[2,1])@b: dimension 0: 6 is not a multiple of 4", -EINVAL },
	{ "flat(even)@b", "3x3", "test:2: key w6.7, rank 1: flat(even)@b: 9 elements are not a multiple of 4", -EINVAL },
	{ "flat@b", "4294967296x4294967296", "test:2: key w6.7, rank 1: flat@b: the array has more than 2^64 elements", -E2BIG },
	{ "flat(pad=9223372036854775807)@c", "18446744073709551615", "test:2: key w6.7, rank 1: flat(pad=9223372036854775807)@c: more than 2^64 elements with padding", -E2BIG },
	{ "interleave(0)@b", "1000000", "test:2: key w6.7, rank 1: interleave(0, 1)@b: dimension 0: 250000 spans; the limit is 65536", -E2BIG },
	{ "strided(0,70000)@b", "1000000", "test:2: key w6.7, rank 1: strided(0, 70000)@b: dimension 0: 66667 spans; the limit is 65536", -E2BIG },
	{ "stage(7)@b", "8", "test:2: key w6.7, rank 1: stage(7)@b: the key's number 7 is past the last stage's", -EINVAL },
	{ "stage(14, even)@a stage(9, even)@b", "8", "test:2: key w6.7, rank 1: stage(9, even)@b: 9 is not a multiple of 4", -EINVAL },
};
/* clang-format on */

/* What a rank has, as the table writes it. */
static void describe(const struct dcp_cut *cut, struct dcp_buf *out)
{
	for (uint32_t d = 0; d < cut->ndim; d++) {
		const struct dcp_axis *axis = &cut->axis[d];

		dcp_buf_str(out, d ? "/" : "");
		for (size_t i = 0; i < axis->n; i++)
			dcp_buf_printf(out, "%s%ju+%ju", i ? "," : "",
				       (uintmax_t)axis->span[i].lo, (uintmax_t)axis->span[i].n);
		for (uint64_t i = dcp_axis_filled(axis); i < axis->len; i++)
			dcp_buf_printf(out, "%s0", i ? "," : "");
		if (axis->len == 0)
			dcp_buf_str(out, "-");
	}
	if (cut->flat)
		dcp_buf_printf(out, " %ju+%ju pad %ju", (uintmax_t)cut->flat_lo,
			       (uintmax_t)cut->flat_n, (uintmax_t)cut->pad);
}

/* Over a mesh of 2 and 4; the key is w6.7, of which two numbers can be read. */
static int cut_row(const char *rule, const char *shape_text, uint32_t rank, struct dcp_buf *out,
		   struct dcp_err *err)
{
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_arena arena;
	struct dcp_layout *l;
	struct dcp_cut cut;
	char text[512], copy[64];
	uint32_t ndim;
	int rc;

	snprintf(text, sizeof(text), "mesh a=2 b=4%s\n%s %s\n",
		 strstr(rule, "@c") ? " c=1" : "",
		 strstr(rule, "stage(12)@a") || strstr(rule, "@a stage") ? "w{*}.{*}" : "*.{*}",
		 rule);
	l = t_layout(text);
	snprintf(copy, sizeof(copy), "%s", shape_text);
	ndim = t_numbers(copy, shape);
	dcp_arena_init(&arena, 1 << 22);
	rc = dcp_layout_cut(l, rank, "w6.7", ndim, shape, &arena, &cut, err);
	if (rc == 1)
		describe(&cut, out);
	dcp_arena_finish(&arena);
	dcp_layout_free(l);
	return rc;
}

static void rules_cut_tensors(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		dcp_auto_buf struct dcp_buf got = DCP_BUF_INIT;
		int rc;

		t_case(rows[i].what);
		rc = cut_row(rows[i].rule, rows[i].shape, rows[i].rank, &got, NULL);
		if (rc == 0)
			dcp_buf_str(&got, "none");
		assert_in_range(rc, 0, 1);
		assert_string_equal(got.p ? got.p : "", rows[i].want);
	}
}

static void bad_cuts_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(refused); i++) {
		dcp_auto_buf struct dcp_buf got = DCP_BUF_INIT;
		struct dcp_err err = { 0 };
		int rc;

		t_case(refused[i].rule);
		rc = cut_row(refused[i].rule, refused[i].shape, 1, &got, &err);
		if (refused[i].code == 0) {
			assert_int_equal(rc, 1);
			continue;
		}
		assert_int_equal(rc, refused[i].code);
		assert_string_equal(err.msg, refused[i].says);
	}
}

static void lack_of_memory_is_reported(void **state)
{
	struct dcp_layout *l = t_layout("mesh a=2 b=4\n* strided(0,8)@a shard(0)@b");
	const uint64_t shape[] = { 1000, 2 };
	size_t limit = 0;
	int rc = -ENOMEM;

	(void)state;
	for (; rc == -ENOMEM; limit += 16) {
		struct dcp_arena arena;
		struct dcp_cut cut;

		dcp_arena_init(&arena, limit);
		rc = dcp_layout_cut(l, 5, "w", 2, shape, &arena, &cut, NULL);
		dcp_arena_finish(&arena);
	}
	assert_int_equal(rc, 1);
	assert_true(limit > 64);
	dcp_layout_free(l);
}

/* Keys whose numbers settle alike are held by the same ranks, others are not; the dimensions
 * that a rule looks at are all that decides who holds it. */
static void settled_rules_hold_alike(void **state)
{
	static const char *const rules[] = {
		"stage(14)@a shard(0)@c",
		"stage(14, balanced)@b",
		"stage(14, last)@a only(c=0)",
		"stage(14, sizes=[0,9,5,0])@b shard(0, optional)@c",
		"stage(14)@b stage(14)@a",
	};
	const uint64_t shape[] = { 8 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rules); i++) {
		struct dcp_layout_rule rule[14];
		bool holds[14][24];
		struct dcp_layout *l;
		char text[128];

		t_case(rules[i]);
		snprintf(text, sizeof(text), "mesh a=3 b=4 c=2\nw{*}.{*} %s\n", rules[i]);
		l = t_layout(text);
		for (uint32_t n = 0; n < 14; n++) {
			char key[16];

			snprintf(key, sizeof(key), "w%u.%u", n, 13 - n);
			assert_true(dcp_layout_rule(l, key, &rule[n]));
			for (uint32_t r = 0; r < 24; r++) {
				struct dcp_arena arena;
				struct dcp_cut cut;

				dcp_arena_init(&arena, 1 << 16);
				holds[n][r] = dcp_layout_cut(l, r, key, 1, shape, &arena, &cut,
							     NULL) == 1;
				dcp_arena_finish(&arena);
			}
			dcp_layout_rule_settle(l, &rule[n]);
			for (uint32_t m = 0; m < n; m++)
				assert_int_equal(memcmp(rule[m].stage, rule[n].stage,
							sizeof(rule[n].stage)) == 0,
						 memcmp(holds[m], holds[n], sizeof(holds[n])) ==
							 0);
		}
		dcp_layout_free(l);
	}
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_layouts_deal_out_every_element_once),
		cmocka_unit_test(rules_cut_tensors),
		cmocka_unit_test(bad_cuts_are_refused),
		cmocka_unit_test(settled_rules_hold_alike),
		cmocka_unit_test(lack_of_memory_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
