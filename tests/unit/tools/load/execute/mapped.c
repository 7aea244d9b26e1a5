/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the program handles what a truncated file raises, long runs that are in the page cache are
 * copied from a mapping; short ones, and what is not in there, are read.
 * covers: wants, verify
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <unistd.h>

#include "core/origin/dir/dir.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "tests/unit/t/fault.h"
#include "tests/unit/t/load.h"

enum { LONG = 300 << 10, SHORT = 5000 };

static const char header[] =
	"{\"long\":{\"dtype\":\"U8\",\"shape\":[307200],\"data_offsets\":[0,307200]},"
	"\"short\":{\"dtype\":\"U8\",\"shape\":[5000],\"data_offsets\":[307200,312200]}}     ";

static uint64_t reads_of_long, reads_of_short;

static int count(int fd, size_t *n, off_t off)
{
	(void)fd;
	(void)off;
	reads_of_long += *n > LONG / 2;
	reads_of_short += *n == SHORT;
	return 0;
}

/* Load both, by so many reads. */
static void execute(struct dcpload_plan *plan, uint64_t longs, uint64_t shorts)
{
	struct dcpload_error err;

	reads_of_long = reads_of_short = 0;
	for (uint64_t i = 0; i < 2; i++) {
		struct dcpload_part part;

		dcpload_part(plan, i, &part);
		memset(part.data, 0x55, part.nbytes);
	}
	t_fault_read = count;
	if (dcpload_execute(plan, &err) < 0)
		fail_msg("%s", err.text);
	t_fault_read = NULL;
	for (uint64_t i = 0; i < 2; i++) {
		struct dcpload_part part;
		uint64_t before = i ? LONG : 0;

		dcpload_part(plan, i, &part);
		assert_int_equal(part.nbytes, i ? SHORT : LONG);
		for (uint64_t k = 0; k < part.nbytes; k++)
			if (((uint8_t *)part.data)[k] != t_load_byte(before + k, 1))
				fail_msg("byte %llu of part %llu", (unsigned long long)k,
					 (unsigned long long)i);
	}
	assert_int_equal(reads_of_long, longs);
	assert_int_equal(reads_of_short, shorts);
}

static void cached_long_runs_come_from_mappings(void **state)
{
	const struct dcpload_config config = {
		.size = sizeof(config), .io = DCPLOAD_IO_BUFFERED, .cache = "", .threads = 1
	};
	const struct dcpload_want wants[] = { { .size = sizeof(*wants), .key = "long" },
					      { .size = sizeof(*wants), .key = "short" } };
	uint64_t n = sizeof(header) - 1;
	uint8_t *bytes = malloc(8 + n + LONG + SHORT);
	struct dcpload_plan *plan;
	struct dcpload_error err;
	struct dcpload *ck;
	struct t_dir d;
	bool evicts;
	int fd;

	(void)state;
	assert_non_null(bytes);
	memcpy(bytes, &n, 8);
	memcpy(bytes + 8, header, n);
	for (uint64_t i = 0; i < LONG + SHORT; i++)
		bytes[8 + n + i] = t_load_byte(i, 1);
	t_dir_make(&d, "test_mapped");
	t_dir_put(&d, "1/model.safetensors", bytes, 8 + n + LONG + SHORT);
	fd = open(t_dir_path(&d, "1/model.safetensors"), O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0 && fsync(fd) == 0);
	assert_int_equal(dcpload_open(NULL, d.root, &config, &ck, &err), 0);
	assert_int_equal(dcpload_plan_create(ck, 0, &plan, &err), 0);
	assert_int_equal(dcpload_want(plan, &wants[0], &err), 0);
	assert_int_equal(dcpload_want(plan, &wants[1], &err), 0);
	assert_int_equal(dcpload_plan_finish(plan, &err), 0);
	assert_int_equal(dcpload_drop_caches(plan, &err), 0);
	evicts = !dcp_is_cached(fd, LONG / 2);
	if (evicts) {
		t_case("not in the page cache");
		execute(plan, 1, 1);
	} else {
		print_message("           (files here do not leave the page cache)\n");
	}
	t_case("in the page cache");
	execute(plan, 0, 1);
	if (evicts) {
		t_case("what was mapped leaves it as well");
		assert_int_equal(dcpload_drop_caches(plan, &err), 0);
		assert_false(dcp_is_cached(fd, LONG / 2));
		execute(plan, 1, 1);
	}
	dcpload_plan_free(plan);
	dcpload_close(ck);
	close(fd);
	t_dir_remove(&d);
	free(bytes);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cached_long_runs_come_from_mappings),
	};

	dcp_guard_enable();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
