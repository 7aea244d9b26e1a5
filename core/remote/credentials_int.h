/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credentials_int: where credentials come from. Those that get some return 1 if @out is complete, 0
 * if there are none of that kind, or a negative errno with the reason in @err.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct dcp_credentials;
struct dcp_err;

/* 1 if @out is complete, else 0, or -ENOMEM. @expires: "2026-10-12T17:50:30Z"; NULL: never. */
int dcp_credentials_set(struct dcp_credentials *out, const char *kind, const char *key,
			const char *secret, const char *token, const char *expires);
/* The same for a token alone, which signs nothing. */
int dcp_credentials_set_bearer(struct dcp_credentials *out, const char *kind,
			       const char *token);
/* May it stand in a header? */
bool dcp_credentials_plain(const char *s);
/*
 * The first @most bytes of the file @path as text, without the end of its last line, or NULL with
 * errno.
 */
char *dcp_credentials_read(const char *path, size_t most);

int dcp_credentials_of_environment(struct dcp_credentials *out, struct dcp_err *err);
/* A token of a cluster (EKS), which the environment names, for credentials of a role. */
int dcp_credentials_of_web_identity(struct dcp_credentials *out, struct dcp_err *err);
int dcp_credentials_of_profile(struct dcp_credentials *out, struct dcp_err *err);
int dcp_credentials_of_container(struct dcp_credentials *out, struct dcp_err *err);
int dcp_credentials_of_machine(struct dcp_credentials *out, struct dcp_err *err);
int dcp_credentials_of_google_machine(struct dcp_credentials *out, struct dcp_err *err);

struct dcp_role {
	const char *arn;
	const char *session, *external;   /* NULL: "dcpfs", none */
	const char *region;               /* whose service is asked; NULL: the one for all */
	const char *token_file;           /* a web identity's; NULL: */
	const struct dcp_credentials *by; /* those that may take the role */
};
int dcp_credentials_of_role(struct dcp_credentials *out, const struct dcp_role *role,
			    struct dcp_err *err);
