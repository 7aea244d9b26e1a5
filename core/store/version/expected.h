/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected: the tensors that config.json says a model has, compared with those of a mapped version.
 */
#pragma once
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/store/version/version.h"

struct dcp_expected {
	uint64_t tensors;                     /* that the model has */
	uint64_t needed;                      /* of the tensors that may not be missing */
	uint64_t missing, misshaped, foreign; /* foreign: the model has no such tensor */
	uint64_t retyped;     /* floating-point, but of another type than config.json says */
	enum dcp_dtype dtype; /* the type config.json says; OTHER: it says none */
	const char *family;   /* model_type of config.json, of @v; NULL: there is none */
	/* Called for each but the retyped: @what is "missing", "shape" or "foreign". May be
	 * NULL. */
	void (*say)(void *ctx, const char *what, const char *key, const char *text);
	void *ctx;
};

/*
 * 1: compared. 2: the same, but only some tensors of the model are known here. 0: there is no
 * config.json, its family is not known here, or @v is an adapter to that model. A tensor that
 * is there but cannot be read does not count as missing.
 */
int dcp_version_expect(struct dcp_version *v, struct dcp_expected *x, struct dcp_err *err);

/*
 * Append to @out, in one line without its end, why @v is no model that can be loaded.
 * DCP_WHOLE: nothing is known to be wrong, and nothing is appended; DCP_NO_CONFIG: there is no
 * config.json, or an adapter's; DCP_MISFIT: its tensors are not those of the model of config.json,
 * DCP_OTHER_NAMES: it has none of them.
 * -errno.
 */
enum dcp_fit { DCP_WHOLE, DCP_NO_CONFIG, DCP_MISFIT, DCP_OTHER_NAMES };
struct dcp_buf;
int dcp_version_fit(struct dcp_version *v, struct dcp_buf *out, struct dcp_err *err);
