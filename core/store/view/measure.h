/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure: the statistics of the tensors of a version, read once and then kept beside its index.
 *
 * Sums of floating-point numbers depend on how they are split. So a tensor is measured in spans of
 * a fixed number of elements, which are joined in order; then the numbers are the same whoever
 * measures it, by one thread or by several.
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
	/* Bytes that are read at a time: a multiple of the size of every known element, also of
	 * 3 bytes. */
	DCP_MEASURE_CHUNK = 192 << 10,
	DCP_MEASURE_SPAN = 128, /* chunks */
};

/* Elements of a chunk; what has larger elements than a chunk is not read in elements. */
static inline uint64_t dcp_measure_chunk(uint32_t itemsize)
{
	return DCP_MAX((uint64_t)DCP_MEASURE_CHUNK / itemsize, 1);
}

/* What is known of a tensor: a record of those kept as DCP_MEASURED. */
#define DCP_MEASURED "stats"
struct dcp_measured {
	struct dcp_kept_head head; /* done: it was measured */
	struct dcp_stats s;
	uint64_t unwritten; /* it lies in a hole of its file */
};

/* Add @n elements of @t at @p, which are those from @first on, as dcp_stats_add() does; those
 * that are no numbers as bytes. */
void dcp_measure_add(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		     uint32_t itemsize, uint64_t first, const void *p, size_t n);

/* Asked while a tensor is read, of which @done elements of @all were; true: it is given up. */
struct dcp_measure_stop {
	bool (*asked)(void *ctx, uint64_t done, uint64_t all);
	void *ctx;
};

/* Read all of the tensor of row @id; @out->unwritten stays 0. @bins, zero before, and @stop may
 * be NULL. -EINTR: it was given up; as dcp_view_open() and dcp_view_read(). */
int dcp_measure(struct dcp_version *v, int64_t id, struct dcp_stats_bins *bins,
		const struct dcp_measure_stop *stop, struct dcp_measured *out,
		struct dcp_err *err);

/* Does the tensor of row @id, whose statistics are @s, lie where nothing was ever written? */
bool dcp_measure_is_unwritten(struct dcp_version *v, int64_t id, const struct dcp_stats *s);

/*
 * The statistics of a version that stays open: those kept, and those measured since, which are
 * kept from time to time and at the end. Safe from any thread.
 */
struct dcp_measures;

/* -ENOMEM. */
int dcp_measures_open(struct dcp_version *v, struct dcp_measures **out);
/* Keep what is new. Accepts NULL. The version must be open still. */
void dcp_measures_close(struct dcp_measures *m);

/* Of a row that is a tensor, if they are known. */
bool dcp_measures_know(struct dcp_measures *m, const struct dcp_row *row,
		       struct dcp_measured *out);

/*
 * The same; where they are not known, or with @bins (zero before, or NULL) always, the tensor is
 * measured as dcp_measure() does.
 */
int dcp_measures_get(struct dcp_measures *m, const struct dcp_row *row,
		     struct dcp_stats_bins *bins, const struct dcp_measure_stop *stop,
		     struct dcp_measured *out, struct dcp_err *err);
