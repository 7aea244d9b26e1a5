/* SPDX-License-Identifier: Apache-2.0 */
/* Places and permissions of files that are made from a source. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/checkpoint/mounts.h"
#include "core/origin/origin.h"
#include "core/store/version/version.h"
#include "tools/cmd.h"
#include "tools/export/export.h"

/* The real path of @out, or of the nearest existing directory above it; missing directories are
 * made later. */
static char *resolve_above(const char *out)
{
	dcp_auto_free char *path = strdup(out);
	char *place = path ? cmd_resolve(path) : NULL, *slash;

	while (!place && errno == ENOENT && path && (slash = strrchr(path, '/')) &&
	       slash != path && strcmp(slash, "/..") != 0) {
		*slash = '\0';
		place = cmd_resolve(path);
	}
	return place;
}

bool export_is_remote(const char *out)
{
	return dcp_origin_of(out) != &dcp_origin_local;
}

/* Is the URL @inner @outer, or below it? */
static bool is_below(const char *inner, const char *outer)
{
	size_t n = strlen(outer);

	while (n && outer[n - 1] == '/')
		n--;
	return strncmp(inner, outer, n) == 0 && (!inner[n] || inner[n] == '/');
}

enum cmd_exit export_check_apart(const char *out, const char *from)
{
	dcp_auto_free char *place = resolve_above(out), *real = realpath(out, NULL);
	dcp_auto_free char *source = realpath(from, NULL);
	struct dcp_mount m;
	const char *rest;
	bool mounted = source && dcp_mounts_around(source, &m, &rest);

	if (export_is_remote(out)) {
		const char *read = mounted ? m.source : from;

		return is_below(out, read) || is_below(read, out)
			       ? cmd_fail(CMD_USAGE,
					  "%s and %s, which is read, lie in each other; give "
					  "another place",
					  out, read)
			       : CMD_OK;
	}
	if (mounted) {
		free(source);
		source = realpath(m.source, NULL);
	}
	if (source &&
	    ((place && cmd_is_within(place, source)) || (real && cmd_is_within(real, source))))
		return cmd_fail(CMD_USAGE, "%s lies in %s, which is read; give another place",
				out, from);
	if (source && real && cmd_is_within(source, real))
		return cmd_fail(CMD_USAGE, "%s holds %s, which is read; give another place",
				out, from);
	return CMD_OK;
}

enum cmd_exit export_check_place(const char *out, const char *from)
{
	dcp_auto_free char *place = resolve_above(out);
	struct dcp_mount m;
	const char *rest;

	if (export_is_remote(out))
		return export_check_apart(out, from);
	if (!place)
		return cmd_fail(CMD_ENV, "the directory of %s: %s", out, strerror(errno));
	if (dcp_mounts_around(place, &m, &rest))
		return cmd_fail(CMD_USAGE,
				"%s lies in a mount of dcpfs, which cannot be written to", out);
	return export_check_apart(out, from);
}

/* ---- permissions ---- */

/* The group of a new file in @dir, or in the nearest existing directory above it. */
static gid_t group_in(const char *dir)
{
	dcp_auto_free char *place = resolve_above(dir);
	struct stat st;

	return place && stat(place, &st) == 0 && st.st_mode & S_ISGID ? st.st_gid : getegid();
}

int export_withheld(const struct dcp_version *v, const char *source, const char *dir,
		    uint32_t *out)
{
	return dcp_grants_withheld(v, source, group_in(dir), out);
}

int export_withheld_beside(const struct dcp_version *v, const char *source, const char *out,
			   uint32_t *bits)
{
	dcp_auto_free char *dir = NULL;
	size_t n = strlen(out);

	*bits = 0; /* the owner of a bucket decides who may read its objects */
	if (export_is_remote(out))
		return 0;
	while (n > 1 && out[n - 1] == '/')
		n--;
	while (n && out[n - 1] != '/')
		n--;
	dir = n ? strndup(out, n) : strdup(".");
	return dir ? export_withheld(v, source, dir, bits) : -ENOMEM;
}

bool export_may_replace(const char *path, const char *head)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	char found[256] = "";
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fd < 0 && errno == ENOENT;
	return !S_ISREG(st.st_mode) || st.st_size == 0 ||
	       (pread(fd, found, sizeof(found) - 1, 0) > 0 &&
		strncmp(found, head, strlen(head)) == 0);
}

int export_create(const char *path, uint32_t withheld)
{
	dcp_auto_fd int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666 & ~withheld);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (S_ISREG(st.st_mode) && st.st_mode & withheld &&
	    fchmod(fd, st.st_mode & 0777 & ~withheld) < 0)
		return -errno;
	if (S_ISREG(st.st_mode) && ftruncate(fd, 0) < 0)
		return -errno;
	return dcp_take_fd(&fd);
}

enum cmd_exit export_check_file(const char *verb, const char *file, const char *head,
				const char *source)
{
	enum cmd_exit code = file ? export_check_place(file, source) : CMD_OK;

	if (code == CMD_OK && file && !export_may_replace(file, head))
		code = cmd_fail(CMD_USAGE, "%s: %s exists and is not a %s: it is not replaced",
				verb, file, verb);
	return code;
}

enum cmd_exit export_put_file(struct out *o, const char *verb, const char *file,
			      const char *head, const struct pick *p, const struct pick *q)
{
	enum cmd_exit code = export_check_file(verb, file, head, p->ck.source);
	uint32_t withheld = 0, also = 0;
	dcp_auto_fd int fd = -1;
	int rc;

	if (code == CMD_OK && q)
		code = export_check_file(verb, file, head, q->ck.source);
	if (code != CMD_OK || !file)
		return code == CMD_OK ? out_flush(o) : code;
	rc = export_withheld_beside(p->ck.v, p->ck.source, file, &withheld);
	if (rc == 0 && q)
		rc = export_withheld_beside(q->ck.v, q->ck.source, file, &also);
	fd = rc < 0 ? rc : export_create(file, withheld | also);
	return fd < 0 ? cmd_fail(CMD_ENV, "%s: %s", file, strerror(-fd))
		      : out_flush_to(o, fd, file);
}
