/* SPDX-License-Identifier: Apache-2.0 */
/* Read the output back as a checkpoint, or as the file of each rank in turn, and compare it with
 * the source byte by byte. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/origin/origin.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "core/write/pickle.h"
#include "tools/export/export.h"

enum { CHUNK = 4 << 20 };

struct verifying {
	struct exporting *x;
	struct export_reader *reader;
	struct dcp_version *v;
	char *bufs; /* two chunks */
	uint64_t done, total;
};

static int fail_differs(struct verifying *w, const char *key, const char *how)
{
	return dcp_fail(&w->x->err, -EBADMSG,
			"%s: %s: what was written is not what was read: %s", w->x->out, key,
			how);
}

/* Compare with @view, or (NULL) with @src. */
static int compare_bytes(struct verifying *w, size_t i, size_t part, const char *key,
			 const struct dcp_view *view, const struct dcp_source *src)
{
	uint64_t size = view ? dcp_view_size(view) : src->size;
	char text[64];

	for (uint64_t off = 0; off < size; off += CHUNK) {
		size_t n = (size_t)DCP_MIN(size - off, (uint64_t)CHUNK);
		int rc = view ? dcp_view_read(view, off, w->bufs, n)
			      : dcp_source_read(src, off, w->bufs, n);

		if (rc == 0)
			rc = export_read(w->reader, i, part, off, w->bufs + CHUNK, n,
					 &w->x->err);
		if (rc < 0)
			return dcp_err_say(&w->x->err, rc);
		if (memcmp(w->bufs, w->bufs + CHUNK, n) != 0) {
			snprintf(text, sizeof(text), "bytes from %llu on",
				 (unsigned long long)off);
			return fail_differs(w, key, text);
		}
		w->done += n;
		w->x->progress.report.report(w->x->progress.report.ctx, w->done, w->total, key);
	}
	return 0;
}

static int compare_tensor(struct verifying *w, size_t i, size_t part)
{
	const struct dcp_write_tensor *t = &w->x->set.tensors[i];
	const struct dcp_write_part *p = part == EXPORT_WHOLE ? NULL : &t->parts[part];
	uint32_t ndim = p ? p->ndim : t->ndim;
	const uint64_t *shape = p ? p->shape : t->shape;
	dcp_auto_view struct dcp_view *view = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 24);
	struct dcp_row row;
	int rc =
		dcp_index_by_key(dcp_version_index(w->v), DCP_ROW_TENSOR, t->key, &arena, &row);

	if (rc == -ENOENT)
		rc = fail_differs(w, t->key, "it has no such key");
	else if (rc == 0 && (row.dtype != t->dtype || row.ndim != ndim ||
			     memcmp(row.shape, shape, ndim * sizeof(*shape)) != 0))
		rc = fail_differs(w, t->key, "another dtype or shape");
	if (rc == 0)
		rc = dcp_view_open(w->v, row.id, DCP_AS_RAW, NULL, &view, &w->x->err);
	if (rc == 0)
		rc = compare_bytes(w, i, part, t->key, view, NULL);
	return rc;
}

static int compare_extra(struct verifying *w, size_t i)
{
	const struct dcp_write_extra *e = &w->x->set.extras[i];
	dcp_auto_blob struct dcp_blob blob = { 0 };
	struct dcp_site site = { .fd = -1 };
	dcp_auto_free char *only = NULL;
	struct dcp_source src;
	int rc = dcp_site_find(save_sealed(w->x->save), &site, &only, &w->x->err);

	if (rc == 0)
		rc = dcp_site_open(&site, e->name, &blob, NULL, NULL);
	dcp_site_close(&site);
	if (rc < 0)
		return fail_differs(w, e->name, strerror(-rc));
	src = dcp_source_blob(&blob);
	return src.size == e->nbytes
		       ? compare_bytes(w, w->x->set.ntensors + i, 0, e->name, NULL, &src)
		       : fail_differs(w, e->name, "another length");
}

/* ---- objects ---- */

static bool is_text(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") == 0;
}

static int compare_values(struct verifying *w, const struct dcp_object *want,
			  const struct dcp_object *got)
{
	return is_text(got->type, want->type) && is_text(got->json, want->json) &&
			       is_text(got->classes, want->classes)
		       ? 0
		       : fail_differs(w, want->key, "another value");
}

static int find_object(struct verifying *w, const char *key, struct dcp_arena *arena,
		       struct dcp_object *out)
{
	struct dcp_index *ix = dcp_version_index(w->v);
	struct dcp_row row;
	int rc = dcp_index_by_key(ix, DCP_ROW_OBJECT, key, arena, &row);

	return rc < 0 ? rc : dcp_index_object(ix, row.id, arena, out, &w->x->err);
}

static int compare_as_is(struct verifying *w, const struct dcp_object *o)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_object got;
	int rc = find_object(w, o->key, &arena, &got);

	return rc < 0 ? rc : compare_values(w, o, &got);
}

static int put_mark(void *ctx, struct dcp_pickler *p, const char *key)
{
	dcp_pickler_put(p, "P N");
	return 0;
}

static bool is_mark(struct dcp_pv v)
{
	return v.type == DCP_PV_PERSID;
}

static const struct dcp_pystream marks = { .size = UINT64_MAX, .is_tensor = is_mark };

/* Pickle the object, and walk the pickle. */
static int open_object(struct verifying *w, const struct dcp_object *o, unsigned how,
		       dcp_leaf_fn fn, void *ctx)
{
	const struct dcp_value_tensors mark = { .put = put_mark };
	const struct dcp_pickle_opts all = { .far_bytes = UINT32_MAX };
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	dcp_auto_pickle struct dcp_pickle *value = NULL;
	struct dcp_pickler p;
	struct dcp_source src;
	int rc;

	dcp_pickler_init(&p, &text, 4);
	rc = dcp_value_put(&p, o, &mark);
	if (rc == 0)
		rc = dcp_pickler_end(&p);
	if (rc < 0)
		return rc;
	src = dcp_source_mem(text.p, text.n);
	rc = dcp_pickle_read(&src, &all, &value, NULL, &w->x->err);
	return rc < 0 ? rc
		      : dcp_pyjson_walk_in(&marks, dcp_pickle_root(value), &o->key, 1, how, fn,
					   ctx);
}

static int describe_leaf(const struct dcp_leaf *leaf, struct dcp_buf *text,
			 struct dcp_object *out)
{
	uint64_t left = UINT64_MAX;

	*out = (struct dcp_object){ .key = leaf->key };
	return dcp_pyjson_object(text, &marks, leaf->value, leaf->path, leaf->npath, &left,
				 out);
}

/* Compare a leaf of an object that the reader opened. Tensors are compared separately. */
static int compare_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_object o;
	int rc = is_mark(leaf->value) ? 0 : describe_leaf(leaf, &text, &o);

	if (rc == 0 && !is_mark(leaf->value))
		rc = compare_as_is(ctx, &o);
	return rc == -ENOENT ? fail_differs(ctx, leaf->key, "it has no such key") : rc;
}

struct within {
	struct verifying *w;
	const struct dcp_object *want;
};

static int compare_member(void *ctx, const struct dcp_leaf *leaf)
{
	const struct within *in = ctx;
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_object o;
	int rc;

	if (strcmp(leaf->key, in->want->key) != 0)
		return 0;
	rc = describe_leaf(leaf, &text, &o);
	if (rc == 0)
		rc = compare_values(in->w, in->want, &o);
	return rc == 0 ? 1 : rc;
}

/* Compare an object of the source that is part of a larger object in the output. */
static int compare_within(struct verifying *w, const struct dcp_object *o)
{
	struct within in = { w, o };
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	char *key = dcp_arena_strdup(&arena, o->key), *dot;
	struct dcp_object got;
	int rc = key ? -ENOENT : -ENOMEM;

	while (rc == -ENOENT && (dot = strrchr(key, '.'))) {
		*dot = '\0';
		rc = find_object(w, key, &arena, &got);
		if (rc == 0)
			rc = open_object(w, &got, DCP_WALK_LISTS, compare_member, &in);
		rc = rc == 0 ? -ENOENT : rc;
	}
	return rc;
}

/* A format that holds one nested value can be read in several ways, so all are tried; an instance
 * of a subclass of str becomes a str. */
static int compare_object(struct verifying *w, const struct dcp_object *o)
{
	static const unsigned ways[] = { DCP_WALK_LISTS, DCP_WALK_TUPLES, 0 };
	int rc = compare_as_is(w, o);

	if (rc == -ENOENT)
		rc = compare_within(w, o);
	if (rc == -ENOENT)
		rc = -EBADMSG;
	for (size_t i = 0; rc == -EBADMSG && i < DCP_LEN(ways); i++)
		rc = open_object(w, o, ways[i], compare_leaf, w);
	return dcp_err_say(&w->x->err, DCP_MIN(rc, 0));
}

/* ---- all of it ---- */

/* Compare the checkpoint at @path: all of it, or (@rank not NULL) the parts of that rank. */
static int compare_checkpoint(struct verifying *w, const char *path, const uint32_t *rank)
{
	const struct dcp_store_opts opts = { .log = &cmd_log };
	const struct dcp_write_set *set = &w->x->set;
	struct dcp_scan scan = { 0 };
	int rc = dcp_scan(path, &scan, &w->x->err);

	if (rc == 0 && (scan.n != 1 || !scan.found[0].complete))
		rc = dcp_fail(&w->x->err, -EBADMSG,
			      "%s: what was written is not one complete checkpoint",
			      rank ? path : w->x->out);
	if (rc == 0)
		rc = dcp_version_open(path, &scan.found[0], &opts, &w->v, &w->x->err);
	for (size_t i = 0; rc == 0 && i < set->ntensors; i++) {
		size_t part = rank ? dcp_write_part_of(set, i, *rank) : EXPORT_WHOLE;

		if (!rank || part != SIZE_MAX)
			rc = compare_tensor(w, i, part);
	}
	for (size_t i = 0; rc == 0 && i < set->nobjects; i++)
		rc = compare_object(w, &set->objects[i]);
	for (size_t i = 0; rc == 0 && !rank && i < set->nextras; i++)
		rc = compare_extra(w, i);
	dcp_version_close(w->v);
	w->v = NULL;
	dcp_scan_finish(&scan);
	return rc;
}

/* Compare the files of all ranks that have bytes. */
static int compare_ranks(struct verifying *w)
{
	const struct dcp_write_set *set = &w->x->set;
	const char *file, *last = NULL;
	size_t tensor, part;
	int rc = 0;

	for (size_t i = 0; rc == 0 && (file = save_run_at(w->x->save, i, &tensor, &part));
	     i++) {
		dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;

		if (file == last || tensor >= set->ntensors)
			continue;
		last = file;
		dcp_buf_printf(&path, "%s/%s", save_sealed(w->x->save), file);
		rc = dcp_err_say(&w->x->err, dcp_buf_error(&path));
		if (rc == 0)
			rc = compare_checkpoint(w, path.p,
						&set->tensors[tensor].parts[part].rank);
	}
	return rc;
}

int export_verify(struct exporting *x)
{
	struct verifying w = { .x = x };
	int rc = dcp_err_say(&x->err, export_reader(x, &w.reader));

	w.bufs = malloc(2 * (size_t)CHUNK);
	if (rc == 0 && !w.bufs)
		rc = dcp_err_say(&x->err, -ENOMEM);
	for (size_t i = 0; i < x->set.ntensors; i++)
		for (size_t k = 0; k < x->set.tensors[i].nparts; k++)
			w.total += dcp_write_part_bytes(&x->set.tensors[i],
							&x->set.tensors[i].parts[k]);
	for (size_t i = 0; i < x->set.nextras && !x->set.arrays; i++)
		w.total += x->set.extras[i].nbytes;
	if (rc == 0)
		rc = x->set.arrays ? compare_ranks(&w)
				   : compare_checkpoint(&w, save_sealed(x->save), NULL);
	free(w.bufs);
	export_close(w.reader);
	return rc;
}
