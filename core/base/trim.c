/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/trim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/system.h"
#include "core/base/text.h"

#define DAY_NS (86400 * DCP_NS_PER_S)

struct kept {
	char *name;
	uint64_t size;
	int64_t used_ns;
};

struct trimming {
	const struct dcp_trim *how;
	struct dcp_trimmed *out;
	int dirfd;
	int64_t now_ns;
	struct dcp_buf list; /* struct kept */
};

static int64_t changed_ns(const struct stat *st)
{
	return st->st_mtim.tv_sec * DCP_NS_PER_S + st->st_mtim.tv_nsec;
}

/* Does a process hold a lock on the file @name? */
static bool is_held(const struct trimming *t, const char *name)
{
	dcp_auto_fd int fd =
		openat(t->dirfd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
}

static bool remove_file(const struct trimming *t, const char *name, uint64_t size)
{
	if (t->how->counts || (t->how->sparse && is_held(t, name)) ||
	    unlinkat(t->dirfd, name, 0) < 0)
		return false;
	t->out->removed++;
	t->out->freed += size;
	return true;
}

/* The end of "x.bin" in the name "x.bin.tmp-AbCdEf" or "x.bin.lock"; NULL: the name is neither. */
static const char *end_of_owner(const struct trimming *t, const char *name)
{
	const char *end = name;

	while ((end = strstr(end, t->how->ext))) {
		end += strlen(t->how->ext);
		if (strncmp(end, ".tmp-", 5) == 0 || strcmp(end, ".lock") == 0)
			return end;
	}
	return NULL;
}

static bool is_locked(const struct trimming *t, const char *name, size_t n)
{
	char lock[NAME_MAX + 8];

	snprintf(lock, sizeof(lock), "%.*s.lock", (int)n, name);
	return is_held(t, lock);
}

static void look_at(struct trimming *t, const char *name)
{
	struct kept k = { .name = NULL };
	const char *end;
	struct stat st;
	uint64_t size;

	if (fstatat(t->dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return;
	size = t->how->sparse ? (uint64_t)st.st_blocks * 512 : (uint64_t)st.st_size;
	end = end_of_owner(t, name);
	if (end && (t->how->all || changed_ns(&st) < t->now_ns - DAY_NS) &&
	    !is_locked(t, name, (size_t)(end - name)))
		remove_file(t, name, size);
	if (!dcp_has_extension(name, t->how->ext))
		return;
	k = (struct kept){ strdup(name), size, changed_ns(&st) };
	if (k.name && dcp_buf_add(&t->list, &k, sizeof(k)) == 0) {
		t->out->files++;
		t->out->bytes += k.size;
	}
}

static int by_use(const void *a, const void *b)
{
	const struct kept *x = a, *y = b;

	return DCP_CMP(x->used_ns, y->used_ns);
}

/* The list is ordered by use, so files that exceed the limit come first. */
static void remove_some(const struct trimming *t, struct kept *k, size_t n)
{
	const struct dcp_trim *how = t->how;
	int64_t oldest_ns = how->days ? t->now_ns - how->days * DAY_NS : INT64_MIN;

	for (size_t i = 0; i < n; i++) {
		bool goes = how->all || t->out->bytes > how->most || k[i].used_ns < oldest_ns ||
			    (how->goes && how->goes(how->ctx, t->dirfd, k[i].name));

		if (how->keep && dcp_ends_with(how->keep, strlen(how->keep), k[i].name))
			goes = false;
		if (goes && remove_file(t, k[i].name, k[i].size)) {
			t->out->files--;
			t->out->bytes -= k[i].size;
		}
		free(k[i].name);
	}
}

int dcp_cache_trim(const char *dir, const struct dcp_trim *how, struct dcp_trimmed *out)
{
	struct trimming t = { how, out, -1, dcp_now_ns(CLOCK_REALTIME), DCP_BUF_INIT };
	DIR *d = opendir(dir);
	struct stat st;

	*out = (struct dcp_trimmed){ 0 };
	if (!d)
		return -errno;
	t.dirfd = dirfd(d);
	if (how->keep && stat(how->keep, &st) == 0) /* by the clock of the file system */
		t.now_ns = changed_ns(&st);
	for (struct dirent *e; (e = readdir(d));)
		look_at(&t, e->d_name);
	DCP_SORT(DCP_ITEMS(t.list, struct kept), DCP_NITEMS(t.list, struct kept), by_use);
	remove_some(&t, DCP_ITEMS(t.list, struct kept), DCP_NITEMS(t.list, struct kept));
	dcp_buf_finish(&t.list);
	closedir(d);
	return 0;
}

int dcp_cache_mkdirs(const char *path)
{
	dcp_auto_free char *copy = strdup(path);

	if (!copy)
		return -ENOMEM;
	for (char *p = strchr(copy + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = '\0';
		if (mkdir(copy, 0700) < 0 && errno != EEXIST) {
			struct stat st;
			int code = -errno;

			/* on the way there may be directories that cannot be written to */
			if (stat(copy, &st) < 0 || !S_ISDIR(st.st_mode))
				return code;
		}
		*p = '/';
	}
	return 0;
}

void dcp_cache_use(int fd)
{
	futimens(fd, NULL);
}
