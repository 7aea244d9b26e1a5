/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch/torch.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/parse/torch/torch.h"

#define DCP_SHARD_MAX_PIECES (1u << 16) /* of one tensor in one file */

struct dcp_shard_reading {
	const struct dcp_torch *t;
	uint32_t file;
	uint64_t base;
	struct dcp_arena *arena;
	struct dcp_shard *out;
	struct dcp_err *err;
};

/* The kind of the tensor; its state; and the arguments of _rebuild_wrapper_subclass() (n 0: there
 * was none). */
struct dcp_shard_found {
	enum { DCP_SHARD_NEITHER, DCP_SHARD_DTENSOR, DCP_SHARD_SHARDED } kind;
	struct dcp_pv state;
	const struct dcp_pv *arg;
	size_t n;
};

/* ---- a tensor that a rank holds, and where in the whole it lies ---- */

/* Failures, as text: "DTensor whose <why>". */
static int dcp_shard_no_memory(const struct dcp_shard_reading *r)
{
	return dcp_fail(r->err, -ENOMEM, "out of memory for shards");
}

static int dcp_shard_damaged(const struct dcp_shard_reading *r, const char *why)
{
	return dcp_fail(r->err, -EBADMSG, "%s whose %s", r->out->what, why);
}

static int dcp_shard_set_shape(struct dcp_shard_reading *r, struct dcp_pv size)
{
	uint64_t dims[DCP_MAX_NDIM];
	int rc = dcp_torch_field_dims(size, "size", dims, &r->out->t.ndim, r->err);

	if (rc < 0)
		return rc;
	r->out->t.shape = dcp_arena_dup(r->arena, dims, r->out->t.ndim, sizeof(*dims));
	return r->out->t.shape ? 0 : dcp_shard_no_memory(r);
}

static int dcp_shard_set_dtype(struct dcp_shard_reading *r, const char *name,
			       enum dcp_dtype dtype, uint32_t itemsize)
{
	struct dcp_tensor *t = &r->out->t;

	if (t->dtype_name && (t->dtype != dtype || strcmp(t->dtype_name, name) != 0))
		return dcp_fail(r->err, -EBADMSG, "%s of %s with a local part of %s",
				r->out->what, t->dtype_name, name);
	t->dtype = dtype;
	t->itemsize = itemsize;
	t->dtype_name = dcp_arena_strdup(r->arena, name);
	return t->dtype_name ? 0 : dcp_shard_no_memory(r);
}

/* Read the tensor @v, a part of the whole, with the type of the whole. */
static int dcp_shard_local(struct dcp_shard_reading *r, struct dcp_pv v,
			   struct dcp_torch_tensor *tt)
{
	int rc = dcp_torch_tensor(r->t, v, tt, r->err);

	if (rc == 0)
		return dcp_shard_damaged(r, "local part is not a tensor");
	return rc < 0 ? rc : dcp_shard_set_dtype(r, tt->dtype_name, tt->dtype, tt->itemsize);
}

/* Piece @p is @box, which is not empty, of the stored tensor @tt. */
static int dcp_shard_place(struct dcp_shard_reading *r, struct dcp_piece *p,
			   const struct dcp_torch_tensor *tt,
			   const struct dcp_torch_placement_box *box)
{
	int rc = -EBADMSG;

	p->file = r->file;
	p->swap = tt->swap;
	if (!dcp_ckd_add(&p->off, r->base, tt->off))
		rc = dcp_torch_placement_piece(box, tt->ndim, tt->shape,
					       tt->row_major ? NULL : tt->stride, tt->itemsize,
					       r->arena, p);
	if (rc == -ENOMEM)
		return dcp_shard_no_memory(r);
	return rc < 0 ? dcp_shard_damaged(r, "place does not fit in 64 bits") : 0;
}

/* A DTensor: compares its mesh and placements with the stored local part. */

/* The attribute @name of a state that is a dict, or (None or a dict, a dict of slots). */
static const struct dcp_pv *find_attribute(struct dcp_pv state, const char *name)
{
	const struct dcp_pv *half, *found = NULL;
	size_t n;

	if (state.type != DCP_PV_TUPLE)
		return dcp_pv_get(state, name);
	half = dcp_pv_items(state, &n);
	while (n-- > 0 && !found)
		found = dcp_pv_get(half[n], name);
	return found;
}

static int read_placement(struct dcp_shard_reading *r, struct dcp_pv v,
			  struct dcp_torch_placement *p)
{
	const struct dcp_pv *dim, *factor;
	const char *name = "";
	uint64_t n = 0;

	if (v.type == DCP_PV_OBJECT && v.node->obj->callable.type == DCP_PV_GLOBAL)
		name = v.node->obj->callable.node->name;
	if (strcmp(name, "Replicate") == 0) {
		p->kind = DCP_TORCH_PLACEMENT_REPLICATE;
		return 0;
	}
	if (strstr(name, "Partial"))
		return dcp_fail(
			r->err, -ENOTSUP,
			"DTensor placed %s: the ranks hold sums that were never added up",
			name);
	dim = dcp_pv_get(v, "dim");
	factor = dcp_pv_get(v, "split_factor");
	p->kind = strcmp(name, "_StridedShard") == 0 ? DCP_TORCH_PLACEMENT_STRIDED
						     : DCP_TORCH_PLACEMENT_SHARD;
	if ((p->kind == DCP_TORCH_PLACEMENT_SHARD && strcmp(name, "Shard") != 0) || !dim)
		return dcp_fail(
			r->err, -ENOTSUP,
			"DTensor placed %.60s: expected Shard, Replicate or _StridedShard",
			*name ? name : "by something without a name");
	if (dim->type == DCP_PV_INT && dim->i < 0 && dim->i >= -(int64_t)r->out->t.ndim)
		n = (uint64_t)(dim->i + r->out->t.ndim);
	else if (!dcp_pv_u64(*dim, &n) || n >= DCP_MAX_NDIM)
		return dcp_shard_damaged(r, "Shard names no dimension");
	p->dim = (uint32_t)n;
	p->factor = 1;
	if (p->kind == DCP_TORCH_PLACEMENT_STRIDED && factor &&
	    !dcp_pv_u64(*factor, &p->factor))
		return dcp_shard_damaged(r, "split_factor is not a number");
	return 0;
}

/* The product of a number or of a tuple of numbers: torch writes an axis with one rank as (). */
static bool read_product(struct dcp_pv v, uint64_t *out)
{
	const struct dcp_pv *item;
	size_t n;

	if (dcp_pv_u64(v, out))
		return true;
	if (v.type != DCP_PV_TUPLE && v.type != DCP_PV_LIST)
		return false;
	item = dcp_pv_items(v, &n);
	*out = 1;
	for (size_t i = 0; i < n; i++) {
		uint64_t one;

		if (!dcp_pv_u64(item[i], &one) || dcp_ckd_mul(out, *out, one))
			return false;
	}
	return true;
}

/* Count the ranks along mesh dimension @i. The mesh is a tensor of ranks or (torch 2.9) a layout,
 * whose axes may be flattened from several. */
static bool mesh_size(const struct dcp_shard_reading *r, struct dcp_pv mesh, size_t i,
		      uint64_t *out)
{
	const struct dcp_pv *ranks = dcp_pv_get(mesh, "mesh");
	const struct dcp_pv layout = dcp_pv_at(mesh, "_layout");
	struct dcp_pv axes = dcp_pv_at(layout, "axes"), axis;
	struct dcp_torch_tensor tt;

	if (!ranks)
		ranks = dcp_pv_get(mesh, "_mesh");
	if (ranks && dcp_torch_tensor(r->t, *ranks, &tt, NULL) == 1) {
		*out = i < tt.ndim ? tt.shape[i] : 0;
		return i < tt.ndim;
	}
	if (axes.type == DCP_PV_NONE)
		axes = dcp_pv_at(layout, "shape");
	if (axes.type == DCP_PV_INT)
		return i == 0 && dcp_pv_u64(axes, out);
	axis = dcp_pv_item(axes, i);
	return read_product(axis.type == DCP_PV_OBJECT ? dcp_pv_at(axis, "shape") : axis, out);
}

/* torch 2.10 stores separately in which order mesh dimensions cut a dimension of the tensor. */
static void reorder_places(const struct dcp_pv *order, struct dcp_torch_placement *p, size_t n)
{
	struct dcp_torch_placement to[DCP_TORCH_PLACEMENT_MAX];
	const struct dcp_pv *entry;
	bool seen[DCP_TORCH_PLACEMENT_MAX] = { 0 };
	size_t nentries, k = 0;

	if (!order)
		return;
	entry = dcp_pv_items(*order, &nentries);
	for (size_t i = 0; i < nentries; i++) {
		const struct dcp_pv *part, *dims;
		size_t nparts = 0, ndims = 0;

		part = entry[i].type == DCP_PV_OBJECT
			       ? dcp_pv_items(entry[i].node->obj->args, &nparts)
			       : dcp_pv_items(entry[i], &nparts);
		dims = nparts == 2 ? dcp_pv_items(part[1], &ndims) : NULL;
		for (size_t d = 0; d < ndims; d++) {
			uint64_t at;

			if (!dcp_pv_u64(dims[d], &at) || at >= n || seen[at])
				return;
			seen[at] = true;
			to[k++] = p[at];
		}
	}
	for (size_t i = 0; i < n; i++)
		if (!seen[i])
			to[k++] = p[i];
	memcpy(p, to, n * sizeof(*p));
}

static int read_places(struct dcp_shard_reading *r, struct dcp_pv spec,
		       struct dcp_torch_placement *p, size_t *np)
{
	const struct dcp_pv *mesh = dcp_pv_get(spec, "mesh");
	const struct dcp_pv *placements = dcp_pv_get(spec, "placements"), *item, *coordinate;
	size_t n, ncoordinates;

	if (!mesh || !placements)
		return dcp_shard_damaged(r, "_spec has no mesh or no placements");
	item = dcp_pv_items(*placements, &n);
	coordinate = dcp_pv_get(*mesh, "_coordinate_on_dim");
	if (n > DCP_TORCH_PLACEMENT_MAX)
		return dcp_shard_damaged(r, "placements are too many");
	*np = n;
	if (!coordinate || coordinate->type == DCP_PV_NONE)
		return dcp_shard_damaged(r,
					 "mesh does not say which place in it this rank has");
	coordinate = dcp_pv_items(*coordinate, &ncoordinates);
	if (ncoordinates != n)
		return dcp_shard_damaged(r,
					 "mesh and placements differ in number of dimensions");
	for (size_t i = 0; i < n; i++) {
		int rc = read_placement(r, item[i], &p[i]);

		if (rc < 0)
			return rc;
		if (!dcp_pv_u64(coordinate[i], &p[i].at) || !mesh_size(r, *mesh, i, &p[i].n))
			return dcp_shard_damaged(
				r, "mesh has no size or coordinate for a dimension");
	}
	reorder_places(dcp_pv_get(spec, "shard_order"), p, n);
	return 0;
}

static int find_boxes(struct dcp_shard_reading *r, const struct dcp_cut *cut)
{
	int rc = dcp_torch_placement_boxes(cut, DCP_SHARD_MAX_PIECES, r->arena, &r->out->box,
					   &r->out->nbox);

	if (rc == -E2BIG)
		return dcp_fail(r->err, -E2BIG, "DTensor cut into more than %d boxes",
				DCP_SHARD_MAX_PIECES);
	return rc < 0 ? dcp_shard_no_memory(r) : 0;
}

static int emit_cut(struct dcp_shard_reading *r, const struct dcp_torch_tensor *tt)
{
	struct dcp_tensor *t = &r->out->t;
	const struct dcp_torch_placement_box *box = r->out->box;
	size_t n = r->out->nbox;
	struct dcp_piece *p = dcp_arena_calloc(r->arena, n + 1, sizeof(*p));
	int rc = 0;

	if (!p)
		return dcp_shard_no_memory(r);
	t->pieces = p;
	for (; rc == 0 && t->npieces < n; t->npieces++)
		rc = dcp_shard_place(r, &p[t->npieces], tt, &box[t->npieces]);
	return rc;
}

static int check_local(struct dcp_shard_reading *r, const struct dcp_cut *cut,
		       uint32_t local_ndim, const uint64_t *local)
{
	uint64_t want[DCP_MAX_NDIM], volume;
	uint32_t ndim = dcp_cut_shape(cut, want);

	if (local_ndim == ndim && memcmp(want, local, ndim * sizeof(*want)) == 0)
		return 0;
	if (dcp_cut_volume(cut, &volume) && volume == 0 &&
	    dcp_shape_volume(local, local_ndim, &volume) && volume == 0)
		return 0;
	for (uint32_t k = 0; k < ndim; k++)
		if (local_ndim != ndim || local[k] != want[k])
			return dcp_fail(
				r->err, -EBADMSG,
				"DTensor whose local part has %u dimension%s and %" PRIu64
				" along dimension %u; its placements expect %u and %" PRIu64,
				local_ndim, dcp_s(local_ndim), k < local_ndim ? local[k] : 0, k,
				ndim, want[k]);
	return dcp_shard_damaged(r, "local part has dimensions where it should have none");
}

/* Read the local part, a single tensor (@tt) or several. */
static int read_local(struct dcp_shard_reading *r, struct dcp_pv v, struct dcp_torch_tensor *tt)
{
	struct dcp_shard *out = r->out;
	struct dcp_torch_parts parts;

	if (dcp_torch_is_tensor(v) || !dcp_torch_parts(v, &parts) || !parts.wraps)
		return dcp_shard_local(r, v, tt);
	tt->ndim = parts.ndim;
	memcpy(tt->shape, parts.shape, sizeof(tt->shape));
	out->parted = true;
	out->local = v;
	out->class = parts.kind;
	out->local_shape =
		dcp_arena_dup(r->arena, parts.shape, parts.ndim, sizeof(*parts.shape));
	return out->local_shape ? 0 : dcp_shard_no_memory(r);
}

static int dcp_shard_dtensor(struct dcp_shard_reading *r, const struct dcp_shard_found *f)
{
	const struct dcp_pv *local = find_attribute(f->state, "_local_tensor");
	const struct dcp_pv *spec = find_attribute(f->state, "_spec");
	struct dcp_torch_placement p[DCP_TORCH_PLACEMENT_MAX];
	struct dcp_torch_tensor tt;
	struct dcp_cut cut;
	size_t np = 0;
	int rc;

	if (!local || !spec || f->n < 3)
		return dcp_shard_damaged(r, "_local_tensor, _spec or size is missing");
	rc = dcp_shard_set_shape(r, f->arg[2]);
	if (rc == 0)
		rc = read_local(r, *local, &tt);
	if (rc == 0)
		rc = read_places(r, *spec, p, &np);
	if (rc == 0)
		rc = dcp_torch_placement_cut(p, (uint32_t)np, r->out->t.ndim, r->out->t.shape,
					     r->arena, &cut, r->err);
	if (rc == 0)
		rc = check_local(r, &cut, tt.ndim, tt.shape);
	if (rc == 0)
		rc = find_boxes(r, &cut);
	return rc < 0 || r->out->parted ? rc : emit_cut(r, &tt);
}

enum { MAX_WRAPPERS = 4 }; /* a Parameter of a DTensor has one wrapper */

/* ---- looking for it ---- */

static bool is_torch(struct dcp_pv v, const char *name)
{
	return v.type == DCP_PV_GLOBAL && strncmp(v.node->module, "torch.", 6) == 0 &&
	       strcmp(v.node->name, name) == 0;
}

static bool is_called(struct dcp_pv v, const char *function)
{
	return v.type == DCP_PV_OBJECT && v.node->obj->called &&
	       is_torch(v.node->obj->callable, function);
}

static struct dcp_shard_found look_at_value(struct dcp_pv v)
{
	struct dcp_shard_found f = { .kind = DCP_SHARD_NEITHER };
	struct dcp_pv class = { 0 };

	for (int i = 0; i < MAX_WRAPPERS && (is_called(v, "_rebuild_parameter") ||
					     is_called(v, "_rebuild_parameter_with_state"));
	     i++) {
		const struct dcp_pv *arg = dcp_pv_items(v.node->obj->args, &f.n);

		if (f.n == 0)
			return f;
		v = arg[0];
	}
	f.n = 0;
	if (is_called(v, "_rebuild_from_type_v2")) {
		const struct dcp_pv *arg = dcp_pv_items(v.node->obj->args, &f.n);

		if (f.n != 4)
			return f;
		class = arg[1];
		f.state = arg[3];
		f.arg = dcp_pv_items(arg[2], &f.n);
	} else if (v.type == DCP_PV_OBJECT && v.node->obj->built) {
		class = v.node->obj->callable; /* torch 1.12's were not tensors yet */
		f.state = v.node->obj->state;
	}
	f.kind = is_torch(class, "DTensor")         ? DCP_SHARD_DTENSOR
		 : is_torch(class, "ShardedTensor") ? DCP_SHARD_SHARDED
						    : DCP_SHARD_NEITHER;
	return f;
}

bool dcp_shard_is(struct dcp_pv v)
{
	return look_at_value(v).kind != DCP_SHARD_NEITHER;
}

/* ---- what both have ---- */

static void see_whole(struct dcp_shard *s)
{
	const struct dcp_tensor *t = &s->t;
	uint64_t volume;

	if (!dcp_shape_volume(t->shape, t->ndim, &volume))
		return;
	if (s->parted)
		s->whole = memcmp(s->local_shape, t->shape, t->ndim * sizeof(*t->shape)) == 0;
	else
		s->whole = volume == 0 || (t->npieces == 1 && t->pieces[0].run_n == volume);
}

/* ---- ShardedTensor ---- */

/* Returns 1 when the shard holds elements. */
static int read_shard(struct dcp_shard_reading *r, struct dcp_pv v, struct dcp_piece *p)
{
	const struct dcp_pv *tensor = dcp_pv_get(v, "tensor");
	const struct dcp_pv metadata = dcp_pv_at(v, "metadata");
	const struct dcp_pv *lo = dcp_pv_get(metadata, "shard_offsets");
	const struct dcp_pv *len = dcp_pv_get(metadata, "shard_sizes");
	uint64_t dims[2][DCP_MAX_NDIM], volume;
	struct dcp_torch_placement_box box = { .at = dcp_origin };
	struct dcp_torch_tensor tt;
	uint32_t n[2];
	int rc;

	if (!tensor || !lo || !len)
		return dcp_shard_damaged(r, "local shard lacks its tensor, offsets or sizes");
	rc = dcp_torch_field_dims(*lo, "shard_offsets", dims[0], &n[0], r->err);
	if (rc == 0)
		rc = dcp_torch_field_dims(*len, "shard_sizes", dims[1], &n[1], r->err);
	if (rc == 0)
		rc = dcp_shard_local(r, *tensor, &tt);
	if (rc < 0)
		return rc;
	if (n[0] != r->out->t.ndim || n[1] != n[0] || tt.ndim != n[0] ||
	    memcmp(tt.shape, dims[1], n[1] * sizeof(dims[1][0])) != 0)
		return dcp_shard_damaged(
			r, "local shard has another shape than its metadata says");
	if (!dcp_shape_volume(dims[1], n[1], &volume) || volume == 0)
		return 0;
	box.lo = dcp_arena_dup(r->arena, dims[0], n[0], sizeof(**dims));
	box.len = dcp_arena_dup(r->arena, dims[1], n[1], sizeof(**dims));
	if (!box.lo || !box.len)
		return dcp_shard_no_memory(r);
	rc = dcp_shard_place(r, p, &tt, &box);
	return rc < 0 ? rc : 1;
}

/* A rank without shards knows the type from the metadata alone. */
static int read_properties(struct dcp_shard_reading *r, struct dcp_pv metadata)
{
	const struct dcp_pv *properties = dcp_pv_get(metadata, "tensor_properties");
	const char *name;
	enum dcp_dtype dtype;
	int rc;

	if (!properties)
		return dcp_shard_damaged(r, "metadata has no tensor_properties");
	rc = dcp_torch_field_dtype(*properties, &name, r->err);
	if (rc < 0)
		return rc;
	dtype = dcp_dtype_from_torch(name, strlen(name));
	return dcp_shard_set_dtype(
		r, dtype == DCP_DTYPE_OTHER ? name : dcp_dtype_info(dtype)->name, dtype,
		dcp_torch_itemsize(name));
}

static int read_sharded(struct dcp_shard_reading *r, const struct dcp_shard_found *f)
{
	size_t n, nshards;
	const struct dcp_pv *part = dcp_pv_items(f->state, &n), *shard, *size;
	struct dcp_piece *p;
	int rc;

	/* (local shards, metadata, process group, sharding spec, init_rrefs) */
	size = n >= 2 ? dcp_pv_get(part[1], "size") : NULL;
	if (f->state.type != DCP_PV_TUPLE || !size)
		return dcp_shard_damaged(r, "state has no metadata");
	rc = dcp_shard_set_shape(r, *size);
	if (rc == 0)
		rc = read_properties(r, part[1]);
	if (rc < 0)
		return rc;
	shard = dcp_pv_items(part[0], &nshards);
	if (nshards > DCP_SHARD_MAX_PIECES)
		return dcp_shard_damaged(r, "local shards are too many");
	p = dcp_arena_calloc(r->arena, nshards + 1, sizeof(*p));
	if (!p)
		return dcp_shard_no_memory(r);
	r->out->t.pieces = p;
	for (size_t i = 0; i < nshards; i++) {
		rc = read_shard(r, shard[i], &p[r->out->t.npieces]);
		if (rc < 0)
			return rc;
		r->out->t.npieces += (size_t)rc;
	}
	return 0;
}

int dcp_shard_read(const struct dcp_torch *t, struct dcp_pv v, uint32_t file, uint64_t base,
		   struct dcp_arena *arena, struct dcp_shard *out, struct dcp_err *err)
{
	struct dcp_shard_reading r = { t, file, base, arena, out, err };
	struct dcp_shard_found f = look_at_value(v);
	int rc;

	*out = (struct dcp_shard){ .what = f.kind == DCP_SHARD_DTENSOR ? "DTensor"
								       : "ShardedTensor" };
	if (f.kind == DCP_SHARD_NEITHER)
		return 0;
	rc = f.kind == DCP_SHARD_DTENSOR ? dcp_shard_dtensor(&r, &f) : read_sharded(&r, &f);
	if (rc < 0)
		return rc;
	see_whole(out);
	return 1;
}

const char *dcp_shard_region(char *buf, size_t n, const struct dcp_piece *p, uint32_t ndim)
{
	size_t at = 0;

	buf[0] = '\0';
	for (uint32_t k = 0; k < ndim && at + 48 < n; k++)
		at += (size_t)snprintf(buf + at, n - at, "%s%" PRIu64 ":%" PRIu64, k ? "," : "",
				       p->lo[k], p->lo[k] + p->len[k]);
	return buf;
}
