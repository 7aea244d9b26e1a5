/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How servers are spoken to, and what stops a thread that waits for them.
 */
#include "core/base/base.h"
#include "core/remote/http.h"

static struct dcp_http_config config;

void dcp_http_configure(const struct dcp_http_config *c)
{
	config = *c;
}

const struct dcp_http_config *dcp_http_configured(void)
{
	return &config;
}

const char *dcp_http_env(const char *name)
{
	const char *value = config.env ? config.env(name) : NULL;

	return value && *value ? value : NULL;
}

static _Thread_local struct {
	bool (*stop)(void *ctx);
	void *ctx;
} watch;

void dcp_http_watch(bool (*stop)(void *ctx), void *ctx)
{
	watch.stop = stop;
	watch.ctx = ctx;
}

bool dcp_http_watched(void)
{
	return watch.stop;
}

bool dcp_http_stopped(void)
{
	return watch.stop && watch.stop(watch.ctx);
}
