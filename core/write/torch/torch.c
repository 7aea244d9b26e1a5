/* SPDX-License-Identifier: Apache-2.0 */
#include "core/write/torch/torch.h"

#include <stdio.h>
#include <string.h>

#include "core/base/utf8.h"
#include "core/model/dtype.h"

/* Types that have a storage class; all others are bytes, and the tensor says its dtype. */
static const char *const classes[DCP_DTYPE_COUNT] = {
	[DCP_DTYPE_F64] = "DoubleStorage",       [DCP_DTYPE_F32] = "FloatStorage",
	[DCP_DTYPE_F16] = "HalfStorage",         [DCP_DTYPE_BF16] = "BFloat16Storage",
	[DCP_DTYPE_I64] = "LongStorage",         [DCP_DTYPE_I32] = "IntStorage",
	[DCP_DTYPE_I16] = "ShortStorage",        [DCP_DTYPE_I8] = "CharStorage",
	[DCP_DTYPE_U8] = "ByteStorage",          [DCP_DTYPE_BOOL] = "BoolStorage",
	[DCP_DTYPE_C64] = "ComplexFloatStorage", [DCP_DTYPE_C128] = "ComplexDoubleStorage",
};

const char *dcp_torch_write_refuses_key(const char *key)
{
	size_t left = strlen(key), n;

	for (; left; key += n, left -= n) {
		n = dcp_utf8_len(key, left);
		if (n == 0 && dcp_utf8_surrogate(key, left))
			n = 3;
		if (n == 0 && left >= 2 && memcmp(key, "\xc0\x80", 2) == 0)
			n = 2;
		if (n == 0)
			return "its key is not text";
	}
	return NULL;
}

const char *dcp_torch_write_refuses(const struct dcp_write_tensor *t)
{
	const char *why = dcp_torch_write_refuses_key(t->key);

	if (why)
		return why;
	return dcp_dtype_info(t->dtype)->torch && t->dtype != DCP_DTYPE_OTHER
		       ? NULL
		       : "torch has no dtype for it";
}

void dcp_torch_write_size(struct dcp_pickler *p, const uint64_t *values, uint32_t n)
{
	dcp_pickler_put(p, "R c (1 v", "torch", "Size", n, values);
}

/* ("storage", class, "0", "cpu", elements) */
static void put_storage(struct dcp_pickler *p, const char *class, size_t storage, uint64_t n)
{
	char key[24];

	snprintf(key, sizeof(key), "%zu", storage);
	dcp_pickler_put(p, "P (5 w c s w u", "storage", class ? "torch" : "torch.storage",
			class ? class : "UntypedStorage", key, "cpu", n);
}

static void put_stride(struct dcp_pickler *p, const struct dcp_write_part *part)
{
	uint64_t stride[DCP_MAX_NDIM];

	for (uint32_t d = part->ndim, next = d; d-- > 0; next = d)
		stride[d] = next == part->ndim ? 1 : stride[next] * (part->shape[next] ?: 1);
	dcp_pickler_put(p, "v", part->ndim, stride);
}

void dcp_torch_write_tensor(struct dcp_pickler *p, const struct dcp_write_tensor *t,
			    const struct dcp_write_part *part, size_t storage)
{
	const char *class = classes[t->dtype];
	uint64_t nbytes = dcp_write_part_bytes(t, part);

	dcp_pickler_put(p, class ? "R c (6" : "R c (7", "torch._utils",
			class ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
	put_storage(p, class, storage, class ? nbytes / t->itemsize : nbytes);
	dcp_pickler_put(p, "i v", 0, part->ndim, part->shape);
	put_stride(p, part);
	dcp_pickler_put(p, "0 R c (0", "collections", "OrderedDict");
	if (!class)
		dcp_pickler_global(p, "torch", dcp_dtype_info(t->dtype)->torch);
}

void dcp_torch_write_begin(struct dcp_zipper *z, struct dcp_writer *w,
			   const struct dcp_buf *pickle)
{
	dcp_zipper_begin(z, w, DCP_ZIP_TORCH);
	dcp_zipper_bytes(z, "archive/data.pkl", pickle->p, pickle->n);
	dcp_zipper_bytes(z, "archive/byteorder", "little", 6);
}

void dcp_torch_write_storage(struct dcp_zipper *z, size_t storage, size_t tensor, size_t part)
{
	char name[48];

	snprintf(name, sizeof(name), "archive/data/%zu", storage);
	dcp_zipper_part(z, name, NULL, 0, tensor, part);
}

int dcp_torch_write_end(struct dcp_zipper *z)
{
	dcp_zipper_bytes(z, "archive/version", "3\n", 2);
	return dcp_zipper_end(z);
}
