/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are the sum or the mean of what ranks hold: all of it, a part, a term that cannot be
 * read, that changes, and one whose rank is of another size.
 * covers: locate
 */
#include "tests/unit/t.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t/format/ds.h"

enum { WIDTH = 5000, TP = 3 }; /* more than is added up at once */

static const struct t_ds_param local[] = {
	{ "sequential.2.attention.query_key_value.weight", { WIDTH, 1 }, 2, 0, .same = false },
	{ "sequential.2.mlp.linear2.bias", { WIDTH }, 1, 0, .same = false },
	{ "sequential.2.norm.weight", { WIDTH }, 1, 0, .same = false },
};

struct world {
	struct t_dir tree;
	struct dcp_scan scan;
	struct dcp_version *v;
};

static void begin(struct world *w)
{
	struct dcp_store_opts opts = { 0 };
	struct dcp_err err = { 0 };

	t_dir_make(&w->tree, "test_sum");
	t_ds_write_neox(&w->tree, "global_step1/", local, DCP_LEN(local), TP, WIDTH);
	t_dir_put(&w->tree, "global_step1/configs/a.yml", "gpt_j_residual: true\n", 21);
	assert_int_equal(dcp_scan(w->tree.root, &w->scan, &err), 0);
	assert_int_equal(w->scan.n, 1);
	if (dcp_version_open(w->tree.root, &w->scan.found[0], &opts, &w->v, &err) < 0)
		fail_msg("%s", err.msg);
}

static void end(struct world *w)
{
	dcp_version_close(w->v);
	dcp_scan_finish(&w->scan);
	t_dir_remove(&w->tree);
}

/* Row @key, opened: all of it, or [lo, lo + n). */
static int open_row(const struct world *w, const char *key, uint64_t lo, uint64_t n,
		    struct dcp_view **view, struct dcp_err *err)
{
	struct dcp_span span = { 0, lo, n };
	struct dcp_axis axis = { &span, 1, n };
	struct dcp_cut cut = { .ndim = 1, .axis = &axis };
	struct dcp_index_scan *s;
	struct dcp_row row;
	int rc = -ENOENT;

	assert_int_equal(dcp_index_scan(dcp_version_index(w->v), DCP_ROW_TENSOR, 0, true, &s),
			 0);
	while (rc == -ENOENT && dcp_index_scan_next(s, &row) == 1)
		if (strcmp(row.key, key) == 0)
			rc = dcp_view_open(w->v, row.id, DCP_AS_RAW, n ? &cut : NULL, view,
					   err);
	dcp_index_scan_end(s);
	return rc;
}

static float want_at(const char *name, uint64_t i, bool mean)
{
	float sum = t_ds_value("module", name, i);

	for (int k = 1; k < TP; k++)
		sum += t_ds_value("module", name, i) + T_DS_RANK * (float)k;
	return mean ? sum / TP : sum;
}

static void check(const struct world *w, const char *name, bool mean, uint64_t lo, uint64_t n)
{
	static float got[WIDTH];
	struct dcp_view *view;
	struct dcp_err err = { 0 };
	char key[80];

	snprintf(key, sizeof(key), "module.%s", name);
	if (open_row(w, key, lo, n == WIDTH ? 0 : n, &view, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(dcp_view_size(view), n * sizeof(float));
	assert_int_equal(dcp_view_read(view, 0, got, n * sizeof(float)), 0);
	for (uint64_t i = 0; i < n; i++) {
		float want = want_at(name, lo + i, mean);

		assert_memory_equal(&got[i], &want, sizeof(want));
	}
	dcp_view_close(view);
}

static void terms_are_added_up(void **state)
{
	struct world w;

	(void)state;
	begin(&w);
	check(&w, local[1].name, false, 0, WIDTH);
	check(&w, local[2].name, true, 0, WIDTH);
	check(&w, local[1].name, false, 4090, 17);
	end(&w);
}

/* The last rank's term counts like the first's. */
static void a_term_is_lost(void **state)
{
	char key[80], file[] = "global_step1/mp_rank_02_model_states.pt";
	struct dcp_view *view;
	struct dcp_err err = { 0 };
	struct world w;

	(void)state;
	snprintf(key, sizeof(key), "module.%s", local[1].name);
	begin(&w);
	assert_int_equal(truncate(t_dir_path(&w.tree, file), 100), 0);
	if (open_row(&w, key, 0, 0, &view, &err) >= 0)
		fail_msg("a sum without a term");
	t_assert_says(&err, "mp_rank_02_model_states.pt");
	end(&w);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(terms_are_added_up),
		cmocka_unit_test(a_term_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
