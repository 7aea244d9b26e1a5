/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int dcp_library_open(const char *library, const char *const *names, size_t n, void **at,
		     char *why, size_t size)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *text = handle ? NULL : dlerror();
	int rc = 0;

	if (!handle) {
		snprintf(why, size, "%s%s", text ? text : library,
			 text ? "" : " cannot be opened");
		return -ELIBACC;
	}
	for (size_t i = 0; i < n; i++) {
		at[i] = dlsym(handle, names[i]);
		if (!at[i] && rc == 0) {
			snprintf(why, size, "%s has no %s", library, names[i]);
			rc = -ELIBBAD;
		}
	}
	dlclose(handle);
	return rc;
}

void dcp_team_run(unsigned n, void *(*work)(void *job), void *jobs, size_t size)
{
	pthread_t *thread = n > 1 ? calloc(n, sizeof(*thread)) : NULL;
	unsigned started = 1;

	while (thread && started < n &&
	       pthread_create(&thread[started], NULL, work, (char *)jobs + started * size) == 0)
		started++;
	work(jobs);
	while (started > 1)
		pthread_join(thread[--started], NULL);
	free(thread);
}
