/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/number.h"

static FILE *open_file(const char *fmt, ...) DCP_PRINTF(1, 2);
static FILE *open_file(const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	return n < (int)sizeof(path) ? fopen(path, "re") : NULL;
}

/*
 * The number after @name at the beginning of a line; @name "": the first of the file. @f may be
 * NULL.
 */
static bool number_of(FILE *f, const char *name, uint64_t *out)
{
	char line[256];

	if (f)
		rewind(f);
	while (f && fgets(line, sizeof(line), f)) {
		const char *at = line + strlen(name);

		if (strncmp(line, name, strlen(name)) != 0)
			continue;
		at += strspn(at, " ");
		return dcp_take_number(&at, NULL, DCP_ANY_DIGITS, out);
	}
	return false;
}

/*
 * What is left below the limit of the cgroup @dir; @stem: names of its files. Pages of files that
 * are not in use do not count: the kernel takes them first.
 */
static uint64_t left_in(const char *dir, const char *limit, const char *used, const char *cache)
{
	dcp_auto_file FILE *max = open_file("%s/%s", dir, limit),
			   *now = open_file("%s/%s", dir, used),
			   *stat = open_file("%s/memory.stat", dir);
	uint64_t most, bytes, files = 0;

	if (!number_of(max, "", &most) || !number_of(now, "", &bytes))
		return UINT64_MAX; /* "max" */
	number_of(stat, cache, &files);
	bytes -= DCP_MIN(bytes, files);
	return most - DCP_MIN(most, bytes);
}

static void lower(uint64_t *least, uint64_t n, char *what, size_t size, const char *is)
{
	if (n >= *least)
		return;
	*least = n;
	snprintf(what, size, "%s", is);
}

/* Of the cgroup and of the cgroups above it. */
static void lower_by_cgroups(const char *root, bool old, char *path, uint64_t *least,
			     char *what, size_t size)
{
	for (;;) {
		char dir[PATH_MAX];
		char *slash;

		if (snprintf(dir, sizeof(dir), "%s/sys/fs/cgroup%s%s", root,
			     old ? "/memory" : "", path) < (int)sizeof(dir))
			lower(least,
			      old ? left_in(dir, "memory.limit_in_bytes",
					    "memory.usage_in_bytes", "total_inactive_file ")
				  : left_in(dir, "memory.max", "memory.current",
					    "inactive_file "),
			      what, size, "the limit of the cgroup");
		slash = strrchr(path, '/');
		if (!*path || !slash)
			return;
		*slash = '\0';
	}
}

uint64_t load_room_of(const char *root, char *what, size_t size)
{
	dcp_auto_file FILE *info = open_file("%s/proc/meminfo", root),
			   *groups = open_file("%s/proc/self/cgroup", root);
	uint64_t least = UINT64_MAX, kib, swap = 0;
	char line[PATH_MAX];

	snprintf(what, size, "not known");
	if (number_of(info, "MemAvailable:", &kib)) {
		number_of(info, "SwapFree:", &swap);
		lower(&least, (kib + swap) * 1024, what, size, "MemAvailable");
	}
	/* "0::/a/b"; "5:memory:/a/b" of the old kind */
	while (groups && fgets(line, sizeof(line), groups)) {
		char *path = strchr(line, '/');
		bool old = strstr(line, ":memory:") != NULL;

		line[strcspn(line, "\n")] = '\0';
		if (path && (old || strncmp(line, "0::", 3) == 0))
			lower_by_cgroups(root, old, path, &least, what, size);
	}
	return least;
}

uint64_t load_room(char *what, size_t size)
{
	return load_room_of("", what, size);
}
