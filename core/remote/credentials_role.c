/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials of a role, which Amazon's token service gives for a web identity's token or for other
 * credentials.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/remote/credentials.h"
#include "core/remote/credentials_int.h"
#include "core/remote/http.h"
#include "core/remote/url.h"
#include "core/remote/xml.h"

enum {
	MOST = 64 << 10, /* bytes of an answer, or of a token */
	TRIES = 3,       /* others wait meanwhile */
	CONNECT_S = 5,
};

static int take_identity(void *ctx, const char *path, const char *text, size_t n)
{
	char **to = NULL;
	char **of = ctx; /* key, secret, token, expires */
	const char *last = strrchr(path, '/');

	if (last && strstr(path, "/Credentials/")) {
		to = strcmp(last, "/AccessKeyId") == 0       ? &of[0]
		     : strcmp(last, "/SecretAccessKey") == 0 ? &of[1]
		     : strcmp(last, "/SessionToken") == 0    ? &of[2]
		     : strcmp(last, "/Expiration") == 0      ? &of[3]
							     : NULL;
	}
	if (to && !*to) {
		*to = strndup(text, n);
		return *to ? 0 : -ENOMEM;
	}
	return 0;
}

static void add_service(struct dcp_buf *url, const char *region)
{
	const char *own = dcp_http_env("AWS_ENDPOINT_URL_STS");

	if (own)
		dcp_buf_printf(url, "%s/", own);
	else
		dcp_buf_printf(url, "https://sts.%s%s%s/", region ? region : "",
			       region ? "." : "", dcp_amazon_domain(region));
}

const char *dcp_amazon_domain(const char *region)
{
	return region && strncmp(region, "cn-", 3) == 0 ? "amazonaws.com.cn" : "amazonaws.com";
}

static void add(struct dcp_buf *body, const char *name, const char *value)
{
	dcp_buf_printf(body, "%s%s=", body->n ? "&" : "", name);
	dcp_url_encode(body, value, strlen(value), false);
}

struct signer {
	const struct dcp_credentials *by;
	const char *region;
};

static int head(void *ctx, const struct dcp_http *h, struct dcp_buf *heads, struct dcp_err *err)
{
	const struct signer *s = ctx;

	return dcp_credentials_sign(s->by, h, s->region, "sts", heads);
}

static int ask(struct dcp_credentials *out, const char *kind, const struct dcp_role *role,
	       const struct dcp_buf *body, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf url = DCP_BUF_INIT, answer = DCP_BUF_INIT;
	struct dcp_http h = { .method = "POST", .body = body->p, .nbody = body->n };
	struct signer signer = { role->by, role->region ? role->region : "us-east-1" };
	char *got[4] = { NULL };
	struct dcp_url parts;
	int rc;

	add_service(&url, role->region);
	if (dcp_buf_error(&url) || dcp_buf_error(body))
		return -ENOMEM;
	if (!dcp_url_split(url.p, &parts))
		return dcp_fail(err, -EINVAL,
				"AWS_ENDPOINT_URL_STS: %.200s is no URL of a server", url.p);
	h.plain = dcp_http_env("AWS_ENDPOINT_URL_STS") != NULL;
	h.url = url.p;
	h.tries = TRIES;
	h.connect_s = CONNECT_S;
	h.direct = true;
	h.head = role->token_file ? NULL : head;
	h.ctx = &signer;
	rc = dcp_http_get(&h, MOST, &answer, err);
	dcp_http_finish(&h);
	if (rc == 0)
		rc = dcp_xml_each(answer.p ? answer.p : "", answer.n, take_identity, got, err);
	if (rc == 0)
		rc = dcp_credentials_set(out, kind, got[0], got[1], got[2], got[3]) ?: -EBADMSG;
	if (rc == -EBADMSG)
		dcp_fail(err, rc, "%.200s gave no credentials for %.100s", url.p, role->arn);
	for (size_t i = 0; i < DCP_LEN(got); i++) {
		if (got[i])
			explicit_bzero(got[i], strlen(got[i]));
		free(got[i]);
	}
	if (answer.p)
		explicit_bzero(answer.p, answer.n);
	return rc;
}

int dcp_credentials_of_role(struct dcp_credentials *out, const struct dcp_role *role,
			    struct dcp_err *err)
{
	dcp_auto_free char *token =
		role->token_file ? dcp_credentials_read(role->token_file, MOST) : NULL;
	dcp_auto_buf struct dcp_buf body = DCP_BUF_INIT;
	int rc;

	if (role->token_file && !token)
		return dcp_fail(err, -EACCES, "the token of a web identity, %.200s: %m",
				role->token_file);
	add(&body, "Action", token ? "AssumeRoleWithWebIdentity" : "AssumeRole");
	add(&body, "Version", "2011-06-15");
	add(&body, "RoleArn", role->arn);
	add(&body, "RoleSessionName", role->session ? role->session : "dcpfs");
	if (role->external)
		add(&body, "ExternalId", role->external);
	if (token)
		add(&body, "WebIdentityToken", token);
	rc = ask(out, token ? "web identity" : "role", role, &body, err);
	if (body.p)
		explicit_bzero(body.p, body.n);
	if (token)
		explicit_bzero(token, strlen(token));
	return rc;
}
