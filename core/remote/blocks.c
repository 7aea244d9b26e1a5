/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata is read in small pieces, and a program that reads a mounted file sequentially makes
 * small requests. Both read through blocks, which stay in memory for a while. For sequential
 * readers the following blocks are also read ahead, more each time.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/cache.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/remote/remote.h"

enum {
	BLOCK = 16 << 10,
	AROUND = 256 << 10, /* a small read is extended to multiples of so many bytes */
	KEPT = 4096,        /* blocks in memory: 64 MiB, besides those that are read ahead */
	BUCKETS = 8192,
	AHEAD_MIN = 1 << 20, /* bytes read ahead: at first; at most, for all readers together */
	AHEAD_MAX = 128 << 20,
	WORKERS = 16,   /* threads that read ahead */
	READERS = 128,  /* limit of known sequential readers */
	IDLE_MS = 2000, /* idle time after which a thread ends, and a reader is forgotten */
	NEAR = 2 << 20, /* requests of one reader may be out of order by so many bytes */
	LOOK_MS = 100,
	REQUEST = 8 << 20, /* bytes of one request */
};

enum state { LOADING, READY, FAILED };

struct block {
	struct dcp_lru_link use; /* list of READY blocks; must be the first member */
	struct dcp_table_link at;
	uint64_t id[2], number;
	unsigned pins; /* requests that use it */
	enum state state;
	int rc; /* if FAILED */
	size_t n, got;
	char p[];
};

static struct dcp_table_link *buckets[BUCKETS];

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct dcp_table table;
	struct dcp_lru use;
	size_t n, most; /* @most: larger than KEPT while blocks are read ahead */
	/* Reading ahead: its requests, threads and readers. */
	struct ahead *first;
	unsigned workers, waiting;
	bool ends; /* the process ends */
	struct {
		const struct dcp_reader *of;
		int64_t ms;
	} readers[READERS];
	uint64_t uses; /* counter of uses of readers; the latest use has the largest value */
} all = { .lock = PTHREAD_MUTEX_INITIALIZER, /* changed: by prepare_once() */
	  .table = { buckets, BUCKETS } };

static uint64_t key_of(const uint64_t id[2], uint64_t number)
{
	return id[1] ^ id[0] ^ number;
}

static struct block *find_block(const struct dcp_remote_file *o, uint64_t number)
{
	struct dcp_table_link *l = dcp_table_find(&all.table, key_of(o->id, number));
	struct block *b = DCP_OF(l, struct block, at);

	while (b && (b->number != number || b->id[0] != o->id[0] || b->id[1] != o->id[1]))
		b = DCP_OF(dcp_table_before(&b->at), struct block, at);
	return b;
}

static void forget_block(struct block *b)
{
	dcp_table_remove(&all.table, &b->at);
}

static struct block *make_block(const struct dcp_remote_file *o, uint64_t number)
{
	uint64_t off = number * BLOCK, n = DCP_MIN((uint64_t)BLOCK, o->size - off);
	struct block *b = malloc(sizeof(*b) + n);

	if (!b)
		return NULL;
	*b = (struct block){ .id = { o->id[0], o->id[1] }, .number = number, .n = n };
	dcp_table_add(&all.table, &b->at, key_of(o->id, number));
	return b;
}

static bool is_unused(const struct dcp_lru_link *l)
{
	return !((const struct block *)(const void *)l)->pins;
}

static void trim_blocks(void)
{
	size_t most = DCP_MAX(all.most, (size_t)KEPT);
	struct block *b;

	while (all.n > most &&
	       (b = DCP_OF(dcp_lru_oldest(&all.use, all.n, is_unused), struct block, use))) {
		dcp_lru_remove(&all.use, &b->use);
		forget_block(b);
		free(b);
		all.n--;
	}
}

/* The blocks of a request, and those of them that the request has to get. */
struct wanted {
	struct dcp_remote_file *o;
	struct dcp_buf pinned, mine; /* struct block * */
};

static int want_block(struct wanted *w, uint64_t number)
{
	struct block *b = find_block(w->o, number);
	bool mine = !b;

	if (mine)
		b = make_block(w->o, number);
	if (!b)
		return -ENOMEM;
	if (mine && dcp_buf_add(&w->mine, &b, sizeof(b)) < 0) {
		forget_block(b);
		free(b);
		return -ENOMEM;
	}
	b->pins++;
	if (dcp_buf_add(&w->pinned, &b, sizeof(b)) == 0)
		return 0;
	b->pins--; /* blocks that the request made are freed if it fails */
	return -ENOMEM;
}

/* Is it a long read that only fills the cache? Other reads are extended, because more small items
 * are usually around them. */
static bool is_alone(const struct dcp_read *const *reads, uint64_t end)
{
	return !reads[0]->to && end - reads[0]->off >= 4 * AROUND;
}

/* Are all blocks of the read in memory, or requested? */
static bool is_known(const struct dcp_remote_file *o, const struct dcp_read *r)
{
	uint64_t k = r->off / BLOCK, last = (r->off + r->n - 1) / BLOCK;

	while (k <= last && find_block(o, k))
		k++;
	return k > last;
}

static int want_all(struct wanted *w, const struct dcp_read *const *reads, size_t n)
{
	uint64_t end = reads[n - 1]->off + reads[n - 1]->n, next = 0, last;
	bool alone = is_alone(reads, end);
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		uint64_t unit = alone || is_known(w->o, reads[i]) ? BLOCK : AROUND;
		uint64_t k = DCP_MAX(reads[i]->off / unit * (unit / BLOCK), next);

		last = (reads[i]->off + reads[i]->n - 1) / unit * unit + unit - 1;
		last = DCP_MIN(last, w->o->size - 1) / BLOCK;
		for (; k <= last && rc == 0; k++)
			rc = want_block(w, k);
		next = DCP_MAX(next, last + 1);
	}
	return rc;
}

/* ---- getting ---- */

/* Blocks that follow each other. */
struct run {
	struct block *const *blocks;
	uint64_t off;
};

static int fill_blocks(void *ctx, uint64_t at, const char *p, size_t n)
{
	const struct run *run = ctx;

	while (n) {
		struct block *b = run->blocks[at / BLOCK - run->off / BLOCK];
		size_t in = (size_t)(at % BLOCK), now = DCP_MIN(n, b->n - in);

		memcpy(b->p + in, p, now);
		at += now;
		p += now;
		n -= now;
	}
	return 0;
}

static int get_blocks(struct wanted *w)
{
	struct block *const *b = DCP_ITEMS(w->mine, struct block *);
	size_t n = DCP_NITEMS(w->mine, struct block *), nruns = 0;
	struct dcp_range *ranges = calloc(n, sizeof(*ranges));
	struct run *runs = calloc(n, sizeof(*runs));
	int rc = ranges && runs ? 0 : -ENOMEM;

	for (size_t i = 0, k; i < n && rc == 0; i = k) {
		uint64_t bytes = b[i]->n;

		for (k = i + 1; k < n && b[k]->number == b[k - 1]->number + 1 &&
				bytes + b[k]->n <= REQUEST;
		     k++)
			bytes += b[k]->n;
		runs[nruns] = (struct run){ b + i, b[i]->number * BLOCK };
		ranges[nruns] =
			(struct dcp_range){ runs[nruns].off, bytes, fill_blocks, &runs[nruns] };
		nruns++;
	}
	if (rc == 0)
		rc = dcp_remote_get(w->o, ranges, nruns);
	free(ranges);
	free(runs);
	return rc;
}

/* Mark the blocks that this request made as ready, or as failed with @rc. */
static void tell_result(struct wanted *w, int rc)
{
	struct block **b = DCP_ITEMS(w->mine, struct block *);

	for (size_t i = 0; i < DCP_NITEMS(w->mine, struct block *); i++) {
		b[i]->state = rc < 0 ? FAILED : READY;
		b[i]->rc = rc;
		if (rc < 0) {
			forget_block(b[i]);
			if (!b[i]->pins)
				free(b[i]);
		} else {
			dcp_lru_add(&all.use, &b[i]->use);
			all.n++;
		}
	}
	pthread_cond_broadcast(&all.changed);
}

static void unpin_blocks(struct wanted *w)
{
	struct block **b = DCP_ITEMS(w->pinned, struct block *);

	for (size_t i = 0; i < DCP_NITEMS(w->pinned, struct block *); i++) {
		if (b[i]->state == READY)
			dcp_lru_use(&all.use, &b[i]->use);
		if (--b[i]->pins == 0 && b[i]->state == FAILED)
			free(b[i]);
	}
	trim_blocks();
	dcp_buf_finish(&w->pinned);
	dcp_buf_finish(&w->mine);
}

/* ---- ahead of readers ---- */

/* Blocks that a separate thread gets. */
struct ahead {
	struct wanted w;
	bool flies, unwanted;
	struct ahead *next;
};

static bool is_unwanted(void *ctx)
{
	const struct ahead *a = ctx;
	bool is;

	pthread_mutex_lock(&all.lock);
	is = a->unwanted || all.ends;
	pthread_mutex_unlock(&all.lock);
	return is;
}

/* The blocks of @a are ready, or will not come. The lock is held. */
static void end_ahead(struct ahead *a, int rc)
{
	struct ahead **at = &all.first;

	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	tell_result(&a->w, rc);
	unpin_blocks(&a->w);
	free(a);
}

static struct ahead *first_waiting(void)
{
	struct ahead *a = all.first;

	while (a && a->flies)
		a = a->next;
	return a;
}

/* Runs until there was nothing to do for a while. Then only KEPT blocks stay. */
static void *run_worker(void *ctx)
{
	int late = 0;

	pthread_mutex_lock(&all.lock);
	while (!all.ends && (!late || first_waiting())) {
		struct ahead *a = first_waiting();
		struct timespec until = dcp_in_ms(IDLE_MS);
		int rc;

		if (!a) {
			all.waiting++;
			while (!late && !all.ends && !first_waiting())
				late = pthread_cond_timedwait(&all.changed, &all.lock, &until);
			all.waiting--;
			continue;
		}
		late = 0;
		a->flies = true;
		pthread_mutex_unlock(&all.lock);
		dcp_http_watch(is_unwanted, a);
		rc = get_blocks(&a->w);
		dcp_http_watch(NULL, NULL);
		pthread_mutex_lock(&all.lock);
		end_ahead(a, rc);
	}
	if (--all.workers == 0)
		all.most = KEPT;
	trim_blocks();
	pthread_cond_broadcast(&all.changed);
	pthread_mutex_unlock(&all.lock);
	return NULL;
}

/* The child does not have the threads of the parent, so the blocks that they were getting never
 * come. */
static void lock_before_fork(void)
{
	pthread_mutex_lock(&all.lock);
}

static void unlock_after_fork(void)
{
	pthread_mutex_unlock(&all.lock);
}

static void in_child(void)
{
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct dcp_table_link *l = buckets[i], *next; l; l = next) {
			next = l->next;
			if (DCP_OF(l, struct block, at)->state == LOADING)
				dcp_table_remove(&all.table, l);
		}
	all.first = NULL;
	all.workers = all.waiting = 0;
	dcp_cond_init(&all.changed);
	pthread_mutex_init(&all.lock, NULL);
}

/* Called before libcurl is cleaned up. */
static void end_workers(void)
{
	pthread_mutex_lock(&all.lock);
	all.ends = true;
	pthread_cond_broadcast(&all.changed);
	while (all.workers)
		pthread_cond_wait(&all.changed, &all.lock);
	pthread_mutex_unlock(&all.lock);
}

static void prepare_all(void)
{
	dcp_cond_init(&all.changed);
	pthread_atfork(lock_before_fork, unlock_after_fork, in_child);
	atexit(end_workers);
}

/* Called before the lock is taken for the first time. */
static void prepare_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, prepare_all);
}

/* Start another thread if there is work for it. False: there is no thread at all. */
static bool add_worker(void)
{
	pthread_attr_t detached;
	pthread_t thread;
	unsigned jobs = 0;

	for (const struct ahead *a = all.first; a; a = a->next)
		jobs += !a->flies;
	if (all.waiting >= jobs || all.workers == WORKERS)
		return true;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &detached, run_worker, NULL) == 0)
		all.workers++;
	pthread_attr_destroy(&detached);
	return all.workers;
}

/* The lock is held. */
static void get_ahead(struct dcp_remote_file *o, uint64_t off, uint64_t end)
{
	uint64_t last = (end - 1) / BLOCK;
	struct ahead *a = calloc(1, sizeof(*a)), **at = &all.first;
	int rc = a ? 0 : -ENOMEM;

	if (!a)
		return;
	a->w.o = o;
	for (uint64_t k = off / BLOCK; rc == 0 && k <= last; k++)
		if (!find_block(o, k))
			rc = want_block(&a->w, k);
	while (*at)
		at = &(*at)->next;
	*at = a;
	all.most =
		DCP_MIN(DCP_MAX(all.most, (size_t)KEPT) + DCP_NITEMS(a->w.mine, struct block *),
			(size_t)(KEPT + AHEAD_MAX / BLOCK));
	if (rc < 0 || all.ends || !a->w.mine.n || !add_worker())
		end_ahead(a, rc < 0 ? rc : -EINTR);
	else
		pthread_cond_broadcast(&all.changed);
}

/* The number of current sequential readers, @reader included. The lock is held. */
static unsigned count_readers(const struct dcp_reader *reader)
{
	int64_t now = dcp_now_ms();
	size_t mine = 0;
	unsigned n = 1;

	for (size_t i = 0; i < READERS; i++) {
		if (all.readers[i].of == reader || all.readers[i].ms < all.readers[mine].ms)
			mine = all.readers[mine].of == reader ? mine : i;
		n += all.readers[i].of && all.readers[i].of != reader &&
		     now - all.readers[i].ms < IDLE_MS;
	}
	all.readers[mine].of = reader;
	all.readers[mine].ms = now;
	return n;
}

/* The reader of @o that continues at @off, or nearest to it. NULL: none does. */
static struct dcp_reader *find_reader(struct dcp_remote_file *o, uint64_t off)
{
	struct dcp_reader *found = NULL;
	uint64_t least = NEAR + 1;

	for (size_t i = 0; i < DCP_LEN(o->readers); i++) {
		struct dcp_reader *r = &o->readers[i];
		uint64_t gap = off > r->next ? off - r->next : r->next - off;

		if (r->next && gap < least) {
			found = r;
			least = gap;
		}
	}
	return found;
}

/* Replace the least recently active reader. */
static struct dcp_reader *make_reader(struct dcp_remote_file *o)
{
	struct dcp_reader *oldest = &o->readers[0];

	for (size_t i = 1; i < DCP_LEN(o->readers); i++)
		if (o->readers[i].used < oldest->used)
			oldest = &o->readers[i];
	*oldest = (struct dcp_reader){ 0 };
	return oldest;
}

/* A program reads from @off to @end, of a tensor that ends at @until. If it reads in order, read
 * ahead twice as much as it read so far, in several requests at a time. The lock is held. */
static void look_ahead(struct dcp_remote_file *o, uint64_t off, uint64_t end, uint64_t until)
{
	struct dcp_reader *r = find_reader(o, off);
	bool goes_on = r;
	uint64_t run, window, piece, to;

	if (!r)
		r = make_reader(o);
	run = r->run;
	/* Bytes after a gap do not count as sequential, because the ends of items are read with
	 * gaps, too. */
	r->run += goes_on && off <= r->next ? end - off : 0;
	r->reach = DCP_MAX(r->reach, end);
	r->passes |= r->until && off >= r->until;
	r->next = DCP_MAX(r->next, end);
	r->until = until;
	r->used = ++all.uses;
	if (run < AROUND)
		return;
	window = DCP_MIN(2 * r->run + AHEAD_MIN, (uint64_t)AHEAD_MAX / count_readers(r));
	piece = DCP_MIN((uint64_t)REQUEST, DCP_MAX(window / 4, (uint64_t)AHEAD_MIN));
	until = until && !r->passes ? DCP_MIN(until, o->size) : o->size;
	to = DCP_MIN(r->next + window, until);
	while (r->reach < to && (to - r->reach >= piece || to == until)) {
		uint64_t from = r->reach;

		r->reach = DCP_MIN(from + piece, to);
		get_ahead(o, from, r->reach);
	}
}

bool dcp_blocks_follow(struct dcp_remote_file *o, const struct dcp_read *read)
{
	bool goes_on;

	prepare_once();
	pthread_mutex_lock(&all.lock);
	goes_on = read->to && find_reader(o, read->off);
	if (!goes_on && read->to)
		look_ahead(o, read->off, read->off + read->n, read->until);
	pthread_mutex_unlock(&all.lock);
	return goes_on;
}

void dcp_blocks_leave(struct dcp_remote_file *o)
{
	bool flies = true;

	pthread_mutex_lock(&all.lock);
	for (size_t i = 0; i < READERS; i++)
		if (all.readers[i].of >= o->readers &&
		    all.readers[i].of < o->readers + DCP_LEN(o->readers))
			all.readers[i].of = NULL;
	while (flies) {
		flies = false;
		for (struct ahead *a = all.first, *next; a; a = next) {
			next = a->next;
			if (a->w.o != o)
				continue;
			flies |= a->flies;
			a->unwanted = true;
			if (!a->flies)
				end_ahead(a, -EINTR);
		}
		if (flies)
			pthread_cond_wait(&all.changed, &all.lock);
	}
	pthread_mutex_unlock(&all.lock);
}

/* ---- reading ---- */

static void wait_a_little(void)
{
	struct timespec until;

	if (!dcp_http_watched()) {
		pthread_cond_wait(&all.changed, &all.lock);
		return;
	}
	until = dcp_in_ms(LOOK_MS);
	pthread_cond_timedwait(&all.changed, &all.lock, &until);
}

static int wait_for(struct wanted *w)
{
	struct block **b = DCP_ITEMS(w->pinned, struct block *);
	int rc = 0;

	for (size_t i = 0; i < DCP_NITEMS(w->pinned, struct block *) && rc == 0; i++) {
		while (b[i]->state == LOADING && !dcp_http_stopped())
			wait_a_little();
		rc = b[i]->state == FAILED ? b[i]->rc : b[i]->state == LOADING ? -EINTR : 0;
	}
	if (rc < 0) {
		pthread_mutex_lock(&w->o->remote->lock);
		dcp_err_note(rc, w->o->why[0] ? w->o->why : NULL);
		pthread_mutex_unlock(&w->o->remote->lock);
	}
	return rc;
}

static void copy_blocks(const struct wanted *w, const struct dcp_read *r)
{
	struct block *const *b = DCP_ITEMS(w->pinned, struct block *);
	size_t i, n = DCP_NITEMS(w->pinned, struct block *);
	uint64_t at = r->off, end = r->off + r->n;

	for (i = 0; at < end; at = (b[i]->number + 1) * BLOCK) {
		size_t in = (size_t)(at % BLOCK);

		while (i + 1 < n && b[i]->number < at / BLOCK)
			i++;
		memcpy((char *)r->to + (at - r->off), b[i]->p + in,
		       DCP_MIN(end - at, (uint64_t)(b[i]->n - in)));
	}
}

bool dcp_blocks_have(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n)
{
	bool have = true;

	pthread_mutex_lock(&all.lock);
	for (size_t i = 0; i < n && have; i++) {
		uint64_t last = (reads[i]->off + reads[i]->n - 1) / BLOCK;

		for (uint64_t k = reads[i]->off / BLOCK; k <= last && have; k++) {
			const struct block *b = find_block(o, k);

			have = b && b->state == READY;
		}
	}
	pthread_mutex_unlock(&all.lock);
	return have;
}

static int read_once(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n)
{
	struct wanted w = { .o = o };
	int rc, got = 0;

	if (o->changed)
		return -ESTALE;
	prepare_once();
	pthread_mutex_lock(&all.lock);
	rc = want_all(&w, reads, n);
	if (rc == 0 && reads[0]->to && !reads[0]->planned)
		look_ahead(o, reads[0]->off, reads[n - 1]->off + reads[n - 1]->n,
			   reads[n - 1]->until);
	pthread_mutex_unlock(&all.lock);
	if (rc == 0 && w.mine.n)
		got = get_blocks(&w);
	pthread_mutex_lock(&all.lock);
	tell_result(&w, rc < 0 ? rc : got);
	if (rc == 0)
		rc = got < 0 ? got : wait_for(&w);
	pthread_mutex_unlock(&all.lock);
	for (size_t i = 0; i < n && rc == 0; i++)
		if (reads[i]->to)
			copy_blocks(&w, reads[i]);
	pthread_mutex_lock(&all.lock);
	unpin_blocks(&w);
	pthread_mutex_unlock(&all.lock);
	return rc;
}

int dcp_blocks_read(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n)
{
	int rc;

	do
		rc = read_once(o, reads, n);
	/* the request of another reader was stopped */
	while (rc == -EINTR && !dcp_http_stopped());
	return rc;
}
