/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container of torch < 1.6: pickles of a magic number, a version, facts about the host,
 * the object, and the list of storage keys; then for each key the number of elements (8
 * bytes) and the elements. Only persistent ids of tensors say how large an element is, so
 * all of them are looked up in the object before the first storage is stepped over.
 *
 * Elements are always little-endian: on big-endian hosts, the writer swapped them.
 */
#include "core/parse/torch/torch_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/text.h"
#include "core/origin/archive/archive.h"

enum { VERSION = 1001 };

static const uint8_t magic[] = { 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19 };

/* ---- every persistent id in an object, each node visited once ---- */

struct search {
	struct dcp_intern seen; /* nodes, by their addresses */
	struct dcp_buf stack;   /* struct dcp_pv */
	struct dcp_buf found;   /* struct dcp_torch_storage */
};

/* Put @v on the stack unless it is a leaf or was put there before. */
static int push_value(struct search *s, struct dcp_pv v)
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
			r = push_value(s, parts[i]);
		return r;
	}
	for (size_t i = 0; r == 0 && i < v.node->nitems; i++)
		r = push_value(s, v.node->items[i]);
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
	int r = push_value(s, root);

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

/* Keep an entry for each key; tensors that share a storage must agree about it. */
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

/* Add the storage whose count is at @off; @next receives the offset after its elements. */
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

/* Read the values before the object, check them and forget them. */
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

/*
 * The container of torch 0.1 (before March 2017): an uncompressed tar of four members.
 *
 *	sys_info   a pickle, of no use here
 *	pickle     the object; a tensor in it is a persistent id: its number as text
 *	tensors    pickle of the number, then for each a pickle (id, id of its storage or None,
 *	           class), i64 ndim, i64 sizes[ndim], i64 strides[ndim], i64 first element
 *	storages   pickle of the number, then for each a pickle (id, location, class), i64
 *	           elements, the elements; then a pickle of views [(id, id of root, first, n), ...]
 *
 * Numbers are little-endian: big-endian hosts wrote their own order, which no reader can detect.
 */

struct member {
	uint64_t at, end; /* in the stream; end 0: missing */
};

/* ---- members: pickles and numbers in a row ---- */

struct cursor {
	struct dcp_torch *t;
	struct member m;
	struct dcp_err *err;
};

static int next_pickle(struct cursor *c, struct dcp_pickle **out)
{
	struct dcp_source part = dcp_source_window(&c->t->src, 0, c->m.end);
	struct dcp_pickle_opts opts = { .memory = c->t->memory, .off = c->m.at };

	return dcp_pickle_read(&part, &opts, out, &c->m.at, c->err);
}

static int next_i64s(struct cursor *c, uint64_t *to, size_t n)
{
	uint8_t raw[8];

	for (size_t i = 0; i < n; i++) {
		if (!dcp_range_ok(c->m.at, 8, c->m.end) ||
		    dcp_source_read(&c->t->src, c->m.at, raw, 8) < 0)
			return dcp_fail_at(c->err, -EBADMSG, c->m.at,
					   "tar container is cut short");
		to[i] = dcp_load_le64(raw);
		c->m.at += 8;
	}
	return 0;
}

/* Read a pickle with the number of items that follow, each of at least @each bytes. */
static int next_count(struct cursor *c, uint64_t each, uint64_t *n)
{
	uint64_t at = c->m.at;
	dcp_auto_pickle struct dcp_pickle *p = NULL;
	int r = next_pickle(c, &p);

	if (r < 0)
		return r;
	if (!dcp_pv_u64(dcp_pickle_root(p), n) || *n > (c->m.end - c->m.at) / each)
		r = dcp_fail_at(c->err, -EBADMSG, at,
				"tar container says it has more parts than it has room for");
	return r;
}

/* ---- storages ---- */

static const struct dcp_torch_tar_storage *find_storage(const struct dcp_torch *t, uint64_t id)
{
	return DCP_FIND(&id, t->tar.storages, t->tar.nstorages, dcp_by_u64);
}

static int next_storage(struct cursor *c, struct dcp_torch_tar_storage *s)
{
	uint64_t at = c->m.at, bytes;
	struct dcp_pickle *p;
	const struct dcp_pv *part;
	size_t n;
	int r = next_pickle(c, &p);

	if (r < 0)
		return r;
	part = dcp_pv_items(dcp_pickle_root(p), &n);
	s->dtype = n == 3 ? dcp_torch_storage_dtype(part[2]) : NULL;
	if (!s->dtype || !dcp_pv_u64(part[0], &s->id))
		r = dcp_fail_at(c->err, -EBADMSG, at,
				"storage is not (number, location, class of torch)");
	dcp_pickle_free(p);
	if (r == 0)
		r = next_i64s(c, &s->numel, 1);
	if (r < 0)
		return r;
	s->off = c->m.at;
	if (dcp_ckd_mul(&bytes, s->numel, dcp_torch_itemsize(s->dtype)) ||
	    !dcp_range_ok(s->off, bytes, c->m.end))
		return dcp_fail_at(c->err, -EBADMSG, at,
				   "storage of %" PRIu64 " elements does not end in its member",
				   s->numel);
	c->m.at += bytes;
	return 0;
}

/* Add the views, which are storages inside others. */
static int take_views(struct cursor *c, struct dcp_pv list, struct dcp_torch_tar_storage *to,
		      size_t *n)
{
	size_t nviews = 0, nparts;
	const struct dcp_pv *view = dcp_pv_items(list, &nviews);

	for (size_t i = 0; i < nviews; i++) {
		const struct dcp_pv *part = dcp_pv_items(view[i], &nparts);
		const struct dcp_torch_tar_storage *root;
		uint64_t id, first, numel;

		if (nparts != 4 || !dcp_pv_u64(part[0], &to[i].id) ||
		    !dcp_pv_u64(part[1], &id) || !dcp_pv_u64(part[2], &first) ||
		    !dcp_pv_u64(part[3], &numel) || !(root = find_storage(c->t, id)) ||
		    !dcp_range_ok(first, numel, root->numel))
			return dcp_fail_at(c->err, -EBADMSG, c->m.at,
					   "view %zu of a storage does not lie inside one", i);
		to[i].dtype = root->dtype;
		to[i].off = root->off + first * dcp_torch_itemsize(root->dtype);
		to[i].numel = numel;
	}
	*n = nviews;
	return 0;
}

static int read_storages(struct cursor *c)
{
	struct dcp_torch_tar *tar = &c->t->tar;
	struct dcp_torch_tar_storage *all;
	dcp_auto_pickle struct dcp_pickle *views = NULL;
	uint64_t n;
	size_t nviews = 0;
	int r = next_count(c, 16, &n);

	if (r < 0)
		return r;
	all = tar->storages = dcp_arena_calloc(&c->t->arena, n, sizeof(*all));
	for (uint64_t i = 0; all && r == 0 && i < n; i++)
		r = next_storage(c, &all[i]);
	if (all && r == 0)
		r = next_pickle(c, &views);
	if (all && r == 0) {
		dcp_pv_items(dcp_pickle_root(views), &nviews);
		DCP_SORT(all, n, dcp_by_u64);
		tar->nstorages = n;
		all = dcp_arena_calloc(&c->t->arena, n + nviews, sizeof(*all));
	}
	if (!all)
		r = dcp_fail(c->err, -ENOMEM, "out of memory for storages");
	if (r == 0)
		r = take_views(c, dcp_pickle_root(views), all + n, &nviews);
	if (r < 0)
		return r;
	memcpy(all, tar->storages, n * sizeof(*all));
	DCP_SORT(all, n + nviews, dcp_by_u64);
	tar->storages = all;
	tar->nstorages = n + nviews;
	return 0;
}

/* ---- tensors ---- */

/* Read the number and the storage, and note the place of sizes and strides, which are read
 * later. */
static int next_tensor(struct cursor *c, struct dcp_torch_tar_tensor *x)
{
	uint64_t at = c->m.at, ndim = 0, bytes;
	struct dcp_pickle *p;
	const struct dcp_pv *part;
	size_t n;
	int r = next_pickle(c, &p);

	if (r < 0)
		return r;
	part = dcp_pv_items(dcp_pickle_root(p), &n);
	x->empty = n == 3 && part[1].type == DCP_PV_NONE;
	if (n != 3 || !dcp_pv_u64(part[0], &x->id) ||
	    (!x->empty && !dcp_pv_u64(part[1], &x->storage)))
		r = dcp_fail_at(c->err, -EBADMSG, at, "tensor is not (number, storage, class)");
	dcp_pickle_free(p);
	if (r == 0)
		r = next_i64s(c, &ndim, 1);
	if (r < 0)
		return r;
	x->ndim = (uint32_t)ndim; /* the upper half is not always written */
	if (x->ndim > DCP_MAX_NDIM)
		return dcp_fail_at(c->err, -EBADMSG, at, "tensor of %" PRIu32 " dimensions",
				   x->ndim);
	x->at = c->m.at;
	bytes = 8 * (2 * (uint64_t)x->ndim + 1);
	if (!dcp_range_ok(c->m.at, bytes, c->m.end))
		return dcp_fail_at(c->err, -EBADMSG, at, "tar container is cut short");
	c->m.at += bytes;
	return 0;
}

static int read_tensors(struct cursor *c)
{
	struct dcp_torch_tar *tar = &c->t->tar;
	uint64_t n;
	int r = next_count(c, 16, &n);

	if (r < 0)
		return r;
	tar->tensors = dcp_arena_calloc(&c->t->arena, n, sizeof(*tar->tensors));
	if (!tar->tensors)
		return dcp_fail(c->err, -ENOMEM, "out of memory for tensors");
	for (tar->ntensors = 0; r == 0 && tar->ntensors < n; tar->ntensors++)
		r = next_tensor(c, &tar->tensors[tar->ntensors]);
	if (r == 0)
		DCP_SORT(tar->tensors, tar->ntensors, dcp_by_u64);
	return r;
}

int dcp_torch_open_tar(struct dcp_torch *t, struct dcp_err *err)
{
	static const char *const names[] = { "storages", "tensors", "pickle" };
	struct member m[DCP_LEN(names)] = { { 0 } };
	struct cursor c = { .t = t, .err = err };
	struct dcp_tar_member *in;
	size_t n = 0;
	int r = dcp_tar_list(&t->src, &t->arena, &in, &n, err);

	for (size_t i = 0; r == 0 && i < DCP_LEN(names); i++) {
		for (size_t k = 0; k < n; k++)
			if (strcmp(in[k].name, names[i]) == 0)
				m[i] = (struct member){ in[k].off, in[k].off + in[k].size };
		if (!m[i].end)
			r = dcp_fail(err, -EBADMSG,
				     "a tar archive, but not of torch 0.1: no member \"%s\"",
				     names[i]);
	}
	if (r < 0)
		return r;
	c.m = m[0];
	r = read_storages(&c);
	c.m = m[1];
	if (r == 0)
		r = read_tensors(&c);
	if (r < 0)
		return dcp_err_where(err, r, "tar container of torch 0.1");
	t->window = dcp_source_window(&t->src, m[2].at, m[2].end - m[2].at);
	t->pickle_src = &t->window;
	t->pickle_n = m[2].end - m[2].at;
	return dcp_pickle_read(&t->window, &(struct dcp_pickle_opts){ .memory = t->memory },
			       &t->pickle, NULL, err);
}

int dcp_torch_tar_tensor(const struct dcp_torch *t, const char *number,
			 struct dcp_torch_tensor *out, struct dcp_err *err)
{
	uint64_t id;
	const struct dcp_torch_tar_tensor *x = NULL;
	const struct dcp_torch_tar_storage *s;
	struct dcp_torch_storage view = { .key = number };
	uint64_t numbers[2 * DCP_MAX_NDIM + 1];
	struct cursor c = { .t = (struct dcp_torch *)(uintptr_t)t, .err = err };
	int r;

	if (dcp_is_number(number, &id))
		x = DCP_FIND(&id, t->tar.tensors, t->tar.ntensors, dcp_by_u64);
	s = x && !x->empty ? find_storage(t, x->storage) : NULL;
	if (!s)
		return dcp_fail(err, -EBADMSG,
				x ? "tensor %.40s has no storage in the stream"
				  : "the stream has no tensor %.40s",
				number);
	c.m = (struct member){ x->at, t->src.size };
	r = next_i64s(&c, numbers, 2 * x->ndim + 1);
	if (r < 0)
		return r;
	*out = (struct dcp_torch_tensor){ .ndim = x->ndim, .storage_off = s->off };
	memcpy(out->shape, numbers, x->ndim * sizeof(*numbers));
	memcpy(out->stride, numbers + x->ndim, x->ndim * sizeof(*numbers));
	view.itemsize = dcp_torch_itemsize(s->dtype);
	view.numel = view.view_n = s->numel;
	r = dcp_torch_take_dtype(out, s->dtype, err);
	if (r == 0)
		r = dcp_torch_place(out, &view, numbers[2 * x->ndim], s->off, err);
	return r < 0 ? r : 1;
}
