/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads past the page cache go to slots that are registered with an io_uring; where the kernel
 * refuses that, the same bytes come without, and the report says why. Slots are huge pages, if the
 * kernel gives any.
 * covers: slots, tools/load/window
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/store/io/queue.h"
#include "tests/unit/t/fault.h"
#include "tests/unit/t/load.h"
#include "tools/load/load.h"

/* Does O_DIRECT work there? */
static bool reads_past_cache(const struct t_dir *d)
{
	int fd = open(t_dir_path(d, "step-1/model.safetensors"),
		      O_RDONLY | O_DIRECT | O_CLOEXEC);

	close(fd);
	return fd >= 0;
}

static void load(struct t_load *f, struct dcpload_report *report, char *why, size_t size)
{
	const struct dcpload_want want = { .size = sizeof(want), .key = "model.b" };
	struct dcpload_part part;
	struct dcpload_plan *p;

	f->ck = f->direct;
	p = t_load_plan(f, 0);
	ok(f, dcpload_want(p, &want, &f->err));
	ok(f, dcpload_plan_finish(p, &f->err));
	for (int i = 0; i < 2; i++) { /* the second time with what the first has opened */
		ok(f, dcpload_execute(p, &f->err));
		ok(f, dcpload_part(p, 0, &part));
		for (uint64_t k = 0; k < 4096; k++)
			assert_int_equal(((uint8_t *)part.data)[k], t_load_byte(4096 + k, 1));
		memset(part.data, 0x55, part.nbytes);
	}
	*report = (struct dcpload_report){ .size = sizeof(*report) };
	assert_int_equal(dcpload_plan_report(p, report), 0);
	snprintf(why, size, "%s", report->io_why);
	dcpload_plan_free(p);
}

static void slots_are_registered(void **state)
{
	struct t_load *f = *state;
	struct dcpload_report report;
	bool can = dcp_queue_probe() == 0 && reads_past_cache(&f->d);
	char why[200];

	load(f, &report, why, sizeof(why));
	if (!can) {
		print_message("           (no io_uring or no O_DIRECT here)\n");
		assert_int_equal(report.registered, 0);
		return;
	}
	assert_string_equal(why, "asked for");
	/*
	 * The end of the file, which is not a whole block, is read from the page cache, in the same
	 * batch.
	 */
	assert_true(report.registered > 0 && report.registered <= report.read);
	t_case("refused");
	t_fault_register = ENOMEM;
	load(f, &report, why, sizeof(why));
	t_fault_register = 0;
	assert_int_equal(report.registered, 0);
	assert_string_equal(why,
			    "asked for; buffers are not registered: Cannot allocate memory");
	assert_true(report.read >= 4096);
	t_case("and no longer");
	load(f, &report, why, sizeof(why));
	assert_true(report.registered > 0);
}

static void *run_nothing(void *arg)
{
	return arg;
}

/* A rank that gets no thread, here because stacks do not fit in memory, fills its slots itself. */
static void slots_are_filled_without_threads(void **state)
{
	struct t_load *f = *state;
	struct dcpload_report report;
	pthread_attr_t usual, large;
	pthread_t thread;
	char why[200];

	assert_int_equal(pthread_getattr_default_np(&usual), 0);
	assert_int_equal(pthread_attr_init(&large), 0);
	assert_int_equal(pthread_attr_setstacksize(&large, (size_t)1 << 47), 0);
	assert_int_equal(pthread_setattr_default_np(&large), 0);
	assert_int_not_equal(pthread_create(&thread, NULL, run_nothing, NULL), 0);
	load(f, &report, why, sizeof(why));
	assert_int_equal(pthread_setattr_default_np(&usual), 0);
	pthread_attr_destroy(&usual);
	pthread_attr_destroy(&large);
	assert_true(report.read >= 4096);
}

/*
 * What is asked for is not all taken: slots are 16 MiB at most, and a page says how far they are.
 */
static void room_has_an_end(void **state)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = DCPLOAD_IO_DIRECT,
					       .staging = 64 << 20,
					       .version = "1",
					       .cache = "" };
	struct t_load *f = *state;
	struct dcpload_report report;
	char why[200];

	dcpload_close(f->direct);
	ok(f, dcpload_open(NULL, f->d.root, &config, &f->direct, &f->err));
	load(f, &report, why, sizeof(why));
	assert_int_equal(report.staging, (16 << 20) + 4096);
}

/*
 * KiB of the mapping that begins at @p that the kernel counts as @what; of "VmFlags:": 1 if it is
 * to be of huge pages.
 */
static long counted(const void *p, const char *what)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long from, to;
	bool here = false;
	char line[4096];
	long n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from == (unsigned long)p;
		else if (here && strncmp(line, what, strlen(what)) == 0)
			n = strcmp(what, "VmFlags:") ? atol(line + strlen(what))
						     : strstr(line, " hg") != NULL;
	}
	fclose(f);
	return n;
}

static void slots_are_huge_pages(void **state)
{
	enum { SLOTS = 5, HUGE_PAGE = 2 << 20 };
	const struct {
		const char *name;
		bool alone;
		uint64_t slot;
		int refused;
		const char *what; /* counted(), if the kernel has huge pages, and @want */
		long want;
	} cases[] = {
		{ "alone", true, 1 << 20, 0, "VmFlags:", 1 },
		{ "alone, refused", true, 1 << 20, EINVAL, "VmFlags:", 0 },
		{ "shared", false, 2 << 20, 0, "ShmemPmdMapped:", SLOTS * 2048 },
		{ "shared, refused", false, 2 << 20, EINVAL, "ShmemPmdMapped:", 0 },
		{ "shared, smaller", false, 512 << 10, 0, "ShmemPmdMapped:", 0 },
	};
	struct t_load *f = *state;
	struct load_window *w;
	uint64_t n;

	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		uint8_t *p;

		t_case(cases[i].name);
		t_fault_huge = cases[i].refused;
		ok(f, load_window_create(f->direct, SLOTS, cases[i].slot, cases[i].alone, &w,
					 &f->err));
		t_fault_huge = 0;
		p = load_window_memory(w, &n);
		assert_int_equal(n, SLOTS * cases[i].slot);
		assert_int_equal((uintptr_t)p % HUGE_PAGE, 0);
		assert_int_equal(-load_window_small(w), cases[i].refused);
		if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) == 0)
			assert_int_equal(counted(p, cases[i].what), cases[i].want);
		memset(p, 0x55, n);
		load_window_free(w, false);
	}
}

/*
 * A load through shared slots says when they are small, and only where it reads past the page
 * cache.
 */
static void small_pages_are_reported(void **state)
{
	static const char *const said[] = {
		[DCPLOAD_IO_BUFFERED] = "asked for",
		[DCPLOAD_IO_DIRECT] = "asked for; buffers are not huge pages: Invalid argument",
	};
	struct t_load *f = *state;
	struct dcpload_report report;
	char why[200];

	for (uint32_t io = 0; io < DCP_LEN(said); io++) {
		const struct dcpload_config config = { .size = sizeof(config),
						       .io = io,
						       .exchange = DCPLOAD_EXCHANGE_NODE,
						       .version = "1",
						       .cache = "" };

		if (!said[io])
			continue;
		dcpload_close(f->direct);
		ok(f, dcpload_open(NULL, f->d.root, &config, &f->direct, &f->err));
		t_fault_huge = EINVAL;
		load(f, &report, why, sizeof(why));
		t_fault_huge = 0;
		assert_string_equal(why, said[io]);
	}
}

/* May this thread pass RLIMIT_MEMLOCK by? False: it may not. */
static bool set_unlimited(bool may)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];
	const uint32_t bit = 1u << CAP_IPC_LOCK;

	if (syscall(SYS_capget, &head, caps) < 0 || !(caps[0].permitted & bit))
		return false;
	caps[0].effective = may ? caps[0].effective | bit : caps[0].effective & ~bit;
	return syscall(SYS_capset, &head, caps) == 0;
}

/* Two slots in one huge page would count as two of these. */
static void a_user_may_register_all(void **state)
{
	static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[8388608],"
				     "\"data_offsets\":[0,8388608]}}";
	enum { HEADER = sizeof(header) - 1, ALL = 8 + HEADER + (8 << 20) };
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = DCPLOAD_IO_DIRECT,
					       .cache = "" };
	struct t_load *f = *state;
	struct dcpload_report report = { .size = sizeof(report) };
	struct rlimit before, limit;
	struct dcpload_plan *p;
	struct dcpload *ck;
	uint8_t *file;

	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
	limit = (struct rlimit){ 8 << 20, before.rlim_max };
	if (dcp_queue_probe() < 0 || !reads_past_cache(&f->d) ||
	    setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || !set_unlimited(false)) {
		print_message(
			"           (left out: io_uring, O_DIRECT or rights are missing)\n");
		return;
	}
	file = calloc(1, ALL);
	assert_non_null(file);
	file[0] = HEADER;
	memcpy(file + 8, header, HEADER);
	t_dir_put(&f->d, "big/model.safetensors", file, ALL);
	free(file);
	ok(f, dcpload_open(NULL, t_dir_path(&f->d, "big"), &config, &ck, &f->err));
	ok(f, dcpload_plan_create(ck, 0, &p, &f->err));
	ok(f,
	   dcpload_want(
		   p, &(struct dcpload_want){ .size = sizeof(struct dcpload_want), .key = "a" },
		   &f->err));
	ok(f, dcpload_plan_finish(p, &f->err));
	ok(f, dcpload_execute(p, &f->err));
	assert_int_equal(dcpload_plan_report(p, &report), 0);
	assert_string_equal(report.io_why, "asked for");
	assert_true(report.registered >= 8 << 20 && report.registered <= ALL);
	dcpload_plan_free(p);
	dcpload_close(ck);
	assert_true(set_unlimited(true));
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(slots_are_registered, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(slots_are_filled_without_threads, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(a_user_may_register_all, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(room_has_an_end, t_load_setup, t_load_teardown),
		cmocka_unit_test_setup_teardown(slots_are_huge_pages, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(small_pages_are_reported, t_load_setup,
						t_load_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
