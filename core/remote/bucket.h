/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket: writes to buckets (s3://, gs://): objects by one request, and multipart uploads, which
 * are invisible until they are completed. Requests set no access rights of objects: the owner of
 * the bucket decides them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_remote;

/*
 * Find the bucket that @url names, and the key in the bucket, malloc'ed. No request is made. @out
 * NULL: only check the spelling of @url. -EINVAL, -ENOMEM.
 */
int dcp_bucket_of(const char *url, struct dcp_remote **out, char **key, struct dcp_err *err);

enum dcp_put_what {
	DCP_PUT_OBJECT,   /* @body is the object */
	DCP_PUT_BEGIN,    /* begin an upload; @got is its id */
	DCP_PUT_PART,     /* @body is part number @part (from 1) of the upload */
	DCP_PUT_COMPLETE, /* @body is the XML list of the parts; dcp_bucket_add_part() */
	DCP_PUT_ABORT,    /* no error if the upload is gone */
	DCP_PUT_DELETE,   /* delete the object; no error if it is gone */
	/*
	 * @got is DCP_BUCKET_OWN if dcpfs wrote the object; NULL: another program wrote it, or it
	 * is gone
	 */
	DCP_PUT_LOOK,
};

/*
 * Objects and uploads of dcpfs carry this mark, which is lost when another program writes the
 * object.
 */
#define DCP_BUCKET_OWN "dcpfs"

struct dcp_put {
	enum dcp_put_what what;
	const char *key;
	const char *upload;
	const char *body;
	size_t n;
	uint64_t size; /* size of the object that is completed */
	uint32_t part;
	/* put an object or complete an upload only if the key has no object, else -EEXIST */
	bool fresh;
	/* ---- the answer ---- */
	int rc;
	char *got; /* id of an upload, or tag of a part, malloc'ed */
};

/*
 * Make @n requests in parallel; a failed request does not stop the others. 0, or the error of the
 * first that failed: -ENXIO (no such bucket), -EACCES, -EEXIST, -ENOSPC, -EIO, ... A request that
 * the server has executed, but whose answer was lost, counts as done.
 */
int dcp_bucket_put(struct dcp_remote *r, struct dcp_put *puts, size_t n, struct dcp_err *err);

/*
 * Append a part, <Part>...</Part>, to the body that completes an upload. The body begins with
 * DCP_BUCKET_PARTS and ends with DCP_BUCKET_PARTS_END.
 */
#define DCP_BUCKET_PARTS "<CompleteMultipartUpload>"
#define DCP_BUCKET_PARTS_END "</CompleteMultipartUpload>"
struct dcp_buf;
void dcp_bucket_add_part(struct dcp_buf *body, uint32_t part, const char *tag);

/*
 * Call @fn for each unfinished upload (neither completed nor aborted) of a key that begins with
 * @prefix, up to a thousand. 0, -EACCES (uploads may not be listed), ..., or the result of @fn.
 */
typedef int dcp_upload_fn(void *ctx, const char *key, const char *upload, const char *begun);
int dcp_bucket_uploads(struct dcp_remote *r, const char *prefix, dcp_upload_fn *fn, void *ctx,
		       struct dcp_err *err);
