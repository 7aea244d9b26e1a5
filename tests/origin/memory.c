/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: a source that is no file system, for tests: "mem:DIR" is what lies below DIR, read once
 * and then served from memory, by read() alone: it has no descriptor and no mapping.
 *
 * How many reads it answered is appended to the file that DCPFS_TEST_READS names, when the process
 * ends.
 */
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/origin/origin.h"

enum { MOST = 4096 };

static const char scheme[] = "mem:";

struct item {
	char *path; /* from the file system's root on */
	char *bytes;
	size_t n;
};

static struct item items[MOST]; /* sorted by path */
static size_t nitems;
static _Atomic unsigned long reads;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void write_reads(void)
{
	const char *path = getenv("DCPFS_TEST_READS");
	FILE *f = path ? fopen(path, "a") : NULL;

	if (f) {
		fprintf(f, "%lu\n", reads);
		fclose(f);
	}
}

static void at_end(void)
{
	atexit(write_reads);
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct item *)a)->path, ((const struct item *)b)->path);
}

static int add_item(const char *path, const struct stat *st, int kind)
{
	struct item *i = &items[nitems];
	FILE *f = kind == FTW_F && nitems < MOST ? fopen(path, "r") : NULL;

	for (size_t k = 0; f && k < nitems; k++)
		if (strcmp(items[k].path, path) == 0) {
			fclose(f);
			return 0;
		}
	if (!f)
		return 0;
	*i = (struct item){ strdup(path), malloc((size_t)st->st_size + 1),
			    (size_t)st->st_size };
	nitems += i->path && i->bytes && fread(i->bytes, 1, i->n, f) == i->n;
	fclose(f);
	return 0;
}

static bool is_below(size_t i, const char *within)
{
	return strncmp(items[i].path, within, strlen(within)) == 0;
}

extern const struct dcp_origin memory;

static int place_site(const char *within, const char *name, struct dcp_site *out)
{
	*out = (struct dcp_site){ .row = &memory, .fd = -1 };
	return asprintf(&out->within, "%s%s%s", within, name, *name ? "/" : "") < 0 ? -ENOMEM
										    : 0;
}

static int find_source(const char *source, struct dcp_site *out, char **only,
		       struct dcp_err *err)
{
	const char *path = source + strlen(scheme);
	size_t n = strlen(path);

	(void)only;
	if (!out)
		return 0; /* all that follows the scheme is a path */
	pthread_once(&once, at_end);
	pthread_mutex_lock(&lock);
	ftw(path, add_item, 16);
	qsort(items, nitems, sizeof(*items), by_path);
	pthread_mutex_unlock(&lock);
	while (n > 1 && path[n - 1] == '/')
		n--;
	*out = (struct dcp_site){ .row = &memory, .fd = -1 };
	if (asprintf(&out->within, "%.*s/", (int)n, path) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < nitems; i++)
		if (is_below(i, out->within))
			return 0;
	dcp_site_close(out);
	return -ENOENT;
}

static int list_dir(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx, struct dcp_err *err)
{
	size_t skip = strlen(at->within);
	const char *last = "";
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < nitems; i++) {
		const char *name = items[i].path + skip, *slash;

		if (!is_below(i, at->within))
			continue;
		slash = strchr(name, '/');
		if (slash && strncmp(last, name, (size_t)(slash - name) + 1) == 0)
			continue;
		last = slash ? name : "";
		rc = fn(ctx, name, slash ? (size_t)(slash - name) : strlen(name),
			&(struct dcp_dirent){ .size = slash ? 0 : items[i].n,
					      .is_dir = slash });
	}
	return rc;
}

static int open_below(const struct dcp_site *at, const char *name, struct dcp_site *out)
{
	int rc = place_site(at->within, strcmp(name, ".") ? name : "", out);

	for (size_t i = 0; rc == 0 && i < nitems; i++)
		if (is_below(i, out->within))
			return 0;
	dcp_site_close(out);
	return rc ? rc : -ENOENT;
}

static const struct item *look_up(const struct dcp_site *at, const char *name)
{
	size_t skip = strlen(at->within);

	for (size_t i = 0; i < nitems; i++)
		if (is_below(i, at->within) && strcmp(items[i].path + skip, name) == 0)
			return &items[i];
	return NULL;
}

static uint64_t number_of(const char *path, uint64_t n)
{
	for (; *path; path++)
		n = n * 31 + (unsigned char)*path;
	return n | 1;
}

/* Nothing here ever changes: a name is a tag. */
static int find_id(const struct dcp_site *at, const char *name, struct dcp_file_id *out)
{
	const struct item *i = look_up(at, name);
	const char *kept = out->name;

	if (!i && strcmp(name, ".") != 0)
		return -ENOENT;
	*out = (struct dcp_file_id){ .name = kept,
				     .size = i ? i->n : 0,
				     .ino = number_of(i ? i->path : at->within, 7) };
	return 0;
}

static int read_some(const struct dcp_read *r, size_t n)
{
	for (size_t k = 0; k < n; k++) {
		const struct item *i = r[k].blob->own;

		if (r[k].off > i->n || r[k].n > i->n - r[k].off)
			return -EIO;
		memcpy(r[k].to, i->bytes + r[k].off, r[k].n);
		reads++;
	}
	return 0;
}

static void close_blob(struct dcp_blob *b)
{
	(void)b;
}

static int open_file(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		     struct dcp_file_id *file, struct dcp_err *err)
{
	static const struct dcp_blob_ops ops = { .read = read_some, .close = close_blob };
	const struct item *i = look_up(at, name);

	if (!i)
		return dcp_fail(err, -ENOENT, "%s: no such file in memory", name);
	*out = (struct dcp_blob){ &ops, (void *)(uintptr_t)i, i->n, -1 };
	return file ? find_id(at, name, file) : 0;
}

static int open_again(const struct dcp_site *at, struct dcp_site *out)
{
	return place_site(at->within, "", out);
}

static void close_site(struct dcp_site *at)
{
	free(at->within);
}

const struct dcp_origin memory = {
	.name = "memory",
	.scheme = scheme,
	.settled = true,
	.find = find_source,
	.list = list_dir,
	.below = open_below,
	.open = open_file,
	.id = find_id,
	.again = open_again,
	.close = close_site,
};

/* In place of core/origin/origins.c. */
const struct dcp_origin *const dcp_origins[] = { &memory, NULL };
