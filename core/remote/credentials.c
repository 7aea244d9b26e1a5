/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/credentials.h"

#include <errno.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/remote/credentials_int.h"
#include "core/remote/http.h"

enum {
	EARLY_S = 300, /* before they expire, they are asked for again */
	PAUSE_S = 5,   /* until that is tried again, if it could not be done */
};

static int of_google_keys(struct dcp_credentials *out, struct dcp_err *err)
{
	return dcp_credentials_set(out, "environment", dcp_http_env("GS_ACCESS_KEY_ID"),
				   dcp_http_env("GS_SECRET_ACCESS_KEY"), NULL, NULL);
}

static int of_google_token(struct dcp_credentials *out, struct dcp_err *err)
{
	return dcp_credentials_set_bearer(out, "a token",
					  dcp_http_env("GOOGLE_OAUTH_ACCESS_TOKEN"));
}

/* A service account's file holds a private key, which dcpfs does not sign with. */
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

/* ---- whichever there are ---- */

int dcp_credentials_renew(struct dcp_credentials *c, enum dcp_cloud cloud, bool refused,
			  struct dcp_err *err)
{
	typedef int get_fn(struct dcp_credentials *, struct dcp_err *);
	static get_fn *const chains[][6] = {
		[DCP_AMAZON] = { dcp_credentials_of_environment,
				 dcp_credentials_of_web_identity, dcp_credentials_of_profile,
				 dcp_credentials_of_container, dcp_credentials_of_machine },
		[DCP_GOOGLE] = { of_google_keys, of_google_token, of_google_file,
				 dcp_credentials_of_google_machine },
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
	    c->expires_s) /* a server that gave some, and does not answer now */
		rc = dcp_fail(err, -EACCES, "credentials (%s) end, and there are no new ones",
			      c->kind);
	if (rc < 0) {
		dcp_credentials_finish(&new);
		if (!c->kind || refused || now >= c->expires_s)
			return dcp_err_say(err, rc);
		c->again_s = time(NULL) + PAUSE_S; /* those that there are still count */
		return 0;
	}
	dcp_credentials_finish(c);
	*c = new;
	c->again_s = DCP_MIN(time(NULL) + PAUSE_S, c->expires_s);
	return 0;
}
