/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: models of the Hugging Face Hub.
 *
 *	hf://org/model            HF_TOKEN or the token file, HF_ENDPOINT
 *	hf://org/model@revision   a branch, a tag or a commit
 *
 * A revision is resolved to a commit on first use, so that its files do not change while they are
 * read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/parse/json.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"

enum { MOST_PAGE = 64 << 20, MOST_PAGES = 1000, MOST_TOKEN = 4096 };

struct hub {
	char *endpoint, *model; /* "org/model" */
	char *revision;         /* as the user gave it */
	char *commit;           /* NULL: not known yet; guarded by the lock of the remote */
};

static struct hub *own_of(const struct dcp_remote *r)
{
	return r->own;
}

static char *read_token(const char *dir, const char *name)
{
	dcp_auto_free char *path = NULL;
	dcp_auto_fd int fd = -1;
	char text[MOST_TOKEN + 1];
	ssize_t n;

	if (!dir || asprintf(&path, "%s/%s", dir, name) < 0)
		return NULL;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	n = fd < 0 ? -1 : read(fd, text, MOST_TOKEN);
	if (n <= 0)
		return NULL;
	text[n] = '\0';
	return strndup(text, strcspn(text, " \r\n\t"));
}

/* The token is read again each time, because users renew it while a mount is running. */
static char *token_of(void)
{
	const char *own = dcp_http_env("HF_TOKEN"), *dir = dcp_http_env("HF_HOME");

	if (own)
		return strndup(own, strcspn(own, " \r\n\t"));
	return dir ? read_token(dir, "token")
		   : read_token(dcp_http_configured()->home, ".cache/huggingface/token");
}

static int add_token(struct dcp_remote *r, const struct dcp_http *h, struct dcp_buf *heads,
		     struct dcp_err *err)
{
	dcp_auto_free char *token = token_of();
	int rc = token && *token ? dcp_buf_printf(heads, "Authorization: Bearer %s\n", token)
				 : 0;

	if (token)
		explicit_bzero(token, strlen(token));
	return rc;
}

static int head_of_list(void *ctx, const struct dcp_http *h, struct dcp_buf *heads,
			struct dcp_err *err)
{
	return add_token(ctx, h, heads, err);
}

static int get_json(struct dcp_remote *r, const char *url, struct dcp_json **root, char **next,
		    struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_http h = { .url = url, .head = head_of_list, .ctx = r, .plain = r->plain };
	int rc = dcp_http_get(&h, MOST_PAGE, &text, err);
	size_t n = 0;
	const char *link = rc == 0 ? dcp_http_header(&h, "link", &n) : NULL;
	const char *end = link && *link == '<' ? memchr(link, '>', n) : NULL;

	if (next)
		*next = end && memmem(end, n - (size_t)(end - link), "\"next\"", 6)
				? strndup(link + 1, (size_t)(end - link) - 1)
				: NULL;
	if (rc == 0)
		rc = dcp_json_parse(text.p ? text.p : "", text.n, root, err);
	dcp_http_finish(&h);
	return rc == -EACCES ? dcp_fail(err, rc,
					"%s: the Hub does not let you read it; set HF_TOKEN, "
					"or log in "
					"with \"hf auth login\" and accept its terms there",
					r->base)
			     : rc;
}

static bool is_commit(const char *s)
{
	return s && strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40;
}

/* Find the commit that the revision is now. */
static int resolve_revision(struct dcp_remote *r, struct dcp_err *err)
{
	struct hub *hub = own_of(r);
	dcp_auto_json struct dcp_json *root = NULL;
	dcp_auto_buf struct dcp_buf url = DCP_BUF_INIT;
	const char *commit;
	int rc;

	dcp_buf_printf(&url, "%s/api/models/%s/revision/", hub->endpoint, hub->model);
	dcp_url_encode(&url, hub->revision, strlen(hub->revision), false);
	rc = dcp_buf_error(&url) ?: get_json(r, url.p, &root, NULL, err);
	if (rc < 0)
		return rc;
	commit = dcp_json_str(dcp_json_get(root, "sha"));
	if (!is_commit(commit))
		return dcp_fail(err, -EBADMSG, "%s: the Hub names no commit", r->base);
	pthread_mutex_lock(&r->lock);
	if (!hub->commit || strcmp(hub->commit, commit) != 0) {
		free(hub->commit);
		hub->commit = strdup(commit);
	}
	rc = hub->commit ? 0 : -ENOMEM;
	pthread_mutex_unlock(&r->lock);
	return dcp_err_say(err, rc);
}

static int add_entries(struct dcp_listing *l, const struct dcp_json *root)
{
	int rc = dcp_json_is_array(root) ? 0 : -EBADMSG;

	for (size_t i = 0; rc == 0 && i < dcp_json_len(root); i++) {
		const struct dcp_json *v = dcp_json_at(root, i);
		const char *type = dcp_json_str(dcp_json_get(v, "type"));
		const char *name = dcp_json_str(dcp_json_get(v, "path"));
		const char *large = dcp_json_str(dcp_json_get(dcp_json_get(v, "lfs"), "oid"));
		struct dcp_item item = { .tag = large ? large
						      : dcp_json_str(dcp_json_get(v, "oid")) };

		if (!name || !type || strcmp(type, "file") != 0 || !item.tag ||
		    !dcp_json_u64(dcp_json_get(v, "size"), &item.size) ||
		    strncmp(name, l->prefix, strlen(l->prefix)) != 0)
			continue;
		item.name = name + strlen(l->prefix);
		rc = dcp_listing_add(l, &item, strlen(item.name));
	}
	return rc;
}

/* List the whole model, whatever prefix was requested. */
static int list_model(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err)
{
	struct hub *hub = own_of(r);
	dcp_auto_free char *next = NULL;
	int rc = resolve_revision(r, err);

	if (rc == 0 && asprintf(&next, "%s/api/models/%s/tree/%s?recursive=true", hub->endpoint,
				hub->model, hub->commit) < 0)
		return dcp_err_say(err, -ENOMEM);
	for (unsigned n = 0; rc == 0 && next; n++) {
		dcp_auto_json struct dcp_json *root = NULL;
		dcp_auto_free char *url = next;

		next = NULL;
		if (n == MOST_PAGES || strncmp(url, hub->endpoint, strlen(hub->endpoint)) != 0)
			return dcp_fail(err, -EBADMSG, "%s: its list does not end", r->base);
		rc = get_json(r, url, &root, &next, err);
		if (rc == 0)
			rc = add_entries(l, root);
	}
	l->deep = true;
	return rc;
}

static int list_file(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err)
{
	int rc = list_model(r, l, err);

	for (size_t i = 0; rc == 0 && i < DCP_NITEMS(l->items, struct dcp_item); i++)
		if (!*dcp_listing_at(l, i)->name) {
			struct dcp_item *items = DCP_ITEMS(l->items, struct dcp_item);

			items[0] = items[i];
			l->items.n = sizeof(*items);
			return 0;
		}
	return rc ? rc : -ENOENT;
}

static int make_url(struct dcp_remote *r, const char *name, struct dcp_buf *out)
{
	struct hub *hub = own_of(r);

	pthread_mutex_lock(&r->lock);
	dcp_buf_printf(out, "%s/%s/resolve/%s/", hub->endpoint, hub->model,
		       hub->commit ? hub->commit : hub->revision);
	pthread_mutex_unlock(&r->lock);
	dcp_url_encode(out, name, strlen(name), true);
	return dcp_buf_error(out);
}

static void describe_hub(struct dcp_remote *r, struct dcp_buf *out)
{
	dcp_auto_free char *token = token_of();
	struct hub *hub = own_of(r);

	pthread_mutex_lock(&r->lock);
	dcp_buf_printf(out, " at %s, commit %.12s, credentials: %s", hub->endpoint,
		       hub->commit ? hub->commit : "unknown",
		       token && *token ? "a token" : "none");
	pthread_mutex_unlock(&r->lock);
	if (token)
		explicit_bzero(token, strlen(token));
}

static const struct dcp_remote_ops hf_ops = { .row = &dcp_origin_hf,
					      .pinned = true,
					      .list = list_model,
					      .one = list_file,
					      .url = make_url,
					      .head = add_token,
					      .about = describe_hub };

static int make_hub(struct dcp_remote *r, struct dcp_err *err)
{
	const char *endpoint = dcp_http_env("HF_ENDPOINT") ?: "https://huggingface.co";
	const char *model = r->base + 5, *at = strchr(model, '@');
	struct hub *hub = calloc(1, sizeof(*hub));
	size_t n = strlen(model) - 1;
	struct dcp_url parts;

	if (!hub)
		return dcp_err_say(err, -ENOMEM);
	r->own = hub;
	r->plain = dcp_http_env("HF_ENDPOINT") != NULL;
	r->server = hub->endpoint = strdup(endpoint);
	hub->model = strndup(model, at ? (size_t)(at - model) : n);
	hub->revision = at ? strndup(at + 1, n - (size_t)(at - model) - 1) : strdup("main");
	if (!hub->endpoint || !hub->model || !hub->revision)
		return dcp_err_say(err, -ENOMEM);
	return dcp_url_split(endpoint, &parts) && !*parts.path
		       ? 0
		       : dcp_fail(err, -EINVAL, "HF_ENDPOINT: %.200s is no URL of a server",
				  endpoint);
}

/* hf://org/model@revision/inside */
static int find_site(const char *source, struct dcp_site *out, char **only, struct dcp_err *err)
{
	const char *org = source + 5;
	size_t norg = strcspn(org, "/@"), n;
	const char *model = org + norg + (org[norg] == '/');
	dcp_auto_free char *base = NULL;
	struct dcp_remote *r;
	const char *inside;
	int rc;

	n = strcspn(model, "/");
	inside = model + n + (model[n] == '/');
	for (const char *p = org; p < model + n; p++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/"
			    "@",
			    *p))
			n = 0;
	if (!norg || !n || org[norg] != '/' || *model == '@' || *org == '.' || *model == '.')
		return dcp_fail(err, -EINVAL,
				"%.300s: a model of the Hub is hf://ORG/MODEL or "
				"hf://ORG/MODEL@REVISION",
				source);
	if (*inside &&
	    !dcp_url_safe_name(inside, strlen(inside) - (inside[strlen(inside) - 1] == '/')))
		return dcp_fail(err, -EINVAL, "%.300s: its path is none", source);
	if (!out)
		return 0;
	if (asprintf(&base, "hf://%.*s/", (int)(model + n - org), org) < 0)
		return dcp_err_say(err, -ENOMEM);
	rc = dcp_remote_find(&hf_ops, base, make_hub, &r, err);
	return rc < 0 ? rc : dcp_site_remote(r, source, inside, out, only, err);
}

const struct dcp_origin dcp_origin_hf = {
	.name = "Hugging Face Hub", .scheme = "hf://", .find = find_site, DCP_REMOTE_ROW
};
