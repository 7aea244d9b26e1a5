/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/cleanup.h"
#include "core/parse/source.h"
#include "core/parse/torch.h"
#include "tests/unit/t_golden.h"
#include "tests/unit/t_source.h"
#include "tests/unit/t_torch.h"
#include "tests/unit/t_zip.h"

/* ---- tensors of real files against what the framework loaded ---- */

static void check_tensor(const struct dcp_source *src, const struct dcp_torch *t,
			 struct t_leaves *l, const json_t *entry)
{
	const json_t *shape = json_object_get(entry, "shape");
	struct t_leaf *leaf =
		t_leaves_find(l, json_string_value(json_object_get(entry, "key")));
	struct dcp_torch_tensor x;
	struct dcp_err err = { 0 };
	char hex[65];

	print_message("             %s\n", json_string_value(json_object_get(entry, "key")));
	assert_non_null(leaf);
	assert_true(leaf->is_tensor);
	if (dcp_torch_tensor(t, leaf->value, &x, &err) != 1)
		fail_msg("%s", err.msg);
	assert_string_equal(x.dtype_name, json_string_value(json_object_get(entry, "dtype")));
	assert_int_equal(x.ndim, json_array_size(shape));
	for (uint32_t d = 0; d < x.ndim; d++)
		assert_true((double)x.shape[d] == json_number_value(json_array_get(shape, d)));
	t_golden_digest(src, &x, hex);
	assert_string_equal(hex, json_string_value(json_object_get(entry, "sha256")));
}

static void check_aliases(const struct dcp_torch *t, struct t_leaves *l, const json_t *keys)
{
	struct dcp_torch_tensor first, x;
	json_t *key;
	size_t i;

	json_array_foreach(keys, i, key)
	{
		struct t_leaf *leaf = t_leaves_find(l, json_string_value(key));

		assert_non_null(leaf);
		assert_int_equal(dcp_torch_tensor(t, leaf->value, &x, NULL), 1);
		if (i == 0)
			first = x;
		assert_int_equal(x.off, first.off);
		assert_int_equal(x.storage_off, first.storage_off);
	}
}

static void check_version(const json_t *v)
{
	const char *name = json_string_value(json_object_get(v, "name"));
	const char *expect = json_string_value(json_object_get(v, "expect"));
	dcp_auto_free char *file = NULL;
	struct dcp_torch *t = NULL;
	struct t_leaves leaves;
	struct dcp_source src;
	struct dcp_err err = { 0 };
	char path[256];
	json_t *entry;
	size_t n, i;
	int r;

	t_case(name);
	snprintf(path, sizeof(path), "tests/golden/torch-save/ckpt/%s", name);
	file = t_file(path, &n);
	src = dcp_source_mem(file, n);
	r = dcp_torch_open(&src, 0, &t, &err);
	if (expect && strncmp(expect, "refuse", 6) == 0) {
		assert_int_equal(r, -ENOTSUP);
		return;
	}
	if (r < 0)
		fail_msg("%s", err.msg);
	t_leaves_collect(&leaves, t, true);
	if (strcmp(name, "conj_neg.pt") == 0) {
		for (i = 0; i < leaves.n; i++) {
			struct dcp_torch_tensor x;

			assert_int_equal(dcp_torch_tensor(t, leaves.leaf[i].value, &x, &err),
					 -ENOTSUP);
			t_assert_says(&err, i == 0 ? "conjugate view" : "negative view");
		}
	} else {
		json_array_foreach(json_object_get(v, "tensors"), i, entry)
			check_tensor(&src, t, &leaves, entry);
		json_array_foreach(json_object_get(v, "aliases"), i, entry)
			check_aliases(t, &leaves, entry);
	}
	t_leaves_free(&leaves);
	dcp_torch_close(t);
}

static void golden_tensors(void **state)
{
	json_t *m = t_golden_manifest("torch-save"), *v;
	size_t i;

	(void)state;
	json_array_foreach(json_object_get(m, "versions"), i, v) check_version(v);
	json_decref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_tensors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
