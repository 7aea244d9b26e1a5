/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects by the hooks of a load, by 1, 2 and 4 ranks, which are threads: the bytes that they were
 * saved as and what these say, and what becomes of a file that changes before they are read.
 */
#include "tests/unit/t.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/t/comm.h"
#include "tests/unit/t/format/dcp.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/load.h"
#include "tests/unit/t/parse/zip.h"
#include "tools/load/comm/comm.h"

enum { MOST = 4, BLOB = 200001, BEFORE = 17 };

/* One job. */
struct job {
	struct t_dir d;
	struct dcp_buf data; /* of the data file: BEFORE bytes, "value", "blob" */
	size_t nvalue;
	void (*act)(const struct job *j); /* by rank 0, once all have planned */
	int refuse;                       /* what bytes() returns on the last rank */
	bool no_values;                   /* only the hook for bytes is there */
	struct dcpload_error err[MOST];
	bool again[MOST];
	uint64_t read[MOST];
};

/* What one rank was given, the last time. */
struct given {
	const struct job *j;
	uint32_t rank, ranks;
	struct dcp_buf value, blob;
	unsigned none, values, calls;
	bool wrong;
};

static int on_state(void *ctx)
{
	struct given *g = ctx;

	dcp_buf_reset(&g->value);
	dcp_buf_reset(&g->blob);
	g->none = g->values = g->calls = 0;
	return 0;
}

static int on_bytes(void *ctx, const char *key, const void *bytes, uint64_t n, uint64_t at,
		    uint64_t total)
{
	struct given *g = ctx;
	struct dcp_buf *to = strcmp(key, "value") == 0 ? &g->value : &g->blob;

	g->calls++;
	if (!bytes) {
		g->none++;
		g->wrong |= n || at || total;
		return 0;
	}
	g->wrong |= to->n != at || n > total - at || n > 65536;
	dcp_buf_add(to, bytes, n);
	return g->rank + 1 == g->ranks ? g->j->refuse : 0;
}

static int on_object(void *ctx, const char *key, const char *type, const char *json, uint64_t n)
{
	struct given *g = ctx;

	g->values++;
	if (strcmp(key, "value") == 0)
		g->wrong |= !json || n != 2 || strcmp(json, "17") != 0 ||
			    strcmp(type, "int") != 0 ||
			    g->value.n == 0; /* the bytes come first */
	else
		g->wrong |= json != NULL;
	return 0;
}

static void save(struct dcp_buf *out, int64_t v)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };

	t_pk_start(&b);
	t_pk_int(&b, v);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/version", "3\n", 2);
	t_zip_end(&z);
	dcp_buf_add(out, z.b.p, z.b.n);
	t_zip_free(&z);
}

/* "value" is 17, "blob" nothing that can be decoded, "gone" past the end of the file. */
static void put(struct job *j)
{
	static const char *const keys[] = { "value", "blob", "gone" };
	dcp_auto_buf struct dcp_buf meta = DCP_BUF_INIT;
	int64_t end;

	dcp_buf_add(&j->data, "0123456789abcdefg", BEFORE);
	save(&j->data, 17);
	j->nvalue = j->data.n - BEFORE;
	for (uint32_t i = 0; i < BLOB; i++)
		dcp_buf_add(&j->data, &(uint8_t){ (uint8_t)(i * 2654435761u >> 24) }, 1);
	end = (int64_t)j->data.n;
	t_dir_put(&j->d, "__0_0.distcp", j->data.p, j->data.n);
	t_dcp_begin(&meta);
	t_dcp_section(&meta, "state_dict_metadata");
	for (size_t i = 0; i < DCP_LEN(keys); i++)
		t_dcp_bytes(&meta, keys[i]);
	t_dcp_end_section(&meta);
	t_dcp_section(&meta, "storage_data");
	t_dcp_stored(&meta, "value", 0, NULL, "__0_0.distcp", BEFORE, (int64_t)j->nvalue);
	t_dcp_stored(&meta, "blob", 0, NULL, "__0_0.distcp", end - BLOB, BLOB);
	t_dcp_stored(&meta, "gone", 0, NULL, "__0_0.distcp", end - 5, 6);
	t_dcp_end_section(&meta);
	t_dcp_end(&meta);
	t_dir_put(&j->d, ".metadata", meta.p, meta.n);
}

static int meet(const struct dcpload_comm *comm)
{
	char one = 1, all[MOST];

	return comm->allgather(comm->ctx, &one, 1, all, 10000);
}

static int run_rank(const struct dcpload_comm *comm, void *arg)
{
	struct job *j = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .cache = "",
					       .threads = 1 };
	struct given g = { .j = j, .rank = comm->rank, .ranks = comm->ranks };
	const struct dcpload_hooks hooks = { .size = sizeof(hooks),
					     .ctx = &g,
					     .get_state = on_state,
					     .object = j->no_values ? NULL : on_object,
					     .bytes = on_bytes };
	struct dcpload_report report = { .size = sizeof(report) };
	struct dcpload_error *err = &j->err[comm->rank];
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	int bad = 0, rc = dcpload_open(comm, j->d.root, &config, &ck, err);

	if (rc == 0)
		rc = dcpload_plan_create(ck, 0, &plan, err);
	if (rc == 0)
		rc = dcpload_plan_hooks(plan, &hooks);
	if (rc == 0)
		rc = dcpload_plan_finish(plan, err);
	if (rc == 0 && j->act) {
		rc = meet(comm);
		if (rc == 0 && comm->rank == 0)
			j->act(j);
		rc = rc < 0 ? rc : meet(comm);
	}
	if (rc == 0)
		rc = dcpload_execute(plan, err);
	if (rc == 0) {
		dcpload_plan_report(plan, &report);
		j->again[comm->rank] = report.again != NULL;
		j->read[comm->rank] = report.read;
		bad = expect(!g.wrong) + expect(g.none == 1) +
			      expect(g.values == (j->no_values ? 0 : 3)) +
			      expect(g.calls == 6) +
			      expect(g.value.n == j->nvalue && g.blob.n == BLOB) ||
		      expect(!memcmp(g.value.p, j->data.p + BEFORE, j->nvalue)) +
			      expect(!memcmp(g.blob.p, j->data.p + j->data.n - BLOB, BLOB));
	}
	dcp_buf_finish(&g.value);
	dcp_buf_finish(&g.blob);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return bad + expect(rc == err->code);
}

static void run(struct job *j, uint32_t ranks, int code, const char *says)
{
	memset(j->err, 0, sizeof(j->err));
	assert_int_equal(t_comm_run(ranks, run_rank, j), 0);
	for (uint32_t r = 0; r < ranks; r++) {
		if (j->err[r].code != code || (code && !strstr(j->err[r].text, says)))
			fail_msg("rank %u of %u: %d: \"%s\", not %d", r, ranks, j->err[r].code,
				 j->err[r].text, code);
		assert_string_equal(j->err[r].text, j->err[0].text);
	}
}

static void begin(struct job *j)
{
	*j = (struct job){ 0 };
	t_dir_make(&j->d, "objects");
	put(j);
}

static void end(struct job *j)
{
	dcp_buf_finish(&j->data);
	t_dir_remove(&j->d);
}

static void touch(const struct job *j)
{
	t_dir_touch(&j->d, "__0_0.distcp", 1700000000000000000);
}

static void cut(const struct job *j)
{
	assert_int_equal(truncate(t_dir_path(&j->d, "__0_0.distcp"), (off_t)j->data.n - 1), 0);
}

static void objects_reach_the_hooks(void **state)
{
	struct job j;

	(void)state;
	begin(&j);
	for (uint32_t ranks = 1; ranks <= MOST; ranks *= 2) {
		j.no_values = ranks == 2;
		run(&j, ranks, 0, "");
		for (uint32_t r = 0; r < ranks; r++) {
			assert_false(j.again[r]);
			assert_int_equal(j.read[r], j.nvalue + BLOB);
		}
	}
	end(&j);
}

/*
 * The caller of one rank refuses them; the file is touched, or ends early: all ranks hear the same.
 */
static void faults_of_objects_are_reported(void **state)
{
	struct job j;

	(void)state;
	begin(&j);
	for (uint32_t ranks = 1; ranks <= MOST; ranks *= 2) {
		j.refuse = -EDOM;
		run(&j, ranks, -EDOM, "value: the caller's bytes() failed");
		assert_int_equal(j.err[0].rank, ranks > 1 ? (int)ranks - 1 : -1);
		j.refuse = 0;
		j.act = touch;
		t_dir_put(&j.d, "__0_0.distcp", j.data.p, j.data.n);
		run(&j, ranks, 0, "");
		assert_true(j.again[ranks - 1]);
		j.act = cut;
		run(&j, ranks, -EIO, "value");
		j.act = NULL;
		t_dir_put(&j.d, "__0_0.distcp", j.data.p, j.data.n);
	}
	end(&j);
}

static void objects_are_read_directly(void **state)
{
	static char room[BLOB];
	const struct dcpload_config config = { .size = sizeof(config), .cache = "" };
	struct job j;
	struct t_load f = { 0 };
	struct dcpload *ck;
	uint64_t n;

	(void)state;
	begin(&j);
	ok(&f, dcpload_open(NULL, j.d.root, &config, &ck, &f.err));
	ok(&f, dcpload_object_size(ck, "blob", &n, &f.err));
	assert_int_equal(n, BLOB);
	ok(&f, dcpload_object_read(ck, "blob", 1000, room, BLOB - 1000, &f.err));
	assert_memory_equal(room, j.data.p + j.data.n - BLOB + 1000, BLOB - 1000);
	ok(&f, dcpload_object_read(ck, "blob", BLOB, NULL, 0, &f.err));
	fails(&f, dcpload_object_read(ck, "blob", BLOB - 3, room, 4, &f.err), -EINVAL,
	      "blob: the object has 200001 bytes");
	fails(&f, dcpload_object_read(ck, "blob", 1, room, UINT64_MAX, &f.err), -EINVAL,
	      "blob");
	fails(&f, dcpload_object_size(ck, "gone", &n, &f.err), -EBADMSG,
	      "ends past the end of the file");
	fails(&f, dcpload_object_size(ck, "valu", &n, &f.err), -ENOENT, "Nearest: \"value\"");
	touch(&j);
	fails(&f, dcpload_object_read(ck, "blob", 0, room, BLOB, &f.err), -ESTALE, "blob");
	dcpload_close(ck);
	ok(&f, dcpload_open(NULL, "tests/golden/torch-save/ckpt/zip.pt", &config, &ck, &f.err));
	n = 0;
	for (const char *key; dcpload_next_object(ck, &n, &key, &f.err) > 0;) {
		char own[256];
		uint64_t unused;

		snprintf(own, sizeof(own), "%s", key);
		fails(&f, dcpload_object_size(ck, own, &unused, &f.err), -ENOTSUP,
		      "as a part of something");
	}
	assert_true(n > 0);
	dcpload_close(ck);
	end(&j);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(objects_reach_the_hooks),
		cmocka_unit_test(faults_of_objects_are_reported),
		cmocka_unit_test(objects_are_read_directly),
	};
	return cmocka_run_group_tests_name("objects", tests, NULL, NULL);
}
