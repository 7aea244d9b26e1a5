/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file: which arrays does one data file of a Paddle checkpoint hold, and where?
 *
 *	a pickle     dict of key -> numpy array (paddle.save), any protocol from 2 on
 *	safetensors  the same dict; under the name .distcp too: content decides, not the name
 *
 * In the pickle two keys are not arrays. StructuredToParameterName@@ maps keys to parameter
 * names and is skipped. UnpackBigParamInfor@@ says which keys were cut, in protocols 2 and 3,
 * into slices of less than 2^30 bytes: those arrays are listed whole again, in several parts.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/safetensors/safetensors.h"

struct dcp_err;
struct dcp_source;

/* Elements of an array, one after another in row-major order unless the array has strides. */
struct dcp_ppart {
	uint64_t off, nbytes; /* in the file */
	uint64_t n;           /* elements */
	uint8_t filter;       /* enum dcp_filter */
	bool swap;
};

struct dcp_parray {
	const char *error;    /* why it cannot be read; then nothing below but dtype counts */
	enum dcp_dtype dtype; /* as stored: U16 may mean BF16 */
	const char *dtype_name;
	uint32_t itemsize, ndim;
	const uint64_t *shape, *stride; /* stride NULL: row-major */
	const struct dcp_ppart *part;
	size_t nparts;
	bool slice; /* part of another array, which is listed too */
};

struct dcp_pfile {
	/* Called with each value that is not an array; may be NULL. 0 or a negative errno. */
	int (*other)(void *ctx, const char *key, struct dcp_pv v);
	void *ctx;
	struct dcp_intern names;
	struct dcp_buf arrays;         /* struct dcp_parray, one a name */
	struct dcp_safetensors header; /* of a file of that format */
	struct dcp_arena arena;
	struct dcp_buf cuts; /* while reading: what UnpackBigParamInfor@@ says */
};

/* Read @src into @f, which starts zeroed but for other and ctx. Returns 0, -EBADMSG, -E2BIG,
 * -ENOMEM, what @src or other gave. */
int dcp_pfile_read(struct dcp_pfile *f, const struct dcp_source *src, struct dcp_err *err);
void dcp_pfile_finish(struct dcp_pfile *f);

/* The array of that key, or NULL. */
const struct dcp_parray *dcp_pfile_find(const struct dcp_pfile *f, const char *key, size_t n);
