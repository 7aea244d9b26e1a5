/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer: what the tables of an index share while it is written: errors and statements; the hash
 * table that finds rows again; the table of files; the metadata of files; and the stems, which are
 * the file names of keys.
 */
#include "core/store/index/write/write_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/base/jsonw.h"
#include "core/origin/dir/dir.h"
#include "core/store/cache/cache.h"

int dcp_index_give_up(struct dcp_index_writer *w, int code, const char *why)
{
	if (!w->err.code)
		dcp_fail(&w->err, code, "index: %s", why);
	return w->err.code;
}

int dcp_index_no_memory(struct dcp_index_writer *w)
{
	return dcp_index_give_up(w, -ENOMEM, "out of memory");
}

int dcp_index_sql_failed(struct dcp_index_writer *w, int rc)
{
	if (!w->err.code)
		dcp_index_sql_fail(w->db, rc, w->temp ? w->temp : "index in memory", &w->err);
	return w->err.code;
}

void dcp_index_put_text(sqlite3_stmt *s, int i, const char *text)
{
	if (text)
		sqlite3_bind_text(s, i, text, -1, SQLITE_STATIC);
	else
		sqlite3_bind_null(s, i);
}

int dcp_index_run(struct dcp_index_writer *w, enum dcp_index_add which)
{
	int rc = sqlite3_step(w->stmt[which]);

	sqlite3_reset(w->stmt[which]);
	return rc == SQLITE_DONE ? 0 : dcp_index_sql_failed(w, rc);
}

/* Open addressing, linear probing, at most two thirds full. A tag, the upper half of the hash,
 * tells where a search begins, so the table can grow without reading rows. */

enum { MAP_MIN = 64 };

static uint32_t find_home(const struct dcp_index_map *m, uint32_t tag)
{
	return (uint32_t)((uint64_t)tag * m->cap >> 32);
}

uint32_t dcp_index_map_next(const struct dcp_index_map *m, uint64_t hash, uint32_t *at)
{
	uint32_t tag = (uint32_t)(hash >> 32);

	while (*at < m->cap) {
		uint32_t i = find_home(m, tag) + (*at)++;
		const struct dcp_index_slot *s = &m->slots[i < m->cap ? i : i - m->cap];

		if (s->number == 0)
			break;
		if (s->tag == tag)
			return s->number;
	}
	return 0;
}

static void put_slot(struct dcp_index_map *m, struct dcp_index_slot s)
{
	uint32_t i = find_home(m, s.tag);

	while (m->slots[i].number)
		i = i + 1 < m->cap ? i + 1 : 0;
	m->slots[i] = s;
}

static int grow_map(struct dcp_index_map *m)
{
	struct dcp_index_map bigger = { .n = m->n };

	if (m->cap > UINT32_MAX / 4)
		return -E2BIG;
	bigger.cap = m->cap ? m->cap * 2 : MAP_MIN;
	bigger.slots = calloc(bigger.cap, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->cap; i++)
		if (m->slots[i].number)
			put_slot(&bigger, m->slots[i]);
	free(m->slots);
	*m = bigger;
	return 0;
}

int dcp_index_map_add(struct dcp_index_map *m, uint64_t hash, uint32_t number)
{
	int code = m->n >= m->cap / 3 * 2 ? grow_map(m) : 0;

	if (code < 0)
		return code;
	put_slot(m, (struct dcp_index_slot){ (uint32_t)(hash >> 32), number });
	m->n++;
	return 0;
}

void dcp_index_map_finish(struct dcp_index_map *m)
{
	free(m->slots);
	*m = (struct dcp_index_map){ 0 };
}

/* The file table of an index being written: files that pieces refer to, and files that the adapter
 * read. */

/* Open the file to check that it exists and to get its length, or (@packed) the length of its
 * decoded content. */
static int look_inside(struct dcp_index_writer *w, struct dcp_file_id *id, bool packed,
		       struct dcp_err *err)
{
	dcp_auto_blob struct dcp_blob blob = { 0 };
	uint64_t size = 0;
	int code;

	if (packed && !w->unpack)
		return dcp_fail(err, -ENOTSUP, "%.300s: compressed, and dcpfs cannot decode it",
				id->name);
	if (packed) {
		code = dcp_unpack_open(w->unpack, w->at, id->name, &blob, &size, id, err);
		if (code == 0 && size == 0)
			code = dcp_fail(err, -EBADMSG, "%.300s decodes to nothing", id->name);
		return code;
	}
	return dcp_site_open(w->at, id->name, &blob, id, err);
}

static int look_at(struct dcp_index_writer *w, const char *name, bool packed,
		   struct dcp_index_seen *f)
{
	struct dcp_err err = { 0 };

	*f = (struct dcp_index_seen){ .packed = packed };
	f->id.name = dcp_arena_strdup(&w->text, name);
	if (!f->id.name)
		return dcp_index_give_up(w, -E2BIG, "the names of the files are too long");
	if (look_inside(w, &f->id, packed, &err) == 0)
		return 0;
	f->error = dcp_arena_strdup(&w->text, err.msg);
	return f->error ? 0 : dcp_index_no_memory(w);
}

static int add_file(struct dcp_index_writer *w, const struct dcp_file_id *id, size_t number)
{
	sqlite3_stmt *s = w->stmt[DCP_ADD_FILE];

	sqlite3_bind_int64(s, 1, (sqlite3_int64)number + 1);
	dcp_index_put_text(s, 2, id->name);
	sqlite3_bind_int64(s, 3, (sqlite3_int64)id->size);
	sqlite3_bind_int64(s, 4, (sqlite3_int64)id->dev);
	sqlite3_bind_int64(s, 5, (sqlite3_int64)id->ino);
	sqlite3_bind_int64(s, 6, id->mtime_ns);
	sqlite3_bind_int64(s, 7, id->ctime_ns);
	sqlite3_bind_int64(s, 8, (sqlite3_int64)id->unpacked);
	return dcp_index_run(w, DCP_ADD_FILE);
}

/* Remember the next file, whose row was added. */
static int add_seen(struct dcp_index_writer *w, const struct dcp_index_seen *f)
{
	uint64_t hash = dcp_hash64(f->id.name, strlen(f->id.name));

	dcp_buf_add(&w->seen, f, sizeof(*f));
	if (dcp_buf_error(&w->seen) ||
	    dcp_index_map_add(&w->files, hash, (uint32_t)dcp_index_nseen(w)) < 0)
		return dcp_index_no_memory(w);
	return 0;
}

static bool dcp_index_find_file(const struct dcp_index_writer *w, const char *name, bool packed,
				uint32_t *number)
{
	uint64_t hash = dcp_hash64(name, strlen(name));
	uint32_t at = 0, known;

	while ((known = dcp_index_map_next(&w->files, hash, &at)) != 0) {
		const struct dcp_index_seen *seen = &dcp_index_seen(w)[known - 1];

		*number = known - 1;
		if (seen->packed == packed && strcmp(seen->id.name, name) == 0)
			return true;
	}
	return false;
}

static int emit_file(struct dcp_index_writer *w, const char *name, bool packed,
		     uint32_t *number)
{
	struct dcp_index_seen f;
	int code = w->err.code;

	if (code == 0 && dcp_index_find_file(w, name, packed, number))
		return 0;
	if (code == 0 && dcp_index_nseen(w) == DCP_INDEX_MAX_FILES)
		code = dcp_index_give_up(w, -E2BIG, "more than a million files");
	if (code == 0)
		code = look_at(w, name, packed, &f);
	if (code == 0)
		code = add_file(w, &f.id, dcp_index_nseen(w));
	if (code == 0)
		code = add_seen(w, &f);
	if (code == 0)
		*number = (uint32_t)dcp_index_nseen(w) - 1;
	return code;
}

static int show_file(struct dcp_index_writer *w, uint32_t number)
{
	sqlite3_bind_int64(w->stmt[DCP_SHOW_FILE], 1, (sqlite3_int64)number + 1);
	return dcp_index_run(w, DCP_SHOW_FILE);
}

int dcp_index_emit_files(struct dcp_index_writer *w, const struct dcp_file_id *ids, size_t n)
{
	int code = w->err.code;

	for (size_t i = 0; code == 0 && i < n; i++) {
		struct dcp_index_seen f = { .id = ids[i], .packed = ids[i].unpacked };

		f.id.name = dcp_arena_strdup(&w->text, ids[i].name);
		if (!f.id.name)
			return dcp_index_no_memory(w);
		if (!ids[i].ino) /* the file could not be opened then */
			f.error = "it could not be opened when it was indexed";
		code = add_file(w, &f.id, i);
		if (code == 0)
			code = add_seen(w, &f);
		if (code == 0 && f.id.shown)
			code = show_file(w, (uint32_t)i);
	}
	return code;
}

bool dcp_index_was_emitted(const struct dcp_index_writer *w, const char *name)
{
	const struct dcp_index_seen *seen = DCP_ITEMS(w->seen, struct dcp_index_seen);
	uint64_t hash = dcp_hash64(name, strlen(name));
	uint32_t at = 0, known;

	while ((known = dcp_index_map_next(&w->files, hash, &at)) != 0)
		if (strcmp(seen[known - 1].id.name, name) == 0)
			return true;
	return false;
}

int dcp_index_emit_file(void *ctx, const char *name, uint32_t *number)
{
	return emit_file(ctx, name, false, number);
}

int dcp_index_emit_unpacked(void *ctx, const char *name, uint32_t *number)
{
	return emit_file(ctx, name, true, number);
}

int dcp_index_emit_sidecar(void *ctx, const char *name)
{
	struct dcp_index_writer *w = ctx;
	uint32_t number;
	int code = emit_file(w, name, false, &number);

	if (code < 0 || dcp_index_seen(w)[number].error)
		return code;
	return show_file(w, number);
}

/*
 * Metadata of files (__metadata__ of safetensors) as facts of the version: "metadata", an object of
 * all pairs, the format first. "metadata_lost": if files have different values for one name, the
 * value of the file that was emitted first wins, and this fact lists the others. "metadata_files",
 * if the metadata of files differs: {"says": [object, ...], "files": [[number of the file, which
 * of says], ...]}.
 */

enum { MAX_LOST = 256, MAX_SHOWN = 300 };

struct pair {
	const char *name, *value, *file;
};

struct lost {
	const char *name, *why;
};

struct sayer {
	const char *file;
	uint32_t says;
};

/* Note the lost pair @p, which differs from @kept; @kept NULL: @p exceeds a limit. */
static int add_lost(struct dcp_index_writer *w, const struct pair *p, const struct pair *kept)
{
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;
	struct lost lost = { dcp_arena_strdup(&w->text, p->name), NULL };

	if (DCP_NITEMS(w->lost, lost) == MAX_LOST)
		return 0;
	if (kept)
		dcp_buf_printf(&why,
			       "%s says \"%.*s\" in __metadata__ and %s \"%.*s\", which counts "
			       "in a file that has tensors of both",
			       p->file, MAX_SHOWN, p->value, kept->file, MAX_SHOWN,
			       kept->value);
	else
		dcp_buf_printf(&why,
			       "%s says it in __metadata__; it is too long or not Unicode",
			       p->file);
	if (!dcp_buf_error(&why))
		lost.why = dcp_arena_strdup(&w->text, why.p);
	if (lost.name && lost.why)
		dcp_buf_add(&w->lost, &lost, sizeof(lost));
	return !lost.name || !lost.why || dcp_buf_error(&w->lost) ? dcp_index_no_memory(w) : 0;
}

/* Files with the same metadata share one record. */
static int end_file(struct dcp_index_writer *w)
{
	struct sayer *s = DCP_ITEMS(w->sayers, struct sayer);
	size_t n = DCP_NITEMS(w->sayers, struct sayer);
	int rc;

	if (!n || s[n - 1].says != DCP_INTERN_NONE)
		return 0;
	dcp_jsonw_end(&w->saying_json);
	if (dcp_jsonw_error(&w->saying_json) < 0)
		return dcp_index_no_memory(w);
	/* over the limit: every file counts as having all of "metadata" */
	if (w->nsayings > DCP_INDEX_MAX_SAID)
		return 0;
	rc = dcp_intern_str(&w->sayings, w->saying.p, &s[n - 1].says);
	w->nsayings += rc > 0 ? w->saying.n : 0;
	return rc < 0 ? dcp_index_no_memory(w) : 0;
}

static int begin_file(struct dcp_index_writer *w, const char *file)
{
	const struct sayer s = { dcp_arena_strdup(&w->text, file), DCP_INTERN_NONE };
	int rc = end_file(w);

	dcp_buf_reset(&w->saying);
	dcp_jsonw_init(&w->saying_json, &w->saying, false);
	dcp_jsonw_object(&w->saying_json);
	dcp_buf_add(&w->sayers, &s, sizeof(s));
	if (rc == 0 && (!s.file || dcp_buf_error(&w->sayers)))
		rc = dcp_index_no_memory(w);
	return rc;
}

int dcp_index_emit_said(void *ctx, const char *file, const char *name, const char *value)
{
	struct dcp_index_writer *w = ctx;
	struct pair p;
	const struct pair *known;
	uint32_t number;
	int rc;

	if (w->err.code)
		return w->err.code;
	if (!name)
		return begin_file(w, file);
	if (w->sayers.n && w->saying.n < DCP_INDEX_MAX_SAID && dcp_json_can_say(name) &&
	    dcp_json_can_say(value))
		dcp_jsonw_put_str(&w->saying_json, name, value);
	number = dcp_intern_find(&w->said, name, strlen(name));
	known = number == DCP_INTERN_NONE ? NULL : DCP_ITEMS(w->pairs, struct pair) + number;
	if (known && strcmp(known->value, value) == 0)
		return 0;
	p = (struct pair){ name, value, file };
	if (known)
		return add_lost(w, &p, known);
	/* One byte takes at most six bytes in JSON. */
	w->nsaid += 6 * (strlen(name) + strlen(value)) + 8;
	if (w->nsaid > DCP_INDEX_MAX_SAID || !dcp_json_can_say(name) ||
	    !dcp_json_can_say(value))
		return add_lost(w, &p, NULL);
	p = (struct pair){ dcp_arena_strdup(&w->text, name), dcp_arena_strdup(&w->text, value),
			   dcp_arena_strdup(&w->text, file) };
	if (!p.name || !p.value || !p.file)
		return dcp_index_no_memory(w);
	rc = dcp_intern_str(&w->said, name, NULL);
	dcp_buf_add(&w->pairs, &p, sizeof(p));
	return rc < 0 || dcp_buf_error(&w->pairs) ? dcp_index_no_memory(w) : 0;
}

static void put_pairs(const struct dcp_index_writer *w, struct dcp_jsonw *json)
{
	const struct pair *p = DCP_ITEMS(w->pairs, struct pair);
	uint32_t format = dcp_intern_find(&w->said, "format", 6);

	dcp_jsonw_object(json);
	if (format != DCP_INTERN_NONE)
		dcp_jsonw_put_str(json, p[format].name, p[format].value);
	for (uint32_t i = 0; i < w->said.n; i++)
		if (i != format)
			dcp_jsonw_put_str(json, p[i].name, p[i].value);
	dcp_jsonw_end(json);
}

static void put_lost(const struct dcp_index_writer *w, struct dcp_jsonw *json)
{
	const struct lost *l = DCP_ITEMS(w->lost, struct lost);

	dcp_jsonw_array(json);
	for (size_t i = 0; i < DCP_NITEMS(w->lost, struct lost); i++) {
		dcp_jsonw_object(json);
		dcp_jsonw_put_str(json, "name", l[i].name);
		dcp_jsonw_put_str(json, "why", l[i].why);
		dcp_jsonw_end(json);
	}
	dcp_jsonw_end(json);
}

static void put_files(const struct dcp_index_writer *w, struct dcp_jsonw *json)
{
	const struct sayer *s = DCP_ITEMS(w->sayers, struct sayer);

	dcp_jsonw_object(json);
	dcp_jsonw_put_array(json, "says");
	for (uint32_t i = 0; i < w->sayings.n; i++) {
		const char *text = dcp_intern_text(&w->sayings, i);

		dcp_jsonw_raw(json, text, strlen(text));
	}
	dcp_jsonw_end(json);
	dcp_jsonw_put_array(json, "files");
	for (size_t i = 0; i < DCP_NITEMS(w->sayers, struct sayer); i++) {
		uint32_t number;

		if (!dcp_index_find_file(w, s[i].file, false, &number) &&
		    !dcp_index_find_file(w, s[i].file, true, &number))
			continue;
		dcp_jsonw_array(json);
		dcp_jsonw_u64(json, number);
		dcp_jsonw_u64(json, s[i].says);
		dcp_jsonw_end(json);
	}
	dcp_jsonw_end(json);
	dcp_jsonw_end(json);
}

int dcp_index_tell_said(struct dcp_index_writer *w,
			int (*tell)(struct dcp_index_writer *w, const char *name,
				    const char *value))
{
	static const struct {
		const char *name;
		void (*put)(const struct dcp_index_writer *w, struct dcp_jsonw *json);
	} facts[] = { { "metadata", put_pairs },
		      { "metadata_lost", put_lost },
		      { "metadata_files", put_files } };
	int rc = end_file(w);
	const size_t n[] = { w->pairs.n, w->lost.n,
			     w->sayings.n > 1 && w->nsayings <= DCP_INDEX_MAX_SAID
				     ? w->sayings.n
				     : 0 };

	for (size_t i = 0; rc == 0 && i < DCP_LEN(facts); i++) {
		dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
		struct dcp_jsonw json;

		if (!n[i])
			continue;
		dcp_jsonw_init(&json, &text, false);
		facts[i].put(w, &json);
		rc = dcp_jsonw_error(&json) < 0 ? dcp_index_no_memory(w)
						: tell(w, facts[i].name, text.p);
	}
	return rc;
}

/*
 * A stem that is not hashed is the key, reversibly escaped, so two of them clash only when
 * their keys are the same. Only stems that end like a hashed one ("~" and 16 digits) need a
 * table of their own.
 */

/* MAX_ALIKE: more rows of one hash than an honest checkpoint ever has; so many collisions are made
 * on purpose. HASHED: bytes at the end of a hashed stem. */
enum { MAX_ALIKE = 1000, HASHED = 1 + 16 };

/* Is column @column of row @number equal to @text? Leaves the statement on that row. */
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
 * The stem is the plain form, the hashed form if two rows have the key, or a form that ends in "%~"
 * and the number of the row. No other stem has "%~" in that place, because an escape has digits
 * after '%'.
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
