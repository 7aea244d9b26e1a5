/* SPDX-License-Identifier: Apache-2.0 */
/* write_int: an index being written, shared by write.c (the database), writer.c (errors, the table
 * of files, and the keys and file names in use) and rows.c (rows). */
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
	DCP_ADD_TOLD_META, /* fact from an adapter: does not replace a known fact */
	DCP_ADD_FILE,
	DCP_SHOW_FILE,
	DCP_ADD_TENSOR,
	DCP_ADD_OBJECT,
	DCP_ADD_ITEM,
	DCP_ADD_ALIAS, /* increment naliases of a row */
	DCP_TOLD_TENSOR,
	DCP_TOLD_OBJECT,
};
#define DCP_ADD_COUNT (DCP_TOLD_OBJECT + 1)

/* ---- writer.c: has this been emitted before? ---- */

/* A map from hashes to row numbers, 8 bytes a slot. Only part of the hash is compared, so the
 * caller must check the row. Numbers count from 1. */
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

/* ---- rows.c: checks of what an adapter emits ---- */

/* A file in the state in which the writer found it. */
struct dcp_index_seen {
	struct dcp_file_id id;
	const char *error; /* why it could not be opened, or NULL */
	bool packed;       /* the decoded content of the file is meant */
};

/* ---- writer.c ---- */

struct dcp_index_writer {
	sqlite3 *db;
	sqlite3_stmt *stmt[DCP_ADD_COUNT];
	char *path, *temp;         /* NULL in memory */
	const struct dcp_site *at; /* site of the checkpoint; borrowed */
	struct dcp_unpack *unpack; /* borrowed; may be NULL */
	struct dcp_index_map keys, stems, files;
	struct dcp_buf seen; /* struct dcp_index_seen, by file number */
	struct dcp_arena text, scratch;
	struct dcp_buf pieces, copies, shape, path_json;
	struct dcp_index_counts counts;
	unsigned nmeta;
	uint32_t nitems;
	struct dcp_intern said;     /* names of metadata values */
	struct dcp_buf pairs, lost; /* as writer.c has them */
	size_t nsaid;               /* upper limit of the bytes of their JSON */
	struct dcp_intern sayings;  /* whole metadata of files, as JSON */
	struct dcp_buf sayers;      /* as writer.c has them */
	struct dcp_buf saying;      /* metadata of the current file */
	struct dcp_jsonw saying_json;
	size_t nsayings;    /* bytes of sayings */
	struct dcp_err err; /* the error that broke the sink; sticky */
};

static inline const struct dcp_index_seen *dcp_index_seen(const struct dcp_index_writer *w)
{
	return DCP_ITEMS(w->seen, struct dcp_index_seen);
}

static inline size_t dcp_index_nseen(const struct dcp_index_writer *w)
{
	return DCP_NITEMS(w->seen, struct dcp_index_seen);
}

/* Break the sink; the first reason stays. Each function returns the code of that reason. */
int dcp_index_give_up(struct dcp_index_writer *w, int code, const char *why);
int dcp_index_no_memory(struct dcp_index_writer *w);
int dcp_index_sql_failed(struct dcp_index_writer *w, int rc);

void dcp_index_put_text(sqlite3_stmt *s, int i, const char *text); /* NULL: SQL's NULL */

/* Run an insert or update whose parameters are bound. */
int dcp_index_run(struct dcp_index_writer *w, enum dcp_index_add which);

/* ---- writer.c ---- */

/* The first tensor and the first object emitted with a certain text; 0: none. */
struct dcp_index_emitted {
	uint32_t tensor, object;
	bool unknown; /* not known: too many texts have the same hash to check all of them */
};

int dcp_index_find_key(struct dcp_index_writer *w, const char *key, uint64_t hash,
		       struct dcp_index_emitted *out);

/* Choose an unused stem for the row @number. @clash: the key was emitted before, so its plain form
 * is in use. */
int dcp_index_choose_stem(struct dcp_index_writer *w, const char *key, bool clash,
			  uint32_t number, char name[DCP_NAME_MAX + 1]);

/* ---- writer.c ---- */

/* The number of an emitted file or, if @packed, of its decoded content: a name may have both
 * numbers. */
int dcp_index_emit_file(void *ctx, const char *name, uint32_t *number);
int dcp_index_emit_unpacked(void *ctx, const char *name, uint32_t *number);
int dcp_index_emit_sidecar(void *ctx, const char *name);

/* ---- writer.c ---- */

int dcp_index_emit_said(void *ctx, const char *file, const char *name, const char *value);
/* Pass the facts made from the metadata of files to @tell. */
int dcp_index_tell_said(struct dcp_index_writer *w,
			int (*tell)(struct dcp_index_writer *w, const char *name,
				    const char *value));

/* ---- rows.c ---- */

int dcp_index_emit_tensor(void *ctx, const struct dcp_tensor *emitted);
int dcp_index_emit_object(void *ctx, const struct dcp_object *emitted);
int dcp_index_emit_item(void *ctx, const struct dcp_object *emitted);
