/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cleanup: locals that release themselves on every path.
 *
 *	dcp_auto_fd int fd = open(...);   closed at the end of scope, errno kept
 *	dcp_auto_free char *s = strdup(); freed at the end of scope
 *	*out = dcp_take_fd(&fd);          handed over: the local no longer owns it
 */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void dcp_close_fd(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

static inline void dcp_free_ptr(void *p)
{
	free(*(void **)p);
	*(void **)p = NULL;
}

static inline int dcp_take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

static inline void dcp_close_file(FILE **f)
{
	if (*f)
		fclose(*f);
}

#define dcp_auto_fd __attribute__((cleanup(dcp_close_fd)))
#define dcp_auto_free __attribute__((cleanup(dcp_free_ptr)))
#define dcp_auto_file __attribute__((cleanup(dcp_close_file)))
