/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_int: an index being written, shared by write.c (the database), writer.c (errors, the table
 * of files, which keys and file names are taken) and rows.c (rows).
 */
#pragma once
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/base/jsonw.h"
#include "core/model/name.h"
#include "core/store/index/index_int.h"

/* A row's number in the maps: objects have the top bit. */
#define DCP_INDEX_OBJECT (1u << 31)

enum dcp_index_add {
	DCP_ADD_META,
	DCP_ADD_TOLD_META, /* by an adapter: does not replace what is known */
	DCP_ADD_FILE,
	DCP_SHOW_FILE,
	DCP_ADD_TENSOR,
	DCP_ADD_OBJECT,
	DCP_ADD_ITEM,
	DCP_ADD_ALIAS, /* count one */
	DCP_TOLD_TENSOR,
	DCP_TOLD_OBJECT,
};
#define DCP_ADD_COUNT (DCP_TOLD_OBJECT + 1)

/* ---- writer.c: has this been emitted before? ---- */

/*
 * From hashes to row numbers, 8 bytes a slot: a match may be false, so the caller looks at
 * the row before believing it. Numbers count from 1.
 */
struct dcp_index_slot {
	uint32_t tag, number; /* number 0: free */
};
struct dcp_index_map {
	struct dcp_index_slot *slots;
	uint32_t n, cap;
};

/* Next number whose hash may be @hash, 0 when there is none; start with *at = 0. */
uint32_t dcp_index_map_next(const struct dcp_index_map *m, uint64_t hash, uint32_t *at);
int dcp_index_map_add(struct dcp_index_map *m, uint64_t hash, uint32_t number);
void dcp_index_map_finish(struct dcp_index_map *m);

/* ---- rows.c: is what an adapter emits possible? ---- */

/* A file as the writer met it. */
struct dcp_index_seen {
	struct dcp_file_id id;
	const char *error; /* why it could not be opened, or NULL */
	bool packed;       /* meant is what it decodes to */
};

/* ---- writer.c ---- */

struct dcp_index_writer {
	sqlite3 *db;
	sqlite3_stmt *stmt[DCP_ADD_COUNT];
	char *path, *temp;         /* NULL in memory */
	const struct dcp_site *at; /* of the checkpoint; borrowed */
	struct dcp_unpack *unpack; /* borrowed; may be NULL */
	struct dcp_index_map keys, stems, files;
	struct dcp_buf seen; /* struct dcp_index_seen, by file number */
	struct dcp_arena text, scratch;
	struct dcp_buf pieces, copies, shape, path_json;
	struct dcp_index_counts counts;
	unsigned nmeta;
	uint32_t nitems;
	struct dcp_intern
		said; /* names of what files say; of these pairs, and of those that are lost, */
	struct dcp_buf pairs, lost; /* as writer.c has them */
	size_t nsaid;               /* bytes that their JSON has at most */
	struct dcp_intern sayings;  /* all that one file says, as JSON; files that say it: */
	struct dcp_buf sayers;      /* as writer.c has them */
	struct dcp_buf saying;      /* of the file that is being read */
	struct dcp_jsonw saying_json;
	size_t nsayings;    /* bytes of sayings */
	struct dcp_err err; /* what broke the sink: sticky */
};

static inline const struct dcp_index_seen *dcp_index_seen(const struct dcp_index_writer *w)
{
	return DCP_ITEMS(w->seen, struct dcp_index_seen);
}

static inline size_t dcp_index_nseen(const struct dcp_index_writer *w)
{
	return DCP_NITEMS(w->seen, struct dcp_index_seen);
}

/* Break the sink; the first reason stays. All return its code. */
int dcp_index_give_up(struct dcp_index_writer *w, int code, const char *why);
int dcp_index_no_memory(struct dcp_index_writer *w);
int dcp_index_sql_failed(struct dcp_index_writer *w, int rc);

void dcp_index_put_text(sqlite3_stmt *s, int i, const char *text); /* NULL: SQL's NULL */

/* Run an insert or update whose parameters are bound. */
int dcp_index_run(struct dcp_index_writer *w, enum dcp_index_add which);

/* ---- writer.c ---- */

/* Rows emitted earlier with a text: the first tensor, the first object; 0: none. */
struct dcp_index_emitted {
	uint32_t tensor, object;
	bool unknown; /* too many texts have the same hash to look at all of them */
};

/* Who has this key? */
int dcp_index_find_key(struct dcp_index_writer *w, const char *key, uint64_t hash,
		       struct dcp_index_emitted *out);

/*
 * A stem not used yet, for the row @number. @clash: the key itself was emitted before, so its
 * plain form is taken.
 */
int dcp_index_choose_stem(struct dcp_index_writer *w, const char *key, bool clash,
			  uint32_t number, char name[DCP_NAME_MAX + 1]);

/* ---- writer.c ---- */

/* The number of a file that was emitted, or of what it decodes to (@packed): the same name may
 * be both. */
int dcp_index_emit_file(void *ctx, const char *name, uint32_t *number);
int dcp_index_emit_unpacked(void *ctx, const char *name, uint32_t *number);
int dcp_index_emit_sidecar(void *ctx, const char *name);

/* ---- writer.c ---- */

int dcp_index_emit_said(void *ctx, const char *file, const char *name, const char *value);
/* Pass the facts that come of it to @tell. */
int dcp_index_tell_said(struct dcp_index_writer *w,
			int (*tell)(struct dcp_index_writer *w, const char *name,
				    const char *value));

/* ---- rows.c ---- */

int dcp_index_emit_tensor(void *ctx, const struct dcp_tensor *emitted);
int dcp_index_emit_object(void *ctx, const struct dcp_object *emitted);
int dcp_index_emit_item(void *ctx, const struct dcp_object *emitted);
