/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_dcp: .metadata pickles written opcode by opcode, for what is too big or too odd to keep
 * as a file. Protocol 2, no memo, everything spelled out.
 *
 *	t_dcp_begin(&b);
 *	t_dcp_section(&b, "state_dict_metadata");
 *	t_dcp_tensor(&b, "w", "float32", 1, shape, 2, chunks);   lo, len, lo, len
 *	t_dcp_end_section(&b);
 *	...
 *	t_dcp_end(&b);
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

void t_dcp_begin(struct dcp_buf *b);
void t_dcp_section(struct dcp_buf *b, const char *name);
void t_dcp_end_section(struct dcp_buf *b);
void t_dcp_end(struct dcp_buf *b);

/* Pairs of state_dict_metadata. @chunks: @n times offsets[ndim], sizes[ndim]. */
void t_dcp_tensor(struct dcp_buf *b, const char *key, const char *dtype, uint32_t ndim,
		  const int64_t *shape, size_t n, const int64_t *chunks);
void t_dcp_bytes(struct dcp_buf *b, const char *key);

/* A pair of storage_data; @lo NULL: of a byte item. */
void t_dcp_stored(struct dcp_buf *b, const char *key, uint32_t ndim, const int64_t *lo,
		  const char *file, int64_t off, int64_t nbytes);

/* A pair of Megatron's mcore_data: the true shape of a flattened tensor. */
void t_dcp_true_shape(struct dcp_buf *b, const char *key, uint32_t ndim, const int64_t *shape);

/* A pair of planner_data; components end with NULL. */
void t_dcp_path(struct dcp_buf *b, const char *key, const char *const *path);
