/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantized: which tensors of a version are codes, which mean numbers only together with their
 * scales?
 *
 *	P.weight (8-bit floats or integers, packed fours)  P.weight_scale_inv, P.scale, P.SCB, ...
 *	P.weight                                           P.weight.absmax, P.weight._scale
 *	P.qweight, P.weight_packed, P.gate_up_proj_blocks  P.scales, P.weight_scale, P.gate_up_proj_scales
 *
 * By keys and dtypes: codes of a few bits, and in the same module, or below the key, something
 * that is called a scale. Where config.json or its like says that the model is quantized, all
 * of a few bits are codes. Numbers of 16 bits and more in other modules are numbers.
 */
#pragma once
#include <stdbool.h>

struct dcp_err;
struct dcp_index;
struct dcp_quantized;
struct dcp_row;
struct dcp_version;

/* Of @v, and of @base, which @v shows under other keys (or NULL). *out NULL: nothing is. Freed
 * by the caller. -ENOMEM, or what the index gave. */
int dcp_quantized_find(const struct dcp_version *v, const struct dcp_version *base,
		       struct dcp_quantized **out, struct dcp_err *err);
void dcp_quantized_free(struct dcp_quantized *q);

/* What says that something of the version is quantized: a key, or the name of a file. */
const char *dcp_quantized_by(const struct dcp_quantized *q);
/* Is it a code or a scale? What says so: another key or the name of a file; NULL: it is a
 * number by itself. @q may be NULL. */
const char *dcp_quantized_row(const struct dcp_quantized *q, const struct dcp_row *row);

/* Fail with -ENOTSUP: @row may not be converted, by what dcp_quantized_row() said. */
int dcp_quantized_refuse(const struct dcp_row *row, const char *by, struct dcp_err *err);
