/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/golden.h"

#include "core/base/buf.h"
#include "core/origin/origin.h"
#include "tests/unit/t.h"
#include "tests/unit/t/sha256.h"

json_t *t_golden_manifest(const char *name)
{
	char path[256];
	json_error_t e;
	json_t *m;

	snprintf(path, sizeof(path), "tests/golden/%s/manifest.json", name);
	/* Integers beyond 64 bits are compared as reals, which is close enough here. */
	m = json_load_file(path, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &e);
	if (!m)
		fail_msg("%s:%d: %s", path, e.line, e.text);
	return m;
}

static void add_element(struct dcp_buf *all, const struct dcp_source *src,
			const struct dcp_torch_tensor *x, uint64_t off)
{
	unsigned unit = dcp_dtype_info(x->dtype)->swap_unit;
	uint8_t e[16], *to;

	assert_true(x->itemsize <= sizeof(e));
	assert_int_equal(dcp_source_read(src, off, e, x->itemsize), 0);
	to = dcp_buf_grow(all, x->itemsize);
	assert_non_null(to);
	for (unsigned i = 0; i < x->itemsize; i++)
		to[i] = x->swap ? e[i / unit * unit + unit - 1 - i % unit] : e[i];
	if (x->filter == DCP_FILTER_NEG)
		to[unit - 1] ^= 0x80;
	if (x->filter != DCP_FILTER_NONE) /* of a complex number the imaginary part */
		to[x->itemsize - 1] ^=
			x->filter == DCP_FILTER_CONJ || unit < x->itemsize ? 0x80 : 0;
}

void t_golden_digest(const struct dcp_source *src, const struct dcp_torch_tensor *x,
		     char hex[65])
{
	uint64_t at[DCP_MAX_NDIM] = { 0 }, total = 1;
	struct dcp_buf all = DCP_BUF_INIT;

	for (uint32_t d = 0; d < x->ndim; d++)
		total *= x->shape[d];
	for (uint64_t i = 0; i < total; i++) {
		uint64_t off = x->off;

		for (uint32_t d = 0; d < x->ndim; d++)
			off += at[d] * x->stride[d] * x->itemsize;
		add_element(&all, src, x, off);
		for (uint32_t d = x->ndim; d-- > 0;) {
			if (++at[d] < x->shape[d])
				break;
			at[d] = 0;
		}
	}
	t_sha256(all.p, all.n, hex);
	dcp_buf_finish(&all);
}

struct collector {
	struct t_leaves *to;
	const struct dcp_torch *t;
};

static int collect_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	struct collector *c = ctx;
	struct dcp_buf json = DCP_BUF_INIT;
	struct t_leaf *l;

	c->to->leaf = realloc(c->to->leaf, (c->to->n + 1) * sizeof(*c->to->leaf));
	assert_non_null(c->to->leaf);
	l = &c->to->leaf[c->to->n++];
	*l = (struct t_leaf){ .key = strdup(leaf->key),
			      .value = leaf->value,
			      .is_tensor = leaf->is_tensor,
			      .nested = leaf->nested,
			      .type = dcp_pyjson_type(leaf->value) };
	if (dcp_pyjson_write(&json, c->t, leaf->value, leaf->path, leaf->npath) == 0)
		l->json = dcp_buf_take(&json);
	dcp_buf_finish(&json);
	return 0;
}

void t_leaves_collect(struct t_leaves *l, const struct dcp_torch *t, unsigned how)
{
	struct collector c = { l, t };

	*l = (struct t_leaves){ 0 };
	assert_int_equal(dcp_pyjson_walk_with(t, dcp_torch_root(t),
					      &(struct dcp_walk){ .how = how }, collect_leaf,
					      &c),
			 0);
}

void t_leaves_free(struct t_leaves *l)
{
	for (size_t i = 0; i < l->n; i++) {
		free(l->leaf[i].key);
		free(l->leaf[i].json);
	}
	free(l->leaf);
}

struct t_leaf *t_leaves_find(struct t_leaves *l, const char *key)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->leaf[i].key, key) == 0)
			return &l->leaf[i];
	/* One value is all there is: the manifest calls it as its file is called. */
	return l->n && !*l->leaf[l->n - 1].key ? &l->leaf[l->n - 1] : NULL;
}
