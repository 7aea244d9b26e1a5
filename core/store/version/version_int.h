/* SPDX-License-Identifier: Apache-2.0 */
/* version_int: declarations that the files of version share. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/model/dtype.h"
#include "core/model/tensor.h"
#include "core/store/version/version.h"

struct dcp_dir;
struct dcp_dirent;
struct dcp_index;
struct dcp_index_writer;
struct dcp_unpack;

struct dcp_version {
	char *name, *index_path; /* index_path NULL: in memory */
	const struct dcp_format *format;
	struct dcp_site at;
	struct dcp_index *index;
	struct dcp_unpack *unpack;
	struct dcp_files *files;
	struct dcp_torch_frames *frames;
	int64_t commit_ns;
	uint64_t generation;
	bool broken; /* as dcp_version_is_broken() says */
	bool built;
	/* NULL: not derived; else place and files belong to the base */
	struct dcp_derived *derived;
};

/* ---- scan.c ---- */

/* mtime of the format's commit file, or of the newest file of @dir. */
int64_t dcp_commit_time(const struct dcp_dir *dir, const struct dcp_format *format);

/* ---- names.c ---- */

/* Sort the versions and give them distinct names. -ENOMEM. */
int dcp_scan_part_names(struct dcp_scan *scan);

/* Find the tags of the found versions in @dir. -ENOMEM. */
int dcp_scan_tags(struct dcp_scan *scan, const struct dcp_dir *dir);

/* Is the file a text with the name of another entry of @dir? Then it acts as a link. */
bool dcp_is_text_link(const struct dcp_dir *dir, const struct dcp_dirent *e);

/* ---- hint.c ---- */

/* Do the names in @dir show a family that dcpfs does not read? If so, @why describes it. */
bool dcp_scan_family(const struct dcp_dir *dir, char *why, size_t n);

/* Write to @err why @dir is not a checkpoint, and the nearest candidate. Returns -EINVAL. */
int dcp_scan_explain(const struct dcp_dir *dir, struct dcp_err *err);
/* -EINVAL if the file is a part of a checkpoint, or its name shows a family that dcpfs knows but
 * does not read; 0: neither. */
int dcp_scan_explain_part(const struct dcp_dir *dir, struct dcp_err *err);

/* Is the entry a link to a directory outside @dir? DCP_SCAN_LEADS_OUT: the message for such a
 * link. */
bool dcp_scan_leads_out(const struct dcp_dir *dir, const struct dcp_dirent *e);
#define DCP_SCAN_LEADS_OUT                                                                     \
	"it is a link out of the source, which is not followed: give what it leads to"

/* ---- beside.c: what lies in a version's directory beside its data ---- */

/* Emit these files as sidecars, except those that @w has already. 0 or the error of the sink. */
int dcp_emit_beside(const struct dcp_dir *dir, const struct dcp_sink *sink,
		    const struct dcp_index_writer *w);

/* ---- open.c: an index, from the cache or built into it ---- */

/*
 * A sink in front of @to that fails with -ECANCELED as soon as @opts asks to stop. This suffices to
 * stop an adapter, which emits something every few microseconds and obeys the return of its sink.
 */
struct dcp_sink dcp_stopping_sink(const struct dcp_sink *to, const struct dcp_store_opts *opts);

struct dcp_build {
	const char *name; /* name of the version, for messages */
	const struct dcp_store_opts *opts;
	/* path of the index file, freed by the caller; NULL: in memory, by choice or because no
	 * file can be written */
	char *path;
	struct dcp_index *index; /* the result */
	bool built;              /* the index was built, not found */
	bool said;               /* a problem of the cache was already logged */
	/* May the cached index be used? Returns as dcp_fresh_check(). */
	int (*check)(void *ctx, struct dcp_index *ix, bool just_built, struct dcp_err *err);
	/* Emit the whole content of a new index. */
	int (*emit)(void *ctx, struct dcp_index_writer *w, struct dcp_err *err);
	void *ctx;
};

/* Is the index in the cache? Then it becomes the result. */
bool dcp_build_cached(struct dcp_build *b);
/* Build the index, unless another process did so meanwhile. -ECANCELED, or the return of emit. */
int dcp_build_index(struct dcp_build *b, struct dcp_err *err);

/* ---- fresh.c: is an index still true? ---- */

/* Hash of the names in @dir, without the files of the index. */
uint64_t dcp_fresh_names(const struct dcp_dir *dir, const char *index_path);

/* Do the files look as recorded? 0, or -ESTALE naming the first that does not. */
int dcp_fresh_files(const struct dcp_site *at, const struct dcp_file_id *ids, size_t n,
		    struct dcp_err *err);

/* May @ix, found in the cache, be used for @dir? 0, -ESTALE or -EBADMSG. @just_built: another
 * process finished it while this process waited, so it is as good as an index built here. */
int dcp_fresh_check(struct dcp_index *ix, const struct dcp_dir *dir,
		    const struct dcp_format *format, const char *index_path, bool just_built,
		    struct dcp_err *err);
