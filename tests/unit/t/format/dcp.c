/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/dcp.h"

#include <string.h>

#define METADATA "torch.distributed.checkpoint.metadata"

static void put_op(struct dcp_buf *b, char c)
{
	dcp_buf_add(b, &c, 1);
}

static void put_str(struct dcp_buf *b, const char *s)
{
	uint32_t n = (uint32_t)strlen(s);

	put_op(b, 'X'); /* BINUNICODE */
	dcp_buf_add(b, &n, sizeof(n));
	dcp_buf_add(b, s, n);
}

static void put_num(struct dcp_buf *b, int64_t v)
{
	put_op(b, '\x8a'); /* LONG1 */
	put_op(b, 8);
	dcp_buf_add(b, &v, sizeof(v));
}

static void put_global(struct dcp_buf *b, const char *module, const char *name)
{
	dcp_buf_printf(b, "c%s\n%s\n", module, name);
}

/* An instance whose state dict follows, up to end_instance(). */
static void begin_instance(struct dcp_buf *b, const char *module, const char *name)
{
	put_global(b, module, name);
	dcp_buf_add(b, ")\x81}(", 4); /* EMPTY_TUPLE NEWOBJ EMPTY_DICT MARK */
}

static void end_instance(struct dcp_buf *b)
{
	dcp_buf_add(b, "ub", 2); /* SETITEMS BUILD */
}

static void put_size(struct dcp_buf *b, uint32_t n, const int64_t *dims)
{
	put_global(b, "torch", "Size");
	put_op(b, '(');
	for (uint32_t k = 0; k < n; k++)
		put_num(b, dims[k]);
	dcp_buf_add(b, "t\x85R", 3); /* TUPLE TUPLE1 REDUCE */
}

void t_dcp_begin(struct dcp_buf *b)
{
	dcp_buf_add(b, "\x80\x02", 2);
	begin_instance(b, METADATA, "Metadata");
}

void t_dcp_section(struct dcp_buf *b, const char *name)
{
	put_str(b, name);
	dcp_buf_add(b, "}(", 2);
}

void t_dcp_end_section(struct dcp_buf *b)
{
	put_op(b, 'u');
}

void t_dcp_end(struct dcp_buf *b)
{
	end_instance(b);
	put_op(b, '.');
}

static void put_chunk(struct dcp_buf *b, uint32_t ndim, const int64_t *at)
{
	begin_instance(b, METADATA, "ChunkStorageMetadata");
	put_str(b, "offsets");
	put_size(b, ndim, at);
	put_str(b, "sizes");
	put_size(b, ndim, at + ndim);
	end_instance(b);
}

void t_dcp_tensor(struct dcp_buf *b, const char *key, const char *dtype, uint32_t ndim,
		  const int64_t *shape, size_t n, const int64_t *chunks)
{
	put_str(b, key);
	begin_instance(b, METADATA, "TensorStorageMetadata");
	put_str(b, "properties");
	put_global(b, METADATA, "TensorProperties");
	dcp_buf_add(b, ")\x81(", 3);
	put_global(b, "torch", dtype);
	dcp_buf_add(b, "NNNNtb", 6);
	put_str(b, "size");
	put_size(b, ndim, shape);
	put_str(b, "chunks");
	dcp_buf_add(b, "](", 2);
	for (size_t i = 0; i < n; i++)
		put_chunk(b, ndim, chunks + i * 2 * ndim);
	put_op(b, 'e'); /* APPENDS */
	end_instance(b);
}

void t_dcp_bytes(struct dcp_buf *b, const char *key)
{
	put_str(b, key);
	put_global(b, METADATA, "BytesStorageMetadata");
	dcp_buf_add(b, ")\x81", 2);
}

void t_dcp_stored(struct dcp_buf *b, const char *key, uint32_t ndim, const int64_t *lo,
		  const char *file, int64_t off, int64_t nbytes)
{
	begin_instance(b, METADATA, "MetadataIndex");
	put_str(b, "fqn");
	put_str(b, key);
	if (lo) {
		put_str(b, "offset");
		put_size(b, ndim, lo);
	}
	end_instance(b);
	begin_instance(b, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
	put_str(b, "relative_path");
	put_str(b, file);
	put_str(b, "offset");
	put_num(b, off);
	put_str(b, "length");
	put_num(b, nbytes);
	end_instance(b);
}

void t_dcp_true_shape(struct dcp_buf *b, const char *key, uint32_t ndim, const int64_t *shape)
{
	put_str(b, key);
	dcp_buf_add(b, "}(", 2);
	put_str(b, "nd_reformulated_orig_global_shape");
	put_op(b, '(');
	for (uint32_t k = 0; k < ndim; k++)
		put_num(b, shape[k]);
	dcp_buf_add(b, "tu", 2);
}

void t_dcp_path(struct dcp_buf *b, const char *key, const char *const *path)
{
	put_str(b, key);
	put_op(b, '(');
	for (; *path; path++)
		put_str(b, *path);
	put_op(b, 't');
}
