/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of torch_checkpointing that are wrong: each with its message, and the rest
 * readable.
 *
 * covers: join
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "tests/unit/t/format/items.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/model/shard.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"

static const int64_t shape[] = { 5, 2 }, mesh[] = { 2 }, first[] = { 3, 2 },
		     second[] = { 2, 2 };
static const int64_t third[] = { 1, 2 }, column[] = { 5 };
static const char *const by_rows[] = { "S0" };

static void put_w(const struct t_dir *tree, const struct t_titem *t)
{
	const struct t_titem tensors[] = { *t, t_titem_b };
	const struct t_titem_meta m = { "model", false, 2, tensors, 2, t_titem_default, 2 };

	t_titem_put_meta(tree, &m);
}

/* Rank 1's file with another "w". */
static void put_rank1(const struct t_dir *tree, const char *key, const int64_t *local)
{
	const struct t_titem_local rank1[] = { { key, t_titem_numbers + 6, local, 2 },
					       { "b", t_titem_numbers, column, 1 } };

	t_titem_put_torch(tree, "model_1.pt", rank1, 2);
}

static void no_file(const struct t_dir *tree)
{
	t_dir_delete(tree, "model_1.pt");
}

static void cut_file(const struct t_dir *tree)
{
	t_dir_put(tree, "model_1.pt", "PK\3\4", 4);
}

static void no_key(const struct t_dir *tree)
{
	put_rank1(tree, "v", second);
}

static void other_shape(const struct t_dir *tree)
{
	put_rank1(tree, "w", third);
}

static void other_dtype(const struct t_dir *tree)
{
	struct t_titem t = t_titem_w;

	t.dtype = "torch.int32";
	put_w(tree, &t);
}

static void other_type(const struct t_dir *tree)
{
	struct t_titem t = t_titem_w;

	t.type = "MyShardingMetadata";
	put_w(tree, &t);
}

static void other_placement(const struct t_dir *tree)
{
	static const char *const partial[] = { "Partial" };
	struct t_titem t = t_titem_w;

	t.placed = partial;
	put_w(tree, &t);
}

static void no_dimension(const struct t_dir *tree)
{
	static const char *const third_dim[] = { "S2" };
	struct t_titem t = t_titem_w;

	t.placed = third_dim;
	put_w(tree, &t);
}

static void other_mesh(const struct t_dir *tree)
{
	struct t_titem t = t_titem_w;

	t.nranks = 3;
	put_w(tree, &t);
}

static void rank_twice(const struct t_dir *tree)
{
	static const int64_t twice[] = { 1, 1 };
	struct t_titem t = t_titem_w;

	t.ranks = twice;
	put_w(tree, &t);
}

static void no_path(const struct t_dir *tree)
{
	struct t_titem t = t_titem_w;

	t.path = "{\"w\":1}";
	put_w(tree, &t);
}

static void two_paths(const struct t_dir *tree)
{
	const struct t_titem_local rank0[] = { { "w", t_titem_numbers, first, 2 },
					       { "b.c", t_titem_numbers, column, 1 } };
	struct t_titem tensors[] = { t_titem_w, t_titem_b, t_titem_b };
	const struct t_titem_meta m = { "model", false, 2, tensors, 3, t_titem_default, 2 };

	tensors[1].path = "[\"b.c\"]";
	tensors[2].path = "[\"b\",\"c\"]";
	t_titem_put_torch(tree, "model_0.pt", rank0, 2);
	t_titem_put_meta(tree, &m);
}

static void outside(const struct t_dir *tree)
{
	static const struct t_titem_file out[] = {
		{ 0, NULL, NULL }, { 1, "../model_1.pt", "TorchSerialization" }
	};
	const struct t_titem tensors[] = { t_titem_w, t_titem_b };
	const struct t_titem_meta m = { "model", false, 2, tensors, 2, out, 2 };

	t_titem_put_meta(tree, &m);
}

static void other_coding(const struct t_dir *tree)
{
	static const struct t_titem_file avro[] = { { 0, NULL, NULL },
						    { 1, "model_1.pt", "AvroSerialization" } };
	const struct t_titem tensors[] = { t_titem_w, t_titem_b };
	const struct t_titem_meta m = { "model", true, 2, tensors, 2, avro, 2 };

	t_titem_put_meta(tree, &m);
}

static void box_beyond(const struct t_dir *tree)
{
	static const int64_t boxes[] = { 4, 0, 0, 0, 3, 2 };
	struct t_titem t = t_titem_w;

	t.type = "default_tensor_v1";
	t.boxes = boxes;
	t.nboxes = 1;
	put_w(tree, &t);
}

static void box_not_local(const struct t_dir *tree)
{
	static const int64_t boxes[] = { 0, 0, 1, 0, 3, 2 };
	struct t_titem t = t_titem_w;

	t.type = "default_tensor_v1";
	t.boxes = boxes;
	t.nboxes = 1;
	put_w(tree, &t);
}

/* A DTensor whose own placement is another than the metadata's. */
static void other_dtensor(const struct t_dir *tree)
{
	static const int64_t at[] = { 0 };
	const struct t_dtensor d = { .storage = "0",
				     .shape = shape,
				     .local = first,
				     .ndim = 2,
				     .nlocal = 2,
				     .mesh = mesh,
				     .at = at,
				     .placed = by_rows,
				     .nmesh = 1 };
	dcp_auto_buf struct dcp_buf p = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };

	t_pk_start(&p);
	t_pk_dict(&p);
	t_pk_mark(&p);
	t_pk_str(&p, "w");
	t_pk_dtensor(&p, &d);
	t_pk_setitems(&p);
	t_pk_stop(&p);
	t_zip_add(&z, "archive/data.pkl", p.p, p.n);
	t_zip_add(&z, "archive/data/0", t_titem_numbers, 24);
	t_zip_end(&z);
	t_dir_put(tree, "model_1.pt", z.b.p, z.b.n);
	t_zip_free(&z);
}

static void faults_are_reported(void **state)
{
	/* clang-format off */
	static const struct {
		const char *what;
		void (*make)(const struct t_dir *tree);
		const char *key, *says; /* the other tensor is sound */
		const char *other, *other_says;
	} rows[] = {
		{ "a rank's file is missing", no_file, "model.w", "4 of 10 elements are missing: model_1.pt, the file of rank 1, cannot be read", "rank1.model", "model_1.pt" },
		{ "it is cut", cut_file, "model.w", "model_1.pt, the file of rank 1, cannot be read", "rank1.model", "model_1.pt: " },
		{ "it lacks a tensor", no_key, "model.w", "model_1.pt of rank 1 has no such tensor, though metadata.pkl says so", NULL, NULL },
		{ "a tensor of another shape", other_shape, "model.w", "rank 1, model_1.pt: found a tensor of [1, 2], expected [2, 2] by metadata.pkl", NULL, NULL },
		{ "of another dtype", other_dtype, "model.w", "rank 0, model_0.pt: found elements of F32, expected I32 by metadata.pkl", NULL, NULL },
		{ "unknown sharding", other_type, "model.w", "its sharding is described by MyShardingMetadata", NULL, NULL },
		{ "a sum not yet taken", other_placement, "model.w", "it is placed by Partial", NULL, NULL },
		{ "a dimension it does not have", no_dimension, "model.w", "Shard(2) of a tensor of 2 dimensions", NULL, NULL },
		{ "a mesh of another size", other_mesh, "model.w", "its mesh has another number of ranks", NULL, NULL },
		{ "a rank that stands twice", rank_twice, "model.w", "holds one of them twice", NULL, NULL },
		{ "a path that is none", no_path, "model.{\"w\":1}", "a path that is not a list of names and numbers", NULL, NULL },
		{ "two paths of one key", two_paths, "model.b.c", "two paths that are this key", NULL, NULL },
		{ "a file outside", outside, "model.w", "../model_1.pt, the file of rank 1, cannot be read", "rank1.model", "../model_1.pt" },
		{ "a file that cannot be read", other_coding, "model.w", "model_1.pt, the file of rank 1, cannot be read", "rank1.model", "in a way other than" },
		{ "a box beyond the tensor", box_beyond, "model.w", "its shard 0 ends beyond dimension 0 of the whole tensor, which has 5", NULL, NULL },
		{ "a box beyond the local one", box_not_local, "model.w", "rank 0, model_0.pt: found a tensor of [3, 2], expected one that holds shard 0", NULL, NULL },
		{ "a DTensor placed elsewhere", other_dtensor, "model.w", "rank 1, model_1.pt: found a DTensor that holds [0:3,0:2], expected [3:5,0:2] by metadata.pkl", NULL, NULL },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct t_dir tree;
		struct t_titem_loaded got;

		t_case(rows[i].what);
		t_dir_make(&tree, "torch_items");
		t_titem_put_sound(&tree);
		rows[i].make(&tree);
		t_titem_load(&got, &tree);
		if (got.rc < 0)
			fail_msg("%s", got.err.msg);
		t_titem_broken(&got, rows[i].key, rows[i].says);
		if (rows[i].make != two_paths)
			t_titem_sound(&got, "model.b");
		if (rows[i].other)
			t_titem_broken(&got, rows[i].other, rows[i].other_says);
		t_titem_unload(&got);
		t_dir_remove(&tree);
	}
}

/* Nothing of a metadata.pkl is needed for what the files say themselves. */
#define BYTES(literal) literal, sizeof(literal) - 1

static void bad_metadata_is_refused(void **state)
{
	static const struct {
		const char *what, *bytes;
		size_t n;
		const char *says;
	} rows[] = {
		{ "no pickle", BYTES("metadata"), "metadata.pkl: " },
		{ "a pickle of something else", BYTES("\x80\2]."),
		  "expected torch_checkpointing's dict" },
		{ "one that would run something", BYTES("\x80\2cos\nsystem\nX\2\0\0\0id\x85R."),
		  "the pickle holds os.system" },
		{ "cut short", BYTES("\x80\2}q"), "metadata.pkl: " },
		{ "without ranks",
		  BYTES("\x80\2}(X\x8\0\0\0metadata}X\xa\0\0\0world_sizeK\0u."),
		  "world_size is not a number from 1" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct t_dir tree;
		struct t_titem_loaded got;

		t_case(rows[i].what);
		t_dir_make(&tree, "torch_items");
		t_titem_put_sound(&tree);
		t_dir_put(&tree, "metadata.pkl", rows[i].bytes, rows[i].n);
		t_titem_load(&got, &tree);
		assert_int_equal(got.rc, 0);
		t_titem_broken(&got, "metadata.pkl", rows[i].says);
		t_titem_sound(&got, "rank0.model.w");
		t_titem_sound(&got, "rank1.model.b");
		t_titem_unload(&got);
		t_dir_remove(&tree);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(faults_are_reported),
		cmocka_unit_test(bad_metadata_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
