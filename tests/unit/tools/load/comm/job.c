/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launchers write into the environment.
 */
#include "core/base/base.h"
#include "tests/unit/t.h"
#include "tools/load/comm/comm.h"

static void the_first_host_is_parsed(void **state)
{
	static const struct {
		const char *list, *first;
	} rows[] = {
		{ "node7", "node7" },
		{ "node7,node9", "node7" },
		{ "node[07-12,20],login1", "node07" },
		{ "rack[3,5]-node[1-2].cluster,x", "rack3-node1.cluster" },
		{ "", NULL },
		{ ",a", NULL },
		{ "node[", NULL },
		{ "node[]", NULL },
		{ "node[a]", NULL },
		{ "node[1-2", NULL },
		{ "a-name-that-is-too-long-for-the-room", NULL },
		{ "node[123456789012345678901234567890]", NULL },
	};
	char out[24];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		int rc = load_job_first_host(rows[i].list, out, sizeof(out));

		t_case(rows[i].list);
		assert_int_equal(rc, rows[i].first ? 0 : -EINVAL);
		if (rc == 0)
			assert_string_equal(out, rows[i].first);
	}
}

/* Set the variables of a row, "A=1 B=2", and no others that count. */
static void set(const char *row)
{
	static const char *const all[] = {
		"RANK",
		"LOCAL_RANK",
		"OMPI_COMM_WORLD_LOCAL_RANK",
		"SLURM_LOCALID",
		"WORLD_SIZE",
		"MASTER_ADDR",
		"MASTER_PORT",
		"TORCHELASTIC_RUN_ID",
		"TORCHELASTIC_RESTART_COUNT",
		"SLURM_PROCID",
		"SLURM_NTASKS",
		"SLURM_JOB_ID",
		"SLURM_STEP_ID",
		"SLURM_STEP_NODELIST",
		"SLURM_STEP_NUM_TASKS",
		"PMIX_RANK",
		"PMIX_NAMESPACE",
		"PMI_RANK",
		"PMI_SIZE",
		"OMPI_COMM_WORLD_RANK",
		"OMPI_COMM_WORLD_SIZE",
		"OMPI_COMM_WORLD_LOCAL_SIZE",
		"OMPI_MCA_orte_precondition_transports",
		"LOCAL_WORLD_SIZE",
		"SLURM_STEP_NUM_NODES",
		"OMPI_MCA_ess_base_jobid",
		"DCPLOAD_PORT",
		"DCPLOAD_SECRET",
		"DCPLOAD_TIMEOUT",
	};
	char copy[512], *save = NULL;

	for (size_t i = 0; i < DCP_LEN(all); i++)
		unsetenv(all[i]);
	snprintf(copy, sizeof(copy), "%s", row);
	for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		char *value = strchr(w, '=');

		*value++ = 0;
		setenv(w, value, 1);
	}
}

#define TORCHRUN "TORCHELASTIC_RUN_ID=none RANK=3 WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=29500 "
#define SRUN "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_STEP_NODELIST=n[3-4] "
#define MPIRUN "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=0 "

static void launchers_are_recognised(void **state)
{
	static const struct {
		const char *what, *env, *transport, *launcher; /* NULL: none */
		uint32_t rank, ranks;
		const char *host;
	} rows[] = {
		{ "nothing", "", "alone", NULL, 0, 0, NULL },
		{ "torchrun", TORCHRUN, "env", "torchrun", 3, 8, "h" },
		{ "by hand", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=h", "env", "torchrun", 0, 1,
		  "h" },
		{ "empty is not set", "RANK= WORLD_SIZE=1 MASTER_ADDR=", "alone", "torchrun", 0,
		  0, NULL },
		{ "without the number of ranks", "RANK=0 MASTER_ADDR=h", "env", "torchrun", 0,
		  0, NULL },
		{ "without a rank", "WORLD_SIZE=2 MASTER_ADDR=h", "env", "torchrun", 0, 0,
		  NULL },
		{ "without an address", "RANK=0 WORLD_SIZE=2", "env", "torchrun", 0, 2, NULL },
		{ "which one rank does not need", "RANK=0 WORLD_SIZE=1", "env", "torchrun", 0,
		  1, "127.0.0.1" },
		{ "variables of a job in the script of a batch that srun is to start",
		  SRUN "SLURM_STEP_NUM_TASKS=2 WORLD_SIZE=8 RANK=", "env", "srun", 1, 2, "n3" },
		{ "srun", SRUN "SLURM_STEP_NUM_TASKS=2", "env", "srun", 1, 2, "n3" },
		{ "an address goes before Slurm's list", SRUN "SLURM_NTASKS=4 MASTER_ADDR=h",
		  "env", "srun", 1, 4, "h" },
		{ "a batch script is not a rank", "SLURM_PROCID=0 SLURM_NTASKS=8", "alone",
		  "srun", 0, 8, NULL },
		{ "srun with PMIx", SRUN "SLURM_STEP_NUM_TASKS=2 PMIX_RANK=1", "mpi", "srun", 1,
		  2, "n3" },
		{ "torchrun on each node of an srun", SRUN "SLURM_STEP_NUM_TASKS=2 " TORCHRUN,
		  "env", "torchrun", 3, 8, "h" },
		{ "torchrun on each node of an mpirun", MPIRUN TORCHRUN, "env", "torchrun", 3,
		  8, "h" },
		{ "mpirun, whose daemons srun started",
		  SRUN "SLURM_NTASKS=1 " MPIRUN "OMPI_COMM_WORLD_LOCAL_SIZE=2", "mpi", "mpirun",
		  0, 2, "127.0.0.1" },
		{ "mpirun on several machines", MPIRUN "OMPI_COMM_WORLD_LOCAL_SIZE=1", "mpi",
		  "mpirun", 0, 2, NULL },
		{ "mpiexec of another MPI", "PMI_RANK=1 PMI_SIZE=2", "mpi", NULL, 0, 0, NULL },
		{ "srun with PMI", SRUN "SLURM_STEP_NUM_TASKS=2 PMI_RANK=1 PMI_SIZE=2", "env",
		  "srun", 1, 2, "n3" },
		{ "srun, and no number of ranks", SRUN, "env", "srun", 1, 0, NULL },
		{ "another mpiexec, whose daemons srun started",
		  SRUN "SLURM_STEP_NUM_TASKS=2 PMI_RANK=1 PMI_SIZE=4", "mpi", "srun", 1, 2,
		  "n3" },
		{ "of which this is another rank",
		  SRUN "SLURM_STEP_NUM_TASKS=2 PMI_RANK=0 PMI_SIZE=2", "mpi", "srun", 1, 2,
		  "n3" },
	};
	struct dcpload_error err;
	struct load_launch job;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		int rc;

		t_case(rows[i].what);
		set(rows[i].env);
		assert_string_equal(load_job_transport(), rows[i].transport);
		rc = load_job_find(&job, &err);
		assert_int_equal(rc, rows[i].host ? 0 : rows[i].launcher ? -EINVAL : -ENOENT);
		if (rc < 0)
			continue;
		assert_string_equal(job.launcher, rows[i].launcher);
		assert_int_equal(job.rank, rows[i].rank);
		assert_int_equal(job.ranks, rows[i].ranks);
		assert_string_equal(job.host, rows[i].host);
	}
	set("");
}

static void ports_follow_from_the_job(void **state)
{
	static const struct {
		const char *what, *env;
		uint16_t port, nports; /* 0: is refused */
	} rows[] = {
		{ "those after the launcher's", "MASTER_PORT=29500", 29501, LOAD_JOB_PORTS },
		{ "those before it, at the end", "MASTER_PORT=65535", 65519, LOAD_JOB_PORTS },
		{ "the last that has enough behind it", "MASTER_PORT=65518", 65519,
		  LOAD_JOB_PORTS },
		{ "the one that is named", "MASTER_PORT=29500 DCPLOAD_PORT=7", 7, 1 },
		{ "none is 0", "MASTER_PORT=0", 0, 0 },
		{ "none has six digits", "DCPLOAD_PORT=100000", 0, 0 },
	};
	struct dcpload_error err;
	struct load_launch job, other;
	char env[256];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].what);
		snprintf(env, sizeof(env), "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h %s", rows[i].env);
		set(env);
		assert_int_equal(load_job_find(&job, &err), rows[i].port ? 0 : -EINVAL);
		if (!rows[i].port)
			continue;
		assert_int_equal(job.port, rows[i].port);
		assert_int_equal(job.nports, rows[i].nports);
	}
	t_case("two steps of a job");
	set(SRUN "SLURM_NTASKS=4 SLURM_STEP_ID=1");
	assert_int_equal(load_job_find(&job, &err), 0);
	set(SRUN "SLURM_NTASKS=4 SLURM_STEP_ID=2");
	assert_int_equal(load_job_find(&other, &err), 0);
	assert_string_not_equal(job.id, other.id);
	assert_int_not_equal(job.port, other.port);
	assert_true(job.port >= 20000 && job.port < 30000);
	set("");
}

/* Are all ranks on this node, and what have they been given to know each other by? */
static void the_spread_of_ranks_is_known(void **state)
{
	static const struct {
		const char *env;
		enum load_spread spread;
		const char *secret, *key;
	} rows[] = {
		{ TORCHRUN, LOAD_SPREAD_UNKNOWN, "", "" },
		{ TORCHRUN "LOCAL_WORLD_SIZE=8", LOAD_SPREAD_NODE, "", "" },
		{ TORCHRUN "LOCAL_WORLD_SIZE=4 DCPLOAD_SECRET=s", LOAD_SPREAD_NODES, "s", "" },
		{ TORCHRUN "LOCAL_WORLD_SIZE=many", LOAD_SPREAD_UNKNOWN, "", "" },
		{ "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", LOAD_SPREAD_NODE, "", "" },
		{ "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", LOAD_SPREAD_NODE, "", "" },
		{ "RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1", LOAD_SPREAD_NODE, "", "" },
		{ "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost.example.org", LOAD_SPREAD_UNKNOWN,
		  "", "" },
		{ MPIRUN "OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_ADDR=h "
			 "OMPI_MCA_orte_precondition_transports=k",
		  LOAD_SPREAD_NODES, "", "k" },
		{ SRUN "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2", LOAD_SPREAD_NODES, "",
		  "" },
		{ SRUN "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1", LOAD_SPREAD_NODE, "",
		  "" },
	};
	struct dcpload_error err;
	struct load_launch job;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].env);
		set(rows[i].env);
		assert_int_equal(load_job_find(&job, &err), 0);
		assert_int_equal(job.spread, rows[i].spread);
		assert_string_equal(job.secret, rows[i].secret);
		assert_string_equal(job.key, rows[i].key);
	}
	set("");
}

static void mpi_ranks_and_timeouts_are_read(void **state)
{
	struct dcpload_error err;
	int ms;

	(void)state;
	set("");
	assert_int_equal(load_job_mpi_ranks(), 0);
	assert_int_equal(load_job_timeout(0, &ms, &err), 0);
	assert_int_equal(ms, 60000);
	set(MPIRUN "SLURM_STEP_NUM_TASKS=9 DCPLOAD_TIMEOUT=7");
	assert_int_equal(load_job_mpi_ranks(), 2);
	assert_int_equal(load_job_timeout(0, &ms, &err), 0);
	assert_int_equal(ms, 7000);
	assert_int_equal(load_job_timeout(9000, &ms, &err), 0);
	assert_int_equal(ms, 7000);
	set("");
	assert_int_equal(load_job_timeout(9500, &ms, &err), 0);
	assert_int_equal(ms, 9500);
	set("DCPLOAD_TIMEOUT=soon");
	assert_int_equal(load_job_timeout(0, &ms, &err), -EINVAL);
	set("PMI_SIZE=5");
	assert_int_equal(load_job_mpi_ranks(), 5);
	set("");
}

static void local_ranks_are_read(void **state)
{
	static const struct {
		const char *env;
		int32_t local; /* -2: is refused */
	} rows[] = {
		{ "", -1 },
		{ "LOCAL_RANK=5", 5 },
		{ "OMPI_COMM_WORLD_LOCAL_RANK=0 SLURM_LOCALID=3", 0 },
		{ "SLURM_LOCALID=3", 3 },
		{ "LOCAL_RANK=many SLURM_LOCALID=3", -2 },
		{ "LOCAL_RANK=-1", -2 },
	};
	struct dcpload_error err;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		int32_t local;
		int rc;

		t_case(rows[i].env);
		set(rows[i].env);
		rc = load_job_local_rank(&local, &err);
		assert_int_equal(rc, rows[i].local == -2 ? -EINVAL : 0);
		if (rc == 0)
			assert_int_equal(local, rows[i].local);
	}
	set("");
}

/* What a person reads of each mistake in the variables. */
static void messages_name_the_variable(void **state)
{
	static const struct {
		const char *env, *says;
	} rows[] = {
		{ "RANK=2 WORLD_SIZE=2",
		  "RANK is 2, but WORLD_SIZE is 2: ranks are counted from 0" },
		{ "RANK=x WORLD_SIZE=2", "RANK is \"x\", expected a number from 0 to 1048575" },
		{ "RANK=-1 WORLD_SIZE=2",
		  "RANK is \"-1\", expected a number from 0 to 1048575" },
		{ "RANK=0 WORLD_SIZE=0",
		  "WORLD_SIZE is \"0\", expected a number from 1 to 1048576" },
		{ "RANK=0 WORLD_SIZE=2.0",
		  "WORLD_SIZE is \"2.0\", expected a number from 1 to 1048576" },
		{ "RANK=1", "RANK is 1, but WORLD_SIZE does not say of how many ranks" },
		{ "WORLD_SIZE=2 MASTER_ADDR=h",
		  "WORLD_SIZE is 2, but RANK does not say which this is" },
		{ "RANK=1 WORLD_SIZE=2", "this is rank 1 of 2 of torchrun, but MASTER_ADDR "
					 "does not say where rank 0 is" },
		{ "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65536",
		  "MASTER_PORT is \"65536\", expected a number from 1 to 65535" },
		{ "SLURM_PROCID=4 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=h",
		  "SLURM_PROCID is 4, but SLURM_STEP_NUM_TASKS is 4: ranks are counted from "
		  "0" },
		{ "SLURM_PROCID=4 SLURM_NTASKS=4 SLURM_STEP_NODELIST=h",
		  "SLURM_PROCID is 4, but SLURM_NTASKS is 4: ranks are counted from 0" },
		{ "SLURM_PROCID=a SLURM_NTASKS=4",
		  "SLURM_PROCID is \"a\", expected a number from 0" },
		{ "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=a SLURM_NTASKS=4",
		  "SLURM_STEP_NUM_TASKS is \"a\", expected a number from 1" },
		{ "SLURM_PROCID=1",
		  "SLURM_PROCID is 1, but SLURM_STEP_NUM_TASKS does not say of how many" },
		{ "SLURM_STEP_NUM_TASKS=3",
		  "SLURM_STEP_NUM_TASKS is 3, but SLURM_PROCID does not say which" },
		{ "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
		  "this is rank 1 of 2 of srun, but neither SLURM_STEP_NODELIST nor "
		  "MASTER_ADDR says" },
		{ "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[",
		  "SLURM_STEP_NODELIST is \"n[\", expected a list of hosts; MASTER_ADDR may "
		  "say" },
		{ "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=1",
		  "OMPI_COMM_WORLD_RANK is 1, but OMPI_COMM_WORLD_SIZE is 1: ranks" },
	};
	struct load_launch job;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcpload_error err = { 0 };

		t_case(rows[i].env);
		set(rows[i].env);
		assert_int_equal(load_job_find(&job, &err), -EINVAL);
		if (strncmp(err.text, rows[i].says, strlen(rows[i].says)) != 0)
			fail_msg("\"%s\", not \"%s\"", err.text, rows[i].says);
	}
	set("");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_host_is_parsed),
		cmocka_unit_test(launchers_are_recognised),
		cmocka_unit_test(ports_follow_from_the_job),
		cmocka_unit_test(mpi_ranks_and_timeouts_are_read),
		cmocka_unit_test(local_ranks_are_read),
		cmocka_unit_test(messages_name_the_variable),
		cmocka_unit_test(the_spread_of_ranks_is_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
