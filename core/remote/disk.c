/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/base/trim.h"

enum {
	BLOCK = DCP_DISK_BLOCK,
	PAGE = 4096,
	HEAD = 64,
	PARTS = 4, /* of a block, which do not touch each other */
	PART = 16,
	RECORD = PARTS * PART,
	STEP_MAX = 64 << 20, /* bytes written between two checks of the limits */
	STEPS = 16,          /* minimum number of checks until the limit is reached */
	FULL_MS = 2000,      /* between two checks when there was no room */
	LEFT_FREE = 20,      /* this fraction of the file system stays free */
};

static const char magic[16] = "dcpfs blocks 2\n";

static struct {
	pthread_mutex_t lock;
	char *dir;
	uint64_t most;
	bool never;
	/* @known: all.used was counted, but no limit was computed */
	bool looked, known;
	uint64_t used, since, limit; /* bytes at the last check; written since then; limit */
	int64_t full_ms;             /* no check before this time */
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

void dcp_disk_use(const char *cache, uint64_t most)
{
	pthread_mutex_lock(&all.lock);
	free(all.dir);
	if (!cache || all.never || asprintf(&all.dir, "%s/remote/", cache) < 0)
		all.dir = NULL;
	all.most = most ? most : DCP_DISK_MOST;
	all.looked = all.known = false;
	all.used = all.since = 0;
	all.full_ms = 0;
	pthread_mutex_unlock(&all.lock);
}

static _Atomic uint64_t written, refused, hit;

struct dcp_disk_counts dcp_disk_counted(void)
{
	static const struct dcp_trim how = {
		.ext = DCP_CACHE_BLOCKS_EXT, .most = UINT64_MAX, .counts = true, .sparse = true
	};
	struct dcp_disk_counts n = { written, refused, hit, 0, 0 };
	struct dcp_trimmed is = { 0 };

	pthread_mutex_lock(&all.lock);
	if (all.dir && !all.looked && !all.known && dcp_cache_trim(all.dir, &how, &is) == 0) {
		all.used = is.bytes;
		all.known = true;
	}
	n.used = all.dir ? all.used + all.since : 0;
	n.most = all.dir ? all.most : 0;
	pthread_mutex_unlock(&all.lock);
	return n;
}

void dcp_disk_refuse(uint64_t n)
{
	refused += n;
}

void dcp_disk_never(void)
{
	pthread_mutex_lock(&all.lock);
	all.never = true;
	pthread_mutex_unlock(&all.lock);
	dcp_disk_use(NULL, 0);
}

/* ---- room; the lock is held ---- */

static uint64_t get_step(void)
{
	return DCP_MAX(DCP_MIN(all.most / STEPS, (uint64_t)STEP_MAX), (uint64_t)BLOCK);
}

/* Bytes that may be written before too little of the file system is free. */
static uint64_t count_spare(void)
{
	struct statvfs fs;
	uint64_t keep;

	if (statvfs(all.dir, &fs) < 0)
		return 0;
	keep = fs.f_blocks / LEFT_FREE;
	return fs.f_bavail > keep ? (fs.f_bavail - keep) * fs.f_frsize : 0;
}

static void survey_cache(void)
{
	struct dcp_trim how = { .ext = DCP_CACHE_BLOCKS_EXT,
				.most = all.most - DCP_MIN(all.most, get_step()),
				.days = DCP_CACHE_DAYS,
				.sparse = true };
	struct dcp_trimmed out = { 0 };
	uint64_t left;

	dcp_cache_mkdirs(all.dir);
	dcp_cache_trim(all.dir, &how, &out);
	left = count_spare();
	if (left < get_step()) {
		how.most = out.bytes - DCP_MIN(out.bytes, get_step() - left);
		dcp_cache_trim(all.dir, &how, &out);
		left = count_spare();
	}
	all.used = out.bytes;
	all.since = 0;
	all.limit = DCP_MIN(all.most, out.bytes + left);
	all.looked = true;
}

static bool has_room(size_t n)
{
	return all.looked && all.used + all.since + n <= all.limit;
}

/* Is there room for @n more bytes? */
static bool take_room(size_t n)
{
	int64_t now = dcp_now_ms();
	bool ok = false;

	pthread_mutex_lock(&all.lock);
	if (all.dir && now >= all.full_ms) {
		if (!has_room(n) || all.since + n > get_step())
			survey_cache();
		ok = has_room(n);
		if (ok)
			all.since += n;
		else
			all.full_ms = now + FULL_MS;
	}
	pthread_mutex_unlock(&all.lock);
	return ok;
}

/* Return room for bytes that were not kept. */
static void give_room(size_t n)
{
	pthread_mutex_lock(&all.lock);
	all.since -= DCP_MIN(all.since, (uint64_t)n);
	pthread_mutex_unlock(&all.lock);
}

/* ---- the file ---- */

static char *path_of(const struct dcp_disk *d)
{
	char *path = NULL;

	pthread_mutex_lock(&all.lock);
	if (all.dir &&
	    asprintf(&path, "%s%016llx%016llx%s", all.dir, (unsigned long long)d->id[0],
		     (unsigned long long)d->id[1], DCP_CACHE_BLOCKS_EXT) < 0)
		path = NULL;
	pthread_mutex_unlock(&all.lock);
	return path;
}

static uint64_t head_at(const struct dcp_disk *d)
{
	return (d->size + PAGE - 1) / PAGE * PAGE;
}

static uint64_t record_at(const struct dcp_disk *d, uint64_t number)
{
	return head_at(d) + HEAD + number * RECORD;
}

static uint64_t whole_size(const struct dcp_disk *d)
{
	return record_at(d, (d->size + BLOCK - 1) / BLOCK);
}

static void make_head(const struct dcp_disk *d, uint8_t head[HEAD])
{
	memset(head, 0, HEAD);
	memcpy(head, magic, sizeof(magic));
	dcp_store_le64(head + 16, d->id[0]);
	dcp_store_le64(head + 24, d->id[1]);
	dcp_store_le64(head + 32, d->size);
	dcp_store_le64(head + 40, BLOCK);
	dcp_store_le64(head + 48, dcp_hash64(head, 48));
}

/* Is the file owned by this user, and for exactly this content? */
static bool is_right(const struct dcp_disk *d, int fd)
{
	uint8_t want[HEAD], is[HEAD];
	struct stat st;

	make_head(d, want);
	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	       (uint64_t)st.st_size == whole_size(d) &&
	       pread(fd, is, HEAD, (off_t)head_at(d)) == HEAD && memcmp(is, want, HEAD) == 0;
}

/* A file that is open (locked) is not deleted to make room. Locks may not work on the file system;
 * correctness does not depend on them. */
static int open_kept(const struct dcp_disk *d, const char *path)
{
	dcp_auto_fd int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd >= 0)
		flock(fd, LOCK_SH);
	return fd >= 0 && is_right(d, fd) ? dcp_take_fd(&fd) : -1;
}

/* Create the file; it gets its name when it is complete, unless another process was first. */
static int make_kept(const struct dcp_disk *d, const char *path)
{
	dcp_auto_free char *temp = NULL;
	dcp_auto_fd int fd = -1;
	uint8_t head[HEAD];
	bool ok;

	if (asprintf(&temp, "%s.tmp-XXXXXX", path) < 0) {
		temp = NULL;
		return -1;
	}
	fd = mkostemp(temp, O_CLOEXEC); /* 0600 */
	if (fd < 0)
		return -1;
	flock(fd, LOCK_SH);
	make_head(d, head);
	ok = ftruncate(fd, (off_t)whole_size(d)) == 0 &&
	     pwrite(fd, head, HEAD, (off_t)head_at(d)) == HEAD;
	if (ok && link(temp, path) < 0) {
		ok = errno == EEXIST;
		dcp_close_fd(&fd);
		fd = ok ? open_kept(d, path) : -1;
		if (ok && fd < 0)
			unlink(path); /* damaged: the next writer creates it again */
	}
	unlink(temp);
	return ok ? dcp_take_fd(&fd) : -1;
}

bool dcp_disk_open(struct dcp_disk *d, const uint64_t id[2], uint64_t size)
{
	dcp_auto_free char *path = NULL;

	*d = (struct dcp_disk){ .id = { id[0], id[1] }, .size = size, .fd = -1 };
	if (!size || size > (uint64_t)INT64_MAX / 2)
		return false;
	path = path_of(d);
	if (path)
		d->fd = open_kept(d, path);
	return path;
}

void dcp_disk_close(struct dcp_disk *d)
{
	if (d->fd >= 0 && d->used)
		dcp_cache_use(d->fd);
	dcp_close_fd(&d->fd);
}

/* ---- parts of blocks ---- */

/* A cached part of a block. */
struct part {
	uint32_t lo, hi; /* in the block; 0 0: none */
	uint64_t hash;
};

static uint64_t hash_of(const struct dcp_disk *d, uint64_t number, const struct part *part,
			const char *p)
{
	const uint64_t where[] = { d->id[0], d->id[1], number, part->lo, part->hi };

	return dcp_hash64_more(dcp_hash64(p, part->hi - part->lo), where, sizeof(where));
}

/* Read the parts of a block. False: the block has no record. Invalid parts are dropped. */
static bool read_parts(const struct dcp_disk *d, uint64_t number, struct part out[PARTS])
{
	uint64_t n = DCP_MIN(d->size - number * BLOCK, (uint64_t)BLOCK);
	uint8_t r[RECORD];

	if (pread(d->fd, r, RECORD, (off_t)record_at(d, number)) != RECORD)
		return false;
	for (size_t i = 0; i < PARTS; i++) {
		const uint8_t *p = r + i * PART;

		out[i] = (struct part){ dcp_load_le32(p), dcp_load_le32(p + 4),
					dcp_load_le64(p + 8) };
		if (out[i].lo >= out[i].hi || out[i].hi > n)
			out[i] = (struct part){ 0 };
	}
	return true;
}

/* Read the bytes of a part to their offset in @block. */
static bool read_bytes(const struct dcp_disk *d, uint64_t number, const struct part *part,
		       char *block)
{
	size_t n = part->hi - part->lo;

	return pread(d->fd, block + part->lo, n, (off_t)(number * BLOCK + part->lo)) ==
		       (ssize_t)n &&
	       hash_of(d, number, part, block + part->lo) == part->hash;
}

size_t dcp_disk_read(struct dcp_disk *d, uint64_t off, uint64_t n, char *block, const char **p)
{
	uint64_t number = off / BLOCK;
	uint32_t in = (uint32_t)(off % BLOCK);
	struct part part[PARTS];
	size_t i = 0;

	if (d->fd < 0 || !read_parts(d, number, part))
		return 0;
	while (i < PARTS && (in < part[i].lo || in >= part[i].hi))
		i++;
	if (i == PARTS || !read_bytes(d, number, &part[i], block))
		return 0;
	d->used = true;
	*p = block + in;
	n = DCP_MIN(n, (uint64_t)(part[i].hi - in));
	hit += n;
	return (size_t)n;
}

/*
 * Join @part, whose bytes are in @block, with the parts that it touches: their bytes are read into
 * @block, and the result replaces them. If it touches none and all places are taken, it replaces
 * the shortest part.
 */
static void join_parts(const struct dcp_disk *d, uint64_t number, struct part is[PARTS],
		       struct part *part, char *block)
{
	dcp_auto_free char *old = NULL;
	size_t place = 0;

	for (size_t i = 0; i < PARTS; i++) {
		if (is[i].lo == is[i].hi || is[i].hi < part->lo || is[i].lo > part->hi)
			continue;
		if ((is[i].lo < part->lo || is[i].hi > part->hi) &&
		    (old || (old = malloc(BLOCK))) && read_bytes(d, number, &is[i], old)) {
			if (is[i].lo < part->lo)
				memcpy(block + is[i].lo, old + is[i].lo, part->lo - is[i].lo);
			if (is[i].hi > part->hi)
				memcpy(block + part->hi, old + part->hi, is[i].hi - part->hi);
			part->lo = DCP_MIN(part->lo, is[i].lo);
			part->hi = DCP_MAX(part->hi, is[i].hi);
		}
		is[i] = (struct part){ 0 };
	}
	for (size_t i = 1; i < PARTS; i++)
		if (is[i].hi - is[i].lo < is[place].hi - is[place].lo)
			place = i;
	part->hash = hash_of(d, number, part, block + part->lo);
	is[place] = *part;
}

/* The lock also works between threads, because each opens the file separately. */
static void lock_record(const struct dcp_disk *d, uint64_t number, short type)
{
	struct flock l = { .l_type = type,
			   .l_whence = SEEK_SET,
			   .l_start = (off_t)record_at(d, number),
			   .l_len = RECORD };

	fcntl(d->fd, F_OFD_SETLKW, &l);
}

static bool write_part(const struct dcp_disk *d, uint64_t number, struct part part, char *block)
{
	struct part is[PARTS] = { 0 };
	uint8_t r[RECORD];
	size_t n;
	bool ok;

	lock_record(d, number, F_WRLCK);
	read_parts(d, number, is);
	join_parts(d, number, is, &part, block);
	for (size_t i = 0; i < PARTS; i++) {
		dcp_store_le32(r + i * PART, is[i].lo);
		dcp_store_le32(r + i * PART + 4, is[i].hi);
		dcp_store_le64(r + i * PART + 8, is[i].hash);
	}
	n = part.hi - part.lo;
	ok = pwrite(d->fd, block + part.lo, n, (off_t)(number * BLOCK + part.lo)) ==
		     (ssize_t)n &&
	     pwrite(d->fd, r, RECORD, (off_t)record_at(d, number)) == RECORD;
	lock_record(d, number, F_UNLCK);
	return ok;
}

void dcp_disk_write(struct dcp_disk *d, uint64_t number, uint32_t lo, uint32_t hi, char *block)
{
	bool room = lo < hi && !d->failed && take_room(hi - lo), ok = room;

	if (ok && d->fd < 0) {
		dcp_auto_free char *path = path_of(d);

		d->fd = path ? make_kept(d, path) : -1;
		d->failed = d->fd < 0;
	}
	ok = ok && d->fd >= 0 && write_part(d, number, (struct part){ lo, hi, 0 }, block);
	if (room && !ok)
		give_room(hi - lo);
	d->used |= ok;
	*(ok ? &written : &refused) += hi - lo;
}

void dcp_disk_forget(struct dcp_disk *d, uint64_t off, uint64_t n)
{
	static const uint8_t none[RECORD];

	for (uint64_t i = off / BLOCK; d->fd >= 0 && n && i <= (off + n - 1) / BLOCK; i++) {
		lock_record(d, i, F_WRLCK);
		if (pwrite(d->fd, none, RECORD, (off_t)record_at(d, i)) != RECORD &&
		    ftruncate(d->fd, 0) < 0) /* if it is not complete, it is created again */
			d->failed = true;
		lock_record(d, i, F_UNLCK);
	}
}
