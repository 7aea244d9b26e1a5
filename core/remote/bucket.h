/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket: writing to buckets (s3://, gs://): objects of one request, and uploads of many parts, of
 * which nothing is seen before they are completed. Nothing is said about who may read an object:
 * the bucket's owner says that.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_remote;

/*
 * The bucket that @url, which is of one, names, and the key in it, malloc'ed. Nothing is asked.
 * @out NULL: only whether it is spelt right. -EINVAL, -ENOMEM.
 */
int dcp_bucket_of(const char *url, struct dcp_remote **out, char **key, struct dcp_err *err);

enum dcp_put_what {
	DCP_PUT_OBJECT,   /* @body is the object */
	DCP_PUT_BEGIN,    /* an upload; @got is its id */
	DCP_PUT_PART,     /* @body is its part number @part, from 1 on */
	DCP_PUT_COMPLETE, /* @body is XML of its parts; dcp_bucket_add_part() */
	DCP_PUT_ABORT,    /* no error if it is gone */
	DCP_PUT_DELETE,   /* the object; no error if it is gone */
	/*
	 * @got is DCP_BUCKET_OWN if the object was written by these; NULL: by others, or it is gone
	 */
	DCP_PUT_LOOK,
};

/* Objects and uploads carry a mark, which is lost when another program writes the object. */
#define DCP_BUCKET_OWN "dcpfs"

struct dcp_put {
	enum dcp_put_what what;
	const char *key;
	const char *upload;
	const char *body;
	size_t n;
	uint64_t size; /* of the object that is completed */
	uint32_t part;
	bool fresh; /* an object, or an upload completed: only if the key has none, else -EEXIST */
	/* ---- what came ---- */
	int rc;
	char *got; /* an upload's id, or the tag of a part, malloc'ed */
};

/*
 * Make @n of them, side by side; each is tried whatever becomes of the others. 0, or what the first
 * that failed gave: -ENXIO (no such bucket), -EACCES, -EEXIST, -ENOSPC, -EIO, ... What was done
 * although the answer was lost counts as done.
 */
int dcp_bucket_put(struct dcp_remote *r, struct dcp_put *puts, size_t n, struct dcp_err *err);

/*
 * Append a part to the body that completes an upload: <Part>...</Part>; DCP_BUCKET_PARTS and _END
 * stand around all.
 */
#define DCP_BUCKET_PARTS "<CompleteMultipartUpload>"
#define DCP_BUCKET_PARTS_END "</CompleteMultipartUpload>"
struct dcp_buf;
void dcp_bucket_add_part(struct dcp_buf *body, uint32_t part, const char *tag);

/*
 * Uploads of keys that begin with @prefix which were begun and neither completed nor aborted: each
 * by @fn, up to a thousand. 0, -EACCES (they may not be asked for), ..., or what @fn gave.
 */
typedef int dcp_upload_fn(void *ctx, const char *key, const char *upload, const char *begun);
int dcp_bucket_uploads(struct dcp_remote *r, const char *prefix, dcp_upload_fn *fn, void *ctx,
		       struct dcp_err *err);
