/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/fetch.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/model/geometry/strided.h"
#include "core/origin/dir/pages.h"

enum {
	LOOKS = 2,
	LONG_RUN = 128 << 10,
	ADVICE_BYTES = 512 << 10,
	/* The kernel reads at most the read-ahead of the device for one range, which is at least
	 * this. */
	RANGE_BYTES = 128 << 10,
};

static uint64_t page_size(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

void dcp_io_add(struct dcp_io_counts *to, const struct dcp_io_counts *more)
{
	if (!to)
		return;
	__atomic_fetch_add(&to->mapped, more->mapped, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->read, more->read, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->span, more->span, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->direct, more->direct, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->fetched, more->fetched, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->runs, more->runs, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->ring, more->ring, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->fixed, more->fixed, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->calls, more->calls, __ATOMIC_RELAXED);
}

void dcp_fetch_begin(struct dcp_fetch *f, struct dcp_io_counts *io)
{
	f->n = 0;
	f->io = io;
	f->warm = 0;
	f->cold = false;
}

/* Try madvise() of all ranges in one call, where the kernel permits it; opening and closing its
 * handle takes two more calls. */
static bool ask_together(const struct dcp_fetch *f)
{
	int self = dcp_pidfd_open(getpid());
	ssize_t done;

	if (self < 0)
		return false;
	done = dcp_process_madvise(self, f->range, f->n, MADV_WILLNEED);
	close(self);
	return done > 0;
}

void dcp_fetch_end(struct dcp_fetch *f)
{
	if (f->n > 3 && ask_together(f)) {
		f->io->calls += 3;
	} else {
		for (size_t i = 0; i < f->n; i++)
			madvise(f->range[i].iov_base, f->range[i].iov_len, MADV_WILLNEED);
		f->io->calls += f->n;
	}
	f->n = 0;
}

static void add_range(struct dcp_fetch *f, const uint8_t *map, uint64_t lo, uint64_t hi)
{
	uint64_t page = page_size();

	lo -= lo % page;
	hi += (page - hi % page) % page;
	if (f->n) { /* the same page again, or the next */
		const struct iovec *last = &f->range[f->n - 1];
		uintptr_t end = (uintptr_t)last->iov_base + last->iov_len;

		if ((uintptr_t)map + lo < end &&
		    (uintptr_t)map + lo >= (uintptr_t)last->iov_base)
			lo = end - (uintptr_t)map;
	}
	while (lo < hi) {
		uint64_t n = DCP_MIN(hi - lo, RANGE_BYTES - lo % RANGE_BYTES);

		if (f->n == DCP_FETCH_RANGES)
			dcp_fetch_end(f);
		f->range[f->n++] = (struct iovec){ (void *)(uintptr_t)(map + lo), n };
		f->asked += n;
		lo += n;
	}
}

/* Add every range of @extent bytes, one for each index of the dimensions from @k on, which have
 * holes worth skipping. */
static void add_each(struct dcp_fetch *f, const uint8_t *map, const struct dcp_strided *s,
		     uint32_t k, uint64_t off, uint64_t extent)
{
	while (k < s->ndim && s->file_stride[k] <= DCP_FETCH_STRIDE)
		k++;
	if (k == s->ndim) {
		add_range(f, map, off, off + extent);
		return;
	}
	for (uint64_t i = 0; i < s->count[k]; i++)
		add_each(f, map, s, k + 1, off + i * s->file_stride[k], extent);
}

void dcp_io_fetched(struct dcp_io_counts *io, const struct dcp_strided *s, uint64_t bytes)
{
	bool by_run = s->ndim == 0;

	for (uint32_t k = 0; k < s->ndim; k++)
		by_run |= s->file_stride[k] > DCP_FETCH_STRIDE;
	*(by_run ? &io->direct : &io->span) += dcp_strided_bytes(s);
	io->fetched += bytes;
}

static bool is_there(struct dcp_fetch *f, const uint8_t *map, uint64_t at)
{
	f->io->calls++;
	return dcp_is_resident(map + at);
}

void dcp_fetch_run(struct dcp_fetch *f, int fd, const struct dcp_strided *s)
{
	if (s->ndim || s->run < LONG_RUN)
		return; /* many reads in parallel are as good, and each request would be a call */
	f->io->calls++;
	if (dcp_is_cached(fd, s->off + s->run - 1))
		return;
	for (uint64_t at = 0; at < s->run; at += ADVICE_BYTES) {
		dcp_bring_near(fd, s->off + at, DCP_MIN(s->run - at, (uint64_t)ADVICE_BYTES));
		f->io->calls++;
	}
}

void dcp_fetch_add(struct dcp_fetch *f, const uint8_t *map, const struct dcp_strided *s)
{
	uint64_t extent = s->run;

	if (!f->cold) {
		if (f->warm == LOOKS ||
		    (is_there(f, map, s->off) &&
		     is_there(f, map, s->off + dcp_strided_extent(s) - 1))) {
			f->warm = DCP_MIN(f->warm + 1, LOOKS);
			return;
		}
		f->cold = true;
	}
	for (uint32_t k = 0; k < s->ndim; k++)
		if (s->file_stride[k] <= DCP_FETCH_STRIDE)
			extent += (s->count[k] - 1) * s->file_stride[k];
	f->asked = 0;
	add_each(f, map, s, 0, s->off, extent);
	dcp_io_fetched(f->io, s, f->asked);
}
