/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version_int: what the files of version share.
 */
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
	struct dcp_derived *derived; /* NULL: it is not; else place and files are its base's */
};

/* ---- scan.c ---- */

/* mtime of the format's commit file, or of the newest file of @dir. */
int64_t dcp_commit_time(const struct dcp_dir *dir, const struct dcp_format *format);

/* ---- names.c ---- */

/* Sort what was found, no two by one name. -ENOMEM. */
int dcp_scan_part_names(struct dcp_scan *scan);

/* Find the tags of what was found in @dir. -ENOMEM. */
int dcp_scan_tags(struct dcp_scan *scan, const struct dcp_dir *dir);

/* Is the file a text that names something else in @dir? Then it is a link, in effect. */
bool dcp_is_text_link(const struct dcp_dir *dir, const struct dcp_dirent *e);

/* ---- hint.c ---- */

/* Is @dir of a family that dcpfs does not read, by its names? Then what it is: in @why. */
bool dcp_scan_family(const struct dcp_dir *dir, char *why, size_t n);

/* Say in @err why @dir is not a checkpoint, and the nearest thing to one. Returns -EINVAL. */
int dcp_scan_explain(const struct dcp_dir *dir, struct dcp_err *err);
/* Of a file: -EINVAL, when it is a part of a checkpoint, or by its name of a family that dcpfs
 * knows and does not read; 0: neither. */
int dcp_scan_explain_part(const struct dcp_dir *dir, struct dcp_err *err);

/* Is the entry a link to a directory that is not inside @dir? What is said of it then. */
bool dcp_scan_leads_out(const struct dcp_dir *dir, const struct dcp_dirent *e);
#define DCP_SCAN_LEADS_OUT                                                                     \
	"it is a link out of the source, which is not followed: give what it leads to"

/* ---- beside.c: what lies in a version's directory beside its data ---- */

/* Emit it as sidecars, but for what @w knows. 0 or what the sink gave. */
int dcp_emit_beside(const struct dcp_dir *dir, const struct dcp_sink *sink,
		    const struct dcp_index_writer *w);

/* ---- open.c: an index, from the cache or built into it ---- */

/* A sink in front of @to that fails with -ECANCELED as soon as @opts say so: an adapter looks
 * at nothing but what its sink returns, and emits something every few microseconds. */
struct dcp_sink dcp_stopping_sink(const struct dcp_sink *to, const struct dcp_store_opts *opts);

struct dcp_build {
	const char *name; /* of the version, for messages */
	const struct dcp_store_opts *opts;
	char *path; /* of the file; the caller's to free; NULL: in memory, also if it must be */
	struct dcp_index *index; /* the result */
	bool built;              /* and not found */
	bool said;               /* what is wrong with the cache */
	/* May what the cache has be used? As dcp_fresh_check(). */
	int (*check)(void *ctx, struct dcp_index *ix, bool just_built, struct dcp_err *err);
	/* Emit to a new one all that is in it. */
	int (*emit)(void *ctx, struct dcp_index_writer *w, struct dcp_err *err);
	void *ctx;
};

/* Is it there already? Then it is the result. */
bool dcp_build_cached(struct dcp_build *b);
/* Make it, unless another process did that meanwhile. -ECANCELED, or what emit returned. */
int dcp_build_index(struct dcp_build *b, struct dcp_err *err);

/* ---- fresh.c: is an index still true? ---- */

/* Hash of the names in @dir, those of the index left out. */
uint64_t dcp_fresh_names(const struct dcp_dir *dir, const char *index_path);

/* Do the files look as recorded? 0, or -ESTALE naming the first that does not. */
int dcp_fresh_files(const struct dcp_site *at, const struct dcp_file_id *ids, size_t n,
		    struct dcp_err *err);

/*
 * May @ix, found in the cache, be used for @dir? 0, -ESTALE or -EBADMSG. @just_built: another
 * process finished it while this one waited, so it is as good as one made here.
 */
int dcp_fresh_check(struct dcp_index *ix, const struct dcp_dir *dir,
		    const struct dcp_format *format, const char *index_path, bool just_built,
		    struct dcp_err *err);
