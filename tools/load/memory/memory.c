/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "tools/load/error.h"

enum {
	/* a wait sleeps after this time; copying 4 MiB takes a fifth of it */
	SOON_NS = 1000000,
	LOOK_NS = 20000,       /* after that, between polls of a mark */
	LOOK_MOST_NS = 1000000 /* once it has taken long */
};

/* ---- the host's memory ---- */

/* Huge pages where possible; pages that are not touched take no memory. */
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
	/* Preferred only: other nodes are used when this one is full. */
	if (syscall(SYS_mbind, at, end - at, MPOL_PREFERRED, nodes, most + 1, 0) < 0 &&
	    !d->why[0])
		snprintf(d->why, sizeof(d->why), "staging may be far from it: mbind: %s",
			 strerror(errno));
}

int load_device_wait(struct load_device *d, void *mark, int timeout_ms)
{
	struct timespec look = { .tv_nsec = LOOK_NS };
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
		if (now - began < SOON_NS) {
			sched_yield();
		} else {
			nanosleep(&look, NULL);
			look.tv_nsec = DCP_MIN(look.tv_nsec + look.tv_nsec / 8, LOOK_MOST_NS);
		}
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

/* Read the number after @name at the beginning of a line; @name "": the first number of the file.
 * @f may be NULL. */
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

/* The memory that is left below the limit of the cgroup @dir. Inactive pages of files do not count
 * as used, because the kernel reclaims them first. */
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

static void lower_least(uint64_t *least, uint64_t n, char *what, size_t size, const char *is)
{
	if (n >= *least)
		return;
	*least = n;
	snprintf(what, size, "%s", is);
}

/* Lower the number by the limits of the cgroup and of all cgroups above it. */
static void lower_by_cgroups(const char *root, bool old, char *path, uint64_t *least,
			     char *what, size_t size)
{
	for (;;) {
		char dir[PATH_MAX];
		char *slash;

		if (snprintf(dir, sizeof(dir), "%s/sys/fs/cgroup%s%s", root,
			     old ? "/memory" : "", path) < (int)sizeof(dir))
			lower_least(least,
				    old ? left_in(dir, "memory.limit_in_bytes",
						  "memory.usage_in_bytes",
						  "total_inactive_file ")
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
		lower_least(&least, (kib + swap) * 1024, what, size, "MemAvailable");
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
