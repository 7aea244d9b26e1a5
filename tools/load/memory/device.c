/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by name. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "tools/load/error.h"
#include "tools/load/memory/memory.h"

/* "cuda:0,managed" */
struct name {
	bool any;   /* auto */
	int number; /* -1: GPU of the local rank */
	uint8_t memory;
};

/* Parse the name of a device. False: @which is not such a name. */
static bool parse_name(const char *which, struct name *out)
{
	size_t n = strcspn(which, ",");
	const char *p = which + n, *at = which + 5;
	uint64_t number;

	*out = (struct name){ strncmp(which, "auto", n) == 0 && n == 4, -1,
			      DCPLOAD_MEMORY_DEVICE };
	if (strcmp(p, ",pinned") == 0)
		out->memory = DCPLOAD_MEMORY_PINNED;
	else if (strcmp(p, ",managed") == 0)
		out->memory = DCPLOAD_MEMORY_MANAGED;
	else if (*p)
		return false;
	if (out->any)
		return true;
	if (n < 4 || strncmp(which, "cuda", 4) || (n > 4 && which[4] != ':'))
		return false;
	if (n == 4 || (n == 15 && strncmp(which + 5, "LOCAL_RANK", 10) == 0))
		return true;
	if (!dcp_take_number(&at, p, DCP_ANY_DIGITS, &number) || at != p || number >= 1024)
		return false;
	out->number = (int)number;
	return true;
}

bool load_device_is_name(const char *which)
{
	struct name name;

	return strcmp(which, "host") == 0 || parse_name(which, &name);
}

int load_device_open(const char *which, uint32_t local, struct load_device **out, char *why,
		     size_t size, struct dcpload_error *err)
{
	struct name name;
	int rc;

	*out = NULL;
	snprintf(why, size, "asked for");
	if (!which || strcmp(which, "host") == 0)
		return 0;
	if (!parse_name(which, &name))
		return load_fail(err, -EINVAL,
				 "no device is called \"%s\": host, auto, cuda, cuda:0, "
				 "cuda:LOCAL_RANK; \",pinned\" or \",managed\" after it",
				 which);
	rc = load_cuda_open(name.number, local, out, err);
	if (rc == 0)
		(*out)->memory = name.memory;
	if (rc == 0 && name.any)
		snprintf(why, size, "there is one");
	if (rc < 0 && name.any) {
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

/* The table that allocates memory of @kind, if it is not managed. */
static const struct load_memory *table_of(const struct load_device *d, uint8_t kind)
{
	return load_memory_of(kind == DCPLOAD_MEMORY_PINNED ? NULL : d);
}

int load_block_create(struct load_device *d, uint64_t n, struct load_block **out)
{
	uint8_t kind = d ? d->memory : DCPLOAD_MEMORY_HOST;
	struct load_block *b = calloc(1, sizeof(*b));
	int rc = !b                               ? -ENOMEM
		 : kind == DCPLOAD_MEMORY_MANAGED ? d->kind->alloc_managed(d, n, &b->p)
						  : table_of(d, kind)->alloc(d, n, &b->p);

	if (rc == 0 && kind == DCPLOAD_MEMORY_PINNED) {
		rc = d->kind->pin(d, b->p, n);
		if (rc < 0)
			load_host.free(NULL, b->p, n);
	}
	if (rc < 0) {
		free(b);
		return rc;
	}
	b->device = load_device_share(d);
	b->kind = kind;
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
	if (b->kind == DCPLOAD_MEMORY_PINNED && !b->kept)
		b->device->kind->unpin(b->device, b->p);
	if (!b->kept)
		table_of(b->device, b->kind)->free(b->device, b->p, b->n);
	load_device_close(b->device);
	free(b);
}
