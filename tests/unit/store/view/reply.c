/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: read
 *
 * Long runs that a cut interleaves come as pointers in the order of the body.
 */
#include "tests/unit/t.h"

#include <errno.h>
#include <unistd.h>

#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/session.h"

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

static void *take(void *ctx, size_t size)
{
	(void)size;
	return ctx;
}

/* Of each row the second half before the first. */
static void long_runs_come_in_order(void **state)
{
	const struct dcp_span rows = { 0, 0, ROWS },
			      halves[] = { { 0, HALF, HALF }, { HALF, 0, HALF } };
	const struct dcp_axis axis[] = { { &rows, 1, ROWS }, { halves, 2, 2 * HALF } };
	const struct dcp_cut cut = { .ndim = 2, .axis = axis };
	char path[] = "/tmp/dcpfs-iov-XXXXXX.safetensors", header[81];
	char *stored = malloc(N), *body = malloc(N), *take_room;
	int fd = mkstemps(path, strlen(".safetensors"));
	struct dcp_version *v;
	struct dcp_view *view;
	struct dcp_reply r;

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
		dcp_reply_begin(&r, N - off, NULL, NULL);
		assert_int_equal(dcp_view_answer(view, off, N - off, &r), 1);
		assert_int_equal(r.n, ROWS * 2);
		for (uint64_t at = off, i = 0; i < r.n; at += r.entry[i++].iov_len) {
			assert_int_equal(r.entry[i].iov_len, HALF - (i ? 0 : off));
			assert_memory_equal(r.entry[i].iov_base, body + at, r.entry[i].iov_len);
		}
		assert_int_equal(r.nheld, 1);
		dcp_reply_finish(&r);
	}
	take_room = malloc(N);
	dcp_reply_begin(&r, N, take, take_room);
	/* short parts of a long request are copied, and lie together; a long part is pointed at */
	assert_int_equal(dcp_view_answer(view, 0, 100, &r), 0);
	assert_int_equal(dcp_view_answer(view, 100, 1, &r), 0);
	assert_int_equal(dcp_view_answer(view, 101, HALF, &r), 1);
	assert_int_equal(dcp_view_answer(view, 101 + HALF, 0, &r), 0);
	assert_int_equal(dcp_view_answer(view, 101 + HALF, 9, &r), 0);
	assert_int_equal(r.n, 4);
	assert_int_equal(r.done, 110 + HALF);
	assert_memory_equal(r.entry[0].iov_base, body, 101);
	assert_int_equal(r.entry[0].iov_len, 101);
	assert_ptr_equal(r.entry[3].iov_base, take_room + 101 + HALF);
	assert_memory_equal(r.entry[3].iov_base, body + 101 + HALF, 9);
	dcp_reply_finish(&r);
	free(take_room);
	assert_int_equal(dcp_view_read(view, 1, stored, N - 1), 0);
	assert_memory_equal(stored, body + 1, N - 1);
	dcp_view_close(view);
	dcp_version_close(v);
	unlink(path);
	close(fd);
	free(stored);
	free(body);
}

/* However many entries there are, the bytes are there, in order. */
static void entries_run_out_without_loss(void **state)
{
	enum { MANY = DCP_REPLY_ENTRIES + 20 };
	char from[2 * MANY], buf[MANY], got[MANY];
	struct dcp_reply r;
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (char)(i * 7);
	dcp_reply_begin(&r, MANY, take, buf);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(dcp_reply_point(&r, from + 2 * i, 1), 0);
	assert_int_equal(r.n, DCP_REPLY_ENTRIES);
	assert_int_equal(r.done, MANY);
	assert_int_equal(dcp_reply_room(&r), 0);
	for (uint32_t i = 0; i < r.n; n += r.entry[i++].iov_len)
		memcpy(got + n, r.entry[i].iov_base, r.entry[i].iov_len);
	assert_int_equal(n, MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(got[i], from[2 * i]);
	dcp_reply_begin(&r, 1, take, NULL);
	r.copy = true;
	assert_int_equal(dcp_reply_point(&r, from, 1), -ENOMEM);
	assert_int_equal(r.done + r.n, 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(long_runs_come_in_order),
		cmocka_unit_test(entries_run_out_without_loss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
