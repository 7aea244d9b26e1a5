/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/origin/dir/dir.h"
#include "core/store/cache/cache.h"
#include "core/store/index/index.h"
#include "core/store/version/version_int.h"

uint64_t dcp_fresh_names(const struct dcp_dir *dir, const char *index_path)
{
	uint64_t hash = 0;

	for (size_t i = 0; i < dir->n; i++) {
		const char *name = dir->entries[i].name;

		if (!dcp_cache_is_own(index_path, name))
			hash = dcp_hash64_more(hash, name, strlen(name) + 1);
	}
	return hash;
}

static int fail_stale(struct dcp_err *err, const char *name, const char *why)
{
	return dcp_fail(err, -ESTALE, "%.300s %s", name, why);
}

/* Compare the identity without opening the file, so links may lead anywhere: any other file is
 * detected as a change. */
static int check_file(const struct dcp_site *at, const struct dcp_file_id *want,
		      struct dcp_err *err)
{
	struct dcp_file_id now = { 0 };

	if (want->ino == 0) /* the file could not be opened then */
		return dcp_site_has(at, want->name)
			       ? fail_stale(err, want->name, "has appeared")
			       : 0;
	if (*want->name == '/' || dcp_site_id(at, want->name, &now) < 0)
		return fail_stale(err, want->name, "is gone");
	if (now.ino != want->ino || now.dev != want->dev)
		return fail_stale(err, want->name, "was replaced");
	if (!dcp_file_id_same(&now, want))
		return fail_stale(err, want->name, "was changed");
	return 0;
}

int dcp_fresh_files(const struct dcp_site *at, const struct dcp_file_id *ids, size_t n,
		    struct dcp_err *err)
{
	int code = 0;

	for (size_t i = 0; code == 0 && i < n; i++)
		code = check_file(at, &ids[i], err);
	return code;
}

static int fact_is(const struct dcp_index *ix, const char *name, const char *want,
		   struct dcp_err *err)
{
	const char *is = dcp_index_meta(ix, name);

	if (!is)
		return dcp_fail(err, -EBADMSG, "its meta table lacks \"%s\"", name);
	if (strcmp(is, want) != 0)
		return dcp_fail(err, -ESTALE, "%s is %.100s, not %.100s", name, is, want);
	return 0;
}

/* A change always sets ctime, but a second change within one tick of the clock sets the same ctime.
 * So a file changed just before the index was begun may have been read before its last change. */
static int check_racy(const struct dcp_index *ix, const struct dcp_file_id *ids, size_t n,
		      struct dcp_err *err)
{
	int64_t created = (int64_t)dcp_index_meta_number(ix, "created_ns");

	for (size_t i = 0; i < n; i++)
		if (dcp_file_id_racy(&ids[i], created))
			return fail_stale(err, ids[i].name,
					  "changed just before it was indexed");
	return 0;
}

int dcp_fresh_check(struct dcp_index *ix, const struct dcp_dir *dir,
		    const struct dcp_format *format, const char *index_path, bool just_built,
		    struct dcp_err *err)
{
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(ix, &n);
	char names[24];
	int code = fact_is(ix, "dcpfs_version", DCP_RELEASE, err);

	snprintf(names, sizeof(names), "%016llx",
		 (unsigned long long)dcp_fresh_names(dir, index_path));
	if (code == 0)
		code = fact_is(ix, "format", format->name, err);
	if (code == 0)
		code = fact_is(ix, "dir_names_hash", names, err);
	if (code == 0 && !just_built && !dir->at.row->settled)
		code = check_racy(ix, ids, n, err);
	if (code == 0)
		code = dcp_fresh_files(&dir->at, ids, n, err);
	return code;
}
