/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions in the memory of a GPU, copied to the host a piece at a time through memory that is pinned once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "tools/load/comm/job.h"
#include "tools/load/memory/memory.h"
#include "tools/save/ranks/ranks_int.h"

enum { BOUNCE = 4 << 20, PAGE = 4096 };

struct save_device {
	struct load_device *d;
	pthread_mutex_t lock; /* one thread at a time may use it, and the bounce */
	char *bounce;
	bool pinned;
};

int save_device_open(const char *which, struct save_device **out, struct dcpload_error *err)
{
	struct save_device *v = calloc(1, sizeof(*v));
	char why[160] = "";
	int32_t local;
	int rc;

	if (!v)
		return load_say(err, -ENOMEM);
	pthread_mutex_init(&v->lock, NULL);
	rc = load_job_local_rank(&local, err);
	if (rc == 0)
		rc = load_device_open(which, local < 0 ? 0 : (uint32_t)local, &v->d, why,
				      sizeof(why), err);
	if (rc == 0 && v->d) {
		v->bounce = aligned_alloc(PAGE, BOUNCE);
		rc = v->bounce ? 0 : load_say(err, -ENOMEM);
		/* Without it copies are slower. */
		v->pinned = rc == 0 && v->d->kind->pin(v->d, v->bounce, BOUNCE) == 0;
	}
	if (rc < 0 || !v->d) {
		save_device_close(v);
		return rc;
	}
	*out = v;
	return 0;
}

void save_device_close(struct save_device *v)
{
	if (!v)
		return;
	if (v->pinned)
		v->d->kind->unpin(v->d, v->bounce);
	load_device_close(v->d);
	free(v->bounce);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

int save_device_has(struct save_device *v, const void *p, struct dcpload_error *err)
{
	int kind;

	if (!v)
		return 0;
	pthread_mutex_lock(&v->lock);
	kind = v->d->kind->kind_of(v->d, p);
	if (kind < 0)
		load_device_said(v->d, kind, err);
	pthread_mutex_unlock(&v->lock);
	return kind < 0 ? kind : kind == DCPLOAD_MEMORY_DEVICE;
}

int save_device_take(struct save_device *v, const char *from, char *to, uint64_t n,
		     struct dcp_err *err)
{
	struct dcpload_error said = { 0 };
	int rc = 0;

	pthread_mutex_lock(&v->lock);
	for (uint64_t some; rc == 0 && n; n -= some, from += some, to += some) {
		some = DCP_MIN(n, (uint64_t)BOUNCE);
		rc = v->d->kind->fetch(v->d, v->bounce, from, some);
		if (rc == 0)
			memcpy(to, v->bounce, some);
	}
	if (rc < 0)
		load_device_said(v->d, rc, &said);
	pthread_mutex_unlock(&v->lock);
	return rc < 0 ? dcp_fail(err, rc, "%.400s", said.text) : 0;
}
