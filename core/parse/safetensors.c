/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header is walked member by member: a tree of all of it would take ten times its
 * length, and it may be 100 MB. Entries are sorted twice, by name to find duplicates and by
 * offset to find holes and overlaps, so nothing is quadratic.
 *
 * Limits on numbers are jansson's: integers up to 2^63 - 1, digits only.
 */
#include "core/parse/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/ckd.h"
#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/model/tensor.h"
#include "core/parse/json.h"
#include "core/parse/magic.h"
#include "core/parse/source.h"

/* Names in messages are cut: a message has 511 bytes for everything. */
#define NAME "tensor \"%.160s\""

struct reader {
	struct dcp_arena *arena;
	struct dcp_safetensors *out;
	struct dcp_err *err;
	const char *text; /* the header */
	size_t n;
	uint64_t base, data; /* first byte of the data section, and its length */
};

/* Bits of one value where that is no whole number of bytes, else 0. */
static unsigned packed_bits(enum dcp_dtype dtype)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(dtype);

	return info->values > 1 ? 8u * info->size / info->values : 0;
}

/* Where in the file a piece of the header's text lies, for messages. */
static uint64_t at(const struct reader *r, struct dcp_bytes piece)
{
	return 8 + (uint64_t)(piece.p - (const uint8_t *)r->text);
}

static int no_memory(struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for the header");
}

/* Parse a piece of the header; the offset in @err becomes the file's. */
static int parse_piece(const struct reader *r, struct dcp_bytes piece, struct dcp_json **out)
{
	struct dcp_err why = { 0 };
	int code = dcp_json_parse((const char *)piece.p, piece.n, out, &why);

	if (code == 0)
		return 0;
	if (why.off == DCP_ERR_NO_OFFSET)
		return dcp_fail(r->err, code, why.off, "%s", why.msg);
	return dcp_fail(r->err, code, at(r, piece) + why.off, "header byte %" PRIu64 ": %s",
			at(r, piece) + why.off, why.msg);
}

/* A JSON string as text in the arena; @what says in messages what it should have been. */
static int parse_text(const struct reader *r, struct dcp_bytes piece, const char *what,
		      const char **out)
{
	struct dcp_json *root = NULL;
	const char *s;
	int code = parse_piece(r, piece, &root);

	if (code < 0)
		return code;
	s = dcp_json_str(root);
	*out = s ? dcp_arena_strndup(r->arena, s, strlen(s)) : NULL;
	dcp_json_free(root);
	if (!s)
		return dcp_fail(r->err, -EBADMSG, at(r, piece), "%s is not a string", what);
	return *out ? 0 : no_memory(r->err);
}

/* The shape as written, with its bits per element when the type is packed. */
static int read_shape(const struct reader *r, struct dcp_safetensors_entry *e,
		      const struct dcp_json *json, uint64_t off)
{
	size_t n = dcp_json_len(json);
	uint64_t *shape;

	if (!dcp_json_is_array(json))
		return dcp_fail(r->err, -EBADMSG, off, NAME ": its shape is no array", e->name);
	if (n > DCP_MAX_NDIM)
		return dcp_fail(r->err, -E2BIG, off, NAME ": %zu dimensions, more than %d",
				e->name, n, DCP_MAX_NDIM);
	shape = dcp_arena_calloc(r->arena, n ? n : 1, sizeof(*shape));
	if (!shape)
		return no_memory(r->err);
	for (size_t i = 0; i < n; i++)
		if (!dcp_json_u64(dcp_json_at(json, i), &shape[i]))
			return dcp_fail(r->err, -EBADMSG, off,
					NAME ": dimension %zu of its shape is no count",
					e->name, i);
	e->shape = shape;
	e->ndim = (uint32_t)n;
	return 0;
}

/* Offsets are checked against the data section here; order and holes later. */
static int read_offsets(const struct reader *r, struct dcp_safetensors_entry *e,
			const struct dcp_json *json, uint64_t off)
{
	uint64_t lo, hi;

	if (!dcp_json_is_array(json) || dcp_json_len(json) != 2 ||
	    !dcp_json_u64(dcp_json_at(json, 0), &lo) ||
	    !dcp_json_u64(dcp_json_at(json, 1), &hi))
		return dcp_fail(r->err, -EBADMSG, off,
				NAME ": its data_offsets are not two byte counts", e->name);
	if (lo > hi)
		return dcp_fail(r->err, -EBADMSG, off,
				NAME ": data_offsets [%" PRIu64 ", %" PRIu64 ") are reversed",
				e->name, lo, hi);
	if (hi > r->data)
		return dcp_fail(r->err, -EBADMSG, off,
				NAME ": data_offsets [%" PRIu64 ", %" PRIu64
				     ") end past the data section, which has %" PRIu64 " bytes",
				e->name, lo, hi, r->data);
	e->off = r->base + lo;
	e->nbytes = hi - lo;
	return 0;
}

static int wrong_size(const struct reader *r, const struct dcp_safetensors_entry *e,
		      uint64_t want, uint64_t off)
{
	return dcp_fail(r->err, -EBADMSG, off,
			NAME ": %" PRIu64 " bytes of data, its shape of %.16s needs %" PRIu64,
			e->name, e->nbytes, e->dtype_name, want);
}

/* What cannot be counted in elements of whole bytes is told as bytes. */
static int as_bytes(const struct reader *r, struct dcp_safetensors_entry *e)
{
	uint64_t *shape = dcp_arena_calloc(r->arena, 1, sizeof(*shape));

	if (!shape)
		return no_memory(r->err);
	shape[0] = e->nbytes;
	e->shape = shape;
	e->ndim = 1;
	e->dtype = DCP_DTYPE_OTHER;
	e->itemsize = 1;
	return 0;
}

static int size_packed(const struct reader *r, struct dcp_safetensors_entry *e, uint64_t volume,
		       unsigned bits, uint64_t off)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(e->dtype);
	uint64_t total, *shape;

	if (dcp_ckd_mul(&total, volume, bits) || total % 8)
		return dcp_fail(r->err, -EBADMSG, off,
				NAME
				": %" PRIu64
				" values of %u bits are no whole number of bytes or too many",
				e->name, volume, bits);
	if (e->nbytes != total / 8)
		return wrong_size(r, e, total / 8, off);
	shape = dcp_arena_calloc(r->arena, e->ndim, sizeof(*shape));
	if (!shape)
		return no_memory(r->err);
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

/* A type nobody here knows: its element is as long as the offsets say. */
static int size_unknown(const struct reader *r, struct dcp_safetensors_entry *e,
			uint64_t volume, uint64_t off)
{
	if ((volume == 0) != (e->nbytes == 0))
		return dcp_fail(r->err, -EBADMSG, off,
				NAME ": %" PRIu64 " bytes of data for %" PRIu64
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

static int check_size(const struct reader *r, struct dcp_safetensors_entry *e, uint64_t off)
{
	unsigned bits = packed_bits(e->dtype);
	uint64_t volume, want;

	if (!dcp_shape_volume(e->shape, e->ndim, &volume))
		return dcp_fail(r->err, -EBADMSG, off,
				NAME ": the product of its shape does not fit in 64 bits",
				e->name);
	if (bits)
		return size_packed(r, e, volume, bits, off);
	if (e->dtype == DCP_DTYPE_OTHER)
		return size_unknown(r, e, volume, off);
	e->itemsize = dcp_dtype_info(e->dtype)->size;
	if (dcp_ckd_mul(&want, volume, e->itemsize))
		return dcp_fail(r->err, -EBADMSG, off,
				NAME ": its size in bytes does not fit in 64 bits", e->name);
	return e->nbytes == want ? 0 : wrong_size(r, e, want, off);
}

static int read_dtype(const struct reader *r, struct dcp_safetensors_entry *e,
		      const struct dcp_json *json, uint64_t off)
{
	const char *name = dcp_json_str(json);

	if (!name)
		return dcp_fail(r->err, -EBADMSG, off, NAME ": its dtype is no string",
				e->name);
	e->dtype = dcp_dtype_from_safetensors(name, strlen(name));
	e->dtype_name = e->dtype == DCP_DTYPE_OTHER
				? dcp_arena_strndup(r->arena, name, strlen(name))
				: dcp_dtype_info(e->dtype)->safetensors;
	return e->dtype_name ? 0 : no_memory(r->err);
}

/* Members other than the three are left alone, as safetensors' own reader does. */
static int fill_entry(const struct reader *r, struct dcp_safetensors_entry *e,
		      const struct dcp_json *json, uint64_t off)
{
	int code;

	if (!dcp_json_is_object(json))
		return dcp_fail(r->err, -EBADMSG, off, NAME ": its entry is no object",
				e->name);
	code = read_dtype(r, e, dcp_json_get(json, "dtype"), off);
	if (code == 0)
		code = read_shape(r, e, dcp_json_get(json, "shape"), off);
	if (code == 0)
		code = read_offsets(r, e, dcp_json_get(json, "data_offsets"), off);
	if (code == 0)
		code = check_size(r, e, off);
	return code;
}

static int read_entry(const struct reader *r, struct dcp_bytes name, struct dcp_bytes value,
		      struct dcp_safetensors_entry *e)
{
	struct dcp_json *root = NULL;
	int code = parse_text(r, name, "a name", &e->name);

	if (code < 0)
		return code;
	if (strcmp(e->name, "__metadata__") == 0)
		return dcp_fail(r->err, -EBADMSG, at(r, name),
				"__metadata__ is spelled with escapes");
	if (value.n > DCP_SAFETENSORS_MAX_ENTRY)
		return dcp_fail(r->err, -E2BIG, at(r, value),
				NAME ": its entry has %zu bytes, more than %u", e->name,
				value.n, DCP_SAFETENSORS_MAX_ENTRY);
	code = parse_piece(r, value, &root);
	if (code < 0)
		return dcp_err_where(r->err, code, NAME, e->name);
	code = fill_entry(r, e, root, at(r, value));
	dcp_json_free(root);
	return code;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_meta_names(const struct reader *r, uint64_t off)
{
	const char **meta = r->out->meta;
	size_t n = r->out->nmeta;
	const char **names = calloc(n ? n : 1, sizeof(*names));
	int code = names ? 0 : no_memory(r->err);

	for (size_t i = 0; code == 0 && i < n; i++)
		names[i] = meta[2 * i];
	if (code == 0)
		qsort(names, n, sizeof(*names), by_text);
	for (size_t i = 1; code == 0 && i < n; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			code = dcp_fail(r->err, -EBADMSG, off,
					"__metadata__ has the name \"%.160s\" twice", names[i]);
	free(names);
	return code;
}

static int count_members(const struct reader *r, struct dcp_bytes object, size_t *n)
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
	return dcp_fail(r->err, code, at(r, object) + why.off, "header byte %" PRIu64 ": %s",
			at(r, object) + why.off, why.msg);
}

static int read_meta(const struct reader *r, struct dcp_bytes object)
{
	struct dcp_json_walk w = { .text = (const char *)object.p, .n = object.n };
	struct dcp_bytes name, value;
	size_t n;
	int code;

	if (object.n == 4 && memcmp(object.p, "null", 4) == 0) /* as safetensors has it */
		return 0;
	if (object.p[0] != '{')
		return dcp_fail(r->err, -EBADMSG, at(r, object),
				"__metadata__ is not an object");
	code = count_members(r, object, &n);
	if (code < 0)
		return code;
	r->out->meta = dcp_arena_calloc(r->arena, n ? n : 1, 2 * sizeof(*r->out->meta));
	if (!r->out->meta)
		return no_memory(r->err);
	while (dcp_json_walk(&w, &name, &value, NULL) == 1) {
		const char **pair = r->out->meta + 2 * r->out->nmeta;

		code = parse_text(r, name, "a name in __metadata__", &pair[0]);
		if (code == 0 && value.p[0] != '"')
			return dcp_fail(r->err, -EBADMSG, at(r, value),
					"__metadata__ \"%.160s\": its value is not a string",
					pair[0]);
		if (code == 0)
			code = parse_text(r, value, "a value in __metadata__", &pair[1]);
		if (code < 0)
			return code;
		r->out->nmeta++;
	}
	return check_meta_names(r, at(r, object));
}

/* As written: nobody escapes letters, and read_entry() refuses who does. */
static bool is_meta(struct dcp_bytes name)
{
	static const char want[] = "\"__metadata__\"";

	return name.n == sizeof(want) - 1 && memcmp(name.p, want, name.n) == 0;
}

static int by_name(const void *a, const void *b)
{
	const struct dcp_safetensors_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int by_offset(const void *a, const void *b)
{
	const struct dcp_safetensors_entry *x = a, *y = b;

	if (x->off != y->off)
		return x->off < y->off ? -1 : 1;
	if (x->nbytes != y->nbytes)
		return x->nbytes < y->nbytes ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int check_names(const struct reader *r)
{
	struct dcp_safetensors_entry *e = r->out->entries;

	qsort(e, r->out->n, sizeof(*e), by_name);
	for (size_t i = 1; i < r->out->n; i++)
		if (strcmp(e[i - 1].name, e[i].name) == 0)
			return dcp_fail(r->err, -EBADMSG, e[i].off,
					NAME ": named twice, with data at %" PRIu64
					     " and at %" PRIu64,
					e[i].name, e[i - 1].off, e[i].off);
	return 0;
}

static int wrong_start(const struct reader *r, const struct dcp_safetensors_entry *e,
		       const struct dcp_safetensors_entry *before, uint64_t end)
{
	uint64_t lo = e->off - r->base;
	bool overlap = lo < end;

	if (!before)
		return dcp_fail(r->err, -EBADMSG, e->off,
				NAME ": its data starts at %" PRIu64
				     ", a hole of as many bytes",
				e->name, lo);
	return dcp_fail(r->err, -EBADMSG, e->off,
			NAME ": its data starts at %" PRIu64 ", %s of %" PRIu64
			     " bytes: \"%.100s\" ends at %" PRIu64,
			e->name, lo, overlap ? "an overlap" : "a hole",
			overlap ? end - lo : lo - end, before->name, end);
}

/* One after the other from the first byte of the data section to its last. */
static int check_cover(const struct reader *r)
{
	struct dcp_safetensors_entry *e = r->out->entries;
	uint64_t end = 0;

	qsort(e, r->out->n, sizeof(*e), by_offset);
	for (size_t i = 0; i < r->out->n; i++) {
		if (e[i].off - r->base != end)
			return wrong_start(r, &e[i], i ? &e[i - 1] : NULL, end);
		end += e[i].nbytes;
	}
	if (end != r->data)
		return dcp_fail(r->err, -EBADMSG, r->base + end,
				"the tensors end at %" PRIu64
				", but the data section has %" PRIu64 " bytes",
				end, r->data);
	return 0;
}

static int read_entries(const struct reader *r)
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
		return no_memory(r->err);
	while (code == 0 && dcp_json_walk(&w, &name, &value, NULL) == 1) {
		if (!is_meta(name)) {
			code = read_entry(r, name, value, &out->entries[out->n++]);
			continue;
		}
		if (have_meta)
			return dcp_fail(r->err, -EBADMSG, at(r, name),
					"__metadata__ is there twice");
		have_meta = true;
		code = read_meta(r, value);
	}
	if (code == 0)
		code = check_names(r);
	return code ? code : check_cover(r);
}

/* -ENOTSUP when the file is something else altogether, else 0. */
static int fail_other(const struct dcp_source *src, struct dcp_err *err)
{
	uint8_t head[DCP_MAGIC_HEAD] = { 0 };
	size_t n = (size_t)DCP_MIN(src->size, (uint64_t)sizeof(head));
	const char *what = NULL;

	if (dcp_source_read(src, 0, head, n) == 0 && head[8] != '{')
		what = dcp_magic(head, n);
	return what ? dcp_fail(err, -ENOTSUP, 0, "not a safetensors file, but %s", what) : 0;
}

/* The header's length, checked before anything is allocated for it. */
static int read_length(const struct dcp_source *src, const struct dcp_arena *arena,
		       uint64_t *out, struct dcp_err *err)
{
	uint8_t word[8];
	uint64_t n;
	int code;

	if (src->size < sizeof(word))
		return dcp_fail(err, -EBADMSG, 0,
				"file of %" PRIu64 " bytes has no room for a header length",
				src->size);
	code = dcp_source_read(src, 0, word, sizeof(word));
	if (code < 0)
		return dcp_fail(err, code, 0, "header length: %s", strerror(-code));
	n = dcp_load_le64(word);
	if (n == 0 || n > src->size - sizeof(word))
		code = fail_other(src, err);
	if (code < 0)
		return code;
	if (n > DCP_SAFETENSORS_MAX_HEADER)
		return dcp_fail(err, -E2BIG, 0,
				"header length %" PRIu64 " is over the format's limit of %u", n,
				DCP_SAFETENSORS_MAX_HEADER);
	if (n > src->size - sizeof(word))
		return dcp_fail(err, -EBADMSG, 0,
				"header length %" PRIu64
				" runs past the end of a file of %" PRIu64 " bytes",
				n, src->size);
	if (n > arena->limit - arena->used)
		return dcp_fail(err, -ENOMEM, 0,
				"header length %" PRIu64 " is over the memory limit", n);
	*out = n;
	return 0;
}

int dcp_safetensors_read(const struct dcp_source *src, struct dcp_arena *arena,
			 struct dcp_safetensors *out, struct dcp_err *err)
{
	struct dcp_safetensors st = { 0 };
	struct reader r = { .arena = arena, .out = &st, .err = err };
	dcp_auto_free char *text = NULL;
	uint64_t n = 0;
	int code = read_length(src, arena, &n, err);

	if (code < 0)
		return code;
	text = malloc(n + 1);
	if (!text)
		return no_memory(err);
	code = dcp_source_read(src, 8, text, n);
	if (code < 0)
		return dcp_fail(err, code, 8, "header: %s", strerror(-code));
	if (n == 0 || text[0] != '{')
		return dcp_fail(err, -EBADMSG, 8,
				"header of %" PRIu64 " bytes does not start with '{'", n);
	r.text = text;
	r.n = n;
	r.base = 8 + n;
	r.data = src->size - r.base;
	code = read_entries(&r);
	if (code == 0)
		*out = st;
	return code;
}

const char *dcp_safetensors_meta(const struct dcp_safetensors *st, const char *key)
{
	for (size_t i = 0; i < st->nmeta; i++)
		if (strcmp(st->meta[2 * i], key) == 0)
			return st->meta[2 * i + 1];
	return NULL;
}
