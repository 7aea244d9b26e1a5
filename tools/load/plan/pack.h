/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack: how runs that lie apart in a file are sent, one after the other. Pure: no I/O, no communication.
 */
#pragma once
#include "core/model/geometry/strided.h"

/* Are the runs of @s sent so? Where gaps are no more than an eighth of them, they go along. */
bool load_is_packed(const struct dcp_strided *s);

/* @count runs of @run bytes, every @step bytes of the file from @off on. */
struct load_series {
	uint64_t off, run, step, count;
};

/* Pass the runs of @s to @fn in the order in which they are sent. Its negative return ends it and is returned. */
typedef int (*load_series_fn)(void *ctx, const struct load_series *s);
int load_pack(const struct dcp_strided *s, load_series_fn fn, void *ctx);

/* @s as it was sent: its strides are those of the message. */
struct dcp_strided load_packed(const struct dcp_strided *s);
