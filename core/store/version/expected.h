/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected: the tensors that config.json says a model has, held against those of a mapped version.
 */
#pragma once
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/store/version/version.h"

struct dcp_expected {
	uint64_t tensors; /* that the model has */
	uint64_t missing, misshaped, foreign;
	uint64_t retyped;     /* of another type in floating point than config.json says */
	enum dcp_dtype dtype; /* what it says; OTHER: nothing */
	/* Of each but the retyped: "missing", "shape" or "foreign"; may be NULL. */
	void (*say)(void *ctx, const char *what, const char *key, const char *text);
	void *ctx;
};

/*
 * 1, or 0: there is no config.json, its model is none that is known here, or it is quantized. What cannot
 * be read has a name here like all others.
 */
int dcp_version_expect(struct dcp_version *v, struct dcp_expected *x, struct dcp_err *err);
