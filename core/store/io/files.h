/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files: the backing files of one version, opened and mapped when they are needed.
 *
 * A file is held while it is used; when it is unused it may be closed to make room for other files
 * (struct dcp_handles). Safe from any thread; holding a file that is open takes no lock, and
 * no lock is held while one is opened.
 *
 * A file must look as the index recorded it (device, inode, size, mtime, ctime) whenever it is
 * opened: any difference is -ESTALE, a file shorter than recorded -EIO. So the bytes of another
 * save are never served as those of this version. dcp_files_check() makes the same comparison for a
 * held file. If a file is removed or replaced after it was opened, the open file still has the
 * bytes that the index describes.
 *
 * For a compressed file (unpacked is not 0) the decoded content is opened, and decoded again if it
 * is no longer in the cache. The comparison is with the compressed file.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/cache.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"

struct dcp_err;
struct dcp_file;
struct dcp_files;
struct dcp_io_counts;
struct dcp_queue;
struct dcp_unpack;

/* How the files are read. */
struct dcp_files_opts {
	bool map; /* false: no mappings, as on network file systems, where faults are slow and
		     can hang */
	struct dcp_io_counts *counts; /* counts the reads of views; NULL: not counted */
	/* for files that are not mapped; NULL: reads are made one by one */
	struct dcp_queue *queue;
	struct dcp_unpack *unpack; /* for compressed files; NULL: such files cannot be read */
	/* shared by several versions; NULL: the table makes its own */
	struct dcp_handles *handles;
};

/* Borrows @at, @ids and what @opts points to, which must outlive the table. */
int dcp_files_create(const struct dcp_site *at, const struct dcp_file_id *ids, size_t n,
		     const struct dcp_files_opts *opts, struct dcp_files **out);
void dcp_files_destroy(struct dcp_files *f);

/*
 * Get the file, which is opened if necessary and stays open until it is released. -EMFILE: there
 * are too many open files, and all are in use. With @wait the call first waits a while for one to
 * become free; the caller must therefore release its other files before.
 */
int dcp_files_hold(struct dcp_files *f, uint32_t number, bool wait, const struct dcp_file **out,
		   struct dcp_err *err);
void dcp_files_release(struct dcp_files *f, uint32_t number);

/* A second descriptor of a held file, for scattered reads: unlike dcp_file.fd it causes no
 * read-ahead. */
int dcp_files_exact_fd(struct dcp_files *f, uint32_t number);

/* Does a held file still have the recorded content? Costs one fstat. 0, -ESTALE or -EIO. @named:
 * the file must also still have a name; -ESTALE if it was removed. */
int dcp_files_check(struct dcp_files *f, uint32_t number, bool named);

/* Was any file overwritten in place? Removal, or replacement by another file of the same name, is
 * not an overwrite. */
bool dcp_files_rewritten(struct dcp_files *f);

/* Files that stay open, even if they are removed meanwhile. */
struct dcp_kept {
	uint32_t *number; /* malloc'ed */
	size_t n;
};

/* Keep a file, or all recorded files, open until dcp_files_unkeep(), as far as they can be opened
 * and the limits allow it. Failures are not reported. */
void dcp_files_keep(struct dcp_files *f, uint32_t number, struct dcp_kept *kept);
void dcp_files_keep_all(struct dcp_files *f, struct dcp_kept *kept);
/* Leaves @kept empty. */
void dcp_files_unkeep(struct dcp_files *f, struct dcp_kept *kept);

/* Close the files that are open, not in use and not kept. */
void dcp_files_drop(struct dcp_files *f);

/* Mark the file unreadable: views that are opened later use a replica of its elements (copies
 * in model/tensor.h) if there is one. */
void dcp_files_avoid(struct dcp_files *f, uint32_t number);
bool dcp_files_avoided(const struct dcp_files *f, uint32_t number);

/* Is it a compressed file, whose offsets count decoded bytes? */
bool dcp_files_unpacked(const struct dcp_files *f, uint32_t number);
/* The compressed size of such a file in bytes, and the name of its codec: "gzip". */
int dcp_files_packed(const struct dcp_files *f, uint32_t number, uint64_t *n,
		     const char **codec, struct dcp_err *err);

/* Its name, for messages. */
const char *dcp_files_name(const struct dcp_files *f, uint32_t number);

const struct dcp_files_opts *dcp_files_opts(const struct dcp_files *f);

/*
 * guard: copying out of mapped files that may be truncated at any moment.
 *
 * Touching a page past the new end of a truncated file raises SIGBUS. Signals belong to the
 * program, so the program installs a handler that calls dcp_guard_fault(), and then calls
 * dcp_guard_enable(); from then on code run by dcp_guard_run() gets -EIO instead of dying.
 * Without a handler files are read with pread.
 */

/* The handler is in place. Call before threads start. */
void dcp_guard_enable(void);
bool dcp_guard_enabled(void);

/* For the SIGBUS handler. In a thread that is inside dcp_guard_run() it does not return; it returns
 * when the fault is not ours. The handler must restore the thread's signal mask first. */
void dcp_guard_fault(void);

/* Call fn(arg) and return what it returns, or -EIO when a mapped page could not be read. @fn is
 * then abandoned on the spot: it must hold no lock and own nothing. */
int dcp_guard_run(int (*fn)(void *arg), void *arg);

/*
 * handles: the open backing files of all versions, within the limits of the process.
 *
 * A handle is one file, open or closed, and belongs to the table that can open it.
 * Open handles that are not kept open are in one list; when descriptors,
 * mappings or address space run short, the least recently used handle is closed. Using a handle
 * only sets a flag, so that it needs no lock; when room is needed, handles whose flag is set move
 * to the end of the list.
 *
 * Limits: DCP_HANDLES_OTHERS and the descriptors of the versions themselves are subtracted from
 * RLIMIT_NOFILE (read whenever a file is opened), and three quarters of the rest are for files;
 * DCP_HANDLES_MAPS mappings; and DCP_HANDLES_MAPPED bytes of mappings, but at most half of
 * RLIMIT_AS. Files in use are never closed, so the limits can be exceeded by these.
 *
 * Any thread.
 */

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

/* Close a file that is not in use; with @mapped, only a mapped file. False: there is no such
 * file. */
bool dcp_handles_close_one(struct dcp_handles *t, bool mapped);

/* Close @h unless it is in use; with @all in any case. */
void dcp_handles_close(struct dcp_handles *t, struct dcp_handle *h, bool all);

/* Keep @h, which is in use, open until dcp_handles_unkeep(), which also ends this use. False: kept
 * handles already take all of the limit except DCP_HANDLES_LEAST. */
bool dcp_handles_keep(struct dcp_handles *t, struct dcp_handle *h);
/* Would dcp_handles_keep() succeed now? Asked before @h is opened in order to be kept. */
bool dcp_handles_can_keep(struct dcp_handles *t, const struct dcp_handle *h);
void dcp_handles_unkeep(struct dcp_handles *t, struct dcp_handle *h);

/* Count @more descriptors that were opened elsewhere (negative: closed): directories, indexes. */
void dcp_handles_beside(struct dcp_handles *t, int more);
