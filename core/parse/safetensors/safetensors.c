/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header is walked member by member: it may have 100 MB, and a tree would take ten times that.
 * Entries are sorted twice, by name to find duplicates and by offset to find holes and overlaps, so
 * nothing is quadratic.
 *
 * Limits on numbers are jansson's: integers up to 2^63 - 1, digits only.
 */
#include "core/parse/safetensors/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"
#include "core/parse/json.h"
#include "core/parse/parse.h"

/* Reads a header and its entries. */

struct dcp_arena;

/* Names in messages are cut, because a message has 511 bytes. */
#define DCP_ST_NAME "tensor \"%.160s\""

struct dcp_st_reader {
	struct dcp_arena *arena;
	struct dcp_safetensors *out;
	struct dcp_err *err;
	const char *text; /* the header */
	size_t n;
	uint64_t base, data; /* first byte of the data section, and its length */
	struct dcp_err *cut; /* the error of the first tensor that ends after the data */
};

/* The offset in the file of a piece of the header's text, for messages. */
uint64_t dcp_st_at(const struct dcp_st_reader *r, struct dcp_bytes piece);

int dcp_st_no_memory(struct dcp_err *err);

/* Copy a JSON string to the arena; @what is the expected thing in messages. */
int dcp_st_text(const struct dcp_st_reader *r, struct dcp_bytes piece, const char *what,
		const char **out);

/* Read member @name of the header, other than __metadata__. */
int dcp_st_entry(const struct dcp_st_reader *r, struct dcp_bytes name, struct dcp_bytes value,
		 struct dcp_safetensors_entry *e);

/* The bits of a value, if they are not whole bytes; else 0. */
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

/* Report a fault in a piece of the header, with its offset in the file. */
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

/* Read the shape as written; for packed types also the bits of an element. */
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

/* Read the offsets and check them against the data section; order and holes are checked later. */
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

static int fail_wrong_size(const struct dcp_st_reader *r, const struct dcp_safetensors_entry *e,
			   uint64_t want, uint64_t off)
{
	return dcp_fail_at(r->err, -EBADMSG, off,
			   DCP_ST_NAME ": %" PRIu64
				       " bytes of data, its shape of %.16s needs %" PRIu64,
			   e->name, e->nbytes, e->dtype_name, want);
}

/* Make the tensor an array of bytes, because its elements are not whole bytes. */
static int set_as_bytes(const struct dcp_st_reader *r, struct dcp_safetensors_entry *e)
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
		return fail_wrong_size(r, e, total / 8, off);
	shape = dcp_arena_calloc(r->arena, e->ndim, sizeof(*shape));
	if (!shape)
		return dcp_st_no_memory(r->err);
	memcpy(shape, e->shape, e->ndim * sizeof(*shape));
	if (e->shape[e->ndim - 1] % info->values) { /* an element extends over two rows */
		e->ndim = 1;
		shape[0] = volume;
	}
	shape[e->ndim - 1] /= info->values;
	e->shape = shape;
	e->itemsize = info->size;
	return 0;
}

/* Find the element size of an unknown type from the offsets. */
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
		return set_as_bytes(r, e);
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
	return e->nbytes == want ? 0 : fail_wrong_size(r, e, want, off);
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

/* Other members than the three are ignored, as in safetensors' own reader. */
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

static int check_meta_names(const struct dcp_st_reader *r, uint64_t off)
{
	const char **meta = r->out->meta;
	size_t n = r->out->nmeta;
	const char **names = calloc(n ? n : 1, sizeof(*names));
	int code = names ? 0 : dcp_st_no_memory(r->err);

	for (size_t i = 0; code == 0 && i < n; i++)
		names[i] = meta[2 * i];
	if (code == 0)
		DCP_SORT(names, n, dcp_by_text);
	for (size_t i = 1; code == 0 && i < n; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			code = dcp_fail_at(r->err, -EBADMSG, off,
					   "__metadata__ has the name \"%.160s\" twice",
					   names[i]);
	free(names);
	return code;
}

static int count_members(const struct dcp_st_reader *r, struct dcp_bytes object, size_t *n)
{
	struct dcp_json_walk w = { .text = (const char *)object.p, .n = object.n };
	struct dcp_bytes name, value;
	struct dcp_err why = { 0 };
	int code;

	do
		code = dcp_json_walk(&w, &name, &value, &why);
	while (code == 1);
	*n = w.members;
	if (code == 0)
		return 0;
	return dcp_fail_at(r->err, code, dcp_st_at(r, object) + why.off,
			   "header byte %" PRIu64 ": %s", dcp_st_at(r, object) + why.off,
			   why.msg);
}

static int read_meta(const struct dcp_st_reader *r, struct dcp_bytes object)
{
	struct dcp_json_walk w = { .text = (const char *)object.p, .n = object.n };
	struct dcp_bytes name, value;
	size_t n;
	int code;

	if (object.n == 4 && memcmp(object.p, "null", 4) == 0) /* as safetensors has it */
		return 0;
	if (object.p[0] != '{')
		return dcp_fail_at(r->err, -EBADMSG, dcp_st_at(r, object),
				   "__metadata__ is not an object");
	code = count_members(r, object, &n);
	if (code < 0)
		return code;
	r->out->meta = dcp_arena_calloc(r->arena, n ? n : 1, 2 * sizeof(*r->out->meta));
	if (!r->out->meta)
		return dcp_st_no_memory(r->err);
	while (dcp_json_walk(&w, &name, &value, NULL) == 1) {
		const char **pair = r->out->meta + 2 * r->out->nmeta;

		code = dcp_st_text(r, name, "a name in __metadata__", &pair[0]);
		if (code == 0 && value.p[0] != '"')
			return dcp_fail_at(r->err, -EBADMSG, dcp_st_at(r, value),
					   "__metadata__ \"%.160s\": its value is not a string",
					   pair[0]);
		if (code == 0)
			code = dcp_st_text(r, value, "a value in __metadata__", &pair[1]);
		if (code < 0)
			return code;
		r->out->nmeta++;
	}
	return check_meta_names(r, dcp_st_at(r, object));
}

/* The name must be written without escapes; dcp_st_entry() refuses it in any other spelling. */
static bool is_meta(struct dcp_bytes name)
{
	static const char want[] = "\"__metadata__\"";

	return name.n == sizeof(want) - 1 && memcmp(name.p, want, name.n) == 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct dcp_safetensors_entry *x = a, *y = b;

	return DCP_CMP(x->off, y->off) ?: DCP_CMP(x->nbytes, y->nbytes) ?:
	       strcmp(x->name, y->name);
}

static int check_names(const struct dcp_st_reader *r)
{
	struct dcp_safetensors_entry *e = r->out->entries;

	DCP_SORT(e, r->out->n, dcp_by_text);
	for (size_t i = 1; i < r->out->n; i++)
		if (strcmp(e[i - 1].name, e[i].name) == 0)
			return dcp_fail_at(r->err, -EBADMSG, e[i].off,
					   DCP_ST_NAME ": named twice, with data at %" PRIu64
						       " and at %" PRIu64,
					   e[i].name, e[i - 1].off, e[i].off);
	return 0;
}

static int fail_wrong_start(const struct dcp_st_reader *r,
			    const struct dcp_safetensors_entry *e,
			    const struct dcp_safetensors_entry *before, uint64_t end)
{
	uint64_t lo = e->off - r->base;
	bool overlap = lo < end;

	if (!before)
		return dcp_fail_at(r->err, -EBADMSG, e->off,
				   DCP_ST_NAME ": its data starts at %" PRIu64
					       ", a hole of as many bytes",
				   e->name, lo);
	return dcp_fail_at(r->err, -EBADMSG, e->off,
			   DCP_ST_NAME ": its data starts at %" PRIu64 ", %s of %" PRIu64
				       " bytes: \"%.100s\" ends at %" PRIu64,
			   e->name, lo, overlap ? "an overlap" : "a hole",
			   overlap ? end - lo : lo - end, before->name, end);
}

/* Check that tensors follow each other from the first to the last byte of the data section. */
static int check_cover(const struct dcp_st_reader *r)
{
	struct dcp_safetensors_entry *e = r->out->entries;
	uint64_t end = 0;

	DCP_SORT(e, r->out->n, by_offset);
	for (size_t i = 0; i < r->out->n; i++) {
		if (e[i].off - r->base != end)
			return fail_wrong_start(r, &e[i], i ? &e[i - 1] : NULL, end);
		end += e[i].nbytes;
	}
	if (end < r->data)
		return dcp_fail_at(r->err, -EBADMSG, r->base + end,
				   "the tensors end at %" PRIu64
				   ", but the data section has %" PRIu64 " byte%s",
				   end, r->data, dcp_s(r->data));
	return 0;
}

static int read_entries(const struct dcp_st_reader *r)
{
	struct dcp_bytes name, value, all = { (const uint8_t *)r->text, r->n };
	struct dcp_json_walk w = { .text = r->text, .n = r->n };
	struct dcp_safetensors *out = r->out;
	bool have_meta = false;
	size_t n;
	int code = count_members(r, all, &n);

	if (code < 0)
		return code;
	out->entries = dcp_arena_calloc(r->arena, n ? n : 1, sizeof(*out->entries));
	if (!out->entries)
		return dcp_st_no_memory(r->err);
	while (code == 0 && dcp_json_walk(&w, &name, &value, NULL) == 1) {
		if (!is_meta(name)) {
			code = dcp_st_entry(r, name, value, &out->entries[out->n++]);
			continue;
		}
		if (have_meta)
			return dcp_fail_at(r->err, -EBADMSG, dcp_st_at(r, name),
					   "__metadata__ is there twice");
		have_meta = true;
		code = read_meta(r, value);
	}
	if (code == 0)
		code = check_names(r);
	return code ? code : check_cover(r);
}

/* Fail with -ENOTSUP if the file has another known format; else return 0. */
static int fail_other(const struct dcp_source *src, struct dcp_err *err)
{
	uint8_t head[DCP_MAGIC_HEAD] = { 0 };
	size_t n = (size_t)DCP_MIN(src->size, (uint64_t)sizeof(head));
	const char *what = NULL;

	if (dcp_source_read(src, 0, head, n) == 0 && head[8] != '{')
		what = dcp_magic(head, n);
	return what ? dcp_fail_at(err, -ENOTSUP, 0, "not a safetensors file, but %s", what) : 0;
}

/* Read the header's length, and check it before memory is allocated for it. */
static int read_length(const struct dcp_source *src, const struct dcp_arena *arena,
		       uint64_t *out, struct dcp_err *err)
{
	uint8_t word[8];
	uint64_t n;
	int code;

	if (src->size < sizeof(word))
		return dcp_fail_at(err, -EBADMSG, 0,
				   "file of %" PRIu64 " byte%s has no room for a header length",
				   src->size, dcp_s(src->size));
	code = dcp_source_read(src, 0, word, sizeof(word));
	if (code < 0)
		return dcp_fail_at(err, code, 0, "header length: %s", dcp_err_noted(code));
	n = dcp_load_le64(word);
	if (n == 0 || n > src->size - sizeof(word))
		code = fail_other(src, err);
	if (code < 0)
		return code;
	if (n > DCP_SAFETENSORS_MAX_HEADER)
		return dcp_fail_at(err, -E2BIG, 0,
				   "header length %" PRIu64 " is over the format's limit of %u",
				   n, DCP_SAFETENSORS_MAX_HEADER);
	if (n > src->size - sizeof(word))
		return dcp_fail_at(err, -EBADMSG, 0,
				   "header length %" PRIu64
				   " runs past the end of a file of %" PRIu64 " bytes",
				   n, src->size);
	if (n > arena->limit - arena->used)
		return dcp_fail_at(err, -ENOMEM, 0,
				   "header length %" PRIu64 " is over the memory limit", n);
	*out = n;
	return 0;
}

int dcp_safetensors_read(const struct dcp_source *src, struct dcp_arena *arena,
			 struct dcp_safetensors *out, struct dcp_err *err)
{
	struct dcp_safetensors st = { 0 };
	struct dcp_err cut = { 0 };
	struct dcp_st_reader r = { .arena = arena, .out = &st, .err = err, .cut = &cut };
	dcp_auto_free char *text = NULL;
	uint64_t n = 0;
	int code = read_length(src, arena, &n, err);

	if (code < 0)
		return code;
	text = malloc(n + 1);
	if (!text)
		return dcp_st_no_memory(err);
	code = dcp_source_read(src, 8, text, n);
	if (code < 0)
		return dcp_fail_at(err, code, 8, "header: %s", dcp_err_noted(code));
	if (n == 0 || text[0] != '{')
		return dcp_fail_at(err, -EBADMSG, 8,
				   "header of %" PRIu64 " bytes does not start with '{'", n);
	r.text = text;
	r.n = n;
	r.base = 8 + n;
	r.data = src->size - r.base;
	code = read_entries(&r);
	if (code < 0)
		return code;
	*out = st;
	return cut.code ? dcp_fail_at(err, cut.code, cut.off, "%s", cut.msg) : 0;
}

const char *dcp_safetensors_meta(const struct dcp_safetensors *st, const char *key)
{
	for (size_t i = 0; i < st->nmeta; i++)
		if (strcmp(st->meta[2 * i], key) == 0)
			return st->meta[2 * i + 1];
	return NULL;
}

static int by_key(const void *a, const void *b)
{
	const struct dcp_safetensors_item *x = a, *y = b;

	return dcp_name_compare(x->key, y->key) ?: DCP_CMP(x->number, y->number);
}

static int by_size(const void *a, const void *b)
{
	const struct dcp_safetensors_item *x = a, *y = b;

	return DCP_CMP(y->itemsize, x->itemsize) ?: by_key(a, b);
}

static bool is_aligned(const struct dcp_safetensors_item *item, size_t n)
{
	uint64_t at = 0;

	for (size_t i = 0; i < n; at += item[i++].nbytes)
		if (item[i].itemsize && at % item[i].itemsize)
			return false;
	return true;
}

size_t dcp_safetensors_arrange(struct dcp_safetensors_item *item, size_t n, uint64_t size,
			       size_t *first)
{
	size_t files = 0, begin = 0;
	uint64_t in_file = 0;

	DCP_SORT(item, n, by_key);
	for (size_t i = 0; i <= n; i++) {
		if (i == n ||
		    (size && in_file && (in_file >= size || item[i].nbytes > size - in_file))) {
			first[files++] = begin;
			if (!is_aligned(item + begin, i - begin))
				DCP_SORT(item + begin, i - begin, by_size);
			begin = i;
			in_file = 0;
		}
		in_file += i < n ? item[i].nbytes : 0;
	}
	first[files] = n;
	return files;
}

void dcp_safetensors_file_name(char name[DCP_SAFETENSORS_NAME], const char *stem, size_t i,
			       size_t files)
{
	if (i == files)
		snprintf(name, DCP_SAFETENSORS_NAME, "%s.safetensors.index.json", stem);
	else if (files == 1)
		snprintf(name, DCP_SAFETENSORS_NAME, "%s.safetensors", stem);
	else
		snprintf(name, DCP_SAFETENSORS_NAME, "%s-%05zu-of-%05zu.safetensors", stem,
			 i + 1, files);
}
