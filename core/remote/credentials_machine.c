/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials that a server gives to what runs in a container or on a machine of its cloud.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/parse/json.h"
#include "core/remote/credentials.h"
#include "core/remote/credentials_int.h"
#include "core/remote/http.h"

enum {
	MOST = 64 << 10, /* bytes of an answer, or of a token */
	NEAR_TRIES = 3,  /* of servers on the machine's own link */
};

/* The text of headers, for requests that have the same ones each time. */
static int fixed_head(void *ctx, const struct dcp_http *r, struct dcp_buf *heads,
		      struct dcp_err *err)
{
	return ctx ? dcp_buf_str(heads, ctx) : 0;
}

static void wipe(struct dcp_buf *secret)
{
	if (secret->p)
		explicit_bzero(secret->p, secret->n);
}

/* { "AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": ... } */
static int of_json(struct dcp_credentials *out, const char *kind, const struct dcp_buf *text,
		   struct dcp_err *err)
{
	dcp_auto_json struct dcp_json *root = NULL;
	int rc = dcp_json_parse(text->p ? text->p : "", text->n, &root, NULL);

	if (rc == 0)
		rc = dcp_credentials_set(out, kind,
					 dcp_json_str(dcp_json_get(root, "AccessKeyId")),
					 dcp_json_str(dcp_json_get(root, "SecretAccessKey")),
					 dcp_json_str(dcp_json_get(root, "Token")),
					 dcp_json_str(dcp_json_get(root, "Expiration")));
	return rc == 0 || rc == -EBADMSG
		       ? dcp_fail(err, -EACCES, "the %s's server of credentials gave none",
				  kind)
		       : rc;
}

/* The server of a container (ECS, EKS pod identity). */
int dcp_credentials_of_container(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *whole = dcp_http_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	const char *relative = dcp_http_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *file = dcp_http_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *given = dcp_http_env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	dcp_auto_free char *token = file ? dcp_credentials_read(file, MOST) : NULL;
	dcp_auto_free char *url = NULL, *head = NULL;
	dcp_auto_buf struct dcp_buf answer = DCP_BUF_INIT;
	struct dcp_http r = { .link_local = true, .tries = NEAR_TRIES, .connect_s = 2 };
	int rc;

	if (!whole && !relative)
		return 0;
	if (file && !token)
		return dcp_fail(err, -EACCES,
				"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=%.200s: %m", file);
	if ((token || given) && strpbrk(token ? token : given, "\r\n"))
		return dcp_fail(err, -EACCES,
				"the token of the container's server of credentials has more "
				"than one line");
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
	if (rc == 0)
		rc = of_json(out, "container", &answer, err);
	wipe(&answer);
	return rc;
}

static int ask_near(const char *url, char *head, const char *method, struct dcp_buf *answer)
{
	struct dcp_http r = { .method = method,
			      .url = url,
			      .head = fixed_head,
			      .ctx = head,
			      .link_local = true,
			      .tries = 1,
			      .connect_s = 1 };
	int rc = dcp_http_get(&r, MOST, answer, NULL);

	dcp_http_finish(&r);
	return rc;
}

static int ask_machine(const char *path, char *head, const char *method, struct dcp_buf *answer)
{
	const char *server =
		dcp_http_env("AWS_EC2_METADATA_SERVICE_ENDPOINT") ?: "http://169.254.169.254";
	dcp_auto_free char *url = NULL;

	if (asprintf(&url, "%s/latest/%s", server, path) < 0)
		return -ENOMEM;
	return ask_near(url, head, method, answer);
}

/*
 * The machine's, by a session that other machines cannot have (IMDSv2). None: it is not in that
 * cloud.
 */
int dcp_credentials_of_machine(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *off = dcp_http_env("AWS_EC2_METADATA_DISABLED");
	dcp_auto_buf struct dcp_buf token = DCP_BUF_INIT, role = DCP_BUF_INIT,
				    answer = DCP_BUF_INIT;
	dcp_auto_free char *head = NULL, *path = NULL;
	char ask[] = "X-aws-ec2-metadata-token-ttl-seconds: 21600\n";
	int rc;

	if ((off && strcmp(off, "true") == 0) || dcp_http_env("AWS_ENDPOINT_URL"))
		return 0; /* no machine of Amazon's */
	if (ask_machine("api/token", ask, "PUT", &token) < 0 || !token.p ||
	    !dcp_credentials_plain(token.p))
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
	rc = of_json(out, "machine", &answer, err);
	wipe(&answer);
	return rc;
}

/* The same in Google's cloud, where it is a token. */
int dcp_credentials_of_google_machine(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *server = dcp_http_env("GCE_METADATA_HOST") ?: "169.254.169.254";
	dcp_auto_json struct dcp_json *root = NULL;
	dcp_auto_buf struct dcp_buf answer = DCP_BUF_INIT;
	dcp_auto_free char *url = NULL;
	char head[] = "Metadata-Flavor: Google\n";
	uint64_t lasts;
	int rc;

	if (dcp_http_env("GS_ENDPOINT_URL") && !dcp_http_env("GCE_METADATA_HOST"))
		return 0; /* no machine of Google's */
	if (asprintf(&url,
		     "http://%s/computeMetadata/v1/instance/service-accounts/default/token",
		     server) < 0)
		return -ENOMEM;
	if (ask_near(url, head, NULL, &answer) < 0 ||
	    dcp_json_parse(answer.p ? answer.p : "", answer.n, &root, NULL) < 0)
		return 0;
	rc = dcp_credentials_set_bearer(out, "machine",
					dcp_json_str(dcp_json_get(root, "access_token")));
	if (rc > 0 && dcp_json_u64(dcp_json_get(root, "expires_in"), &lasts))
		out->expires_s = time(NULL) + (int64_t)DCP_MIN(lasts, 1u << 30);
	wipe(&answer);
	return rc;
}
