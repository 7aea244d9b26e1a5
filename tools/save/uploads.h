/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uploads: the files of a save into a bucket, each an upload of parts, or one request where all of
 * it is the format's own. What bucket.c decides, uploads.c does.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "tools/save/save_int.h"

struct dcp_put;
struct dcp_remote;

#define SAVE_BATCH 64 /* requests handed over at a time */

struct save_uploads {
	struct dcp_remote *bucket;
	char *key; /* of OUT; a directory's without its slash */
	/* of the plan */
	struct dcp_buf own,
		bytes; /* what the format itself makes: struct own, and their bytes */
	struct save_upload *uploads;    /* by file */
	struct save_upload_part *parts; /* of all files */
	size_t nparts;
	uint32_t *left;       /* pieces of a run with a checksum that are not written; by run */
	size_t *first, *next; /* patches of a run; by run, by patch: + 1, 0: none */
	struct dcp_buf old;   /* what is replaced: char * of keys */
	bool handed;          /* another process completes or aborts the uploads */
	pthread_mutex_t lock; /* of parts */
};

/* All return 0 or a negative errno, and have kept why for save_fail(). */

/* dcp_bucket_put() of them. */
int save_put_all(struct save *s, struct dcp_put *puts, size_t n);
/* Delete these objects. */
int save_delete_all(struct save *s, char *const *keys, size_t n);
/* What the format itself has at @off of the last file of the plan. */
int save_upload_own(struct save *s, uint64_t off, const void *p, size_t n);
/* Each file has its owner: begin the uploads of this process. */
int save_begin_uploads(struct save *s);
/* As the functions of struct save_place. */
int save_upload_bytes(struct save *s, struct save_pen *pen, uint32_t file, uint64_t off,
		      const void *from, uint64_t n);
int save_upload_wrote(struct save *s, const struct save_run *run);
int save_upload_sync(struct save *s, struct dcp_err *err);
void save_put_uploads(const struct save *s, struct dcp_buf *out);
int save_take_uploads(struct save *s, struct dcp_cur *in);
/* The files that complete the checkpoint (@last), or the others, become objects. */
int save_complete_files(struct save *s, bool last);
/* Abort what was begun, and remove what this save completed. */
void save_undo_uploads(struct save *s);
void save_free_uploads(struct save *s);
