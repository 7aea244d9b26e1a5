/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is given: who writes it, and what is refused.
 * covers: tools/save/ranks/given, tools/save/ranks/agreed, tools/save/ranks/library
 */
#include "tests/unit/t.h"

#include <errno.h>

#include "tests/unit/t/comm.h"
#include "tests/unit/t/parse/dir.h"
#include "tools/save/dcpsave.h"

/* What is refused, and what comes after a failure. */
static void bad_tensors_are_refused(void **state)
{
	const struct dcpsave_config config = { .size = sizeof(config),
					       .format = "safetensors" };
	const uint64_t shape = 4, lo = 0, len = 2;
	struct dcpsave_tensor t = { .size = sizeof(t),
				    .ndim = 1,
				    .key = "w",
				    .dtype = "F32",
				    .shape = &shape,
				    .lo = &lo,
				    .len = &len };
	struct dcpload_error err = { 0 };
	struct dcpsave *s;
	struct t_dir d;
	char path[200];

	(void)state;
	t_dir_make(&d, "save");
	snprintf(path, sizeof(path), "%s/x", d.root);
	assert_int_equal(dcpsave_open(NULL, path, &config, &s, &err), 0);
	assert_int_equal(dcpsave_add(s, &t, &err), -EINVAL);
	assert_string_equal(err.text, "w has no data");
	t.data = "12345678";
	assert_int_equal(dcpsave_add(s, &t, &err), 0);
	assert_int_equal(dcpsave_plan(s, &err), -EINVAL); /* half of it is missing */
	assert_int_equal(dcpsave_write(s, &err), -ECANCELED);
	assert_non_null(strstr(err.text, "saving has failed before"));
	dcpsave_close(s);
	t_dir_remove(&d);
}

/* Text is counted where it is given, which protocol 2 of Paddle asks for: in one region. */
static void text_is_given_in_one_region(void **state)
{
	struct dcpsave_config config = { .size = sizeof(config), .format = "paddle" };
	const uint64_t shape = 4, lo[] = { 0, 2 }, len = 2;
	struct dcpload_error err = { 0 };
	struct dcpsave *s;
	struct t_dir d;
	char path[200];

	(void)state;
	t_dir_make(&d, "save");
	snprintf(path, sizeof(path), "%s/x.pdparams", d.root);
	config.flags = DCPSAVE_FILE;
	for (config.protocol = 2; config.protocol < 4; config.protocol++) {
		assert_int_equal(dcpsave_open(NULL, path, &config, &s, &err), 0);
		for (int i = 0; i < 2; i++) {
			const struct dcpsave_tensor t = { .size = sizeof(t),
							  .ndim = 1,
							  .key = "w",
							  .dtype = "U8",
							  .shape = &shape,
							  .lo = &lo[i],
							  .len = &len,
							  .data = "\377\1" };

			assert_int_equal(dcpsave_add(s, &t, &err), 0);
		}
		assert_int_equal(dcpsave_plan(s, &err), config.protocol == 2 ? -EINVAL : 0);
		if (config.protocol == 2)
			assert_non_null(strstr(err.text, "in one region"));
		dcpsave_close(s);
	}
	t_dir_remove(&d);
}

/* What all have is written by all: the largest first, each by the one that has least to write. */
static int balance_rank(const struct dcpload_comm *comm, void *arg)
{
	static const uint64_t size[] = { 3, 9, 3, 5, 3, 4 }, own[] = { 9, 8, 10 };
	const struct dcpsave_config config = { .size = sizeof(config),
					       .format = "safetensors" };
	struct dcpsave_report report = { .size = sizeof(report) };
	static const char memory[9];
	struct dcpload_error err = { 0 };
	struct dcpsave *s = NULL;
	int rc = dcpsave_open(comm, arg, &config, &s, &err);

	for (size_t i = 0; rc == 0 && i < DCP_LEN(size); i++) {
		const char key[] = { (char)('a' + i), '\0' };

		rc = dcpsave_add(
			s,
			&(struct dcpsave_tensor){ .size = sizeof(struct dcpsave_tensor),
						  .ndim = 1,
						  .key = key,
						  .dtype = "U8",
						  .shape = &size[i],
						  .data = memory },
			&err);
	}
	if (rc == 0)
		rc = dcpsave_plan(s, &err);
	if (rc == 0)
		rc = dcpsave_report(s, &report);
	dcpsave_close(s);
	if (rc == 0 && report.own == own[comm->rank])
		return 0;
	fprintf(stderr, "rank %u has %llu bytes: %s\n", comm->rank,
		(unsigned long long)report.own, err.text); /* assertions do not work in ranks */
	return 1;
}

static void bytes_are_balanced(void **state)
{
	struct t_dir d;
	char path[200];

	(void)state;
	t_dir_make(&d, "save");
	snprintf(path, sizeof(path), "%s/x", d.root);
	assert_int_equal(t_comm_run(3, balance_rank, path), 0);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_tensors_are_refused),
		cmocka_unit_test(text_is_given_in_one_region),
		cmocka_unit_test(bytes_are_balanced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
