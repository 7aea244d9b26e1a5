/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/servers.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/base/text.h"
#include "core/remote/http.h"
#include "tools/load/cache.h"

static const char *variable(const char *name)
{
	return getenv(name);
}

/* A number that people may give; 0: they do not. */
static unsigned number(const char *name)
{
	const char *text = getenv(name);
	uint64_t v;

	return text && dcp_is_number(text, &v) && v <= 100000 ? (unsigned)v : 0;
}

static void configure(void)
{
	const struct dcp_http_config config = {
		.env = variable,
		.home = load_home(), /* as long as the process */
		.timeout_s = number("DCPFS_TIMEOUT"),
		.stall_s = number("DCPFS_STALL"),
		.parallel = number("DCPFS_REQUESTS"),
	};

	dcp_http_configure(&config);
}

void load_servers(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, configure);
}
