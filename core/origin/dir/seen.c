/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/dir/seen.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "core/base/base.h"
#include "core/origin/dir/dir.h"

void dcp_seen_finish(struct dcp_seen *s)
{
	dcp_intern_finish(&s->paths);
	dcp_buf_finish(&s->looks);
	*s = (struct dcp_seen){ 0 };
}

size_t dcp_seen_count(const struct dcp_seen *s)
{
	return DCP_NITEMS(s->looks, struct dcp_look);
}

const char *dcp_seen_path(const struct dcp_seen *s, size_t i)
{
	return dcp_intern_text(&s->paths, (uint32_t)i);
}

const struct dcp_look *dcp_seen_at(const struct dcp_seen *s, size_t i)
{
	return DCP_ITEMS(s->looks, struct dcp_look) + i;
}

static struct timespec time_of(struct statx_timestamp t)
{
	return (struct timespec){ .tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec };
}

/* As nothing, where it cannot be asked. */
static void look_at(int dirfd, const char *name, struct dcp_file_id *id)
{
	struct stat st = { 0 };
	struct statx now;

	*id = (struct dcp_file_id){ 0 };
	if (statx(dirfd, name, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &now) < 0)
		return;
	st.st_size = (off_t)now.stx_size;
	st.st_dev = makedev(now.stx_dev_major, now.stx_dev_minor);
	st.st_ino = now.stx_ino;
	st.st_mtim = time_of(now.stx_mtime);
	st.st_ctim = time_of(now.stx_ctime);
	dcp_file_id_from_stat(&st, id);
}

static int add(struct dcp_seen *s, const char *path, int dirfd, const char *name, bool listed)
{
	struct dcp_look look = { .listed = listed };
	int rc = dcp_intern_add(&s->paths, path, strlen(path) + 1, DCP_INTERN_NONE, NULL);

	if (rc <= 0)
		return rc;
	look_at(dirfd, name, &look.id);
	s->newest_ns = DCP_MAX(s->newest_ns, look.id.ctime_ns);
	return dcp_buf_add(&s->looks, &look, sizeof(look));
}

void dcp_seen_note(struct dcp_seen *s, int dirfd, const char *above, const char *name,
		   bool listed)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;

	if (!s || s->failed)
		return;
	if (dirfd == -1) { /* no file system: what lies there is looked at each time */
		s->failed = true;
		return;
	}
	dcp_buf_printf(&path, "%s%s%s", above ? above : "", above ? "/" : "", name);
	s->failed = dcp_buf_error(&path) || dcp_seen_count(s) == DCP_SEEN_MAX ||
		    add(s, path.p, dirfd, name, listed) < 0;
}

int dcp_seen_opening(struct dcp_seen *s, int code)
{
	if (s && (code == -EMFILE || code == -ENFILE || code == -ENOMEM))
		s->shortage = code;
	return code;
}

bool dcp_seen_same(const struct dcp_seen *s, uint64_t *calls)
{
	struct dcp_file_id now;

	if (s->failed)
		return false;
	for (size_t i = 0; i < dcp_seen_count(s); i++) {
		++*calls;
		look_at(AT_FDCWD, dcp_seen_path(s, i), &now);
		if (!dcp_file_id_same(&now, &dcp_seen_at(s, i)->id))
			return false;
	}
	return true;
}
