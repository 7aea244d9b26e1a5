/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stem that is not hashed is the key, reversibly escaped, so two of them clash only when
 * their keys are the same. Only stems that end like a hashed one ("~" and 16 digits) need a
 * table of their own.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/store/index/write/write_int.h"

/* MAX_ALIKE: more than an honest checkpoint ever has; so many are hash collisions made on purpose.
 * HASHED: bytes that end a hashed stem. */
enum { MAX_ALIKE = 1000, HASHED = 1 + 16 };

/* Is column @column of the row numbered so @text? Leaves the statement on that row. */
static int row_says(struct dcp_index_writer *w, uint32_t number, int column, const char *text)
{
	sqlite3_stmt *s =
		w->stmt[number & DCP_INDEX_OBJECT ? DCP_TOLD_OBJECT : DCP_TOLD_TENSOR];
	int rc;

	sqlite3_reset(s);
	sqlite3_bind_int64(s, 1, number & ~DCP_INDEX_OBJECT);
	rc = sqlite3_step(s);
	if (rc == SQLITE_DONE)
		return 0; /* the row that is being emitted */
	if (rc != SQLITE_ROW)
		return dcp_index_sql_failed(w, rc);
	return strcmp((const char *)sqlite3_column_text(s, column), text) == 0;
}

static int find_emitted(struct dcp_index_writer *w, const struct dcp_index_map *m, int column,
			const char *text, uint64_t hash, struct dcp_index_emitted *out)
{
	uint32_t at = 0, number;

	*out = (struct dcp_index_emitted){ 0 };
	for (int n = 0; (number = dcp_index_map_next(m, hash, &at)) != 0; n++) {
		int same;

		if (n == MAX_ALIKE) {
			out->unknown = true;
			break;
		}
		same = row_says(w, number, column, text);
		if (same < 0)
			return same;
		if (same && number & DCP_INDEX_OBJECT)
			out->object = number & ~DCP_INDEX_OBJECT;
		else if (same)
			out->tensor = number;
	}
	return 0;
}

int dcp_index_find_key(struct dcp_index_writer *w, const char *key, uint64_t hash,
		       struct dcp_index_emitted *out)
{
	return find_emitted(w, &w->keys, 0, key, hash, out);
}

/* Could this stem be the hashed form of a key? */
static bool looks_hashed(const char *name)
{
	size_t n = strlen(name);

	return n >= HASHED && name[n - HASHED] == '~' &&
	       strspn(name + n - HASHED + 1, "0123456789abcdef") == HASHED - 1;
}

/*
 * The plain form, the hashed one of a key that two rows have, or one with the number of the
 * row: no other stem has "%~" there, as after '%' an escape has digits.
 */
int dcp_index_choose_stem(struct dcp_index_writer *w, const char *key, bool clash,
			  uint32_t number, char name[DCP_NAME_MAX + 1])
{
	for (bool hashed = clash;; hashed = true) {
		struct dcp_index_emitted emitted = { 0 };
		uint64_t hash;
		int code;

		dcp_name_from_key(key, hashed, name);
		if (!looks_hashed(name))
			return 0;
		hash = dcp_hash64(name, strlen(name));
		code = find_emitted(w, &w->stems, 1, name, hash, &emitted);
		if (code < 0)
			return code;
		if (!emitted.tensor && !emitted.object && !emitted.unknown)
			return dcp_index_map_add(&w->stems, hash, number) < 0
				       ? dcp_index_no_memory(w)
				       : 0;
		if (hashed)
			break;
	}
	snprintf(name + strlen(name) - HASHED, HASHED + 1, "%%~%0*x", HASHED - 2, number);
	return 0;
}
