/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure: what is found by reading tensors whole: their statistics, and digests of their content.
 *
 * Each tensor of a version is measured once; the results are kept beside the index.
 *
 * Sums of floating-point numbers depend on how they are split. So a tensor is measured in spans of
 * a fixed number of elements, which are joined in order: the result is the same for one thread and
 * for several.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/model/measure/stats.h"
#include "core/store/cache/cache.h"

struct dcp_err;
struct dcp_row;
struct dcp_version;

enum {
	/* Bytes read at a time: a multiple of the size of every known element, including 3
	 * bytes. */
	DCP_MEASURE_CHUNK = 192 << 10,
	DCP_MEASURE_SPAN = 128, /* chunks */
};

/* Elements of a chunk. If a single element is larger than a chunk, the tensor is not read by
 * elements. */
static inline uint64_t dcp_measure_chunk(uint32_t itemsize)
{
	return DCP_MAX((uint64_t)DCP_MEASURE_CHUNK / itemsize, 1);
}

/* The statistics of a tensor: a kept record (core/store/cache/cache.h) under the name
 * DCP_MEASURED. */
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

/* The statistics of a version that stays open: those kept earlier, and newly measured ones, which
 * are kept from time to time and at the end. Safe from any thread. */
struct dcp_measures;

/* -ENOMEM. */
int dcp_measures_open(struct dcp_version *v, struct dcp_measures **out);
/* Keep new statistics and close. Accepts NULL. The version must still be open. */
void dcp_measures_close(struct dcp_measures *m);

/* Get the statistics of the tensor @row, if they are known. */
bool dcp_measures_know(struct dcp_measures *m, const struct dcp_row *row,
		       struct dcp_measured *out);

/* Get the statistics of the tensor @row. If they are not known, or if @bins (zeroed by the caller,
 * or NULL) is given, the tensor is measured as by dcp_measure(). */
int dcp_measures_get(struct dcp_measures *m, const struct dcp_row *row,
		     struct dcp_stats_bins *bins, const struct dcp_measure_stop *stop,
		     struct dcp_measured *out, struct dcp_err *err);

/*
 * digest: a hash of the content of a tensor, independent of how it is stored.
 *
 * XXH3 with 128 bits, seed 0, or SHA-256, over
 *
 *	the dtype's name ("BF16"), a NUL
 *	the number of dimensions and each of them, 8 bytes each, little-endian
 *	the elements as raw/ has them: row-major, little-endian
 *
 * written as 32 hex digits (the high half first), or as 64 for SHA-256. So the same tensor has the
 * same digest in every format, sharding and byte order. XXH3 does not protect against forgery.
 *
 * SHA-256 is Nettle's, which libarchive depends on. measure.c is the only file that includes its
 * headers.
 */

struct dcp_digesting;
struct dcp_progress;
struct dcp_view;

#define DCP_DIGEST_TEXT 65 /* with its NUL */

enum dcp_digest_kind { DCP_DIGEST_XXH3, DCP_DIGEST_SHA256 };

/* The same in steps, for a caller that reads the elements itself: begin, add them in order,
 * end. NULL: out of memory. */
struct dcp_digesting *dcp_digest_begin(enum dcp_digest_kind kind, const char *dtype_name,
				       uint32_t ndim, const uint64_t *shape);
void dcp_digest_add(struct dcp_digesting *d, const void *p, size_t n);
/* Writes the digest, and frees @d. */
void dcp_digest_end(struct dcp_digesting *d, char text[DCP_DIGEST_TEXT]);

/* The digest of a view opened as DCP_AS_RAW. Reads all of it and reports the bytes read to
 * @progress (may be NULL) under the tensor's key. 0, or the error of reading, in @err. */
int dcp_digest(const struct dcp_view *view, enum dcp_digest_kind kind,
	       const struct dcp_progress *progress, char text[DCP_DIGEST_TEXT],
	       struct dcp_err *err);

/* "3.8": the version of Nettle that dcpfs was built with. */
const char *dcp_digest_nettle_version(void);
