/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ndarray: numpy arrays in pickles, as numpy pickles them. Modules have the names that they had
 * before numpy 2, which all numpys know.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/write/pickle.h"
#include "core/write/write.h"

/* What the arrays of one pickle share. Begin with zeros. */
struct dcp_ndarrays {
	struct dcp_pickler *p;
	struct dcp_writer *w;
	struct {
		bool known;
		uint32_t memo;
	} b, dtype[DCP_DTYPE_COUNT];
};

/* Does Paddle take such arrays? BF16 is u2 in them, F8 i1. */
bool dcp_ndarray_can(enum dcp_dtype dtype);

/* An array but for its dtype, whether it is column-major, and its bytes, which follow. */
void dcp_ndarray_open(struct dcp_ndarrays *a, uint32_t ndim, const uint64_t *shape);
/* The dtype '<', "f4", where it is not in the pickle yet; its number in the memo. @code must
 * stay. */
uint32_t dcp_ndarray_put_dtype(struct dcp_pickler *p, char order, const char *code);

/* Elements of a part from @off bytes on, as many as the shape says. 0, -ENOTSUP (a text is
 * needed and the set cannot count it), or what that gave. */
struct dcp_ndarray_of {
	enum dcp_dtype dtype;
	uint32_t ndim;
	const uint64_t *shape;
	size_t tensor, part;
	uint64_t off, nbytes;
};
int dcp_ndarray_put(struct dcp_ndarrays *a, const struct dcp_ndarray_of *of,
		    struct dcp_err *err);
/* All of a part. */
int dcp_ndarray_put_part(struct dcp_ndarrays *a, size_t tensor, size_t part,
			 struct dcp_err *err);
