/* SPDX-License-Identifier: Apache-2.0 */
/*
 * origin: where bytes come from. The one seam between dcpfs and file systems, archives and servers.
 *
 * A row of struct dcp_origin is one kind of source: the file system (dir/local.c), what lies inside
 * archives (dir/dir.c). A site is a directory of it that is open, a blob a file of it that is
 * open. Both are small values that own what they hold: they move, and are closed once.
 *
 * Only dir/local.c and what it calls know descriptors, struct stat and openat2. A blob may offer
 * its descriptor (fd, else -1) to what is faster with one: io_uring, mappings, copies between
 * files.
 *
 * A new kind of source is one file and one row of dcp_origins.
 */
#pragma once
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
	int fd; /* the blob's, or another of the same file; -1: it has none */
	uint32_t n;
	uint64_t off; /* in the file */
	void *to;
	const struct dcp_blob *blob;
	/* what is read next is known and asked for by itself: nothing else is worth reading */
	bool planned;
	/* where in the file the bytes end of which these are a part, as a tensor's; 0: not known */
	uint64_t until;
};

struct dcp_blob_ops {
	/*
	 * Make @n reads, each in full. -EIO: the file ends early or cannot be read; -ESTALE: it is
	 * not the file that was opened any more. Any thread.
	 */
	int (*read)(const struct dcp_read *reads, size_t n);
	/*
	 * These reads are about to be made, and to where they go nothing is written: bytes that are
	 * far are brought near together. What fails is found out by the reads. NULL: nothing is
	 * far.
	 */
	void (*want)(const struct dcp_read *reads, size_t n);
	/*
	 * Is the content still @id's? 0, -ESTALE, -EIO. @named: it must still have a name. NULL:
	 * read() finds out.
	 */
	int (*check)(const struct dcp_blob *b, const struct dcp_file_id *id, bool named);
	/* How many bytes it has now. NULL: as many as when it was opened. */
	uint64_t (*size)(const struct dcp_blob *b);
	/*
	 * All bytes, or NULL (errno ENOMEM: for lack of room); unmapped when the blob is closed.
	 * NULL: never.
	 */
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
	char *within; /* malloc'ed, for rows whose directories are prefixes of names */
	struct dcp_seen
		*seen; /* what is examined in it and below is recorded there; NULL: it is not */
	int fd;        /* of the file system's row; else -1 */
};

struct dcp_dirent {
	const char *name;
	uint64_t size;
	bool is_dir;    /* links are what they lead to, if that is inside the directory */
	bool is_link;   /* a symbolic link */
	bool leads_out; /* a link to a directory outside, which is not followed */
};

/* @name is not NUL-terminated: its length is @n. Negative: the listing ends with it. */
typedef int dcp_entry_fn(void *ctx, const char *name, size_t n, const struct dcp_dirent *e);

struct dcp_origin {
	const char *name;
	const char *
		/*
		 * what its sources begin with: "s3://"; NULL: the file system, or no source is of
		 * it
		 */
		scheme;
	/* an id is a server's tag, and never that of two contents, as clocks' may be */
	bool settled;
	/*
	 * The directory that @source is or that holds it. *only: it is the one file of this path,
	 * malloc'ed. @out NULL, of rows with a scheme: only whether @source is spelt as theirs are,
	 * 0 or -EINVAL; no server is asked.
	 */
	int (*find)(const char *source, struct dcp_site *out, char **only, struct dcp_err *err);
	/* Its entries, in any order; "." and ".." left out. */
	int (*list)(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx,
		    struct dcp_err *err);
	/* What an entry of this name is. NULL: list() shows all. */
	int (*look)(const struct dcp_site *at, const char *name, struct dcp_dirent *out);
	/* The directory @name below it. The name was checked. -ENOENT, -ENOTDIR, -EXDEV, ... */
	int (*below)(const struct dcp_site *at, const char *name, struct dcp_site *out);
	/* The file @name below it; @id, if not NULL, but for its name. The name was checked. */
	int (*open)(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		    struct dcp_file_id *id, struct dcp_err *err);
	/* Which file @name is, or itself ("."); nothing is opened. -ENOENT, ... */
	int (*id)(const struct dcp_site *at, const char *name, struct dcp_file_id *id);
	/*
	 * May this user neither read @name nor, if it is a directory, enter it? NULL: open() finds
	 * out.
	 */
	bool (*barred)(const struct dcp_site *at, const char *name);
	/* The same site once more. */
	int (*again)(const struct dcp_site *at, struct dcp_site *out);
	void (*close)(struct dcp_site *at);
};

/* Rows with a scheme; NULL at the end. */
extern const struct dcp_origin *const dcp_origins[];
extern const struct dcp_origin dcp_origin_local, dcp_origin_nested;
/* core/remote */
extern const struct dcp_origin dcp_origin_s3, dcp_origin_gs, dcp_origin_https, dcp_origin_http,
	dcp_origin_hf;

/* The row that @source is of; &dcp_origin_local: it is a path. */
const struct dcp_origin *dcp_origin_of(const char *source);
/* Where @source lies, as the find() of its row. */
int dcp_site_find(const char *source, struct dcp_site *out, char **only, struct dcp_err *err);
/*
 * A directory of the file system that is open at @fd, which stays the caller's: not to be closed.
 */
struct dcp_site dcp_site_at(int fd);
int dcp_site_again(const struct dcp_site *at, struct dcp_site *out);
void dcp_site_close(struct dcp_site *at);

/* -EINVAL for an empty name, -EXDEV for an absolute one or one with "..". */
int dcp_site_check_name(const char *name, struct dcp_err *err);
/* -EXDEV: the name leads outside; -EISDIR, -EINVAL: not a regular file. @id may be NULL. */
int dcp_site_open(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		  struct dcp_file_id *id, struct dcp_err *err);
/* Can the file @name below it be opened? */
bool dcp_site_has(const struct dcp_site *at, const char *name);
int dcp_site_id(const struct dcp_site *at, const char *name, struct dcp_file_id *id);
/* As the barred() of its row; false where it has none. */
bool dcp_site_barred(const struct dcp_site *at, const char *name);

/* All @n bytes at @off, or a negative errno. */
int dcp_blob_read(const struct dcp_blob *b, uint64_t off, void *to, size_t n);
uint64_t dcp_blob_size(const struct dcp_blob *b);
/* As the check() of its row; 0 where it has none. */
int dcp_blob_check(const struct dcp_blob *b, const struct dcp_file_id *id, bool named);
void dcp_blob_close(struct dcp_blob *b);
#define dcp_auto_blob __attribute__((cleanup(dcp_blob_close)))

/*
 * What @path of the file system is, links followed; no size unless it is a regular file. -ENOENT,
 * ...
 */
int dcp_path_look(const char *path, struct dcp_dirent *out);
/*
 * The regular file @path of the file system, which the user named: links are followed. -EISDIR,
 * -EINVAL: another kind of file; -ENOENT, ...
 */
int dcp_blob_open(const char *path, struct dcp_blob *out);
/* A file of the file system that is open at @fd, as a blob that owns it. */
int dcp_blob_of_fd(int fd, struct dcp_blob *out);

/*
 * Is the file system of @fd local to this machine? On any other, page faults in mappings are
 * slow or hang, and inotify does not see what other machines change. Unknown file systems count
 * as not local.
 */
bool dcp_is_local(int fd);
