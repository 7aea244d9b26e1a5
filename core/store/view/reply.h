/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply: the answer to one request, which may go through several views: entries in the order of
 * the bytes. Bytes that lie in mapped files in few long runs are pointed at; all others are
 * copied into one buffer, which is taken when the first copy needs it. One thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct dcp_files;

#define DCP_REPLY_ENTRIES 512
#define DCP_REPLY_FILES 64 /* that one reply, or one request to a view, holds together */

struct dcp_reply {
	size_t size;                           /* of the whole request in bytes */
	void *(*take)(void *ctx, size_t size); /* the buffer; NULL: out of memory */
	void *ctx;
	bool copy; /* point at nothing */

	char *buf;   /* what take() gave; a copy lies at its place in the request */
	size_t done; /* bytes so far */
	uint32_t n, nheld;
	struct iovec entry[DCP_REPLY_ENTRIES];
	struct {
		struct dcp_files *files;
		uint32_t number;
	} held[DCP_REPLY_FILES]; /* open and mapped until the reply is finished */
};

/* An empty reply. The arrays are not cleared. */
void dcp_reply_begin(struct dcp_reply *r, size_t size, void *(*take)(void *ctx, size_t size),
		     void *ctx);

/* How many entries may point at bytes; the last one is left to copies. */
uint32_t dcp_reply_room(const struct dcp_reply *r);

/* Append @n bytes that stay where they are until the reply is finished. -ENOMEM: they had to be
 * copied. */
int dcp_reply_point(struct dcp_reply *r, const void *p, size_t n);

/* Where the next bytes of the reply are copied to, before dcp_reply_copied() appends them. NULL:
 * out of memory. */
void *dcp_reply_buffer(struct dcp_reply *r);
void dcp_reply_copied(struct dcp_reply *r, size_t n);

/* Release the files. The buffer remains the business of the owner of take(). */
void dcp_reply_finish(struct dcp_reply *r);
