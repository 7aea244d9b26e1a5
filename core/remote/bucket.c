/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/s3.h"

#include <errno.h>
#include <nettle/base16.h>
#include <nettle/md5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"

enum {
	MOST_ANSWER = 64 << 10,
	MOST_LIST = 4 << 20,
	CLEAN_TRIES = 4,   /* for requests that only clean up */
	TRIES = 5,         /* for answers that are an error although their status is success */
	PAUSE_US = 100000, /* 5 times after the first try, 10 after the second */
	TAG = 48,
};

#define MARK "x-amz-meta-written-by"

/* A request and its result. */
struct one {
	struct dcp_put *put;
	struct dcp_remote *r;
	struct dcp_buf url, answer;
	bool plain; /* sent without its condition, which the server does not support */
	char code[64];
};

static int add_put_headers(void *ctx, const struct dcp_http *h, struct dcp_buf *heads,
			   struct dcp_err *err)
{
	const struct one *o = ctx;
	const struct dcp_put *p = o->put;
	int rc = o->r->ops->head(o->r, h, heads, err);

	/* else libcurl says that it is a form, which some servers parse */
	if (rc == 0 && h->body)
		dcp_buf_printf(heads, "Content-Type: application/%s\n",
			       p->what == DCP_PUT_COMPLETE ? "xml" : "octet-stream");
	if (rc == 0 && p->fresh && !o->plain)
		dcp_buf_str(heads, "If-None-Match: *\n");
	return rc < 0 ? rc : dcp_buf_error(heads);
}

static bool is_refused(void *ctx, const struct dcp_http *h)
{
	const struct one *o = ctx;

	return o->r->ops->refused(o->r, h);
}

static int take_answer(void *ctx, uint64_t at, const char *p, size_t n)
{
	struct one *o = ctx;

	o->answer.n = at ? o->answer.n : 0;
	return dcp_buf_add(&o->answer, p, n);
}

static int make_url(struct one *o)
{
	const struct dcp_put *p = o->put;
	struct dcp_buf *url = &o->url;
	int rc;

	dcp_buf_reset(url);
	rc = o->r->ops->url(o->r, p->key, url);
	if (p->what == DCP_PUT_BEGIN)
		dcp_buf_str(url, "?uploads=");
	if (p->what == DCP_PUT_PART)
		dcp_buf_printf(url, "?partNumber=%u", p->part);
	if (p->upload) {
		dcp_buf_printf(url, "%suploadId=", p->what == DCP_PUT_PART ? "&" : "?");
		dcp_url_encode(url, p->upload, strlen(p->upload), false);
	}
	return rc < 0 ? rc : dcp_buf_error(url);
}

/* ---- answers ---- */

static int on_answer(void *ctx, const char *path, const char *text, size_t n)
{
	struct one *o = ctx;
	const char *last = strrchr(path, '/');
	bool is_id = last && (strcmp(last, "/UploadId") == 0 ||
			      (strcmp(last, "/ETag") == 0 && !o->put->got));

	if (strcmp(path, "Error/Code") == 0)
		snprintf(o->code, sizeof(o->code), "%s", text);
	if (!is_id)
		return 0;
	free(o->put->got);
	o->put->got = strndup(text, n);
	return o->put->got ? 0 : -ENOMEM;
}

/* Read the result of a request from @h. */
static int read_answer(struct one *o, const struct dcp_http *h, struct dcp_err *err)
{
	struct dcp_put *p = o->put;
	int rc = 0;

	if (p->what == DCP_PUT_PART || p->what == DCP_PUT_OBJECT)
		p->got = dcp_http_header_copy(h, "etag");
	if (p->what == DCP_PUT_LOOK)
		p->got = dcp_http_header_copy(h, MARK);
	if (p->what == DCP_PUT_BEGIN || p->what == DCP_PUT_COMPLETE)
		rc = dcp_xml_each(o->answer.p ? o->answer.p : "", o->answer.n, on_answer, o,
				  err);
	if (rc == 0 && o->code[0])
		return dcp_fail(err, -EIO, "%s%s: %s", o->r->base, p->key, o->code);
	if (rc == 0 && !p->got && (p->what == DCP_PUT_PART || p->what == DCP_PUT_BEGIN))
		return dcp_fail(err, -EBADMSG, "%s%s: the server's answer has no %s",
				o->r->base, p->key,
				p->what == DCP_PUT_PART ? "ETag" : "UploadId");
	return rc;
}

/* ---- was it done, although the answer was lost? ---- */

static int compare_body(void *ctx, uint64_t at, const char *p, size_t n)
{
	const struct dcp_put *put = ctx;

	return at + n <= put->n && memcmp(put->body + at, p, n) == 0 ? 0 : -EILSEQ;
}

struct comparing {
	struct one *o;
	uint64_t n;
};

static int head_to_compare(void *ctx, const struct dcp_http *h, struct dcp_buf *heads,
			   struct dcp_err *err)
{
	const struct comparing *c = ctx;

	return c->o->r->ops->head(c->o->r, h, heads, err);
}

static int take_to_compare(void *ctx, uint64_t at, const char *p, size_t n)
{
	struct comparing *c = ctx;

	c->n = at + n;
	return compare_body(c->o->put, at, p, n);
}

/* Compute the tag of an object of the parts that @body lists: a hash of their hashes. False: the
 * tags of the parts are not hashes. */
static bool make_tag(const char *body, char out[TAG])
{
	uint8_t hash[MD5_DIGEST_SIZE];
	struct md5_ctx all;
	unsigned n = 0;

	md5_init(&all);
	for (const char *p = body; (p = strstr(p, "<ETag>")); n++) {
		p += strlen("<ETag>");
		p += *p == '"';
		for (size_t i = 0; i < sizeof(hash); i++, p += 2)
			if (sscanf(p, "%2hhx", &hash[i]) != 1)
				return false;
		md5_update(&all, sizeof(hash), hash);
	}
	md5_digest(&all, sizeof(hash), hash);
	base16_encode_update(out, sizeof(hash), hash);
	snprintf(out + 2 * sizeof(hash), TAG - 2 * sizeof(hash), "-%u", n);
	return true;
}

/* Is it the object that was put? Parts of an upload cannot be read again, so its length and
 * tag are compared. */
static bool is_there(struct one *o)
{
	const struct dcp_put *p = o->put;
	struct comparing c = { o, 0 };
	struct dcp_listing *l = NULL;
	const char *within;
	char tag[TAG];
	bool found = false;

	if (p->what == DCP_PUT_OBJECT) {
		struct dcp_http h = { .url = o->url.p,
				      .head = head_to_compare,
				      .take = take_to_compare,
				      .ctx = &c,
				      .n = DCP_HTTP_ALL,
				      .size = p->n,
				      .plain = o->r->plain };

		found = dcp_http_run(&h, 1, NULL) == 0 && c.n == p->n;
		dcp_http_finish(&h);
		return found;
	}
	dcp_remote_distrust(o->r);
	if (p->what == DCP_PUT_COMPLETE &&
	    dcp_remote_list(o->r, p->key, true, true, &l, &within, NULL) == 0) {
		const struct dcp_item *item = dcp_listing_find(l, "");

		found = item && item->size == p->size && item->tag && make_tag(p->body, tag) &&
			strstr(item->tag, tag);
	}
	dcp_remote_give(o->r, l);
	return found;
}

/* ---- making them ---- */

static bool is_cleanup(const struct dcp_put *p)
{
	return p->what == DCP_PUT_ABORT || p->what == DCP_PUT_DELETE;
}

/* Judge a request that failed; @err is filled in if it is an error. */
static int judge_failure(struct one *o, const struct dcp_http *h, struct dcp_err *err)
{
	struct dcp_put *p = o->put;
	const char *base = o->r->base;
	if (p->what >= DCP_PUT_ABORT && (h->rc == -ENOENT || h->status == 404))
		return 0;
	/* libcurl repeats a request when the connection is lost, so an earlier try may have
	 * succeeded */
	if ((h->status == 412 || h->status == 404) && is_there(o))
		return 0;
	if (p->fresh && (h->status == 412 || h->status == 409))
		return dcp_fail(err, -EEXIST, "%s%s: another program wrote it meanwhile", base,
				p->key);
	if (h->status == 507 || strstr(h->said, "<Code>QuotaExceeded") ||
	    strstr(h->said, "<Code>XMinioStorageFull"))
		return dcp_fail(err, -ENOSPC, "%s", h->why);
	if (strstr(h->said, "<Code>NoSuchBucket"))
		return dcp_fail(err, -ENXIO, "%s: no such bucket", base);
	if (strstr(h->said, "<Code>NoSuchUpload"))
		return dcp_fail(err, -EIO, "%s%s: its upload was aborted by another program",
				base, p->key);
	if (h->status / 100 == 3)
		return dcp_fail(err, -EIO,
				"%s: the bucket is in another region; set AWS_REGION", base);
	return dcp_fail(err, h->rc < 0 ? h->rc : -EIO, "%s",
			h->why[0] ? h->why : strerror(-h->rc));
}

static const char *method_of(const struct dcp_put *p)
{
	return is_cleanup(p)                                             ? "DELETE"
	       : p->what == DCP_PUT_LOOK                                 ? "HEAD"
	       : p->what == DCP_PUT_BEGIN || p->what == DCP_PUT_COMPLETE ? "POST"
									 : "PUT";
}

static void prepare_request(struct one *o, struct dcp_http *h)
{
	const struct dcp_put *p = o->put;

	*h = (struct dcp_http){ .method = method_of(p),
				.url = o->url.p,
				.body = p->n                       ? p->body
					: p->what >= DCP_PUT_ABORT ? NULL
								   : "",
				.fixed = p->what <= DCP_PUT_BEGIN ? MARK ":" DCP_BUCKET_OWN "\n"
								  : NULL,
				.nbody = p->n,
				.head = add_put_headers,
				.refused = is_refused,
				.take = take_answer,
				.ctx = o,
				.n = DCP_HTTP_ALL,
				.size = p->what == DCP_PUT_LOOK ? INT64_MAX : MOST_ANSWER,
				.plain = o->r->plain,
				.direct = true,
				.may_fail = true,
				.tries = is_cleanup(p) ? CLEAN_TRIES : 0 };
}

/* Should the request be made once more? */
static bool once_more(struct one *o, const struct dcp_http *h)
{
	static const char *const passing[] = { "InternalError", "SlowDown",
					       "ServiceUnavailable", "RequestTimeout" };

	if (h->status == 501 && o->put->fresh && !o->plain)
		return o->plain = true;
	for (size_t i = 0; i < DCP_LEN(passing); i++)
		if (strcmp(o->code, passing[i]) == 0)
			return true;
	return false;
}

/* Repeat the request alone, as long as that may help. */
static int finish_put(struct one *o, struct dcp_http *h, struct dcp_err *err)
{
	unsigned tried = 0;

	for (;;) {
		int rc;

		o->code[0] = '\0';
		rc = h->rc == 0 && h->status / 100 == 2 ? read_answer(o, h, err) : -EIO;
		if (rc == 0)
			return 0;
		if (!once_more(o, h) || ++tried == TRIES || dcp_http_stopped())
			return h->rc == 0 && h->status / 100 == 2 ? rc
								  : judge_failure(o, h, err);
		for (unsigned i = 0; o->code[0] && i < 5 * tried && !dcp_http_stopped(); i++)
			usleep(PAUSE_US);
		dcp_http_finish(h);
		prepare_request(o, h);
		dcp_http_run(h, 1, NULL);
	}
}

int dcp_bucket_put(struct dcp_remote *r, struct dcp_put *puts, size_t n, struct dcp_err *err)
{
	struct one *all = calloc(n + 1, sizeof(*all));
	struct dcp_http *h = calloc(n + 1, sizeof(*h));
	int rc = all && h ? 0 : dcp_err_say(err, -ENOMEM);

	for (size_t i = 0; i < n && rc == 0; i++) {
		all[i] = (struct one){ .put = &puts[i], .r = r };
		puts[i].got = NULL;
		rc = dcp_err_say(err, make_url(&all[i]));
		if (rc == 0)
			prepare_request(&all[i], &h[i]);
	}
	if (rc == 0)
		rc = dcp_http_run(h, n, err);
	for (size_t i = 0; i < n && all && h; i++) {
		struct dcp_err own = { .msg = "" };

		puts[i].rc = rc < 0 ? rc : finish_put(&all[i], &h[i], &own);
		if (rc == 0 && puts[i].rc < 0) {
			rc = puts[i].rc;
			if (err)
				*err = own;
		}
	}
	for (size_t i = 0; i < n && all && h; i++) {
		dcp_http_finish(&h[i]);
		dcp_buf_finish(&all[i].url);
		dcp_buf_finish(&all[i].answer);
	}
	free(all);
	free(h);
	return rc;
}

static void add_text(struct dcp_buf *out, const char *s)
{
	for (; *s; s++)
		if (*s == '&' || *s == '<' || *s == '>')
			dcp_buf_printf(out, "&#%d;", *s);
		else
			dcp_buf_add(out, s, 1);
}

void dcp_bucket_add_part(struct dcp_buf *body, uint32_t part, const char *tag)
{
	dcp_buf_printf(body, "<Part><PartNumber>%u</PartNumber><ETag>", part);
	add_text(body, tag);
	dcp_buf_str(body, "</ETag></Part>");
}

/* ---- unfinished uploads ---- */

struct uploads {
	struct dcp_remote *r;
	dcp_upload_fn *fn;
	void *ctx;
	struct dcp_buf key, id, begun;
};

static int head_of_uploads(void *ctx, const struct dcp_http *h, struct dcp_buf *heads,
			   struct dcp_err *err)
{
	const struct uploads *u = ctx;

	return u->r->ops->head(u->r, h, heads, err);
}

static int keep_text(struct dcp_buf *to, const char *text, size_t n)
{
	dcp_buf_reset(to);
	dcp_buf_add(to, text, n);
	return dcp_buf_add(to, "", 0);
}

static int on_upload(void *ctx, const char *path, const char *text, size_t n)
{
	struct uploads *u = ctx;

	if (!dcp_take_text(&path, "ListMultipartUploadsResult/Upload"))
		return 0;
	if (strcmp(path, "/Key") == 0)
		return keep_text(&u->key, text, n);
	if (strcmp(path, "/UploadId") == 0)
		return keep_text(&u->id, text, n);
	if (strcmp(path, "/Initiated") == 0)
		return keep_text(&u->begun, text, n);
	if (*path || !u->key.n || !u->id.n)
		return 0;
	return u->fn(u->ctx, u->key.p, u->id.p, u->begun.n ? u->begun.p : "");
}

int dcp_bucket_uploads(struct dcp_remote *r, const char *prefix, dcp_upload_fn *fn, void *ctx,
		       struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf url = DCP_BUF_INIT, text = DCP_BUF_INIT;
	struct uploads u = { .r = r, .fn = fn, .ctx = ctx };
	struct dcp_http h = { .head = head_of_uploads, .ctx = &u, .plain = r->plain };
	int rc = r->ops->url(r, "", &url);

	dcp_buf_str(&url, "?prefix=");
	dcp_url_encode(&url, prefix, strlen(prefix), false);
	dcp_buf_str(&url, "&uploads=");
	if (rc == 0)
		rc = dcp_buf_error(&url);
	h.url = url.p;
	h.direct = true;
	if (rc == 0)
		rc = dcp_http_get(&h, MOST_LIST, &text, err);
	dcp_http_finish(&h);
	if (rc == 0)
		rc = dcp_xml_each(text.p ? text.p : "", text.n, on_upload, &u, err);
	dcp_buf_finish(&u.key);
	dcp_buf_finish(&u.id);
	dcp_buf_finish(&u.begun);
	return rc;
}
