/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantized: which tensors of a version are quantized, that is, codes that represent numbers only
 * together with their scales?
 *
 *	P.weight (8-bit floats or integers, packed fours)  P.weight_scale_inv, P.scale, P.SCB, ...
 *	P.weight                                           P.weight.absmax, P.weight._scale
 *	P.qweight, P.weight_packed, P.gate_up_proj_blocks  P.scales, P.weight_scale, P.gate_up_proj_scales
 *
 * Keys and dtypes decide: a tensor is a code if its elements have few bits and a tensor named like
 * a scale lies in the same module or below its key. If config.json or a similar file says that the
 * model is quantized, all tensors with elements of few bits are codes. Tensors of 16 bits and more
 * in other modules are plain numbers.
 */
#pragma once
#include <stdbool.h>

struct dcp_err;
struct dcp_index;
struct dcp_quantized;
struct dcp_row;
struct dcp_version;

/* Examine @v and @base (the version that @v shows under other keys, or NULL). *out NULL: nothing is
 * quantized. The caller frees *out. -ENOMEM, or the error of the index. */
int dcp_quantized_find(const struct dcp_version *v, const struct dcp_version *base,
		       struct dcp_quantized **out, struct dcp_err *err);
void dcp_quantized_free(struct dcp_quantized *q);

/* The key or the file name that shows that the version is quantized. */
const char *dcp_quantized_by(const struct dcp_quantized *q);
/* Is @row a code or a scale? Returns the key or file name that shows it; NULL: the elements are
 * plain numbers. @q may be NULL. */
const char *dcp_quantized_row(const struct dcp_quantized *q, const struct dcp_row *row);

/* Fail with -ENOTSUP: @row may not be converted; @by is the result of dcp_quantized_row(). */
int dcp_quantized_refuse(const struct dcp_row *row, const char *by, struct dcp_err *err);
