/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply: the answer to one request, which may go through several views: entries in the order of the
 * bytes. Bytes that lie in mapped files in few long runs are pointed at; all others are copied into
 * one buffer, which is taken when the first byte is copied. One thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct dcp_files;

#define DCP_REPLY_ENTRIES 512
#define DCP_REPLY_FILES 64 /* files that a reply, or a request to a view, holds at once */

struct dcp_reply {
	size_t size;                           /* of the whole request in bytes */
	void *(*take)(void *ctx, size_t size); /* returns the buffer; NULL: out of memory */
	void *ctx;
	bool copy; /* copy all bytes, point at none */

	char *buf;   /* result of take(); a copied byte has the same offset as in the request */
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

/* Append @n bytes that stay valid until the reply is finished. -ENOMEM: the bytes had to be copied,
 * and memory ran out. */
int dcp_reply_point(struct dcp_reply *r, const void *p, size_t n);

/* Where the caller copies the next bytes of the reply before it appends them with
 * dcp_reply_copied(). NULL: out of memory. */
void *dcp_reply_buffer(struct dcp_reply *r);
void dcp_reply_copied(struct dcp_reply *r, size_t n);

/* Release the files. The owner of take() frees the buffer. */
void dcp_reply_finish(struct dcp_reply *r);
