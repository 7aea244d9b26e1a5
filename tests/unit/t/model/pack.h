/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_pack: compressed files for tests, by libarchive's writers.
 */
#pragma once
#include <stddef.h>

#include "core/base/buf.h"
#include "core/origin/archive/archive.h"

/* Append the stream of @codec that @n bytes at @p are compressed to. */
void t_pack(struct dcp_buf *out, enum dcp_codec codec, const void *p, size_t n);
