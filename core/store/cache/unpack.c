/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/cache/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/trim.h"
#include "core/model/name.h"
#include "core/origin/archive/archive.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/store/version/version.h"

enum { BLOCK = 1 << 20, MAGIC = 16 };

static const char magic[] = "dcpfs unpacked 1";

/* ---- the record ---- */

enum field { SIZE, SRC_SIZE, SRC_DEV, SRC_INO, SRC_MTIME, SRC_CTIME, BEGAN, CONTENT, RECORD };

static uint64_t get_field(const uint8_t *r, enum field f)
{
	return dcp_load_le64(r + MAGIC + 8 * f);
}

static void put_field(uint8_t *r, enum field f, uint64_t v)
{
	dcp_store_le64(r + MAGIC + 8 * f, v);
}

static uint64_t record_hash(const uint8_t *r)
{
	return dcp_hash64(r, MAGIC + 8 * RECORD);
}

static int hash_content(int fd, uint64_t size, uint64_t *out)
{
	dcp_auto_free char *block = malloc(BLOCK);
	struct dcp_source src;
	uint64_t hash = 0;
	int rc = block ? dcp_source_fd(fd, &src) : -ENOMEM;

	for (uint64_t off = 0; rc == 0 && off < size; off += BLOCK) {
		size_t n = (size_t)DCP_MIN((uint64_t)BLOCK, size - off);

		rc = dcp_source_read(&src, off, block, n);
		if (rc == 0)
			hash = dcp_hash64_more(hash, block, n);
	}
	*out = hash;
	return rc;
}

/* Note the time, by the clock of the file system, at which decoding into the new file @fd begins. 0
 * or a negative errno. */
static int dcp_unpack_begin(int fd, int64_t *began_ns)
{
	struct dcp_file_id id = { 0 };
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	dcp_file_id_from_stat(&st, &id);
	*began_ns = id.mtime_ns;
	return 0;
}

static int write_record(int fd, const uint8_t *r, uint64_t at)
{
	ssize_t did = pwrite(fd, r, DCP_UNPACK_RECORD, (off_t)at);

	if (did < 0)
		return -errno;
	if (did != DCP_UNPACK_RECORD)
		return -ENOSPC;
	return fsync(fd) < 0 ? -errno : 0;
}

int dcp_unpack_seal(int fd, const struct dcp_file_id *source, uint64_t size, int64_t began_ns)
{
	uint8_t r[DCP_UNPACK_RECORD];
	uint64_t content;
	int rc = hash_content(fd, size, &content);

	if (rc < 0)
		return rc;
	memcpy(r, magic, MAGIC);
	put_field(r, SIZE, size);
	put_field(r, SRC_SIZE, source->size);
	put_field(r, SRC_DEV, source->dev);
	put_field(r, SRC_INO, source->ino);
	put_field(r, SRC_MTIME, (uint64_t)source->mtime_ns);
	put_field(r, SRC_CTIME, (uint64_t)source->ctime_ns);
	put_field(r, BEGAN, (uint64_t)began_ns);
	put_field(r, CONTENT, content);
	put_field(r, RECORD, record_hash(r));
	return write_record(fd, r, size);
}

static int read_record(int fd, uint8_t *r, struct dcp_err *err)
{
	struct dcp_source src;
	int rc = dcp_source_fd(fd, &src);

	if (rc == 0 && src.size >= DCP_UNPACK_RECORD)
		rc = dcp_source_read(&src, src.size - DCP_UNPACK_RECORD, r, DCP_UNPACK_RECORD);
	if (rc < 0)
		return dcp_fail(err, rc, "%s", strerror(-rc));
	if (src.size < DCP_UNPACK_RECORD || memcmp(r, magic, MAGIC) != 0 ||
	    get_field(r, RECORD) != record_hash(r) ||
	    get_field(r, SIZE) != src.size - DCP_UNPACK_RECORD)
		return dcp_fail(err, -EBADMSG, "damaged");
	return 0;
}

/*
 * Is @fd the decoded content of @source? 0 and its @size; -ESTALE: it was made from another state
 * of the file, or too soon after a change of the file (not checked if @just_made); -EBADMSG:
 * damaged. @whole: read the content and compare its hash.
 */
static int dcp_unpack_check(int fd, const struct dcp_file_id *source, bool just_made,
			    bool whole, uint64_t *size, struct dcp_err *err)
{
	uint8_t r[DCP_UNPACK_RECORD];
	uint64_t content;
	int rc = read_record(fd, r, err);

	if (rc < 0)
		return rc;
	if (get_field(r, SRC_SIZE) != source->size || get_field(r, SRC_DEV) != source->dev ||
	    get_field(r, SRC_INO) != source->ino ||
	    get_field(r, SRC_MTIME) != (uint64_t)source->mtime_ns ||
	    get_field(r, SRC_CTIME) != (uint64_t)source->ctime_ns)
		return dcp_fail(err, -ESTALE, "made from another file");
	if (!just_made && dcp_file_id_racy(source, (int64_t)get_field(r, BEGAN)))
		return dcp_fail(err, -ESTALE, "its file changed just before it was decoded");
	rc = whole ? hash_content(fd, get_field(r, SIZE), &content) : 0;
	if (rc < 0)
		return dcp_fail(err, rc, "%s", strerror(-rc));
	if (whole && content != get_field(r, CONTENT))
		return dcp_fail(err, -EBADMSG, "damaged");
	*size = get_field(r, SIZE);
	return 0;
}

enum {
	NAME_HEAD = 100,
	/* wait for a process that decodes the same file; if it dies, the wait ends */
	WAIT_MS = 3600 * 1000,
};

/* Report progress for files from this size on. */
#define LONG_WAIT (64ull << 20)

/* A compressed file whose content this version has or is about to obtain. */
struct held {
	struct held *next;
	struct dcp_file_id source; /* without a name */
	/* one thread is obtaining the content: fd and size belong to it */
	bool busy;
	bool known; /* the content was obtained; if fd is -1, it is in the cache */
	bool memory;
	/* descriptor of a memory file; until the version is settled, also of a file in the cache */
	int fd;
	uint64_t size;
};

struct dcp_unpack {
	char *dir; /* directory of decoded files; NULL: decode into memory */
	uint64_t most;
	const struct dcp_log *log;
	bool (*stop)(void *ctx);
	void *stop_ctx;
	pthread_mutex_t lock;   /* everything below; not held while anything is decoded */
	pthread_cond_t changed; /* signalled when a file is no longer busy */
	const struct dcp_progress *progress;
	bool settled;
	struct held *held;
	uint64_t memory; /* bytes decoded into memory */
};

/* One file that is being obtained. */
struct job {
	struct dcp_unpack *u;
	const char *name;
	struct dcp_source src;
	struct dcp_file_id id;
	char *path; /* path in the cache; NULL: memory */
	const struct dcp_progress *progress;
	bool settled, known;
	bool memory; /* the content was put into memory */
};

int dcp_unpack_create(const struct dcp_store_opts *opts, struct dcp_unpack **out)
{
	struct dcp_unpack *u = calloc(1, sizeof(*u));

	if (!u)
		return -ENOMEM;
	if (opts->cache_dir && asprintf(&u->dir, "%s/unpacked", opts->cache_dir) < 0) {
		free(u);
		return -ENOMEM;
	}
	u->most = opts->cache_limit ? opts->cache_limit : DCP_UNPACK_CACHE;
	u->log = opts->log;
	u->stop = opts->stop;
	u->stop_ctx = opts->stop_ctx;
	u->progress = opts->progress;
	pthread_mutex_init(&u->lock, NULL);
	pthread_cond_init(&u->changed, NULL);
	*out = u;
	return 0;
}

void dcp_unpack_destroy(struct dcp_unpack *u)
{
	if (!u)
		return;
	while (u->held) {
		struct held *h = u->held;

		u->held = h->next;
		dcp_close_fd(&h->fd);
		free(h);
	}
	pthread_cond_destroy(&u->changed);
	pthread_mutex_destroy(&u->lock);
	free(u->dir);
	free(u);
}

void dcp_unpack_settle(struct dcp_unpack *u)
{
	pthread_mutex_lock(&u->lock);
	u->progress = NULL;
	u->settled = true;
	for (struct held *h = u->held; h; h = h->next)
		if (!h->busy && !h->memory)
			dcp_close_fd(&h->fd);
	pthread_mutex_unlock(&u->lock);
}

/* ---- what is kept ---- */

/* Open a decoded file in the cache, if it can be used. -ENOENT: the cache does not have it. */
static int take_kept(const struct job *j, bool just_made, int *out, uint64_t *size,
		     struct dcp_err *err)
{
	dcp_auto_fd int fd = open(j->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	int rc;

	if (fd < 0)
		return dcp_fail(err, -errno, "%.300s: %s", j->path, strerror(errno));
	if (!dcp_cache_trusts(j->path, fd))
		return dcp_fail(err, -EPERM, "%.300s: belongs to another user", j->path);
	rc = dcp_unpack_check(fd, &j->id, just_made, !j->settled && !just_made, size, err);
	if (rc < 0)
		return dcp_err_where(err, rc, "%.300s", j->path);
	dcp_cache_use(fd);
	*out = dcp_take_fd(&fd);
	return 0;
}

static char *path_of(const struct job *j)
{
	uint64_t id[5] = { j->id.size, j->id.dev, j->id.ino, (uint64_t)j->id.mtime_ns,
			   (uint64_t)j->id.ctime_ns };
	const char *slash = strrchr(j->name, '/');
	char *path, shown[DCP_NAME_MAX + 1];

	dcp_name_from_key(slash ? slash + 1 : j->name, false, shown);
	if (!j->u->dir || asprintf(&path, "%s/%.*s-%016llx.bin", j->u->dir, NAME_HEAD, shown,
				   (unsigned long long)dcp_hash64(id, sizeof(id))) < 0)
		return NULL;
	return path;
}

/* ---- decoding ---- */

static void emit_progress(void *ctx, uint64_t taken)
{
	const struct job *j = ctx;
	const struct dcp_progress *p = j->progress;

	char what[NAME_MAX + 20];

	snprintf(what, sizeof(what), "decompressing %s", j->name);
	if (p)
		(p->bytes ? p->bytes : p->report)(p->ctx, taken, j->src.size, what);
}

static uint64_t limit_of(const struct job *j)
{
	uint64_t limit;

	if (dcp_ckd_mul(&limit, j->src.size, DCP_UNPACK_RATIO) ||
	    dcp_ckd_add(&limit, limit, DCP_UNPACK_SLACK))
		limit = DCP_UNPACK_MOST;
	return DCP_MIN(limit, DCP_UNPACK_MOST);
}

static int decode_into(struct job *j, int fd, uint64_t limit, uint64_t *size,
		       struct dcp_err *err)
{
	struct dcp_inflate_watch watch = { emit_progress, j };
	enum dcp_codec codec;
	int rc = dcp_inflate_codec(&j->src, &codec);

	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "%.300s cannot be read", j->name);
	if (codec == DCP_CODEC_NONE)
		return dcp_fail_at(err, -EBADMSG, 0,
				   "%.300s: not compressed in a way known here", j->name);
	rc = dcp_inflate_fd(&j->src, codec, fd, limit, &watch, size, err);
	return rc < 0 ? dcp_err_where(err, rc, "%.300s", j->name) : 0;
}

static void announce_job(const struct job *j, const char *where)
{
	dcp_log(j->u->log, j->src.size >= LONG_WAIT ? DCP_LOG_WARN : DCP_LOG_INFO,
		"%s: decompressing %llu MB, once, into %s", j->name,
		(unsigned long long)(j->src.size / 1000000), where);
}

static uint64_t memory_left(struct dcp_unpack *u)
{
	uint64_t left;

	pthread_mutex_lock(&u->lock);
	left = DCP_UNPACK_MEMORY - u->memory;
	pthread_mutex_unlock(&u->lock);
	return left;
}

/* Reserve memory. False: other threads used it up meanwhile. */
static bool take_memory(struct dcp_unpack *u, uint64_t bytes)
{
	bool fits;

	pthread_mutex_lock(&u->lock);
	fits = bytes <= DCP_UNPACK_MEMORY - u->memory;
	u->memory += fits ? bytes : 0;
	pthread_mutex_unlock(&u->lock);
	return fits;
}

/* Decode into a memory file, if there is no cache or it cannot take the content. */
static int decode_to_memory(struct job *j, int *out, uint64_t *size, struct dcp_err *err)
{
	uint64_t limit = DCP_MIN(limit_of(j), memory_left(j->u));
	dcp_auto_fd int fd = memfd_create("dcpfs-unpacked", MFD_CLOEXEC);
	int rc;

	if (fd < 0)
		return dcp_fail(err, -errno, "memfd_create: %s", strerror(errno));
	announce_job(j, "memory");
	rc = decode_into(j, fd, limit, size, err);
	if (rc == 0 && !take_memory(j->u, *size))
		rc = -E2BIG;
	if (rc == -E2BIG && limit < limit_of(j))
		return dcp_fail(
			err, rc,
			"%.300s decodes to more than the %llu bytes of memory there are "
			"for it: give it a cache directory with room",
			j->name, (unsigned long long)limit);
	if (rc < 0)
		return rc;
	j->memory = true;
	*out = dcp_take_fd(&fd);
	return 0;
}

/* Open a file without a name, so that nothing is left if this process dies; not every file system
 * supports that. */
static int open_nameless(const struct job *j)
{
	int fd = open(j->u->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fd >= 0 && access(path, F_OK) < 0)
		dcp_close_fd(&fd);
	return fd;
}

/* Give the file its name. If two processes made it without locks, the first process names its file;
 * each uses its own. */
static int name_it(int fd, const char *path)
{
	char handle[32];

	snprintf(handle, sizeof(handle), "/proc/self/fd/%d", fd);
	unlink(path);
	return linkat(AT_FDCWD, handle, AT_FDCWD, path, AT_SYMLINK_FOLLOW) < 0 &&
			       errno != EEXIST
		       ? -errno
		       : 0;
}

/* Decode into a file of the cache, which gets its name when it is complete. */
static int decode_to_cache(struct job *j, int *out, uint64_t *size, struct dcp_err *err)
{
	dcp_auto_free char *temp = NULL;
	dcp_auto_fd int fd = open_nameless(j);
	bool nameless = fd >= 0;
	int64_t began = 0;
	int rc;

	if (asprintf(&temp, "%s.tmp-XXXXXX", j->path) < 0) {
		temp = NULL;
		return dcp_fail(err, -ENOMEM, "out of memory");
	}
	if (!nameless)
		fd = mkostemp(temp, O_CLOEXEC);
	if (fd < 0)
		return dcp_fail(err, -errno, "%.300s: %s", j->path, strerror(errno));
	announce_job(j, j->u->dir);
	rc = dcp_unpack_begin(fd, &began);
	if (rc == 0)
		rc = decode_into(j, fd, limit_of(j), size, err);
	if (rc == 0)
		rc = dcp_unpack_seal(fd, &j->id, *size, began);
	if (rc == 0 && nameless)
		rc = name_it(fd, j->path);
	else if (rc == 0 && rename(temp, j->path) < 0)
		rc = -errno;
	if (rc < 0) {
		if (!nameless)
			unlink(temp);
		return err && err->code
			       ? rc
			       : dcp_fail(err, rc, "%.300s: %s", j->path, strerror(-rc));
	}
	*out = dcp_take_fd(&fd);
	return 0;
}

/* Does the error come from the cache, not from the compressed file? */
static bool cache_failed(int rc)
{
	return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG || rc == -EROFS ||
	       rc == -EACCES || rc == -EPERM;
}

/* Make the decoded file. The caller holds the lock of its path, or knows that locks do not work
 * there. */
static int make_kept(struct job *j, bool waited, int *out, uint64_t *size, struct dcp_err *err)
{
	const struct dcp_trim room = { .ext = DCP_CACHE_UNPACKED_EXT,
				       .keep = j->path,
				       .most = j->u->most,
				       .days = DCP_CACHE_DAYS };
	struct dcp_trimmed trimmed;
	struct dcp_err why = { 0 };
	int rc = take_kept(j, waited, out, size, &why);

	if (rc == 0)
		return 0;
	if (rc != -ENOENT)
		dcp_log(j->u->log, rc == -ESTALE ? DCP_LOG_INFO : DCP_LOG_WARN,
			"%s: decompressing again", why.msg);
	rc = decode_to_cache(j, out, size, err);
	if (rc == 0)
		dcp_cache_trim(j->u->dir, &room, &trimmed);
	return rc;
}

static int decode_once(struct job *j, int *out, uint64_t *size, struct dcp_err *err)
{
	const struct dcp_store_opts wait = { .lock_wait_ms = WAIT_MS,
					     .stop = j->u->stop,
					     .stop_ctx = j->u->stop_ctx };
	bool waited = false;
	int lock, rc = dcp_cache_mkdirs(j->path);

	lock = rc < 0 ? rc : dcp_cache_lock(&wait, j->path, &waited);
	if (lock == -ECANCELED)
		return dcp_fail(err, lock, "%.300s: called off", j->path);
	if (lock < 0 && lock != -ENOLCK && lock != -ENOTSUP && lock != -ENOSYS)
		return dcp_fail(err, lock == -EBUSY ? -EBUSY : -EACCES, "%.300s: %s", j->path,
				strerror(-lock));
	rc = make_kept(j, waited, out, size, err);
	dcp_cache_unlock(j->path, lock);
	return rc;
}

static int obtain_file(struct job *j, int *out, uint64_t *size, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	int rc;

	if (!j->path)
		return decode_to_memory(j, out, size, err);
	if (take_kept(j, j->known, out, size, &why) == 0)
		return 0;
	why = (struct dcp_err){ 0 };
	rc = decode_once(j, out, size, &why);
	if (rc < 0 && cache_failed(rc)) {
		dcp_log(j->u->log, DCP_LOG_WARN, "%s: %s; decoded in memory", j->name, why.msg);
		return decode_to_memory(j, out, size, err);
	}
	if (rc < 0 && err)
		*err = why;
	return rc;
}

/* ---- files that this version has seen ---- */

/* Call this and the next four functions with the lock held. */
static struct held *find_held(const struct dcp_unpack *u, const struct dcp_file_id *id)
{
	struct held *h = u->held;

	while (h && !dcp_file_id_same(&h->source, id))
		h = h->next;
	return h;
}

static struct held *add_held(struct dcp_unpack *u, const struct dcp_file_id *id)
{
	struct held *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->source = *id;
	h->source.name = NULL;
	h->fd = -1;
	h->next = u->held;
	u->held = h;
	return h;
}

/* Begin to obtain a file for the caller alone: no other thread obtains it meanwhile. NULL: out of
 * memory. */
static struct held *begin_job(struct dcp_unpack *u, const struct dcp_file_id *id)
{
	struct held *h;

	while ((h = find_held(u, id)) && h->busy)
		pthread_cond_wait(&u->changed, &u->lock);
	if (!h)
		h = add_held(u, id);
	if (h)
		h->busy = true;
	return h;
}

static void end_job(struct dcp_unpack *u, struct held *h)
{
	h->busy = false;
	pthread_cond_broadcast(&u->changed);
}

/* Note that @h was obtained. If its descriptor must be kept, @h takes *fd, and the caller gets a
 * second descriptor in *fd. */
static int keep_held(const struct job *j, struct held *h, int *fd)
{
	int rc = 0;

	h->known = true;
	h->memory = j->memory;
	if (h->memory || !j->u->settled) {
		h->fd = *fd;
		*fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 3);
		rc = *fd < 0 ? -errno : 0;
	}
	return rc;
}

static int obtain_from(struct job *j, const struct dcp_blob *from, int *out, uint64_t *size,
		       struct dcp_err *err)
{
	int rc;

	j->src = dcp_source_blob(from);
	j->path = path_of(j);
	rc = obtain_file(j, out, size, err);
	free(j->path);
	if (rc < 0)
		return rc;
	if (dcp_blob_check(from, &j->id, false) == 0)
		return 0;
	dcp_close_fd(out);
	return dcp_fail(err, -ESTALE, "%.300s changed while it was decoded", j->name);
}

static int open_held(struct job *j, struct held *h, const struct dcp_blob *from, int *fd,
		     uint64_t *size, struct dcp_err *err)
{
	int rc;

	if (h->fd >= 0) {
		*size = h->size;
		*fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 3);
		rc = *fd < 0 ? -errno : 0;
	} else {
		rc = obtain_from(j, from, fd, &h->size, err);
		if (rc < 0)
			return rc;
		*size = h->size;
		pthread_mutex_lock(&j->u->lock);
		rc = keep_held(j, h, fd);
		pthread_mutex_unlock(&j->u->lock);
	}
	return rc < 0 ? dcp_fail(err, rc, "%.300s: %s", j->name, strerror(-rc)) : 0;
}

int dcp_unpack_open(struct dcp_unpack *u, const struct dcp_site *at, const char *name,
		    struct dcp_blob *out, uint64_t *size, struct dcp_file_id *source,
		    struct dcp_err *err)
{
	struct job j = { .u = u, .name = name };
	dcp_auto_blob struct dcp_blob from = { 0 };
	dcp_auto_fd int fd = -1;
	struct held *h;
	int rc = dcp_site_open(at, name, &from, &j.id, err);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&u->lock);
	h = begin_job(u, &j.id);
	j.progress = u->progress;
	j.settled = u->settled;
	j.known = h && h->known;
	pthread_mutex_unlock(&u->lock);
	if (!h)
		return dcp_fail(err, -ENOMEM, "out of memory");
	rc = open_held(&j, h, &from, &fd, size, err);
	pthread_mutex_lock(&u->lock);
	end_job(u, h);
	pthread_mutex_unlock(&u->lock);
	if (rc == 0)
		rc = dcp_blob_of_fd(fd, out);
	if (rc < 0)
		return rc;
	dcp_take_fd(&fd);
	out->size = *size;
	if (source) {
		j.id.name = source->name;
		j.id.unpacked = *size;
		*source = j.id;
	}
	return 0;
}
