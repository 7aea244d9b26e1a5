/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header is walked member by member: a tree of all of it would take ten times its
 * length, and it may be 100 MB. Entries are sorted twice, by name to find duplicates and by
 * offset to find holes and overlaps, so nothing is quadratic.
 *
 * Limits on numbers are jansson's: integers up to 2^63 - 1, digits only.
 */
#include "core/base/sort.h"
#include "core/parse/safetensors/safetensors_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/cleanup.h"
#include "core/base/text.h"
#include "core/origin/source.h"
#include "core/parse/json.h"
#include "core/parse/magic.h"

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

/* Compared as written: dcp_st_entry() refuses this name where its letters are escaped. */
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

static int wrong_start(const struct dcp_st_reader *r, const struct dcp_safetensors_entry *e,
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

/* One after the other from the first byte of the data section to its last. */
static int check_cover(const struct dcp_st_reader *r)
{
	struct dcp_safetensors_entry *e = r->out->entries;
	uint64_t end = 0;

	DCP_SORT(e, r->out->n, by_offset);
	for (size_t i = 0; i < r->out->n; i++) {
		if (e[i].off - r->base != end)
			return wrong_start(r, &e[i], i ? &e[i - 1] : NULL, end);
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

/* -ENOTSUP when the file is something else altogether, else 0. */
static int fail_other(const struct dcp_source *src, struct dcp_err *err)
{
	uint8_t head[DCP_MAGIC_HEAD] = { 0 };
	size_t n = (size_t)DCP_MIN(src->size, (uint64_t)sizeof(head));
	const char *what = NULL;

	if (dcp_source_read(src, 0, head, n) == 0 && head[8] != '{')
		what = dcp_magic(head, n);
	return what ? dcp_fail_at(err, -ENOTSUP, 0, "not a safetensors file, but %s", what) : 0;
}

/* The header's length, checked before anything is allocated for it. */
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
		return dcp_fail_at(err, code, 0, "header length: %s", strerror(-code));
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
		return dcp_fail_at(err, code, 8, "header: %s", strerror(-code));
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
