/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the file: it is refused, or its rows are read without a crash or a loop without end.
 *
 * Input that begins as a database does is one. Any other is a list of edits of a good index,
 * five bytes each: where (32 bits, little-endian) and what; the last few bytes, if the list
 * does not come out even, say where to cut it. So small inputs reach every row of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/store/index/index_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void tell(const struct dcp_sink *s, uint32_t file)
{
	static const char *const keys[] = { "a", "a.b", "a.b.c", "\xff", "a\"b", "long key" };
	uint64_t lo[2] = { 0, 0 }, len[2] = { 2, 3 };
	struct dcp_piece p = { .lo = lo, .len = len, .run_n = 6, .file = file, .nbytes = 12 };

	for (size_t i = 0; i < DCP_LEN(keys); i++) {
		struct dcp_tensor t = { .key = keys[i],
					.path = keys,
					.npath = i,
					.dtype = DCP_DTYPE_BF16,
					.itemsize = 2,
					.ndim = 2,
					.shape = len,
					.pieces = &p,
					.npieces = 1,
					.alias_of = i == 2 ? "a" : NULL };
		struct dcp_object o = { .key = keys[i],
					.path = keys,
					.npath = i,
					.type = "int",
					.json = "[1]",
					.json_len = 3,
					.error = i == 3 ? "bad" : NULL };

		must(s->tensor(s->ctx, &t) == 0 && s->object(s->ctx, &o) == 0 &&
		     s->item(s->ctx, &o) == 0);
	}
}

/* A good index, made once. */
static const struct dcp_source *good_index(void)
{
	static struct dcp_index *ix;
	struct dcp_index_writer *w;
	static const struct dcp_site at;
	struct dcp_sink s;
	uint32_t file;

	if (ix)
		return &ix->src;
	must(dcp_index_create(NULL, &w, NULL) == 0);
	s = dcp_index_sink(w, &at);
	must(s.file(s.ctx, "shard", &file) == 0);
	tell(&s, file);
	must(dcp_index_commit(w, &ix, NULL) == 0);
	return &ix->src;
}

static void read_rows(struct dcp_index *ix, enum dcp_row_kind kind, struct dcp_arena *arena)
{
	struct dcp_index_scan *s = NULL;
	struct dcp_row row, again;
	struct dcp_tensor t;
	struct dcp_object o;
	int64_t last = 0;
	int rc = dcp_index_scan(ix, kind, 0, false, &s);

	while (rc == 0 && dcp_index_scan_next(s, &row) == 1) {
		must(row.id > last && row.ndim <= DCP_MAX_NDIM && strlen(row.name) <= 243);
		must(!strchr(row.name, '/'));
		last = row.id;
		dcp_arena_reset(arena);
		if (kind == DCP_ROW_TENSOR)
			must(dcp_index_tensor(ix, row.id, arena, &t, NULL) <= 0);
		else if (kind == DCP_ROW_OBJECT)
			must(dcp_index_object(ix, row.id, arena, &o, NULL) <= 0);
		else
			must(dcp_index_item(ix, row.id, arena, &o, NULL) <= 0);
		if (kind == DCP_ROW_ITEM)
			continue;
		if (dcp_index_by_name(ix, kind, row.name, arena, &again) == 0)
			must(strcmp(again.name, row.name) == 0);
		dcp_index_by_key(ix, kind, row.key, arena, &again);
	}
	dcp_index_scan_end(s);
}

/* The file to try, in SQLite's memory. */
static uint8_t *make_image(const uint8_t *data, size_t n, size_t *size)
{
	const struct dcp_source *good = good_index();
	bool whole = n >= 16 && memcmp(data, "SQLite format 3", 16) == 0;
	uint8_t *image;

	*size = whole ? n : good->size;
	image = sqlite3_malloc64(*size);
	must(image != NULL);
	memcpy(image, whole ? data : good->mem, *size);
	for (; !whole && n >= 5; data += 5, n -= 5)
		image[dcp_load_le32(data) % *size] = data[4];
	if (!whole && n >= 2)
		*size = dcp_load_le16(data) % (*size + 1);
	return image;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_index *ix = NULL;
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	size_t size;
	uint8_t *image = make_image(data, n, &size);
	int code = dcp_index_open_image(image, size, &ix, &err);

	must(code == 0 || (code < 0 && *err.msg));
	dcp_arena_init(&arena, 16u << 20);
	if (code == 0) {
		read_rows(ix, DCP_ROW_TENSOR, &arena);
		read_rows(ix, DCP_ROW_OBJECT, &arena);
		read_rows(ix, DCP_ROW_ITEM, &arena);
	}
	dcp_index_close(ix);
	dcp_arena_finish(&arena);
	return 0;
}
