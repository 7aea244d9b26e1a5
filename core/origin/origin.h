/* SPDX-License-Identifier: Apache-2.0 */
/*
 * origin: where bytes come from. The only interface between dcpfs and file systems, archives and
 * servers.
 *
 * A row of struct dcp_origin is one kind of source: the file system (dir/local.c), what lies inside
 * archives (dir/dir.c). A site is an open directory of a source, a blob an open file. Both are
 * small values that own their resources: they can be moved, and are closed once.
 *
 * Only dir/local.c and what it calls know descriptors, struct stat and openat2. A blob may offer
 * its descriptor (fd, else -1) for operations that are faster with a descriptor: io_uring,
 * mappings, copies between files.
 *
 * A new kind of source is one file and one row of dcp_origins.
 *
 * Parsers read from a struct dcp_source: a blob, memory, or a part of either.
 */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/tensor.h"

struct dcp_blob;
struct dcp_err;
struct dcp_origin;
struct dcp_seen;

/* One read of a batch. */
struct dcp_read {
	int fd; /* the blob's descriptor, or another one of the same file; -1: none */
	uint32_t n;
	uint64_t off; /* in the file */
	void *to;
	const struct dcp_blob *blob;
	/* the reader knows its next reads and requests them itself: do not read ahead */
	bool planned;
	/* end, in the file, of the larger unit (such as a tensor) that these bytes belong to; 0:
	 * not known */
	uint64_t until;
};

struct dcp_blob_ops {
	/* Make @n reads, each in full. -EIO: the file ends early or cannot be read; -ESTALE: the
	 * file is no longer the one that was opened. Any thread. */
	int (*read)(const struct dcp_read *reads, size_t n);
	/*
	 * Announce @n reads, so that bytes of a remote source are fetched together. Nothing is
	 * written to the buffers, and errors are left to the reads themselves. NULL: the source is
	 * not remote.
	 */
	void (*want)(const struct dcp_read *reads, size_t n);
	/* Is the content still that of @id? 0, -ESTALE, -EIO. @named: the file must also still have
	 * a name. NULL: read() detects changes. */
	int (*check)(const struct dcp_blob *b, const struct dcp_file_id *id, bool named);
	/* The current size in bytes. NULL: the size does not change after opening. */
	uint64_t (*size)(const struct dcp_blob *b);
	/* Map the whole file until the blob is closed. Returns NULL on failure (errno ENOMEM: no
	 * room for the mapping). Without this function, the source cannot be mapped. */
	const uint8_t *(*map)(struct dcp_blob *b);
	void (*close)(struct dcp_blob *b);
};

struct dcp_blob {
	const struct dcp_blob_ops *ops; /* NULL: it is not open */
	void *own;
	uint64_t size;
	int fd;
};

struct dcp_site {
	const struct dcp_origin *row; /* NULL: it is not open */
	void *own;
	char *within; /* malloc'ed; used by rows whose directories are prefixes of names */
	struct dcp_seen
		*seen; /* records what is examined in the site and below; NULL: no record */
	int fd;        /* descriptor, for the row of the file system; else -1 */
};

struct dcp_dirent {
	const char *name;
	uint64_t size;
	bool is_dir;    /* a link counts as its target, if the target is inside the directory */
	bool is_link;   /* a symbolic link */
	bool leads_out; /* a link to a directory outside, which is not followed */
};

/* @name is not NUL-terminated: its length is @n. A negative return ends the listing and is its
 * result. */
typedef int dcp_entry_fn(void *ctx, const char *name, size_t n, const struct dcp_dirent *e);

struct dcp_origin {
	const char *name;
	const char *
		/* the prefix of sources of this kind: "s3://"; NULL: the file system, or
		 * archives */
		scheme;
	/* an id is a tag of the server, so it identifies one content; an id made of times may not
	 */
	bool settled;
	/*
	 * Open the directory @source, or the directory that holds the file @source; *only is then
	 * the path of that file, malloc'ed. With @out NULL, rows with a scheme only check the
	 * spelling of @source, and ask no server: 0 or -EINVAL.
	 */
	int (*find)(const char *source, struct dcp_site *out, char **only, struct dcp_err *err);
	/* List the entries, in any order, without "." and "..". */
	int (*list)(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx,
		    struct dcp_err *err);
	/* Describe the entry @name. NULL: list() already gives everything. */
	int (*look)(const struct dcp_site *at, const char *name, struct dcp_dirent *out);
	/* Copy the target of the symbolic link @name, as written, without a NUL: at most @size
	 * bytes. Returns their number. NULL: there are no links. */
	int (*link)(const struct dcp_site *at, const char *name, char *to, size_t size);
	/* Open the directory @name below the site. The caller has checked the name. -ENOENT,
	 * -ENOTDIR, -EXDEV, ... */
	int (*below)(const struct dcp_site *at, const char *name, struct dcp_site *out);
	/* Open the file @name below the site. @id, if not NULL, is filled except for its name. The
	 * caller has checked the name. */
	int (*open)(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		    struct dcp_file_id *id, struct dcp_err *err);
	/* The identity of the file @name, or of the site itself ("."); nothing is opened. -ENOENT,
	 * ... */
	int (*id)(const struct dcp_site *at, const char *name, struct dcp_file_id *id);
	/* Is @name a file that this user may not read, or a directory that this user may not read
	 * or not enter? NULL: open() finds out. */
	bool (*barred)(const struct dcp_site *at, const char *name);
	/* The real path of the file or directory @name, or of the site itself ("."). NULL: the
	 * source has no paths. -ENOENT: it no longer has one, ... */
	int (*path)(const struct dcp_site *at, const char *name, char path[PATH_MAX]);
	/* Open the same site a second time. */
	int (*again)(const struct dcp_site *at, struct dcp_site *out);
	void (*close)(struct dcp_site *at);
};

/* Rows with a scheme; NULL at the end. */
extern const struct dcp_origin *const dcp_origins[];
extern const struct dcp_origin dcp_origin_local, dcp_origin_nested;
/* defined in core/remote */
extern const struct dcp_origin dcp_origin_s3, dcp_origin_gs, dcp_origin_https, dcp_origin_http,
	dcp_origin_hf;

/* The row for @source; &dcp_origin_local if @source is a path. */
const struct dcp_origin *dcp_origin_of(const char *source);
/* Call the find() of the row of @source. */
int dcp_site_find(const char *source, struct dcp_site *out, char **only, struct dcp_err *err);
/* A site for the directory of the file system that is open at @fd. @fd stays the caller's, so the
 * site must not be closed. */
struct dcp_site dcp_site_at(int fd);
int dcp_site_again(const struct dcp_site *at, struct dcp_site *out);
void dcp_site_close(struct dcp_site *at);

/* -EINVAL for an empty name, -EXDEV for an absolute one or one with "..". */
int dcp_site_check_name(const char *name, struct dcp_err *err);
/* -EXDEV: the name leads outside; -EISDIR, -EINVAL: not a regular file. @id may be NULL. */
int dcp_site_open(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		  struct dcp_file_id *id, struct dcp_err *err);
/* Can the file @name below the site be opened? */
bool dcp_site_has(const struct dcp_site *at, const char *name);
int dcp_site_id(const struct dcp_site *at, const char *name, struct dcp_file_id *id);
/* Call the barred() of the row; false if the row has none. */
bool dcp_site_barred(const struct dcp_site *at, const char *name);
/* Call the path() of the row; -ENOTSUP if the row has none. */
int dcp_site_path(const struct dcp_site *at, const char *name, char path[PATH_MAX]);

/* Read all @n bytes at @off, or return a negative errno. */
int dcp_blob_read(const struct dcp_blob *b, uint64_t off, void *to, size_t n);
uint64_t dcp_blob_size(const struct dcp_blob *b);
/* Call the check() of the row; 0 if the row has none. */
int dcp_blob_check(const struct dcp_blob *b, const struct dcp_file_id *id, bool named);
void dcp_blob_close(struct dcp_blob *b);
#define dcp_auto_blob __attribute__((cleanup(dcp_blob_close)))

/* Describe @path of the file system, following links; the size is set only for a regular file.
 * -ENOENT, ... */
int dcp_path_look(const char *path, struct dcp_dirent *out);
/* Open the regular file @path of the file system, which the user named: links are followed.
 * -EISDIR, -EINVAL: another kind of file; -ENOENT, ... */
int dcp_blob_open(const char *path, struct dcp_blob *out);
/* Make a blob of the file of the file system that is open at @fd; the blob owns @fd. */
int dcp_blob_of_fd(int fd, struct dcp_blob *out);

/*
 * Is the file system of @fd local to this machine? On remote file systems page faults in mappings
 * are slow or hang, and inotify does not see changes by other machines. Unknown file systems count
 * as not local.
 */
bool dcp_is_local(int fd);

/*
 * source: foreign bytes by position, from a file, memory, or a window of either.
 *
 * Every parser reads from a source, so it can be tested on memory and fuzzed. Reads are positional
 * and need no lock: a source may be shared by threads.
 */

struct dcp_source {
	/* Read all @n bytes at @off, or return a negative errno: -EIO also if fewer bytes
	 * arrived. */
	int (*read)(const struct dcp_source *src, uint64_t off, void *buf, size_t n);
	uint64_t size;
	/* for the implementations */
	const void *mem;
	const struct dcp_source *parent;
	uint64_t base;
	struct dcp_blob blob;
};

/* @mem must outlive the source. */
struct dcp_source dcp_source_mem(const void *mem, size_t n);

/* Borrows @fd. The size is taken from fstat now; if the file shrinks later, reads give -EIO. */
int dcp_source_fd(int fd, struct dcp_source *out);

/* Borrows the resources that @blob owns. */
struct dcp_source dcp_source_blob(const struct dcp_blob *blob);

/* [off, off + n) of @parent, which must outlive it. Clamped to the parent's size. */
struct dcp_source dcp_source_window(const struct dcp_source *parent, uint64_t off, uint64_t n);

/* Bounds-checked read: -EBADMSG when [off, off + n) is not inside the source. */
int dcp_source_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n);
