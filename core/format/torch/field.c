/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch/torch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/parse/pyjson/pyjson.h"

#define DCP "torch.distributed.checkpoint."
#define OLD "torch.distributed._shard.checkpoint." /* torch 1.12 and 1.13 */
#define MEGATRON "megatron.core.dist_checkpointing.strategies.torch"

static const struct {
	const char *name, *module;
	enum dcp_tfield_class class;
} classes[] = {
	{ "MetadataIndex", DCP "metadata", DCP_TFIELD_INDEX },
	{ "_StorageInfo", DCP "filesystem", DCP_TFIELD_INFO },
	{ "ChunkStorageMetadata", DCP "metadata", DCP_TFIELD_CHUNK },
	{ "TensorStorageMetadata", DCP "metadata", DCP_TFIELD_TENSOR },
	{ "TensorProperties", DCP "metadata", DCP_TFIELD_PROPERTIES },
	{ "BytesStorageMetadata", DCP "metadata", DCP_TFIELD_BYTES },
	{ "Metadata", DCP "metadata", DCP_TFIELD_METADATA },
	{ "StorageMeta", DCP "metadata", DCP_TFIELD_STORAGE_META },
	{ "TensorProperties", "torch.distributed._shard.sharded_tensor.metadata",
	  DCP_TFIELD_PROPERTIES },
	{ "MetadataIndex", OLD "metadata", DCP_TFIELD_INDEX },
	{ "_StorageInfo", OLD "filesystem", DCP_TFIELD_INFO },
	{ "ChunkStorageMetadata", OLD "metadata", DCP_TFIELD_CHUNK },
	{ "TensorStorageMetadata", OLD "metadata", DCP_TFIELD_TENSOR },
	{ "BytesStorageMetadata", OLD "metadata", DCP_TFIELD_BYTES },
	{ "Metadata", OLD "metadata", DCP_TFIELD_METADATA },
	{ "ShardedTensorStorageMetadata", OLD "metadata", DCP_TFIELD_SHARDED_1_12 },
	{ "MCoreMetadata", MEGATRON, DCP_TFIELD_METADATA },
	{ "MCoreSavePlan", MEGATRON, DCP_TFIELD_PLAN },
	{ "SavePlan", DCP "planner", DCP_TFIELD_PLAN },
	{ "WriteItem", DCP "planner", DCP_TFIELD_PLAN },
	{ "TensorWriteData", DCP "planner", DCP_TFIELD_PLAN },
	{ "BytesIOWriteData", DCP "planner", DCP_TFIELD_PLAN },
};

static const struct dcp_pnode *class_node(struct dcp_pv v)
{
	struct dcp_pv c;

	if (v.type != DCP_PV_OBJECT)
		return NULL;
	c = v.node->obj->callable;
	return c.type == DCP_PV_GLOBAL ? c.node : NULL;
}

enum dcp_tfield_class dcp_tfield_class(struct dcp_pv v)
{
	const struct dcp_pnode *c = class_node(v);

	if (!c)
		return DCP_TFIELD_OTHER;
	for (size_t i = 0; i < DCP_LEN(classes); i++)
		if (classes[i].name[0] == c->name[0] && strcmp(classes[i].name, c->name) == 0 &&
		    strcmp(classes[i].module, c->module) == 0)
			return classes[i].class;
	return DCP_TFIELD_OTHER;
}

const char *dcp_tfield_type(struct dcp_pv v, char *buf, size_t n)
{
	const struct dcp_pnode *c = v.type == DCP_PV_GLOBAL ? v.node : class_node(v);

	if (!c)
		return dcp_pyjson_type(v);
	snprintf(buf, n, "%s.%s", c->module, c->name);
	return buf;
}

static int wrong_type(struct dcp_err *err, const char *what, struct dcp_pv v, const char *want)
{
	char type[128];

	return dcp_fail(err, -EBADMSG, "%s is %s, expected %s", what,
			dcp_tfield_type(v, type, sizeof(type)), want);
}

int dcp_tfield_dims(struct dcp_pv v, const char *what, uint64_t dims[DCP_MAX_NDIM],
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
		return wrong_type(err, what, v, "torch.Size");
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
			return wrong_type(err, what, item[k], "integers of 64 bits");
	}
	*ndim = (uint32_t)n;
	return 0;
}

int dcp_tfield_dtype(struct dcp_pv v, const char **name, struct dcp_err *err)
{
	const struct dcp_pv *dtype, *item;
	size_t n;

	if (dcp_tfield_class(v) != DCP_TFIELD_PROPERTIES)
		return wrong_type(err, "properties", v, "TensorProperties");
	dtype = dcp_pv_get(v, "dtype");
	item = dcp_pv_items(v.node->obj->state, &n);
	if (v.node->obj->state.type == DCP_PV_TUPLE && n > 0)
		dtype = &item[0];
	if (!dtype)
		return dcp_fail(err, -EBADMSG, "TensorProperties without dtype");
	if (dtype->type != DCP_PV_GLOBAL || strcmp(dtype->node->module, "torch") != 0)
		return wrong_type(err, "dtype", *dtype, "one of torch's");
	*name = dtype->node->name;
	return 0;
}

/* "stream.zstd" or "stream.zstd/1": the only transform that exists. Others are named. */
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
		return wrong_type(err, "transform_descriptors", v, "a list");
	item = dcp_pv_items(v, &n);
	if (n == 0)
		return 0;
	name = dcp_pv_str(item[0]);
	if (!name)
		return wrong_type(err, "transform descriptor", item[0], "str");
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

/* Names are relative to the directory and stay in it. */
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
		return wrong_type(err, field, *v, "an integer of 64 bits");
	return 0;
}

int dcp_tfield_info(struct dcp_pv v, struct dcp_tfield_info *out, struct dcp_err *err)
{
	const struct dcp_pv *path, *transforms;
	uint64_t end;
	int rc;

	if (dcp_tfield_class(v) != DCP_TFIELD_INFO)
		return wrong_type(err, "storage info", v, "_StorageInfo");
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

bool dcp_tfield_component(struct dcp_buf *out, struct dcp_pv v)
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
