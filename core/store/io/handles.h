/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handles: the open backing files of all versions, as many as the process may have.
 *
 * A handle is one file, open or closed, and lies with whoever can open it (store/files). Those
 * that are open and of no use at the moment stand in one list; when descriptors, mappings or
 * address space run short, the one used longest ago is closed. "Used" is a flag that the list
 * looks at when it is asked for room, so that use costs no lock: a handle that was used since
 * stands behind the others again.
 *
 * Limits: three quarters of the descriptors that RLIMIT_NOFILE leaves beside DCP_HANDLES_OTHERS
 * and those of the versions themselves, asked for whenever a file is opened; and
 * DCP_HANDLES_MAPS mappings of DCP_HANDLES_MAPPED bytes together, half of RLIMIT_AS at most.
 * What is in use is never closed, so the limits can be passed by that much.
 *
 * Any thread.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/lru.h"

struct dcp_handles;

#define DCP_HANDLES_OTHERS 24           /* descriptors of the process that are not counted */
#define DCP_HANDLES_LEAST 8             /* of files, whatever the limit is */
#define DCP_HANDLES_MAPS 32768u         /* half of what Linux allows by default */
#define DCP_HANDLES_MAPPED (1ull << 45) /* a quarter of the address space of x86-64 */

struct dcp_file {
	int fd;
	const uint8_t *map; /* whole file, read-only, shared; NULL: read calls */
	uint64_t size;      /* the descriptor may have more behind it */
};

struct dcp_handle {
	struct dcp_lru_link link; /* the list: open, and nobody keeps it open */
	struct dcp_file file;     /* this and origin: as long as somebody uses it */
	int origin; /* the file that was indexed: file.fd itself, or what that was decoded from
		     */
	int exact;  /* atomic: descriptor + 1 for reads without read-ahead; 0: not opened */
	uint32_t users; /* atomic: one more than use it; 0: closed */
	bool used;      /* atomic: since the list was looked at */
	uint32_t keeps; /* this and opening: the lock of the table */
	bool opening;
};

/* -ENOMEM. */
int dcp_handles_create(struct dcp_handles **out);
/* When every handle is closed. Accepts NULL. */
void dcp_handles_destroy(struct dcp_handles *t);

/* Use it, if it is open: two atomic operations with dcp_handle_give(), and no lock. */
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
 * Take one that may be closed. 0: it is open, and taken. 1: the caller has to open it and then
 * says dcp_handles_end(); no lock is held meanwhile. Who wants it then waits for that, or gets
 * -EMFILE unless @wait.
 */
int dcp_handles_begin(struct dcp_handles *t, struct dcp_handle *h, bool wait);
/* With what was opened, which is taken for the caller; @file NULL: it could not be opened. */
void dcp_handles_end(struct dcp_handles *t, struct dcp_handle *h, const struct dcp_file *file,
		     int origin);

/* One descriptor more of one that is in use: now exact. False: somebody else was faster. */
bool dcp_handles_add_exact(struct dcp_handles *t, struct dcp_handle *h, int fd);

/* Close what is over the limits, so that @fds descriptors more fit, and a mapping of @map
 * bytes. False: the mapping does not. */
bool dcp_handles_room(struct dcp_handles *t, unsigned fds, uint64_t map);

/* Close one that nobody uses, with @mapped one that is mapped. False: there is none. */
bool dcp_handles_close_one(struct dcp_handles *t, bool mapped);

/* Close @h unless somebody uses it, or (@all) in any case. */
void dcp_handles_close(struct dcp_handles *t, struct dcp_handle *h, bool all);

/*
 * Keep @h, which is in use, open for longer: until dcp_handles_unkeep(), to which the use
 * passes. False: kept ones may have all of the limit but DCP_HANDLES_LEAST, and do.
 */
bool dcp_handles_keep(struct dcp_handles *t, struct dcp_handle *h);
/* Would it be kept, as things are? Before it is opened for that. */
bool dcp_handles_can_keep(struct dcp_handles *t, const struct dcp_handle *h);
void dcp_handles_unkeep(struct dcp_handles *t, struct dcp_handle *h);

/* So many descriptors more (or less) are open beside the files: directories, indexes. */
void dcp_handles_beside(struct dcp_handles *t, int more);
