/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/error.h"

#include <errno.h>
#include <pthread.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/remote/http.h"

static char *join_path(const char *a, const char *b)
{
	char *s;

	return asprintf(&s, "%s/%s", a, b) < 0 ? NULL : s;
}

/* Can files be created in @dir, once it exists? */
static bool can_write(const char *dir)
{
	dcp_auto_free char *at = strdup(dir);
	char *slash;

	while (at && access(at, F_OK) < 0 && errno == ENOENT && (slash = strrchr(at, '/')) &&
	       slash != at)
		*slash = '\0';
	return at && access(at, W_OK | X_OK) == 0;
}

/* The home directory of this user in the password database, or NULL. */
static char *registered_home(void)
{
	struct passwd pw, *found = NULL;
	char text[4096];

	return getpwuid_r(geteuid(), &pw, text, sizeof(text), &found) == 0 && found &&
			       found->pw_dir[0] == '/'
		       ? strdup(found->pw_dir)
		       : NULL;
}

/* Can this user write to @dir, below the directory @home? @read: it is enough to own @home. */
static bool is_ours(const char *home, const char *dir, bool read)
{
	struct stat st;

	return can_write(dir) || (read && stat(home, &st) == 0 && st.st_uid == geteuid());
}

/*
 * The directory @below in the home directory of the user, which the caller frees; NULL: there is
 * none. When mount(8) mounts for a user by fstab, it sets HOME to that of root, and a service may
 * have no HOME; so unless HOME belongs to this user, the password database decides.
 */
static char *find_below_home(const char *below, bool read)
{
	const char *home = getenv("HOME");
	dcp_auto_free char *other = registered_home();
	char *named = home && *home == '/' ? join_path(home, below) : NULL;
	char *registered = other ? join_path(other, below) : NULL;
	bool take_named = named && (is_ours(home, named, read) || !registered ||
				    !is_ours(other, registered, read));

	free(take_named ? registered : named);
	return take_named ? named : registered;
}

/* The directory ~ as load_config_dir() defines it, which the caller frees; NULL: there is none. */
static char *load_home(void)
{
	return find_below_home(".", true);
}

char *load_cache_dir(void)
{
	const char *own = getenv("DCPFS_CACHE");
	const char *xdg = getenv("XDG_CACHE_HOME");

	if (own && *own && *own != '/') {
		/* Make the path absolute, because a daemon that uses it later changes its
		 * directory. */
		dcp_auto_free char *cwd = getcwd(NULL, 0);

		return cwd ? join_path(cwd, own) : NULL;
	}
	if (own)
		return *own ? strdup(own) : NULL;
	if (xdg && xdg[0] == '/')
		return join_path(xdg, "dcpfs");
	return find_below_home(".cache/dcpfs", false);
}

char *load_config_dir(void)
{
	const char *xdg = getenv("XDG_CONFIG_HOME");

	if (xdg && xdg[0] == '/')
		return join_path(xdg, "dcpfs");
	return find_below_home(".config/dcpfs", true);
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

static const char *read_variable(const char *name)
{
	return getenv(name);
}

/* The number in an optional environment variable; 0: not set. */
static unsigned read_number(const char *name)
{
	const char *text = getenv(name);
	uint64_t v;

	return text && dcp_is_number(text, &v) && v <= 100000 ? (unsigned)v : 0;
}

static void configure_http(void)
{
	const struct dcp_http_config config = {
		.env = read_variable,
		.home = load_home(), /* kept until the process ends */
		.timeout_s = read_number("DCPFS_TIMEOUT"),
		.stall_s = read_number("DCPFS_STALL"),
		.parallel = read_number("DCPFS_REQUESTS"),
	};

	dcp_http_configure(&config);
}

void load_servers(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, configure_http);
}
