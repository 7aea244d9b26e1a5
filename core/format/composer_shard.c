/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ShardedTensor as torch pickles it: the class and a state, which is a tuple of its local
 * shards, its metadata and more:
 *
 *	[Shard{tensor, metadata: ShardMetadata{shard_offsets, shard_sizes, placement}}, ...]
 *	ShardedTensorMetadata{shards_metadata: [ShardMetadata, ...], size, tensor_properties}
 *
 * The local ones become pieces; the metadata of all say which are missing, and whose.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/format/composer_int.h"
#include "core/format/torch_field.h"
#include "core/model/tensor.h"
#include "core/parse/pyjson.h"
#include "core/parse/torch.h"

enum { MAX_PARTS = 16384 }; /* of one tensor: more than there were ever ranks */

/* Boxes and keys of all tensors; a box of 2 dimensions is 64 bytes. */
static const size_t memory = 1u << 30;

/* A part that somebody must have. */
struct part {
	const uint64_t *lo, *len;
	uint64_t rank;
	bool has_rank;
};

struct key {
	const char *key;
	const char *const *path;
	size_t npath;
	enum dcp_dtype dtype;
	char dtype_name[32];
	uint32_t itemsize, ndim;
	const uint64_t *shape;
	struct part *parts;
	size_t nparts;
	uint32_t first, last, n; /* pieces; first and last are set when n is not 0 */
	const char *error;
};

struct link {
	struct dcp_piece piece;
	uint32_t next;
};

void dcp_cshards_init(struct dcp_cshards *c)
{
	*c = (struct dcp_cshards){ 0 };
	dcp_arena_init(&c->arena, memory);
}

void dcp_cshards_finish(struct dcp_cshards *c)
{
	dcp_intern_finish(&c->names);
	dcp_buf_finish(&c->keys);
	dcp_buf_finish(&c->pieces);
	dcp_buf_finish(&c->scratch);
	dcp_arena_finish(&c->arena);
}

static int no_memory(struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for sharded tensors");
}

/* ---- what the pickle says ---- */

static bool is_class(struct dcp_pv v, const char *name)
{
	static const char package[] = "torch.distributed._shard.";

	return v.type == DCP_PV_GLOBAL && strcmp(v.node->name, name) == 0 &&
	       strncmp(v.node->module, package, strlen(package)) == 0;
}

/* The state's items, or NULL when it is no ShardedTensor. */
static const struct dcp_pv *state_of(struct dcp_pv v, size_t *n)
{
	const struct dcp_pobj *o;
	const struct dcp_pv *arg;
	struct dcp_pv state;
	size_t nargs = 0;

	if (v.type != DCP_PV_OBJECT)
		return NULL;
	o = v.node->obj;
	arg = dcp_pv_items(o->args, &nargs);
	if (is_class(o->callable, "ShardedTensor"))
		state = o->state;
	else if (dcp_pv_is_object(v, "torch._tensor", "_rebuild_from_type_v2") && nargs == 4 &&
		 is_class(arg[1], "ShardedTensor"))
		state = arg[3];
	else
		return NULL;
	*n = 0;
	if (state.type == DCP_PV_TUPLE)
		arg = dcp_pv_items(state, n);
	return arg;
}

bool dcp_cshards_is(struct dcp_pv v)
{
	size_t n;

	return state_of(v, &n) != NULL;
}

static const uint64_t *keep_dims(struct dcp_cshards *c, const uint64_t *dims, uint32_t n)
{
	uint64_t *to = dcp_arena_calloc(&c->arena, n + 1, sizeof(*to));

	if (to)
		memcpy(to, dims, n * sizeof(*to));
	return to;
}

/* A list of numbers under @name in @v, as many as the tensor has dimensions. */
static int read_dims(struct dcp_cshards *c, struct dcp_pv v, const char *name, uint32_t ndim,
		     const uint64_t **out, struct dcp_err *why)
{
	const struct dcp_pv *list = dcp_pv_get(v, name);
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t n = 0;
	int rc = list ? dcp_tfield_dims(*list, name, dims, &n, why)
		      : dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET, "a shard without %s", name);

	if (rc < 0)
		return rc;
	if (n != ndim)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"%s has %u numbers, the tensor %u dimensions", name, n, ndim);
	*out = keep_dims(c, dims, n);
	return *out ? 0 : -ENOMEM;
}

static int read_part(struct dcp_cshards *c, struct dcp_pv v, uint32_t ndim, struct part *out,
		     struct dcp_err *why)
{
	const struct dcp_pv *placement = dcp_pv_get(v, "placement"), *rank = NULL;
	int rc = read_dims(c, v, "shard_offsets", ndim, &out->lo, why);

	if (rc == 0)
		rc = read_dims(c, v, "shard_sizes", ndim, &out->len, why);
	if (placement)
		rank = dcp_pv_get(*placement, "_rank");
	out->has_rank = rank && dcp_pv_u64(*rank, &out->rank);
	return rc;
}

/* ---- one tensor, when it is first met ---- */

static struct key *key_at(const struct dcp_cshards *c, uint32_t i)
{
	return (struct key *)(void *)c->keys.p + i;
}

static struct link *link_at(const struct dcp_cshards *c, uint32_t i)
{
	return (struct link *)(void *)c->pieces.p + i;
}

static const char *const *keep_path(struct dcp_cshards *c, const struct dcp_leaf *leaf)
{
	const char **path = dcp_arena_calloc(&c->arena, leaf->npath + 1, sizeof(*path));

	for (size_t i = 0; path && i < leaf->npath; i++) {
		path[i] = dcp_arena_strndup(&c->arena, leaf->path[i], strlen(leaf->path[i]));
		if (!path[i])
			return NULL;
	}
	return path;
}

static int read_parts(struct dcp_cshards *c, struct key *k, struct dcp_pv meta,
		      struct dcp_err *why)
{
	const struct dcp_pv *list = dcp_pv_get(meta, "shards_metadata"), *item;
	size_t n = 0;
	int rc = 0;

	if (!list)
		return 0;
	item = dcp_pv_items(*list, &n);
	if (n > MAX_PARTS)
		return dcp_fail(why, -E2BIG, DCP_ERR_NO_OFFSET, "more than %d shards",
				MAX_PARTS);
	k->parts = dcp_arena_calloc(&c->arena, n + 1, sizeof(*k->parts));
	if (!k->parts)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		rc = read_part(c, item[i], k->ndim, &k->parts[i], why);
		k->nparts += rc == 0;
	}
	return rc;
}

/* Size and dtype, as the metadata of any rank has them. */
static int read_meta(struct dcp_cshards *c, struct key *k, struct dcp_pv meta,
		     struct dcp_err *why)
{
	const struct dcp_pv *size = dcp_pv_get(meta, "size");
	const struct dcp_pv *props = dcp_pv_get(meta, "tensor_properties");
	uint64_t dims[DCP_MAX_NDIM];
	const char *dtype = NULL;
	int rc = size && props ? dcp_tfield_dims(*size, "size", dims, &k->ndim, why)
			       : dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
					  "a sharded tensor without metadata");

	if (rc == 0)
		rc = dcp_tfield_dtype(*props, &dtype, why);
	if (rc < 0)
		return rc;
	k->shape = keep_dims(c, dims, k->ndim);
	if (!k->shape)
		return -ENOMEM;
	k->dtype = dcp_dtype_from_torch(dtype, strlen(dtype));
	k->itemsize = dcp_torch_itemsize(dtype);
	snprintf(k->dtype_name, sizeof(k->dtype_name), "%.31s",
		 k->dtype == DCP_DTYPE_OTHER ? dtype : dcp_dtype_info(k->dtype)->name);
	return read_parts(c, k, meta, why);
}

static int begin_key(struct dcp_cshards *c, const struct dcp_leaf *leaf, struct key *k,
		     struct dcp_err *err)
{
	*k = (struct key){ .dtype = DCP_DTYPE_OTHER, .npath = leaf->npath };
	k->key = dcp_arena_strndup(&c->arena, leaf->key, strlen(leaf->key));
	k->path = keep_path(c, leaf);
	return k->key && k->path ? 0 : no_memory(err);
}

/* ---- pieces ---- */

static bool same_dims(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	return n == 0 || memcmp(a, b, n * sizeof(*a)) == 0;
}

/* Replicas hold the same part: the first one's is taken. */
static bool has_box(const struct dcp_cshards *c, const struct key *k, const uint64_t *lo,
		    const uint64_t *len)
{
	uint32_t at = k->first;

	for (uint32_t i = 0; i < k->n; i++, at = link_at(c, at)->next)
		if (same_dims(link_at(c, at)->piece.lo, lo, k->ndim) &&
		    same_dims(link_at(c, at)->piece.len, len, k->ndim))
			return true;
	return false;
}

static int put_piece(struct dcp_cshards *c, struct key *k, const struct link *link,
		     struct dcp_err *why)
{
	uint32_t at = (uint32_t)(c->pieces.n / sizeof(*link));

	if (k->n == MAX_PARTS)
		return dcp_fail(why, -E2BIG, DCP_ERR_NO_OFFSET, "more than %d shards",
				MAX_PARTS);
	dcp_buf_add(&c->pieces, link, sizeof(*link));
	if (dcp_buf_error(&c->pieces))
		return -ENOMEM;
	if (k->n)
		link_at(c, k->last)->next = at;
	else
		k->first = at;
	k->last = at;
	k->n++;
	return 0;
}

/* Where the bytes of the local tensor lie, as a piece of the whole. */
static int make_piece(struct dcp_cshards *c, const struct key *k, const struct part *part,
		      const struct dcp_torch_tensor *tt, struct dcp_piece *p,
		      struct dcp_err *why)
{
	uint64_t last = 0, step;

	if (tt->ndim != k->ndim || !same_dims(tt->shape, part->len, k->ndim))
		return dcp_fail(why, -EBADMSG, tt->off,
				"a shard's tensor has another shape than its shard_sizes");
	if (tt->dtype != k->dtype || strcmp(tt->dtype_name, k->dtype_name) != 0)
		return dcp_fail(why, -EBADMSG, tt->off,
				"a shard is stored as %s, the metadata says %s", tt->dtype_name,
				k->dtype_name);
	*p = (struct dcp_piece){
		.lo = part->lo, .len = part->len, .off = tt->off, .swap = tt->swap
	};
	if (!dcp_shape_volume(part->len, k->ndim, &p->run_n))
		return dcp_fail(why, -EBADMSG, tt->off, "a shard beyond 64 bits");
	for (uint32_t d = 0; p->run_n && d < k->ndim; d++)
		if (dcp_ckd_mul(&step, tt->shape[d] - 1, tt->stride[d]) ||
		    dcp_ckd_add(&last, last, step))
			return dcp_fail(why, -EBADMSG, tt->off, "a shard beyond 64 bits");
	if (p->run_n &&
	    (dcp_ckd_add(&last, last, 1) || dcp_ckd_mul(&p->nbytes, last, tt->itemsize)))
		return dcp_fail(why, -EBADMSG, tt->off, "a shard beyond 64 bits");
	if (!tt->row_major) {
		p->stride = keep_dims(c, tt->stride, tt->ndim);
		if (!p->stride)
			return -ENOMEM;
	}
	return 0;
}

static int add_local(struct dcp_cshards *c, struct key *k, const struct dcp_torch *t,
		     struct dcp_pv shard, uint32_t file, struct dcp_err *why)
{
	const struct dcp_pv *tensor = dcp_pv_get(shard, "tensor");
	const struct dcp_pv *meta = dcp_pv_get(shard, "metadata");
	struct dcp_torch_tensor tt;
	struct link link = { 0 };
	struct part part;
	int rc;

	if (!tensor || !meta)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"a local shard without tensor and metadata");
	rc = read_part(c, *meta, k->ndim, &part, why);
	if (rc < 0 || has_box(c, k, part.lo, part.len))
		return rc;
	rc = dcp_torch_tensor(t, *tensor, &tt, why);
	if (rc == 0)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET, "a local shard is no tensor");
	if (rc > 0)
		rc = make_piece(c, k, &part, &tt, &link.piece, why);
	if (rc < 0)
		return rc;
	link.piece.file = file;
	return put_piece(c, k, &link, why);
}

static int add_state(struct dcp_cshards *c, struct key *k, bool first,
		     const struct dcp_torch *t, const struct dcp_pv *state, size_t n,
		     uint32_t file, struct dcp_err *why)
{
	struct key other = { 0 };
	const struct dcp_pv *local;
	size_t nlocal = 0;
	int rc;

	if (n < 2)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"a sharded tensor whose state is none");
	rc = read_meta(c, first ? k : &other, state[1], why);
	if (rc == 0 && !first &&
	    (other.ndim != k->ndim || !same_dims(other.shape, k->shape, k->ndim) ||
	     strcmp(other.dtype_name, k->dtype_name) != 0))
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"ranks disagree about its size or dtype");
	local = dcp_pv_items(state[0], &nlocal);
	for (size_t i = 0; rc == 0 && i < nlocal; i++)
		rc = add_local(c, k, t, local[i], file, why);
	return rc;
}

int dcp_cshards_add(struct dcp_cshards *c, const struct dcp_torch *t,
		    const struct dcp_leaf *leaf, uint32_t file, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	const struct dcp_pv *state;
	struct key fresh;
	uint32_t number;
	size_t n = 0;
	int first = dcp_intern_add(&c->names, leaf->key, strlen(leaf->key), DCP_INTERN_NONE,
				   &number);
	int rc = first < 0 ? no_memory(err) : 0;

	if (first == 1) {
		rc = begin_key(c, leaf, &fresh, err);
		if (rc == 0)
			dcp_buf_add(&c->keys, &fresh, sizeof(fresh));
		if (dcp_buf_error(&c->keys))
			rc = no_memory(err);
	}
	if (rc < 0 || key_at(c, number)->error)
		return rc;
	state = state_of(leaf->value, &n);
	rc = add_state(c, key_at(c, number), first == 1, t, state, n, file, &why);
	if (rc == -ENOMEM)
		return no_memory(err);
	if (rc == 0)
		return 0;
	key_at(c, number)->error = dcp_arena_strndup(&c->arena, why.msg, strlen(why.msg));
	return key_at(c, number)->error ? 0 : no_memory(err);
}

/* ---- telling ---- */

/* The first part that nobody brought; NULL: all are there, or nobody knows. */
static const struct part *missing_part(const struct dcp_cshards *c, const struct key *k)
{
	for (size_t i = 0; i < k->nparts; i++) {
		const struct part *p = &k->parts[i];
		uint64_t volume;

		if (!has_box(c, k, p->lo, p->len) &&
		    (!dcp_shape_volume(p->len, k->ndim, &volume) || volume))
			return p;
	}
	return NULL;
}

/* "its part at [3, 0] is missing: rank 1, ep0-ba2-rank1.pt is not there" */
static const char *say_missing(struct dcp_cshards *c, const struct part *p, uint32_t ndim,
			       const char *who)
{
	dcp_buf_reset(&c->scratch);
	dcp_buf_str(&c->scratch, "its part at [");
	for (uint32_t d = 0; d < ndim; d++)
		dcp_buf_printf(&c->scratch, "%s%" PRIu64, d ? ", " : "", p->lo[d]);
	dcp_buf_str(&c->scratch, "] is missing");
	if (p->has_rank)
		dcp_buf_printf(&c->scratch, ": rank %" PRIu64 "%s%s", p->rank, who ? ", " : "",
			       who ? who : "");
	return dcp_buf_error(&c->scratch) ? "a part of it is missing" : c->scratch.p;
}

static int gather(const struct dcp_cshards *c, const struct key *k, struct dcp_buf *out)
{
	uint32_t at = k->first;

	dcp_buf_reset(out);
	for (uint32_t i = 0; i < k->n; i++, at = link_at(c, at)->next)
		dcp_buf_add(out, &link_at(c, at)->piece, sizeof(struct dcp_piece));
	return dcp_buf_error(out);
}

int dcp_cshards_tell(struct dcp_cshards *c, const struct dcp_sink *sink,
		     const char *(*file_of)(void *ctx, uint64_t rank), void *ctx,
		     struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf pieces = DCP_BUF_INIT;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < c->names.n; i++) {
		const struct key *k = key_at(c, i);
		struct dcp_tensor t = {
			.key = k->key,
			.path = k->path,
			.npath = k->npath,
			.dtype = k->dtype,
			.dtype_name = k->dtype_name,
			.itemsize = k->itemsize,
			.ndim = k->ndim,
			.shape = k->shape,
			.npieces = k->n,
			.error = k->error,
		};
		const struct part *gone = k->error ? NULL : missing_part(c, k);

		if (gone)
			t.error = say_missing(c, gone, k->ndim,
					      gone->has_rank ? file_of(ctx, gone->rank) : NULL);
		if (gather(c, k, &pieces) < 0)
			return no_memory(err);
		t.pieces = (const struct dcp_piece *)(const void *)pieces.p;
		rc = sink->tensor(sink->ctx, &t);
	}
	return rc;
}
