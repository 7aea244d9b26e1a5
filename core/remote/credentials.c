/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that get credentials return 1 if @out is complete, 0 if there are none of that kind, or
 * a negative errno with the reason in @err. */
#include "core/remote/s3.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/parse/json.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"

/* ---- making credentials of texts, and forgetting them ---- */

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

/* Can the text be the value of a header? */
static bool is_plain(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 127)
			return false;
	return true;
}

static int set_keys(struct dcp_credentials *out, const char *kind, const char *key,
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

static int set_bearer(struct dcp_credentials *out, const char *kind, const char *token)
{
	if (!token || !*token || !is_plain(token))
		return 0;
	out->kind = kind;
	out->token = strdup(token);
	return out->token ? 1 : -ENOMEM;
}

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

static int of_environment(struct dcp_credentials *out, struct dcp_err *err)
{
	return set_keys(out, "environment", dcp_http_env("AWS_ACCESS_KEY_ID"),
			dcp_http_env("AWS_SECRET_ACCESS_KEY"),
			dcp_http_env("AWS_SESSION_TOKEN"), NULL);
}

/* ---- from a server, for programs in a container or on a machine of its cloud ---- */

enum {
	MOST = 64 << 10, /* bytes of an answer, or of a token */
	NEAR_TRIES = 3,  /* for servers on the link of this machine */
};

/* Append the headers of requests whose headers never change. */
static int fixed_head(void *ctx, const struct dcp_http *r, struct dcp_buf *heads,
		      struct dcp_err *err)
{
	return ctx ? dcp_buf_str(heads, ctx) : 0;
}

static void wipe_secret(struct dcp_buf *secret)
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
		rc = set_keys(out, kind, dcp_json_str(dcp_json_get(root, "AccessKeyId")),
			      dcp_json_str(dcp_json_get(root, "SecretAccessKey")),
			      dcp_json_str(dcp_json_get(root, "Token")),
			      dcp_json_str(dcp_json_get(root, "Expiration")));
	return rc == 0 || rc == -EBADMSG
		       ? dcp_fail(err, -EACCES, "the %s's server of credentials gave none",
				  kind)
		       : rc;
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
	wipe_secret(&answer);
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

/* The server of the machine, by a session that other machines cannot have (IMDSv2). 0: the machine
 * is not in Amazon's cloud. */
static int of_machine(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *off = dcp_http_env("AWS_EC2_METADATA_DISABLED");
	dcp_auto_buf struct dcp_buf token = DCP_BUF_INIT, role = DCP_BUF_INIT,
				    answer = DCP_BUF_INIT;
	dcp_auto_free char *head = NULL, *path = NULL;
	char ask[] = "X-aws-ec2-metadata-token-ttl-seconds: 21600\n";
	int rc;

	if ((off && strcmp(off, "true") == 0) || dcp_http_env("AWS_ENDPOINT_URL"))
		return 0; /* not a machine of Amazon */
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
	rc = of_json(out, "machine", &answer, err);
	wipe_secret(&answer);
	return rc;
}

/* The same in Google's cloud, which gives a token. */
static int of_google_machine(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *server = dcp_http_env("GCE_METADATA_HOST") ?: "169.254.169.254";
	dcp_auto_json struct dcp_json *root = NULL;
	dcp_auto_buf struct dcp_buf answer = DCP_BUF_INIT;
	dcp_auto_free char *url = NULL;
	char head[] = "Metadata-Flavor: Google\n";
	uint64_t lasts;
	int rc;

	if (dcp_http_env("GS_ENDPOINT_URL") && !dcp_http_env("GCE_METADATA_HOST"))
		return 0; /* not a machine of Google */
	if (asprintf(&url,
		     "http://%s/computeMetadata/v1/instance/service-accounts/default/token",
		     server) < 0)
		return -ENOMEM;
	if (ask_near(url, head, NULL, &answer) < 0 ||
	    dcp_json_parse(answer.p ? answer.p : "", answer.n, &root, NULL) < 0)
		return 0;
	rc = set_bearer(out, "machine", dcp_json_str(dcp_json_get(root, "access_token")));
	if (rc > 0 && dcp_json_u64(dcp_json_get(root, "expires_in"), &lasts))
		out->expires_s = time(NULL) + (int64_t)DCP_MIN(lasts, 1u << 30);
	wipe_secret(&answer);
	return rc;
}

/* ---- from a role: Amazon's token service exchanges a token or other credentials ---- */

struct role {
	const char *arn;
	const char *session, *external;   /* NULL: "dcpfs"; no external id */
	const char *region;               /* region of the service; NULL: the global service */
	const char *token_file;           /* token of a web identity; NULL: use @by */
	const struct dcp_credentials *by; /* credentials that may assume the role */
};

enum {
	TRIES = 3, /* other requests wait meanwhile */
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

static void add_parameter(struct dcp_buf *body, const char *name, const char *value)
{
	dcp_buf_printf(body, "%s%s=", body->n ? "&" : "", name);
	dcp_url_encode(body, value, strlen(value), false);
}

struct signer {
	const struct dcp_credentials *by;
	const char *region;
};

static int sign_request(void *ctx, const struct dcp_http *h, struct dcp_buf *heads,
			struct dcp_err *err)
{
	const struct signer *s = ctx;

	return dcp_credentials_sign(s->by, h, s->region, "sts", heads);
}

static int ask_service(struct dcp_credentials *out, const char *kind, const struct role *role,
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
	h.head = role->token_file ? NULL : sign_request;
	h.ctx = &signer;
	rc = dcp_http_get(&h, MOST, &answer, err);
	dcp_http_finish(&h);
	if (rc == 0)
		rc = dcp_xml_each(answer.p ? answer.p : "", answer.n, take_identity, got, err);
	if (rc == 0)
		rc = set_keys(out, kind, got[0], got[1], got[2], got[3]) ?: -EBADMSG;
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

static int take_role(struct dcp_credentials *out, const struct role *role, struct dcp_err *err)
{
	dcp_auto_free char *token = role->token_file ? read_text(role->token_file, MOST) : NULL;
	dcp_auto_buf struct dcp_buf body = DCP_BUF_INIT;
	int rc;

	if (role->token_file && !token)
		return dcp_fail(err, -EACCES, "the token of a web identity, %.200s: %m",
				role->token_file);
	add_parameter(&body, "Action", token ? "AssumeRoleWithWebIdentity" : "AssumeRole");
	add_parameter(&body, "Version", "2011-06-15");
	add_parameter(&body, "RoleArn", role->arn);
	add_parameter(&body, "RoleSessionName", role->session ? role->session : "dcpfs");
	if (role->external)
		add_parameter(&body, "ExternalId", role->external);
	if (token)
		add_parameter(&body, "WebIdentityToken", token);
	rc = ask_service(out, token ? "web identity" : "role", role, &body, err);
	if (body.p)
		explicit_bzero(body.p, body.n);
	if (token)
		explicit_bzero(token, strlen(token));
	return rc;
}

/* ---- from profile files, ~/.aws/credentials and ~/.aws/config ---- */

enum { MOST_PROFILE = 1 << 20, MOST_ROLES = 8 };

static const char *skip_blanks(const char *p)
{
	return p + strspn(p, " \t");
}

/* The value of @name in the section @section of the INI file @text, malloc'ed. @name NULL: return
 * "" if the section exists. */
static char *of_section(const char *text, const char *section, const char *name)
{
	size_t nsection = strlen(section), nname = name ? strlen(name) : 0;
	bool in = false;

	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
		const char *at = skip_blanks(p), *value;
		size_t n;

		if (*at == '[') {
			at = skip_blanks(at + 1);
			in = strncmp(at, section, nsection) == 0 &&
			     *skip_blanks(at + nsection) == ']';
			if (in && !name)
				return strdup("");
			continue;
		}
		if (!in || at != p || strncmp(at, name, nname) != 0)
			continue;
		value = skip_blanks(at + nname);
		if (*value != '=')
			continue;
		value = skip_blanks(value + 1);
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

static char *value_of(const char *profile, const char *name)
{
	dcp_auto_free char *keys = read_profiles("AWS_SHARED_CREDENTIALS_FILE", "credentials");
	dcp_auto_free char *config = read_profiles("AWS_CONFIG_FILE", "config"),
			   *section = NULL;
	char *value = keys ? of_section(keys, profile, name) : NULL;

	if (!value && config && asprintf(&section, "profile %s", profile) >= 0)
		value = of_section(config, section, name);
	if (!value && config && strcmp(profile, "default") == 0)
		value = of_section(config, profile, name);
	if (keys)
		explicit_bzero(keys, strlen(keys));
	if (config)
		explicit_bzero(config, strlen(config));
	return value;
}

static const char *profile_in_use(void)
{
	return dcp_http_env("AWS_PROFILE") ?: dcp_http_env("AWS_DEFAULT_PROFILE") ?: "default";
}

char *dcp_credentials_profile(const char *name)
{
	return value_of(profile_in_use(), name);
}

static char *region_in_use(void)
{
	const char *given = dcp_http_env("AWS_REGION") ?: dcp_http_env("AWS_DEFAULT_REGION");

	return given ? strdup(given) : dcp_credentials_profile("region");
}

static int of_web_identity(struct dcp_credentials *out, struct dcp_err *err)
{
	dcp_auto_free char *region = region_in_use();
	const struct role role = {
		.arn = dcp_http_env("AWS_ROLE_ARN"),
		.session = dcp_http_env("AWS_ROLE_SESSION_NAME"),
		.region = region,
		.token_file = dcp_http_env("AWS_WEB_IDENTITY_TOKEN_FILE"),
	};

	return role.arn && role.token_file ? take_role(out, &role, err) : 0;
}

/* The profile has a setting @name that only Amazon's own programs support: -EACCES. */
static int refuse_setting(const char *profile, const char *name, struct dcp_err *err)
{
	dcp_auto_free char *value = value_of(profile, name);

	return value ? dcp_fail(err, -EACCES,
				"the profile %.60s has %s, which dcpfs does not do: give the "
				"keys of \"aws configure export-credentials --profile %.60s "
				"--format env\" in the environment",
				profile, name, profile)
		     : 0;
}

static int of_named(struct dcp_credentials *out, const char *profile, unsigned depth,
		    struct dcp_err *err);

static int of_source(struct dcp_credentials *out, const char *name, struct dcp_err *err)
{
	if (strcmp(name, "Environment") == 0)
		return of_environment(out, err);
	if (strcmp(name, "Ec2InstanceMetadata") == 0)
		return of_machine(out, err);
	if (strcmp(name, "EcsContainer") == 0)
		return of_container(out, err);
	return 0;
}

static int of_keys(struct dcp_credentials *out, const char *profile)
{
	dcp_auto_free char *key = value_of(profile, "aws_access_key_id");
	dcp_auto_free char *secret = value_of(profile, "aws_secret_access_key");
	dcp_auto_free char *token = value_of(profile, "aws_session_token");
	int rc = set_keys(out, "profile", key, secret, token, NULL);

	if (secret)
		explicit_bzero(secret, strlen(secret));
	if (token)
		explicit_bzero(token, strlen(token));
	return rc;
}

/* The credentials of the role @arn, requested with the credentials that the profile names. */
static int of_role(struct dcp_credentials *out, const char *profile, const char *arn,
		   unsigned depth, struct dcp_err *err)
{
	dcp_auto_free char *session = value_of(profile, "role_session_name");
	dcp_auto_free char *external = value_of(profile, "external_id");
	dcp_auto_free char *file = value_of(profile, "web_identity_token_file");
	dcp_auto_free char *other = value_of(profile, "source_profile");
	dcp_auto_free char *source = value_of(profile, "credential_source");
	struct dcp_credentials by = { 0 };
	dcp_auto_free char *region = region_in_use();
	struct role role = { .arn = arn,
			     .session = session,
			     .external = external,
			     .region = region,
			     .token_file = file };
	int rc = file ? 1 : refuse_setting(profile, "mfa_serial", err);

	if (rc < 0)
		return rc;
	if (!file && other && strcmp(other, profile) == 0)
		rc = of_keys(&by, profile);
	else if (!file && other)
		rc = of_named(&by, other, depth + 1, err);
	else if (!file)
		rc = source ? of_source(&by, source, err) : 0;
	if (rc == 0 && (other || source))
		rc = dcp_fail(err, -EACCES,
			      "the profile %.60s has role_arn, and its %s, %.60s, gave no "
			      "credentials to take the role by",
			      profile, other ? "source_profile" : "credential_source",
			      other ? other : source);
	else if (rc == 0)
		rc = dcp_fail(err, -EACCES,
			      "the profile %.60s has role_arn, and no credentials to take the "
			      "role by: source_profile, credential_source (Environment, "
			      "Ec2InstanceMetadata, EcsContainer) or web_identity_token_file",
			      profile);
	role.by = &by;
	if (rc > 0)
		rc = take_role(out, &role, err);
	dcp_credentials_finish(&by);
	return rc;
}

static int of_named(struct dcp_credentials *out, const char *profile, unsigned depth,
		    struct dcp_err *err)
{
	dcp_auto_free char *arn = value_of(profile, "role_arn");
	int rc;

	if (depth == MOST_ROLES)
		return dcp_fail(err, -EACCES, "the profile %.60s leads to itself", profile);
	if (arn)
		return of_role(out, profile, arn, depth, err);
	rc = refuse_setting(profile, "sso_session", err)
		     ?: refuse_setting(profile, "sso_start_url", err);
	if (rc == 0)
		rc = of_keys(out, profile);
	return rc ? rc : refuse_setting(profile, "credential_process", err);
}

static int of_profile(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *profile = profile_in_use();
	dcp_auto_free char *there = value_of(profile, NULL);
	int rc = of_named(out, profile, 0, err);

	return rc == 0 && !there && strcmp(profile, "default") != 0
		       ? dcp_fail(err, -EACCES, "AWS_PROFILE=%.60s: there is no such profile",
				  profile)
		       : rc;
}

/* ---- from the environment ---- */

enum {
	EARLY_S = 300, /* credentials are renewed so long before they expire */
	PAUSE_S = 5,   /* pause before a failed renewal is tried again */
};

static int of_google_keys(struct dcp_credentials *out, struct dcp_err *err)
{
	return set_keys(out, "environment", dcp_http_env("GS_ACCESS_KEY_ID"),
			dcp_http_env("GS_SECRET_ACCESS_KEY"), NULL, NULL);
}

static int of_google_token(struct dcp_credentials *out, struct dcp_err *err)
{
	return set_bearer(out, "a token", dcp_http_env("GOOGLE_OAUTH_ACCESS_TOKEN"));
}

/* The file of a service account has a private key, with which dcpfs cannot sign. */
static int of_google_file(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *file = dcp_http_env("GOOGLE_APPLICATION_CREDENTIALS");

	return file ? dcp_fail(err, -EACCES,
			       "GOOGLE_APPLICATION_CREDENTIALS=%.200s is not read: set "
			       "GOOGLE_OAUTH_ACCESS_TOKEN to what \"gcloud auth "
			       "application-default print-access-token\" prints, or unset it",
			       file)
		    : 0;
}

/* ---- from the first source that has any ---- */

int dcp_credentials_renew(struct dcp_credentials *c, enum dcp_cloud cloud, bool refused,
			  struct dcp_err *err)
{
	typedef int get_fn(struct dcp_credentials *, struct dcp_err *);
	static get_fn *const chains[][6] = {
		[DCP_AMAZON] = { of_environment, of_web_identity, of_profile, of_container,
				 of_machine },
		[DCP_GOOGLE] = { of_google_keys, of_google_token, of_google_file,
				 of_google_machine },
	};
	struct dcp_credentials new = { .kind = "none" };
	get_fn *const *chain = chains[cloud];
	int64_t now = time(NULL);
	int rc = 0;

	if (c->kind && !refused &&
	    (!c->expires_s || now < c->expires_s - EARLY_S || now < c->again_s))
		return 0;
	if (dcp_http_env("AWS_NO_SIGN_REQUEST"))
		rc = 1;
	for (size_t i = 0; rc == 0 && chain[i]; i++)
		rc = chain[i](&new, err);
	if (rc == 0 && c->kind &&
	    c->expires_s) /* a server that gave credentials before does not answer now */
		rc = dcp_fail(err, -EACCES, "credentials (%s) end, and there are no new ones",
			      c->kind);
	if (rc < 0) {
		dcp_credentials_finish(&new);
		if (!c->kind || refused || now >= c->expires_s)
			return dcp_err_say(err, rc);
		c->again_s = time(NULL) + PAUSE_S; /* the old credentials are still valid */
		return 0;
	}
	dcp_credentials_finish(c);
	*c = new;
	c->again_s = DCP_MIN(time(NULL) + PAUSE_S, c->expires_s);
	return 0;
}
