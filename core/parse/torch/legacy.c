/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container of torch < 1.6: pickles of a magic number, a version, facts about the host,
 * the object, and the list of storage keys; then for each key the number of elements (8
 * bytes) and the elements. Only a tensor's persistent id says how large an element is, so
 * the object is searched for all of them before the first storage can be stepped over.
 *
 * Elements are little-endian whatever the host's own order was: its writer swapped them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/ckd.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/sort.h"
#include "core/parse/torch/torch_int.h"

enum { VERSION = 1001 };

static const uint8_t magic[] = { 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19 };

/* ---- every persistent id in an object, each node visited once ---- */

struct search {
	struct dcp_intern seen; /* nodes, by where they are */
	struct dcp_buf stack;   /* struct dcp_pv */
	struct dcp_buf found;   /* struct dcp_torch_storage */
};

/* Put @v on the stack unless it is a leaf or was there before. */
static int push(struct search *s, struct dcp_pv v)
{
	int r;

	if (v.type < DCP_PV_TUPLE || v.type == DCP_PV_GLOBAL)
		return 0;
	r = dcp_intern_add(&s->seen, &v.node, sizeof(v.node), DCP_INTERN_NONE, NULL);
	if (r <= 0)
		return r;
	return dcp_buf_add(&s->stack, &v, sizeof(v));
}

static int push_parts(struct search *s, struct dcp_pv v)
{
	int r = 0;

	if (v.type == DCP_PV_OBJECT) {
		const struct dcp_pobj *o = v.node->obj;
		const struct dcp_pv parts[] = { o->callable, o->args, o->kwargs,
						o->state,    o->list, o->dict };

		for (size_t i = 0; r == 0 && i < DCP_LEN(parts); i++)
			r = push(s, parts[i]);
		return r;
	}
	for (size_t i = 0; r == 0 && i < v.node->nitems; i++)
		r = push(s, v.node->items[i]);
	return r;
}

static bool is_storage_id(struct dcp_pv v)
{
	size_t n = 0;
	const struct dcp_pv *id;

	if (v.type != DCP_PV_PERSID || v.node->nitems != 1)
		return false;
	id = dcp_pv_items(v.node->items[0], &n);
	return n > 0 && dcp_pv_is_str(id[0], "storage");
}

static int find_ids(struct search *s, struct dcp_pv root, struct dcp_err *err)
{
	int r = push(s, root);

	while (r == 0 && s->stack.n) {
		struct dcp_torch_storage found;
		struct dcp_pv v;

		s->stack.n -= sizeof(v);
		memcpy(&v, s->stack.p + s->stack.n, sizeof(v));
		if (is_storage_id(v)) {
			r = dcp_torch_storage_id(v, &found, err);
			if (r < 0)
				return r;
			dcp_buf_add(&s->found, &found, sizeof(found));
		}
		r = push_parts(s, v);
	}
	if (r == 0)
		r = dcp_buf_error(&s->found);
	return r < 0 ? dcp_fail(err, r, "out of memory") : 0;
}

static void search_finish(struct search *s)
{
	dcp_intern_finish(&s->seen);
	dcp_buf_finish(&s->stack);
	dcp_buf_finish(&s->found);
}

/* ---- the storages after the pickles ---- */

/* One entry a key; tensors that share a storage must agree about it. */
static int merge_found(struct search *s, struct dcp_err *err)
{
	struct dcp_torch_storage *found = DCP_ITEMS(s->found, struct dcp_torch_storage);
	size_t n = 0, all = DCP_NITEMS(s->found, struct dcp_torch_storage);

	DCP_SORT(found, all, dcp_by_text);
	for (size_t i = 0; i < all; i++) {
		struct dcp_torch_storage *last = n ? &found[n - 1] : NULL;

		if (!last || strcmp(last->key, found[i].key) != 0)
			found[n++] = found[i];
		else if (last->numel != found[i].numel || last->itemsize != found[i].itemsize)
			return dcp_fail(err, -EBADMSG,
					"storage \"%s\" is described in two ways", last->key);
	}
	s->found.n = n * sizeof(*found);
	return 0;
}

/* The storage whose count is at @off; @next receives the offset after its elements. */
static int take_storage(struct dcp_torch *t, const struct dcp_torch_storage *want, uint64_t off,
			uint64_t *next, struct dcp_err *err)
{
	struct dcp_torch_record *rec = &t->records[t->nrecords];
	uint8_t count[8];
	uint64_t size;
	int r = dcp_source_read(&t->src, off, count, sizeof(count));

	if (r < 0)
		return dcp_fail_at(err, r, off, "the stream ends before storage \"%s\"",
				   want->key);
	if (dcp_load_le64(count) != want->numel)
		return dcp_fail_at(err, -EBADMSG, off,
				   "storage \"%s\" has %" PRIu64
				   " elements, its tensors say %" PRIu64,
				   want->key, dcp_load_le64(count), want->numel);
	if (dcp_ckd_mul(&size, want->numel, want->itemsize) ||
	    !dcp_range_ok(off + sizeof(count), size, t->src.size))
		return dcp_fail_at(err, -EBADMSG, off,
				   "storage \"%s\" of %" PRIu64
				   " elements does not end inside the stream",
				   want->key, want->numel);
	rec->key = dcp_arena_strdup(&t->arena, want->key);
	if (!rec->key)
		return dcp_fail(err, -ENOMEM, "out of memory");
	rec->off = off + sizeof(count);
	rec->size = size;
	t->nrecords++;
	*next = rec->off + size;
	return 0;
}

static int take_storages(struct dcp_torch *t, struct dcp_pv keys, uint64_t off,
			 const struct search *s, struct dcp_err *err)
{
	size_t n = 0;
	const struct dcp_pv *key = dcp_pv_items(keys, &n);

	if (keys.type != DCP_PV_LIST)
		return dcp_fail_at(err, -EBADMSG, off,
				   "no list of storage keys after the object");
	t->records = dcp_arena_calloc(&t->arena, n, sizeof(*t->records));
	if (!t->records)
		return dcp_fail(err, -ENOMEM, "out of memory for %zu storages", n);
	for (size_t i = 0; i < n; i++) {
		const struct dcp_torch_storage *all =
			DCP_ITEMS(s->found, struct dcp_torch_storage);
		const char *want = dcp_pv_str(key[i]);
		const struct dcp_torch_storage *found =
			want ? DCP_FIND(&want, all,
					DCP_NITEMS(s->found, struct dcp_torch_storage),
					dcp_by_text)
			     : NULL;
		int r;

		if (!found)
			return dcp_fail_at(
				err, -EBADMSG, off,
				"storage %zu of %zu belongs to no tensor, so its size "
				"is unknown",
				i, n);
		r = take_storage(t, found, off, &off, err);
		if (r < 0)
			return r;
	}
	return dcp_torch_sort_records(t, err);
}

/* ---- the five pickles ---- */

static bool is_magic(struct dcp_pv v)
{
	return v.type == DCP_PV_BIGINT && v.node->n == sizeof(magic) &&
	       memcmp(v.node->data, magic, sizeof(magic)) == 0;
}

static bool is_version(struct dcp_pv v)
{
	return v.type == DCP_PV_INT && v.i == VERSION;
}

static bool is_sys_info(struct dcp_pv v)
{
	return v.type == DCP_PV_DICT;
}

/* What stands before the object: read, checked and forgotten. */
static int skip_preamble(struct dcp_torch *t, uint64_t *off, struct dcp_err *err)
{
	static const struct {
		bool (*is)(struct dcp_pv v);
		int code;
		const char *says;
	} parts[] = {
		{ is_magic, -EBADMSG,
		  "a pickle, but not of torch.save: no magic number (pickle.dump or joblib?)" },
		{ is_version, -ENOTSUP, "legacy container of another version than 1001" },
		{ is_sys_info, -EBADMSG, "legacy container without facts about its host" },
	};

	for (size_t i = 0; i < DCP_LEN(parts); i++) {
		struct dcp_pickle_opts opts = { .memory = t->memory, .off = *off };
		uint64_t at = *off;
		dcp_auto_pickle struct dcp_pickle *p = NULL;
		int r = dcp_pickle_read(&t->src, &opts, &p, off, err);

		if (r == 0 && !parts[i].is(dcp_pickle_root(p)))
			r = dcp_fail_at(err, parts[i].code, at, "%s", parts[i].says);
		if (r < 0)
			return r;
	}
	return 0;
}

int dcp_torch_open_legacy(struct dcp_torch *t, struct dcp_err *err)
{
	struct dcp_pickle_opts opts = { .memory = t->memory };
	dcp_auto_pickle struct dcp_pickle *keys = NULL;
	struct search s = { 0 };
	int r = skip_preamble(t, &opts.off, err);

	if (r < 0)
		return r;
	t->pickle_src = &t->src;
	r = dcp_pickle_read(&t->src, &opts, &t->pickle, &opts.off, err);
	if (r < 0)
		return r;
	t->pickle_n = opts.off;
	r = dcp_pickle_read(&t->src, &opts, &keys, &opts.off, err);
	if (r == 0)
		r = find_ids(&s, dcp_pickle_root(t->pickle), err);
	if (r == 0)
		r = merge_found(&s, err);
	if (r == 0)
		r = take_storages(t, dcp_pickle_root(keys), opts.off, &s, err);
	search_finish(&s);
	return r;
}
