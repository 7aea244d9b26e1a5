/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unpickler hands over pairs when they are about to enter a dict. A section's dict is
 * recognised by the name below it on the stack, and by its depth: the first dict with such a name
 * below it is the section, and deeper dicts belong to values.
 */
#include "core/parse/pickle/pickle.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/parse/pyjson/pyjson.h"

struct reading {
	const struct dcp_sections *s;
	size_t depth
		[DCP_SECTIONS_MAX]; /* of each section's dict on the stack; 0: not seen yet */
};

static int add_pairs(const struct dcp_sections *s, size_t i, const struct dcp_pv *kv,
		     size_t npairs, struct dcp_err *err)
{
	for (size_t k = 0; k < npairs; k++) {
		int rc = s->section[i].add(s->ctx, kv[2 * k], kv[2 * k + 1], err);

		if (rc < 0)
			return rc;
	}
	return 0;
}

static int on_pairs(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		    size_t npairs, struct dcp_err *err)
{
	struct reading *r = ctx;
	int rc;

	if (r->s->skip && r->s->skip(where))
		return 1;
	for (size_t i = 0; where.type == DCP_PV_STR && i < r->s->n; i++) {
		if (!dcp_pv_is_str(where, r->s->section[i].name))
			continue;
		if (!r->depth[i])
			r->depth[i] = depth;
		if (r->depth[i] != depth)
			return 0;
		rc = add_pairs(r->s, i, kv, npairs, err);
		return rc < 0 ? rc : 1;
	}
	return 0;
}

/* Add the pairs that did not come through the hook. */
static int read_rest(const struct dcp_sections *s, struct dcp_pv root, struct dcp_err *err)
{
	for (size_t i = 0; i < s->n; i++) {
		const struct dcp_pv *v = dcp_pv_get(root, s->section[i].name), *kv;
		size_t npairs;
		int rc;

		if (s->section[i].optional && (!v || v->type == DCP_PV_NONE))
			continue;
		if (!v || !dcp_pv_is_mapping(*v))
			return dcp_fail(err, -EBADMSG, "%s is %s, expected a dict",
					s->section[i].name,
					v ? dcp_pyjson_type(*v) : "missing");
		kv = dcp_pv_pairs(*v, &npairs);
		rc = add_pairs(s, i, kv, npairs, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int dcp_sections_read(const struct dcp_sections *s, const struct dcp_source *src,
		      struct dcp_err *err)
{
	struct reading r = { .s = s };
	const struct dcp_pickle_hook hook = { on_pairs, &r };
	const struct dcp_pickle_opts opts = { .hook = &hook };
	dcp_auto_pickle struct dcp_pickle *pickle = NULL;
	int rc;

	assert(s->n <= DCP_SECTIONS_MAX);
	rc = dcp_pickle_read(src, &opts, &pickle, NULL, err);
	if (rc < 0)
		return rc;
	rc = s->root(s->ctx, dcp_pickle_root(pickle), err);
	if (rc == 0)
		rc = read_rest(s, dcp_pickle_root(pickle), err);
	return rc;
}

void dcp_sections_fact(char *out, size_t n, struct dcp_pv v)
{
	const char *text = dcp_pv_str(v);

	if (text && strlen(text) < n)
		memcpy(out, text, strlen(text) + 1);
}
