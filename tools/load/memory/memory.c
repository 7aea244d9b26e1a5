/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/clock.h"
#include "tools/load/error.h"

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
