/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_int: what the files that read a {uid}.metadata share.
 *
 *	meta.c             keys
 *	read.c             the file
 *	add.c              one pair of each section
 *	box.c              where a piece lies
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/format/paddle/dist/meta/meta.h"
#include "core/parse/pickle/pickle.h"

/* ---- meta.c ---- */

/* Is @v an object of Paddle's class @name, under either module? */
bool dcp_pmeta_is(struct dcp_pv v, const char *name);

/* -E2BIG when it takes more memory than a file of its size can mean to say; -ENOMEM. */
int dcp_pmeta_check_size(const struct dcp_pmeta *m, struct dcp_err *err);

/* Text without NUL: one inside is written as C0 80, as everywhere in dcpfs. */
void dcp_pmeta_put_text(struct dcp_buf *b, const struct dcp_pnode *s);

int dcp_pmeta_key_number(struct dcp_pmeta *m, struct dcp_pv v, uint32_t *number,
			 struct dcp_err *err);

/* Make the key unreadable; the first thing found wrong with it stays. Returns what
 * dcp_pmeta_check_size() does. */
int dcp_pmeta_spoil(struct dcp_pmeta *m, uint32_t key, const struct dcp_err *why,
		    struct dcp_err *err);

/* ---- add.c ---- */

/* For struct dcp_section; @meta is the struct dcp_pmeta. */
int dcp_pmeta_add_state(void *meta, struct dcp_pv key, struct dcp_pv value,
			struct dcp_err *err);
int dcp_pmeta_add_record(void *meta, struct dcp_pv index, struct dcp_pv file,
			 struct dcp_err *err);
int dcp_pmeta_add_path(void *meta, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err);

/* ---- box.c ---- */

/* A tuple or list of numbers into dims. Returns 0, 1 when one of them is negative, or -EBADMSG
 * described in @why. */
int dcp_pmeta_take_dims(struct dcp_pmeta *m, const struct dcp_pv *v, const char *what,
			uint64_t *at, uint32_t *ndim, struct dcp_err *why);

/* @v's global_offset, local_shape (unless @bare) and run. 1: a piece of negative size. */
int dcp_pmeta_take_box(struct dcp_pmeta *m, struct dcp_pv v, bool bare,
		       struct dcp_pmeta_box *box, struct dcp_err *why);
