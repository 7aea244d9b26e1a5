/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_stream: a torch.save file that is put together value by value: pk is its pickle.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct t_dir;

struct t_stream {
	struct dcp_buf pk;
	struct dcp_buf data[512];
	size_t n;
};
/* Push a tensor whose storage is a copy of @numel elements; of @shape, row-major, from @first.
 */
void t_stream_tensor(struct t_stream *s, const char *class, const void *p, size_t numel,
		     size_t size, size_t first, const int64_t *shape, size_t ndim);
/* Push the string key and then the value that follows. */
void t_stream_key(struct t_stream *s, const char *key);
/* Write it and start again. */
void t_stream_put(struct t_stream *s, const struct t_dir *d, const char *name);
