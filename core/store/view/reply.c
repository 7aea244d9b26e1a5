/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/view/reply.h"

#include <errno.h>
#include <string.h>

#include "core/store/io/files.h"

void dcp_reply_begin(struct dcp_reply *r, size_t size, void *(*take)(void *ctx, size_t size),
		     void *ctx)
{
	r->size = size;
	r->take = take;
	r->ctx = ctx;
	r->copy = false;
	r->buf = NULL;
	r->done = 0;
	r->n = r->nheld = 0;
}

void dcp_reply_finish(struct dcp_reply *r)
{
	while (r->nheld) {
		r->nheld--;
		dcp_files_release(r->held[r->nheld].files, r->held[r->nheld].number);
	}
}

uint32_t dcp_reply_room(const struct dcp_reply *r)
{
	return r->copy || r->n >= DCP_REPLY_ENTRIES - 1 ? 0 : DCP_REPLY_ENTRIES - 1 - r->n;
}

void *dcp_reply_buffer(struct dcp_reply *r)
{
	if (!r->buf)
		r->buf = r->take(r->ctx, r->size);
	return r->buf ? r->buf + r->done : NULL;
}

/* Consecutive copies are one entry. */
void dcp_reply_copied(struct dcp_reply *r, size_t n)
{
	struct iovec *last = r->n ? &r->entry[r->n - 1] : NULL;
	char *at = r->buf + r->done;

	if (last && (char *)last->iov_base >= r->buf &&
	    (char *)last->iov_base + last->iov_len == at)
		last->iov_len += n;
	else
		r->entry[r->n++] = (struct iovec){ at, n };
	r->done += n;
}

int dcp_reply_point(struct dcp_reply *r, const void *p, size_t n)
{
	void *at;

	if (dcp_reply_room(r)) {
		r->entry[r->n++] = (struct iovec){ (void *)(uintptr_t)p, n };
		r->done += n;
		return 0;
	}
	at = dcp_reply_buffer(r);
	if (!at)
		return -ENOMEM;
	memcpy(at, p, n);
	dcp_reply_copied(r, n);
	return 0;
}
