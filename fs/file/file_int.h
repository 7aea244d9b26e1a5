/* SPDX-License-Identifier: Apache-2.0 */
/* file_int: what an open file is made of. Each file below calls only those before it. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "core/base/lru.h"
#include "core/store/io/files.h"
#include "fs/errors.h"
#include "fs/file/file.h"
#include "fs/file/hot.h"
#include "fs/file/model.h"
#include "fs/text/text.h"
#include "fs/tree/tree.h"

/* What an open file is. */
enum dcpfs_content { DCPFS_TEXT, DCPFS_VIEW, DCPFS_PARTS };

struct dcpfs_file {
	struct dcp_lru_link use; /* while idle or loose in the cache, whose lock guards it */
	uint64_t ino;
	struct dcpfs_version *ver; /* a reference; NULL for live files */
	enum dcpfs_content content;
	union {
		struct dcpfs_text text;
		struct dcp_view *view;    /* of a tensor, or of a file as it is */
		struct dcpfs_model model; /* all tensors of a rank, or some of hf/ */
	};
	struct dcpfs_hot_copy hot; /* its copy in the hands of the kernel, if any */
	struct timespec made;      /* CLOCK_REALTIME */
	/* atomic: where reading failed, DCPFS_NO_OFFSET: perhaps somewhere, errors.json knows
	 */
	uint64_t failed_at;

	pthread_mutex_t opening; /* the two below */
	unsigned opens;
	struct dcp_kept kept; /* while there are any */

	uint32_t refs; /* atomic; the cache holds one. The cache lock guards the rest: */
	bool cached;
	bool part;               /* a model's, in no list of the cache */
	uint64_t used;           /* when its last use ended, by the cache's count of uses */
	struct dcpfs_file *next; /* in the bucket */
};

/* ---- object.c ---- */

/* Only when it is no longer held. */
void dcpfs_file_destroy(struct dcpfs *fs, struct dcpfs_file *f);

/* Give back a reference to the file of a part, which is in no list of the cache. */
void dcpfs_part_put(struct dcpfs *fs, struct dcpfs_file *f);

/* Did the version leave the list? Then it is not opened again. */
bool dcpfs_file_is_gone(const struct dcpfs_file *f);

#define DCPFS_FINE (UINT64_MAX - 1) /* failed_at: nowhere */

/* For errors.json, under the key of the row behind @f: it failed at @off. */
void dcpfs_file_note(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
		     const char *message);
/* It was read well at @off: errors.json need not say otherwise any more. */
void dcpfs_file_healed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n);

/* ---- cache.c ---- */

/* A reference to the file of inode @ino; NULL: it was not open lately. */
struct dcpfs_file *dcpfs_cache_find(struct dcpfs *fs, uint64_t ino);

/* A new file, which is in no table yet. */
void dcpfs_cache_begin(struct dcpfs *fs, struct dcpfs_file *f);

/* Put a new file into the cache; if another thread was faster, take its file instead. */
struct dcpfs_file *dcpfs_cache_insert(struct dcpfs *fs, struct dcpfs_file *f);

/*
 * A reference to the live file of that kind that was made within a second or is being read, or
 * NULL.
 */
struct dcpfs_file *dcpfs_cache_find_live(struct dcpfs *fs, enum dcpfs_kind kind);
void dcpfs_cache_keep_live(struct dcpfs *fs, enum dcpfs_kind kind, struct dcpfs_file *f);

/* ---- blob.c ---- */

/* The blob about @f. -ENOTSUP: its bytes are not stored as they are shown. */
int dcpfs_blob_make(struct dcpfs *fs, const struct dcpfs_file *f, struct dcpfs_text *out,
		    struct dcp_err *err);

/* ---- file.c ---- */
