/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by name. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/load/error.h"
#include "tools/load/memory/memory.h"

/* The number after the colon; -1: that of the local rank, -2: it makes no sense. */
static int number_in(const char *which)
{
	const char *p = strchr(which, ':');
	char *end;
	long n;

	if (!p || strcmp(p + 1, "LOCAL_RANK") == 0)
		return -1;
	n = strtol(p + 1, &end, 10);
	return p[1] < '0' || p[1] > '9' || *end || n > 1023 ? -2 : (int)n;
}

int load_device_open(const char *which, uint32_t local, struct load_device **out, char *why,
		     size_t size, struct dcpload_error *err)
{
	bool any = which && strcmp(which, "auto") == 0;
	int rc, number = which && !any ? number_in(which) : -1;

	*out = NULL;
	snprintf(why, size, "asked for");
	if (!which || strcmp(which, "host") == 0)
		return 0;
	if (number == -2 || (!any && strncmp(which, "cuda", 4)) ||
	    (!any && which[4] && which[4] != ':'))
		return load_fail(err, -EINVAL,
				 "no device is called \"%s\": host, auto, cuda, cuda:0, "
				 "cuda:LOCAL_RANK",
				 which);
	rc = load_cuda_open(number, local, out, err);
	if (rc == 0 && any)
		snprintf(why, size, "there is one");
	if (rc < 0 && any) {
		snprintf(why, size, "%s", err->text);
		*err = (struct dcpload_error){ .rank = -1 };
		return 0;
	}
	return rc;
}

struct load_device *load_device_share(struct load_device *d)
{
	if (d)
		d->users++;
	return d;
}

void load_device_close(struct load_device *d)
{
	if (d && atomic_fetch_sub(&d->users, 1) == 1)
		d->kind->close(d);
}

/* ---- memory with several users ---- */

int load_block_create(struct load_device *d, uint64_t n, struct load_block **out)
{
	struct load_block *b = calloc(1, sizeof(*b));
	int rc = b ? load_memory_of(d)->alloc(d, n, &b->p) : -ENOMEM;

	if (rc < 0) {
		free(b);
		return rc;
	}
	b->device = load_device_share(d);
	b->n = n;
	b->users = 1;
	*out = b;
	return 0;
}

struct load_block *load_block_share(struct load_block *b)
{
	b->users++;
	return b;
}

void load_block_drop(struct load_block *b)
{
	if (!b || atomic_fetch_sub(&b->users, 1) != 1)
		return;
	load_memory_of(b->device)->free(b->device, b->p, b->n);
	load_device_close(b->device);
	free(b);
}
