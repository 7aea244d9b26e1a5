/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/load.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/store/io/queue.h"

enum {
	LOOK_MS = 100, /* between checks whether the other members are alive */
	HUGE_PAGE = 2 << 20,
};

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; glibc may be older */
#endif

/* The head of a window: in shared memory, after the slots, padded to whole pages. */
struct head {
	_Atomic uint32_t failed;
	uint32_t zero;
	struct {
		_Atomic uint32_t ready; /* chunk + 1 */
		/* number of load_window_done() calls, over all chunks of the slot */
		_Atomic uint32_t done;
	} slot[];
};

/* How other members find the memory of the first member: a memory file whose size is sealed,
 * because touching pages that are gone would raise SIGBUS. */
#define WINDOW_NAME "dcpload-window"
#define WINDOW_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct notice {
	int64_t pid;
	int64_t fd; /* descriptor of the memory; -1: this is not the first member */
	uint64_t dev, ino;
};

struct load_window {
	struct head *head;
	uint8_t *data;
	uint64_t slot, bytes;
	uint32_t slots, members, self;
	int small; /* why own slots are not huge pages, a negative errno; 0: they are */
	const uint32_t *rank;  /* rank of each member; owned by the checkpoint */
	int *alive;            /* a pidfd of each member, -1: none */
	_Atomic uint32_t dead; /* a rank; UINT32_MAX: none */
	int64_t timeout_ms;
	uint64_t waited_ns;       /* for chunks */
	struct dcp_queue **queue; /* by slot that this member fills */
};

/* ---- making one ---- */

static uint64_t head_bytes(uint32_t slots)
{
	struct head *h = NULL;
	uint64_t n = sizeof(*h) + slots * sizeof(h->slot[0]),
		 page = (uint64_t)sysconf(_SC_PAGESIZE);

	return n + (page - n % page) % page;
}

/* Map the slots and, after them, the head; @fd -1: memory of this process alone. Slots begin at a
 * huge page: for a read of 1 MiB a disk is then given a few addresses, not 256. */
static int map_memory(struct load_window *w, int fd, struct dcpload_error *err)
{
	const int how = PROT_READ | PROT_WRITE;
	uint8_t *p = mmap(NULL, w->bytes + HUGE_PAGE, how, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t skip = -(uintptr_t)p % HUGE_PAGE;

	if (p == MAP_FAILED)
		return load_fail(err, -errno, "no memory for a window of %llu bytes: %m",
				 (unsigned long long)w->bytes);
	if (skip)
		munmap(p, skip);
	w->data = p + skip;
	munmap(w->data + w->bytes, HUGE_PAGE - skip);
	if (fd >= 0 &&
	    mmap(w->data, w->bytes, how, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return load_fail(err, -errno, "window: %m");
	w->head = (void *)(w->data + w->slots * w->slot);
	if (fd < 0 && madvise(w->data, w->slots * w->slot, MADV_HUGEPAGE) < 0)
		w->small = -errno;
	return 0;
}

/*
 * Allocate the slots that this member fills, near its device; the first member also allocates the
 * head. All is allocated now, because touching memory after it has run out would raise SIGBUS. The
 * pages of a slot are then moved to huge pages, which works with every setting of
 * /sys/kernel/mm/transparent_hugepage/shmem_enabled except "deny".
 */
static int take_slots(struct load_window *w, int fd, struct load_device *d,
		      struct dcpload_error *err)
{
	uint64_t head = w->slots * w->slot;
	int rc = w->self == 0 ? posix_fallocate(fd, (off_t)head, (off_t)(w->bytes - head)) : 0;

	for (uint32_t s = w->self; s < w->slots && rc == 0; s += w->members) {
		uint8_t *slot = w->data + s * w->slot;

		load_device_near(d, slot, w->slot);
		rc = posix_fallocate(fd, slot - w->data, (off_t)w->slot);
		if (rc == 0 && w->slot >= HUGE_PAGE &&
		    madvise(slot, w->slot, MADV_COLLAPSE) < 0)
			w->small = -errno;
	}
	return rc ? load_fail(err, -rc, "no shared memory for a window of %llu bytes: %s",
			      (unsigned long long)w->bytes, strerror(rc))
		  : 0;
}

/* Create memory that other processes can open. */
static int make_shared(struct load_window *w, struct load_device *d, struct notice *notice,
		       struct dcpload_error *err)
{
	int fd = memfd_create(WINDOW_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct stat st;

	notice->fd = fd;
	if (fd < 0)
		return load_fail(err, -errno, "no shared memory for a window: %m");
	if (ftruncate(fd, (off_t)w->bytes) < 0 || fcntl(fd, F_ADD_SEALS, WINDOW_SEALS) < 0 ||
	    fstat(fd, &st) < 0)
		return load_fail(err, -errno, "window: %m");
	notice->dev = st.st_dev;
	notice->ino = st.st_ino;
	return map_memory(w, fd, err) < 0 ? err->code : take_slots(w, fd, d, err);
}

/* The device number of the file system that memory files, and no other files, are on. */
static int find_memory_device(dev_t *out)
{
	dcp_auto_fd int fd = memfd_create(WINDOW_NAME, MFD_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	*out = st.st_dev;
	return 0;
}

/* Is the file at @path, open as @at (O_PATH), a window that fits @notice? */
static bool is_window(int at, const char *path, const struct notice *notice, uint64_t bytes)
{
	static const char expected[] = "/memfd:" WINDOW_NAME " (deleted)";
	char name[sizeof(expected)];
	struct stat st;
	dev_t memory = 0;

	return fstat(at, &st) == 0 && find_memory_device(&memory) == 0 && S_ISREG(st.st_mode) &&
	       st.st_dev == memory && st.st_dev == notice->dev && st.st_ino == notice->ino &&
	       st.st_uid == geteuid() && (uint64_t)st.st_size == bytes &&
	       readlink(path, name, sizeof(name)) == sizeof(expected) - 1 &&
	       memcmp(name, expected, sizeof(expected) - 1) == 0;
}

/*
 * Open the first member's memory, through /proc and its descriptor. The notice of another rank may
 * be forged: it could name a descriptor that this or another process has open for reading a
 * checkpoint, which would be opened for writing here. So the file is checked before it is opened,
 * and only a window of another process is opened.
 */
static int open_shared(struct load_window *w, const struct dcpload *ck,
		       const struct notice *notice, struct dcpload_error *err)
{
	bool threads = ck->comm->flags & DCPLOAD_COMM_THREADS;
	dcp_auto_fd int at = -1, fd = -1;
	char path[64], self[64];

	snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)notice->pid,
		 (long long)notice->fd);
	at = open(path, O_PATH | O_CLOEXEC);
	if (at < 0)
		return load_fail(err, -errno, "cannot open the window of rank %u (%s): %m",
				 w->rank[0], path);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", at);
	if ((threads || notice->pid != getpid()) && is_window(at, self, notice, w->bytes))
		fd = open(self, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fcntl(fd, F_GET_SEALS) != WINDOW_SEALS)
		return load_fail(err, -EPERM, "%s is not the window of rank %u", path,
				 w->rank[0]);
	return map_memory(w, fd, err) < 0 ? err->code : take_slots(w, fd, ck->device, err);
}

static int watch_members(struct load_window *w, const struct dcpload *ck,
			 const struct load_blobs *b)
{
	w->alive = malloc(w->members * sizeof(*w->alive));
	if (!w->alive)
		return -ENOMEM;
	for (uint32_t m = 0; m < w->members; m++) {
		const struct notice *notice = b->at[ck->local[m]];

		w->alive[m] = m == w->self ? -1 : dcp_pidfd_open((pid_t)notice->pid);
	}
	return 0;
}

/* Each slot has a queue, so that each byte of memory is registered only once. */
static int make_queues(struct load_window *w)
{
	int rc = (w->queue = calloc(w->slots, sizeof(*w->queue))) ? 0 : -ENOMEM;

	for (uint32_t s = w->self; s < w->slots && rc == 0; s += w->members) {
		rc = dcp_queue_create(&w->queue[s]);
		if (rc == 0)
			dcp_queue_register(w->queue[s], w->data + s * w->slot, w->slot);
	}
	return rc;
}

static int share_window(struct load_window *w, struct dcpload *ck, struct dcpload_error *err)
{
	int timeout = (int)ck->config.timeout_ms;
	struct notice notice = { .pid = getpid(), .fd = -1 };
	struct load_blobs b = { 0 };
	int rc = w->self == 0 ? make_shared(w, ck->device, &notice, err) : 0;

	rc = load_agree(ck->comm, rc, err, timeout);
	if (rc == 0)
		rc = load_gather_same(ck->comm, &notice, sizeof(notice), &b, err, timeout);
	if (rc == 0) {
		if (w->self)
			rc = open_shared(w, ck, b.at[ck->local[0]], err);
		if (rc == 0 && (watch_members(w, ck, &b) < 0 || make_queues(w) < 0))
			rc = load_fail(err, -ENOMEM, "out of memory");
		rc = load_agree(ck->comm, rc, err, timeout);
	}
	load_blobs_free(&b);
	if (notice.fd >= 0)
		close((int)notice.fd);
	return rc;
}

int load_window_create(struct dcpload *ck, uint32_t slots, uint64_t slot, bool alone,
		       struct load_window **out, struct dcpload_error *err)
{
	struct load_window *w = calloc(1, sizeof(*w));
	int rc = w ? 0 : load_fail(err, -ENOMEM, "out of memory");

	if (w) {
		w->slot = slot;
		w->slots = slots;
		w->members = alone ? 1 : ck->nlocal;
		w->self = alone ? 0 : ck->self;
		w->rank = ck->local;
		w->timeout_ms = ck->config.timeout_ms;
		w->bytes = head_bytes(slots) + slots * slot;
		w->dead = UINT32_MAX;
	}
	if (alone) {
		if (rc == 0)
			rc = map_memory(w, -1, err);
		if (rc == 0 && make_queues(w) < 0)
			rc = load_fail(err, -ENOMEM, "out of memory");
	} else {
		rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
		if (rc == 0)
			rc = share_window(w, ck, err);
	}
	if (rc < 0) {
		load_window_free(w, false);
		return rc;
	}
	*out = w;
	return 0;
}

void load_window_free(struct load_window *w, bool keep)
{
	if (!w)
		return;
	for (uint32_t s = 0; w->queue && s < w->slots; s++)
		dcp_queue_destroy(w->queue[s]);
	free(w->queue);
	if (w->data && !keep)
		munmap(w->data, w->bytes);
	for (uint32_t m = 0; w->alive && m < w->members; m++)
		if (w->alive[m] >= 0)
			close(w->alive[m]);
	free(w->alive);
	free(w);
}

/* ---- waiting ---- */

static void wake_waiters(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool somebody_died(struct load_window *w)
{
	for (uint32_t m = 0; w->alive && m < w->members; m++) {
		struct pollfd p = { .fd = w->alive[m], .events = POLLIN };

		if (p.fd >= 0 && poll(&p, 1, 0) > 0) {
			w->dead = w->rank[m];
			return true;
		}
	}
	return false;
}

/* Wait until @word is at least @want. */
static int wait_for(struct load_window *w, _Atomic uint32_t *word, uint32_t want)
{
	const struct timespec look = { .tv_nsec = LOOK_MS * DCP_NS_PER_MS };
	uint32_t now;
	int64_t progress = dcp_now_ns(CLOCK_MONOTONIC);
	int rc = 0;

	while (rc == 0 && (now = atomic_load_explicit(word, memory_order_acquire)) < want) {
		if (atomic_load(&w->head->failed)) {
			rc = -ECANCELED;
		} else if (syscall(SYS_futex, word, FUTEX_WAIT, now, &look, NULL, 0) < 0 &&
			   errno == ETIMEDOUT) {
			if (somebody_died(w))
				rc = -EOWNERDEAD;
			else if (dcp_now_ns(CLOCK_MONOTONIC) - progress >
				 w->timeout_ms * DCP_NS_PER_MS)
				rc = -ETIMEDOUT;
		} else {
			progress = dcp_now_ns(CLOCK_MONOTONIC);
		}
	}
	return rc;
}

/* ---- chunks ---- */

void *load_window_memory(const struct load_window *w, uint64_t *n)
{
	*n = w->slots * w->slot;
	return w->data;
}

uint8_t *load_window_slot(struct load_window *w, size_t c)
{
	return w->data + c % w->slots * w->slot;
}

struct dcp_queue *load_window_queue(struct load_window *w, const uint8_t *slot)
{
	return w->queue[(uint64_t)(slot - w->data) / w->slot];
}

int load_window_refused(const struct load_window *w)
{
	int rc = 0;

	for (uint32_t s = w->self; s < w->slots && rc == 0; s += w->members)
		rc = dcp_queue_refused(w->queue[s]);
	return rc;
}

int load_window_small(const struct load_window *w)
{
	return w->small;
}

int load_window_claim(struct load_window *w, size_t c)
{
	return wait_for(w, &w->head->slot[c % w->slots].done,
			(uint32_t)(c / w->slots * w->members));
}

void load_window_publish(struct load_window *w, size_t c)
{
	_Atomic uint32_t *ready = &w->head->slot[c % w->slots].ready;

	atomic_store_explicit(ready, (uint32_t)(c + 1), memory_order_release);
	wake_waiters(ready);
}

int load_window_await(struct load_window *w, size_t c)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc = wait_for(w, &w->head->slot[c % w->slots].ready, (uint32_t)(c + 1));

	w->waited_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	return rc;
}

void load_window_done(struct load_window *w, size_t c)
{
	_Atomic uint32_t *done = &w->head->slot[c % w->slots].done;

	atomic_fetch_add_explicit(done, 1, memory_order_acq_rel);
	wake_waiters(done);
}

void load_window_fail(struct load_window *w)
{
	atomic_store(&w->head->failed, 1);
	for (uint32_t s = 0; s < w->slots; s++) {
		wake_waiters(&w->head->slot[s].ready);
		wake_waiters(&w->head->slot[s].done);
	}
}

uint32_t load_window_dead(const struct load_window *w)
{
	return w->dead;
}

void load_window_reset(struct load_window *w)
{
	w->waited_ns = 0;
	if (w->self)
		return;
	atomic_store(&w->head->failed, 0);
	for (uint32_t s = 0; s < w->slots; s++) {
		atomic_store(&w->head->slot[s].ready, 0);
		atomic_store(&w->head->slot[s].done, 0);
	}
}

uint64_t load_window_waited(const struct load_window *w)
{
	return w->waited_ns;
}

uint64_t load_window_bytes(const struct load_window *w)
{
	return w->bytes;
}
