/* SPDX-License-Identifier: Apache-2.0 */
/* file_int: the members of an open file. Each section calls only sections before it. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "core/base/cache.h"
#include "core/store/io/files.h"
#include "fs/errors.h"
#include "fs/file/file.h"
#include "fs/text/text.h"
#include "fs/tree/tree.h"

/*
 * model: all tensors of a rank as one virtual safetensors file, or one file of hf/.
 *
 * The header is generated text; after it the tensors' stored values are consecutive. A part is
 * a file like the slot's raw/ file of that tensor: it is opened when it is read for the first
 * time, and stays with the model, which keeps DCPFS_MODEL_KEPT parts. So such a file costs
 * sixteen bytes a key, its header, and some 2 KB for each part kept, however big the tensors are.
 *
 * Left out, and named in the header's metadata ("dcpfs.left_out"): tensors whose dtype
 * safetensors has no name for, and those that are broken or that the layout cannot cut.
 */

struct dcp_err;
struct dcpfs;
struct dcpfs_file;
struct dcpfs_version;

#define DCPFS_MODEL_KEPT 2048

struct dcpfs_model_part {
	uint64_t end; /* end of its bytes, counted from the end of the header */
	int64_t row;
};

struct dcpfs_model {
	struct dcpfs_text header; /* the 8 bytes of its length come first */
	struct dcp_buf parts;     /* struct dcpfs_model_part, in order */
	uint64_t size;            /* of the whole file */

	pthread_mutex_t lock;     /* the rest: */
	struct dcpfs_file **kept; /* of part i in place i % nkept; NULL: not read yet */
	size_t nkept;
};

/* For hf/ its file number @n. -ENOENT (no such file), -ENOMEM, -EFBIG, or the error of the
 * index. */
int dcpfs_model_make(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t n,
		     struct dcpfs_model *out, struct dcp_err *err);

/* Find the part at @off, which must be inside the file; NULL: the header. @inside: the position of
 * @off in it; @left: the number of its bytes from there on. */
const struct dcpfs_model_part *dcpfs_model_at(const struct dcpfs_model *m, uint64_t off,
					      uint64_t *inside, uint64_t *left);

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
	/* atomic: where reading failed; DCPFS_NO_OFFSET: unknown, look into errors.json */
	uint64_t failed_at;

	pthread_mutex_t opening; /* the two below */
	unsigned opens;
	struct dcp_kept kept; /* files kept open while there are openers */

	uint32_t refs; /* atomic; one is the cache's. The cache lock guards the rest: */
	bool cached;
	bool part;     /* part of a model, in no list of the cache */
	uint64_t used; /* when its last use ended, by the cache's count of uses */
	struct dcp_table_link at;
	struct dcpfs_file *next; /* link in a chain of removed files */
};

/* ---- model.c: what any open file may call ---- */

/* Call only when nothing holds the file. */
void dcpfs_file_destroy(struct dcpfs *fs, struct dcpfs_file *f);

/* Give back a reference to the file of a part, which is in no list of the cache. */
void dcpfs_part_put(struct dcpfs *fs, struct dcpfs_file *f);

/* Did the version leave the list? Then it is not opened again. */
bool dcpfs_file_is_gone(const struct dcpfs_file *f);

#define DCPFS_FINE (UINT64_MAX - 1) /* failed_at: nowhere */

/* Note in errors.json, under the key of the row behind @f, that reading failed at @off. */
void dcpfs_file_note(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
		     const char *message);
/* Reading at @off succeeded: remove an entry about that place from errors.json. */
void dcpfs_file_healed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n);

/* ---- cache.c ---- */

/* A reference to the file of inode @ino; NULL: it was not open lately. */
struct dcpfs_file *dcpfs_cache_find(struct dcpfs *fs, uint64_t ino);

/* Initialize a new file, which is in no table yet. */
void dcpfs_cache_begin(struct dcpfs *fs, struct dcpfs_file *f);

/* Put a new file into the cache; if another thread was faster, take its file instead. */
struct dcpfs_file *dcpfs_cache_insert(struct dcpfs *fs, struct dcpfs_file *f);

/* A reference to the live file of that kind that was made within a second or is being read, or
 * NULL. */
struct dcpfs_file *dcpfs_cache_find_live(struct dcpfs *fs, enum dcpfs_kind kind);
void dcpfs_cache_keep_live(struct dcpfs *fs, enum dcpfs_kind kind, struct dcpfs_file *f);
