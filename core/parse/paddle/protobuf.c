/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/paddle/protobuf.h"

#include <errno.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/source.h"

/* A tag and the longest number after it. */
enum { HEAD = 20, MAX_NUMBER = (1 << 29) - 1 };

struct dcp_pb dcp_pb_message(const struct dcp_source *src, uint64_t off, uint64_t n)
{
	uint64_t size = src->size, at = DCP_MIN(off, size);

	return (struct dcp_pb){ src, at, at + DCP_MIN(n, size - at) };
}

/* The bytes that come next, as far as the message goes. */
static int peek(const struct dcp_pb *pb, uint8_t head[HEAD], struct dcp_cur *c)
{
	size_t n = (size_t)DCP_MIN(pb->end - pb->at, HEAD);

	*c = dcp_cur(head, n);
	return dcp_source_read(pb->src, pb->at, head, n);
}

static int cut(const struct dcp_pb *pb, struct dcp_err *err)
{
	return dcp_fail_at(err, -EBADMSG, pb->at, "protobuf message ends inside a field");
}

int dcp_pb_next(struct dcp_pb *pb, struct dcp_pb_field *f, struct dcp_err *err)
{
	uint8_t head[HEAD];
	struct dcp_cur c;
	uint64_t tag;
	int rc;

	if (pb->at == pb->end)
		return 0;
	rc = peek(pb, head, &c);
	if (rc < 0)
		return dcp_fail_at(err, rc, pb->at, "cannot read a protobuf message");
	*f = (struct dcp_pb_field){ 0 };
	tag = dcp_cur_varint(&c);
	if (dcp_cur_ok(&c) && (tag >> 3 == 0 || tag >> 3 > MAX_NUMBER))
		return dcp_fail_at(err, -EBADMSG, pb->at, "protobuf field without a number");
	f->number = (uint32_t)(tag >> 3);
	f->wire = (enum dcp_pb_wire)(tag & 7);
	switch ((unsigned)(tag & 7)) {
	case DCP_PB_VARINT:
	case DCP_PB_LEN:
		f->value = dcp_cur_varint(&c);
		break;
	case DCP_PB_FIXED64:
		f->value = dcp_cur_le64(&c);
		break;
	case DCP_PB_FIXED32:
		f->value = dcp_cur_le32(&c);
		break;
	default:
		return dcp_fail_at(err, -EBADMSG, pb->at,
				   "protobuf field of wire type %u, expected 0, 1, 2 or 5",
				   (unsigned)(tag & 7));
	}
	if (!dcp_cur_ok(&c))
		return cut(pb, err);
	f->off = pb->at + (uint64_t)(c.p - head);
	if (f->wire == DCP_PB_LEN) {
		f->n = f->value;
		f->value = 0;
	}
	if (!dcp_range_ok(f->off, f->n, pb->end))
		return cut(pb, err);
	pb->at = f->off + f->n;
	return 1;
}

int dcp_pb_packed(struct dcp_pb *pb, uint64_t *value, struct dcp_err *err)
{
	uint8_t head[HEAD];
	struct dcp_cur c;
	int rc;

	if (pb->at == pb->end)
		return 0;
	rc = peek(pb, head, &c);
	if (rc < 0)
		return dcp_fail_at(err, rc, pb->at, "cannot read a protobuf message");
	*value = dcp_cur_varint(&c);
	if (!dcp_cur_ok(&c))
		return cut(pb, err);
	pb->at += (uint64_t)(c.p - head);
	return 1;
}

void dcp_pb_put_varint(struct dcp_buf *out, uint32_t number, uint64_t value)
{
	dcp_buf_varint(out, number << 3 | DCP_PB_VARINT);
	dcp_buf_varint(out, value);
}

void dcp_pb_put(struct dcp_buf *out, uint32_t number, const void *p, size_t n)
{
	dcp_buf_varint(out, number << 3 | DCP_PB_LEN);
	dcp_buf_varint(out, n);
	dcp_buf_add(out, p, n);
}
