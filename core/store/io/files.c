/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/files.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/origin/archive/archive.h"
#include "core/origin/dir/dir.h"
#include "core/store/cache/cache.h"

static bool enabled;
static __thread sigjmp_buf
	*rescue; /* where this thread continues after a fault; NULL: nowhere */

void dcp_guard_enable(void)
{
	enabled = true;
}

bool dcp_guard_enabled(void)
{
	return enabled;
}

void dcp_guard_fault(void)
{
	sigjmp_buf *to = rescue;

	if (!to)
		return;
	rescue = NULL;
	siglongjmp(*to, 1);
}

int dcp_guard_run(int (*fn)(void *arg), void *arg)
{
	sigjmp_buf here;
	int rc;

	if (sigsetjmp(here, 0))
		return -EIO;
	rescue = &here;
	rc = fn(arg);
	rescue = NULL;
	return rc;
}

enum {
	BESIDE = 2,        /* further descriptors of a version: its directory and its index */
	WAIT_NS = 5000000, /* wait for files in use to be released */
	WAITS = 1000,
	KEPT_GROW = 16,
};

struct dcp_files {
	const struct dcp_site *at;
	const struct dcp_file_id *ids;
	size_t n;
	struct dcp_files_opts opts;
	struct dcp_handles *own; /* NULL: the handles of opts are used */
	uint8_t *avoided;        /* atomic, by file; they lie after the slots */
	struct dcp_handle slots[];
};

int dcp_files_create(const struct dcp_site *at, const struct dcp_file_id *ids, size_t n,
		     const struct dcp_files_opts *opts, struct dcp_files **out)
{
	struct dcp_files *f = calloc(1, sizeof(*f) + n * (sizeof(f->slots[0]) + 1));

	if (!f || (!opts->handles && dcp_handles_create(&f->own) < 0)) {
		free(f);
		return -ENOMEM;
	}
	f->at = at;
	f->ids = ids;
	f->n = n;
	f->avoided = (uint8_t *)&f->slots[n];
	f->opts = *opts;
	f->opts.map &= dcp_guard_enabled();
	if (f->own)
		f->opts.handles = f->own;
	dcp_handles_beside(f->opts.handles, BESIDE);
	*out = f;
	return 0;
}

void dcp_files_destroy(struct dcp_files *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->n; i++)
		dcp_handles_close(f->opts.handles, &f->slots[i], true);
	dcp_handles_beside(f->opts.handles, -BESIDE);
	dcp_handles_destroy(f->own);
	free(f);
}

void dcp_files_drop(struct dcp_files *f)
{
	for (size_t i = 0; i < f->n; i++)
		dcp_handles_close(f->opts.handles, &f->slots[i], false);
}

void dcp_files_avoid(struct dcp_files *f, uint32_t number)
{
	if (number < f->n)
		__atomic_store_n(&f->avoided[number], 1, __ATOMIC_RELAXED);
}

bool dcp_files_avoided(const struct dcp_files *f, uint32_t number)
{
	return number < f->n && __atomic_load_n(&f->avoided[number], __ATOMIC_RELAXED);
}

bool dcp_files_unpacked(const struct dcp_files *f, uint32_t number)
{
	return number < f->n && f->ids[number].unpacked;
}

const char *dcp_files_name(const struct dcp_files *f, uint32_t number)
{
	return number < f->n ? f->ids[number].name : "(no such file)";
}

/* Open the file, and check that it is the recorded one. */
static int open_origin(const struct dcp_files *f, const struct dcp_file_id *id,
		       struct dcp_blob *out, struct dcp_err *err)
{
	struct dcp_file_id now = { 0 };
	int rc = dcp_site_open(f->at, id->name, out, &now, err);

	if (rc < 0)
		return rc;
	rc = dcp_file_id_content(&now, id);
	if (rc == -EIO)
		dcp_fail_at(err, rc, now.size,
			    "%s: it has %llu bytes, and had %llu when it was indexed", id->name,
			    (unsigned long long)now.size, (unsigned long long)id->size);
	else if (rc < 0)
		dcp_fail(err, rc, "%s: it changed since it was indexed", id->name);
	return rc;
}

static int open_decoded(const struct dcp_files *f, const struct dcp_file_id *id,
			struct dcp_blob *out, struct dcp_err *err)
{
	struct dcp_file_id now = { 0 };
	uint64_t size = 0;
	int rc;

	if (!f->opts.unpack)
		return dcp_fail(err, -ENOTSUP, "%s: compressed, and dcpfs cannot decode it",
				id->name);
	rc = dcp_unpack_open(f->opts.unpack, f->at, id->name, out, &size, &now, err);
	if (rc < 0)
		return rc;
	if (size != id->unpacked || dcp_file_id_content(&now, id) < 0)
		return dcp_fail(err, -ESTALE, "%s: it changed since it was indexed", id->name);
	return 0;
}

int dcp_files_packed(const struct dcp_files *f, uint32_t number, uint64_t *n,
		     const char **codec, struct dcp_err *err)
{
	const struct dcp_file_id *id = &f->ids[number];
	enum dcp_codec how = DCP_CODEC_NONE;
	dcp_auto_blob struct dcp_blob blob = { 0 };
	struct dcp_source src;
	int rc = open_origin(f, id, &blob, err);

	src = dcp_source_blob(&blob);
	if (rc == 0)
		rc = dcp_inflate_codec(&src, &how);
	*n = id->size;
	*codec = dcp_codec_name(how);
	return rc;
}

/* Map the file; if there is no room, unused mappings are closed first. NULL: the file is not mapped
 * but read. */
static const uint8_t *map_whole(const struct dcp_files *f, struct dcp_blob *blob)
{
	const uint8_t *p;

	if (!f->opts.map || blob->size == 0 || !blob->ops->map ||
	    !dcp_handles_room(f->opts.handles, 0, blob->size))
		return NULL;
	do
		errno = 0;
	while (!(p = blob->ops->map(blob)) && errno == ENOMEM &&
	       dcp_handles_close_one(f->opts.handles, true));
	return p;
}

static int open_both(struct dcp_files *f, uint32_t number, struct dcp_err *err)
{
	const struct dcp_file_id *id = &f->ids[number];
	dcp_auto_blob struct dcp_blob origin = { 0 }, decoded = { 0 };
	struct dcp_file file;
	int rc = open_origin(f, id, &origin, err);

	if (rc == 0 && id->unpacked)
		rc = open_decoded(f, id, &decoded, err);
	if (rc < 0)
		return rc;
	file.size = id->unpacked ? id->unpacked : id->size;
	file.blob = id->unpacked ? decoded : origin;
	file.blob.size = file.size; /* the file may have become longer */
	file.fd = file.blob.fd;
	file.map = map_whole(f, &file.blob);
	dcp_handles_end(f->opts.handles, &f->slots[number], &file,
			id->unpacked ? &origin : NULL);
	origin = decoded = (struct dcp_blob){ 0 };
	return 0;
}

/* Open the file, and close others while there are too many open files. */
static int open_slot(struct dcp_files *f, uint32_t number, bool wait, struct dcp_err *err)
{
	struct dcp_handles *t = f->opts.handles;
	struct dcp_err why;
	int rc, waits = wait ? WAITS : 0;

	dcp_handles_room(t, f->ids[number].unpacked ? 2 : 1, 0);
	for (;;) {
		why = (struct dcp_err){ 0 };
		rc = open_both(f, number, &why);
		if (rc != -EMFILE && rc != -ENFILE)
			break;
		if (dcp_handles_close_one(t, false))
			continue;
		if (waits-- <= 0)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = WAIT_NS }, NULL);
	}
	if (rc < 0) {
		dcp_handles_end(t, &f->slots[number], NULL, NULL);
		if (err)
			*err = why;
	}
	return rc;
}

int dcp_files_hold(struct dcp_files *f, uint32_t number, bool wait, const struct dcp_file **out,
		   struct dcp_err *err)
{
	struct dcp_handle *h;
	int rc = 0;

	if (number >= f->n)
		return dcp_fail(err, -EBADMSG, "index row: file %u of %zu", number, f->n);
	h = &f->slots[number];
	if (!dcp_handle_take(h))
		rc = dcp_handles_begin(f->opts.handles, h, wait);
	if (rc > 0)
		rc = open_slot(f, number, wait, err);
	if (rc == 0)
		*out = &h->file;
	return rc;
}

void dcp_files_release(struct dcp_files *f, uint32_t number)
{
	dcp_handle_give(&f->slots[number]);
}

/* Open the file a second time, because read-ahead is switched off for each open file separately. */
static int open_exact(const struct dcp_files *f, uint32_t number)
{
	dcp_auto_blob struct dcp_blob blob = { 0 };

	if (open_origin(f, &f->ids[number], &blob, NULL) < 0 || blob.fd < 0)
		return -1;
	dcp_stop_ahead(blob.fd);
	return dcp_take_fd(&blob.fd);
}

int dcp_files_exact_fd(struct dcp_files *f, uint32_t number)
{
	struct dcp_handle *h = &f->slots[number];
	int fd = __atomic_load_n(&h->exact, __ATOMIC_ACQUIRE) - 1;

	if (fd >= 0)
		return fd;
	if (f->ids[number].unpacked || h->file.fd < 0) /* a nameless copy made by dcpfs */
		return h->file.fd;
	dcp_handles_room(f->opts.handles, 1, 0);
	fd = open_exact(f, number);
	if (fd < 0)
		return h->file.fd; /* no room, or the file changed: reading will report it */
	if (dcp_handles_add_exact(f->opts.handles, h, fd))
		return fd;
	close(fd);
	return __atomic_load_n(&h->exact, __ATOMIC_ACQUIRE) - 1;
}

int dcp_files_check(struct dcp_files *f, uint32_t number, bool named)
{
	const struct dcp_handle *h = &f->slots[number];

	return dcp_blob_check(h->origin.ops ? &h->origin : &h->file.blob, &f->ids[number],
			      named);
}

static bool is_rewritten(struct dcp_files *f, uint32_t number)
{
	const struct dcp_file_id *id = &f->ids[number];
	struct dcp_file_id now = { 0 };

	if (!id->ino)
		return false;
	if (dcp_handle_take(&f->slots[number])) {
		int rc = dcp_files_check(f, number, false);

		dcp_files_release(f, number);
		return rc < 0;
	}
	return dcp_site_id(f->at, id->name, &now) == 0 && now.ino == id->ino &&
	       now.dev == id->dev && dcp_file_id_content(&now, id) < 0;
}

bool dcp_files_rewritten(struct dcp_files *f)
{
	for (uint32_t i = 0; i < f->n; i++)
		if (is_rewritten(f, i))
			return true;
	return false;
}

/* ---- keeping ---- */

static bool add_kept(struct dcp_kept *kept, uint32_t number)
{
	uint32_t *more = kept->number;

	if (kept->n % KEPT_GROW == 0)
		more = realloc(kept->number, (kept->n + KEPT_GROW) * sizeof(*more));
	if (!more)
		return false;
	kept->number = more;
	kept->number[kept->n++] = number;
	return true;
}

void dcp_files_keep(struct dcp_files *f, uint32_t number, struct dcp_kept *kept)
{
	const struct dcp_file *file;

	if (!dcp_handles_can_keep(f->opts.handles, &f->slots[number]) ||
	    dcp_files_hold(f, number, true, &file, NULL) < 0)
		return;
	if (!add_kept(kept, number))
		dcp_files_release(f, number);
	else if (!dcp_handles_keep(f->opts.handles, &f->slots[number])) {
		kept->n--;
		dcp_files_release(f, number);
	}
}

void dcp_files_keep_all(struct dcp_files *f, struct dcp_kept *kept)
{
	for (uint32_t i = 0; i < f->n; i++)
		if (f->ids[i].ino)
			dcp_files_keep(f, i, kept);
}

void dcp_files_unkeep(struct dcp_files *f, struct dcp_kept *kept)
{
	for (size_t i = 0; i < kept->n; i++)
		dcp_handles_unkeep(f->opts.handles, &f->slots[kept->number[i]]);
	free(kept->number);
	*kept = (struct dcp_kept){ 0 };
}

const struct dcp_files_opts *dcp_files_opts(const struct dcp_files *f)
{
	return &f->opts;
}

/* ---- handles ---- */

struct dcp_handles {
	pthread_mutex_t
		lock; /* everything below; not held while anything is opened or closed */
	pthread_cond_t changed; /* signalled when a handle is no longer being opened */
	struct dcp_lru open;    /* handles that may be closed */
	size_t nopen;           /* length of the list */
	/* open descriptors; those that are kept open; mappings, and their bytes */
	uint64_t fds, kept, maps, mapped;
	uint64_t beside;
};

/* Resources taken from a handle, to be closed after the lock is released. */
struct closing {
	struct dcp_file file;
	struct dcp_blob origin;
	int exact;
};

int dcp_handles_create(struct dcp_handles **out)
{
	struct dcp_handles *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->changed, NULL);
	*out = t;
	return 0;
}

void dcp_handles_destroy(struct dcp_handles *t)
{
	if (!t)
		return;
	pthread_cond_destroy(&t->changed);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/* ---- limits; the lock is held ---- */

static uint64_t fd_limit(const struct dcp_handles *t)
{
	uint64_t others = t->beside + DCP_HANDLES_OTHERS;
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur <= others)
		return DCP_HANDLES_LEAST;
	return DCP_MAX((r.rlim_cur - others) / 4 * 3, (rlim_t)DCP_HANDLES_LEAST);
}

static uint64_t map_limit(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_AS, &r) < 0 || r.rlim_cur == RLIM_INFINITY)
		return DCP_HANDLES_MAPPED;
	return DCP_MIN(r.rlim_cur / 2, (rlim_t)DCP_HANDLES_MAPPED);
}

static unsigned count_descriptors(const struct dcp_handle *h)
{
	return 1 + (h->origin.ops != NULL) +
	       (__atomic_load_n(&h->exact, __ATOMIC_RELAXED) != 0);
}

static void list_handle(struct dcp_handles *t, struct dcp_handle *h)
{
	dcp_lru_add(&t->open, &h->link);
	t->nopen++;
}

static void unlist_handle(struct dcp_handles *t, struct dcp_handle *h)
{
	dcp_lru_remove(&t->open, &h->link);
	t->nopen--;
}

/* ---- closing ---- */

/* The lock is held; no other thread can take @h any more. */
static void take_out(struct dcp_handles *t, struct dcp_handle *h, struct closing *out)
{
	t->fds -= count_descriptors(h);
	if (h->file.map) {
		t->maps--;
		t->mapped -= h->file.size;
	}
	if (h->keeps)
		t->kept -= count_descriptors(h);
	else
		unlist_handle(t, h);
	h->keeps = 0;
	*out = (struct closing){ h->file, h->origin,
				 __atomic_exchange_n(&h->exact, 0, __ATOMIC_RELAXED) - 1 };
}

static bool close_unused(struct dcp_handles *t, struct dcp_handle *h, struct closing *out)
{
	uint32_t unused = 1;

	if (!__atomic_compare_exchange_n(&h->users, &unused, 0, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return false;
	take_out(t, h, out);
	return true;
}

static void finish_closing(const struct closing *c)
{
	struct dcp_blob file = c->file.blob, origin = c->origin;

	if (c->exact >= 0)
		close(c->exact);
	dcp_blob_close(&origin);
	dcp_blob_close(&file);
}

/* Close the least recently used handle; the lock is held. In the second pass no flag is set any
 * more. */
static bool close_oldest(struct dcp_handles *t, bool mapped, struct closing *out)
{
	for (int look = 0; look < 2; look++) {
		struct dcp_lru_link *l = t->open.oldest, *newer;

		for (size_t left = t->nopen; left; left--, l = newer) {
			struct dcp_handle *h = (struct dcp_handle *)l;

			newer = l->newer;
			if (mapped && !h->file.map)
				continue;
			if (__atomic_exchange_n(&h->used, false, __ATOMIC_RELAXED))
				dcp_lru_use(&t->open, l);
			else if (close_unused(t, h, out))
				return true;
		}
	}
	return false;
}

bool dcp_handles_close_one(struct dcp_handles *t, bool mapped)
{
	struct closing c;
	bool any;

	pthread_mutex_lock(&t->lock);
	any = close_oldest(t, mapped, &c);
	pthread_mutex_unlock(&t->lock);
	if (any)
		finish_closing(&c);
	return any;
}

void dcp_handles_close(struct dcp_handles *t, struct dcp_handle *h, bool all)
{
	struct closing c;
	bool any;

	pthread_mutex_lock(&t->lock);
	any = close_unused(t, h, &c);
	if (!any && all && __atomic_exchange_n(&h->users, 0, __ATOMIC_ACQ_REL)) {
		take_out(t, h, &c);
		any = true;
	}
	pthread_mutex_unlock(&t->lock);
	if (any)
		finish_closing(&c);
}

bool dcp_handles_room(struct dcp_handles *t, unsigned fds, uint64_t map)
{
	uint64_t most = map_limit();
	bool short_of_fds, short_of_maps;

	do {
		pthread_mutex_lock(&t->lock);
		short_of_fds = t->fds + fds > fd_limit(t);
		short_of_maps = map && (t->maps >= DCP_HANDLES_MAPS || map > most ||
					t->mapped > most - map);
		pthread_mutex_unlock(&t->lock);
	} while ((short_of_fds && dcp_handles_close_one(t, false)) ||
		 (short_of_maps && map <= most && dcp_handles_close_one(t, true)));
	return !short_of_maps;
}

/* ---- opening ---- */

int dcp_handles_begin(struct dcp_handles *t, struct dcp_handle *h, bool wait)
{
	int rc = -EMFILE;

	pthread_mutex_lock(&t->lock);
	while (h->opening && wait)
		pthread_cond_wait(&t->changed, &t->lock);
	if (!h->opening) {
		rc = !dcp_handle_take(h);
		h->opening = rc;
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

void dcp_handles_end(struct dcp_handles *t, struct dcp_handle *h, const struct dcp_file *file,
		     const struct dcp_blob *origin)
{
	pthread_mutex_lock(&t->lock);
	h->opening = false;
	if (file) {
		h->file = *file;
		h->origin = origin ? *origin : (struct dcp_blob){ .fd = -1 };
		t->fds += count_descriptors(h);
		t->maps += file->map != NULL;
		t->mapped += file->map ? file->size : 0;
		list_handle(t, h);
		__atomic_store_n(&h->users, 2, __ATOMIC_RELEASE);
	}
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

bool dcp_handles_add_exact(struct dcp_handles *t, struct dcp_handle *h, int fd)
{
	int none = 0;
	bool first;

	pthread_mutex_lock(&t->lock);
	first = __atomic_compare_exchange_n(&h->exact, &none, fd + 1, false, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED);
	t->fds += first;
	t->kept += first && h->keeps;
	pthread_mutex_unlock(&t->lock);
	return first;
}

/* ---- longer ---- */

static bool may_keep(const struct dcp_handles *t, const struct dcp_handle *h, unsigned fds)
{
	return h->keeps || t->kept + fds + DCP_HANDLES_LEAST <= fd_limit(t);
}

bool dcp_handles_can_keep(struct dcp_handles *t, const struct dcp_handle *h)
{
	bool fits;

	pthread_mutex_lock(&t->lock);
	fits = may_keep(t, h, 1);
	pthread_mutex_unlock(&t->lock);
	return fits;
}

bool dcp_handles_keep(struct dcp_handles *t, struct dcp_handle *h)
{
	bool fits;

	pthread_mutex_lock(&t->lock);
	fits = may_keep(t, h, count_descriptors(h));
	if (fits && h->keeps++ == 0) {
		t->kept += count_descriptors(h);
		unlist_handle(t, h);
	}
	pthread_mutex_unlock(&t->lock);
	return fits;
}

void dcp_handles_unkeep(struct dcp_handles *t, struct dcp_handle *h)
{
	pthread_mutex_lock(&t->lock);
	if (--h->keeps == 0) {
		t->kept -= count_descriptors(h);
		list_handle(t, h);
	}
	pthread_mutex_unlock(&t->lock);
	dcp_handle_give(h);
	dcp_handles_room(t, 0, 0);
}

void dcp_handles_beside(struct dcp_handles *t, int more)
{
	pthread_mutex_lock(&t->lock);
	t->beside += (uint64_t)(int64_t)more;
	pthread_mutex_unlock(&t->lock);
}
