/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_torch: torch.save streams for tests: pickles opcode by opcode, and what goes around them.
 *
 * Every t_pk function pushes what its name says, as Python's own pickler would spell it in
 * protocol 2; those of the second group take values off the stack again.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

void t_pk_start(struct dcp_buf *b);
void t_pk_stop(struct dcp_buf *b);

void t_pk_none(struct dcp_buf *b);
void t_pk_bool(struct dcp_buf *b, bool v);
void t_pk_int(struct dcp_buf *b, int64_t v);
void t_pk_float(struct dcp_buf *b, double v);
/* Two's complement, little-endian. */
void t_pk_long(struct dcp_buf *b, const void *le, uint8_t n);
void t_pk_str(struct dcp_buf *b, const char *s);
void t_pk_str_n(struct dcp_buf *b, const char *s, size_t n);
void t_pk_bytes(struct dcp_buf *b, const void *p, size_t n); /* protocol 3 */
void t_pk_global(struct dcp_buf *b, const char *module, const char *name);
void t_pk_list(struct dcp_buf *b);
void t_pk_dict(struct dcp_buf *b);
void t_pk_set(struct dcp_buf *b); /* protocol 4 */
void t_pk_mark(struct dcp_buf *b);
void t_pk_get(struct dcp_buf *b, uint8_t memo);

void t_pk_tuple(struct dcp_buf *b);    /* from the mark */
void t_pk_appends(struct dcp_buf *b);  /* from the mark */
void t_pk_setitems(struct dcp_buf *b); /* from the mark */
void t_pk_additems(struct dcp_buf *b); /* from the mark; protocol 4 */
void t_pk_reduce(struct dcp_buf *b);
void t_pk_newobj(struct dcp_buf *b);
void t_pk_build(struct dcp_buf *b);
void t_pk_persid(struct dcp_buf *b);
void t_pk_put(struct dcp_buf *b, uint8_t memo);

/* ---- what torch.save says ---- */

void t_pk_dims(struct dcp_buf *b, const int64_t *dims, size_t n);
/* The same as a list. */
void t_pk_numbers(struct dcp_buf *b, const int64_t *v, size_t n);

/* ("storage", torch <class>, key, "cpu", numel) as persistent id. */
void t_pk_storage(struct dcp_buf *b, const char *class, const char *key, int64_t numel);

/* _rebuild_tensor_v2 of the above. */
void t_pk_tensor(struct dcp_buf *b, const char *class, const char *key, int64_t numel,
		 int64_t first, const int64_t *shape, const int64_t *stride, size_t ndim);

struct dcp_source;
struct dcp_torch;
struct t_zip;

/* A torch.save archive around the pickle, with the four bytes "abcd" as storage 0, opened. @z
 * is to be freed behind it, and @src to be kept as long. */
struct dcp_torch *t_torch_stream(struct t_zip *z, struct dcp_source *src, const char *p,
				 size_t n);
