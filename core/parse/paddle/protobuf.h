/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protobuf: the fields of one message, in the order they are written; and such fields written.
 *
 * The wire format and nothing else: which field means what is for the reader of a schema to
 * say. Nothing is copied: strings and messages inside are given by their place in the source.
 * Groups (wire types 3 and 4), which are no longer in use, are refused.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_buf;
struct dcp_err;
struct dcp_source;

enum dcp_pb_wire {
	DCP_PB_VARINT = 0,
	DCP_PB_FIXED64 = 1,
	DCP_PB_LEN = 2,
	DCP_PB_FIXED32 = 5,
};

/* The part of a message that was not read yet. */
struct dcp_pb {
	const struct dcp_source *src;
	uint64_t at, end;
};

struct dcp_pb_field {
	uint32_t number;
	enum dcp_pb_wire wire;
	uint64_t value;  /* of the fixed and varint ones */
	uint64_t off, n; /* of LEN: its bytes in the source */
};

/* The message at [@off, @off + @n) of @src. */
struct dcp_pb dcp_pb_message(const struct dcp_source *src, uint64_t off, uint64_t n);

/* Returns 1 and fills @f, 0 after the last field, -EBADMSG, or what the source gave. */
int dcp_pb_next(struct dcp_pb *pb, struct dcp_pb_field *f, struct dcp_err *err);

/*
 * The next number of a packed repeated field; @pb is the message that the field's bytes are.
 * Returns as dcp_pb_next() does.
 */
int dcp_pb_packed(struct dcp_pb *pb, uint64_t *value, struct dcp_err *err);

/* Append a field: a number; bytes, which may be a message. */
void dcp_pb_put_varint(struct dcp_buf *out, uint32_t number, uint64_t value);
void dcp_pb_put(struct dcp_buf *out, uint32_t number, const void *p, size_t n);
