/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"
#include "core/parse/pyjson/pyjson.h"

#define DCP "torch.distributed.checkpoint."
#define OLD "torch.distributed._shard.checkpoint." /* torch 1.12 and 1.13 */
#define MEGATRON "megatron.core.dist_checkpointing.strategies.torch"

static const struct {
	const char *name, *module;
	enum dcp_torch_field_class class;
} classes[] = {
	{ "MetadataIndex", DCP "metadata", DCP_TORCH_FIELD_INDEX },
	{ "_StorageInfo", DCP "filesystem", DCP_TORCH_FIELD_INFO },
	{ "ChunkStorageMetadata", DCP "metadata", DCP_TORCH_FIELD_CHUNK },
	{ "TensorStorageMetadata", DCP "metadata", DCP_TORCH_FIELD_TENSOR },
	{ "TensorProperties", DCP "metadata", DCP_TORCH_FIELD_PROPERTIES },
	{ "BytesStorageMetadata", DCP "metadata", DCP_TORCH_FIELD_BYTES },
	{ "Metadata", DCP "metadata", DCP_TORCH_FIELD_METADATA },
	{ "StorageMeta", DCP "metadata", DCP_TORCH_FIELD_STORAGE_META },
	{ "TensorProperties", "torch.distributed._shard.sharded_tensor.metadata",
	  DCP_TORCH_FIELD_PROPERTIES },
	{ "MetadataIndex", OLD "metadata", DCP_TORCH_FIELD_INDEX },
	{ "_StorageInfo", OLD "filesystem", DCP_TORCH_FIELD_INFO },
	{ "ChunkStorageMetadata", OLD "metadata", DCP_TORCH_FIELD_CHUNK },
	{ "TensorStorageMetadata", OLD "metadata", DCP_TORCH_FIELD_TENSOR },
	{ "BytesStorageMetadata", OLD "metadata", DCP_TORCH_FIELD_BYTES },
	{ "Metadata", OLD "metadata", DCP_TORCH_FIELD_METADATA },
	{ "ShardedTensorStorageMetadata", OLD "metadata", DCP_TORCH_FIELD_SHARDED_1_12 },
	{ "MCoreMetadata", MEGATRON, DCP_TORCH_FIELD_METADATA },
	{ "MCoreSavePlan", MEGATRON, DCP_TORCH_FIELD_PLAN },
	{ "SavePlan", DCP "planner", DCP_TORCH_FIELD_PLAN },
	{ "WriteItem", DCP "planner", DCP_TORCH_FIELD_PLAN },
	{ "TensorWriteData", DCP "planner", DCP_TORCH_FIELD_PLAN },
	{ "BytesIOWriteData", DCP "planner", DCP_TORCH_FIELD_PLAN },
};

static const struct dcp_pnode *class_node(struct dcp_pv v)
{
	struct dcp_pv c;

	if (v.type != DCP_PV_OBJECT)
		return NULL;
	c = v.node->obj->callable;
	return c.type == DCP_PV_GLOBAL ? c.node : NULL;
}

enum dcp_torch_field_class dcp_torch_field_class(struct dcp_pv v)
{
	const struct dcp_pnode *c = class_node(v);

	if (!c)
		return DCP_TORCH_FIELD_OTHER;
	for (size_t i = 0; i < DCP_LEN(classes); i++)
		if (classes[i].name[0] == c->name[0] && strcmp(classes[i].name, c->name) == 0 &&
		    strcmp(classes[i].module, c->module) == 0)
			return classes[i].class;
	return DCP_TORCH_FIELD_OTHER;
}

const char *dcp_torch_field_type(struct dcp_pv v, char *buf, size_t n)
{
	const struct dcp_pnode *c = v.type == DCP_PV_GLOBAL ? v.node : class_node(v);

	if (!c)
		return dcp_pyjson_type(v);
	snprintf(buf, n, "%s.%s", c->module, c->name);
	return buf;
}

static int fail_wrong_type(struct dcp_err *err, const char *what, struct dcp_pv v,
			   const char *want)
{
	char type[128];

	return dcp_fail(err, -EBADMSG, "%s is %s, expected %s", what,
			dcp_torch_field_type(v, type, sizeof(type)), want);
}

int dcp_torch_field_dims(struct dcp_pv v, const char *what, uint64_t dims[DCP_MAX_NDIM],
			 uint32_t *ndim, struct dcp_err *err)
{
	const struct dcp_pv *item;
	size_t n;

	if (dcp_pv_is_object(v, "torch", "Size")) {
		item = dcp_pv_items(v.node->obj->args, &n);
		if (n > 0)
			v = item[0];
		else
			v = v.node->obj->args; /* torch.Size(): no dimensions */
	}
	if (v.type != DCP_PV_TUPLE && v.type != DCP_PV_LIST)
		return fail_wrong_type(err, what, v, "torch.Size");
	item = dcp_pv_items(v, &n);
	if (n > DCP_MAX_NDIM)
		return dcp_fail(err, -EBADMSG, "%s has %zu dimensions, at most %d are possible",
				what, n, DCP_MAX_NDIM);
	for (size_t k = 0; k < n; k++) {
		if (item[k].type == DCP_PV_INT && item[k].i < 0)
			return dcp_fail(err, -EBADMSG,
					"%s[%zu] is %" PRId64 ", a negative number", what, k,
					item[k].i);
		if (!dcp_pv_u64(item[k], &dims[k]))
			return fail_wrong_type(err, what, item[k], "integers of 64 bits");
	}
	*ndim = (uint32_t)n;
	return 0;
}

int dcp_torch_field_dtype(struct dcp_pv v, const char **name, struct dcp_err *err)
{
	const struct dcp_pv *dtype, *item;
	size_t n;

	if (dcp_torch_field_class(v) != DCP_TORCH_FIELD_PROPERTIES)
		return fail_wrong_type(err, "properties", v, "TensorProperties");
	dtype = dcp_pv_get(v, "dtype");
	item = dcp_pv_items(v.node->obj->state, &n);
	if (v.node->obj->state.type == DCP_PV_TUPLE && n > 0)
		dtype = &item[0];
	if (!dtype)
		return dcp_fail(err, -EBADMSG, "TensorProperties without dtype");
	if (dtype->type != DCP_PV_GLOBAL || strcmp(dtype->node->module, "torch") != 0)
		return fail_wrong_type(err, "dtype", *dtype, "one of torch's");
	*name = dtype->node->name;
	return 0;
}

/* "stream.zstd" or "stream.zstd/1": the only known transform. The error names any other. */
static int read_transforms(struct dcp_pv v, enum dcp_filter *filter, struct dcp_err *err)
{
	static const char zstd[] = "stream.zstd";
	const struct dcp_pv *item;
	const char *name;
	size_t n;

	*filter = DCP_FILTER_NONE;
	if (v.type == DCP_PV_NONE)
		return 0;
	if (v.type != DCP_PV_LIST && v.type != DCP_PV_TUPLE)
		return fail_wrong_type(err, "transform_descriptors", v, "a list");
	item = dcp_pv_items(v, &n);
	if (n == 0)
		return 0;
	name = dcp_pv_str(item[0]);
	if (!name)
		return fail_wrong_type(err, "transform descriptor", item[0], "str");
	if (n > 1)
		return dcp_fail(err, -ENOTSUP,
				"%zu stream transforms on one item (%s, ...), expected one", n,
				name);
	if (strncmp(name, zstd, sizeof(zstd) - 1) == 0) {
		const char *version = name + sizeof(zstd) - 1;

		if (!*version || strcmp(version, "/1") == 0 ||
		    strncmp(version, "/1.", 3) == 0) {
			*filter = DCP_FILTER_ZSTD;
			return 0;
		}
	}
	return dcp_fail(err, -ENOTSUP,
			"stored through the extension %s, expected none or stream.zstd/1",
			name);
}

/* Names must be relative to the directory and stay in it. */
static int check_path(const char *path, size_t n, struct dcp_err *err)
{
	if (n == 0 || memchr(path, '\0', n))
		return dcp_fail(err, -EBADMSG, "relative_path is empty or holds a NUL");
	if (path[0] == '/')
		return dcp_fail(err, -EXDEV,
				"relative_path \"%.200s\" is absolute, expected a name inside "
				"the checkpoint",
				path);
	for (const char *p = path; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
		if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || !p[2]))
			return dcp_fail(err, -EXDEV,
					"relative_path \"%.200s\" leads out of the checkpoint",
					path);
	return 0;
}

static int read_number(struct dcp_pv info, const char *field, uint64_t *out,
		       struct dcp_err *err)
{
	const struct dcp_pv *v = dcp_pv_get(info, field);

	if (!v)
		return dcp_fail(err, -EBADMSG, "_StorageInfo without %s", field);
	if (v->type == DCP_PV_INT && v->i < 0)
		return dcp_fail(err, -EBADMSG, "%s is %" PRId64 ", a negative number", field,
				v->i);
	if (!dcp_pv_u64(*v, out))
		return fail_wrong_type(err, field, *v, "an integer of 64 bits");
	return 0;
}

int dcp_torch_field_info(struct dcp_pv v, struct dcp_torch_field_info *out, struct dcp_err *err)
{
	const struct dcp_pv *path, *transforms;
	uint64_t end;
	int rc;

	if (dcp_torch_field_class(v) != DCP_TORCH_FIELD_INFO)
		return fail_wrong_type(err, "storage info", v, "_StorageInfo");
	path = dcp_pv_get(v, "relative_path");
	if (!path || path->type != DCP_PV_STR)
		return dcp_fail(err, -EBADMSG, "_StorageInfo without relative_path");
	out->path = path->node->data;
	out->path_len = path->node->n;
	rc = check_path(out->path, out->path_len, err);
	if (rc == 0)
		rc = read_number(v, "offset", &out->off, err);
	if (rc == 0)
		rc = read_number(v, "length", &out->nbytes, err);
	if (rc < 0)
		return rc;
	if (dcp_ckd_add(&end, out->off, out->nbytes) || end > INT64_MAX)
		return dcp_fail(err, -EBADMSG,
				"offset %" PRIu64 " and length %" PRIu64 " end beyond any file",
				out->off, out->nbytes);
	out->filter = DCP_FILTER_NONE;
	transforms = dcp_pv_get(v, "transform_descriptors");
	return transforms ? read_transforms(*transforms, &out->filter, err) : 0;
}

bool dcp_torch_field_component(struct dcp_buf *out, struct dcp_pv v)
{
	if (v.type == DCP_PV_INT) {
		dcp_buf_printf(out, "%" PRId64, v.i);
		return true;
	}
	if (v.type == DCP_PV_BOOL) {
		dcp_buf_str(out, v.b ? "True" : "False");
		return true;
	}
	if (v.type != DCP_PV_STR)
		return false;
	for (const char *p = v.node->data, *end = p + v.node->n; p < end;) {
		const char *nul = memchr(p, '\0', (size_t)(end - p));

		dcp_buf_add(out, p, (size_t)((nul ? nul : end) - p));
		if (!nul)
			break;
		dcp_buf_add(out, "\xc0\x80", 2);
		p = nul + 1;
	}
	return true;
}

enum { MAX_SPANS = 1024 };

/* The spans of one dimension, being cut. */
struct axis {
	struct dcp_span *span;
	size_t n;
	uint64_t len;
};

/* Number @at of @n chunks of @len, as torch.chunk() cuts. */
static void find_chunk(uint64_t len, uint64_t n, uint64_t at, uint64_t *lo, uint64_t *hi)
{
	uint64_t full = dcp_div_up(len, n);

	/* at < n and full * (n - 1) < len + n: only the ends need care. */
	*lo = full && at > len / full ? len : DCP_MIN(at * full, len);
	*hi = len - *lo < full ? len : *lo + full;
}

/* Append [lo, hi) of the array @from to @to. */
static int take_spans(struct axis *to, const struct axis *from, uint64_t lo, uint64_t hi)
{
	for (size_t i = 0; i < from->n && lo < hi; i++) {
		const struct dcp_span *s = &from->span[i];
		uint64_t a = DCP_MAX(lo, s->at), b = DCP_MIN(hi, s->at + s->n);

		if (a >= b)
			continue;
		if (to->n == MAX_SPANS)
			return -E2BIG;
		to->span[to->n++] = (struct dcp_span){ to->len, s->lo + (a - s->at), b - a };
		to->len += b - a;
	}
	return 0;
}

/* Cut @a into @factor chunks and keep piece @at of @n of each. */
static int cut_chunks(struct axis *a, struct axis *scratch, uint64_t factor, uint64_t n,
		      uint64_t at)
{
	struct axis to = { scratch->span, 0, 0 };

	/* Chunks after the last nonempty chunk hold nothing to keep. */
	for (uint64_t i = 0; i < factor && i < a->len; i++) {
		uint64_t lo, hi, from, upto;
		int rc;

		find_chunk(a->len, factor, i, &lo, &hi);
		find_chunk(hi - lo, n, at, &from, &upto);
		rc = take_spans(&to, a, lo + from, lo + upto);
		if (rc < 0)
			return rc;
	}
	scratch->span = a->span;
	*a = to;
	return 0;
}

/* The number of parts into which later placements cut the dimension of placement @i. */
static uint64_t cut_later(const struct dcp_torch_placement *place, uint32_t np, uint32_t i)
{
	uint64_t product = 1;

	for (uint32_t k = i + 1; k < np; k++)
		if (place[k].kind != DCP_TORCH_PLACEMENT_REPLICATE &&
		    place[k].dim == place[i].dim && dcp_ckd_mul(&product, product, place[k].n))
			return 0;
	return product;
}

static int cut_axis(const struct dcp_torch_placement *place, uint32_t np, uint32_t dim,
		    struct axis *a, struct axis *scratch)
{
	uint32_t later[DCP_TORCH_PLACEMENT_MAX], nlater = 0;
	int rc = 0;

	for (uint32_t i = 0; i < np && rc == 0; i++) {
		const struct dcp_torch_placement *p = &place[i];

		if (p->kind == DCP_TORCH_PLACEMENT_REPLICATE || p->dim != dim)
			continue;
		if (p->kind == DCP_TORCH_PLACEMENT_SHARD)
			rc = cut_chunks(a, scratch, 1, p->n, p->at);
		else if (p->factor > 1 && p->factor == cut_later(place, np, i))
			later[nlater++] = i;
		else
			rc = cut_chunks(a, scratch, p->factor, p->n, p->at);
	}
	while (nlater-- > 0 && rc == 0)
		rc = cut_chunks(a, scratch, 1, place[later[nlater]].n, place[later[nlater]].at);
	return rc;
}

static int check_places(const struct dcp_torch_placement *place, uint32_t np, uint32_t ndim,
			struct dcp_err *err)
{
	if (np > DCP_TORCH_PLACEMENT_MAX)
		return dcp_fail(err, -E2BIG,
				"placements over %u mesh dimensions, at most %d are possible",
				np, DCP_TORCH_PLACEMENT_MAX);
	for (uint32_t i = 0; i < np; i++) {
		const struct dcp_torch_placement *p = &place[i];

		if (p->n == 0 || p->at >= p->n)
			return dcp_fail(err, -EBADMSG,
					"coordinate %" PRIu64 " of a mesh dimension of %" PRIu64
					" ranks",
					p->at, p->n);
		if (p->kind != DCP_TORCH_PLACEMENT_REPLICATE && p->dim >= ndim)
			return dcp_fail(err, -EBADMSG,
					"Shard(%u) of a tensor of %u dimension%s", p->dim, ndim,
					dcp_s(ndim));
		if (p->kind == DCP_TORCH_PLACEMENT_STRIDED &&
		    (!p->factor || p->factor > MAX_SPANS))
			return dcp_fail(err, -EBADMSG,
					"_StridedShard with split_factor %" PRIu64, p->factor);
	}
	return 0;
}

/* Copy the spans of @a to @arena, without spare memory. */
static int keep_spans(const struct axis *a, struct dcp_arena *arena, struct dcp_axis *out)
{
	struct dcp_span *span = dcp_arena_dup(arena, a->span, a->n, sizeof(*span));

	*out = (struct dcp_axis){ span, a->n, a->len };
	return span ? 0 : -ENOMEM;
}

int dcp_torch_placement_cut(const struct dcp_torch_placement *place, uint32_t np, uint32_t ndim,
			    const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
			    struct dcp_err *err)
{
	struct dcp_span spans[2][MAX_SPANS];
	struct dcp_axis *axis = dcp_arena_calloc(arena, ndim + 1, sizeof(*axis));
	int rc = axis ? check_places(place, np, ndim, err) : -ENOMEM;

	for (uint32_t k = 0; k < ndim && rc == 0; k++) {
		struct axis a = { spans[0], shape[k] != 0, shape[k] };
		struct axis scratch = { spans[1], 0, 0 };

		a.span[0] = (struct dcp_span){ 0, 0, shape[k] };
		rc = cut_axis(place, np, k, &a, &scratch);
		if (rc == 0)
			rc = keep_spans(&a, arena, &axis[k]);
		if (rc == -E2BIG)
			dcp_fail(err, rc, "dimension %u is cut into more than %d spans", k,
				 MAX_SPANS);
	}
	if (rc == -ENOMEM)
		dcp_fail(err, rc, "out of memory for placements");
	if (rc == 0)
		*out = (struct dcp_cut){ .ndim = ndim, .axis = axis };
	return rc;
}

/* Combine each span of each dimension with each span of the others. */
int dcp_torch_placement_boxes(const struct dcp_cut *cut, uint64_t max, struct dcp_arena *arena,
			      const struct dcp_torch_placement_box **out, size_t *count)
{
	struct dcp_torch_placement_box *box;
	uint32_t ndim = cut->ndim;
	uint64_t n = 1;

	for (uint32_t k = 0; k < ndim; k++)
		if (dcp_ckd_mul(&n, n, cut->axis[k].n) || n > max)
			return -E2BIG;
	box = dcp_arena_calloc(arena, n + 1, sizeof(*box));
	if (!box)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t *dims = dcp_arena_calloc(arena, 3 * (size_t)ndim + 1, sizeof(*dims));
		uint64_t rest = i;

		if (!dims)
			return -ENOMEM;
		for (uint32_t k = ndim; k-- > 0; rest /= cut->axis[k].n) {
			const struct dcp_span *s = &cut->axis[k].span[rest % cut->axis[k].n];

			dims[k] = s->lo;
			dims[ndim + k] = s->at;
			dims[2 * ndim + k] = s->n;
		}
		box[i] = (struct dcp_torch_placement_box){ dims, dims + ndim, dims + 2 * ndim };
	}
	*out = box;
	*count = n;
	return 0;
}

int dcp_torch_placement_piece(const struct dcp_torch_placement_box *box, uint32_t ndim,
			      const uint64_t *shape, const uint64_t *stride, uint32_t itemsize,
			      struct dcp_arena *arena, struct dcp_piece *p)
{
	uint64_t *own = dcp_arena_calloc(arena, ndim + 1u, sizeof(*own));
	uint64_t dense = 1, first = 0, n = 0, step;
	bool bad = false;

	if (!own)
		return -ENOMEM;
	for (uint32_t k = ndim; k-- > 0;) {
		own[k] = stride ? stride[k] : dense;
		bad |= dcp_ckd_mul(&dense, dense, shape[k]) ||
		       dcp_ckd_mul(&step, box->at[k], own[k]) ||
		       dcp_ckd_add(&first, first, step);
	}
	p->lo = box->lo;
	p->len = box->len;
	p->stride = stride || memcmp(box->len, shape, ndim * sizeof(*shape)) ? own : NULL;
	bad |= !dcp_shape_volume(box->len, ndim, &p->run_n) ||
	       !dcp_stride_span(box->len, own, ndim, &n) ||
	       dcp_ckd_mul(&p->nbytes, n, itemsize) || dcp_ckd_mul(&first, first, itemsize) ||
	       dcp_ckd_add(&p->off, p->off, first);
	return bad ? -EBADMSG : 0;
}
