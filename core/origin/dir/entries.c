/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entries: what stands in a directory, and which file each is.
 */
#include "core/base/sort.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/clock.h"
#include "core/origin/dir/dir_int.h"

size_t dcp_dir_memory(const char *path)
{
	return (size_t)DCP_DIR_MAX_NAMES * (272 + sizeof(struct dcp_dirent)) + 65536 +
	       strlen(path);
}

void dcp_input_close(struct dcp_input *in)
{
	dcp_blob_close(&in->blob);
}

void dcp_dir_close(struct dcp_dir *d)
{
	if (!d)
		return;
	dcp_site_close(&d->at);
	dcp_arena_finish(&d->arena);
	*d = (struct dcp_dir){ 0 };
}

const struct dcp_dirent *dcp_dir_find(const struct dcp_dir *d, const char *name)
{
	return DCP_FIND(&name, d->entries, d->n, dcp_by_text);
}

/* Seconds far from our time do not fit in nanoseconds: the nearest that does. */
static int64_t nanoseconds(struct timespec t)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)t.tv_sec, DCP_NS_PER_S, &ns) ||
	    __builtin_add_overflow(ns, (int64_t)t.tv_nsec, &ns))
		return t.tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

void dcp_file_id_from_stat(const struct stat *st, struct dcp_file_id *id)
{
	id->size = (uint64_t)st->st_size;
	id->dev = st->st_dev;
	id->ino = st->st_ino;
	id->mtime_ns = nanoseconds(st->st_mtim);
	id->ctime_ns = nanoseconds(st->st_ctim);
}

struct timespec dcp_file_time(int64_t ns)
{
	int64_t rest = ns % DCP_NS_PER_S;

	rest += rest < 0 ? DCP_NS_PER_S : 0;
	return (struct timespec){ .tv_sec = ns / DCP_NS_PER_S - (ns % DCP_NS_PER_S < 0),
				  .tv_nsec = rest };
}

bool dcp_file_id_same(const struct dcp_file_id *a, const struct dcp_file_id *b)
{
	return a->size == b->size && a->dev == b->dev && a->ino == b->ino &&
	       a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

int dcp_file_id_content(const struct dcp_file_id *now, const struct dcp_file_id *want)
{
	if (now->size < want->size)
		return -EIO;
	return now->size == want->size && now->mtime_ns == want->mtime_ns &&
			       now->ino == want->ino && now->dev == want->dev
		       ? 0
		       : -ESTALE;
}

bool dcp_file_id_racy(const struct dcp_file_id *id, int64_t ns)
{
	return id->ino && id->ctime_ns > ns - DCP_TICK_NS;
}
