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
#include "core/base/ckd.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/parse/torch/torch_int.h"

enum { VERSION = 1001 };

static const uint8_t magic[] = { 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19 };

/* ---- every persistent id in an object, each node visited once ---- */

struct search {
	const struct dcp_pnode **seen; /* open addressing; a power of two */
	size_t seen_cap, nseen;
	struct dcp_pv *stack;
	size_t nstack, stack_cap;
	struct dcp_torch_storage *found;
	size_t nfound, found_cap;
};

static void *grow(void *p, size_t *cap, size_t size)
{
	size_t n = *cap ? *cap * 2 : 64;
	void *q = n > SIZE_MAX / 2 / size ? NULL : realloc(p, n * size);

	if (q)
		*cap = n;
	return q;
}

static size_t slot_of(const struct search *s, const struct dcp_pnode *node)
{
	uint64_t h = (uintptr_t)node * 0x9e3779b97f4a7c15u;
	size_t i = (size_t)(h >> 20) & (s->seen_cap - 1);

	while (s->seen[i] && s->seen[i] != node)
		i = (i + 1) & (s->seen_cap - 1);
	return i;
}

static int rehash(struct search *s)
{
	struct search wider = { .seen_cap = s->seen_cap ? s->seen_cap * 2 : 256 };

	wider.seen = calloc(wider.seen_cap, sizeof(*wider.seen));
	if (!wider.seen)
		return -ENOMEM;
	for (size_t i = 0; i < s->seen_cap; i++)
		if (s->seen[i])
			wider.seen[slot_of(&wider, s->seen[i])] = s->seen[i];
	free(s->seen);
	s->seen = wider.seen;
	s->seen_cap = wider.seen_cap;
	return 0;
}

/* Put @v on the stack unless it is a leaf or was there before. */
static int push(struct search *s, struct dcp_pv v)
{
	size_t i;
	int r = 0;

	if (v.type < DCP_PV_TUPLE || v.type == DCP_PV_GLOBAL)
		return 0;
	if (s->nseen * 2 >= s->seen_cap)
		r = rehash(s);
	if (r < 0)
		return r;
	i = slot_of(s, v.node);
	if (s->seen[i])
		return 0;
	s->seen[i] = v.node;
	s->nseen++;
	if (s->nstack == s->stack_cap) {
		struct dcp_pv *p = grow(s->stack, &s->stack_cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		s->stack = p;
	}
	s->stack[s->nstack++] = v;
	return 0;
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

static int note(struct search *s, struct dcp_pv id, struct dcp_err *err)
{
	int r;

	if (s->nfound == s->found_cap) {
		struct dcp_torch_storage *p = grow(s->found, &s->found_cap, sizeof(*p));

		if (!p)
			return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory");
		s->found = p;
	}
	r = dcp_torch_storage_id(id, &s->found[s->nfound], err);
	if (r == 0)
		s->nfound++;
	return r;
}

static int find_ids(struct search *s, struct dcp_pv root, struct dcp_err *err)
{
	int r = push(s, root);

	while (r == 0 && s->nstack) {
		struct dcp_pv v = s->stack[--s->nstack];

		if (is_storage_id(v)) {
			r = note(s, v, err);
			if (r < 0)
				return r;
		}
		r = push_parts(s, v);
	}
	return r < 0 ? dcp_fail(err, r, DCP_ERR_NO_OFFSET, "out of memory") : 0;
}

static void search_finish(struct search *s)
{
	free(s->seen);
	free(s->stack);
	free(s->found);
}

/* ---- the storages behind the pickles ---- */

static int compare_found(const void *a, const void *b)
{
	const struct dcp_torch_storage *x = a, *y = b;

	return strcmp(x->key, y->key);
}

/* One entry a key; tensors that share a storage must agree about it. */
static int merge_found(struct search *s, struct dcp_err *err)
{
	size_t n = 0;

	if (s->nfound)
		qsort(s->found, s->nfound, sizeof(*s->found), compare_found);
	for (size_t i = 0; i < s->nfound; i++) {
		struct dcp_torch_storage *last = n ? &s->found[n - 1] : NULL;

		if (!last || strcmp(last->key, s->found[i].key) != 0)
			s->found[n++] = s->found[i];
		else if (last->numel != s->found[i].numel ||
			 last->itemsize != s->found[i].itemsize)
			return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET,
					"storage \"%s\" is described in two ways", last->key);
	}
	s->nfound = n;
	return 0;
}

/* The storage whose count is at @off; @next receives the offset behind its elements. */
static int take_storage(struct dcp_torch *t, const struct dcp_torch_storage *want, uint64_t off,
			uint64_t *next, struct dcp_err *err)
{
	struct dcp_torch_record *rec = &t->records[t->nrecords];
	uint8_t count[8];
	uint64_t size;
	int r = dcp_source_read(&t->src, off, count, sizeof(count));

	if (r < 0)
		return dcp_fail(err, r, off, "the stream ends before storage \"%s\"",
				want->key);
	if (dcp_load_le64(count) != want->numel)
		return dcp_fail(err, -EBADMSG, off,
				"storage \"%s\" has %" PRIu64
				" elements, its tensors say %" PRIu64,
				want->key, dcp_load_le64(count), want->numel);
	if (dcp_ckd_mul(&size, want->numel, want->itemsize) ||
	    !dcp_range_ok(off + sizeof(count), size, t->src.size))
		return dcp_fail(err, -EBADMSG, off,
				"storage \"%s\" of %" PRIu64
				" elements does not end inside the stream",
				want->key, want->numel);
	rec->key = dcp_arena_strndup(&t->arena, want->key, strlen(want->key));
	if (!rec->key)
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory");
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
		return dcp_fail(err, -EBADMSG, off, "no list of storage keys after the object");
	t->records = dcp_arena_calloc(&t->arena, n, sizeof(*t->records));
	if (!t->records)
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET,
				"out of memory for %zu storages", n);
	for (size_t i = 0; i < n; i++) {
		struct dcp_torch_storage want = { .key = dcp_pv_str(key[i]) };
		const struct dcp_torch_storage *found = NULL;
		int r;

		if (want.key && s->nfound)
			found = bsearch(&want, s->found, s->nfound, sizeof(want),
					compare_found);
		if (!found)
			return dcp_fail(err, -EBADMSG, off,
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
			r = dcp_fail(err, parts[i].code, at, "%s", parts[i].says);
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
