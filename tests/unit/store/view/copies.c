/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint whose ranks saved replicas: any one of its files may be lost once it is open.
 * covers: locate
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t/parse/dir.h"

#define GOLDEN "tests/golden/torch-ranks/ckpt/2-hsdp/"
#define NAME "model_world_size_4_rank_%d.pt"

enum { RANKS = 4 };

static void copy(const struct t_dir *d)
{
	static char data[1 << 20];

	for (int r = 0; r < RANKS; r++) {
		char from[128], to[64];
		ssize_t n;
		int fd;

		snprintf(from, sizeof(from), GOLDEN NAME, r);
		snprintf(to, sizeof(to), "s/" NAME, r);
		fd = open(from, O_RDONLY | O_CLOEXEC);
		n = read(fd, data, sizeof(data));
		assert_true(n > 0 && n < (ssize_t)sizeof(data));
		close(fd);
		t_dir_put(d, to, data, (size_t)n);
	}
}

/* The bytes of all tensors, one after the other; -errno of the first that cannot be read. */
static int read_all(struct dcp_version *v, char *out, size_t *n, struct dcp_err *err)
{
	struct dcp_index_scan *s;
	struct dcp_row row;
	int rc = 0;

	*n = 0;
	assert_int_equal(dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, false, &s), 0);
	while (rc == 0 && dcp_index_scan_next(s, &row) == 1) {
		struct dcp_view *view;

		rc = dcp_view_open(v, row.id, DCP_AS_RAW, NULL, &view, err);
		if (rc < 0)
			break;
		rc = dcp_view_read(view, 0, out + *n, dcp_view_size(view));
		*n += dcp_view_size(view);
		dcp_view_close(view);
	}
	dcp_index_scan_end(s);
	return rc;
}

static void one_is_lost(void **state)
{
	static char want[1 << 16], got[1 << 16];
	size_t nwant = 0, n;

	(void)state;
	for (int lost = -1; lost < RANKS; lost++) {
		struct dcp_store_opts opts = { 0 };
		struct dcp_version *v;
		struct dcp_err err = { 0 };
		struct dcp_scan scan;
		struct t_dir d;
		char name[64];

		t_dir_make(&d, "test_copies");
		copy(&d);
		assert_int_equal(dcp_scan(d.root, &scan, &err), 0);
		assert_int_equal(scan.n, 1);
		assert_int_equal(dcp_version_open(d.root, &scan.found[0], &opts, &v, &err), 0);
		if (lost >= 0) {
			snprintf(name, sizeof(name), "s/" NAME, lost);
			assert_int_equal(truncate(t_dir_path(&d, name), 100), 0);
		}
		if (read_all(v, lost < 0 ? want : got, &n, &err) < 0)
			fail_msg("without file %d: %s", lost, err.msg);
		nwant = lost < 0 ? n : nwant;
		assert_int_equal(n, nwant);
		if (lost >= 0)
			assert_memory_equal(got, want, n);
		/* Of the same group of ranks, another: both that hold a piece are lost. */
		if (lost == 0) {
			for (int r = 1; r < RANKS; r++) {
				snprintf(name, sizeof(name), "s/" NAME, r);
				assert_int_equal(truncate(t_dir_path(&d, name), 100), 0);
			}
			assert_int_equal(read_all(v, got, &n, &err), -EIO);
			if (!strstr(err.msg, "wanted, the file ends at 100"))
				fail_msg("%s", err.msg);
		}
		dcp_version_close(v);
		dcp_scan_finish(&scan);
		t_dir_remove(&d);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
