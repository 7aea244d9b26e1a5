/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_paddle: Paddle's distributed checkpoints, written opcode by opcode: metadata of each
 * generation, and data files.
 *
 *	t_paddle_meta(&b, 'C', pieces, n);      pieces of one key follow each other
 *
 *	t_paddle_open(&b, 4);
 *	t_paddle_array(&b, "w", "f4", 2, shape, bytes, n);
 *	t_paddle_close(&b);
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct t_dir;

#define T_PD_NDIM 4

struct t_pd_piece {
	const char *key;
	const char *dtype; /* "float32" */
	uint32_t ndim;
	int64_t lo[T_PD_NDIM], len[T_PD_NDIM];
	int64_t shape[T_PD_NDIM]; /* of the tensor: generation C */
	bool flat;                /* generation C */
	int64_t run[2];
	const char *file; /* NULL: storage_metadata does not name it */
	int64_t replica;  /* -1: None */
	bool only_stored; /* state_dict_metadata does not list it: another copy of a piece */
};

/* The whole {uid}.metadata. */
void t_paddle_meta(struct dcp_buf *b, char generation, const struct t_pd_piece *p, size_t n);

/* The same in parts, for what is wrong in one of them. */
void t_paddle_class(struct dcp_buf *b, char generation, const char *name);
void t_paddle_state(struct dcp_buf *b, char generation, const struct t_pd_piece *p, size_t n);
void t_paddle_storage(struct dcp_buf *b, char generation, const struct t_pd_piece *p, size_t n);

/* A data file; arrays in protocol 2 carry their bytes as text. */
void t_paddle_open(struct dcp_buf *b, int protocol);
void t_paddle_array(struct dcp_buf *b, const char *key, const char *code, uint32_t ndim,
		    const int64_t *shape, const void *bytes, size_t n);
/* The same in slices of @each elements of @size bytes; @big, the pairs of
 * UnpackBigParamInfor@@, is written when all arrays are. */
void t_paddle_slices(struct dcp_buf *b, struct dcp_buf *big, const char *key, const char *code,
		     uint32_t ndim, const int64_t *shape, const void *bytes, size_t n,
		     size_t size, size_t each);
void t_paddle_sliced(struct dcp_buf *b, const struct dcp_buf *big);
/* StructuredToParameterName@@ and the end. */
void t_paddle_close(struct dcp_buf *b);

/* A save of one rank and one key, the float32s uid and 0.5: {below}{uid}.metadata and its data.
 */
void t_paddle_put(const struct t_dir *dir, const char *below, unsigned uid, const char *key);
