/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/same.h"

#include "core/base/arena.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t.h"

struct dcp_version *t_open_version(const char *source, const char *name,
				   const struct dcp_store_opts *opts)
{
	static const struct dcp_store_opts none;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;

	if (dcp_scan(source, &scan, &err) < 0)
		fail_msg("%s", err.msg);
	for (size_t i = scan.n; i-- > 0 && !v;)
		if ((!name || strcmp(scan.found[i].name, name) == 0) &&
		    dcp_version_open(source, &scan.found[i], opts ? opts : &none, &v, &err) < 0)
			fail_msg("%s", err.msg);
	dcp_scan_finish(&scan);
	if (!v)
		fail_msg("%s holds no %s", source, name);
	return v;
}

static char *read_row(struct dcp_version *v, int64_t id, size_t *n, char *why)
{
	struct dcp_view *view = NULL;
	struct dcp_err err = { 0 };
	char *bytes;

	if (dcp_view_open(v, id, DCP_AS_RAW, NULL, &view, &err) < 0) {
		snprintf(why, 512, "%s", err.msg);
		return NULL;
	}
	*n = (size_t)dcp_view_size(view);
	bytes = malloc(*n + 1);
	assert_non_null(bytes);
	assert_int_equal(dcp_view_read(view, 0, bytes, *n), 0);
	dcp_view_close(view);
	return bytes;
}

char *t_tensor_bytes(struct dcp_version *v, const char *key, size_t *n, char *why)
{
	struct dcp_arena arena;
	struct dcp_row row;
	char *bytes;

	dcp_arena_init(&arena, 1 << 20);
	if (dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR, key, &arena, &row) < 0)
		fail_msg("no tensor %s", key);
	bytes = read_row(v, row.id, n, why);
	dcp_arena_finish(&arena);
	return bytes;
}

static int64_t find_twin(struct dcp_version *b, enum dcp_row_kind kind, const char *prefix,
			 const struct dcp_row *row)
{
	struct dcp_arena arena;
	struct dcp_row other;
	char key[4096];

	dcp_arena_init(&arena, 1 << 20);
	snprintf(key, sizeof(key), "%s%s", prefix, row->key);
	if (dcp_index_by_key(dcp_version_index(b), kind, key, &arena, &other) < 0)
		fail_msg("no %s", key);
	assert_int_equal(other.broken, row->broken);
	if (kind == DCP_ROW_TENSOR) /* what an object says holds keys */
		assert_int_equal(other.nbytes, row->nbytes);
	assert_int_equal(other.dtype, row->dtype);
	assert_int_equal(other.ndim, row->ndim);
	assert_int_equal(!other.alias_of, !row->alias_of);
	assert_memory_equal(other.shape, row->shape, row->ndim * sizeof(*row->shape));
	dcp_arena_finish(&arena);
	return other.id;
}

static void same_bytes(struct dcp_version *a, int64_t ida, struct dcp_version *b, int64_t idb,
		       const char *key)
{
	char why_a[512] = "", why_b[512] = "";
	size_t na = 0, nb = 0;
	char *x = read_row(a, ida, &na, why_a), *y = read_row(b, idb, &nb, why_b);

	if (!x != !y || na != nb || (x && memcmp(x, y, na) != 0))
		fail_msg("%s: other bytes (%s; %s)", key, why_a, why_b);
	free(x);
	free(y);
}

static void same_object(struct dcp_version *a, int64_t ida, struct dcp_version *b, int64_t idb)
{
	struct dcp_object x, y;
	struct dcp_arena arena;

	dcp_arena_init(&arena, 64 << 20);
	assert_int_equal(dcp_index_object(dcp_version_index(a), ida, &arena, &x, NULL), 0);
	assert_int_equal(dcp_index_object(dcp_version_index(b), idb, &arena, &y, NULL), 0);
	assert_string_equal(x.type, y.type);
	assert_int_equal(!x.json, !y.json);
	/* the key of a tensor inside has the prefix, too */
	if (x.json && !strstr(x.json, "$tensor"))
		assert_string_equal(x.json, y.json);
	dcp_arena_finish(&arena);
}

static size_t same_kind(struct dcp_version *a, struct dcp_version *b, enum dcp_row_kind kind,
			const char *prefix)
{
	struct dcp_index_scan *s;
	struct dcp_row row;
	size_t n = 0, m = 0;
	int rc;

	assert_int_equal(dcp_index_scan(dcp_version_index(a), kind, 0, false, &s), 0);
	while ((rc = dcp_index_scan_next(s, &row)) == 1) {
		int64_t id = find_twin(b, kind, prefix, &row);

		if (kind == DCP_ROW_TENSOR)
			same_bytes(a, row.id, b, id, row.key);
		else
			same_object(a, row.id, b, id);
		n++;
	}
	assert_int_equal(rc, 0);
	dcp_index_scan_end(s);
	assert_int_equal(dcp_index_scan(dcp_version_index(b), kind, 0, false, &s), 0);
	while ((rc = dcp_index_scan_next(s, &row)) == 1)
		m += strncmp(row.key, prefix, strlen(prefix)) == 0;
	dcp_index_scan_end(s);
	assert_int_equal(m, n);
	return n;
}

size_t t_same(struct dcp_version *a, struct dcp_version *b, const char *prefix)
{
	return same_kind(a, b, DCP_ROW_TENSOR, prefix) +
	       same_kind(a, b, DCP_ROW_OBJECT, prefix);
}
