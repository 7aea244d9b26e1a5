/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/format/torch/field.h"
#include "core/format/torch/shard/shard_int.h"

enum { MAX_WRAPPERS = 4 }; /* a Parameter of a DTensor has one */

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

static struct dcp_tshard_found look(struct dcp_pv v)
{
	struct dcp_tshard_found f = { .kind = DCP_TSHARD_NEITHER };
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
		class = v.node->obj->callable; /* torch 1.12's were no tensors yet */
		f.state = v.node->obj->state;
	}
	f.kind = is_torch(class, "DTensor")         ? DCP_TSHARD_DTENSOR
		 : is_torch(class, "ShardedTensor") ? DCP_TSHARD_SHARDED
						    : DCP_TSHARD_NEITHER;
	return f;
}

bool dcp_tshard_is(struct dcp_pv v)
{
	return look(v).kind != DCP_TSHARD_NEITHER;
}

/* ---- what both have ---- */

static void see_whole(struct dcp_tshard *s)
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
static int read_shard(struct dcp_tshard_reading *r, struct dcp_pv v, struct dcp_piece *p)
{
	const struct dcp_pv *tensor = dcp_pv_get(v, "tensor");
	const struct dcp_pv metadata = dcp_pv_at(v, "metadata");
	const struct dcp_pv *lo = dcp_pv_get(metadata, "shard_offsets");
	const struct dcp_pv *len = dcp_pv_get(metadata, "shard_sizes");
	uint64_t dims[2][DCP_MAX_NDIM], volume;
	struct dcp_tplace_box box = { .at = dcp_origin };
	struct dcp_torch_tensor tt;
	uint32_t n[2];
	int rc;

	if (!tensor || !lo || !len)
		return dcp_tshard_damaged(r, "local shard lacks its tensor, offsets or sizes");
	rc = dcp_tfield_dims(*lo, "shard_offsets", dims[0], &n[0], r->err);
	if (rc == 0)
		rc = dcp_tfield_dims(*len, "shard_sizes", dims[1], &n[1], r->err);
	if (rc == 0)
		rc = dcp_tshard_local(r, *tensor, &tt);
	if (rc < 0)
		return rc;
	if (n[0] != r->out->t.ndim || n[1] != n[0] || tt.ndim != n[0] ||
	    memcmp(tt.shape, dims[1], n[1] * sizeof(dims[1][0])) != 0)
		return dcp_tshard_damaged(
			r, "local shard has another shape than its metadata says");
	if (!dcp_shape_volume(dims[1], n[1], &volume) || volume == 0)
		return 0;
	box.lo = dcp_arena_dup(r->arena, dims[0], n[0], sizeof(**dims));
	box.len = dcp_arena_dup(r->arena, dims[1], n[1], sizeof(**dims));
	if (!box.lo || !box.len)
		return dcp_tshard_no_memory(r);
	rc = dcp_tshard_place(r, p, &tt, &box);
	return rc < 0 ? rc : 1;
}

/* A rank without shards knows the type from the metadata alone. */
static int read_properties(struct dcp_tshard_reading *r, struct dcp_pv metadata)
{
	const struct dcp_pv *properties = dcp_pv_get(metadata, "tensor_properties");
	const char *name;
	enum dcp_dtype dtype;
	int rc;

	if (!properties)
		return dcp_tshard_damaged(r, "metadata has no tensor_properties");
	rc = dcp_tfield_dtype(*properties, &name, r->err);
	if (rc < 0)
		return rc;
	dtype = dcp_dtype_from_torch(name, strlen(name));
	return dcp_tshard_set_dtype(
		r, dtype == DCP_DTYPE_OTHER ? name : dcp_dtype_info(dtype)->name, dtype,
		dcp_torch_itemsize(name));
}

static int read_sharded(struct dcp_tshard_reading *r, const struct dcp_tshard_found *f)
{
	size_t n, nshards;
	const struct dcp_pv *part = dcp_pv_items(f->state, &n), *shard, *size;
	struct dcp_piece *p;
	int rc;

	/* (local shards, metadata, process group, sharding spec, init_rrefs) */
	size = n >= 2 ? dcp_pv_get(part[1], "size") : NULL;
	if (f->state.type != DCP_PV_TUPLE || !size)
		return dcp_tshard_damaged(r, "state has no metadata");
	rc = dcp_tshard_set_shape(r, *size);
	if (rc == 0)
		rc = read_properties(r, part[1]);
	if (rc < 0)
		return rc;
	shard = dcp_pv_items(part[0], &nshards);
	if (nshards > DCP_TSHARD_MAX_PIECES)
		return dcp_tshard_damaged(r, "local shards are too many");
	p = dcp_arena_calloc(r->arena, nshards + 1, sizeof(*p));
	if (!p)
		return dcp_tshard_no_memory(r);
	r->out->t.pieces = p;
	for (size_t i = 0; i < nshards; i++) {
		rc = read_shard(r, shard[i], &p[r->out->t.npieces]);
		if (rc < 0)
			return rc;
		r->out->t.npieces += (size_t)rc;
	}
	return 0;
}

int dcp_tshard_read(const struct dcp_torch *t, struct dcp_pv v, uint32_t file, uint64_t base,
		    struct dcp_arena *arena, struct dcp_tshard *out, struct dcp_err *err)
{
	struct dcp_tshard_reading r = { t, file, base, arena, out, err };
	struct dcp_tshard_found f = look(v);
	int rc;

	*out = (struct dcp_tshard){ .what = f.kind == DCP_TSHARD_DTENSOR ? "DTensor"
									 : "ShardedTensor" };
	if (f.kind == DCP_TSHARD_NEITHER)
		return 0;
	rc = f.kind == DCP_TSHARD_DTENSOR ? dcp_tshard_dtensor(&r, &f) : read_sharded(&r, &f);
	if (rc < 0)
		return rc;
	see_whole(out);
	return 1;
}

const char *dcp_tshard_region(char *buf, size_t n, const struct dcp_piece *p, uint32_t ndim)
{
	size_t at = 0;

	buf[0] = '\0';
	for (uint32_t k = 0; k < ndim && at + 48 < n; k++)
		at += (size_t)snprintf(buf + at, n - at, "%s%" PRIu64 ":%" PRIu64, k ? "," : "",
				       p->lo[k], p->lo[k] + p->len[k]);
	return buf;
}
