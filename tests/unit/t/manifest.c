/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/manifest.h"

#include <jansson.h>

#include "core/base/buf.h"
#include "tests/unit/t.h"
#include "tests/unit/t/sha256.h"
#include "tests/unit/t/sink.h"

/* Composer's keys are written as paths; in dcpfs the same components are joined with '.'. */
static void join_paths(json_t *list)
{
	json_t *v, *c;
	size_t i, k;

	json_array_foreach(list, i, v)
	{
		struct dcp_buf b = DCP_BUF_INIT;

		json_array_foreach(json_object_get(v, "path"), k, c)
			dcp_buf_printf(&b, "%s%s", k ? "." : "", json_string_value(c));
		json_object_set_new(v, "key", json_string(b.p));
		dcp_buf_finish(&b);
	}
}

static json_t *load_manifest(const char *folder)
{
	char path[256];
	json_t *root, *version;
	json_error_t why;
	size_t i;

	snprintf(path, sizeof(path), "tests/golden/%s/manifest.json", folder);
	root = json_load_file(path, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &why);
	if (!root)
		fail_msg("%s:%d: %s", path, why.line, why.text);
	if (strcmp(json_string_value(json_object_get(root, "format")), "composer") == 0)
		json_array_foreach(json_object_get(root, "versions"), i, version)
		{
			join_paths(json_object_get(version, "tensors"));
			join_paths(json_object_get(version, "objects"));
		}
	return root;
}

static const char *get_text(const json_t *v, const char *name)
{
	return json_string_value(json_object_get(v, name));
}

/* The key as dcpfs holds it: a NUL is C0 80. Freed by the caller. */
static char *key_of(const json_t *v, const char *prefix)
{
	struct dcp_buf b = DCP_BUF_INIT;
	const char *p = json_string_value(v);

	dcp_buf_str(&b, prefix);
	for (size_t i = 0; i < json_string_length(v); i++)
		dcp_buf_add(&b, p[i] ? &p[i] : "\xc0\x80", p[i] ? 1 : 2);
	dcp_buf_add(&b, "", 0);
	return dcp_buf_take(&b);
}

/* The key of an entry: the components of its path, where those are joined by something else. */
static char *entry_key(const json_t *v, const char *prefix)
{
	const json_t *path = json_object_get(v, "path"), *c;
	struct dcp_buf b = DCP_BUF_INIT;
	size_t i;

	if (!strchr(get_text(v, "key"), '/') || json_array_size(path) < 2)
		return key_of(json_object_get(v, "key"), prefix);
	dcp_buf_str(&b, prefix);
	json_array_foreach(path, i, c)
	{
		dcp_buf_printf(&b, "%s%s", i ? "." : "", json_string_value(c));
	}
	return dcp_buf_take(&b);
}

/* Megatron's flattened tensors: as they are, beside how they are stored. */
static const json_t *truth_of(const json_t *tensor)
{
	const json_t *own = json_object_get(tensor, "megatron");

	return own ? own : tensor;
}

static void check_path(const json_t *want, const char *const *path, size_t n, const char *key,
		       size_t skip)
{
	if (n != json_array_size(want) + skip)
		fail_msg("%s: path of %zu components, expected %zu", key, n,
			 json_array_size(want) + skip);
	for (size_t i = skip; i < n; i++) {
		char *c = key_of(json_array_get(want, i - skip), "");

		assert_string_equal(path[i], c);
		free(c);
	}
}

static void check_tensor(const struct t_sink *s, const json_t *want, const char *prefix)
{
	char *key = entry_key(want, prefix), hex[65], *bytes;
	const json_t *shape = json_object_get(truth_of(want), "shape");
	const struct dcp_tensor *t = t_sink_tensor(s, key);
	struct dcp_err err = { 0 };
	size_t n;

	if (!t)
		fail_msg("%s was not told", key);
	check_path(json_object_get(want, "path"), t->path, t->npath, key, prefix[0] ? 1 : 0);
	assert_string_equal(t->dtype_name, get_text(want, "dtype"));
	assert_int_equal(t->ndim, json_array_size(shape));
	for (uint32_t k = 0; k < t->ndim; k++)
		assert_true((double)t->shape[k] == json_number_value(json_array_get(shape, k)));
	bytes = t_sink_read(s, t, &n, &err);
	if (!bytes)
		fail_msg("%s: %s", key, err.msg);
	assert_true((double)n == json_number_value(json_object_get(want, "nbytes")));
	t_sha256(bytes, n, hex);
	if (strcmp(hex, get_text(truth_of(want), "sha256")) != 0)
		fail_msg("%s: other bytes than the framework reads", key);
	free(bytes);
	free(key);
}

/* Real and integer spellings of one number are the same here. */
static json_t *parse_json(const char *json, const char *key)
{
	json_error_t why;
	json_t *v = json_loads(json, JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY | JSON_ALLOW_NUL,
			       &why);

	if (!v)
		fail_msg("%s: not JSON (%s): %.200s", key, why.text, json);
	return v;
}

/* A tensor in a value is its shape there, and its key here. */
static bool same_value(const json_t *got, const json_t *want)
{
	const char *name;
	json_t *v;
	size_t i;

	if (json_is_array(want) && json_array_size(got) == json_array_size(want)) {
		json_array_foreach(want, i,
				   v) if (!same_value(json_array_get(got, i), v)) return false;
		return true;
	}
	if (!json_is_object(want) || json_object_size(got) != json_object_size(want))
		return json_equal(got, want);
	if (json_is_array(json_object_get(want, "tensor")))
		return json_is_string(json_object_get(got, "$tensor"));
	json_object_foreach((json_t *)(uintptr_t)want, name,
			    v) if (!same_value(json_object_get(got, name), v)) return false;
	return true;
}

static void check_json(const struct dcp_object *o, const json_t *want)
{
	const json_t *value = json_object_get(want, "json");
	const char *base64 = get_text(want, "base64");
	json_t *got = parse_json(o->json, o->key);

	/* "<module.Class>": it has no form in JSON */
	if (json_is_string(value) && strchr(json_string_value(value), '<') &&
	    strstr(json_string_value(value), o->type))
		value = NULL;
	if (base64) {
		assert_true(strstr(o->json, base64) != NULL);
	} else if (value && (!json_is_null(value) || strcmp(o->type, "NoneType") == 0)) {
		if (!same_value(got, value)) {
			char *spelled = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

			fail_msg("%s: %.300s, expected %.300s", o->key, o->json, spelled);
		}
	}
	json_decref(got);
}

static void check_object(const struct t_sink *s, const json_t *want, const char *prefix)
{
	char *key = entry_key(want, prefix);
	const struct dcp_object *o = t_sink_object(s, key);

	if (!o)
		fail_msg("%s was not told", key);
	if (o->error)
		fail_msg("%s: %s", key, o->error);
	check_path(json_object_get(want, "path"), o->path, o->npath, key, prefix[0] ? 1 : 0);
	assert_string_equal(o->type, get_text(want, "type"));
	check_json(o, want);
	free(key);
}

/* A key in a plain list of keys; with @inside, or of something inside it. */
static bool is_listed(const json_t *list, const char *key, bool inside)
{
	const json_t *v;
	size_t i;

	json_array_foreach(list, i, v)
	{
		size_t n = strlen(json_string_value(v));

		if (strncmp(key, json_string_value(v), n) == 0 &&
		    (!key[n] || (inside && key[n] == '.')))
			return true;
	}
	return false;
}

static bool is_known(const json_t *list, const char *key, const char *prefix, bool inside)
{
	const json_t *v;
	size_t i;

	json_array_foreach(list, i, v)
	{
		char *k = entry_key(v, prefix);
		size_t n = strlen(k);
		bool same = strncmp(key, k, n) == 0 &&
			    (!key[n] || (inside && (!n || key[n] == '.')));

		free(k);
		if (same)
			return true;
	}
	return false;
}

static bool lies_in(const char *part, const char *whole)
{
	size_t n = strlen(whole);

	return strncmp(part, whole, n) == 0 && part[n] == '/';
}

/* "optimizer." of "run/optimizer.pt" in "run": what its keys have in front there. */
static void put_prefix(char *out, size_t n, const char *part, const char *whole)
{
	const char *file = lies_in(part, whole) ? part + strlen(whole) + 1 : "";

	snprintf(out, n, "%.*s%s", (int)strcspn(file, "."), file, *file ? "." : "");
}

/* Is @key of what lies beside version @name in its directory? The manifest has "run" and
 * "run/optimizer.pt", which are shown as one. */
static bool is_of_part(const json_t *root, const char *name, const char *key)
{
	const json_t *v;
	size_t i;

	json_array_foreach(json_object_get(root, "versions"), i, v)
	{
		const char *other = get_text(v, "name");
		char prefix[256];

		put_prefix(prefix, sizeof(prefix), other, name);
		if ((lies_in(other, name) || lies_in(name, other)) &&
		    (is_known(json_object_get(v, "tensors"), key, prefix, false) ||
		     is_known(json_object_get(v, "objects"), key, prefix, true)))
			return true;
	}
	return false;
}

static void check_nothing_else(const struct t_sink *s, const json_t *root,
			       const json_t *version, const char *prefix)
{
	const char *name = get_text(version, "name");
	const json_t *tensors = json_object_get(version, "tensors");
	const json_t *objects = json_object_get(version, "objects");
	const json_t *refused = json_object_get(version, "refused");
	const json_t *sharded = json_object_get(version, "sharded_objects");
	/* One value is all there is: what lies in it has no name in front. */
	bool alone = json_array_size(objects) == 1 && json_array_size(tensors) == 0;
	size_t n = strlen(prefix);

	if (!objects)
		return; /* the manifest tells of the model only */
	for (size_t i = 0; i < s->ntensors; i++)
		if (!alone && strncmp(s->tensor[i].key, prefix, n) == 0 &&
		    !is_known(tensors, s->tensor[i].key, prefix, false) &&
		    !is_known(objects, s->tensor[i].key, prefix, true) &&
		    !is_of_part(root, name, s->tensor[i].key) &&
		    !is_listed(refused, s->tensor[i].key, false) &&
		    !is_listed(sharded, s->tensor[i].key, true))
			fail_msg("unexpected tensor %s", s->tensor[i].key);
	for (size_t i = 0; i < s->nobjects; i++)
		if (strncmp(s->object[i].key, prefix, n) == 0 &&
		    !is_known(objects, s->object[i].key, prefix, false) &&
		    !is_of_part(root, name, s->object[i].key) &&
		    !is_listed(sharded, s->object[i].key, false))
			fail_msg("unexpected object %s", s->object[i].key);
}

unsigned t_manifest_check(const struct t_sink *s, const char *folder, const char *name,
			  const char *prefix)
{
	json_t *root = load_manifest(folder);
	const json_t *version, *v;
	unsigned found = 0;
	size_t i, j;

	json_array_foreach(json_object_get(root, "versions"), i, version)
	{
		if (strcmp(get_text(version, "name"), name) != 0)
			continue;
		json_array_foreach(json_object_get(version, "tensors"), j, v)
		{
			check_tensor(s, v, prefix);
			found++;
		}
		json_array_foreach(json_object_get(version, "objects"), j, v)
			check_object(s, v, prefix);
		if (!json_is_true(json_object_get(version, "more")))
			check_nothing_else(s, root, version, prefix);
	}
	json_decref(root);
	return found;
}

void t_manifest_each(const char *folder, t_manifest_fn fn)
{
	json_t *root = load_manifest(folder);
	const json_t *version;
	size_t i;

	json_array_foreach(json_object_get(root, "versions"), i, version)
		fn(folder, get_text(version, "name"),
		   json_is_true(json_object_get(version, "complete")));
	json_decref(root);
}
