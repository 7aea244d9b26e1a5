/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/version/version_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/trim.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"
#include "core/store/cache/cache.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"

/* Get an index from the cache, or build it into the cache. If that is not possible, the index is
 * kept in memory. */

/* A cache that does not work is worth one line, however many of its steps fail. */
static void say_once(struct dcp_build *b, enum dcp_log_level level, const char *what,
		     const struct dcp_err *err)
{
	if (!b->said && !b->opts->cached_only) /* a process that builds will log it */
		dcp_log(b->opts->log, level, "%s: %s: %s", b->name, what, err->msg);
	b->said |= level <= DCP_LOG_WARN;
}

static bool take_cached(struct dcp_build *b, bool just_built)
{
	struct dcp_err err = { 0 };
	struct dcp_index *ix = NULL;
	int code = dcp_index_open(b->path, &ix, &err);

	/* An index file that the user named is not checked: the user decides whether to trust
	 * it. */
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
		say_once(b, DCP_LOG_INFO, "indexing again", &err);
	else if (code != -ENOENT && code != -ENOTDIR)
		say_once(b, DCP_LOG_WARN, "indexing again", &err);
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

static int fail_canceled(struct dcp_err *err)
{
	return dcp_fail(err, -ECANCELED, "indexing was called off");
}

/* @ours: the index failed, not the checkpoint. */
static int write_index(struct dcp_build *b, bool *ours, struct dcp_err *err)
{
	struct dcp_index_writer *w;
	int code = dcp_index_create(b->path, &w, err);

	*ours = true;
	if (code < 0)
		return code;
	code = b->emit(b->ctx, w, err);
	if (code == 0 &&
	    dcp_stopped(b->opts)) /* writing the index to disk also takes a while */
		code = -ECANCELED;
	if (dcp_index_writer_error(w, err) < 0)
		code = dcp_index_writer_error(w, NULL);
	else
		*ours = code >= 0;
	if (code < 0) {
		dcp_index_abandon(w);
		return code == -ECANCELED ? fail_canceled(err) : code;
	}
	return dcp_index_commit(w, &b->index, err);
}

static void forget_path(struct dcp_build *b)
{
	free(b->path);
	b->path = NULL;
}

/* Get the lock for writing the index; if it cannot be written, switch to memory. */
static int lock_cache(struct dcp_build *b, bool *waited)
{
	struct dcp_err err = { 0 };
	int code = dcp_cache_mkdirs(b->path);

	if (code == 0)
		code = dcp_cache_lock(b->opts, b->path, waited);
	if (code >= 0 || code == -ECANCELED || code == -ENOLCK || code == -ENOTSUP ||
	    code == -ENOSYS)
		return code; /* without locks two processes may build: the later rename wins */
	dcp_fail(&err, code, "%.300s: %s", b->path,
		 code == -EBUSY ? "another process is still building it" : dcp_err_noted(code));
	say_once(b, DCP_LOG_WARN, "index kept in memory", &err);
	forget_path(b);
	return code;
}

/* Remove old indexes from the cache: those of removed versions are never used again. */
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
		say_once(b, DCP_LOG_WARN, "index kept in memory", &why);
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
			return fail_canceled(err);
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

enum { MAX_BUILDS = 3 }; /* attempts, if a checkpoint changes while it is read */

struct opening {
	struct dcp_version *v;
	char *source; /* the source of the call, resolved */
	const struct dcp_found *found;
	struct dcp_build build;
	struct dcp_dir dir;
	char *real; /* path of the directory, links resolved */
};

/* Facts about the version are emitted first, so that facts of the adapter cannot replace them. */
static int emit_facts(const struct opening *o, const struct dcp_sink *sink)
{
	char commit[24], names[24];
	const char *facts[][2] = {
		{ "dcpfs_version", DCP_RELEASE }, { "format", o->v->format->name },
		{ "version", o->v->name },        { "source", o->real },
		{ "commit_ns", commit },          { "dir_names_hash", names },
	};
	int code = 0;

	snprintf(commit, sizeof(commit), "%lld", (long long)o->v->commit_ns);
	snprintf(names, sizeof(names), "%016llx",
		 (unsigned long long)dcp_fresh_names(&o->dir, o->build.path));
	for (size_t i = 0; code == 0 && i < DCP_LEN(facts); i++)
		code = dcp_emit_meta(sink, facts[i][0], facts[i][1]);
	return code;
}

static int unpack_input(void *ctx, const char *name, struct dcp_input *out, struct dcp_err *err)
{
	struct opening *o = ctx;
	uint64_t size;
	int code =
		dcp_unpack_open(o->v->unpack, &o->dir.at, name, &out->blob, &size, NULL, err);

	if (code == 0)
		out->src = dcp_source_blob(&out->blob);
	return code;
}

/* Does the cached index still describe the files? */
static int check_cached(void *ctx, struct dcp_index *ix, bool just_built, struct dcp_err *err)
{
	const struct opening *o = ctx;

	return dcp_fresh_check(ix, &o->dir, o->v->format, o->build.path, just_built, err);
}

static int emit_all(void *ctx, struct dcp_index_writer *w, struct dcp_err *err)
{
	struct opening *o = ctx;
	const struct dcp_store_opts *opts = o->build.opts;
	struct dcp_unpacker unpack = { unpack_input, o };
	struct dcp_load in = { .dir = &o->dir,
			       .formats = dcp_formats,
			       .unpack = &unpack,
			       .progress = opts->progress,
			       .log = opts->log,
			       .uncommitted = o->found->uncommitted };
	struct dcp_sink sink = dcp_index_sink(w, &o->dir.at);
	struct dcp_sink emitted = dcp_stopping_sink(&sink, opts);
	int code = emit_facts(o, &sink);

	dcp_index_unpack_with(w, o->v->unpack);
	in.sink = &emitted;
	if (code == 0)
		code = o->v->format->load(&in, err);
	if (code == 0 && !o->found->group)
		code = dcp_emit_beside(&o->dir, &emitted, w);
	return code;
}

static int build_index(struct opening *o, struct dcp_err *err)
{
	const struct dcp_file_id *ids;
	size_t n;
	int code = dcp_build_index(&o->build, err);

	if (code < 0 || !o->build.built)
		return code;
	ids = dcp_index_files(o->build.index, &n);
	return dcp_fresh_files(&o->dir.at, ids, n, err);
}

/* Keep only the files of the group that was found. */
static int restrict_dir(struct opening *o, struct dcp_err *err)
{
	struct dcp_dir part;
	int code = dcp_format_group(o->found->format, &o->dir, o->found->group, &part);

	if (code < 0)
		return dcp_fail(err, code, "%s", dcp_err_noted(code));
	dcp_dir_close(&o->dir);
	o->dir = part;
	return 0;
}

/* List the directory; repeated if it turned out to have changed. */
static int open_dir(struct opening *o, struct dcp_err *err)
{
	struct dcp_dir above = { .path = o->source };
	dcp_auto_free char *only = NULL;
	int code;

	dcp_dir_close(&o->dir);
	if (!*o->found->where) {
		code = dcp_dir_open(o->source, &o->dir, err);
	} else {
		struct dcp_err why = { 0 };

		code = dcp_site_find(o->source, &above.at, &only, &why);
		if (code < 0 && why.code)
			return dcp_err_give(err, &why, code);
		if (code < 0)
			return dcp_fail(err, code, "%.300s: %s", o->source,
					dcp_err_noted(code));
		code = dcp_dir_open_at(&above, o->found->where, &o->dir, err);
		dcp_site_close(&above.at);
	}
	if (code == 0 && o->found->group)
		code = restrict_dir(o, err);
	if (code < 0 || o->real)
		return code;
	o->real = o->dir.at.fd < 0 ? strdup(o->dir.path) : realpath(o->dir.path, NULL);
	if (!o->real)
		code = dcp_fail(err, -errno, "%.300s: %s", o->dir.path, strerror(errno));
	return code;
}

/* The index, from the cache or built. */
static int obtain_index(struct opening *o, struct dcp_err *err)
{
	int code;

	if (dcp_build_cached(&o->build))
		return 0;
	if (o->build.opts->cached_only)
		return dcp_fail(err, -EAGAIN, "not indexed yet");
	code = build_index(o, err);
	for (int i = 1; code == -ESTALE && i < MAX_BUILDS; i++) {
		dcp_index_close(o->build.index);
		o->build.index = NULL;
		code = open_dir(o, err);
		if (code == 0)
			code = build_index(o, err);
	}
	return code;
}

/* Is a row broken, and is no tensor readable? */
static bool is_broken(struct dcp_index *ix)
{
	const struct dcp_index_counts *c = dcp_index_counts(ix);
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row = { .broken = true };
	int rc = 1;

	if (c->broken == 0 || c->broken < c->tensors ||
	    dcp_index_scan(ix, DCP_ROW_TENSOR, 0, false, &scan) < 0)
		return false;
	while (row.broken && rc == 1)
		rc = dcp_index_scan_next(scan, &row);
	return rc == 0;
}

static uint64_t hash_generation(const struct dcp_version *v)
{
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(v->index, &n);
	uint64_t hash = dcp_hash64(DCP_RELEASE, strlen(DCP_RELEASE));

	hash = dcp_hash64_more(hash, v->format->name, strlen(v->format->name));
	for (size_t i = 0; i < n; i++) {
		uint64_t id[5] = { ids[i].size, ids[i].dev, ids[i].ino,
				   (uint64_t)ids[i].mtime_ns, (uint64_t)ids[i].ctime_ns };

		hash = dcp_hash64_more(hash, ids[i].name, strlen(ids[i].name));
		hash = dcp_hash64_more(hash, id, sizeof(id));
	}
	return hash;
}

static int start_version(struct opening *o, struct dcp_err *err)
{
	struct dcp_version *v = o->v;
	const struct dcp_store_opts *opts = o->build.opts;
	struct dcp_file_id id = { 0 };
	int code = dcp_site_again(&o->dir.at, &v->at);

	if (code == 0)
		code = dcp_site_id(&v->at, ".", &id);
	if (code < 0)
		return dcp_fail(err, code, "%s", dcp_err_noted(code));
	v->format = o->found->format;
	v->commit_ns = dcp_commit_time(&o->dir, v->format);
	v->name = strdup(o->found->name);
	if (!v->name || dcp_unpack_create(opts, &v->unpack) < 0 ||
	    dcp_cache_path(opts, v->name, o->real, &id, &o->build.path) < 0)
		return dcp_fail(err, -ENOMEM, "out of memory");
	/* A mistyped command line must not destroy a file, such as a shard. */
	if (opts->index_file && dcp_cache_is_foreign(o->build.path))
		return dcp_fail(err, -EEXIST,
				"%.300s is not an index of dcpfs; it is left as it is",
				o->build.path);
	return 0;
}

int dcp_version_open(const char *source, const struct dcp_found *found,
		     const struct dcp_store_opts *opts, struct dcp_version **out,
		     struct dcp_err *err)
{
	struct opening o = { .found = found };
	const struct dcp_file_id *ids;
	struct dcp_files_opts how;
	size_t n;
	int code;

	if (!found->complete)
		return dcp_fail(err, -EINVAL, "%.100s is not complete: %s", found->name,
				found->why ? found->why : "no commit mark");
	o.v = calloc(1, sizeof(*o.v));
	if (!o.v)
		return dcp_fail(err, -ENOMEM, "out of memory");
	o.build = (struct dcp_build){
		.name = found->name,
		.opts = opts,
		.check = check_cached,
		.emit = emit_all,
		.ctx = &o,
	};
	code = dcp_source_resolve(source, &o.source);
	code = code < 0 ? dcp_fail(err, code, "out of memory") : open_dir(&o, err);
	if (code == 0)
		code = start_version(&o, err);
	if (code == 0)
		code = obtain_index(&o, err);
	o.v->index = o.build.index;
	o.v->index_path = o.build.path;
	o.v->built = o.build.built;
	if (code == 0) {
		if (opts->pool)
			dcp_index_share(o.v->index, opts->pool);
		ids = dcp_index_files(o.v->index, &n);
		o.v->generation = hash_generation(o.v);
		o.v->broken = is_broken(o.v->index);
		how = (struct dcp_files_opts){ .map = !opts->no_map,
					       .counts = opts->counts,
					       .queue = opts->queue,
					       .unpack = o.v->unpack,
					       .handles = opts->handles };
		code = dcp_files_create(&o.v->at, ids, n, &how, &o.v->files);
		dcp_unpack_settle(o.v->unpack);
		if (code == 0 && !(o.v->frames = dcp_torch_frames_create()))
			code = -ENOMEM;
		if (code < 0)
			dcp_fail(err, code, "%s", dcp_err_noted(code));
	}
	dcp_dir_close(&o.dir);
	free(o.real);
	free(o.source);
	if (code < 0) {
		dcp_version_close(o.v);
		return dcp_err_where(err, code, "%.100s", found->name);
	}
	*out = o.v;
	return 0;
}

void dcp_version_close(struct dcp_version *v)
{
	if (!v)
		return;
	dcp_index_close(v->index);
	if (v->derived) {
		v->derived->close(v->derived); /* the rest belongs to the base */
	} else {
		dcp_files_destroy(v->files);
		dcp_torch_frames_destroy(v->frames);
		dcp_unpack_destroy(v->unpack);
		dcp_site_close(&v->at);
	}
	free(v->index_path);
	free(v->name);
	free(v);
}

const char *dcp_version_name(const struct dcp_version *v)
{
	return v->name;
}

const struct dcp_format *dcp_version_format(const struct dcp_version *v)
{
	return v->format;
}

struct dcp_index *dcp_version_index(const struct dcp_version *v)
{
	return v->index;
}

const struct dcp_site *dcp_version_place(const struct dcp_version *v)
{
	return &v->at;
}

const char *dcp_version_barred(const struct dcp_version *v)
{
	size_t n;
	const struct dcp_file_id *id = dcp_index_files(v->index, &n);

	for (size_t i = 0; i < n; i++) /* a file that could not be opened has no inode number */
		if (!id[i].ino && dcp_site_barred(&v->at, id[i].name))
			return id[i].name;
	return NULL;
}

struct dcp_files *dcp_version_files(const struct dcp_version *v)
{
	return v->files;
}

struct dcp_torch_frames *dcp_version_frames(const struct dcp_version *v)
{
	return v->frames;
}

const char *dcp_version_index_path(const struct dcp_version *v)
{
	return v->index_path;
}

bool dcp_version_is_broken(const struct dcp_version *v)
{
	return v->broken;
}

bool dcp_version_was_built(const struct dcp_version *v)
{
	return v->built;
}

uint64_t dcp_version_generation(const struct dcp_version *v)
{
	return v->generation;
}

int dcp_version_check(const struct dcp_version *v, struct dcp_err *err)
{
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(v->index, &n);
	int code = dcp_fresh_files(&v->at, ids, n, err);

	return code == 0 ? dcp_version_check_beside(v, err) : code;
}

/* ---- versions that show the files of another by their own index ---- */

struct deriving {
	struct dcp_version *base;
	const struct dcp_derive *how;
	struct dcp_build build;
	char id[24]; /* hash of everything that the result depends on */
};

static int emit_derived(void *ctx, struct dcp_index_writer *w, struct dcp_err *err)
{
	struct deriving *d = ctx;
	struct dcp_sink sink = dcp_index_sink(w, &d->base->at);
	struct dcp_sink emitted = dcp_stopping_sink(&sink, d->build.opts);
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(d->base->index, &n);
	int code = dcp_index_emit_files(w, ids, n);

	if (code == 0)
		code = dcp_emit_meta(&sink, "map", d->id);
	return code < 0 ? code : d->how->emit(d->how->ctx, &emitted, err);
}

static int check_derived(void *ctx, struct dcp_index *ix, bool just_built, struct dcp_err *err)
{
	const struct deriving *d = ctx;
	const char *id = dcp_index_meta(ix, "map");

	if (id && strcmp(id, d->id) == 0)
		return 0;
	return dcp_fail(err, -ESTALE, "it was mapped from another index");
}

/* Every way to derive has its own file in the cache, which is rebuilt when the base changes. */
static int choose_path(struct deriving *d, const struct dcp_store_opts *opts)
{
	const char *base = d->base->index_path;
	const char *created = dcp_index_meta(d->base->index, "created_ns");
	uint64_t hash = d->how->hash;
	size_t n = base ? strlen(base) : 0;

	if (n > 5 && !opts->index_file &&
	    asprintf(&d->build.path, "%.*s-%s-%016llx.dcpx", (int)(n - 5), base, d->how->name,
		     (unsigned long long)hash) < 0) {
		d->build.path = NULL;
		return -ENOMEM;
	}
	hash = dcp_hash64_more(hash, &d->base->generation, sizeof(d->base->generation));
	if (created)
		hash = dcp_hash64_more(hash, created, strlen(created));
	snprintf(d->id, sizeof(d->id), "%016llx", (unsigned long long)hash);
	return 0;
}

static int obtain_derived(struct dcp_build *b, struct dcp_err *err)
{
	if (dcp_build_cached(b))
		return 0;
	if (b->opts->cached_only)
		return dcp_fail(err, -EAGAIN, "not mapped yet");
	return dcp_build_index(b, err);
}

int dcp_version_derive(struct dcp_version *base, const struct dcp_derive *how,
		       struct dcp_derived *with, const struct dcp_store_opts *opts,
		       struct dcp_version **out, struct dcp_err *err)
{
	struct deriving d = { .base = base, .how = how };
	struct dcp_version *v = calloc(1, sizeof(*v));
	int code = v ? choose_path(&d, opts) : -ENOMEM;

	if (code == 0 && !(v->name = strdup(base->name)))
		code = -ENOMEM;
	dcp_err_say(err, code);
	d.build.name = base->name;
	d.build.opts = opts;
	d.build.check = check_derived;
	d.build.emit = emit_derived;
	d.build.ctx = &d;
	if (code == 0)
		code = obtain_derived(&d.build, err);
	if (code < 0) {
		free(d.build.path);
		free(v ? v->name : NULL);
		free(v);
		return code;
	}
	*v = (struct dcp_version){ .format = base->format,
				   .at = base->at,
				   .files = base->files,
				   .frames = base->frames,
				   .commit_ns = base->commit_ns,
				   .name = v->name,
				   .index = d.build.index,
				   .index_path = d.build.path,
				   .built = d.build.built,
				   .generation = dcp_hash64(d.id, strlen(d.id)),
				   .derived = with };
	if (opts->pool)
		dcp_index_share(v->index, opts->pool);
	*out = v;
	return 0;
}

const struct dcp_derived *dcp_version_derived(const struct dcp_version *v)
{
	return v->derived;
}

int dcp_version_check_beside(const struct dcp_version *v, struct dcp_err *err)
{
	const struct dcp_derived *d = v->derived;
	int code = 0;

	for (size_t i = 0; d && code == 0 && i < d->nbeside; i++)
		code = dcp_fresh_files(&d->beside[i].place, d->beside[i].id, d->beside[i].n,
				       err);
	return code == 0 && d ? d->check(d, err) : code;
}
