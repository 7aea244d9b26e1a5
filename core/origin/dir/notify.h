/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify: what the kernel reports of changes in the file system (inotify).
 *
 * No other kind of source reports changes, nor does the kernel report those that another machine
 * makes. The caller watches again and again what its last look depended on, and looks by itself
 * now and then while @blind is set. For one thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_notify {
	int fd;     /* readable after a change; -1: the kernel reports nothing */
	bool blind; /* not all changes are reported */
	bool added; /* there are watches that were not there before dcp_notify_begin() */
	/* for the implementation */
	struct dcp_buf list;
	unsigned round;
	uint64_t local;
};

enum dcp_notify_of {
	DCP_NOTIFY_ALL,    /* of a file, or of a directory and its entries */
	DCP_NOTIFY_NAME,   /* of the name of a directory */
	DCP_NOTIFY_RIGHTS, /* of the name and the rights of a directory */
};

void dcp_notify_open(struct dcp_notify *n);
void dcp_notify_finish(struct dcp_notify *n);

/* Begin to name what is to be watched; the end drops every watch that was not named again, and
 * returns how many there are. */
void dcp_notify_begin(struct dcp_notify *n);
size_t dcp_notify_end(struct dcp_notify *n);

/* Watch @path, links followed. 0 or a negative errno; -ENOSPC: there are too many watches. */
int dcp_notify_add(struct dcp_notify *n, const char *path, enum dcp_notify_of what);

/* What lies at @path is depended on. False, and @n is blind: other machines may change it. @dev:
 * the device; 0: not known. */
bool dcp_notify_need(struct dcp_notify *n, const char *path, uint64_t dev);

/* Take the pending reports; true if any is of a change that matters. */
bool dcp_notify_take(const struct dcp_notify *n);
