/* SPDX-License-Identifier: Apache-2.0 */
/*
 * https: directories of web servers. A directory contains the names that its page links to
 * (listings of nginx, Apache, Caddy and Python), or the names in its file index.json. The length
 * and the tag of each file are requested in parallel.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"

enum { MOST_PAGE = 16 << 20 };

static int make_url(struct dcp_remote *r, const char *name, struct dcp_buf *out)
{
	dcp_buf_str(out, r->base);
	dcp_url_encode(out, name, strlen(name), true);
	return dcp_buf_error(out);
}

/* Take the size and tag of a file from the answer to HEAD. False: the answer has no length. */
static bool take_heads(struct dcp_listing *l, const struct dcp_http *h, struct dcp_item *item)
{
	dcp_auto_free char *length = dcp_http_header_copy(h, "content-length");
	dcp_auto_free char *tag = dcp_http_header_copy(h, "etag");
	dcp_auto_free char *modified = dcp_http_header_copy(h, "last-modified");

	if (!length || !dcp_is_number(length, &item->size))
		return false;
	item->tag = tag ? dcp_arena_strdup(&l->arena, tag) : NULL;
	item->modified = modified ? dcp_arena_strdup(&l->arena, modified) : NULL;
	item->mtime_ns = modified ? dcp_listing_time(modified) : 0;
	return true;
}

/* Request the length and the tag of each file. Missing files are left out. */
static int ask_each(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err)
{
	struct dcp_item *items = DCP_ITEMS(l->items, struct dcp_item);
	size_t n = DCP_NITEMS(l->items, struct dcp_item), kept = 0;
	struct dcp_http *h = calloc(n ? n : 1, sizeof(*h));
	struct dcp_buf *urls = calloc(n ? n : 1, sizeof(*urls));
	int rc = h && urls ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && rc == 0; i++) {
		size_t len = strlen(items[i].name);

		h[i] = (struct dcp_http){ .method = "HEAD",
					  .n = DCP_HTTP_ALL,
					  .size = UINT64_MAX,
					  .login = true,
					  .may_fail = !l->single };
		if (len && items[i].name[len - 1] == '/') { /* a directory: nothing to ask */
			h[i].url = NULL;
			continue;
		}
		rc = make_url(r, l->prefix, &urls[i]);
		dcp_url_encode(&urls[i], items[i].name, len, true);
		rc = rc ?: dcp_buf_error(&urls[i]);
		h[i].url = urls[i].p;
	}
	for (size_t i = 0, k; i < n && rc == 0; i = k + 1) {
		for (k = i; k < n && h[k].url;)
			k++;
		rc = k > i ? dcp_http_run(h + i, k - i, err) : 0;
	}
	for (size_t i = 0; i < n && rc == 0; i++) {
		struct dcp_item item = items[i];
		bool asked = h[i].url != NULL;

		if (asked && h[i].rc < 0 && h[i].rc != -ENOENT && h[i].rc != -EACCES)
			rc = dcp_fail(err, h[i].rc, "%s", h[i].why);
		if (!asked || (h[i].rc == 0 && take_heads(l, &h[i], &item)))
			items[kept++] = item;
	}
	l->items.n = kept * sizeof(*items);
	for (size_t i = 0; i < n && urls && h; i++) {
		dcp_buf_finish(&urls[i]);
		dcp_http_finish(&h[i]);
	}
	free(urls);
	free(h);
	return dcp_err_say(err, rc);
}

static int get_page(struct dcp_remote *r, const char *prefix, const char *name,
		    struct dcp_buf *text, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf to = DCP_BUF_INIT;
	struct dcp_http h = { .login = true };
	int rc = make_url(r, prefix, &to);

	dcp_buf_str(&to, name);
	h.url = to.p;
	rc = rc ?: dcp_buf_error(&to);
	if (rc == 0)
		rc = dcp_http_get(&h, MOST_PAGE, text, err);
	dcp_http_finish(&h);
	return rc;
}

/* nginx and Apache do not list names that begin with a dot, such as the .metadata beside files of
 * torch's DCP: ask for it. */
static int add_hidden(struct dcp_listing *l)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	size_t n = DCP_NITEMS(l->items, struct dcp_item), last = 0;
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		const char *file = dcp_listing_at(l, i)->name, *slash = strrchr(file, '/');
		size_t dir = slash ? (size_t)(slash - file) + 1 : 0;

		if (!dcp_has_extension(file, ".distcp") ||
		    (name.n && dir == last && strncmp(name.p, file, dir) == 0))
			continue;
		last = dir;
		dcp_buf_reset(&name);
		dcp_buf_printf(&name, "%.*s.metadata", (int)dir, file);
		rc = dcp_buf_error(&name)
			     ?: dcp_listing_add(l,
						&(struct dcp_item){ .name = name.p,
								    .size = UINT64_MAX },
						name.n);
	}
	return rc;
}

static int list_dir(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT, path = DCP_BUF_INIT;
	int rc = get_page(r, l->prefix, "", &text, err);

	if (rc == -ENOENT || rc == -EACCES) {
		int index;

		index = get_page(r, l->prefix, "index.json", &text, NULL);
		rc = index == -ENOENT ? rc : index;
	}
	if (rc < 0)
		return rc;
	dcp_buf_str(&path, "/");
	dcp_url_encode(&path, l->prefix, strlen(l->prefix), true);
	if (dcp_buf_error(&path))
		return dcp_err_say(err, -ENOMEM);
	rc = dcp_listing_read_page(l, text.p ? text.p : "", text.n, path.p, err);
	dcp_listing_settle(l);
	if (rc == 0)
		rc = dcp_err_say(err, add_hidden(l));
	dcp_listing_settle(l);
	return rc < 0 ? rc : ask_each(r, l, err);
}

static int list_file(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err)
{
	int rc = dcp_listing_add(l, &(struct dcp_item){ .name = "" }, 0);

	rc = rc ?: ask_each(r, l, err);
	return rc == 0 && !l->items.n ? -ENOENT : rc;
}

static const struct dcp_remote_ops https_ops = { .row = &dcp_origin_https,
						 .list = list_dir,
						 .one = list_file,
						 .url = make_url,
						 .login = true };
static const struct dcp_remote_ops http_ops = { .row = &dcp_origin_http,
						.list = list_dir,
						.one = list_file,
						.url = make_url,
						.login = true };

static int find_site(const char *source, const struct dcp_remote_ops *ops, struct dcp_site *out,
		     char **only, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	dcp_auto_free char *base = NULL;
	struct dcp_remote *r;
	struct dcp_url parts;
	const char *path;
	int rc;

	if (!dcp_url_split(source, &parts))
		return dcp_fail(err, -EINVAL,
				"%.300s: a source on a web server is https://HOST/DIRECTORY/, "
				"without a user, a query or a fragment",
				source);
	path = parts.path + (*parts.path == '/');
	if (asprintf(&base, "%.*s/", (int)(parts.path - source), source) < 0)
		return dcp_err_say(err, -ENOMEM);
	if (!dcp_url_decode(&name, path, strlen(path)) || dcp_buf_str(&name, "") < 0 ||
	    (name.n && !dcp_url_safe_name(name.p, name.n - (name.p[name.n - 1] == '/'))))
		return dcp_fail(err, -EINVAL, "%.300s: its path is none", source);
	if (!out)
		return 0;
	if (ops == &http_ops && !dcp_url_is_loopback(parts.host, parts.nhost) &&
	    !dcp_http_env("DCPFS_PLAIN_HTTP"))
		return dcp_fail(
			err, -EACCES,
			"%.300s: http:// is for this machine only, as others could change "
			"what comes; use https://, or set DCPFS_PLAIN_HTTP=1",
			source);
	rc = dcp_remote_find(ops, base, NULL, &r, err);
	return rc < 0 ? rc : dcp_site_remote(r, source, name.p ? name.p : "", out, only, err);
}

static int find_https(const char *source, struct dcp_site *out, char **only,
		      struct dcp_err *err)
{
	return find_site(source, &https_ops, out, only, err);
}

static int find_http(const char *source, struct dcp_site *out, char **only, struct dcp_err *err)
{
	return find_site(source, &http_ops, out, only, err);
}

const struct dcp_origin dcp_origin_https = {
	.name = "web server", .scheme = "https://", .find = find_https, DCP_REMOTE_ROW
};
const struct dcp_origin dcp_origin_http = {
	.name = "web server", .scheme = "http://", .find = find_http, DCP_REMOTE_ROW
};
