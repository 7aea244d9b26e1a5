/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profile files, ~/.aws/credentials and ~/.aws/config: keys, and roles, which the environment may
 * name, too.
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

enum { MOST_PROFILE = 1 << 20, MOST_ROLES = 8 };

static const char *blanks(const char *p)
{
	return p + strspn(p, " \t");
}

/*
 * The value of @name in the section @section of the INI file @text, malloc'ed; of no @name: "" if
 * it has the section.
 */
static char *of_section(const char *text, const char *section, const char *name)
{
	size_t nsection = strlen(section), nname = name ? strlen(name) : 0;
	bool in = false;

	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
		const char *at = blanks(p), *value;
		size_t n;

		if (*at == '[') {
			at = blanks(at + 1);
			in = strncmp(at, section, nsection) == 0 &&
			     *blanks(at + nsection) == ']';
			if (in && !name)
				return strdup("");
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
	return dcp_credentials_read(own ? own : path, MOST_PROFILE);
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

int dcp_credentials_of_web_identity(struct dcp_credentials *out, struct dcp_err *err)
{
	dcp_auto_free char *region = region_in_use();
	const struct dcp_role role = {
		.arn = dcp_http_env("AWS_ROLE_ARN"),
		.session = dcp_http_env("AWS_ROLE_SESSION_NAME"),
		.region = region,
		.token_file = dcp_http_env("AWS_WEB_IDENTITY_TOKEN_FILE"),
	};

	return role.arn && role.token_file ? dcp_credentials_of_role(out, &role, err) : 0;
}

/* The profile has @name, which only Amazon's own programs do: -EACCES. */
static int refuse(const char *profile, const char *name, struct dcp_err *err)
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
		return dcp_credentials_of_environment(out, err);
	if (strcmp(name, "Ec2InstanceMetadata") == 0)
		return dcp_credentials_of_machine(out, err);
	if (strcmp(name, "EcsContainer") == 0)
		return dcp_credentials_of_container(out, err);
	return 0;
}

static int of_keys(struct dcp_credentials *out, const char *profile)
{
	dcp_auto_free char *key = value_of(profile, "aws_access_key_id");
	dcp_auto_free char *secret = value_of(profile, "aws_secret_access_key");
	dcp_auto_free char *token = value_of(profile, "aws_session_token");
	int rc = dcp_credentials_set(out, "profile", key, secret, token, NULL);

	if (secret)
		explicit_bzero(secret, strlen(secret));
	if (token)
		explicit_bzero(token, strlen(token));
	return rc;
}

/* The credentials of the role @arn, asked for by those that the profile names. */
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
	struct dcp_role role = { .arn = arn,
				 .session = session,
				 .external = external,
				 .region = region,
				 .token_file = file };
	int rc = file ? 1 : refuse(profile, "mfa_serial", err);

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
		rc = dcp_credentials_of_role(out, &role, err);
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
	rc = refuse(profile, "sso_session", err) ?: refuse(profile, "sso_start_url", err);
	if (rc == 0)
		rc = of_keys(out, profile);
	return rc ? rc : refuse(profile, "credential_process", err);
}

int dcp_credentials_of_profile(struct dcp_credentials *out, struct dcp_err *err)
{
	const char *profile = profile_in_use();
	dcp_auto_free char *there = value_of(profile, NULL);
	int rc = of_named(out, profile, 0, err);

	return rc == 0 && !there && strcmp(profile, "default") != 0
		       ? dcp_fail(err, -EACCES, "AWS_PROFILE=%.60s: there is no such profile",
				  profile)
		       : rc;
}
