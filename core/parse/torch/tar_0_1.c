/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container of torch 0.1 (before March 2017): an uncompressed tar of four members.
 *
 *	sys_info   a pickle, of no use here
 *	pickle     the object; tensors in it are persistent ids: as text, the numbers of
 *	tensors    pickle of how many, then for each a pickle (id, id of its storage or None,
 *	           class), i64 ndim, i64 sizes[ndim], i64 strides[ndim], i64 first element
 *	storages   pickle of how many, then for each a pickle (id, location, class), i64
 *	           elements, the elements; at the end a pickle of views [(id, id of the root, first, n), ...]
 *
 * Numbers are little-endian: big-endian hosts wrote their own order, and no reader knew.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/number.h"
#include "core/base/sort.h"
#include "core/origin/archive/tar.h"
#include "core/parse/torch/torch_int.h"

struct member {
	uint64_t at, end; /* in the stream; end 0: not there */
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

/* A pickle of a number of things to come, each of which takes at least @each bytes. */
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

/* Views are storages inside others. */
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

/* Number, storage, and where its numbers are; they are read when asked for. */
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
