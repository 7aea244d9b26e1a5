/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/curl.h"

#include <errno.h>

#include "core/base/err.h"
#include "core/remote/s3.h"

const char *dcp_transfers_library(const char **why)
{
	*why = "this build has no libcurl; build it with -Dcurl=enabled";
	return NULL;
}

int dcp_transfers_create(struct dcp_transfers **out, const char **why)
{
	dcp_transfers_library(why);
	return -ENOSYS;
}

void dcp_transfers_destroy(struct dcp_transfers *t)
{
}

int dcp_transfers_add(struct dcp_transfers *t, const struct dcp_transfer_opts *o,
		      struct dcp_transfer **out)
{
	return -ENOSYS;
}

void dcp_transfers_remove(struct dcp_transfers *t, struct dcp_transfer *one)
{
}

long dcp_transfer_status(const struct dcp_transfer *one)
{
	return 0;
}

size_t dcp_transfers_run(struct dcp_transfers *t, int ms, struct dcp_transfer_end *ends,
			 size_t n)
{
	return 0;
}

int dcp_xml_each(const char *text, size_t n, dcp_xml_fn *fn, void *ctx, struct dcp_err *err)
{
	const char *why;

	dcp_transfers_library(&why);
	return dcp_fail(err, -ENOSYS, "%s", why);
}

const char *dcp_xml_expat_version(void)
{
	return NULL;
}
