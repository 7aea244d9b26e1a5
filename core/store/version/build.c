/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An index, from the cache or built into it. Where that cannot be, it is kept in memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "core/base/trim.h"
#include "core/store/cache/cache.h"
#include "core/store/index/index.h"
#include "core/store/version/version_int.h"

/* A cache that does not work is worth one line, however many of its steps fail. */
static void say(struct dcp_build *b, enum dcp_log_level level, const char *what,
		const struct dcp_err *err)
{
	if (!b->said && !b->opts->cached_only) /* who builds will say it */
		dcp_log(b->opts->log, level, "%s: %s: %s", b->name, what, err->msg);
	b->said |= level <= DCP_LOG_WARN;
}

static bool take_cached(struct dcp_build *b, bool just_built)
{
	struct dcp_err err = { 0 };
	struct dcp_index *ix = NULL;
	int code = dcp_index_open(b->path, &ix, &err);

	/* An index that the user named is trusted as far as the user trusts it. */
	if (code == 0 && !b->opts->index_file && !dcp_cache_trusts(b->path, dcp_index_fd(ix)))
		code = dcp_fail(&err, -EPERM, "%.200s: belongs to another user", b->path);
	if (code == 0)
		code = b->check(b->ctx, ix, just_built, &err);
	if (code == 0) {
		b->index = ix;
		if (!b->opts->index_file)
			dcp_cache_use(dcp_index_fd(ix));
		return true;
	}
	dcp_index_close(ix);
	if (code == -ESTALE)
		say(b, DCP_LOG_INFO, "indexing again", &err);
	else if (code != -ENOENT && code != -ENOTDIR)
		say(b, DCP_LOG_WARN, "indexing again", &err);
	return false;
}

bool dcp_build_cached(struct dcp_build *b)
{
	return b->path && !b->opts->rebuild && take_cached(b, false);
}

static int check_stop(void *ctx)
{
	return dcp_stopped(ctx) ? -ECANCELED : 0;
}

struct dcp_sink dcp_stopping_sink(const struct dcp_sink *to, const struct dcp_store_opts *opts)
{
	return (struct dcp_sink){ .check = check_stop,
				  .ctx = (void *)(uintptr_t)opts,
				  .next = to };
}

static int canceled(struct dcp_err *err)
{
	return dcp_fail(err, -ECANCELED, "indexing was called off");
}

/* @ours: it was the index that failed, not the checkpoint. */
static int write_index(struct dcp_build *b, bool *ours, struct dcp_err *err)
{
	struct dcp_index_writer *w;
	int code = dcp_index_create(b->path, &w, err);

	*ours = true;
	if (code < 0)
		return code;
	code = b->emit(b->ctx, w, err);
	if (code == 0 && dcp_stopped(b->opts)) /* writing it out takes a while, too */
		code = -ECANCELED;
	if (dcp_index_writer_error(w, err) < 0)
		code = dcp_index_writer_error(w, NULL);
	else
		*ours = code >= 0;
	if (code < 0) {
		dcp_index_abandon(w);
		return code == -ECANCELED ? canceled(err) : code;
	}
	return dcp_index_commit(w, &b->index, err);
}

static void forget_path(struct dcp_build *b)
{
	free(b->path);
	b->path = NULL;
}

/* The right to write the index, or memory when there is no writing it. */
static int lock_cache(struct dcp_build *b, bool *waited)
{
	struct dcp_err err = { 0 };
	int code = dcp_cache_mkdirs(b->path);

	if (code == 0)
		code = dcp_cache_lock(b->opts, b->path, waited);
	if (code >= 0 || code == -ECANCELED || code == -ENOLCK || code == -ENOTSUP ||
	    code == -ENOSYS)
		return code; /* without locks two may build: the later rename wins */
	dcp_fail(&err, code, "%.300s: %s", b->path,
		 code == -EBUSY ? "another process is still building it" : strerror(-code));
	say(b, DCP_LOG_WARN, "index kept in memory", &err);
	forget_path(b);
	return code;
}

/* Indexes of versions that are gone are used by none. */
static void make_room(const struct dcp_build *b)
{
	const struct dcp_trim room = { .ext = DCP_CACHE_INDEX_EXT,
				       .keep = b->path,
				       .most = DCP_CACHE_INDEXES,
				       .days = DCP_CACHE_DAYS };
	struct dcp_trimmed out;

	if (!b->opts->index_file)
		dcp_cache_trim(b->opts->cache_dir, &room, &out);
}

static int write_somewhere(struct dcp_build *b, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	bool ours = false;
	int code;

	if (b->path) {
		code = write_index(b, &ours, &why);
		if (code >= 0)
			make_room(b);
		if (code >= 0 || !ours) {
			if (code < 0 && err)
				*err = why;
			return code;
		}
		say(b, DCP_LOG_WARN, "index kept in memory", &why);
		forget_path(b);
	}
	return write_index(b, &ours, err);
}

int dcp_build_index(struct dcp_build *b, struct dcp_err *err)
{
	dcp_auto_free char *path = NULL;
	bool waited = false;
	int lock = -1, code;

	if (b->path) {
		lock = lock_cache(b, &waited);
		if (lock == -ECANCELED)
			return canceled(err);
		/* another process may have built it meanwhile */
		if (lock >= 0 && (waited || !b->opts->rebuild) && take_cached(b, waited)) {
			dcp_cache_unlock(b->path, lock);
			return 0;
		}
	}
	if (b->path && lock >= 0) {
		dcp_cache_sweep(b->path);
		path = strdup(b->path);
		if (!path)
			forget_path(b); /* the lock file stays behind: harmless */
	}
	b->built = true;
	code = write_somewhere(b, err);
	if (path)
		dcp_cache_unlock(path, lock);
	else
		dcp_close_fd(&lock);
	return code;
}
