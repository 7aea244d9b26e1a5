/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials that there are: made of texts, signed with, forgotten.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "core/remote/credentials.h"
#include "core/remote/credentials_int.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"
#include "core/remote/sign.h"

void dcp_credentials_finish(struct dcp_credentials *c)
{
	if (c->secret)
		explicit_bzero(c->secret, strlen(c->secret));
	if (c->token)
		explicit_bzero(c->token, strlen(c->token));
	free(c->key);
	free(c->secret);
	free(c->token);
	*c = (struct dcp_credentials){ 0 };
}

/* May it stand in a header? */
bool dcp_credentials_plain(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 127)
			return false;
	return true;
}

int dcp_credentials_set(struct dcp_credentials *out, const char *kind, const char *key,
			const char *secret, const char *token, const char *expires)
{
	if (!key || !secret || !*key || !*secret || !dcp_credentials_plain(key) ||
	    !dcp_credentials_plain(secret) || (token && !dcp_credentials_plain(token)))
		return 0;
	out->kind = kind;
	out->key = strdup(key);
	out->secret = strdup(secret);
	out->token = token && *token ? strdup(token) : NULL;
	out->expires_s = expires ? dcp_listing_time(expires) / DCP_NS_PER_S : 0;
	return out->key && out->secret && (!token || !*token || out->token) ? 1 : -ENOMEM;
}

int dcp_credentials_set_bearer(struct dcp_credentials *out, const char *kind, const char *token)
{
	if (!token || !*token || !dcp_credentials_plain(token))
		return 0;
	out->kind = kind;
	out->token = strdup(token);
	return out->token ? 1 : -ENOMEM;
}

char *dcp_credentials_read(const char *path, size_t most)
{
	dcp_auto_fd int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY) : -1;
	char *text = fd >= 0 ? malloc(most + 1) : NULL;
	ssize_t n = text ? read(fd, text, most) : -1;

	if (n < 0) {
		free(text);
		return NULL;
	}
	while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
		n--;
	text[n] = '\0';
	return text;
}

int dcp_credentials_of_environment(struct dcp_credentials *out, struct dcp_err *err)
{
	return dcp_credentials_set(out, "environment", dcp_http_env("AWS_ACCESS_KEY_ID"),
				   dcp_http_env("AWS_SECRET_ACCESS_KEY"),
				   dcp_http_env("AWS_SESSION_TOKEN"), NULL);
}

int dcp_credentials_sign(const struct dcp_credentials *c, const struct dcp_http *h,
			 const char *region, const char *service, struct dcp_buf *heads)
{
	const char *host = strstr(h->url, "://") + 3, *path = strchr(host, '/');
	const char *query = strchr(path, '?');
	dcp_auto_buf struct dcp_buf signed_heads = DCP_BUF_INIT, only_path = DCP_BUF_INIT;
	char now[20], payload[DCP_SIGN_HASH] = DCP_SIGN_EMPTY;
	time_t t = time(NULL);
	struct tm tm;
	struct dcp_sign sign = { .method = h->method ? h->method : "GET",
				 .query = query ? query + 1 : "",
				 .payload = payload,
				 .time = now,
				 .region = region,
				 .service = service,
				 .key = c->key,
				 .secret = c->secret };

	if (!c->key) {
		dcp_buf_str(heads, h->fixed ? h->fixed : "");
		return c->token ? dcp_buf_printf(heads, "Authorization: Bearer %s\n", c->token)
				: dcp_buf_error(heads);
	}
	if (h->nbody)
		dcp_sign_hash(h->body, h->nbody, payload);
	strftime(now, sizeof(now), "%Y%m%dT%H%M%SZ", gmtime_r(&t, &tm));
	dcp_buf_printf(&signed_heads, "host:%.*s\nx-amz-content-sha256:%s\nx-amz-date:%s\n%s",
		       (int)(path - host), host, payload, now, h->fixed ? h->fixed : "");
	if (c->token)
		dcp_buf_printf(&signed_heads, "x-amz-security-token:%s\n", c->token);
	dcp_buf_add(&only_path, path, query ? (size_t)(query - path) : strlen(path));
	if (dcp_buf_error(&signed_heads) || dcp_buf_error(&only_path))
		return -ENOMEM;
	sign.path = only_path.p;
	sign.headers = signed_heads.p;
	dcp_buf_str(heads,
		    strchr(signed_heads.p, '\n') + 1); /* the host is libcurl's to send */
	dcp_buf_str(heads, "Authorization: ");
	dcp_sign_v4(&sign, heads);
	return dcp_buf_str(heads, "\n");
}
