/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/cleanup.h"

static char *join(const char *a, const char *b)
{
	char *s;

	return asprintf(&s, "%s/%s", a, b) < 0 ? NULL : s;
}

char *load_cache_dir(void)
{
	const char *own = getenv("DCPFS_CACHE");
	const char *xdg = getenv("XDG_CACHE_HOME");
	const char *home = getenv("HOME");

	if (own && *own && *own != '/') {
		/* The daemon that goes on to use it leaves this directory. */
		dcp_auto_free char *cwd = getcwd(NULL, 0);

		return cwd ? join(cwd, own) : NULL;
	}
	if (own)
		return *own ? strdup(own) : NULL;
	if (xdg && xdg[0] == '/')
		return join(xdg, "dcpfs");
	if (home && home[0] == '/')
		return join(home, ".cache/dcpfs");
	return NULL;
}

char *load_config_dir(void)
{
	const char *xdg = getenv("XDG_CONFIG_HOME");
	const char *home = getenv("HOME");

	if (xdg && xdg[0] == '/')
		return join(xdg, "dcpfs");
	return home && home[0] == '/' ? join(home, ".config/dcpfs") : NULL;
}

int load_cache_make(const char *dir)
{
	dcp_auto_free char *path = strdup(dir);

	if (!path)
		return -ENOMEM;
	for (char *p = path + 1;; p++) {
		char c = *p;

		if (c && c != '/')
			continue;
		*p = '\0';
		if (mkdir(path, 0700) < 0 && errno != EEXIST && (!c || errno != EACCES))
			return -errno;
		*p = c;
		if (!c)
			return 0;
	}
}
