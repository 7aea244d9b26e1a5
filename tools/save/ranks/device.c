/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions in the memory of a GPU, copied to the host.
 */
#include <errno.h>
#include <stdlib.h>

#include "tools/load/comm/job.h"
#include "tools/load/memory/memory.h"
#include "tools/save/ranks/ranks_int.h"

struct save_device {
	struct load_device *d;
	pthread_mutex_t lock; /* one thread at a time may use it */
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
	load_device_close(v->d);
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
	int rc;

	pthread_mutex_lock(&v->lock);
	rc = v->d->kind->fetch(v->d, to, from, n);
	if (rc < 0)
		load_device_said(v->d, rc, &said);
	pthread_mutex_unlock(&v->lock);
	return rc < 0 ? dcp_fail(err, rc, "%.400s", said.text) : 0;
}
