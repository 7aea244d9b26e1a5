/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random meshes and placements: what ranks hold, cut by lists of indices, is the whole again.
 */
#include "tests/unit/t.h"

#include "core/base/err.h"
#include "tests/unit/t/format/items.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/random.h"

static uint64_t seed = 1;

static int64_t rnd(int64_t below)
{
	return (int64_t)t_random(&seed, (uint64_t)below);
}

enum { NDIM = 3, SIDE = 7, NMESH = 3, WORLD = 12 };

/* Which indices of one dimension a rank holds, in their order. */
struct held {
	int64_t i[SIDE * 2];
	int64_t n;
};

static struct held chunk(const struct held *h, int64_t n, int64_t at)
{
	int64_t each = (h->n + n - 1) / n;
	struct held out = { .n = 0 };

	for (int64_t k = at * each; k < (at + 1) * each && k < h->n; k++)
		out.i[out.n++] = h->i[k];
	return out;
}

struct layout {
	int64_t shape[NDIM], mesh[NMESH], ranks[WORLD], world;
	size_t ndim, nmesh;
	char text[NMESH][16];
	const char *placed[NMESH];
	int64_t dim[NMESH];     /* -1: replicate */
	bool last_first[NMESH]; /* strided: cut after those behind it */
	int64_t split;          /* of the first, strided by itself; 0: it is not */
};

/* FSDP over tensor parallel: the first of two cuts of one dimension may be the strided one. */
static void random_layout(struct layout *l)
{
	l->split = 0;
	l->ndim = 1 + (size_t)rnd(NDIM);
	l->nmesh = 1 + (size_t)rnd(NMESH);
	l->world = 1;
	for (size_t k = 0; k < l->ndim; k++)
		l->shape[k] = rnd(SIDE + 1);
	for (size_t i = 0; i < l->nmesh; i++) {
		l->mesh[i] = 1 + rnd(l->world * 3 > WORLD ? 1 : 3);
		l->world *= l->mesh[i];
		l->dim[i] = rnd(3) ? rnd((int64_t)l->ndim) : -1;
		l->last_first[i] = false;
		l->placed[i] = l->text[i];
	}
	for (size_t i = 0; i < l->nmesh; i++) {
		int64_t later = 1;

		for (size_t k = i + 1; k < l->nmesh; k++)
			later *= l->dim[i] >= 0 && l->dim[k] == l->dim[i] ? l->mesh[k] : 1;
		l->last_first[i] = later > 1 && rnd(2);
		if (l->dim[i] < 0)
			snprintf(l->text[i], sizeof(l->text[i]), "R");
		else if (l->last_first[i])
			snprintf(l->text[i], sizeof(l->text[i]), "T%d/%d", (int)l->dim[i],
				 (int)later);
		else
			snprintf(l->text[i], sizeof(l->text[i]), "S%d", (int)l->dim[i]);
	}
	for (int64_t r = 0; r < l->world; r++) {
		int64_t other = rnd(r + 1);

		l->ranks[r] = r;
		l->ranks[r] = l->ranks[other];
		l->ranks[other] = r;
	}
}

/* Each of @split parts is cut. */
static struct held strided(const struct held *h, int64_t split, int64_t n, int64_t at)
{
	struct held out = { .n = 0 };

	for (int64_t s = 0; s < split; s++) {
		struct held part = chunk(h, split, s);

		part = chunk(&part, n, at);
		memcpy(out.i + out.n, part.i, (size_t)part.n * sizeof(*part.i));
		out.n += part.n;
	}
	return out;
}

static void hold(const struct layout *l, int64_t place, struct held held[NDIM])
{
	int64_t at[NMESH];

	for (size_t i = l->nmesh; i-- > 0; place /= l->mesh[i])
		at[i] = place % l->mesh[i];
	for (size_t k = 0; k < l->ndim; k++) {
		held[k].n = l->shape[k];
		for (int64_t i = 0; i < l->shape[k]; i++)
			held[k].i[i] = i;
		for (size_t i = 0; i < l->nmesh; i++)
			if (l->dim[i] == (int64_t)k && !l->last_first[i])
				held[k] =
					i == 0 && l->split
						? strided(&held[k], l->split, l->mesh[i], at[i])
						: chunk(&held[k], l->mesh[i], at[i]);
		for (size_t i = l->nmesh; i-- > 0;)
			if (l->dim[i] == (int64_t)k && l->last_first[i])
				held[k] = chunk(&held[k], l->mesh[i], at[i]);
	}
}

/* The local tensor of the rank at @place of the mesh: its elements are their own indices. */
static void local_of(const struct layout *l, int64_t place, float *data, int64_t *shape)
{
	struct held held[NDIM];
	size_t n = 1;

	hold(l, place, held);
	for (size_t k = 0; k < l->ndim; k++) {
		shape[k] = held[k].n;
		n *= (size_t)held[k].n;
	}
	for (size_t e = 0; e < n; e++) {
		int64_t rest = (int64_t)e, index = 0, step = 1;

		for (size_t k = l->ndim; k-- > 0; rest /= shape[k]) {
			index += held[k].i[rest % shape[k]] * step;
			step *= l->shape[k];
		}
		data[e] = (float)index;
	}
}

static void write_ranks(const struct t_dir *tree, const struct layout *l, bool safetensors)
{
	static float data[SIDE * SIDE * SIDE];
	int64_t shape[NDIM];
	char name[40];

	for (int64_t place = 0; place < l->world; place++) {
		struct t_titem_local t = { "w", data, shape, l->ndim };

		local_of(l, place, data, shape);
		snprintf(name, sizeof(name), "m_%d.%s", (int)l->ranks[place],
			 safetensors ? "safetensors" : "pt");
		if (safetensors)
			t_titem_put_safetensors(tree, name, &t, 1);
		else
			t_titem_put_torch(tree, name, &t, 1);
	}
}

static void check_random(const struct t_dir *tree, const struct layout *l, bool safetensors,
			 bool flat)
{
	struct t_titem tensor = { .path = "[\"w\"]",
				  .shape = l->shape,
				  .ndim = l->ndim,
				  .mesh = l->mesh,
				  .placed = l->placed,
				  .nmesh = l->nmesh,
				  .ranks = l->ranks };
	struct t_titem_file file[WORLD];
	char path[WORLD][40];
	struct t_titem_meta m = { "m", flat, l->world, &tensor, 1, file, (size_t)l->world };
	const struct dcp_tensor *t;
	struct t_titem_loaded got;
	struct dcp_err err = { 0 };
	float *bytes;
	size_t n;

	for (int64_t r = 0; r < l->world; r++) {
		snprintf(path[r], sizeof(path[r]), "m_%d.safetensors", (int)r);
		file[r] = (struct t_titem_file){ r, safetensors ? path[r] : NULL,
						 "SafetensorsSerialization" };
	}
	t_titem_put_meta(tree, &m);
	write_ranks(tree, l, safetensors);
	t_titem_load(&got, tree);
	if (got.rc < 0)
		fail_msg("%s", got.err.msg);
	t = t_sink_tensor(&got.s, "m.w");
	t_titem_sound(&got, "m.w");
	assert_int_equal(got.s.ntensors, 1);
	assert_int_equal(got.s.nobjects, 0);
	assert_string_equal(t->path[0], "m");
	assert_string_equal(t->path[1], "w");
	for (size_t k = 0; k < l->ndim; k++)
		assert_int_equal(t->shape[k], l->shape[k]);
	bytes = (float *)(void *)t_sink_read(&got.s, t, &n, &err);
	assert_non_null(bytes);
	for (size_t i = 0; i < n / sizeof(float); i++)
		assert_true(bytes[i] == (float)i);
	free(bytes);
	t_titem_unload(&got);
	for (int64_t r = 0; r < l->world; r++) {
		char name[40];

		snprintf(name, sizeof(name), "m_%d.%s", (int)r,
			 safetensors ? "safetensors" : "pt");
		t_dir_delete(tree, name);
	}
}

static void random_cuts_are_placed(void **state)
{
	struct t_dir tree;

	(void)state;
	t_dir_make(&tree, "torch_items");
	for (int round = 0; round < 400; round++) {
		struct layout l;

		random_layout(&l);
		check_random(&tree, &l, round & 1, round & 2);
	}
	t_dir_remove(&tree);
}

/* Of rows, and of columns: a rank holds two boxes, which lie between each other in its file. */
static void ranks_may_hold_several_boxes(void **state)
{
	struct t_dir tree;

	(void)state;
	t_dir_make(&tree, "torch_items");
	for (int i = 0; i < 4; i++) {
		struct layout l = { .shape = { 6, 6 },
				    .mesh = { 2 },
				    .ranks = { 0, 1 },
				    .world = 2,
				    .ndim = 2,
				    .nmesh = 1,
				    .dim = { i / 2 },
				    .split = 3 };

		snprintf(l.text[0], sizeof(l.text[0]), "T%d/3", i / 2);
		l.placed[0] = l.text[0];
		check_random(&tree, &l, i & 1, false);
	}
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(random_cuts_are_placed),
					    cmocka_unit_test(ranks_may_hold_several_boxes) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
