/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/files.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/base.h"

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
