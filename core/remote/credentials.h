/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credentials: whose requests to an object store are. Looked for where Amazon's own programs look, in their order:
 * the environment, a web identity's token, profile files, the container's server, the machine's server (IMDSv2).
 *
 * They are in memory only: in no message, log, URL, index or cache.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct dcp_err;

struct dcp_credentials {
	char *key, *secret;
	char *token;       /* of a session; NULL: none */
	const char *kind;  /* "environment", "profile", ...; "none": requests are not signed */
	int64_t expires_s; /* CLOCK_REALTIME; 0: never */
};

/* Those that requests can be made with now; @c is empty or of an earlier call, and is replaced when it is about to
 * expire, or if it was @refused. None at all is no error. */
int dcp_credentials_renew(struct dcp_credentials *c, bool refused, struct dcp_err *err);
void dcp_credentials_finish(struct dcp_credentials *c);

/* What the profile in use says of @name ("region"), malloc'ed; NULL: nothing. */
char *dcp_credentials_profile(const char *name);
