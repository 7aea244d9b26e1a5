/* SPDX-License-Identifier: Apache-2.0 */
/* relay: pieces are moved to where their file really lies, keys get their prefix. */
#include "tests/unit/t.h"

#include <errno.h>

#include "core/format/nest/relay.h"
#include "tests/unit/t/sink.h"

static int place(void *ctx, const char *name, struct dcp_place *out)
{
	if (strcmp(name, "gone") == 0)
		return -ENOENT;
	snprintf(out->name, sizeof(out->name), "%s", "all.tar");
	out->base = strcmp(name, "a") == 0 ? 512 : 4096;
	out->unpacked = *(bool *)ctx;
	return 0;
}

/* A sum of what lies at @off of @file and at 9 of @other. */
static int tell(const struct dcp_sink *s, const char *key, uint32_t file, uint64_t off,
		uint32_t other)
{
	const uint64_t lo = 0, n = 4;
	const struct dcp_term more = { .off = 9, .file = other };
	struct dcp_piece p = { .lo = &lo,
			       .len = &n,
			       .run_n = n,
			       .off = off,
			       .nbytes = n,
			       .file = file,
			       .filter = DCP_FILTER_SUM,
			       .more = &more,
			       .nmore = 1 };
	struct dcp_tensor t = { .key = key,
				.path = &key,
				.npath = 1,
				.dtype = DCP_DTYPE_U8,
				.dtype_name = "U8",
				.itemsize = 1,
				.ndim = 1,
				.shape = &n,
				.pieces = &p,
				.npieces = 1 };

	return s->tensor(s->ctx, &t);
}

static int tell_object(const struct dcp_sink *s, const char *key, uint32_t file, uint64_t off)
{
	const struct dcp_stretch stored = { .file = file, .off = off, .nbytes = 4, .n = 4 };
	struct dcp_object o = { .key = key,
				.path = &key,
				.npath = 1,
				.type = "int",
				.json = "5",
				.json_len = 1,
				.stored = &stored };

	return s->object(s->ctx, &o);
}

static void pieces_are_moved(void **state)
{
	bool unpacked = false;
	struct t_sink outer;
	struct dcp_relay r = {
		.to = &outer.sink, .place = place, .prefix = "optim", .ctx = &unpacked
	};
	struct dcp_sink s = dcp_relay_sink(&r);
	uint32_t a, b, again, number;

	(void)state;
	t_sink_init(&outer, NULL);
	assert_int_equal(s.file(s.ctx, "a", &a), 0);
	assert_int_equal(s.file(s.ctx, "b", &b), 0);
	assert_int_equal(s.file(s.ctx, "a", &again), 0);
	assert_int_equal(a, again);
	assert_int_not_equal(a, b);
	assert_int_equal(s.file(s.ctx, "gone", &number), -ENOENT);
	assert_int_equal(tell(&s, "x", a, 8, b), 0);
	assert_int_equal(tell(&s, "clash", b, 0, a), 0);
	assert_int_equal(tell(&s, "far", b, UINT64_MAX, a), 0);
	assert_int_equal(tell(&s, "x", 7, 8, a), -EINVAL);
	assert_int_equal(tell(&s, "x", a, 8, 7), -EINVAL);
	assert_int_equal(tell_object(&s, "o", b, 8), 0);
	assert_int_equal(t_sink_object(&outer, "optim.o")->stored->off, 4104);
	assert_int_equal(t_sink_object(&outer, "optim.o")->stored->file, 0);
	assert_int_equal(tell_object(&s, "none", b, UINT64_MAX), 0);
	assert_null(t_sink_object(&outer, "optim.none")->stored);
	assert_int_equal(tell_object(&s, "o", 7, 8), -EINVAL);
	assert_int_equal(outer.nfiles, 1);
	assert_int_equal(t_sink_tensor(&outer, "optim.x")->pieces[0].off, 520);
	assert_int_equal(t_sink_tensor(&outer, "optim.clash")->pieces[0].off, 4096);
	assert_int_equal(t_sink_tensor(&outer, "optim.x")->pieces[0].more[0].off, 4105);
	assert_int_equal(t_sink_tensor(&outer, "optim.clash")->pieces[0].more[0].off, 521);
	assert_int_equal(t_sink_tensor(&outer, "optim.x")->pieces[0].more[0].file, 0);
	assert_int_equal(t_sink_tensor(&outer, "optim.clash")->npath, 2);
	assert_string_equal(t_sink_tensor(&outer, "optim.clash")->path[0], "optim");
	assert_non_null(t_sink_tensor(&outer, "optim.far")->error);
	dcp_relay_finish(&r);
	t_sink_finish(&outer);
}

/* Keys inside objects, and of tensors that are the same as others. */
static void references_are_moved(void **state)
{
	/* clang-format off */
	static const struct {
		const char *json, *want;
	} rows[] = {
		{ "{\"$tensor\":\"w\"}", "{\"$tensor\":\"a \\\"part\\\".w\"}" },
		{ "{\"$tensor\":\"\"}", "{\"$tensor\":\"a \\\"part\\\"\"}" },
		{ "[{\"$tensor\":\"w.\\\"q\\\\\"},{\"$tensor\":\"v\"},1]",
		  "[{\"$tensor\":\"a \\\"part\\\".w.\\\"q\\\\\"},{\"$tensor\":\"a \\\"part\\\".v\"},1]" },
		{ "\"{\\\"$tensor\\\":\\\"w\\\"}\"", "\"{\\\"$tensor\\\":\\\"w\\\"}\"" },
		{ "{\"$tensor\":\"cut", "{\"$tensor\":\"cut" },
		{ "{\"$tensor\":", "{\"$tensor\":" },
		{ "5", "5" },
	};
	/* clang-format on */
	const char *path[] = { "own" };
	struct t_sink outer;
	struct dcp_relay r = { .to = &outer.sink, .place = place, .prefix = "a \"part\"" };
	struct dcp_sink s = dcp_relay_sink(&r);
	struct dcp_tensor t = { .key = "own",
				.path = path,
				.npath = 1,
				.dtype_name = "U8",
				.dtype = DCP_DTYPE_U8,
				.itemsize = 1,
				.ndim = 1,
				.shape = (const uint64_t[]){ 0 },
				.alias_of = "w" };

	(void)state;
	t_sink_init(&outer, NULL);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_object o = { .key = "own",
					.path = path,
					.npath = 1,
					.type = "x",
					.json = rows[i].json,
					.json_len = strlen(rows[i].json) };

		t_case(rows[i].json);
		assert_int_equal(s.object(s.ctx, &o), 0);
		assert_string_equal(t_sink_object(&outer, "a \"part\".own")->json,
				    rows[i].want);
	}
	assert_int_equal(s.tensor(s.ctx, &t), 0);
	assert_string_equal(t_sink_tensor(&outer, "a \"part\".own")->alias_of, "a \"part\".w");
	dcp_relay_finish(&r);
	t_sink_finish(&outer);
}

/* A compressed file of a part is one of the whole; inside something moved it is not. */
static void unpacked_files_move(void **state)
{
	bool unpacked = false;
	char name[sizeof(((struct dcp_place *)0)->name)] = "";
	struct t_sink outer;
	struct dcp_relay r = { .to = &outer.sink, .below = "below/" };
	struct dcp_sink s = dcp_relay_sink(&r);
	uint32_t number;

	(void)state;
	t_sink_init(&outer, NULL);
	assert_int_equal(s.unpacked(s.ctx, "a.gz", &number), 0);
	assert_string_equal(t_sink_fact(&outer, "unpacked"), "below/a.gz");
	memset(name, 'n', sizeof(name) - 1);
	assert_int_equal(s.file(s.ctx, name, &number), -ENAMETOOLONG);
	dcp_relay_finish(&r);
	r = (struct dcp_relay){ .to = &outer.sink, .place = place, .ctx = &unpacked };
	assert_int_equal(s.unpacked(s.ctx, "a", &number), -ENOTSUP);
	dcp_relay_finish(&r);
	t_sink_finish(&outer);
}

static void objects_facts_and_sidecars_pass(void **state)
{
	const char *path[] = { "clash" };
	struct dcp_object o = { .key = "clash",
				.path = path,
				.npath = 1,
				.type = "int",
				.json = "1",
				.json_len = 1 };
	bool unpacked = true;
	struct t_sink outer;
	struct dcp_relay r = {
		.to = &outer.sink, .place = place, .prefix = "optim", .ctx = &unpacked
	};
	struct dcp_sink s = dcp_relay_sink(&r);
	uint32_t number;

	(void)state;
	t_sink_init(&outer, NULL);
	assert_int_equal(s.object(s.ctx, &o), 0);
	assert_string_equal(t_sink_object(&outer, "optim.clash")->json, "1");
	assert_int_equal(s.meta(s.ctx, "framework", "x"), 0);
	assert_string_equal(t_sink_fact(&outer, "framework"), "x");
	assert_int_equal(s.file(s.ctx, "a", &number), 0);
	assert_string_equal(t_sink_fact(&outer, "unpacked"), "all.tar");
	assert_int_equal(s.sidecar(s.ctx, "a"), 0); /* no file of its own: not shown */
	assert_null(t_sink_fact(&outer, "sidecar"));
	dcp_relay_finish(&r);
	t_sink_finish(&outer);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_are_moved),
		cmocka_unit_test(references_are_moved),
		cmocka_unit_test(unpacked_files_move),
		cmocka_unit_test(objects_facts_and_sidecars_pass),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
