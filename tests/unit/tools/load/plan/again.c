/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that change, end early, are gone or cannot be read, between any two steps; memory that runs
 * out. All ranks, which are threads, end with the same code and text, or with the right bytes.
 * covers: again
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/t/comm.h"
#include "tests/unit/t/fault.h"
#include "tests/unit/t/load.h"
#include "tools/load/comm/comm.h"

enum { RANKS = 3, OPENED, PLANNED, BYTES = 1 << 16 };

/* One job. Ranks put down here how it ended. */
struct job {
	const char *device;
	const char *what, *source, *version;
	uint32_t exchange, io;
	int when; /* OPENED, PLANNED: then rank @actor does @act */
	uint32_t actor;
	void (*act)(const struct job *j);
	struct t_load *f;
	struct dcpload_error err[RANKS];
	bool again[RANKS];
	float first[RANKS]; /* of the part of model.f */
	uint32_t used[RANKS];
};

static int meet(const struct dcpload_comm *comm, const struct job *j, int when)
{
	char one = 1, all[RANKS];
	int rc = comm->allgather(comm->ctx, &one, 1, all, 10000);

	if (rc == 0 && j->when == when && comm->rank == j->actor)
		j->act(j);
	return rc < 0 ? rc : comm->allgather(comm->ctx, &one, 1, all, 10000);
}

static int plan_layout(struct dcpload *ck, const struct dcpload_comm *comm,
		       struct dcpload_plan **plan, struct dcpload_error *err)
{
	char layout[16];
	int rc = dcpload_plan_create(ck, 0, plan, err);

	snprintf(layout, sizeof(layout), "fsdp%u", comm->ranks);
	if (rc == 0)
		rc = dcpload_want_layout(*plan, layout, comm->rank, NULL, err);
	rc = load_agree(comm, rc, err, 10000); /* these two are not collective */
	return rc < 0 ? rc : dcpload_plan_finish(*plan, err);
}

static void put_down(struct job *j, uint32_t rank, struct dcpload_plan *plan)
{
	struct dcpload_report report = { .size = sizeof(report) };
	struct dcpload_part part;

	dcpload_plan_report(plan, &report);
	j->again[rank] = report.again != NULL;
	j->used[rank] = report.exchange;
	for (uint64_t i = 0; dcpload_part(plan, i, &part) == 0; i++)
		if (strcmp(part.key, "model.f") == 0)
			dcpload_part_read(plan, i, 0, &j->first[rank], sizeof(float), NULL);
}

static int run_rank(const struct dcpload_comm *comm, void *arg)
{
	struct job *j = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = j->io,
					       .exchange = j->exchange,
					       .staging = 1,
					       .threads = 1,
					       .version = j->version,
					       .cache = "",
					       .device = j->device };
	struct dcpload_error *err = &j->err[comm->rank];
	struct dcpload_plan *plan = NULL, *other = NULL;
	struct dcpload *ck = NULL;
	int rc = dcpload_open(comm, j->source, &config, &ck, err);

	if (rc == 0)
		rc = plan_layout(ck, comm, &other, err);
	if (rc == 0)
		rc = meet(comm, j, OPENED);
	if (rc == 0)
		rc = plan_layout(ck, comm, &plan, err);
	if (rc == 0)
		rc = meet(comm, j, PLANNED);
	if (rc == 0)
		rc = dcpload_execute(plan, err);
	if (rc == 0) {
		put_down(j, comm->rank, plan);
		rc = dcpload_check(plan, err);
	}
	if (rc == 0) /* of the files as they were */
		rc = dcpload_execute(other, err);
	if (rc == 0)
		rc = dcpload_check(other, err);
	dcpload_plan_free(other);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return rc < 0 ? expect(rc == err->code) : expect(err->code == 0);
}

static const struct {
	uint32_t exchange, io;
} ways[] = {
	{ DCPLOAD_EXCHANGE_NEVER, DCPLOAD_IO_BUFFERED },
	{ DCPLOAD_EXCHANGE_NODE, DCPLOAD_IO_BUFFERED },
	{ DCPLOAD_EXCHANGE_ALL, DCPLOAD_IO_BUFFERED },
	{ DCPLOAD_EXCHANGE_NODE, DCPLOAD_IO_DIRECT },
};

/* All ranks have the same, and it begins with @code and has @says in it; 0: no error. */
static void check_end(const struct job *j, int code, const char *says)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		if (j->err[r].code != code || (code && !strstr(j->err[r].text, says)))
			fail_msg("%s, rank %u: %d: \"%s\", not %d, \"%s\"", j->what, r,
				 j->err[r].code, j->err[r].text, code, says);
		assert_string_equal(j->err[r].text, j->err[0].text);
	}
}

/* ---- files ---- */

#define MODEL "step-1/model.safetensors"

static void rewrite(const struct job *j)
{
	t_load_put(&j->f->d, MODEL, T_LOAD_HEADER, 5);
	t_dir_touch(&j->f->d, MODEL, 1700000000000000000);
}

static void move(const struct job *j)
{
	t_load_put(&j->f->d, MODEL, T_LOAD_HEADER "                ", 5);
	t_dir_touch(&j->f->d, MODEL, 1700000000000000000);
}

static void reshape(const struct job *j)
{
	t_load_put(
		&j->f->d, MODEL,
		"{\"model.f\":{\"dtype\":\"F32\",\"shape\":[8,16,8],\"data_offsets\":[0,4096]},"
		"\"model.b\":{\"dtype\":\"U8\",\"shape\":[64,64],\"data_offsets\":[4096,8192]}}"
		"  ",
		5);
	t_dir_touch(&j->f->d, MODEL, 1700000000000000000);
}

static void cut_short(const struct job *j)
{
	assert_int_equal(truncate(t_dir_path(&j->f->d, MODEL), 5000), 0);
}

static void forget_it(const struct job *j)
{
	t_dir_delete(&j->f->d, MODEL);
}

static void changed_files_are_opened_again(void **state)
{
	static const struct {
		const char *what;
		void (*act)(const struct job *j);
		int code;
		const char *says;
	} cases[] = {
		{ "rewritten", rewrite, 0, "" },
		{ "rewritten, at other places", move, 0, "" },
		{ "another shape", reshape, -ESTALE, "model.f has another shape or dtype" },
		{ "cut", cut_short, -EIO, "" },
		{ "gone", forget_it, 1, "" }, /* or not, as long as a process has it open */
	};
	struct t_load *f = *state;

	for (size_t i = 0; i < DCP_LEN(cases); i++)
		for (size_t w = 0; w < 2 * DCP_LEN(ways); w++) {
			struct job j = { .what = cases[i].what,
					 .source = f->d.root,
					 .version = "step-1",
					 .exchange = ways[w / 2].exchange,
					 .io = ways[w / 2].io,
					 .when = w % 2 ? OPENED : PLANNED,
					 .device = w % 2 ? getenv("DCPFS_DEVICE") : NULL,
					 .act = cases[i].act,
					 .f = f };

			t_load_put(&f->d, MODEL, T_LOAD_HEADER, 1);
			assert_int_equal(t_comm_run(RANKS, run_rank, &j), 0);
			if (cases[i].code == 1) {
				check_end(&j, j.err[0].code, "model.safetensors");
				continue;
			}
			check_end(&j, cases[i].code, cases[i].says);
			for (uint32_t r = 0; r < RANKS && cases[i].code == 0; r++) {
				assert_true(j.again[r]);
				assert_true(j.first[r] == t_load_number(5 + 6 * 64 * r));
			}
		}
}

/* What has to be looked into when it is planned was changed before. */
static void files_changed_before_planning_are_noticed(void **state)
{
	static const char from[] = "tests/golden/torch-save/ckpt/many.pt";
	const struct dcpload_config config = { .size = sizeof(config), .cache = "" };
	static char bytes[1 << 20];
	struct t_load *f = *state;
	struct dcpload_plan *plan = NULL;
	struct dcpload_error err = { 0 };
	struct dcpload *ck;
	int fd = open(from, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, bytes, sizeof(bytes));

	close(fd);
	assert_true(n > 0 && n < (ssize_t)sizeof(bytes));
	t_dir_put(&f->d, "pt/many.pt", bytes, (size_t)n);
	assert_int_equal(
		dcpload_open(NULL, t_dir_path(&f->d, "pt/many.pt"), &config, &ck, &err), 0);
	t_dir_touch(&f->d, "pt/many.pt", 1700000000000000000);
	assert_int_equal(dcpload_plan_create(ck, 0, &plan, &err), 0);
	assert_int_equal(dcpload_want_layout(plan, "fsdp1", 0, NULL, &err), 0);
	if (dcpload_plan_finish(plan, &err) < 0 || dcpload_execute(plan, &err) < 0 ||
	    dcpload_check(plan, &err) < 0)
		fail_msg("%s", err.text);
	dcpload_plan_free(plan);
	dcpload_close(ck);
}

/* ---- reads ---- */

static struct stat bad; /* the file that has a bad block */
static int reads;

static int bad_block(int fd, size_t *n, off_t off)
{
	struct stat st;

	(void)n;
	(void)off;
	return fstat(fd, &st) == 0 && st.st_ino == bad.st_ino && st.st_dev == bad.st_dev ? EIO
											 : 0;
}

static int interrupted(int fd, size_t *n, off_t off)
{
	(void)fd;
	(void)off;
	*n = *n > 512 ? 512 : *n; /* O_DIRECT gives whole sectors */
	return __atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED) % 3 ? 0 : EINTR;
}

static void break_reads(const struct job *j)
{
	(void)j;
	t_fault_read = bad_block;
}

static void failed_reads_take_another_copy(void **state)
{
	static const char hsdp[] = "tests/golden/torch-ranks/ckpt";
	struct t_load *f = *state;

	for (size_t w = 0; w < DCP_LEN(ways); w++) {
		struct job j = { .what = "no other copy",
				 .source = f->d.root,
				 .version = "step-1",
				 .exchange = ways[w].exchange,
				 .io = ways[w].io,
				 .when = PLANNED,
				 .act = break_reads,
				 .f = f };

		assert_int_equal(stat(t_dir_path(&f->d, MODEL), &bad), 0);
		t_fault_read = NULL;
		assert_int_equal(t_comm_run(RANKS, run_rank, &j), 0);
		check_end(&j, -EIO, "; no other file holds the same elements");
		memset(j.err, 0, sizeof(j.err));
		for (int r = 0; r < 4; r++) {
			char path[128];

			snprintf(path, sizeof(path), "%s/2-hsdp/model_world_size_4_rank_%d.pt",
				 hsdp, r);
			assert_int_equal(stat(path, &bad), 0);
			t_fault_read = NULL;
			j.what = "another copy";
			j.source = hsdp;
			j.version = "2-hsdp";
			assert_int_equal(t_comm_run(RANKS, run_rank, &j), 0);
			check_end(&j, 0, "");
			/* Of two files that hold the same the first is read. */
			assert_int_equal(j.again[0], r < 2);
		}
		t_fault_read = interrupted;
		j.what = "short reads";
		j.when = 0;
		assert_int_equal(t_comm_run(RANKS, run_rank, &j), 0);
		check_end(&j, 0, "");
		assert_true(reads > 3);
		t_fault_read = NULL;
	}
}

/* Ranks that send from device to device meet in each round, and then tell why one has failed. */
static void failed_reads_are_described_in_rounds(void **state)
{
	struct t_load *f = *state;
	struct job j = { .what = "from device to device",
			 .source = f->d.root,
			 .version = "large",
			 .exchange = DCPLOAD_EXCHANGE_ALL,
			 .io = DCPLOAD_IO_BUFFERED,
			 .when = PLANNED,
			 .device = getenv("DCPFS_DEVICE"),
			 .act = break_reads,
			 .f = f };

	t_load_put_large(&f->d, "large/model.safetensors", 6);
	assert_int_equal(stat(t_dir_path(&f->d, "large/model.safetensors"), &bad), 0);
	t_fault_read = NULL;
	assert_int_equal(t_comm_run(RANKS, run_rank, &j), 0);
	t_fault_read = NULL;
	check_end(&j, -EIO, "model.safetensors: Input/output error");
}

/* ---- memory ---- */

static void full_shared_memory_is_survived(void **state)
{
	struct t_load *f = *state;
	struct job j = { .what = "full",
			 .source = f->d.root,
			 .version = "step-1",
			 .exchange = DCPLOAD_EXCHANGE_NODE,
			 .io = DCPLOAD_IO_DIRECT,
			 .f = f };

	t_fault_shared = ENOSPC;
	assert_int_equal(t_comm_run(RANKS, run_rank, &j), 0);
	check_end(&j, -ENOSPC, "no shared memory for a window");
	t_fault_shared = 0;
}

/* The @victim's n-th allocation fails, and perhaps all after it. */
struct shortage {
	struct job job;
	uint32_t victim;
	long n;
	bool over;
};

static int run_short(const struct dcpload_comm *comm, void *arg)
{
	struct shortage *s = arg;
	int rc;

	if (comm->rank == s->victim && !s->job.act) {
		t_fault_memory = s->n;
		t_fault_for_good = s->n % 2;
	}
	rc = run_rank(comm, &s->job);
	if (comm->rank == s->victim)
		s->over = t_fault_memory > 1;
	t_fault_memory = 0;
	t_fault_for_good = false;
	return rc;
}

static void lack_of_memory_is_survived(void **state)
{
	struct t_load *f = *state;
	const long step =
		T_ROUNDS(4) < 4 ? 5 : 1; /* slow: every fifth, which still tries all ways */
	long n = 1, tried = 0, failed = 0, odd = 0;

	for (;; n += step, tried++) {
		struct shortage s = { .job = { .what = "no memory",
					       .source = f->d.root,
					       .version = "step-1",
					       .exchange = ways[n % 4].exchange,
					       .io = ways[n % 4].io,
					       .f = f },
				      .victim = (uint32_t)n % RANKS,
				      .n = n };

		assert_int_equal(t_comm_run(RANKS, run_short, &s), 0);
		if (s.over)
			break;
		failed += s.job.err[0].code != 0;
		check_end(&s.job, s.job.err[0].code, "");
		/* SQLite and jansson do not always say what they lacked. */
		odd += s.job.err[0].code && s.job.err[0].code != -ENOMEM;
		if (s.job.err[0].code && s.job.err[0].rank != (int)s.victim)
			fail_msg("allocation %ld of rank %u: %s (rank %d)", n, s.victim,
				 s.job.err[0].text, s.job.err[0].rank);
	}
	print_message("%ld allocations, %ld of them needed\n", n, failed);
	assert_true(failed > tried / 2);
	assert_true(odd * 20 < failed);
}

/*
 * The file is not in the page cache, so that a window would be made, and the next allocations fail.
 */
static void run_out(const struct job *j)
{
	int fd = open(t_dir_path(&j->f->d, MODEL), O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && fsync(fd) == 0)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	t_fault_memory = ((const struct shortage *)j)->n;
}

/* A rank that lacks memory for the window: all fail at once, or all do without. */
static void lack_of_window_memory_is_agreed_on(void **state)
{
	struct t_load *f = *state;
	long n = 1, window = 0;
	bool over = false;

	for (; !over; n++) {
		struct shortage s = { .job = { .what = "no memory, late",
					       .source = f->d.root,
					       .version = "step-1",
					       .when = OPENED,
					       .actor = (uint32_t)n % RANKS,
					       .act = run_out,
					       .f = f },
				      .victim = (uint32_t)n % RANKS,
				      .n = n };

		assert_int_equal(t_comm_run(RANKS, run_short, &s), 0);
		check_end(&s.job, s.job.err[0].code, "");
		for (uint32_t r = 0; r < RANKS; r++)
			assert_int_equal(s.job.used[r], s.job.used[0]);
		window += s.job.used[0] == DCPLOAD_EXCHANGE_NODE;
		over = s.over;
	}
	print_message("%ld allocations, %ld jobs with a window\n", n, window);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(changed_files_are_opened_again, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(files_changed_before_planning_are_noticed,
						t_load_setup, t_load_teardown),
		cmocka_unit_test_setup_teardown(failed_reads_take_another_copy, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(failed_reads_are_described_in_rounds,
						t_load_setup, t_load_teardown),
		cmocka_unit_test_setup_teardown(full_shared_memory_is_survived, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(lack_of_memory_is_survived, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(lack_of_window_memory_is_agreed_on,
						t_load_setup, t_load_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
