/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of tensors inside torch.save streams: what they are, what is told of them, and what
 * is wrong with bad ones.
 *
 * covers: shard, format/torch/state
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/format/torch/torch.h"
#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/model/shard.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

#define DIMS(...)                                                                              \
	(const int64_t[])                                                                      \
	{                                                                                      \
		__VA_ARGS__                                                                    \
	}
#define PLACED(...)                                                                            \
	(const char *const[])                                                                  \
	{                                                                                      \
		__VA_ARGS__                                                                    \
	}

static const char zeros[4096];

/* torch.save({"w": value}), with storages 0, 1, 2 of as many floats as told, and "mesh". */
static void finish_stream(struct t_zip *z, struct dcp_buf *b, const int64_t *floats, size_t n)
{
	t_pk_setitems(b);
	t_pk_stop(b);
	*z = (struct t_zip){ .torch = true };
	t_zip_add(z, "archive/data.pkl", b->p, b->n);
	t_zip_add(z, "archive/byteorder", "little", 6);
	for (size_t i = 0; i < n; i++) {
		char name[32];

		snprintf(name, sizeof(name), "archive/data/%zu", i);
		t_zip_add(z, name, zeros, 4 * (size_t)floats[i]);
	}
	t_zip_add(z, "archive/version", "3\n", 2);
	t_zip_end(z);
}

static void begin_stream(struct dcp_buf *b)
{
	t_pk_start(b);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "w");
}

static int read_w(struct t_zip *z, struct dcp_arena *arena, struct dcp_shard *sh,
		  struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(z->b.p, z->b.n);
	struct dcp_torch *t;
	const struct dcp_pv *w;
	int rc;

	if (dcp_torch_open(&src, 0, &t, err) < 0)
		fail_msg("%s", err->msg);
	w = dcp_pv_get(dcp_torch_root(t), "w");
	assert_non_null(w);
	rc = dcp_shard_read(t, *w, 3, 1000, arena, sh, err);
	assert_int_equal(rc != 0, dcp_shard_is(*w));
	dcp_torch_close(t);
	return rc;
}

static int64_t volume(const struct t_dtensor *d)
{
	int64_t v = 1;

	for (size_t k = 0; k < d->nlocal; k++)
		v *= d->local[k];
	return v;
}

static int read_dtensor(const struct t_dtensor *d, struct dcp_arena *arena,
			struct dcp_shard *sh, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	int64_t floats = volume(d);
	struct t_zip z;
	int rc;

	begin_stream(&b);
	t_pk_dtensor(&b, d);
	finish_stream(&z, &b, &floats, 1);
	rc = read_w(&z, arena, sh, err);
	t_zip_free(&z);
	return rc;
}

/* clang-format off */
static const struct {
	const char *what;
	struct t_dtensor d;
	const char *regions; /* of the pieces */
} good[] = {
	{ "a row shard", { .storage = "0", .shape = DIMS(7, 10), .ndim = 2, .local = DIMS(2, 10), .nlocal = 2,
	  .mesh = DIMS(4), .at = DIMS(1), .placed = PLACED("S0"), .nmesh = 1 }, "2:4,0:10" },
	{ "the last, shorter one", { .storage = "0", .shape = DIMS(7, 10), .ndim = 2, .local = DIMS(1, 10), .nlocal = 2,
	  .mesh = DIMS(4), .at = DIMS(3), .placed = PLACED("S0"), .nmesh = 1 }, "6:7,0:10" },
	{ "an empty one", { .storage = "0", .shape = DIMS(3, 2), .ndim = 2, .local = DIMS(0, 2), .nlocal = 2,
	  .mesh = DIMS(4), .at = DIMS(3), .placed = PLACED("S0"), .nmesh = 1 }, "" },
	{ "an empty one without shape", { .storage = "0", .shape = DIMS(3, 2), .ndim = 2, .local = DIMS(0), .nlocal = 1,
	  .mesh = DIMS(4), .at = DIMS(3), .placed = PLACED("S0"), .nmesh = 1 }, "" },
	{ "replicated", { .storage = "0", .shape = DIMS(3, 2), .ndim = 2, .local = DIMS(3, 2), .nlocal = 2,
	  .mesh = DIMS(4), .at = DIMS(2), .placed = PLACED("R"), .nmesh = 1 }, "0:3,0:2" },
	{ "one rank", { .storage = "0", .shape = DIMS(3, 2), .ndim = 2, .local = DIMS(3, 2), .nlocal = 2,
	  .mesh = DIMS(1), .at = DIMS(0), .placed = PLACED("S0"), .nmesh = 1 }, "0:3,0:2" },
	{ "a mesh with an axis of one rank", { .storage = "0", .shape = DIMS(7, 10), .ndim = 2, .local = DIMS(3, 10), .nlocal = 2,
	  .mesh = DIMS(1, 2), .at = DIMS(0, 1), .placed = PLACED("S1", "S0"), .nmesh = 2 }, "4:7,0:10" },
	{ "a number", { .storage = "0", .shape = DIMS(1), .ndim = 0, .local = DIMS(1), .nlocal = 0,
	  .mesh = DIMS(4), .at = DIMS(2), .placed = PLACED("R"), .nmesh = 1 }, "" },
	{ "replicate x shard, of torch 2.4", { .storage = "0", .shape = DIMS(4, 6), .ndim = 2, .local = DIMS(4, 2), .nlocal = 2,
	  .mesh = DIMS(2, 3), .at = DIMS(0, 2), .placed = PLACED("R", "S1"), .nmesh = 2 }, "0:4,4:6" },
	{ "dimensions counted from behind", { .storage = "0", .shape = DIMS(4, 6), .ndim = 2, .local = DIMS(4, 2), .nlocal = 2,
	  .mesh = DIMS(3), .at = DIMS(0), .placed = PLACED("S-1"), .nmesh = 1 }, "0:4,0:2" },
	{ "FSDP2 over tensor parallel", { .storage = "0", .shape = DIMS(8, 2), .ndim = 2, .local = DIMS(2, 2), .nlocal = 2,
	  .mesh = DIMS(2, 2), .at = DIMS(1, 0), .placed = PLACED("T0/2", "S0"), .nmesh = 2 }, "2:4,0:2" },
	{ "the same said by the order", { .storage = "0", .shape = DIMS(8, 2), .ndim = 2, .local = DIMS(2, 2), .nlocal = 2,
	  .mesh = DIMS(2, 2), .at = DIMS(1, 0), .placed = PLACED("S0", "S0"), .nmesh = 2, .order = "10" }, "2:4,0:2" },
	{ "in the usual order", { .storage = "0", .shape = DIMS(8, 2), .ndim = 2, .local = DIMS(2, 2), .nlocal = 2,
	  .mesh = DIMS(2, 2), .at = DIMS(1, 0), .placed = PLACED("S0", "S0"), .nmesh = 2, .order = "01" }, "4:6,0:2" },
	{ "strided by itself: two boxes", { .storage = "0", .shape = DIMS(8, 2), .ndim = 2, .local = DIMS(4, 2), .nlocal = 2,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("T0/2"), .nmesh = 1 }, "2:4,0:2 6:8,0:2" },
	{ "an order that names one dimension twice is none", { .storage = "0", .shape = DIMS(8, 2), .ndim = 2, .local = DIMS(2, 2), .nlocal = 2,
	  .mesh = DIMS(2, 2), .at = DIMS(1, 0), .placed = PLACED("S0", "S0"), .nmesh = 2, .order = "00" }, "4:6,0:2" },
	{ "a parameter", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("S0"), .nmesh = 1, .parameter = true }, "2:4" },
};

static const struct {
	const char *what;
	struct t_dtensor d;
	int code;
	const char *says;
} bad[] = {
	{ "a sum", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(4), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("P"), .nmesh = 1 }, -ENOTSUP, "sums that were never added up" },
	{ "placed by something else", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(4), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("X0"), .nmesh = 1 }, -ENOTSUP, "placed MaskedShard: expected Shard" },
	{ "an unknown rank", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("S0"), .nmesh = 1, .no_place = true }, -EBADMSG, "does not say which place" },
	{ "a coordinate outside the mesh", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(2), .placed = PLACED("S0"), .nmesh = 1 }, -EBADMSG, "coordinate 2 of a mesh dimension of 2" },
	{ "a coordinate on an axis of one rank", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(1), .at = DIMS(1), .placed = PLACED("S0"), .nmesh = 1 }, -EBADMSG, "coordinate 1 of a mesh dimension of 1" },
	{ "a dimension it has not", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("S3"), .nmesh = 1 }, -EBADMSG, "Shard(3) of a tensor of 1" },
	{ "a local part of another size", { .storage = "0", .shape = DIMS(4, 3), .ndim = 2, .local = DIMS(3, 3), .nlocal = 2,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("S0"), .nmesh = 1 }, -EBADMSG, "2 dimensions and 3 along dimension 0; its placements expect 2 and 2" },
	{ "a local part of other dimensions", { .storage = "0", .shape = DIMS(4, 3), .ndim = 2, .local = DIMS(6), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("S0"), .nmesh = 1 }, -EBADMSG, "1 dimension and 6" },
	{ "no data", { .storage = "7", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("S0"), .nmesh = 1 }, -EBADMSG, "storage \"7\" is missing" },
	{ "split into nothing", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("T0/0"), .nmesh = 1 }, -EBADMSG, "split_factor 0" },
	{ "split into too much", { .storage = "0", .shape = DIMS(4), .ndim = 1, .local = DIMS(2), .nlocal = 1,
	  .mesh = DIMS(2), .at = DIMS(1), .placed = PLACED("T0/100000"), .nmesh = 1 }, -EBADMSG, "split_factor 100000" },
};
/* clang-format on */

static void regions(char *text, size_t n, const struct dcp_tensor *t)
{
	char one[256];

	text[0] = '\0';
	for (size_t i = 0; i < t->npieces; i++)
		snprintf(text + strlen(text), n - strlen(text), "%s%s", i ? " " : "",
			 dcp_shard_region(one, sizeof(one), &t->pieces[i], t->ndim));
}

static void dtensors_are_placed(void **state)
{
	struct dcp_arena arena;
	char text[1024];

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	for (size_t i = 0; i < DCP_LEN(good); i++) {
		struct dcp_err err = { 0 };
		struct dcp_shard sh;

		t_case(good[i].what);
		if (read_dtensor(&good[i].d, &arena, &sh, &err) != 1)
			fail_msg("%s", err.msg);
		regions(text, sizeof(text), &sh.t);
		assert_string_equal(text, good[i].regions);
		assert_string_equal(sh.t.dtype_name, "F32");
		assert_int_equal(sh.t.ndim, good[i].d.ndim);
		for (size_t k = 0; k < sh.t.npieces; k++)
			assert_int_equal(sh.t.pieces[k].file, 3);
	}
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		struct dcp_err err = { 0 };
		struct dcp_shard sh;

		t_case(bad[i].what);
		assert_int_equal(read_dtensor(&bad[i].d, &arena, &sh, &err), bad[i].code);
		t_assert_says(&err, bad[i].says);
	}
	dcp_arena_finish(&arena);
}

/* Two boxes of one local part begin where they lie in it. */
static void offsets_of_shards_are_read(void **state)
{
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	struct dcp_shard sh;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(read_dtensor(&good[13].d, &arena, &sh, &err), 1);
	assert_int_equal(sh.t.npieces, 2);
	assert_int_equal(sh.t.pieces[1].off - sh.t.pieces[0].off, 2 * 2 * 4);
	assert_int_equal(sh.t.pieces[0].off % 64, 1000 % 64);
	assert_int_equal(sh.t.pieces[0].nbytes, 2 * 2 * 4);
	assert_false(sh.whole);
	dcp_arena_finish(&arena);
}

static void sharded_tensors_are_read(void **state)
{
	static const int64_t shape[] = { 6, 10 };
	static const int64_t boxes[] = { 4, 9, 2, 1, 0, 0, 4, 3 }, floats[] = { 2, 12 };
	static const int64_t wrong[] = { 4, 2 };

	(void)state;
	for (int before = 0; before < 2; before++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_err err = { 0 };
		struct dcp_arena arena;
		struct dcp_shard sh;
		struct t_zip z;
		char text[256];

		t_case(before ? "no tensor yet" : "a subclass of tensor");
		dcp_arena_init(&arena, 1 << 20);
		begin_stream(&b);
		t_pk_sharded(&b, shape, 2, 2, boxes, before);
		finish_stream(&z, &b, floats, 2);
		if (read_w(&z, &arena, &sh, &err) != 1)
			fail_msg("%s", err.msg);
		regions(text, sizeof(text), &sh.t);
		assert_string_equal(text, "4:6,9:10 0:4,0:3");
		assert_string_equal(sh.what, "ShardedTensor");
		t_zip_free(&z);
		dcp_buf_reset(&b);

		t_case("no shards at all");
		begin_stream(&b);
		t_pk_sharded(&b, shape, 2, 0, boxes, before);
		finish_stream(&z, &b, floats, 0);
		assert_int_equal(read_w(&z, &arena, &sh, &err), 1);
		assert_int_equal(sh.t.npieces, 0);
		assert_int_equal(sh.t.itemsize, 4);
		t_zip_free(&z);
		dcp_buf_reset(&b);

		t_case("a storage of another size");
		begin_stream(&b);
		t_pk_sharded(&b, shape, 2, 2, boxes, before);
		finish_stream(&z, &b, wrong, 2);
		assert_int_equal(read_w(&z, &arena, &sh, &err), -EBADMSG);
		t_assert_says(&err, "storage \"0\" has 16 bytes");
		t_zip_free(&z);
		dcp_arena_finish(&arena);
	}
}

/* What dcp_torch_state_emit() makes of a stream with parts in it. */
static void a_stream_of_shards_is_emitted(void **state)
{
	static const int64_t floats[] = { 20 };
	struct t_dtensor d = good[0].d;
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	struct dcp_source src;
	struct dcp_torch *t;
	struct t_sink s;
	struct t_zip z;

	(void)state;
	begin_stream(&b);
	t_pk_dtensor(&b, &d);
	t_pk_str(&b, "whole");
	d.local = d.shape = DIMS(2, 10);
	d.placed = PLACED("R");
	t_pk_dtensor(&b, &d);
	t_pk_str(&b, "_flat_param");
	t_pk_dtensor(&b, &good[0].d);
	t_pk_str(&b, "layer._flat_param");
	t_pk_tensor(&b, "FloatStorage", "0", 20, 0, DIMS(20), DIMS(1), 1);
	finish_stream(&z, &b, floats, 1);
	src = dcp_source_mem(z.b.p, z.b.n);
	assert_int_equal(dcp_torch_open(&src, 0, &t, &err), 0);
	t_sink_init(&s, NULL);
	assert_int_equal(
		dcp_torch_state_emit(&(struct dcp_torch_state){ .t = t, .sink = &s.sink }), 0);
	assert_string_equal(
		t_sink_tensor(&s, "w")->error,
		"a DTensor of which only [2:4,0:10] of [7, 10] is in this file: give the "
		"directory with the files of all ranks, or read the part");
	assert_int_equal(t_sink_tensor(&s, "w")->shape[0], 7);
	assert_null(t_sink_tensor(&s, "w.@2:4,0:10")->error);
	assert_int_equal(t_sink_tensor(&s, "w.@2:4,0:10")->shape[0], 2);
	assert_string_equal(t_sink_tensor(&s, "w.@2:4,0:10")->path[1], "@2:4,0:10");
	assert_null(t_sink_tensor(&s, "whole")->error);
	assert_int_equal(t_sink_tensor(&s, "whole")->npieces, 1);
	assert_non_null(strstr(t_sink_tensor(&s, "_flat_param")->error, "LOCAL_STATE_DICT"));
	assert_non_null(
		strstr(t_sink_tensor(&s, "layer._flat_param")->error, "FULL_STATE_DICT"));
	assert_int_equal(s.ntensors, 5);
	t_sink_finish(&s);

	t_case("inside something compressed there is no part to read");
	t_sink_init(&s, NULL);
	assert_int_equal(dcp_torch_state_emit(&(struct dcp_torch_state){
				 .t = t, .sink = &s.sink, .sealed = "is sealed" }),
			 0);
	assert_string_equal(t_sink_tensor(&s, "w")->error, "is sealed");
	assert_int_equal(s.ntensors, 4);
	t_sink_finish(&s);
	dcp_torch_close(t);
	t_zip_free(&z);
}

/* Memory that runs out at any point is said so. */
static void little_memory_is_reported(void **state)
{
	struct dcp_arena arena;
	int rc = -ENOMEM;

	(void)state;
	for (size_t limit = 16; rc == -ENOMEM; limit += 48) {
		struct dcp_err err = { 0 };
		struct dcp_shard sh;

		assert_true(limit < 1 << 16);
		dcp_arena_init(&arena, limit);
		rc = read_dtensor(&good[13].d, &arena, &sh, &err);
		assert_true(rc == 1 || (rc == -ENOMEM && err.msg[0]));
		dcp_arena_finish(&arena);
	}
	assert_int_equal(rc, 1);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dtensors_are_placed),
		cmocka_unit_test(offsets_of_shards_are_read),
		cmocka_unit_test(sharded_tensors_are_read),
		cmocka_unit_test(a_stream_of_shards_is_emitted),
		cmocka_unit_test(little_memory_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
