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

enum { FILES = 4 };

/*
 * Of a golden with replicas: files with tensors, those that go with them, and how many tensors are
 * stored twice.
 */
static const struct world {
	const char *dir, *data[FILES + 1], *more[FILES + 1];
	int twice;
} worlds[] = {
	{ "torch-ranks/ckpt/2-hsdp",
	  { "model_world_size_4_rank_0.pt", "model_world_size_4_rank_1.pt",
	    "model_world_size_4_rank_2.pt", "model_world_size_4_rank_3.pt" },
	  { NULL },
	  5 },
	{ "dcp-rank-local/ckpt/step-5",
	  { "__0_0.distcp", "__1_0.distcp", "__2_0.distcp" },
	  { "__0.metadata", "__1.metadata", "__2.metadata" },
	  7 },
	{ "paddle-dist-flat/ckpt",
	  { "0_1.distcp", "1_1.distcp", "2_1.distcp" },
	  { "1.metadata" },
	  3 },
};

static void copy(const struct t_dir *d, const char *dir, const char *const *names)
{
	static char data[1 << 20];

	for (; *names; names++) {
		char from[128], to[64];
		ssize_t n;
		int fd;

		snprintf(from, sizeof(from), "tests/golden/%s/%s", dir, *names);
		snprintf(to, sizeof(to), "s/%s", *names);
		fd = open(from, O_RDONLY | O_CLOEXEC);
		n = read(fd, data, sizeof(data));
		assert_true(n > 0 && n < (ssize_t)sizeof(data));
		close(fd);
		t_dir_put(d, to, data, (size_t)n);
	}
}

static void lose(const struct t_dir *d, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "s/%s", name);
	assert_int_equal(truncate(t_dir_path(d, path), 100), 0);
}

/*
 * The bytes of the tensors that are stored twice, one after the other; -errno of the first that
 * cannot be read.
 */
static int read_all(struct dcp_version *v, char *out, size_t *n, int *tensors,
		    struct dcp_err *err)
{
	struct dcp_index_scan *s;
	struct dcp_arena arena;
	struct dcp_row row;
	int rc = 0;

	*n = 0;
	*tensors = 0;
	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, false, &s), 0);
	while (rc == 0 && dcp_index_scan_next(s, &row) == 1) {
		struct dcp_tensor t;
		struct dcp_view *view;

		assert_int_equal(
			dcp_index_tensor(dcp_version_index(v), row.id, &arena, &t, err), 0);
		if (!t.ncopies || t.ncopies != t.npieces)
			continue;
		rc = dcp_view_open(v, row.id, DCP_AS_RAW, NULL, &view, err);
		if (rc < 0)
			break;
		rc = dcp_view_read(view, 0, out + *n, dcp_view_size(view));
		*n += dcp_view_size(view);
		dcp_view_close(view);
		++*tensors;
	}
	dcp_index_scan_end(s);
	dcp_arena_finish(&arena);
	return rc;
}

static void one_is_lost(const struct world *w, int lost)
{
	static char want[1 << 18], got[1 << 18];
	static size_t nwant;
	struct dcp_store_opts opts = { 0 };
	struct dcp_version *v;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;
	struct t_dir d;
	int tensors;
	size_t n;

	t_dir_make(&d, "test_copies");
	copy(&d, w->dir, w->data);
	copy(&d, w->dir, w->more);
	assert_int_equal(dcp_scan(d.root, &scan, &err), 0);
	assert_int_equal(scan.n, 1);
	assert_int_equal(dcp_version_open(d.root, &scan.found[0], &opts, &v, &err), 0);
	if (lost >= 0)
		lose(&d, w->data[lost]);
	if (read_all(v, lost < 0 ? want : got, &n, &tensors, &err) < 0)
		fail_msg("%s without file %d: %s", w->dir, lost, err.msg);
	assert_int_equal(tensors, w->twice);
	nwant = lost < 0 ? n : nwant;
	assert_int_equal(n, nwant);
	if (lost >= 0)
		assert_memory_equal(got, want, n);
	/* Then all others: those that hold what is stored twice are lost as well. */
	if (lost == 0) {
		for (int i = 1; w->data[i]; i++)
			lose(&d, w->data[i]);
		assert_int_equal(read_all(v, got, &n, &tensors, &err), -EIO);
		if (!strstr(err.msg, "the file ends at 100") &&
		    !strstr(err.msg, "has 100 bytes"))
			fail_msg("%s", err.msg);
	}
	dcp_version_close(v);
	dcp_scan_finish(&scan);
	t_dir_remove(&d);
}

static void copies_stand_in_for_lost_files(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(worlds); i++) {
		t_case(worlds[i].dir);
		for (int lost = -1; lost < FILES && (lost < 0 || worlds[i].data[lost]); lost++)
			one_is_lost(&worlds[i], lost);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_stand_in_for_lost_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
