/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "tests/unit/t.h"

struct job {
	pthread_mutex_t lock;
	pthread_cond_t turned;
	uint32_t ranks, here, gone;
	uint64_t turn; /* how often all have met */
	const void *mine[64];
	const uint64_t *bytes[64]; /* of what is sent to each */
	int (*rank)(const struct dcpload_comm *comm, void *arg);
	void *arg;
};

struct member {
	struct job *job;
	struct dcpload_comm comm;
	pthread_t thread;
	int got;
};

/* All ranks meet; -ECONNRESET when they cannot any more, -ETIMEDOUT. */
static int meet(struct job *j, int timeout_ms)
{
	struct timespec until;
	uint64_t turn;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;

	pthread_mutex_lock(&j->lock);
	turn = j->turn;
	if (!j->gone && ++j->here == j->ranks) {
		j->here = 0;
		j->turn++;
		pthread_cond_broadcast(&j->turned);
	}
	while (j->turn == turn && !j->gone && rc == 0)
		rc = -pthread_cond_timedwait(&j->turned, &j->lock, &until);
	if (j->turn != turn)
		rc = 0;
	else if (j->gone)
		rc = -ECONNRESET;
	j->gone += rc != 0; /* what others would copy may be gone with it */
	pthread_mutex_unlock(&j->lock);
	return rc;
}

static int allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct member *m = ctx;
	struct job *j = m->job;
	int rc;

	j->mine[m->comm.rank] = mine;
	rc = meet(j, timeout_ms);
	pthread_mutex_lock(&j->lock);
	rc = rc == 0 && j->gone ? -ECONNRESET : rc;
	for (uint32_t r = 0; r < j->ranks && rc == 0; r++)
		memcpy((char *)all + r * n, j->mine[r], n);
	pthread_mutex_unlock(&j->lock);
	return rc ? rc : meet(j, timeout_ms);
}

static int alltoallv(void *ctx, const void *const *send, const uint64_t *nsend,
		     void *const *recv, const uint64_t *nrecv, int timeout_ms)
{
	struct member *m = ctx;
	struct job *j = m->job;
	uint32_t self = m->comm.rank;
	int rc;

	j->mine[self] = send;
	j->bytes[self] = nsend;
	rc = meet(j, timeout_ms);
	pthread_mutex_lock(&j->lock);
	rc = rc == 0 && j->gone ? -ECONNRESET : rc;
	for (uint32_t r = 0; r < j->ranks && rc == 0; r++) {
		if (j->bytes[r][self] != nrecv[r])
			rc = -EPROTO;
		else if (nrecv[r])
			memcpy(recv[r], ((const void *const *)j->mine[r])[self], nrecv[r]);
	}
	pthread_mutex_unlock(&j->lock);
	return rc ? rc : meet(j, timeout_ms);
}

static void *run(void *arg)
{
	struct member *m = arg;
	struct job *j = m->job;

	m->got = j->rank(&m->comm, j->arg);
	pthread_mutex_lock(&j->lock);
	j->gone++;
	pthread_cond_broadcast(&j->turned);
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

int t_comm_run(uint32_t ranks, int (*rank)(const struct dcpload_comm *comm, void *arg),
	       void *arg)
{
	struct job job = { .ranks = ranks, .rank = rank, .arg = arg };
	struct member m[DCP_LEN(job.mine)] = { 0 };
	int sum = 0;

	assert_true(ranks <= DCP_LEN(m));
	pthread_mutex_init(&job.lock, NULL);
	pthread_cond_init(&job.turned, NULL);
	for (uint32_t r = 0; r < ranks; r++) {
		m[r].job = &job;
		m[r].comm = (struct dcpload_comm){
			.size = sizeof(m[r].comm),
			.rank = r,
			.ranks = ranks,
			.name = "threads",
			.ctx = &m[r],
			.allgather = allgather,
			.alltoallv = alltoallv,
		};
		assert_int_equal(pthread_create(&m[r].thread, NULL, run, &m[r]), 0);
	}
	for (uint32_t r = 0; r < ranks; r++) {
		pthread_join(m[r].thread, NULL);
		sum += m[r].got;
	}
	pthread_cond_destroy(&job.turned);
	pthread_mutex_destroy(&job.lock);
	return sum;
}
