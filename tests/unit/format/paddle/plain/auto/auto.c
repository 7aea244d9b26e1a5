/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_for_auto_inference: parts of all ranks joined as their attributes say.
 * covers: auto
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/formats.h"
#include "tests/unit/t/format/group.h"
#include "tests/unit/t/format/pdplain.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/random.h"

enum { MAX_NDIM = 3, MAX_MESH = 3, MAX_PLACES = 24 };

/* How a tensor is cut; elements are int32, each its own index in the whole. */
struct plan {
	uint64_t mesh[MAX_MESH];
	size_t nmesh;
	int64_t by[MAX_NDIM]; /* mesh dimension that cuts; -1: none */
	uint64_t local[MAX_NDIM];
	size_t ndim;
	int64_t group[MAX_PLACES];
};

static size_t places(const struct plan *p)
{
	size_t n = 1;

	for (size_t m = 0; m < p->nmesh; m++)
		n *= p->mesh[m];
	return n;
}

static uint64_t coordinate(const struct plan *p, size_t place, size_t mesh)
{
	for (size_t m = p->nmesh; m-- > mesh + 1;)
		place /= p->mesh[m];
	return place % p->mesh[mesh];
}

static uint64_t whole(const struct plan *p, size_t d)
{
	return p->local[d] * (p->by[d] < 0 ? 1 : p->mesh[p->by[d]]);
}

/* ---- writing ---- */

static void push_part(struct dcp_buf *b, const struct plan *p, size_t place)
{
	dcp_auto_buf struct dcp_buf data = DCP_BUF_INIT;
	struct t_pd_array a = {
		.code = "i4", .order = '<', .shape = p->local, .ndim = p->ndim
	};
	uint64_t n = 1;

	for (size_t d = 0; d < p->ndim; d++)
		n *= p->local[d];
	for (uint64_t i = 0; i < n; i++) {
		uint64_t left = i, index = 0, step = 1;
		int32_t element;

		for (size_t d = p->ndim; d-- > 0; step *= whole(p, d)) {
			uint64_t at = left % p->local[d];

			left /= p->local[d];
			if (p->by[d] >= 0)
				at += coordinate(p, place, (size_t)p->by[d]) * p->local[d];
			index += at * step;
		}
		element = (int32_t)index;
		dcp_buf_add(&data, &element, sizeof(element));
	}
	a.data = data.p;
	a.nbytes = data.n;
	t_pd_array(b, 4, &a);
}

static void push_ints(struct dcp_buf *b, const char *key, const int64_t *v, size_t n)
{
	t_pk_str(b, key);
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		t_pk_int(b, v[i]);
	t_pk_appends(b);
}

static void push_attr(struct dcp_buf *b, const char *key, const struct plan *p)
{
	int64_t mesh[MAX_MESH];

	for (size_t m = 0; m < p->nmesh; m++)
		mesh[m] = (int64_t)p->mesh[m];
	t_pk_str(b, key);
	t_pk_dict(b);
	t_pk_mark(b);
	push_ints(b, "process_shape", mesh, p->nmesh);
	push_ints(b, "process_group", p->group, places(p));
	push_ints(b, "dims_mapping", p->by, p->ndim);
	t_pk_setitems(b);
}

static void start(struct dcp_buf *b)
{
	dcp_buf_reset(b);
	t_pk_start(b);
	t_pk_dict(b);
	t_pk_mark(b);
}

static void put(const struct t_dir *d, struct dcp_buf *b, int64_t rank, const char *extension)
{
	char name[64];

	t_pk_setitems(b);
	t_pk_stop(b);
	snprintf(name, sizeof(name), "w_dist%d.%s", (int)rank, extension);
	t_dir_put(d, name, b->p, b->n);
}

/* Both files of the rank at @place, holding "x". */
static void put_place(const struct t_dir *d, const struct plan *p, size_t place)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	start(&b);
	t_pk_str(&b, "x");
	push_part(&b, p, place);
	put(d, &b, p->group[place], "pdparams");
	start(&b);
	push_attr(&b, "x", p);
	put(d, &b, p->group[place], "pdattr");
}

static void put_all(const struct t_dir *d, const struct plan *p)
{
	for (size_t place = 0; place < places(p); place++)
		put_place(d, p, place);
}

/* ---- checking ---- */

static void load(struct t_group *g, const struct t_dir *d)
{
	t_group_load(g, d->root, &dcp_format_paddle_plain, NULL, 0);
}

static void check_whole(const struct t_group *g, const struct plan *p)
{
	const struct dcp_tensor *t = t_sink_tensor(&g->s, "x");
	struct dcp_err err = { 0 };
	uint64_t n = 1;
	int32_t *got;
	size_t nbytes;

	if (g->rc < 0)
		fail_msg("%s", g->err.msg);
	assert_non_null(t);
	assert_int_equal(t->ndim, p->ndim);
	for (size_t d = 0; d < p->ndim; d++) {
		assert_int_equal(t->shape[d], whole(p, d));
		n *= whole(p, d);
	}
	got = (int32_t *)(void *)t_sink_read(&g->s, t, &nbytes, &err);
	if (!got)
		fail_msg("%s", err.msg);
	assert_int_equal(nbytes, n * sizeof(*got));
	for (uint64_t i = 0; i < n; i++)
		assert_int_equal(got[i], i);
	free(got);
}

static void check_broken(const struct t_group *g, const char *says)
{
	const struct dcp_tensor *t = t_sink_tensor(&g->s, "x");

	assert_int_equal(g->rc, 0);
	if (!t || !t->error || !strstr(t->error, says))
		fail_msg("\"%s\" does not say \"%s\"", t && t->error ? t->error : "nothing",
			 says);
}

/* ---- tests ---- */

static unsigned draw(uint64_t *seed, unsigned below)
{
	return (unsigned)t_random(seed, below);
}

static void draw_plan(struct plan *p, uint64_t *seed)
{
	unsigned used = 0;
	size_t n;

	*p = (struct plan){ .nmesh = 1 + draw(seed, MAX_MESH),
			    .ndim = draw(seed, MAX_NDIM + 1) };
	for (size_t m = 0; m < p->nmesh; m++)
		p->mesh[m] = 1 + draw(seed, m ? 2 : 3);
	for (size_t d = 0; d < p->ndim; d++) {
		p->local[d] = 1 + draw(seed, 4);
		p->by[d] = (int64_t)draw(seed, (unsigned)p->nmesh + 1) - 1;
		if (p->by[d] >= 0 && used >> p->by[d] & 1)
			p->by[d] = -1;
		if (p->by[d] >= 0)
			used |= 1u << p->by[d];
	}
	n = places(p);
	for (size_t i = 0; i < n; i++)
		p->group[i] = (int64_t)i;
	for (size_t i = n; i-- > 1;) {
		size_t k = draw(seed, (unsigned)i + 1);
		int64_t other = p->group[k];

		p->group[k] = p->group[i];
		p->group[i] = other;
	}
}

static void random_meshes_are_joined(void **state)
{
	uint64_t seed = t_random_seed(20260101);

	(void)state;
	print_message("           seed %llu\n", (unsigned long long)seed);
	for (int round = 0; round < 150; round++) {
		struct plan p;
		struct t_dir tree;
		struct t_group g;

		draw_plan(&p, &seed);
		t_dir_make(&tree, "paddle_auto");
		put_all(&tree, &p);
		load(&g, &tree);
		check_whole(&g, &p);
		assert_int_equal(g.s.nobjects, 0);
		t_group_finish(&g);
		t_dir_remove(&tree);
	}
}

/* 2 x 2: columns cut by the second mesh dimension, so ranks 0 and 2 have copies. */
static const struct plan four = { .mesh = { 2, 2 },
				  .nmesh = 2,
				  .by = { -1, 1 },
				  .local = { 3, 2 },
				  .ndim = 2,
				  .group = { 0, 1, 2, 3 } };

static void copies_stand_in_for_missing_ranks(void **state)
{
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle_auto");
	put_all(&tree, &four);

	t_case("of copies the lowest rank's");
	load(&g, &tree);
	check_whole(&g, &four);
	assert_int_equal(t_sink_tensor(&g.s, "x")->npieces, 2);
	for (size_t i = 0; i < 2; i++)
		assert_string_equal(g.s.file[t_sink_tensor(&g.s, "x")->pieces[i].file],
				    i ? "w_dist1.pdparams" : "w_dist0.pdparams");
	t_group_finish(&g);

	t_case("a copy is enough");
	t_dir_delete(&tree, "w_dist1.pdparams");
	load(&g, &tree);
	check_whole(&g, &four);
	t_group_finish(&g);

	t_case("both copies");
	t_dir_delete(&tree, "w_dist3.pdparams");
	load(&g, &tree);
	check_broken(&g, "its part of rank 1 is missing: that rank's .pdparams is not here");
	t_group_finish(&g);

	t_case("there but damaged");
	t_dir_text(&tree, "w_dist1.pdparams", "what");
	load(&g, &tree);
	check_broken(&g, "its part of rank 1: w_dist1.pdparams: begins with 77 68");
	assert_non_null(strstr(t_sink_object(&g.s, "dist1")->error, "w_dist1.pdparams: "));
	t_group_finish(&g);

	t_case("all damaged");
	t_dir_text(&tree, "w_dist0.pdparams", "what");
	t_dir_text(&tree, "w_dist2.pdparams", "what");
	load(&g, &tree);
	assert_true(g.rc < 0);
	t_assert_says(&g.err, "w_dist0.pdparams: begins with 77 68");
	t_group_finish(&g);
	t_dir_remove(&tree);
}

static void attributes_of_one_rank_suffice(void **state)
{
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle_auto");
	put_all(&tree, &four);

	t_case("one rank's: the others say the same");
	t_dir_delete(&tree, "w_dist0.pdattr");
	t_dir_text(&tree, "w_dist1.pdattr", "\x80\x04torn");
	load(&g, &tree);
	check_whole(&g, &four);
	assert_non_null(
		strstr(t_sink_object(&g.s, "w_dist1.pdattr")->error, "w_dist1.pdattr: "));
	t_group_finish(&g);

	t_case("no rank's for this key");
	for (int r = 0; r < 4; r++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

		start(&b);
		push_attr(&b, "y", &four);
		put(&tree, &b, r, "pdattr");
	}
	load(&g, &tree);
	check_broken(&g, "several ranks hold it and no .pdattr says how it was cut");
	assert_string_equal(t_sink_tensor(&g.s, "y")->error,
			    "a .pdattr names it, no .pdparams here holds it");
	t_group_finish(&g);

	t_case("but one rank's own tensor is whole");
	for (int r = 1; r < 4; r++)
		t_dir_delete(&tree, r == 1   ? "w_dist1.pdparams"
				    : r == 2 ? "w_dist2.pdparams"
					     : "w_dist3.pdparams");
	load(&g, &tree);
	assert_null(t_sink_tensor(&g.s, "x")->error);
	assert_int_equal(t_sink_tensor(&g.s, "x")->shape[1], 2);
	t_group_finish(&g);
	t_dir_remove(&tree);
}

static void unlike_parts_are_refused(void **state)
{
	struct plan other = four;
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle_auto");
	put_all(&tree, &four);

	t_case("another shape");
	other.local[0] = 4;
	put_place(&tree, &other, 2);
	load(&g, &tree);
	check_broken(&g, "w_dist0.pdparams and w_dist2.pdparams have parts of different shape");
	t_group_finish(&g);

	t_case("another cut");
	other = four;
	other.by[0] = 0;
	put_place(&tree, &other, 2);
	load(&g, &tree);
	check_broken(&g, "attributes of ranks 0 and 2 disagree about how it was cut");
	t_group_finish(&g);

	t_case("other ranks");
	other = four;
	other.group[1] = 7;
	put_place(&tree, &other, 2);
	load(&g, &tree);
	check_broken(&g, "attributes of ranks 0 and 2 disagree about how it was cut");
	t_group_finish(&g);

	t_case("a part that cannot be read, of which there is a copy");
	put_place(&tree, &four, 2);
	{
		static const uint64_t dims[] = { 3, 2 };
		const struct t_pd_array torn = { "i4", '<', false, dims, 2, "1234", 4 };
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

		start(&b);
		t_pk_str(&b, "x");
		t_pd_array(&b, 4, &torn);
		put(&tree, &b, 0, "pdparams");
		load(&g, &tree);
		check_whole(&g, &four);
		t_group_finish(&g);
		put(&tree, &b, 2, "pdparams");
	}
	t_case("and no copy");
	load(&g, &tree);
	check_broken(&g, "its part of rank 0: w_dist0.pdparams: array needs 24 bytes");
	t_group_finish(&g);
	t_dir_remove(&tree);
}

/* ---- invalid attributes ---- */

/* clang-format off */
static const struct {
	const char *what;
	int64_t mesh[2];
	size_t nmesh;
	int64_t group[4];
	size_t ngroup;
	int64_t by[3];
	size_t nby;
	const char *says;
} wrong[] = {
	{ "no mesh", { 0 }, 0, { 0 }, 0, { -1, -1 }, 2, "process_shape of 0 dimensions" },
	{ "a mesh of nothing", { 2, 0 }, 2, { 0 }, 0, { -1, -1 }, 2, "process_shape is not a mesh of up to" },
	{ "a negative mesh", { -2, 2 }, 2, { 0 }, 1, { -1, -1 }, 2, "process_shape is not a mesh of up to" },
	{ "a mesh of all the world", { 1 << 20, 1 << 20 }, 2, { 0 }, 1, { -1, -1 }, 2, "process_shape is not a mesh of up to" },
	{ "too few ranks", { 2, 2 }, 2, { 0, 1 }, 2, { -1, -1 }, 2, "process_group has 2 ranks, process_shape 4 places" },
	{ "dimensions missing", { 1 }, 1, { 0 }, 1, { -1 }, 1, "dims_mapping is for 1 dimension, the tensor has 2" },
	{ "dimensions too many", { 1 }, 1, { 0 }, 1, { -1, -1, -1 }, 3, "dims_mapping is for 3 dimensions, the tensor has 2" },
	{ "a mesh dimension past the end", { 1 }, 1, { 0 }, 1, { -1, 1 }, 2, "dims_mapping of dimension 1 is not a dimension of process_shape" },
	{ "a mesh dimension below it", { 1 }, 1, { 0 }, 1, { -2, -1 }, 2, "dims_mapping of dimension 0 is not a dimension of process_shape" },
	{ "two dimensions by one", { 2 }, 1, { 0, 1 }, 2, { 0, 0 }, 2, "dims_mapping cuts two dimensions by one of the mesh" },
	{ "no rank in the group", { 1 }, 1, { -5 }, 1, { -1, -1 }, 2, "process_group holds something else than ranks" },
	{ "a rank that does not exist", { 1 }, 1, { 9 }, 1, { -1, -1 }, 2, "its part of rank 9 is missing" },
};
/* clang-format on */

static void wrong_attributes_are_reported(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(wrong); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct t_dir tree;
		struct t_group g;

		t_case(wrong[i].what);
		t_dir_make(&tree, "paddle_auto");
		start(&b);
		t_pk_str(&b, "x");
		push_part(&b, &four, 0);
		put(&tree, &b, 0, "pdparams");
		start(&b);
		t_pk_str(&b, "x");
		t_pk_dict(&b);
		t_pk_mark(&b);
		push_ints(&b, "process_shape", wrong[i].mesh, wrong[i].nmesh);
		push_ints(&b, "process_group", wrong[i].group, wrong[i].ngroup);
		push_ints(&b, "dims_mapping", wrong[i].by, wrong[i].nby);
		t_pk_setitems(&b);
		put(&tree, &b, 0, "pdattr");
		load(&g, &tree);
		check_broken(&g, wrong[i].says);
		t_group_finish(&g);
		t_dir_remove(&tree);
	}
}

static void attributes_of_other_types_are_survived(void **state)
{
	static const char *const values[] = { "\x80\x02}(X\1\0\0\0x]u.",
					      "\x80\x02}(X\1\0\0\0xNu.", "\x80\x02]." };
	struct t_dir tree;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(values); i++) {
		struct t_group g;

		t_dir_make(&tree, "paddle_auto");
		put_place(&tree, &four, 0);
		t_dir_put(&tree, "w_dist0.pdattr", values[i], i == 2 ? 4 : 13);
		load(&g, &tree);
		if (i < 2)
			check_broken(&g, "process_shape of 0 dimensions");
		else
			assert_null(t_sink_tensor(&g.s, "x")->error);
		t_group_finish(&g);
		t_dir_remove(&tree);
	}
}

/* What should not be there: objects are kept apart by rank, tensors are whole. */
static void foreign_values_are_kept_apart(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle_auto");
	put_all(&tree, &four);
	start(&b);
	t_pk_str(&b, "moment");
	t_pd_row(&b, 4, "u1", "mm", 2, 1);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_dir_put(&tree, "w.pdopt", b.p, b.n);
	start(&b);
	t_pk_str(&b, "x");
	push_part(&b, &four, 0);
	t_pk_str(&b, "step");
	t_pk_int(&b, 5);
	put(&tree, &b, 0, "pdparams");
	load(&g, &tree);
	check_whole(&g, &four);
	assert_string_equal(t_sink_object(&g.s, "dist0.pdparams.step")->json, "5");
	assert_int_equal(t_sink_tensor(&g.s, "moment")->shape[0], 2);
	assert_null(t_sink_tensor(&g.s, "moment")->error);
	t_group_finish(&g);
	t_dir_remove(&tree);
}

static void failures_of_the_sink_are_returned(void **state)
{
	struct t_dir tree;
	struct t_group g;
	size_t at = 1;

	(void)state;
	t_dir_make(&tree, "paddle_auto");
	put_all(&tree, &four);
	t_dir_text(&tree, "w_dist3.pdparams", "what");
	for (;; at++) {
		t_group_load(&g, tree.root, &dcp_format_paddle_plain, NULL, at);
		if (g.rc == 0)
			break;
		assert_int_equal(g.rc, -ENOSPC);
		t_group_finish(&g);
	}
	check_whole(&g, &four);
	assert_true(at > 8);
	t_group_finish(&g);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_meshes_are_joined),
		cmocka_unit_test(copies_stand_in_for_missing_ranks),
		cmocka_unit_test(attributes_of_one_rank_suffice),
		cmocka_unit_test(unlike_parts_are_refused),
		cmocka_unit_test(wrong_attributes_are_reported),
		cmocka_unit_test(attributes_of_other_types_are_survived),
		cmocka_unit_test(foreign_values_are_kept_apart),
		cmocka_unit_test(failures_of_the_sink_are_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
