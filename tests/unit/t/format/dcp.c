/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/dcp.h"

#include <string.h>

#define METADATA "torch.distributed.checkpoint.metadata"

static void op(struct dcp_buf *b, char c)
{
	dcp_buf_add(b, &c, 1);
}

static void str(struct dcp_buf *b, const char *s)
{
	uint32_t n = (uint32_t)strlen(s);

	op(b, 'X'); /* BINUNICODE */
	dcp_buf_add(b, &n, sizeof(n));
	dcp_buf_add(b, s, n);
}

static void num(struct dcp_buf *b, int64_t v)
{
	op(b, '\x8a'); /* LONG1 */
	op(b, 8);
	dcp_buf_add(b, &v, sizeof(v));
}

static void global(struct dcp_buf *b, const char *module, const char *name)
{
	dcp_buf_printf(b, "c%s\n%s\n", module, name);
}

/* An instance whose state dict follows, up to built(). */
static void instance(struct dcp_buf *b, const char *module, const char *name)
{
	global(b, module, name);
	dcp_buf_add(b, ")\x81}(", 4); /* EMPTY_TUPLE NEWOBJ EMPTY_DICT MARK */
}

static void built(struct dcp_buf *b)
{
	dcp_buf_add(b, "ub", 2); /* SETITEMS BUILD */
}

static void size(struct dcp_buf *b, uint32_t n, const int64_t *dims)
{
	global(b, "torch", "Size");
	op(b, '(');
	for (uint32_t k = 0; k < n; k++)
		num(b, dims[k]);
	dcp_buf_add(b, "t\x85R", 3); /* TUPLE TUPLE1 REDUCE */
}

void t_dcp_begin(struct dcp_buf *b)
{
	dcp_buf_add(b, "\x80\x02", 2);
	instance(b, METADATA, "Metadata");
}

void t_dcp_section(struct dcp_buf *b, const char *name)
{
	str(b, name);
	dcp_buf_add(b, "}(", 2);
}

void t_dcp_end_section(struct dcp_buf *b)
{
	op(b, 'u');
}

void t_dcp_end(struct dcp_buf *b)
{
	built(b);
	op(b, '.');
}

static void chunk(struct dcp_buf *b, uint32_t ndim, const int64_t *at)
{
	instance(b, METADATA, "ChunkStorageMetadata");
	str(b, "offsets");
	size(b, ndim, at);
	str(b, "sizes");
	size(b, ndim, at + ndim);
	built(b);
}

void t_dcp_tensor(struct dcp_buf *b, const char *key, const char *dtype, uint32_t ndim,
		  const int64_t *shape, size_t n, const int64_t *chunks)
{
	str(b, key);
	instance(b, METADATA, "TensorStorageMetadata");
	str(b, "properties");
	global(b, METADATA, "TensorProperties");
	dcp_buf_add(b, ")\x81(", 3);
	global(b, "torch", dtype);
	dcp_buf_add(b, "NNNNtb", 6);
	str(b, "size");
	size(b, ndim, shape);
	str(b, "chunks");
	dcp_buf_add(b, "](", 2);
	for (size_t i = 0; i < n; i++)
		chunk(b, ndim, chunks + i * 2 * ndim);
	op(b, 'e'); /* APPENDS */
	built(b);
}

void t_dcp_bytes(struct dcp_buf *b, const char *key)
{
	str(b, key);
	global(b, METADATA, "BytesStorageMetadata");
	dcp_buf_add(b, ")\x81", 2);
}

void t_dcp_stored(struct dcp_buf *b, const char *key, uint32_t ndim, const int64_t *lo,
		  const char *file, int64_t off, int64_t nbytes)
{
	instance(b, METADATA, "MetadataIndex");
	str(b, "fqn");
	str(b, key);
	if (lo) {
		str(b, "offset");
		size(b, ndim, lo);
	}
	built(b);
	instance(b, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
	str(b, "relative_path");
	str(b, file);
	str(b, "offset");
	num(b, off);
	str(b, "length");
	num(b, nbytes);
	built(b);
}

void t_dcp_true_shape(struct dcp_buf *b, const char *key, uint32_t ndim, const int64_t *shape)
{
	str(b, key);
	dcp_buf_add(b, "}(", 2);
	str(b, "nd_reformulated_orig_global_shape");
	op(b, '(');
	for (uint32_t k = 0; k < ndim; k++)
		num(b, shape[k]);
	dcp_buf_add(b, "tu", 2);
}

void t_dcp_path(struct dcp_buf *b, const char *key, const char *const *path)
{
	str(b, key);
	op(b, '(');
	for (; *path; path++)
		str(b, *path);
	op(b, 't');
}
