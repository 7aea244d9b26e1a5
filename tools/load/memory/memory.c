/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/clock.h"
#include "core/base/number.h"
#include "tools/load/error.h"
#include "tools/load/memory/ipc.h"

enum {
	SOON_NS =
		1000000, /* a piece of 4 MiB takes a fifth: for so long a wait does not sleep */
	LOOK_NS = 20000  /* then between looks at a mark */
};

/* ---- the host's memory ---- */

/* Of huge pages where possible; what is not touched is not used. */
static int host_alloc(struct load_device *d, uint64_t n, void **out)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	madvise(p, n, MADV_HUGEPAGE);
	*out = p;
	return 0;
}

static void host_free(struct load_device *d, void *p, uint64_t n)
{
	munmap(p, n);
}

static int host_zero(struct load_device *d, void *p, uint64_t n)
{
	memset(p, 0, n);
	return 0;
}

static int host_fetch(struct load_device *d, void *dst, const void *src, uint64_t n)
{
	memcpy(dst, src, n);
	return 0;
}

const struct load_memory load_host = {
	.name = "host",
	.alloc = host_alloc,
	.free = host_free,
	.zero = host_zero,
	.fetch = host_fetch,
};

/* ---- devices ---- */

void load_device_near(struct load_device *d, void *p, uint64_t n)
{
	unsigned long nodes[16] = { 0 };
	const uint64_t bits = 8 * sizeof(*nodes), most = bits * DCP_LEN(nodes),
		       page = (uint64_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = ((uintptr_t)p + page - 1) / page * page,
		  end = ((uintptr_t)p + n) / page * page;

	if (!d || d->node < 0 || (uint64_t)d->node >= most || end <= at)
		return;
	nodes[(uint64_t)d->node / bits] = 1ul << (uint64_t)d->node % bits;
	/* Other nodes serve when this one is full. */
	if (syscall(SYS_mbind, at, end - at, MPOL_PREFERRED, nodes, most + 1, 0) < 0 &&
	    !d->why[0])
		snprintf(d->why, sizeof(d->why), "staging may be far from it: mbind: %s",
			 strerror(errno));
}

int load_device_wait(struct load_device *d, void *mark, int timeout_ms)
{
	const struct timespec look = { .tv_nsec = LOOK_NS };
	int64_t began = dcp_now_ns(CLOCK_MONOTONIC), now;
	int64_t until = d->late ? 0 : began + timeout_ms * DCP_NS_PER_MS;
	int rc;

	while ((rc = d->kind->passed(d, mark)) == 0) {
		now = dcp_now_ns(CLOCK_MONOTONIC);
		if (now > until) {
			if (!d->late)
				snprintf(d->said, sizeof(d->said),
					 "a copy did not end in %.1f s", timeout_ms / 1000.0);
			d->late = d->given_up = true;
			return -ETIMEDOUT;
		}
		if (now - began < SOON_NS)
			sched_yield();
		else
			nanosleep(&look, NULL);
	}
	return rc < 0 ? rc : 0;
}

int load_device_settle(struct load_device *d, void *mark, void *lane, int timeout_ms)
{
	int rc = d->kind->mark(d, mark, lane);

	d->given_up |= rc < 0;
	return rc < 0 ? rc : load_device_wait(d, mark, timeout_ms);
}

bool load_device_runs(struct load_device *d)
{
	if (d && d->given_up)
		d->given_up = !d->kind->ended(d);
	return d && d->given_up;
}

void load_device_keep(struct load_device *d, const char *fmt, ...)
{
	va_list ap;

	d->kept = true;
	va_start(ap, fmt);
	if (!d->why[0])
		vsnprintf(d->why, sizeof(d->why), fmt, ap);
	va_end(ap);
}

int load_device_said(struct load_device *d, int rc, struct dcpload_error *err)
{
	if (rc >= 0)
		return rc;
	if (!d || !d->said[0])
		return load_fail(err, rc, "%s", strerror(-rc));
	return load_fail(err, rc, "%s: %s%s", d->name, d->said,
			 load_device_runs(d) ? "; memory that copies may still use is kept "
					       "until the process ends"
					     : "");
}

enum { PROBE = 4096 /* bytes that are mapped to find out whether that works */ };

struct load_ipc {
	const struct dcpload_comm *comm;
	struct load_device *d;
	void *lane, *mark;
	char *mine;      /* this rank's window */
	char **at;       /* the others', mapped; NULL: not */
	uint64_t *bytes; /* of each */
	uint64_t *told; /* by each rank to each: where in its window; of itself: did it fail? */
	int timeout_ms;
};

/* Of a window. bytes 0: there is none. */
struct handle {
	struct load_shared shared;
	uint64_t bytes;
};

static int agree(const struct load_ipc *n, int rc, struct dcpload_error *err)
{
	return load_agree(n->comm, load_device_said(n->d, rc, err), err, n->timeout_ms);
}

/* ---- windows ---- */

int load_ipc_map(struct load_ipc *n, void *mine, uint64_t bytes, struct dcpload_error *err)
{
	const struct load_memory *kind = n->d->kind;
	struct handle own = { .bytes = bytes };
	struct load_blobs b;
	int rc = agree(n, bytes ? kind->share(n->d, mine, &own.shared) : 0, err);

	if (rc == 0)
		rc = load_gather_same(n->comm, &own, sizeof(own), &b, err, n->timeout_ms);
	if (rc < 0)
		return rc;
	n->mine = mine;
	for (uint32_t r = 0; r < n->comm->ranks; r++) {
		const struct handle *h = b.at[r];

		n->bytes[r] = h->bytes;
		if (r != n->comm->rank && n->bytes[r] && rc == 0)
			rc = kind->map(n->d, &h->shared, h->bytes, (void **)&n->at[r]);
	}
	load_blobs_free(&b);
	return agree(n, rc, err);
}

/* Until no copy is under way: half of the timeout, so that the others still wait for what this rank says. */
static int settle(struct load_ipc *n)
{
	return load_device_settle(n->d, n->mark, n->lane, n->timeout_ms / 2);
}

int load_ipc_unmap(struct load_ipc *n, struct dcpload_error *err)
{
	int rc = settle(n);

	for (uint32_t r = 0; r < n->comm->ranks; r++) {
		if (n->at[r] && load_device_runs(n->d)) /* and may read it */
			rc = -ETIMEDOUT;
		else if (n->at[r] && n->d->kind->unmap(n->d, n->at[r]) < 0)
			rc = -EREMOTEIO;
		n->at[r] = NULL;
	}
	return agree(n, rc, err);
}

int load_ipc_copy(struct load_ipc *n, void *dst, const void *src, uint64_t bytes)
{
	return n->d->kind->copy(n->d, n->lane, dst, src, bytes);
}

int load_ipc_meet(struct load_ipc *n, const void *const *send, const uint64_t *nsend,
		  void **recv, const uint64_t *nrecv, int *failed, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = n->comm;
	uint32_t ranks = comm->ranks, self = comm->rank;
	uint64_t *mine = n->told + (size_t)ranks * ranks;
	bool some = false;
	int rc;

	*failed = *failed < 0 ? *failed : settle(n);
	for (uint32_t r = 0; r < ranks; r++)
		mine[r] = nsend[r] ? (uint64_t)((const char *)send[r] - n->mine) : 0;
	mine[self] = *failed < 0;
	rc = comm->allgather(comm->ctx, mine, ranks * sizeof(*mine), n->told, n->timeout_ms);
	if (rc < 0)
		return load_comm_say(comm, rc, err);
	for (uint32_t r = 0; r < ranks; r++)
		some |= n->told[(size_t)r * ranks + r] != 0;
	if (some)
		return agree(n, *failed, err);
	for (uint32_t r = 0; r < ranks; r++) {
		uint64_t at = n->told[(size_t)r * ranks + self];

		if (r == self || !nrecv[r])
			continue;
		recv[r] = n->at[r] + at;
		if (at > n->bytes[r] || nrecv[r] > n->bytes[r] - at) {
			snprintf(n->d->said, sizeof(n->d->said),
				 "rank %u sends what is not in its window", r);
			*failed = -EPROTO;
		}
	}
	return 0;
}

/* ---- opening ---- */

static int prepare(struct load_ipc *n, const struct dcpload_comm *comm, struct load_device *d,
		   int timeout_ms, struct dcpload_error *err)
{
	size_t ranks = comm->ranks;
	int rc;

	if (!n)
		return load_fail(err, -ENOMEM, "out of memory");
	n->comm = comm;
	n->d = d;
	n->timeout_ms = timeout_ms;
	n->at = calloc(ranks, sizeof(*n->at));
	n->bytes = calloc(ranks, sizeof(*n->bytes));
	n->told = calloc(ranks * (ranks + 1), sizeof(*n->told));
	if (!n->at || !n->bytes || !n->told)
		return load_fail(err, -ENOMEM, "out of memory");
	rc = d->kind->lane_open(d, &n->lane);
	if (rc == 0)
		rc = d->kind->mark_open(d, &n->mark);
	return load_device_said(n->d, rc, err);
}

/* Each rank reads the number of every other from a window of it. */
static int read_each(struct load_ipc *n)
{
	uint32_t r, number;
	int rc = 0;

	for (r = 0; r < n->comm->ranks && rc == 0; r++) {
		if (r == n->comm->rank)
			continue;
		rc = n->d->kind->fetch(n->d, &number, n->at[r], sizeof(number));
		if (rc < 0 || number == r)
			continue;
		snprintf(n->d->said, sizeof(n->d->said),
			 "what rank %u wrote is not what is read", r);
		rc = -EIO;
	}
	return rc;
}

static int probe(struct load_ipc *n, struct dcpload_error *err)
{
	struct load_device *d = n->d;
	void *p = NULL;
	int unmapped = 0, rc = d->kind->alloc(d, PROBE, &p);

	if (rc == 0)
		rc = load_ipc_copy(n, p, &n->comm->rank, sizeof(n->comm->rank));
	if (rc == 0)
		rc = settle(n);
	rc = agree(n, rc, err);
	if (rc == 0) {
		rc = load_ipc_map(n, p, PROBE, err);
		if (rc == 0)
			rc = agree(n, read_each(n), err);
		unmapped = load_ipc_unmap(n, rc < 0 ? NULL : err);
	}
	if (unmapped < 0 || load_device_runs(d))
		load_device_keep(d,
				 "%d bytes of it are kept until the process ends: other "
				 "ranks may have them mapped",
				 PROBE);
	else if (p)
		d->kind->free(d, p, PROBE);
	return rc < 0 ? rc : unmapped;
}

int load_ipc_open(const struct dcpload_comm *comm, struct load_device *d, const char *why_not,
		  int timeout_ms, struct load_ipc **out, struct dcpload_error *err)
{
	struct load_ipc *n = *out;
	int rc = 0;

	if (why_not) {
		rc = load_fail(err, -ENOTSUP, "%s", why_not);
	} else if (!n) {
		n = calloc(1, sizeof(*n));
		rc = prepare(n, comm, d, timeout_ms, err);
	}
	rc = load_agree(comm, rc, err, timeout_ms);
	if (rc == 0 && !*out)
		rc = probe(n, err);
	if (rc == 0)
		*out = n;
	else if (!*out)
		load_ipc_close(n);
	return rc;
}

void load_ipc_close(struct load_ipc *n)
{
	if (!n)
		return;
	if (n->mark)
		n->d->kind->mark_close(n->d, n->mark);
	if (n->lane)
		n->d->kind->lane_close(n->d, n->lane);
	free(n->at);
	free(n->bytes);
	free(n->told);
	free(n);
}

static FILE *open_file(const char *fmt, ...) DCP_PRINTF(1, 2);
static FILE *open_file(const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	return n < (int)sizeof(path) ? fopen(path, "re") : NULL;
}

/* The number after @name at the beginning of a line; @name "": the first of the file. @f may be NULL. */
static bool number_of(FILE *f, const char *name, uint64_t *out)
{
	char line[256];

	if (f)
		rewind(f);
	while (f && fgets(line, sizeof(line), f)) {
		const char *at = line + strlen(name);

		if (strncmp(line, name, strlen(name)) != 0)
			continue;
		at += strspn(at, " ");
		return dcp_take_number(&at, NULL, DCP_ANY_DIGITS, out);
	}
	return false;
}

/* What is left below the limit of the cgroup @dir; @stem: names of its files. Pages of files that are not in use do not
 * count: the kernel takes them first. */
static uint64_t left_in(const char *dir, const char *limit, const char *used, const char *cache)
{
	dcp_auto_file FILE *max = open_file("%s/%s", dir, limit),
			   *now = open_file("%s/%s", dir, used),
			   *stat = open_file("%s/memory.stat", dir);
	uint64_t most, bytes, files = 0;

	if (!number_of(max, "", &most) || !number_of(now, "", &bytes))
		return UINT64_MAX; /* "max" */
	number_of(stat, cache, &files);
	bytes -= DCP_MIN(bytes, files);
	return most - DCP_MIN(most, bytes);
}

static void lower(uint64_t *least, uint64_t n, char *what, size_t size, const char *is)
{
	if (n >= *least)
		return;
	*least = n;
	snprintf(what, size, "%s", is);
}

/* Of the cgroup and of the cgroups above it. */
static void lower_by_cgroups(const char *root, bool old, char *path, uint64_t *least,
			     char *what, size_t size)
{
	for (;;) {
		char dir[PATH_MAX];
		char *slash;

		if (snprintf(dir, sizeof(dir), "%s/sys/fs/cgroup%s%s", root,
			     old ? "/memory" : "", path) < (int)sizeof(dir))
			lower(least,
			      old ? left_in(dir, "memory.limit_in_bytes",
					    "memory.usage_in_bytes", "total_inactive_file ")
				  : left_in(dir, "memory.max", "memory.current",
					    "inactive_file "),
			      what, size, "the limit of the cgroup");
		slash = strrchr(path, '/');
		if (!*path || !slash)
			return;
		*slash = '\0';
	}
}

uint64_t load_room_of(const char *root, char *what, size_t size)
{
	dcp_auto_file FILE *info = open_file("%s/proc/meminfo", root),
			   *groups = open_file("%s/proc/self/cgroup", root);
	uint64_t least = UINT64_MAX, kib, swap = 0;
	char line[PATH_MAX];

	snprintf(what, size, "not known");
	if (number_of(info, "MemAvailable:", &kib)) {
		number_of(info, "SwapFree:", &swap);
		lower(&least, (kib + swap) * 1024, what, size, "MemAvailable");
	}
	/* "0::/a/b"; "5:memory:/a/b" of the old kind */
	while (groups && fgets(line, sizeof(line), groups)) {
		char *path = strchr(line, '/');
		bool old = strstr(line, ":memory:") != NULL;

		line[strcspn(line, "\n")] = '\0';
		if (path && (old || strncmp(line, "0::", 3) == 0))
			lower_by_cgroups(root, old, path, &least, what, size);
	}
	return least;
}

uint64_t load_room(char *what, size_t size)
{
	return load_room_of("", what, size);
}
