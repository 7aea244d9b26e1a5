/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3: buckets of Amazon S3 and servers that speak its protocol (AWS_ENDPOINT_URL), and of Google
 * Cloud Storage, which speaks it too.
 *
 *	s3://bucket/prefix    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION; credentials.c
 *	gs://bucket/prefix    GS_ENDPOINT_URL; credentials.c
 *
 * A list without a delimiter shows a thousand files with a request, whatever directories they are
 * in. So it is tried first; only if one directory fills the page, the other directories are listed
 * separately.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"
#include "core/remote/s3.h"

enum {
	MOST_PAGE = 16 << 20, /* bytes of a page of a list */
	DEEP_PAGES = 200,     /* of a list without a delimiter */
	BUCKET_MIN = 3,
	BUCKET_MAX = 63,
};

struct s3 {
	pthread_mutex_t lock; /* guards the members that can change */
	enum dcp_cloud cloud;
	char *bucket, *endpoint; /* NULL: Amazon's */
	char *region;
	struct dcp_credentials credentials;
	bool refused; /* the credentials were refused recently */
};

static struct s3 *own_of(const struct dcp_remote *r)
{
	return r->own;
}

/* ---- requests ---- */

static bool is_host_name(const char *bucket)
{
	for (; *bucket; bucket++)
		if (!dcp_is_digit(*bucket) && (*bucket < 'a' || *bucket > 'z') &&
		    *bucket != '-')
			return false;
	return true;
}

/* The URL of the bucket, with a slash at the end. */
static void add_bucket(const struct s3 *s, struct dcp_buf *out)
{
	if (s->endpoint)
		dcp_buf_printf(out, "%s/%s/", s->endpoint, s->bucket);
	else if (is_host_name(s->bucket))
		dcp_buf_printf(out, "https://%s.s3.%s.%s/", s->bucket, s->region,
			       dcp_amazon_domain(s->region));
	else
		dcp_buf_printf(out, "https://s3.%s.%s/%s/", s->region,
			       dcp_amazon_domain(s->region), s->bucket);
}

static int make_url(struct dcp_remote *r, const char *name, struct dcp_buf *out)
{
	struct s3 *s = own_of(r);

	pthread_mutex_lock(&s->lock);
	add_bucket(s, out);
	pthread_mutex_unlock(&s->lock);
	dcp_url_encode(out, name, strlen(name), true);
	return dcp_buf_error(out);
}

static int add_signature(struct dcp_remote *r, const struct dcp_http *h, struct dcp_buf *heads,
			 struct dcp_err *err)
{
	struct s3 *s = own_of(r);
	int rc;

	pthread_mutex_lock(&s->lock);
	rc = dcp_credentials_renew(&s->credentials, s->cloud, s->refused, err);
	s->refused = false;
	if (rc == 0)
		rc = dcp_credentials_sign(&s->credentials, h, s->region, "s3", heads);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static bool note_refusal(struct dcp_remote *r, const struct dcp_http *h)
{
	static const char *const old[] = { "<Code>ExpiredToken", "<Code>TokenRefreshRequired",
					   "<Code>InvalidToken", "<Code>RequestExpired" };
	struct s3 *s = own_of(r);

	for (size_t i = 0; i < DCP_LEN(old); i++)
		if (strstr(h->said, old[i])) {
			pthread_mutex_lock(&s->lock);
			s->refused = true;
			pthread_mutex_unlock(&s->lock);
			return true;
		}
	return false;
}

/* ---- lists ---- */

struct page {
	struct dcp_listing *l;
	const char *prefix;
	struct dcp_item item;
	struct dcp_buf key, tag, next;
	bool truncated;
	size_t files;
	char first[256]; /* the first directory of the page */
	size_t dirs;     /* number of directories, counted up to 2 */
};

static int set_text(struct dcp_buf *to, const char *text, size_t n)
{
	dcp_buf_reset(to);
	return dcp_buf_add(to, text, n) ?: dcp_buf_add(to, "", 0);
}

/* Write the tag as in headers, because some servers (rclone) list it without its quotes. */
static int set_tag(struct dcp_buf *to, const char *text, size_t n)
{
	bool bare = n && *text != '"' && strncmp(text, "W/", 2) != 0;

	dcp_buf_reset(to);
	dcp_buf_printf(to, "%s%s%s", bare ? "\"" : "", text, bare ? "\"" : "");
	return dcp_buf_error(to);
}

static void note_dir(struct page *p, const char *name, size_t n)
{
	const char *slash = memchr(name, '/', n);
	size_t len = slash ? (size_t)(slash - name) : 0;

	if (!slash || len >= sizeof(p->first) || p->dirs > 1)
		return;
	if (!p->dirs || strncmp(p->first, name, len) != 0 || p->first[len])
		p->dirs++;
	memcpy(p->first, name, len);
	p->first[len] = '\0';
}

static int add_item(struct page *p)
{
	size_t skip = strlen(p->prefix), n = p->key.n;
	const char *name = p->key.p;
	int rc = 0;

	/* skip keys of other lists, and markers of directories */
	if (n >= skip && strncmp(name ? name : "", p->prefix, skip) == 0 &&
	    (n > skip || p->l->single) && strlen(name) == n &&
	    (p->l->single ? n == skip : name[n - 1] != '/')) {
		p->item.name = name + skip;
		p->item.tag = p->tag.n ? p->tag.p : NULL;
		note_dir(p, p->item.name, n - skip);
		rc = dcp_listing_add(p->l, &p->item, n - skip);
		p->files++;
	}
	p->item = (struct dcp_item){ 0 };
	dcp_buf_reset(&p->key);
	dcp_buf_reset(&p->tag);
	return rc;
}

static int add_dir(struct page *p, const char *name, size_t n)
{
	size_t skip = strlen(p->prefix);

	if (n <= skip + 1 || strncmp(name, p->prefix, skip) != 0 || name[n - 1] != '/')
		return 0;
	p->files++;
	return dcp_listing_add(p->l, &(struct dcp_item){ .name = name + skip }, n - skip);
}

static int on_element(void *ctx, const char *path, const char *text, size_t n)
{
	struct page *p = ctx;
	uint64_t size;
	int rc = 0;

	if (!dcp_take_text(&path, "ListBucketResult/"))
		return 0;
	if (strcmp(path, "Contents/Key") == 0)
		rc = set_text(&p->key, text, n);
	else if (strcmp(path, "Contents/ETag") == 0)
		rc = set_tag(&p->tag, text, n);
	else if (strcmp(path, "Contents/Size") == 0)
		p->item.size = dcp_is_number(text, &size) ? size : 0;
	else if (strcmp(path, "Contents/LastModified") == 0)
		p->item.mtime_ns = dcp_listing_time(text);
	else if (strcmp(path, "Contents") == 0)
		rc = add_item(p);
	else if (strcmp(path, "CommonPrefixes/Prefix") == 0)
		rc = add_dir(p, text, n);
	else if (strcmp(path, "IsTruncated") == 0)
		p->truncated = strcmp(text, "true") == 0;
	else if (strcmp(path, "NextContinuationToken") == 0)
		rc = set_text(&p->next, text, n);
	return rc;
}

/* Read the region of the bucket from an answer that says the request went to the wrong region.
 * True: the region differs from the one that was tried. */
static bool read_region(struct s3 *s, const struct dcp_http *h)
{
	dcp_auto_free char *region = dcp_http_header_copy(h, "x-amz-bucket-region");
	bool other;

	if (!region || s->cloud != DCP_AMAZON)
		return false;
	pthread_mutex_lock(&s->lock);
	other = strcmp(region, s->region) != 0 && is_host_name(region);
	if (other) {
		free(s->region);
		s->region = region;
		region = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	return other;
}

static int head_of_list(void *ctx, const struct dcp_http *h, struct dcp_buf *heads,
			struct dcp_err *err)
{
	return add_signature(ctx, h, heads, err);
}

static bool list_refused(void *ctx, const struct dcp_http *h)
{
	return note_refusal(ctx, h);
}

static int get_page(struct dcp_remote *r, const struct page *p, const char *delimiter,
		    unsigned most, struct dcp_buf *out, struct dcp_err *err)
{
	struct s3 *s = own_of(r);
	int rc = 0;

	for (int i = 0; i < 2; i++) {
		dcp_auto_buf struct dcp_buf to = DCP_BUF_INIT;
		struct dcp_http h = { .head = head_of_list,
				      .refused = list_refused,
				      .ctx = r,
				      .plain = r->plain };

		pthread_mutex_lock(&s->lock);
		add_bucket(s, &to);
		pthread_mutex_unlock(&s->lock);
		dcp_buf_str(&to, "?");
		if (p->next.n) {
			dcp_buf_str(&to, "continuation-token=");
			dcp_url_encode(&to, p->next.p, p->next.n, false);
			dcp_buf_str(&to, "&");
		}
		if (*delimiter)
			dcp_buf_printf(&to, "delimiter=%s&", delimiter);
		dcp_buf_printf(&to, "list-type=2&max-keys=%u&prefix=", most);
		dcp_url_encode(&to, p->prefix, strlen(p->prefix), false);
		if (dcp_buf_error(&to))
			return -ENOMEM;
		h.url = to.p;
		h.direct = true; /* the signature would not fit the target of a redirect */
		if (err)
			*err = (struct dcp_err){ 0 };
		rc = dcp_http_get(&h, MOST_PAGE, out, err);
		if (rc == 0 && h.status / 100 == 3)
			rc = dcp_fail(err, -EIO,
				      "%s: the bucket is in another region; set AWS_REGION",
				      r->base);
		i += rc == 0 || !read_region(s, &h);
		dcp_http_finish(&h);
	}
	return rc == -ENOENT ? dcp_fail(err, -ENXIO, "%s: no such bucket", r->base) : rc;
}

/* Get all pages; or stop and return 1 if a deep list turns out too expensive. */
static int list_pages(struct dcp_remote *r, struct dcp_listing *l, const char *delimiter,
		      unsigned most, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT, last = DCP_BUF_INIT;
	struct page p = { .l = l, .prefix = l->prefix };
	int rc = 0;

	for (unsigned n = 1; rc == 0; n++) {
		p.truncated = false;
		p.files = p.dirs = 0;
		rc = get_page(r, &p, delimiter, most, &text, err);
		dcp_buf_reset(&p.next);
		if (rc == 0)
			rc = dcp_xml_each(text.p ? text.p : "", text.n, on_element, &p, err);
		if (rc < 0 || !p.truncated || l->single)
			break;
		if (!*delimiter && (p.dirs < 2 || n == DEEP_PAGES))
			rc = 1;
		else if (!p.next.n || !p.files ||
			 (last.n == p.next.n && memcmp(last.p, p.next.p, last.n) == 0))
			rc = dcp_fail(err, -EBADMSG, "%s: its list does not end", r->base);
		else
			rc = set_text(&last, p.next.p, p.next.n);
	}
	dcp_buf_finish(&p.key);
	dcp_buf_finish(&p.tag);
	dcp_buf_finish(&p.next);
	return rc;
}

static int list_objects(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err)
{
	int rc = list_pages(r, l, "", 1000, err);

	l->deep = rc == 0;
	if (rc > 0) {
		l->items.n = 0;
		rc = list_pages(r, l, "%2F", 1000, err);
	}
	return rc;
}

/* Of all names that begin with the prefix, the file itself comes first. */
static int list_file(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err)
{
	int rc = list_pages(r, l, "", 1, err);

	return rc == 0 && !l->items.n ? -ENOENT : rc;
}

static void describe_bucket(struct dcp_remote *r, struct dcp_buf *out)
{
	struct s3 *s = own_of(r);
	const char *kind = s->credentials.kind;

	pthread_mutex_lock(&s->lock);
	if (s->endpoint)
		dcp_buf_printf(out, " at %s", s->endpoint);
	dcp_buf_printf(out, ", region %s, credentials: %s", s->region, kind ? kind : "none");
	pthread_mutex_unlock(&s->lock);
}

/* ---- sources ---- */

#define BUCKETS_OF(origin)                                                                     \
	{                                                                                      \
		.row = &(origin), .list = list_objects, .one = list_file, .url = make_url,     \
		.head = add_signature, .refused = note_refusal, .about = describe_bucket       \
	}
static const struct dcp_remote_ops s3_ops = BUCKETS_OF(dcp_origin_s3);
static const struct dcp_remote_ops gs_ops = BUCKETS_OF(dcp_origin_gs);

static bool is_region(const char *s)
{
	return s && *s && strlen(s) < 64 && is_host_name(s);
}

static int make_s3(struct dcp_remote *r, struct dcp_err *err)
{
	const char *endpoint =
		dcp_http_env("AWS_ENDPOINT_URL_S3") ?: dcp_http_env("AWS_ENDPOINT_URL");
	const char *region = dcp_http_env("AWS_REGION") ?: dcp_http_env("AWS_DEFAULT_REGION");
	dcp_auto_free char *of_profile = NULL, *endpoint_of_profile = NULL;
	struct s3 *s = calloc(1, sizeof(*s));
	struct dcp_url parts;
	size_t n;

	if (!s)
		return dcp_err_say(err, -ENOMEM);
	pthread_mutex_init(&s->lock, NULL);
	s->cloud = r->ops == &gs_ops ? DCP_GOOGLE : DCP_AMAZON;
	if (s->cloud == DCP_GOOGLE) {
		endpoint = dcp_http_env("GS_ENDPOINT_URL") ?: "https://storage.googleapis.com";
		region = "auto";
	} else {
		of_profile = region ? NULL : dcp_credentials_profile("region");
		endpoint_of_profile = endpoint ? NULL : dcp_credentials_profile("endpoint_url");
	}
	endpoint = endpoint ? endpoint : endpoint_of_profile;
	region = region ? region : of_profile;
	s->region = strdup(is_region(region) ? region : "us-east-1");
	s->bucket = strndup(r->base + 5, strlen(r->base) - 6);
	s->endpoint = endpoint ? strdup(endpoint) : NULL;
	r->own = s;
	if (!s->region || !s->bucket || (endpoint && !s->endpoint))
		return dcp_err_say(err, -ENOMEM);
	if (!endpoint)
		return 0;
	r->plain = true;
	if (!dcp_url_split(endpoint, &parts))
		return dcp_fail(err, -EINVAL, "AWS_ENDPOINT_URL: %.200s is no URL of a server",
				endpoint);
	for (n = strlen(s->endpoint); n && s->endpoint[n - 1] == '/'; n--)
		s->endpoint[n - 1] = '\0';
	r->server = s->endpoint;
	return 0;
}

int dcp_bucket_of(const char *source, struct dcp_remote **out, char **key, struct dcp_err *err)
{
	const struct dcp_remote_ops *ops = strncmp(source, "gs://", 5) == 0 ? &gs_ops : &s3_ops;
	const char *bucket = source + 5;
	size_t n = strcspn(bucket, "/"), len;
	dcp_auto_free char *base = NULL, *name = NULL;
	int rc;

	for (size_t i = 0; i < n; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_",
			    bucket[i]))
			n = 0;
	if (n < BUCKET_MIN || n > BUCKET_MAX)
		return dcp_fail(err, -EINVAL, "%.300s: a source in a bucket is %sBUCKET/PREFIX",
				source, ops->row->scheme);
	name = strdup(bucket + n + (bucket[n] == '/'));
	len = name ? strlen(name) : 0;
	if (!name || asprintf(&base, "%.*s/", (int)(n + 5), source) < 0)
		return dcp_err_say(err, -ENOMEM);
	if (len && !dcp_url_safe_name(name, len - (name[len - 1] == '/')))
		return dcp_fail(err, -EINVAL,
				"%.300s: a prefix has no empty parts, no \".\" and no \"..\"",
				source);
	if (!out)
		return 0;
	rc = dcp_remote_find(ops, base, make_s3, out, err);
	if (rc < 0)
		return rc;
	*key = name;
	name = NULL;
	return 0;
}

static int find_site(const char *source, struct dcp_site *out, char **only, struct dcp_err *err)
{
	dcp_auto_free char *name = NULL;
	struct dcp_remote *r = NULL;
	int rc = dcp_bucket_of(source, out ? &r : NULL, &name, err);

	if (!out)
		return rc;
	return rc < 0 ? rc : dcp_site_remote(r, source, name, out, only, err);
}

const struct dcp_origin dcp_origin_s3 = {
	.name = "S3", .scheme = "s3://", .find = find_site, DCP_REMOTE_ROW
};
const struct dcp_origin dcp_origin_gs = {
	.name = "Google Cloud Storage", .scheme = "gs://", .find = find_site, DCP_REMOTE_ROW
};
