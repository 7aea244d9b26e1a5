/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/ckd.h"
#include "core/model/tensor.h"
#include "core/parse/json.h"
#include "core/parse/safetensors/safetensors_int.h"

/* Bits of one value where that is not a whole number of bytes, else 0. */
static unsigned packed_bits(enum dcp_dtype dtype)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(dtype);

	return info->values > 1 ? 8u * info->size / info->values : 0;
}

uint64_t dcp_st_at(const struct dcp_st_reader *r, struct dcp_bytes piece)
{
	return 8 + (uint64_t)(piece.p - (const uint8_t *)r->text);
}

int dcp_st_no_memory(struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM, "out of memory for the header");
}

/* What is wrong with a piece of the header; the offset becomes the file's. */
static int fail_piece(const struct dcp_st_reader *r, struct dcp_bytes piece,
		      const struct dcp_err *why)
{
	if (why->off == DCP_ERR_NO_OFFSET)
		return dcp_fail_at(r->err, why->code, why->off, "%s", why->msg);
	return dcp_fail_at(r->err, why->code, dcp_st_at(r, piece) + why->off,
			   "header byte %" PRIu64 ": %s", dcp_st_at(r, piece) + why->off,
			   why->msg);
}

int dcp_st_text(const struct dcp_st_reader *r, struct dcp_bytes piece, const char *what,
		const char **out)
{
	struct dcp_err why = { 0 };
	int code;

	if (piece.p[0] != '"')
		return dcp_fail_at(r->err, -EBADMSG, dcp_st_at(r, piece), "%s is not a string",
				   what);
	code = dcp_json_text((const char *)piece.p, piece.n, r->arena, out, &why);
	if (code == -ENOMEM)
		return dcp_st_no_memory(r->err);
	return code < 0 ? fail_piece(r, piece, &why) : 0;
}

/* The shape as written, with its bits per element when the type is packed. */
static int read_shape(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e,
		      const struct dcp_json *json, uint64_t off)
{
	size_t n = dcp_json_len(json);
	uint64_t *shape;

	if (!dcp_json_is_array(json))
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": its shape is not an array", e->name);
	if (n > DCP_MAX_NDIM)
		return dcp_fail_at(r->err, -E2BIG, off,
				   DCP_ST_NAME ": %zu dimensions, more than %d", e->name, n,
				   DCP_MAX_NDIM);
	shape = dcp_arena_calloc(r->arena, n ? n : 1, sizeof(*shape));
	if (!shape)
		return dcp_st_no_memory(r->err);
	for (size_t i = 0; i < n; i++)
		if (!dcp_json_u64(dcp_json_at(json, i), &shape[i]))
			return dcp_fail_at(r->err, -EBADMSG, off,
					   DCP_ST_NAME
					   ": dimension %zu of its shape is not a count",
					   e->name, i);
	e->shape = shape;
	e->ndim = (uint32_t)n;
	return 0;
}

/* Offsets are checked against the data section here; order and holes later. */
static int read_offsets(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e,
			const struct dcp_json *json, uint64_t off)
{
	uint64_t lo, hi;

	if (!dcp_json_is_array(json) || dcp_json_len(json) != 2 ||
	    !dcp_json_u64(dcp_json_at(json, 0), &lo) ||
	    !dcp_json_u64(dcp_json_at(json, 1), &hi))
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": its data_offsets are not two byte counts",
				   e->name);
	if (lo > hi)
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": data_offsets [%" PRIu64 ", %" PRIu64
					       ") are reversed",
				   e->name, lo, hi);
	if (hi > INT64_MAX - r->base)
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": data_offsets [%" PRIu64 ", %" PRIu64
					       ") are beyond any file",
				   e->name, lo, hi);
	if (hi > r->data && !r->cut->code)
		dcp_fail_at(r->cut, -ENODATA, off,
			    DCP_ST_NAME ": data_offsets [%" PRIu64 ", %" PRIu64
					") end past the data section, which has %" PRIu64
					" bytes",
			    e->name, lo, hi, r->data);
	e->off = r->base + lo;
	e->nbytes = hi - lo;
	return 0;
}

static int wrong_size(const struct dcp_st_reader *r, const struct dcp_safetensors_entry *e,
		      uint64_t want, uint64_t off)
{
	return dcp_fail_at(r->err, -EBADMSG, off,
			   DCP_ST_NAME ": %" PRIu64
				       " bytes of data, its shape of %.16s needs %" PRIu64,
			   e->name, e->nbytes, e->dtype_name, want);
}

/* What cannot be counted in elements of whole bytes is emitted as bytes. */
static int as_bytes(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e)
{
	uint64_t *shape = dcp_arena_calloc(r->arena, 1, sizeof(*shape));

	if (!shape)
		return dcp_st_no_memory(r->err);
	shape[0] = e->nbytes;
	e->shape = shape;
	e->ndim = 1;
	e->dtype = DCP_DTYPE_OTHER;
	e->itemsize = 1;
	return 0;
}

static int size_packed(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e,
		       uint64_t volume, unsigned bits, uint64_t off)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(e->dtype);
	uint64_t total, *shape;

	if (dcp_ckd_mul(&total, volume, bits) || total % 8)
		return dcp_fail_at(
			r->err, -EBADMSG, off,
			DCP_ST_NAME
			": %" PRIu64
			" values of %u bits are not a whole number of bytes or too many",
			e->name, volume, bits);
	if (e->nbytes != total / 8)
		return wrong_size(r, e, total / 8, off);
	shape = dcp_arena_calloc(r->arena, e->ndim, sizeof(*shape));
	if (!shape)
		return dcp_st_no_memory(r->err);
	memcpy(shape, e->shape, e->ndim * sizeof(*shape));
	if (e->shape[e->ndim - 1] % info->values) { /* an element lies in two rows */
		e->ndim = 1;
		shape[0] = volume;
	}
	shape[e->ndim - 1] /= info->values;
	e->shape = shape;
	e->itemsize = info->size;
	return 0;
}

/* A type that is not known here: its element is as long as the offsets say. */
static int size_unknown(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e,
			uint64_t volume, uint64_t off)
{
	if ((volume == 0) != (e->nbytes == 0))
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": %" PRIu64 " bytes of data for %" PRIu64
					       " elements of unknown type %.16s",
				   e->name, e->nbytes, volume, e->dtype_name);
	e->itemsize = 1;
	if (volume == 0)
		return 0;
	if (e->nbytes % volume || e->nbytes / volume > UINT32_MAX)
		return as_bytes(r, e);
	e->itemsize = (uint32_t)(e->nbytes / volume);
	return 0;
}

static int check_size(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e,
		      uint64_t off)
{
	unsigned bits = packed_bits(e->dtype);
	uint64_t volume, want;

	if (!dcp_shape_volume(e->shape, e->ndim, &volume))
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME
				   ": the product of its shape does not fit in 64 bits",
				   e->name);
	if (bits)
		return size_packed(r, e, volume, bits, off);
	if (e->dtype == DCP_DTYPE_OTHER)
		return size_unknown(r, e, volume, off);
	e->itemsize = dcp_dtype_info(e->dtype)->size;
	if (dcp_ckd_mul(&want, volume, e->itemsize))
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": its size in bytes does not fit in 64 bits",
				   e->name);
	return e->nbytes == want ? 0 : wrong_size(r, e, want, off);
}

static int read_dtype(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e,
		      const struct dcp_json *json, uint64_t off)
{
	const char *name = dcp_json_str(json);

	if (!name)
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": its dtype is not a string", e->name);
	e->dtype = dcp_dtype_from_safetensors(name, strlen(name));
	e->dtype_name = e->dtype == DCP_DTYPE_OTHER ? dcp_arena_strdup(r->arena, name)
						    : dcp_dtype_info(e->dtype)->safetensors;
	return e->dtype_name ? 0 : dcp_st_no_memory(r->err);
}

/* Members other than the three are left alone, as safetensors' own reader does. */
static int fill_entry(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e,
		      const struct dcp_json *json, uint64_t off)
{
	int code;

	if (!dcp_json_is_object(json))
		return dcp_fail_at(r->err, -EBADMSG, off,
				   DCP_ST_NAME ": its entry is not an object", e->name);
	code = read_dtype(r, e, dcp_json_get(json, "dtype"), off);
	if (code == 0)
		code = read_shape(r, e, dcp_json_get(json, "shape"), off);
	if (code == 0)
		code = read_offsets(r, e, dcp_json_get(json, "data_offsets"), off);
	if (code == 0)
		code = check_size(r, e, off);
	return code;
}

int dcp_st_entry(const struct dcp_st_reader *r, struct dcp_bytes name, struct dcp_bytes value,
		 struct dcp_safetensors_entry *e)
{
	dcp_auto_json struct dcp_json *root = NULL;
	struct dcp_err why = { 0 };
	int code = dcp_st_text(r, name, "a name", &e->name);

	if (code < 0)
		return code;
	if (strcmp(e->name, "__metadata__") == 0)
		return dcp_fail_at(r->err, -EBADMSG, dcp_st_at(r, name),
				   "__metadata__ is spelled with escapes");
	if (value.n > DCP_SAFETENSORS_MAX_ENTRY)
		return dcp_fail_at(r->err, -E2BIG, dcp_st_at(r, value),
				   DCP_ST_NAME ": its entry has %zu bytes, more than %u",
				   e->name, value.n, DCP_SAFETENSORS_MAX_ENTRY);
	code = dcp_json_parse((const char *)value.p, value.n, &root, &why);
	if (code < 0) {
		fail_piece(r, value, &why);
		return dcp_err_where(r->err, code, DCP_ST_NAME, e->name);
	}
	return fill_entry(r, e, root, dcp_st_at(r, value));
}
