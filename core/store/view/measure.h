/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure: statistics of the tensors of a version. Each tensor is read once; the results are kept
 * beside the index.
 *
 * Sums of floating-point numbers depend on how they are split. So a tensor is measured in spans of
 * a fixed number of elements, which are joined in order: the result is the same for one thread and
 * for several.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/model/measure/stats.h"
#include "core/store/cache/cache.h"

struct dcp_err;
struct dcp_row;
struct dcp_version;

enum {
	/*
	 * Bytes read at a time: a multiple of the size of every known element, including 3 bytes.
	 */
	DCP_MEASURE_CHUNK = 192 << 10,
	DCP_MEASURE_SPAN = 128, /* chunks */
};

/* Elements of a chunk. If a single element is larger than a chunk, the tensor is not read by
 * elements. */
static inline uint64_t dcp_measure_chunk(uint32_t itemsize)
{
	return DCP_MAX((uint64_t)DCP_MEASURE_CHUNK / itemsize, 1);
}

/*
 * The statistics of a tensor: a kept record (core/store/cache/cache.h) under the name DCP_MEASURED.
 */
#define DCP_MEASURED "stats"
struct dcp_measured {
	struct dcp_kept_head head; /* head.done: the tensor was measured */
	struct dcp_stats s;
	uint64_t unwritten; /* the tensor lies in a hole of its file */
};

/* Add @n elements of dtype @t at @p, which begin with element @first, like dcp_stats_add().
 * Elements that are not numbers are added as bytes. */
void dcp_measure_add(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		     uint32_t itemsize, uint64_t first, const void *p, size_t n);

/* Asked while a tensor is read: @done of @all elements were read. True: give up. */
struct dcp_measure_stop {
	bool (*asked)(void *ctx, uint64_t done, uint64_t all);
	void *ctx;
};

/*
 * Read and measure the whole tensor of row @id; @out->unwritten stays 0. @bins (zeroed by the
 * caller) and @stop may be NULL. -EINTR: given up; other errors as dcp_view_open() and
 * dcp_view_read().
 */
int dcp_measure(struct dcp_version *v, int64_t id, struct dcp_stats_bins *bins,
		const struct dcp_measure_stop *stop, struct dcp_measured *out,
		struct dcp_err *err);

/* Does the tensor of row @id, whose statistics are @s, lie in a part of its file that was never
 * written? */
bool dcp_measure_is_unwritten(struct dcp_version *v, int64_t id, const struct dcp_stats *s);

/*
 * The statistics of a version that stays open: those kept earlier, and newly measured ones, which
 * are kept from time to time and at the end. Safe from any thread.
 */
struct dcp_measures;

/* -ENOMEM. */
int dcp_measures_open(struct dcp_version *v, struct dcp_measures **out);
/* Keep new statistics and close. Accepts NULL. The version must still be open. */
void dcp_measures_close(struct dcp_measures *m);

/* Get the statistics of the tensor @row, if they are known. */
bool dcp_measures_know(struct dcp_measures *m, const struct dcp_row *row,
		       struct dcp_measured *out);

/*
 * Get the statistics of the tensor @row. If they are not known, or if @bins (zeroed by the caller,
 * or NULL) is given, the tensor is measured as by dcp_measure().
 */
int dcp_measures_get(struct dcp_measures *m, const struct dcp_row *row,
		     struct dcp_stats_bins *bins, const struct dcp_measure_stop *stop,
		     struct dcp_measured *out, struct dcp_err *err);
