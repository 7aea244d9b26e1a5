/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handles: the open backing files of all versions, within the limits of the process.
 *
 * A handle is one file, open or closed, and belongs to the table that can open it
 * (core/store/io/files.h). Open handles that are not kept open are in one list; when descriptors,
 * mappings or address space run short, the least recently used handle is closed. Using a handle
 * only sets a flag, so that it needs no lock; when room is needed, handles whose flag is set move
 * to the end of the list.
 *
 * Limits: three quarters of the descriptors that RLIMIT_NOFILE (read whenever a file is opened)
 * leaves after DCP_HANDLES_OTHERS and the descriptors of the versions themselves; DCP_HANDLES_MAPS
 * mappings; and DCP_HANDLES_MAPPED bytes of mappings, but at most half of RLIMIT_AS. Files in use
 * are never closed, so the limits can be exceeded by these.
 *
 * Any thread.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/cache.h"
#include "core/origin/origin.h"

struct dcp_handles;

#define DCP_HANDLES_OTHERS 24           /* descriptors of the process that are not counted */
#define DCP_HANDLES_LEAST 8             /* descriptors of files that are always allowed */
#define DCP_HANDLES_MAPS 32768u         /* half of what Linux allows by default */
#define DCP_HANDLES_MAPPED (1ull << 45) /* a quarter of the address space of x86-64 */

struct dcp_file {
	struct dcp_blob blob;
	int fd;             /* the blob's descriptor; -1: none */
	const uint8_t *map; /* the whole file, read-only, shared; NULL: use read calls */
	uint64_t size;      /* the file behind the descriptor may be longer */
};

struct dcp_handle {
	struct dcp_lru_link link; /* in the list while the file is open and not kept open */
	struct dcp_file file;     /* this and origin are valid while the handle is in use */
	struct dcp_blob
		origin; /* the compressed file, if the file was decoded; else not open */
	int exact;      /* atomic: descriptor + 1 for reads without read-ahead; 0: not opened */
	uint32_t users; /* atomic: number of users plus 1; 0: closed */
	bool used;      /* atomic: used since the list was last examined */
	uint32_t keeps; /* keeps and opening are protected by the lock of the table */
	bool opening;
};

/* -ENOMEM. */
int dcp_handles_create(struct dcp_handles **out);
/* Call it when every handle is closed. Accepts NULL. */
void dcp_handles_destroy(struct dcp_handles *t);

/* Use the handle if it is open. Together with dcp_handle_give() this costs two atomic operations
 * and no lock. */
static inline bool dcp_handle_take(struct dcp_handle *h)
{
	uint32_t n = __atomic_load_n(&h->users, __ATOMIC_RELAXED);

	while (n && !__atomic_compare_exchange_n(&h->users, &n, n + 1, true, __ATOMIC_ACQUIRE,
						 __ATOMIC_RELAXED))
		;
	if (n && !__atomic_load_n(&h->used, __ATOMIC_RELAXED))
		__atomic_store_n(&h->used, true, __ATOMIC_RELAXED);
	return n;
}

static inline void dcp_handle_give(struct dcp_handle *h)
{
	__atomic_fetch_sub(&h->users, 1, __ATOMIC_RELEASE);
}

/*
 * Take a handle that may be closed. 0: it is open, and taken. 1: the caller must open the file and
 * then call dcp_handles_end(); no lock is held meanwhile. Other threads that need the handle wait
 * until then, or get -EMFILE without @wait.
 */
int dcp_handles_begin(struct dcp_handles *t, struct dcp_handle *h, bool wait);
/* End dcp_handles_begin() with the opened file; the handle is then taken for the caller. @origin
 * may be NULL. @file NULL: opening failed. */
void dcp_handles_end(struct dcp_handles *t, struct dcp_handle *h, const struct dcp_file *file,
		     const struct dcp_blob *origin);

/* Set the descriptor @fd as h->exact of a handle in use. False: another thread was faster. */
bool dcp_handles_add_exact(struct dcp_handles *t, struct dcp_handle *h, int fd);

/* Close handles until @fds more descriptors and a mapping of @map bytes fit the limits. False:
 * the mapping does not fit. */
bool dcp_handles_room(struct dcp_handles *t, unsigned fds, uint64_t map);

/*
 * Close a file that is not in use; with @mapped, only a mapped file. False: there is no such file.
 */
bool dcp_handles_close_one(struct dcp_handles *t, bool mapped);

/* Close @h unless it is in use; with @all in any case. */
void dcp_handles_close(struct dcp_handles *t, struct dcp_handle *h, bool all);

/*
 * Keep @h, which is in use, open until dcp_handles_unkeep(), which also ends this use. False: kept
 * handles already take all of the limit except DCP_HANDLES_LEAST.
 */
bool dcp_handles_keep(struct dcp_handles *t, struct dcp_handle *h);
/* Would dcp_handles_keep() succeed now? Asked before @h is opened in order to be kept. */
bool dcp_handles_can_keep(struct dcp_handles *t, const struct dcp_handle *h);
void dcp_handles_unkeep(struct dcp_handles *t, struct dcp_handle *h);

/* Count @more descriptors that were opened elsewhere (negative: closed): directories, indexes. */
void dcp_handles_beside(struct dcp_handles *t, int more);
