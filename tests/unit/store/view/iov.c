/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: store/view/read
 *
 * Long runs that a cut interleaves come as pointers in the order of the body.
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/fault.h"

enum { ROWS = 4, HALF = 96 << 10, N = ROWS * 2 * HALF };

/* The one version of @path. */
static struct dcp_version *open_version(const char *path)
{
	struct dcp_store_opts opts = { 0 };
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;

	assert_int_equal(dcp_scan(path, &scan, &err), 0);
	assert_int_equal(scan.n, 1);
	if (dcp_version_open(path, &scan.found[0], &opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	dcp_scan_finish(&scan);
	return v;
}

/* Of each row the second half before the first. */
static void long_runs_come_in_order(void **state)
{
	const struct dcp_span rows = { 0, 0, ROWS },
			      halves[] = { { 0, HALF, HALF }, { HALF, 0, HALF } };
	const struct dcp_axis axis[] = { { &rows, 1, ROWS }, { halves, 2, 2 * HALF } };
	const struct dcp_cut cut = { .ndim = 2, .axis = axis };
	char path[] = "/tmp/dcpfs-iov-XXXXXX.safetensors", header[81];
	char *stored = malloc(N), *body = malloc(N);
	int fd = mkstemps(path, strlen(".safetensors"));
	struct dcp_lent lent;
	struct dcp_version *v;
	struct dcp_view *view;
	struct iovec iov[64];

	(void)state;
	assert_int_equal(dcpfs_fault_install(), 0); /* or nothing is mapped */
	for (size_t i = 0; i < N; i++)
		stored[i] = (char)(i / HALF * 17 + i % 251);
	for (size_t i = 0; i < ROWS * 2; i++)
		memcpy(body + i * HALF, stored + (i ^ 1) * HALF, HALF);
	snprintf(header, sizeof(header), "%c%7s%-72s", 72, "",
		 "{\"w\":{\"dtype\":\"U8\",\"shape\":[4,196608],\"data_offsets\":[0,786432]}}");
	memset(header + 1, 0, 7);
	assert_int_equal(write(fd, header, 80), 80);
	assert_int_equal(write(fd, stored, N), N);
	v = open_version(path);
	assert_int_equal(dcp_view_open(v, 1, DCP_AS_RAW, &cut, &view, NULL), 0);
	for (uint64_t off = 0; off < 2; off++) { /* from the front, and not */
		int n = dcp_view_iov(view, off, N - off, iov, 64, &lent);

		assert_int_equal(n, ROWS * 2);
		for (uint64_t at = off, i = 0; i < (uint64_t)n; at += iov[i++].iov_len) {
			assert_int_equal(iov[i].iov_len, HALF - (i ? 0 : off));
			assert_memory_equal(iov[i].iov_base, body + at, iov[i].iov_len);
		}
		dcp_view_return(view, &lent);
	}
	assert_int_equal(dcp_view_read(view, 1, stored, N - 1), 0);
	assert_memory_equal(stored, body + 1, N - 1);
	dcp_view_close(view);
	dcp_version_close(v);
	unlink(path);
	close(fd);
	free(stored);
	free(body);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(long_runs_come_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
