/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "core/parse/json.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"
#include "core/remote/url.h"
#include "core/remote/xml.h"

enum {
	EARLY_S = 300,   /* before they expire, they are asked for again */
	MOST = 64 << 10, /* bytes of an answer, or of a token */
	MOST_PROFILE = 1 << 20,
	NEAR_TRIES = 3, /* of servers on the machine's own link */
};

void dcp_credentials_finish(struct dcp_credentials *c)
{
	if (c->secret)
		explicit_bzero(c->secret, strlen(c->secret));
	free(c->key);
	free(c->secret);
	free(c->token);
	*c = (struct dcp_credentials){ 0 };
}

/* May it stand in a header? */
static bool is_plain(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 127)
			return false;
	return true;
}

/* 1 if @out is complete, else 0, or -ENOMEM. */
static int set(struct dcp_credentials *out, const char *kind, const char *key,
	       const char *secret, const char *token, const char *expires)
{
	if (!key || !secret || !*key || !*secret || !is_plain(key) || !is_plain(secret) ||
	    (token && !is_plain(token)))
		return 0;
	out->kind = kind;
	out->key = strdup(key);
	out->secret = strdup(secret);
	out->token = token && *token ? strdup(token) : NULL;
	out->expires_s = expires ? dcp_listing_time(expires) / DCP_NS_PER_S : 0;
	return out->key && out->secret && (!token || !*token || out->token) ? 1 : -ENOMEM;
}

/* All of the file @path as text, or NULL. */
static char *read_text(const char *path, size_t most)
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

/* ---- the environment ---- */

static int of_environment(struct dcp_credentials *out, struct dcp_err *err)
{
	return set(out, "environment", dcp_http_env("AWS_ACCESS_KEY_ID"),
		   dcp_http_env("AWS_SECRET_ACCESS_KEY"), dcp_http_env("AWS_SESSION_TOKEN"),
		   NULL);
}

/* ---- profile files ---- */

static const char *blanks(const char *p)
{
	return p + strspn(p, " \t");
}

/* The value of @name in the section @section of the INI file @text, malloc'ed. */
static char *of_section(const char *text, const char *section, const char *name)
{
	size_t nsection = strlen(section), nname = strlen(name);
	bool in = false;

	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
		const char *at = blanks(p), *value;
		size_t n;

		if (*at == '[') {
			at = blanks(at + 1);
			value = blanks(at + nsection);
			in = strncmp(at, section, nsection) == 0 && *value == ']';
			continue;
		}
		if (!in || at != p || strncmp(at, name, nname) != 0)
			continue;
		value = blanks(at + nname);
		if (*value != '=')
			continue;
		value = blanks(value + 1);
		n = strcspn(value, "\r\n");
		while (n && (value[n - 1] == ' ' || value[n - 1] == '\t'))
			n--;
		return strndup(value, n);
	}
	return NULL;
}

static char *read_profiles(const char *variable, const char *name)
{
	const char *own = dcp_http_env(variable), *home = dcp_http_configured()->home;
	dcp_auto_free char *path = NULL;

	if (!own && (!home || asprintf(&path, "%s/.aws/%s", home, name) < 0))
		return NULL;
	return read_text(own ? own : path, MOST_PROFILE);
}

char *dcp_credentials_profile(const char *name)
{
	const char *profile = dcp_http_env("AWS_PROFILE") ?: "default";
	dcp_auto_free char *keys = read_profiles("AWS_SHARED_CREDENTIALS_FILE", "credentials");
	dcp_auto_free char *config = read_profiles("AWS_CONFIG_FILE", "config"),
			   *section = NULL;
	char *value = keys ? of_section(keys, profile, name) : NULL;

	if (!value && config && asprintf(&section, "profile %s", profile) >= 0)
		value = of_section(config, section, name);
	if (!value && config && strcmp(profile, "default") == 0)
		value = of_section(config, profile, name);
	return value;
}

static int of_profile(struct dcp_credentials *out, struct dcp_err *err)
{
	dcp_auto_free char *key = dcp_credentials_profile("aws_access_key_id");
	dcp_auto_free char *secret = dcp_credentials_profile("aws_secret_access_key");
	dcp_auto_free char *token = dcp_credentials_profile("aws_session_token");
	const char *profile = dcp_http_env("AWS_PROFILE");
	int rc = set(out, "profile", key, secret, token, NULL);

	return rc == 0 && profile
		       ? dcp_fail(
				 err, -EACCES,
				 "AWS_PROFILE=%.60s: that profile has no aws_access_key_id and "
				 "aws_secret_access_key (roles, SSO and processes: give the "
				 "keys of "
				 "\"aws configure export-credentials\" in the environment)",
				 profile)
		       : rc;
}

/* ---- servers ---- */

/* The text of headers, for requests that have the same ones each time. */
static int fixed_head(void *ctx, const struct dcp_http *r, struct dcp_buf *heads,
		      struct dcp_err *err)
{
	return ctx ? dcp_buf_str(heads, ctx) : 0;
}

/* { "AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": ... } */
static int of_json(struct dcp_credentials *out, const char *kind, const struct dcp_buf *text,
		   struct dcp_err *err)
{
	dcp_auto_json struct dcp_json *root = NULL;
	int rc = dcp_json_parse(text->p ? text->p : "", text->n, &root, NULL);

	if (rc == 0)
		rc = set(out, kind, dcp_json_str(dcp_json_get(root, "AccessKeyId")),
			 dcp_json_str(dcp_json_get(root, "SecretAccessKey")),
			 dcp_json_str(dcp_json_get(root, "Token")),
			 dcp_json_str(dcp_json_get(root, "Expiration")));
	return rc == 0 || rc == -EBADMSG
		       ? dcp_fail(err, -EACCES, "the %s's server of credentials gave none",
				  kind)
		       : rc;
}

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

/* A token of a cluster (EKS), for credentials of a role. */
static int of_web_identity(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *file = dcp_http_env("AWS_WEB_IDENTITY_TOKEN_FILE");
	const char *role = dcp_http_env("AWS_ROLE_ARN");
	const char *session = dcp_http_env("AWS_ROLE_SESSION_NAME") ?: "dcpfs";
	const char *region = dcp_http_env("AWS_REGION") ?: dcp_http_env("AWS_DEFAULT_REGION");
	const char *own = dcp_http_env("AWS_ENDPOINT_URL_STS");
	dcp_auto_free char *token = file && role ? read_text(file, MOST) : NULL;
	dcp_auto_buf struct dcp_buf body = DCP_BUF_INIT, url = DCP_BUF_INIT,
				    answer = DCP_BUF_INIT;
	struct dcp_http r = { .method = "POST" };
	char *got[4] = { NULL };
	int rc;

	if (!file || !role)
		return 0;
	if (!token)
		return dcp_fail(err, -EACCES, "AWS_WEB_IDENTITY_TOKEN_FILE=%.200s: %m", file);
	dcp_buf_str(&body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=");
	dcp_url_encode(&body, role, strlen(role), false);
	dcp_buf_str(&body, "&RoleSessionName=");
	dcp_url_encode(&body, session, strlen(session), false);
	dcp_buf_str(&body, "&WebIdentityToken=");
	dcp_url_encode(&body, token, strlen(token), false);
	if (own)
		dcp_buf_printf(&url, "%s/", own);
	else
		dcp_buf_printf(&url, "https://sts.%s%samazonaws.com/", region ? region : "",
			       region ? "." : "");
	if (dcp_buf_error(&body) || dcp_buf_error(&url))
		return -ENOMEM;
	r.plain = own != NULL;
	r.url = url.p;
	r.body = body.p;
	r.nbody = body.n;
	rc = dcp_http_get(&r, MOST, &answer, err);
	dcp_http_finish(&r);
	if (rc == 0)
		rc = dcp_xml_each(answer.p ? answer.p : "", answer.n, take_identity, got, err);
	if (rc == 0)
		rc = set(out, "web identity", got[0], got[1], got[2], got[3]) ?: -EACCES;
	if (rc == -EACCES)
		dcp_fail(err, rc, "%.200s gave no credentials for %.100s", url.p, role);
	for (size_t i = 0; i < DCP_LEN(got); i++) {
		if (got[i])
			explicit_bzero(got[i], strlen(got[i]));
		free(got[i]);
	}
	explicit_bzero(body.p, body.n);
	return rc;
}

/* The server of a container (ECS, EKS pod identity). */
static int of_container(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *whole = dcp_http_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	const char *relative = dcp_http_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *file = dcp_http_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *given = dcp_http_env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	dcp_auto_free char *token = file ? read_text(file, MOST) : NULL;
	dcp_auto_free char *url = NULL, *head = NULL;
	dcp_auto_buf struct dcp_buf answer = DCP_BUF_INIT;
	struct dcp_http r = { .link_local = true, .tries = NEAR_TRIES, .connect_s = 2 };
	int rc;

	if (!whole && !relative)
		return 0;
	if (asprintf(&url, "%s%s", relative ? "http://169.254.170.2" : "",
		     relative ? relative : whole) < 0)
		return -ENOMEM;
	if ((token || given) &&
	    asprintf(&head, "Authorization: %s\n", token ? token : given) < 0)
		return -ENOMEM;
	r.url = url;
	r.head = fixed_head;
	r.ctx = head;
	rc = dcp_http_get(&r, MOST, &answer, err);
	dcp_http_finish(&r);
	return rc < 0 ? rc : of_json(out, "container", &answer, err);
}

static int ask_machine(const char *path, char *head, const char *method, struct dcp_buf *answer)
{
	const char *server =
		dcp_http_env("AWS_EC2_METADATA_SERVICE_ENDPOINT") ?: "http://169.254.169.254";
	dcp_auto_free char *url = NULL;
	struct dcp_http r = { .method = method,
			      .head = fixed_head,
			      .ctx = head,
			      .link_local = true,
			      .tries = 1,
			      .connect_s = 1 };
	int rc;

	if (asprintf(&url, "%s/latest/%s", server, path) < 0)
		return -ENOMEM;
	r.url = url;
	rc = dcp_http_get(&r, MOST, answer, NULL);
	dcp_http_finish(&r);
	return rc;
}

/* The machine's, by a session that other machines cannot have (IMDSv2). None: it is not in that cloud. */
static int of_machine(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *off = dcp_http_env("AWS_EC2_METADATA_DISABLED");
	dcp_auto_buf struct dcp_buf token = DCP_BUF_INIT, role = DCP_BUF_INIT,
				    answer = DCP_BUF_INIT;
	dcp_auto_free char *head = NULL, *path = NULL;
	char ask[] = "X-aws-ec2-metadata-token-ttl-seconds: 21600\n";

	if ((off && strcmp(off, "true") == 0) || dcp_http_env("AWS_ENDPOINT_URL"))
		return 0; /* no machine of Amazon's */
	if (ask_machine("api/token", ask, "PUT", &token) < 0 || !token.p || !is_plain(token.p))
		return 0;
	if (asprintf(&head, "X-aws-ec2-metadata-token: %s\n", token.p) < 0)
		return -ENOMEM;
	if (ask_machine("meta-data/iam/security-credentials/", head, NULL, &role) < 0 ||
	    !role.n)
		return 0;
	role.p[strcspn(role.p, "\r\n")] = '\0';
	if (asprintf(&path, "meta-data/iam/security-credentials/%s", role.p) < 0)
		return -ENOMEM;
	if (ask_machine(path, head, NULL, &answer) < 0)
		return 0;
	return of_json(out, "machine", &answer, err);
}

int dcp_credentials_renew(struct dcp_credentials *c, bool refused, struct dcp_err *err)
{
	static int (*const chain[])(struct dcp_credentials *, struct dcp_err *) = {
		of_environment, of_web_identity, of_profile, of_container, of_machine,
	};
	struct dcp_credentials new = { .kind = "none" };
	int rc = 0;

	if (c->kind && !refused && (!c->expires_s || time(NULL) < c->expires_s - EARLY_S))
		return 0;
	if (dcp_http_env("AWS_NO_SIGN_REQUEST"))
		rc = 1;
	for (size_t i = 0; rc == 0 && i < DCP_LEN(chain); i++)
		rc = chain[i](&new, err);
	if (rc < 0) {
		dcp_credentials_finish(&new);
		return dcp_err_say(err, rc);
	}
	dcp_credentials_finish(c);
	*c = new;
	return 0;
}
