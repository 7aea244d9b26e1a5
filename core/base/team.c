/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/team.h"

#include <pthread.h>
#include <stdlib.h>

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
