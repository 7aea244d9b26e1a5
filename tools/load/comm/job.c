/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/comm/comm.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/base/text.h"

#define TIMEOUT_S 60
#define MAX_RANKS (1u << 20)

/* NULL for an empty variable, too. */
static const char *get_env(const char *name)
{
	const char *s = name ? getenv(name) : NULL;

	return s && s[0] ? s : NULL;
}

/*
 * The first row whose variables are all set decides. torchrun comes first because it may be started
 * by mpirun, whose variables its ranks then have too; TORCHELASTIC_RUN_ID is never set by hand. The
 * last two rows are for ranks that were started by hand and lack a variable: load_job_find() says
 * which.
 */
static const struct sign {
	const char *set[3];
	const char *transport;
} signs[] = {
	{ { "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE" }, "env" },
	{ { "OMPI_COMM_WORLD_SIZE" }, "mpi" },
	{ { "PMIX_RANK" }, "mpi" },
	{ { "PMI_RANK" }, "mpi" },
	{ { "RANK", "WORLD_SIZE", "MASTER_ADDR" }, "env" },
	{ { "SLURM_PROCID", "SLURM_STEP_ID" }, "env" },
	{ { "RANK" }, "env" },
	{ { "WORLD_SIZE", "MASTER_ADDR" }, "env" },
};

/* Variables of each launcher: rank, ranks, id of the job, numbers of ranks or nodes. mpirun comes
 * before srun: it may start its daemons with srun, whose variables its ranks then have too. */
static const struct launcher {
	const char *name, *rank, *ranks, *or_ranks, *id[2];
	const char *local, *nodes; /* ranks of this node; nodes of the job */
	const char *key;           /* a random text that only the ranks of a job are given */
} launchers[] = {
	{ .name = "torchrun",
	  .rank = "RANK",
	  .ranks = "WORLD_SIZE",
	  .id = { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT" },
	  .local = "LOCAL_WORLD_SIZE" },
	/* Open MPI makes the key from /dev/urandom, for network libraries that need a key. */
	{ .name = "mpirun",
	  .rank = "OMPI_COMM_WORLD_RANK",
	  .ranks = "OMPI_COMM_WORLD_SIZE",
	  .id = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" },
	  .local = "OMPI_COMM_WORLD_LOCAL_SIZE",
	  .key = "OMPI_MCA_orte_precondition_transports" },
	{ .name = "srun",
	  .rank = "SLURM_PROCID",
	  .ranks = "SLURM_STEP_NUM_TASKS",
	  .or_ranks = "SLURM_NTASKS",
	  .id = { "SLURM_JOB_ID", "SLURM_STEP_ID" },
	  .nodes = "SLURM_STEP_NUM_NODES" },
};

static bool is_same(const char *a, const char *b)
{
	return get_env(a) && get_env(b) && strcmp(get_env(a), get_env(b)) == 0;
}

/* Was the process started by srun --mpi=pmi2? Open MPI seldom supports that, and then ends the
 * process. If srun started the daemons of another mpiexec, PMI and Slurm give other numbers. */
static bool is_pmi_of_srun(void)
{
	return is_same("PMI_RANK", "SLURM_PROCID") &&
	       is_same("PMI_SIZE", "SLURM_STEP_NUM_TASKS");
}

const char *load_job_transport(void)
{
	for (size_t i = 0; i < DCP_LEN(signs); i++) {
		bool all = strcmp(signs[i].set[0], "PMI_RANK") != 0 || !is_pmi_of_srun();

		for (size_t k = 0; k < DCP_LEN(signs[i].set); k++)
			all = all && (!signs[i].set[k] || get_env(signs[i].set[k]));
		if (all)
			return signs[i].transport;
	}
	return "alone";
}

/* 1 and the number in @name; 0: not set; -EINVAL: not a number from @least to @most. */
static int read_number(const char *name, uint64_t least, uint64_t most, uint64_t *out,
		       struct dcpload_error *err)
{
	const char *s = get_env(name), *at = s;

	if (!s)
		return 0;
	if (!dcp_take_number(&at, NULL, DCP_ANY_DIGITS, out) || *at || *out < least ||
	    *out > most)
		return load_fail(err, -EINVAL,
				 "%s is \"%s\", expected a number from %llu to %llu", name, s,
				 (unsigned long long)least, (unsigned long long)most);
	return 1;
}

uint32_t load_job_mpi_ranks(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
					     "SLURM_STEP_NUM_TASKS" };
	uint64_t n;

	for (size_t i = 0; i < DCP_LEN(names); i++)
		if (read_number(names[i], 1, MAX_RANKS, &n, NULL) == 1)
			return (uint32_t)n;
	return 0;
}

int load_job_timeout(uint32_t given, int *ms, struct dcpload_error *err)
{
	uint64_t seconds;
	int rc = read_number("DCPLOAD_TIMEOUT", 1, INT_MAX / 1000, &seconds, err);

	*ms = rc == 1 ? (int)seconds * 1000
	      : given ? (int)DCP_MIN(given, (uint32_t)INT_MAX)
		      : TIMEOUT_S * 1000;
	return rc < 0 ? rc : 0;
}

int load_job_local_rank(int32_t *out, struct dcpload_error *err)
{
	static const char *const names[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
					     "SLURM_LOCALID" };
	uint64_t n = 0;
	int rc = 0;

	for (size_t i = 0; i < DCP_LEN(names) && rc == 0; i++)
		rc = read_number(names[i], 0, MAX_RANKS, &n, err);
	*out = rc == 1 ? (int32_t)n : -1;
	return rc < 0 ? rc : 0;
}

int load_job_first_host(const char *list, char *out, size_t size)
{
	size_t n = 0;

	while (*list && *list != ',') {
		size_t len = strcspn(list, "[,");

		if (*list == '[') {
			const char *end = strchr(list++, ']');

			len = strspn(list, "0123456789");
			if (!end || len == 0)
				return -EINVAL;
			if (len >= size - n)
				return -EINVAL;
			memcpy(out + n, list, len);
			list = end + 1;
		} else {
			if (len >= size - n)
				return -EINVAL;
			memcpy(out + n, list, len);
			list += len;
		}
		n += len;
	}
	out[n] = 0;
	return n ? 0 : -EINVAL;
}

static int find_host(const struct launcher *l, struct load_launch *job,
		     struct dcpload_error *err)
{
	const char *host = get_env("MASTER_ADDR"), *list = get_env("SLURM_STEP_NODELIST");

	if (host) {
		if (strlen(host) >= sizeof(job->host))
			return load_fail(err, -EINVAL, "MASTER_ADDR is %zu bytes long",
					 strlen(host));
		snprintf(job->host, sizeof(job->host), "%s", host);
		return 0;
	}
	if (strcmp(l->name, "srun") == 0 && list) {
		if (load_job_first_host(list, job->host, sizeof(job->host)) < 0)
			return load_fail(err, -EINVAL,
					 "SLURM_STEP_NODELIST is \"%s\", expected a list of "
					 "hosts; MASTER_ADDR may say where rank 0 is",
					 list);
		return 0;
	}
	if (job->ranks == 1 ||
	    (strcmp(l->name, "mpirun") == 0 && job->spread == LOAD_SPREAD_NODE)) {
		snprintf(job->host, sizeof(job->host), "127.0.0.1");
		return 0;
	}
	return load_fail(err, -EINVAL, "this is rank %u of %u of %s, but %s where rank 0 is",
			 job->rank, job->ranks, l->name,
			 strcmp(l->name, "srun") == 0
				 ? "neither SLURM_STEP_NODELIST nor MASTER_ADDR says"
				 : "MASTER_ADDR does not say");
}

static bool is_this_node(const char *host)
{
	return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
	       strcmp(host, "::1") == 0;
}

static enum load_spread find_spread(const struct launcher *l, uint32_t ranks)
{
	uint64_t n;

	if (l->local && read_number(l->local, 1, MAX_RANKS, &n, NULL) == 1)
		return n == ranks ? LOAD_SPREAD_NODE : LOAD_SPREAD_NODES;
	if (l->nodes && read_number(l->nodes, 1, MAX_RANKS, &n, NULL) == 1)
		return n == 1 ? LOAD_SPREAD_NODE : LOAD_SPREAD_NODES;
	return LOAD_SPREAD_UNKNOWN;
}

/* DCPLOAD_PORT alone; otherwise ports after MASTER_PORT, which the launcher's store uses itself;
 * otherwise ports chosen by the job's id, below those that systems give to outgoing connections. */
static int find_port(struct load_launch *job, struct dcpload_error *err)
{
	uint64_t port;
	int rc = read_number("DCPLOAD_PORT", 1, UINT16_MAX, &port, err);

	job->nports = LOAD_JOB_PORTS;
	if (rc == 1)
		job->nports = 1;
	if (rc == 0) {
		rc = read_number("MASTER_PORT", 1, UINT16_MAX, &port, err);
		if (rc == 1)
			port = port + LOAD_JOB_PORTS < UINT16_MAX ? port + 1
								  : port - LOAD_JOB_PORTS;
		else
			port = 20000 + dcp_hash64(job->id, strlen(job->id)) % 10000;
	}
	job->port = (uint16_t)port;
	return rc < 0 ? rc : 0;
}

static int find_ranks(const struct launcher *l, struct load_launch *job,
		      struct dcpload_error *err)
{
	uint64_t rank = 0, ranks = 0;
	const char *counted = get_env(l->ranks) || !l->or_ranks ? l->ranks : l->or_ranks;
	int rc = read_number(counted, 1, MAX_RANKS, &ranks, err);

	if (rc == 0)
		return load_fail(err, -EINVAL,
				 "%s is %s, but %s does not say of how many ranks", l->rank,
				 get_env(l->rank), l->ranks);
	if (rc == 1)
		rc = read_number(l->rank, 0, MAX_RANKS - 1, &rank, err);
	if (rc == 0)
		return load_fail(err, -EINVAL, "%s is %s, but %s does not say which this is",
				 counted, get_env(counted), l->rank);
	if (rc == 1 && rank >= ranks)
		return load_fail(
			err, -EINVAL, "%s is %llu, but %s is %llu: ranks are counted from 0",
			l->rank, (unsigned long long)rank, counted, (unsigned long long)ranks);
	job->rank = (uint32_t)rank;
	job->ranks = (uint32_t)ranks;
	return rc < 0 ? rc : 0;
}

/* The first launcher that has set both numbers, otherwise the first that has set one of them; NULL:
 * none has. */
static const struct launcher *find_launcher(void)
{
	for (int least = 2; least; least--)
		for (size_t i = 0; i < DCP_LEN(launchers); i++) {
			const struct launcher *l = &launchers[i];
			bool rank = get_env(l->rank),
			     ranks = get_env(l->ranks) || get_env(l->or_ranks);

			if (rank + ranks >= least)
				return l;
		}
	return NULL;
}

int load_job_find(struct load_launch *job, struct dcpload_error *err)
{
	const struct launcher *l = find_launcher();
	const char *id[2];
	int rc;

	memset(job, 0, sizeof(*job));
	if (!l)
		return load_fail(
			err, -ENOENT,
			"no launcher says which rank this is: torchrun sets RANK, WORLD_SIZE, "
			"MASTER_ADDR and MASTER_PORT, srun SLURM_PROCID and "
			"SLURM_STEP_NUM_TASKS");
	for (size_t i = 0; i < 2; i++)
		id[i] = get_env(l->id[i]) ? get_env(l->id[i]) : "";
	job->launcher = l->name;
	job->secret = get_env("DCPLOAD_SECRET") ? get_env("DCPLOAD_SECRET") : "";
	job->key = get_env(l->key) ? get_env(l->key) : "";
	rc = find_ranks(l, job, err);
	if (rc < 0)
		return rc;
	job->spread = find_spread(l, job->ranks);
	rc = find_host(l, job, err);
	if (rc < 0)
		return rc;
	if (is_this_node(job->host))
		job->spread = LOAD_SPREAD_NODE;
	/* Ids that are cut differ in their hash. */
	snprintf(job->id, sizeof(job->id), "%.64s/%.64s/%llx", id[0], id[1],
		 (unsigned long long)dcp_hash64_more(dcp_hash64(id[0], strlen(id[0])), id[1],
						     strlen(id[1])));
	rc = find_port(job, err);
	return rc < 0 ? rc : 0;
}
