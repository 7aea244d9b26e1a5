/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/cleanup.h"
#include "core/parse/source.h"
#include "tests/unit/t_golden.h"
#include "tests/unit/t_source.h"

/* ---- objects of real files against what the framework loaded ---- */

/* Is the JSON that was @written what Python's value was @meant? {"$dict"} counts as its object.
 */
static bool same_json(const json_t *meant, const json_t *written)
{
	const json_t *pairs = json_object_get(written, "$dict");
	const char *key;
	json_t *value;
	size_t i;

	if (json_is_array(meant)) {
		if (json_array_size(meant) != json_array_size(written))
			return false;
		json_array_foreach(
			meant, i,
			value) if (!same_json(value, json_array_get(written, i))) return false;
		return true;
	}
	if (!json_is_object(meant))
		return json_equal(meant, written);
	if (!json_is_object(written))
		return false;
	if (!pairs && json_object_size(meant) != json_object_size(written))
		return false;
	json_object_foreach((json_t *)(uintptr_t)meant, key, value)
	{
		const json_t *found = pairs ? NULL : json_object_get(written, key);

		for (i = 0; i < json_array_size(pairs) && !found; i++) {
			const json_t *pair = json_array_get(pairs, i);
			char *k = json_dumps(json_array_get(pair, 0), JSON_ENCODE_ANY);
			size_t n = strlen(k);

			if (n > 2 && strcmp(k + n - 2, ".0") == 0)
				k[n - 2] = '\0'; /* the test reads integers as reals */
			if (strcmp(k, key) == 0)
				found = json_array_get(pair, 1);
			free(k);
		}
		if (!found || !same_json(value, found))
			return false;
	}
	return true;
}

static void check_json(const json_t *entry, const json_t *written)
{
	const char *base64 = json_string_value(json_object_get(entry, "base64"));
	const json_t *meant = json_object_get(entry, "json");

	if (base64)
		assert_string_equal(json_string_value(json_object_get(written, "$bytes")),
				    base64);
	else if (!json_is_null(meant) ||
		 !strcmp(json_string_value(json_object_get(entry, "type")), "NoneType"))
		assert_true(same_json(meant, written));
}

/*
 * The manifests open tuples that hold tensors; dcpfs shows those whole. So an entry that is
 * no leaf is looked for in the JSON of the longest leaf that its key begins with.
 */
static const json_t *inside_leaf(struct t_leaves *l, const char *key, json_t **owner)
{
	struct t_leaf *best = NULL;
	const json_t *v;
	char *rest, *part, *save = NULL;

	for (size_t i = 0; i < l->n; i++) {
		size_t n = strlen(l->leaf[i].key);

		if (!l->leaf[i].is_tensor && strncmp(l->leaf[i].key, key, n) == 0 &&
		    key[n] == '.' && (!best || n > strlen(best->key)))
			best = &l->leaf[i];
	}
	if (!best)
		return NULL;
	best->used = true;
	*owner = json_loads(best->json, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
	v = *owner;
	rest = strdup(key + strlen(best->key) + 1);
	for (part = strtok_r(rest, ".", &save); part; part = strtok_r(NULL, ".", &save))
		v = json_is_array(v) ? json_array_get(v, strtoul(part, NULL, 10))
				     : json_object_get(v, part);
	free(rest);
	return v;
}

static void check_object(struct t_leaves *l, const json_t *entry)
{
	const char *key = json_string_value(json_object_get(entry, "key"));
	const char *type = json_string_value(json_object_get(entry, "type"));
	struct t_leaf *leaf = t_leaves_find(l, key);
	json_t *owner = NULL;
	const json_t *written;

	print_message("             %s\n", key);
	if (leaf) {
		assert_non_null(leaf->json);
		leaf->used = true;
		/* A tensor of a special kind has that in brackets behind its type. */
		assert_memory_equal(leaf->type, type, strcspn(type, " "));
		assert_int_equal(strlen(leaf->type), strcspn(type, " "));
		owner = json_loads(leaf->json, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
		written = owner;
	} else {
		written = inside_leaf(l, key, &owner);
	}
	assert_non_null(written);
	check_json(entry, written);
	json_decref(owner);
}

static void check_version(const char *dir, const json_t *v)
{
	const char *name = json_string_value(json_object_get(v, "name"));
	dcp_auto_free char *file = NULL;
	struct dcp_torch *t = NULL;
	struct t_leaves leaves;
	struct dcp_source src;
	struct dcp_err err = { 0 };
	char path[256];
	json_t *entry;
	size_t n, i;

	t_case(name);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", dir, name);
	file = t_file(path, &n);
	src = dcp_source_mem(file, n);
	if (dcp_torch_open(&src, 0, &t, &err) < 0)
		fail_msg("%s", err.msg);
	t_leaves_collect(&leaves, t, true);
	json_array_foreach(json_object_get(v, "objects"), i, entry)
		check_object(&leaves, entry);
	json_array_foreach(json_object_get(v, "tensors"), i, entry)
	{
		struct t_leaf *leaf = t_leaves_find(
			&leaves, json_string_value(json_object_get(entry, "key")));

		assert_non_null(leaf);
		assert_true(leaf->is_tensor);
		leaf->used = true;
	}
	for (i = 0; i < leaves.n; i++)
		if (!leaves.leaf[i].used && !leaves.leaf[i].nested)
			fail_msg("\"%s\" is not in the manifest", leaves.leaf[i].key);
	t_leaves_free(&leaves);
	dcp_torch_close(t);
}

static void golden_objects(void **state)
{
	json_t *m = t_golden_manifest("torch-save"), *v;
	size_t i;

	(void)state;
	json_array_foreach(json_object_get(m, "versions"), i, v)
	{
		const char *expect = json_string_value(json_object_get(v, "expect"));

		if (!expect || strncmp(expect, "refuse", 6) != 0)
			check_version("torch-save", v);
	}
	json_decref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_objects),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
