/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_int: a header while it is read: as a whole (safetensors.c), an entry of it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/parse/safetensors/safetensors.h"

struct dcp_arena;

/* Names in messages are cut: a message has 511 bytes for everything. */
#define DCP_ST_NAME "tensor \"%.160s\""

struct dcp_st_reader {
	struct dcp_arena *arena;
	struct dcp_safetensors *out;
	struct dcp_err *err;
	const char *text; /* the header */
	size_t n;
	uint64_t base, data; /* first byte of the data section, and its length */
	struct dcp_err *cut; /* the first tensor that ends after it, if one does */
};

/* Where in the file a piece of the header's text lies, for messages. */
uint64_t dcp_st_at(const struct dcp_st_reader *r, struct dcp_bytes piece);

int dcp_st_no_memory(struct dcp_err *err);

/* A JSON string as text in the arena; @what says in messages what it should have been. */
int dcp_st_text(const struct dcp_st_reader *r, struct dcp_bytes piece, const char *what,
		const char **out);

/* Member @name of the header, which is no __metadata__. */
int dcp_st_entry(const struct dcp_st_reader *r, struct dcp_bytes name, struct dcp_bytes value,
		 struct dcp_safetensors_entry *e);
