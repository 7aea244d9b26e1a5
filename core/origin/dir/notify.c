/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/dir/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/origin/origin.h"

enum {
	MAX_WATCHES = 8192, /* the user has other programs */
	SELF = IN_DELETE_SELF | IN_MOVE_SELF,
};

static const uint32_t masks[] = {
	[DCP_NOTIFY_ALL] = IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM |
			   IN_CLOSE_WRITE | IN_MODIFY | IN_ATTRIB | SELF,
	[DCP_NOTIFY_NAME] = SELF | IN_MASK_ADD,
	[DCP_NOTIFY_RIGHTS] = IN_ATTRIB | SELF | IN_MASK_ADD,
};

struct watched {
	int wd;
	unsigned round; /* the last one that named it */
	bool self;      /* the directory itself is watched, not its entries */
};

void dcp_notify_open(struct dcp_notify *n)
{
	*n = (struct dcp_notify){ .fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC) };
}

void dcp_notify_finish(struct dcp_notify *n)
{
	dcp_close_fd(&n->fd);
	dcp_buf_finish(&n->list);
}

void dcp_notify_begin(struct dcp_notify *n)
{
	n->round++;
	n->blind = n->fd < 0;
	n->added = false;
}

size_t dcp_notify_end(struct dcp_notify *n)
{
	struct watched *list = DCP_ITEMS(n->list, struct watched);
	size_t kept = 0;

	for (size_t i = 0; i < DCP_NITEMS(n->list, struct watched); i++) {
		if (list[i].round == n->round)
			list[kept++] = list[i];
		else
			inotify_rm_watch(n->fd, list[i].wd);
	}
	n->list.n = kept * sizeof(*list);
	return kept;
}

/* The kernel numbers watches upwards, so new ones go to the end. */
static bool keep_watch(struct dcp_notify *n, int wd, bool self)
{
	struct watched new = { wd, n->round, self };
	struct watched *list = DCP_ITEMS(n->list, struct watched);
	size_t i, count = DCP_NITEMS(n->list, struct watched);

	DCP_BISECT(i, 0, count, list[i].wd < wd);
	if (i < count && list[i].wd == wd) {
		list[i].self = self && (list[i].self || list[i].round != n->round);
		list[i].round = n->round;
		return true;
	}
	if (i < count || count == MAX_WATCHES)
		return false;
	dcp_buf_add(&n->list, &new, sizeof(new));
	n->added = true;
	return !dcp_buf_error(&n->list);
}

int dcp_notify_add(struct dcp_notify *n, const char *path, enum dcp_notify_of what)
{
	int wd = inotify_add_watch(n->fd, path, masks[what]), rc = wd < 0 ? -errno : 0;

	if (wd >= 0 && !keep_watch(n, wd, what != DCP_NOTIFY_ALL)) {
		inotify_rm_watch(n->fd, wd);
		rc = -ENOSPC;
	}
	n->blind |= rc == -ENOSPC || rc == -ENOMEM;
	return rc;
}

bool dcp_notify_need(struct dcp_notify *n, const char *path, uint64_t dev)
{
	dcp_auto_fd int fd = -1;

	if (dev && dev == n->local)
		return true;
	fd = open(path, O_PATH | O_CLOEXEC);
	if (fd < 0 || !dcp_is_local(fd)) {
		n->blind = true;
		return false;
	}
	n->local = dev ? dev : n->local;
	return true;
}

static bool is_concerned(const struct dcp_notify *n, const struct inotify_event *e)
{
	const struct watched *list = DCP_ITEMS(n->list, struct watched), *from;

	if (e->mask & IN_IGNORED) /* a removed watch */
		return false;
	if (!e->len)
		return true;
	from = DCP_FIND(&e->wd, list, DCP_NITEMS(n->list, struct watched), dcp_by_u32);
	return !from || !from->self;
}

bool dcp_notify_take(const struct dcp_notify *n)
{
	_Alignas(struct inotify_event) char events[4096];
	bool changed = false;
	ssize_t got;

	while (n->fd >= 0 && (got = read(n->fd, events, sizeof(events))) > 0)
		for (ssize_t at = 0; at < got;) {
			struct inotify_event e;

			memcpy(&e, events + at, sizeof(e));
			changed |= is_concerned(n, &e);
			at += (ssize_t)(sizeof(e) + e.len);
		}
	return changed;
}
