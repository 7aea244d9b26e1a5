/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stem that is not hashed is the key, reversibly escaped, so two of them clash only when
 * their keys are the same. Only stems that end like a hashed one ("~" and 16 digits) need a
 * table of their own.
 */
#include <errno.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/store/index_write_int.h"

/* As many look-alikes as an honest checkpoint never has: somebody builds hash collisions. */
enum { MAX_ALIKE = 1000, MAX_STEM_TRIES = 16 };

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
		return 0; /* the row that is being told */
	if (rc != SQLITE_ROW)
		return dcp_index_sql_failed(w, rc);
	return strcmp((const char *)sqlite3_column_text(s, column), text) == 0;
}

static int find_told(struct dcp_index_writer *w, const struct dcp_index_map *m, int column,
		     const char *text, uint64_t hash, struct dcp_index_told *out)
{
	uint32_t at = 0, number;

	*out = (struct dcp_index_told){ 0 };
	for (int n = 0; (number = dcp_index_map_next(m, hash, &at)) != 0; n++) {
		int same = n < MAX_ALIKE ? row_says(w, number, column, text)
					 : dcp_index_give_up(w, -E2BIG, "keys made to collide");

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
		       struct dcp_index_told *out)
{
	return find_told(w, &w->keys, 0, key, hash, out);
}

/* Could this stem be the hashed form of a key? */
static bool looks_hashed(const char *name)
{
	size_t n = strlen(name);

	return n >= 17 && name[n - 17] == '~' &&
	       strspn(name + n - 16, "0123456789abcdef") == 16;
}

/* The third row with one key needs another hash than the second has: it is salted. */
int dcp_index_choose_stem(struct dcp_index_writer *w, const char *key, bool clash,
			  uint32_t number, char name[DCP_NAME_MAX + 1])
{
	dcp_auto_buf struct dcp_buf salted = DCP_BUF_INIT;

	for (uint32_t i = 0; i < MAX_STEM_TRIES; i++) {
		struct dcp_index_told told = { 0 };
		uint64_t hash;
		int code = 0;

		dcp_buf_reset(&salted);
		dcp_buf_str(&salted, key);
		if (i > 1)
			dcp_buf_printf(&salted, "~%u", number + i - 2);
		if (dcp_buf_error(&salted))
			return dcp_index_no_memory(w);
		if (i == 0 && clash)
			continue;
		dcp_name_from_key(salted.p, i > 0, name);
		if (!looks_hashed(name))
			return 0;
		hash = dcp_hash64(name, strlen(name));
		code = find_told(w, &w->stems, 1, name, hash, &told);
		if (code < 0)
			return code;
		if (!told.tensor && !told.object)
			return dcp_index_map_add(&w->stems, hash, number) < 0
				       ? dcp_index_no_memory(w)
				       : 0;
	}
	return dcp_index_give_up(w, -E2BIG, "no free file name for a key");
}
