/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May what has the name be replaced? Only a checkpoint, complete or not, and each of its files is judged by what is in it.
 */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/cleanup.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/archive/zip.h"
#include "core/origin/source.h"
#include "core/parse/magic.h"
#include "core/parse/paddle/lodtensor.h"
#include "core/parse/pickle/pickle.h"
#include "tools/save/save_int.h"

enum { HEAD = 512, ZIP_NAME = 30, MAX_DESC = 1024, MEMORY = 32 << 20 };

/* A zip archive whose first member is one of torch.save or of numpy.savez. */
static bool is_zip(const uint8_t *p, size_t n)
{
	size_t len = n > ZIP_NAME && memcmp(p, "PK\3\4", 4) == 0 ? dcp_load_le16(p + 26) : 0;
	const char *name = (const char *)p + ZIP_NAME;

	return len && len <= n - ZIP_NAME &&
	       (dcp_ends_with(name, len, "/data.pkl") || dcp_ends_with(name, len, ".npy"));
}

/* A tensor stream of Paddle: two versions and no levels, the length of a description, its first field. */
static bool is_stream(const uint8_t *p, size_t n)
{
	static const uint8_t zeros[16];

	return n > 20 && memcmp(p, zeros, 16) == 0 && dcp_load_le32(p + 16) <= MAX_DESC &&
	       p[20] == 8;
}

/* A zip archive as TorchScript writes them: all members are in one directory, data.pkl and version among them. */
static bool is_archive(const struct dcp_source *src)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(MEMORY);
	struct dcp_zip_member *member;
	bool data = false, version = false;
	struct dcp_err err;
	size_t n, dir;

	if (dcp_zip_list(src, &arena, &member, &n, &err) < 0 || n == 0)
		return false;
	dir = strcspn(member[0].name, "/");
	for (size_t i = 0; i < n; i++) {
		const char *name = member[i].name;

		if (strcspn(name, "/") != dir || strncmp(name, member[0].name, dir) != 0)
			return false;
		data |= strcmp(name + dir, "/data.pkl") == 0;
		version |= strcmp(name + dir, "/version") == 0;
	}
	return data && version;
}

/* A pickle of protocol 0 or 1 that can be read to its end, with a container in it. */
static bool is_old_pickle(const struct dcp_source *src)
{
	const struct dcp_pickle_opts opts = { .memory = MEMORY };
	struct dcp_pickle *p = NULL;
	struct dcp_err err;
	uint64_t end;
	bool found = dcp_pickle_read(src, &opts, &p, &end, &err) == 0 && end == src->size &&
		     dcp_pickle_root(p).type >= DCP_PV_TUPLE;

	dcp_pickle_free(p);
	return found;
}

/* Do our readers know it? */
static bool is_read(int fd, uint8_t first)
{
	struct dcp_lodtensor tensor;
	struct dcp_source src;
	struct dcp_err err;

	if (dcp_source_fd(fd, &src) < 0)
		return false;
	switch (first) {
	case 0:
		return dcp_lodtensor_read(&src, 0, &tensor, &err) == 0;
	case 'P':
		return is_archive(&src);
	case '(':
	case ']':
	case '}':
	case 'c':
		return is_old_pickle(&src);
	default:
		return false;
	}
}

/* Does it begin as a file of weights does? One that is empty has nothing to lose. */
static bool is_weights(int dir, const char *name)
{
	dcp_auto_fd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	uint8_t p[HEAD];
	struct stat st;
	ssize_t got;
	size_t n;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    (got = pread(fd, p, sizeof(p), 0)) < 0)
		return false;
	n = (size_t)got;
	return n == 0 ||
	       (dcp_magic_is_safetensors(p, n) &&
		dcp_load_le64(p) <= (uint64_t)st.st_size - 8) ||
	       (n > 2 && p[0] == 0x80 && p[1] >= 2 && p[1] <= 5) ||
	       (n > 6 && memcmp(p, "\x93NUMPY", 6) == 0) || is_zip(p, n) || is_stream(p, n) ||
	       is_read(fd, p[0]);
}

/* Is nothing lost with a file of this name? It is written along with weights, or this save writes another one. */
static bool goes_along(const struct save *s, const char *name)
{
	static const char *const globs[] = { "*.index.json", "latest_universal",
					     "model.pdmodel" };

	for (size_t i = 0; i < DCP_LEN(globs); i++)
		if (fnmatch(globs[i], name, 0) == 0)
			return true;
	for (size_t i = 0; i < save_nfiles(s); i++)
		if (strcmp(save_files(s)[i].name, name) == 0)
			return true;
	return false;
}

/* The first file of the directory that is not of a checkpoint, into @foreign; "": none. @any: some are of one. */
static int look(const struct save *s, char foreign[NAME_MAX + 1], bool *any)
{
	DIR *dir = save_open_dir(s->parent_fd, s->name);
	const char *in;

	if (!dir)
		return -errno;
	while (!*foreign && (in = save_next_name(dir))) {
		if (is_weights(dirfd(dir), in))
			*any = true;
		else if (!goes_along(s, in))
			snprintf(foreign, NAME_MAX + 1, "%s", in);
	}
	closedir(dir);
	return 0;
}

int save_check_replaced(const struct save *s, struct dcp_err *err)
{
	char foreign[NAME_MAX + 1] = "";
	bool any = false;
	int rc;

	if (!s->replaces)
		return 0;
	if (s->opts.file)
		any = is_weights(s->parent_fd, s->name);
	rc = s->opts.file ? 0 : look(s, foreign, &any);
	if (rc < 0)
		return save_fail(s, rc, s->name, err);
	if (*foreign)
		return dcp_fail(
			err, -EEXIST,
			"%s/%s is not a checkpoint alone: \"%s\" is not a file of one, and "
			"would be lost; remove it first",
			s->parent, s->name, foreign);
	return any ? 0
		   : dcp_fail(err, -EEXIST,
			      "%s/%s is not a checkpoint, and only one is replaced; remove it "
			      "first",
			      s->parent, s->name);
}
