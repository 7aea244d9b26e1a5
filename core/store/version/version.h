/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version: find the checkpoints of a SOURCE, and open one of them.
 *
 * A SOURCE is one checkpoint, directory or file (its base name is the version; a file with an
 * unknown extension is recognised by its first bytes), or a directory of them: directories and
 * loose files. A version is complete if the commit mark of its format exists and it could be
 * indexed. Opening takes the index from the cache if the index is current, and builds it otherwise.
 *
 * Current means, as in git: same schema and dcpfs version, same set of names in the directory, and
 * for every recorded file the same size, mtime, ctime, inode and device. A file whose ctime is less
 * than two seconds older than the index may have changed again within the same tick of its clock:
 * such an index is used by the process that made it, and the next process rebuilds it. Any
 * difference means a rebuild. A cache that is full or cannot be read or written is logged once and
 * never fatal: the index is kept in memory.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/model/rights.h"
#include "core/origin/origin.h"

struct dcp_err;
struct dcp_files;
struct dcp_torch_frames;
struct dcp_handles;
struct dcp_index;
struct dcp_index_pool;
struct dcp_io_counts;
struct dcp_log;
struct dcp_queue;
struct dcp_seen;

struct dcp_store_opts {
	const char *cache_dir;  /* where indexes live, e.g. ~/.cache/dcpfs; NULL: memory only */
	const char *index_file; /* sidecar for a single checkpoint; NULL: in cache_dir */
	bool rebuild;           /* ignore what is cached */
	bool no_map;            /* read backing files with pread only */
	unsigned
		lock_wait_ms; /* wait for another process that builds the same index; 0: 30 s */
	struct dcp_io_counts
		*counts; /* counters of reads (core/store/io/queue.h); NULL: not counted */
	/* for reads of files that are not mapped; NULL: reads are made one by one */
	struct dcp_queue *queue;
	/* shared by all versions opened with these options; NULL: each version has its own */
	struct dcp_index_pool *pool;
	struct dcp_handles *handles; /* the same */
	/* limit of decoded archives in cache_dir in bytes; 0: DCP_UNPACK_CACHE */
	uint64_t cache_limit;
	bool cached_only;        /* build nothing: -EAGAIN if an index would have to be built */
	bool (*stop)(void *ctx); /* asked while an index is built, or while waiting for another
				    process to decode a file; true: give up with -ECANCELED */
	void *stop_ctx;
	const struct dcp_progress *progress; /* used until the version is open */
	const struct dcp_log *log;           /* used until the version is closed */
};

static inline bool dcp_stopped(const struct dcp_store_opts *opts)
{
	return opts->stop && opts->stop(opts->stop_ctx);
}

/* One candidate found by a scan, complete or not. */
struct dcp_found {
	const char *name;  /* version name, one path component */
	const char *where; /* path below the source; "": the source itself */
	const char *group; /* the version is only this group of the files; NULL: all files */
	const struct dcp_format *format;
	bool complete;    /* the commit mark exists */
	bool uncommitted; /* its format's committed() said no (see format.h) */
	bool loose;       /* files that are versions independently of what lies beside them */
	bool closed; /* it was not examined, because it is not readable or a link that leads out */
	const char *why;   /* what is missing, if not complete */
	int64_t commit_ns; /* mtime of the commit file */
	uint64_t dev, ino; /* identity of the directory; 0: not complete, or not examined */
};

/* Another name that the source has for a version: a link, or a file that holds its name. */
struct dcp_tag {
	const char *name, *version;
};

struct dcp_scan {
	struct dcp_found *found; /* by dcp_order_compare(): the last is the newest */
	size_t n;
	bool single;
	struct dcp_tag *tags; /* by name */
	size_t ntags;
	struct dcp_arena arena;
};

/*
 * Examine @source and, one level below, its directories, except hidden directories and links to a
 * directory that is found anyway (latest -> step-500). In a source that is itself a complete
 * checkpoint, only directories named like numbered saves (checkpoint-500) count.
 *
 * Groups of files are named by their format ("model.pt"); in a directory exp1 below the source the
 * name is "exp1@best.pt", except that model.pt is "exp1". Such files do not keep directories beside
 * them from being examined. A directory that is not a checkpoint may be a run: the versions in its
 * directories have names like "run1@step-500". A name never depends on what else exists. If exactly
 * one directory is called checkpoints, ckpt or the like (the source is a run), its content is named
 * as if it lay in the source. A directory whose name shows that it is being written
 * (tmp-checkpoint-500) is not complete. Neither is a directory of a family that dcpfs cannot read;
 * then why says what to do instead.
 *
 * -ENOENT and the like, or -EINVAL when nothing there is a checkpoint: the message names what was
 * looked for and the nearest thing found (a checkpoint further down, a format known but not
 * supported, loose files). -EMFILE, -ENFILE or -ENOMEM if a file or directory could not be opened
 * for lack of descriptors or memory: the result would lack versions.
 */
int dcp_scan(const char *source, struct dcp_scan *out, struct dcp_err *err);
/* The same; everything that the result depends on is added to @seen, also on failure. @seen may be
 * NULL. */
int dcp_scan_seen(const char *source, struct dcp_seen *seen, struct dcp_scan *out,
		  struct dcp_err *err);
void dcp_scan_finish(struct dcp_scan *s);

/*
 * Find the version that a user calls @name: by its exact name, else the only version with that
 * number in its name ("2500" for step-2500). @at receives its index in @found. -ENOENT, or
 * -ENOTUNIQ when several have that number.
 */
int dcp_found_match(const struct dcp_found *found, size_t n, const char *name, size_t *at);

/* An opened version: immutable, safe from any thread. */
struct dcp_version;

/*
 * -EINVAL when @found is not complete; -ESTALE when its files change while they are indexed;
 * -EAGAIN and -ECANCELED as described for the options; otherwise the error of the adapter or of the
 * index. @err names the version.
 */
int dcp_version_open(const char *source, const struct dcp_found *found,
		     const struct dcp_store_opts *opts, struct dcp_version **out,
		     struct dcp_err *err);
void dcp_version_close(struct dcp_version *v);
DCP_AUTO_PTR(struct dcp_version, dcp_version_close)
#define dcp_auto_version __attribute__((cleanup(dcp_version_close_ptr)))

const char *dcp_version_name(const struct dcp_version *v);
const struct dcp_format *dcp_version_format(const struct dcp_version *v);
struct dcp_index *dcp_version_index(const struct dcp_version *v);
/* The directory in which the version was found. */
const struct dcp_site *dcp_version_place(const struct dcp_version *v);
/* The first existing file of the version that this user may not read; NULL: none. If there is such
 * a file, errors in the index come from missing rights, not from damage. */
const char *dcp_version_barred(const struct dcp_version *v);
/* The backing files, opened at first use. */
struct dcp_files *dcp_version_files(const struct dcp_version *v);
/* The heads of its torch.save items (core/parse/torch/torch.h). */
struct dcp_torch_frames *dcp_version_frames(const struct dcp_version *v);
/* Path of the index file, or NULL when it is in memory. */
const char *dcp_version_index_path(const struct dcp_version *v);
/* Is a row of the version broken, and can none of its tensors be read? */
bool dcp_version_is_broken(const struct dcp_version *v);
/* Was the index built by this open, not found in the cache? */
bool dcp_version_was_built(const struct dcp_version *v);
/* A hash of the file table. It changes when any file changes from which the index was made. */
uint64_t dcp_version_generation(const struct dcp_version *v);

/* Are all recorded files unchanged? 0, or -ESTALE, naming the first that is not. */
int dcp_version_check(const struct dcp_version *v, struct dcp_err *err);

/*
 * If @source is a text file with the name of a neighbour (a replacement for a link), or @source
 * does not exist and "@source.symlink" is such a file, the path of that neighbour; else @source.
 * The caller frees *out. -ENOMEM.
 */
int dcp_source_resolve(const char *source, char **out);

/* ---- a version that shows the files of another by an index of its own (core/hf) ---- */

/* A further directory of a version, and the files in it that belong to the version. */
struct dcp_beside {
	const char *path;
	struct dcp_site place;
	struct dcp_file_id *id; /* file identities; names are relative to this directory */
	size_t n;
	struct dcp_files *files;
};

/* The additional data of such a version. */
struct dcp_derived {
	const struct dcp_beside *beside;
	size_t nbeside;
	/* -ESTALE if a search would now find other files beside the version. */
	int (*check)(const struct dcp_derived *d, struct dcp_err *err);
	void (*close)(struct dcp_derived *d);
};

/* How the index of such a version is made. */
struct dcp_derive {
	const char *name; /* part of the name of the index file: "hf" */
	uint64_t hash;    /* hash of everything that decides what is emitted, except the base */
	int (*emit)(void *ctx, const struct dcp_sink *sink, struct dcp_err *err);
	void *ctx;
};

/* Returns as dcp_version_open(). @base must outlive the result, @how the call. @d is taken when it
 * succeeds. */
int dcp_version_derive(struct dcp_version *base, const struct dcp_derive *how,
		       struct dcp_derived *d, const struct dcp_store_opts *opts,
		       struct dcp_version **out, struct dcp_err *err);
/* NULL: @v is not such a version. */
const struct dcp_derived *dcp_version_derived(const struct dcp_version *v);
/* Are the files beside the version still the same and unchanged? 0 (always for versions without
 * such files), or -ESTALE. */
int dcp_version_check_beside(const struct dcp_version *v, struct dcp_err *err);

/*
 * grants: who may read a source, as the owners, modes and access control lists of its files
 * and directories say.
 *
 * To read a file a user needs search permission on every directory from / down to it, on its
 * real path, and read permission on the file. Directories from SOURCE down must be readable
 * too, since the names of versions and files are shown.
 *
 * Where that cannot be found out (core/origin/dir/dir.h) only the user of this process gets
 * rights, because this user can copy the files anyway. Mandatory access control is not considered.
 */

struct dcp_file_id;
struct dcp_site;

struct dcp_grants {
	struct dcp_rights way;    /* rights to reach the directory and to list it */
	struct dcp_rights data;   /* rights to read every file of the version except sidecars */
	struct dcp_rights beside; /* rights to list every directory with sidecars */
	bool mixed;               /* the rights of the data files differ */
	/* by file number; NULL: not examined, and only the user of this process may read the
	 * data */
	struct dcp_rights *files;
	size_t n;
	/* rights for output written from the files: modes count on every file system */
	bool copied;
	/* if @copied: rights to change every examined file and directory */
	struct dcp_rights writers;
	uint64_t dev;        /* the last device found to decide by mode and list alone */
	char *source;        /* real path of SOURCE; "" while this is about SOURCE itself */
	struct dcp_buf dirs; /* the directories that were examined: see grants.c */
};

/* The rights to SOURCE: those of the directories down to it, and of itself if it is a directory.
 * -ENOMEM. A file or directory that cannot be examined is only for the user of this process. */
int dcp_grants_source(const char *source, struct dcp_grants **out);

/* The rights to the version whose directory is @where below @source. Its files are examined later,
 * by dcp_grants_files(). -ENOMEM. */
int dcp_grants_version(const struct dcp_grants *source, const char *where,
		       struct dcp_grants **out);

/* Examine the version's files, which lie at @at. -ENOMEM. */
int dcp_grants_files(struct dcp_grants *g, const struct dcp_site *at,
		     const struct dcp_file_id *ids, size_t n);

/* Have the rights of the directories changed since? (A change of the rights of a file changes its
 * ctime, which dcp_version_check() compares.) */
bool dcp_grants_changed(const struct dcp_grants *g);

/* The @i-th examined directory, or NULL past the last. */
const char *dcp_grants_dir(const struct dcp_grants *g, size_t i);

void dcp_grants_free(struct dcp_grants *g);

/* The rights of a file outside of a version. */
struct dcp_rights dcp_grants_of_file(const char *path);

/*
 * The permission bits that a file or directory written from @v must not have, in the form of a
 * umask. Users other than the writer may read or change it only if they may do so with all files of
 * @v (also those beside the weights of a Hugging Face directory) and the directories from @source
 * (as for dcp_version_open()) or from --hf-assets down to them. As with cp -p, what lies above
 * these does not count. @gid: the group of what is written. -ENOMEM.
 */
int dcp_grants_withheld(const struct dcp_version *v, const char *source, uint32_t gid,
			uint32_t *out);
