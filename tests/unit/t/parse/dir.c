/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/parse/dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tests/unit/t.h"

void t_dir_make(struct t_dir *d, const char *what)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(d->root, sizeof(d->root), "%.60s/%.20s.XXXXXX", tmp ? tmp : "/tmp", what);
	assert_non_null(mkdtemp(d->root));
	d->fd = open(d->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(d->fd >= 0);
	d->at = dcp_site_at(d->fd);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

void t_dir_remove(struct t_dir *d)
{
	close(d->fd);
	nftw(d->root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *t_dir_path(const struct t_dir *d, const char *name)
{
	static char paths[8][512];
	static unsigned next;
	char *p = paths[next++ % 8];

	snprintf(p, sizeof(paths[0]), "%s%s%.400s", d->root, *name ? "/" : "", name);
	return p;
}

void t_dir_sub(const struct t_dir *d, const char *name)
{
	char part[400];

	for (const char *p = name; *p; p += *p == '/') {
		p += strcspn(p, "/");
		snprintf(part, sizeof(part), "%.*s", (int)(p - name), name);
		assert_true(mkdirat(d->fd, part, 0755) == 0 || errno == EEXIST);
	}
}

void t_dir_put(const struct t_dir *d, const char *name, const void *p, size_t n)
{
	const char *slash = strrchr(name, '/');
	dcp_auto_fd int fd = -1;

	if (slash) {
		char above[400];

		snprintf(above, sizeof(above), "%.*s", (int)(slash - name), name);
		t_dir_sub(d, above);
	}
	fd = openat(d->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	if (p)
		assert_int_equal(write(fd, p, n), n);
	else
		assert_int_equal(ftruncate(fd, (off_t)n), 0);
}

void t_dir_text(const struct t_dir *d, const char *name, const char *text)
{
	t_dir_put(d, name, text, strlen(text));
}

void t_dir_delete(const struct t_dir *d, const char *name)
{
	assert_int_equal(unlinkat(d->fd, name, 0), 0);
}

void t_dir_touch(const struct t_dir *d, const char *name, int64_t mtime_ns)
{
	struct timespec t[2] = { { .tv_nsec = UTIME_OMIT },
				 { mtime_ns / 1000000000, mtime_ns % 1000000000 } };

	assert_int_equal(utimensat(d->fd, name, t, 0), 0);
}

size_t t_dir_count(const struct t_dir *d, const char *name)
{
	DIR *dir = opendir(t_dir_path(d, name));
	struct dirent *e;
	size_t n = 0;

	assert_non_null(dir);
	while ((e = readdir(dir)) != NULL)
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	closedir(dir);
	return n;
}
