/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints in tar archives and compressed files show what they show without.
 * covers: relay
 */
#include "tests/unit/t.h"

#include <dirent.h>
#include <sys/stat.h>

#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t/model/pack.h"
#include "tests/unit/t/model/same.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/source.h"
#include "tests/unit/t/parse/tar.h"
#include "tests/unit/t/sink.h"

/* ---- the same through every container ---- */

/* Golden checkpoints of several families, and how they are put into the archive. */
static const struct {
	const char *dir, *prefix;
	size_t least; /* keys, so that nothing is compared in vain */
} trees[] = {
	{ "tests/golden/dcp-tp-fsdp/ckpt/tp", "", 30 },
	{ "tests/golden/dcp-rank-local/ckpt/step-5", "step-5/", 20 },
	{ "tests/golden/dcp-hf/ckpt/2-sharded-indexed", "a/b/c/", 5 },
	{ "tests/golden/dcp-experimental/ckpt/step-9", "./", 6 },
	{ "tests/golden/paddle-dist-32st/ckpt", "", 11 },
	{ "tests/golden/paddle-plain/ckpt/p4", "p4/", 4 },
	{ "tests/golden/deepspeed-z1/ckpt/global_step10", "", 20 },
	{ "tests/golden/deepspeed-z3/ckpt/global_step20", "deepspeed/", 20 },
	{ "tests/golden/parts/ckpt/4-verl", "", 20 },
};

/* Files of @dir, every @each-th from @first. */
static void put_tree(struct t_tar *t, const char *dir, const char *prefix, unsigned first,
		     unsigned each, unsigned *at)
{
	struct dcp_dir d;
	char path[512], name[512];
	size_t n;

	assert_int_equal(dcp_dir_open(dir, &d, NULL), 0);
	for (size_t i = 0; i < d.n; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, d.entries[i].name);
		snprintf(name, sizeof(name), "%s%s%s", prefix, d.entries[i].name,
			 d.entries[i].is_dir ? "/" : "");
		if (d.entries[i].is_dir) {
			t_tar_raw(t, '5', name, 0, "", 0);
			put_tree(t, path, name, first, each, at);
		} else if ((*at)++ % each == first) {
			char *p = t_file(path, &n);

			t_tar_add(t, name, p, n);
			free(p);
		}
	}
	dcp_dir_close(&d);
}

static void put_archive(const struct t_dir *to, const char *name, const char *dir,
			const char *prefix, unsigned first, unsigned each, enum dcp_codec codec)
{
	dcp_auto_buf struct dcp_buf packed = DCP_BUF_INIT;
	struct t_tar t = { .gnu = first % 2 };
	unsigned at = 0;

	put_tree(&t, dir, prefix, first, each, &at);
	t_tar_end(&t);
	if (codec == DCP_CODEC_NONE)
		t_dir_put(to, name, t.b.p, t.b.n);
	else
		t_pack(&packed, codec, t.b.p, t.b.n);
	if (codec != DCP_CODEC_NONE)
		t_dir_put(to, name, packed.p, packed.n);
	dcp_buf_finish(&t.b);
}

static void archived_directories_are_read(void **state)
{
	static const struct {
		const char *name;
		enum dcp_codec codec;
	} containers[] = {
		{ "x.tar", DCP_CODEC_NONE },      { "x.tar.gz", DCP_CODEC_GZIP },
		{ "x.tgz", DCP_CODEC_GZIP },      { "x.tar.lzma", DCP_CODEC_XZ },
		{ "x.tar.zst", DCP_CODEC_ZSTD },  { "x.tar.bz2", DCP_CODEC_BZIP2 },
		{ "odd.tar.gz", DCP_CODEC_NONE }, { "odd.tar", DCP_CODEC_LZ4 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(trees); i++) {
		struct dcp_version *plain = t_open_version(trees[i].dir, NULL, NULL);

		for (size_t k = 0; k < DCP_LEN(containers); k++) {
			struct dcp_store_opts opts = { .cache_dir = NULL };
			struct dcp_version *v;
			struct t_dir to;

			print_message("           %s in %s\n", trees[i].dir,
				      containers[k].name);
			t_dir_make(&to, "archive");
			put_archive(&to, containers[k].name, trees[i].dir, trees[i].prefix, 0,
				    1, containers[k].codec);
			if (k % 2)
				opts.cache_dir = t_dir_path(&to, "cache");
			v = t_open_version(t_dir_path(&to, containers[k].name), NULL, &opts);
			assert_string_equal(dcp_version_format(v)->name, "archive");
			assert_true(t_same(plain, v, "") >= trees[i].least);
			assert_int_equal(dcp_index_counts(dcp_version_index(v))->broken, 0);
			dcp_version_close(v);
			t_dir_remove(&to);
		}
		dcp_version_close(plain);
	}
}

/*
 * NeMo's: weights of one rank in a file, of many below model_weights/, or before that of each
 * rank by itself; and before that, all of it behind gzip.
 */
static void nemo_archives_are_read(void **state)
{
	static const struct {
		const char *from, *prefix, *first; /* rows of @from; what its keys begin with */
	} cases[] = {
		{ "tests/golden/torch-save/ckpt/state_dict_metadata.pt", "./model_weights.ckpt",
		  "" },
		{ "tests/golden/megatron-dist-012/ckpt/iter_0000050", "./model_weights/", "" },
		{ "tests/golden/torch-save/ckpt/state_dict_metadata.pt",
		  "tp_rank_00_pp_rank_000/model_weights.ckpt", "tp_rank_00_pp_rank_000." },
		{ "tests/golden/torch-save/ckpt/state_dict_metadata.pt",
		  "./mp_rank_00/model_weights.ckpt", "mp_rank_00." },
	};

	(void)state;
	for (size_t i = 0; i < 2 * DCP_LEN(cases); i++) {
		const char *from = cases[i / 2].from, *first = cases[i / 2].first;
		struct dcp_version *plain = t_open_version(from, NULL, NULL), *v;
		struct t_tar t = { .gnu = true };
		dcp_auto_buf struct dcp_buf packed = DCP_BUF_INIT;
		unsigned at = 0;
		struct t_dir to;
		size_t n;

		t_case(cases[i / 2].prefix);
		t_tar_add(&t, "./0123abcd_tokenizer.model", "x", 1);
		t_tar_add(&t, "./model_config.yaml", "a: 1\n", 5);
		if (strchr(from, '.')) {
			char *p = t_file(from, &n);

			t_tar_add(&t, cases[i / 2].prefix, p, n);
			if (*first)
				t_tar_add(&t, "tp_rank_01_pp_rank_000/model_weights.ckpt", p,
					  n);
			free(p);
		} else {
			put_tree(&t, from, cases[i / 2].prefix, 0, 1, &at);
		}
		t_tar_end(&t);
		t_pack(&packed, DCP_CODEC_GZIP, t.b.p, t.b.n);
		t_dir_make(&to, "archive");
		t_dir_put(&to, i < 2 ? "m.qnemo" : "m.nemo", i % 2 ? packed.p : t.b.p,
			  i % 2 ? packed.n : t.b.n);
		v = t_open_version(to.root, NULL, NULL);
		assert_string_equal(dcp_version_format(v)->name, "archive");
		assert_true(t_same(plain, v, first) >= 7);
		dcp_version_close(v);
		dcp_version_close(plain);
		t_dir_remove(&to);
		dcp_buf_finish(&t.b);
	}
}

/* An archive a rank: together they are the directory. */
static void archives_of_ranks_are_joined(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(trees); i++) {
		struct dcp_version *plain = t_open_version(trees[i].dir, NULL, NULL), *v;
		struct dcp_scan scan;
		struct t_dir to;

		t_case(trees[i].dir);
		t_dir_make(&to, "archive");
		for (unsigned r = 0; r < 3; r++) {
			char name[64];

			snprintf(name, sizeof(name), "ep1-ba6-rank%u.tar", r);
			put_archive(&to, name, trees[i].dir, trees[i].prefix, r, 3,
				    r == 1 ? DCP_CODEC_GZIP : DCP_CODEC_NONE);
		}
		t_dir_text(&to, "latest-rank0.pt.tar", "ep1-ba6-rank0.tar");
		t_dir_put(&to, "other.tar", "what is this", 12);
		assert_int_equal(dcp_scan(to.root, &scan, NULL), 0);
		assert_int_equal(scan.n, 2); /* and other.tar, which cannot be opened */
		assert_string_equal(scan.found[1].name, "ep1-ba6-rank0.tar");
		dcp_scan_finish(&scan);
		v = t_open_version(to.root, "ep1-ba6-rank0.tar", NULL);
		assert_true(t_same(plain, v, "") >= trees[i].least);
		dcp_version_close(v);
		dcp_version_close(plain);
		t_dir_remove(&to);
	}
}

static void compressed_files_are_read(void **state)
{
	static const struct {
		const char *from, *name;
		enum dcp_codec codec;
	} files[] = {
		{ "tests/golden/torch-save/ckpt/legacy.pt", "a.pt.gz", DCP_CODEC_GZIP },
		{ "tests/golden/torch-save/ckpt/legacy.pt", "a.pt.bz2", DCP_CODEC_BZIP2 },
		{ "tests/golden/torch-save/ckpt/list.pt", "a.pth.xz", DCP_CODEC_XZ },
		{ "tests/golden/torch-save/ckpt/list.pt", "a.pt.lzma", DCP_CODEC_LZMA },
		{ "tests/golden/torch-save/ckpt/types.pt", "a.ckpt.zst", DCP_CODEC_ZSTD },
		{ "tests/golden/torch-save/ckpt/types.pt", "a.bin.lz4", DCP_CODEC_LZ4 },
		{ "tests/golden/torch-save/ckpt/types.pt", "a.pt.gz", DCP_CODEC_NONE },
		{ "tests/golden/paddle-plain/ckpt/p2/model.pdparams", "a.pdparams.bz2",
		  DCP_CODEC_BZIP2 },
		{ "tests/golden/dcp-hf/ckpt/5-one-file/model-00001-of-00001.safetensors",
		  "m.safetensors.zst", DCP_CODEC_ZSTD },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(files); i++) {
		struct dcp_version *plain = t_open_version(files[i].from, NULL, NULL), *v;
		dcp_auto_buf struct dcp_buf packed = DCP_BUF_INIT;
		struct t_dir to;
		size_t n;
		char *p = t_file(files[i].from, &n);

		t_case(files[i].name);
		t_dir_make(&to, "archive");
		t_pack(&packed, files[i].codec, p, n);
		if (files[i].codec == DCP_CODEC_NONE)
			t_dir_put(&to, files[i].name, p, n);
		else
			t_dir_put(&to, files[i].name, packed.p, packed.n);
		v = t_open_version(t_dir_path(&to, files[i].name), NULL, NULL);
		assert_string_equal(dcp_version_name(v), files[i].name);
		assert_true(t_same(plain, v, "") >= 2);
		dcp_version_close(v);
		dcp_version_close(plain);
		free(p);
		t_dir_remove(&to);
	}
}

/* Several checkpoints in one archive: their names stand in front. */
static void loose_files_in_archives_are_read(void **state)
{
	static const char *const names[] = { "list.pt", "types.pt" };
	struct dcp_version *v;
	struct t_tar t = { .n = 0 };
	struct t_dir to;

	(void)state;
	t_dir_make(&to, "archive");
	for (size_t i = 0; i < 2; i++) {
		char from[128];
		size_t n;
		char *p;

		snprintf(from, sizeof(from), "tests/golden/torch-save/ckpt/%s", names[i]);
		p = t_file(from, &n);
		t_tar_add(&t, names[i], p, n);
		free(p);
	}
	t_tar_end(&t);
	t_dir_put(&to, "both.tar", t.b.p, t.b.n);
	v = t_open_version(t_dir_path(&to, "both.tar"), NULL, NULL);
	for (size_t i = 0; i < 2; i++) {
		char from[128], prefix[32];
		struct dcp_version *plain;

		snprintf(from, sizeof(from), "tests/golden/torch-save/ckpt/%s", names[i]);
		snprintf(prefix, sizeof(prefix), "%s.", names[i]);
		plain = t_open_version(from, NULL, NULL);
		assert_true(t_same(plain, v, prefix) >= 2);
		dcp_version_close(plain);
	}
	dcp_version_close(v);
	dcp_buf_finish(&t.b);
	t_dir_remove(&to);
}

/* ---- an archive that is read where it lies ---- */

static int count_files(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	uint32_t *seen = ctx;

	(void)s;
	*seen = file;
	return 0;
}

/* The file that other programs may read the first tensor's bytes from. */
static uint32_t file_for_others(struct dcp_version *v)
{
	struct dcp_view *view;
	uint32_t seen = 12345;

	assert_int_equal(dcp_view_open(v, 1, DCP_AS_RAW, NULL, &view, NULL), 0);
	assert_int_equal(dcp_view_strided(view, count_files, &seen), 0);
	dcp_view_close(view);
	return seen;
}

static void plain_archives_are_not_copied(void **state)
{
	struct dcp_store_opts opts = { .cache_dir = NULL };
	struct dcp_version *v;
	struct t_dir to;
	size_t n;
	const struct dcp_file_id *files;

	(void)state;
	t_dir_make(&to, "archive");
	opts.cache_dir = t_dir_path(&to, "cache");
	put_archive(&to, "x.tar", trees[0].dir, "", 0, 1, DCP_CODEC_NONE);
	v = t_open_version(t_dir_path(&to, "x.tar"), NULL, &opts);
	files = dcp_index_files(dcp_version_index(v), &n);
	assert_int_equal(n, 1);
	assert_string_equal(files[0].name, "x.tar");
	assert_int_equal(files[0].unpacked, 0);
	assert_int_equal(t_dir_count(&to, "cache"), 1); /* the index */
	assert_int_equal(file_for_others(v), 0);
	dcp_version_close(v);

	put_archive(&to, "y.tar.zst", trees[0].dir, "", 0, 1, DCP_CODEC_ZSTD);
	v = t_open_version(t_dir_path(&to, "y.tar.zst"), NULL, &opts);
	files = dcp_index_files(dcp_version_index(v), &n);
	assert_int_equal(n, 1);
	assert_string_equal(files[0].name, "y.tar.zst");
	assert_true(files[0].unpacked > files[0].size);
	assert_int_equal(t_dir_count(&to, "cache/unpacked"), 1);
	assert_int_equal(file_for_others(v), DCP_VIEW_NO_FILE);
	dcp_version_close(v);
	t_dir_remove(&to);
}

/* The decoded copy may go while the index stays: it is made again when it is needed. */
static void lost_copies_are_decoded_again(void **state)
{
	struct dcp_version *plain = t_open_version(trees[0].dir, NULL, NULL), *v;
	struct dcp_store_opts opts = { .cache_dir = NULL };
	struct t_dir to;
	char cache[256];
	DIR *d;

	(void)state;
	t_dir_make(&to, "archive");
	snprintf(cache, sizeof(cache), "%s", t_dir_path(&to, "cache"));
	opts.cache_dir = cache;
	put_archive(&to, "x.tar.gz", trees[0].dir, "", 0, 1, DCP_CODEC_GZIP);
	v = t_open_version(t_dir_path(&to, "x.tar.gz"), NULL, &opts);
	dcp_version_close(v);
	for (int round = 0; round < 2; round++) {
		char name[600];

		snprintf(name, sizeof(name), "%s/unpacked", cache);
		d = opendir(name);
		for (struct dirent *e; (e = readdir(d));)
			if (*e->d_name != '.') {
				snprintf(name, sizeof(name), "cache/unpacked/%.250s",
					 e->d_name);
				t_dir_delete(&to, name);
			}
		closedir(d);
		v = t_open_version(t_dir_path(&to, "x.tar.gz"), NULL, &opts);
		assert_true(t_same(plain, v, "") > 0);
		dcp_version_close(v);
	}
	dcp_version_close(plain);
	t_dir_remove(&to);
}

/* ---- what is wrong ---- */

struct opened {
	struct t_sink s;
	struct dcp_dir dir;
	struct dcp_err err;
	int rc;
};

/* As the family loads the one version of @to, nothing being decoded. */
static void load(struct opened *o, const struct t_dir *to)
{
	enum dcp_match match;
	struct dcp_load in = { .dir = &o->dir, .formats = dcp_formats, .sink = &o->s.sink };

	*o = (struct opened){ .rc = 0 };
	assert_int_equal(dcp_dir_open(to->root, &o->dir, NULL), 0);
	t_sink_init(&o->s, &o->dir);
	o->rc = dcp_format_probe(&o->dir, &match, NULL, 0)->load(&in, &o->err);
	assert_int_equal(match, DCP_MATCH_MANY);
}

static void finish(struct opened *o)
{
	t_sink_finish(&o->s);
	dcp_dir_close(&o->dir);
}

static void bad_archives_are_refused(void **state)
{
	static const struct {
		const char *what, *file, *member;
		const char *bytes;
		int code;
		const char *says, *also; /* also: another member */
	} cases[] = {
		{ "no tar", "x.tar", NULL, "what is this", -EBADMSG, "x.tar: no end mark" },
		{ "nothing in it", "x.tar", "", "", -EINVAL,
		  "x.tar holds no checkpoint: it is empty" },
		{ "nothing we know", "x.tar", "README", "hello", -EINVAL,
		  "x.tar holds no checkpoint: only README" },
		{ "several versions", "x.tar", "step-1/x.pt", "", -EINVAL,
		  "x.tar holds no checkpoint: only step-1 and more; it is read as one version, "
		  "so unpack",
		  "step-2/x.pt" },
		{ "a checkpoint that is not whole", "x.tar", "__0_0.distcp", "", -EINVAL,
		  "x.tar: .metadata is missing" },
		{ "a member outside", "x.tar", "../x.pt", "", -EXDEV,
		  "x.tar: a member is called" },
		{ "a damaged checkpoint", "x.tar", "x.pt", "what is this", -EBADMSG,
		  "x.pt: not a torch.save stream" },
		{ "compressed, and no decoder", "x.tar.gz", NULL, "\x1f\x8b\x08", -ENOTSUP,
		  "x.tar.gz: compressed with gzip" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct t_tar t = { .n = 0 };
		struct opened o;
		struct t_dir to;

		t_case(cases[i].what);
		t_dir_make(&to, "archive");
		if (cases[i].member && *cases[i].member)
			t_tar_add(&t, cases[i].member, cases[i].bytes, strlen(cases[i].bytes));
		if (cases[i].also)
			t_tar_add(&t, cases[i].also, "", 0);
		if (cases[i].member)
			t_tar_end(&t);
		else
			dcp_buf_str(&t.b, cases[i].bytes);
		t_dir_put(&to, cases[i].file, t.b.p, t.b.n);
		load(&o, &to);
		assert_int_equal(o.rc, cases[i].code);
		t_assert_says(&o.err, cases[i].says);
		finish(&o);
		dcp_buf_finish(&t.b);
		t_dir_remove(&to);
	}
}

/* One rank's archive is cut, another is gone: their keys are broken, the others are not. */
static void damaged_ranks_break_their_keys_only(void **state)
{
	struct dcp_version *plain = t_open_version(trees[3].dir, NULL, NULL), *v;
	struct dcp_object broken;
	struct dcp_arena arena;
	struct dcp_row row;
	struct t_dir to;

	(void)state;
	t_dir_make(&to, "archive");
	put_archive(&to, "ba2-rank0.tar", trees[3].dir, "", 0, 2, DCP_CODEC_NONE);
	t_dir_put(&to, "ba2-rank1.tar", "cut", 3);
	t_dir_text(&to, "ba2-rank7.tar.symlink", "ba2-rank0.tar");
	v = t_open_version(to.root, NULL, NULL);
	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(dcp_index_by_key(dcp_version_index(v), DCP_ROW_OBJECT, "ba2-rank1.tar",
					  &arena, &row),
			 0);
	assert_int_equal(dcp_index_object(dcp_version_index(v), row.id, &arena, &broken, NULL),
			 0);
	assert_non_null(strstr(broken.error, "ba2-rank1.tar: no end mark in the archive"));
	assert_int_equal(dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR, "rank0.model.w",
					  &arena, &row),
			 0);
	assert_false(row.broken);
	dcp_version_close(v);

	t_case("both");
	t_dir_put(&to, "ba2-rank0.tar", "cut", 3);
	{
		struct opened o;

		load(&o, &to);
		assert_int_equal(o.rc, -EBADMSG);
		t_assert_says(&o.err, "none of its 2 archives can be read");
		finish(&o);
	}
	dcp_arena_finish(&arena);
	dcp_version_close(plain);
	t_dir_remove(&to);
}

/* Files that the inner metadata names and the archive lacks break their keys alone. */
static void missing_members_break_their_keys_only(void **state)
{
	struct dcp_version *v;
	struct dcp_tensor t;
	struct dcp_arena arena;
	struct t_tar tar = { .n = 0 };
	struct t_dir to;
	const struct dcp_index_counts *n;
	size_t len;
	char *p = t_file("tests/golden/dcp-tp-fsdp/ckpt/tp/.metadata", &len);
	bool found = false;

	(void)state;
	t_dir_make(&to, "archive");
	t_tar_add(&tar, ".metadata", p, len);
	free(p);
	p = t_file("tests/golden/dcp-tp-fsdp/ckpt/tp/__0_0.distcp", &len);
	t_tar_add(&tar, "__0_0.distcp", p, len);
	free(p);
	t_tar_end(&tar);
	t_dir_put(&to, "x.tar", tar.b.p, tar.b.n);
	v = t_open_version(t_dir_path(&to, "x.tar"), NULL, NULL);
	n = dcp_index_counts(dcp_version_index(v));
	assert_true(n->broken > 0 && n->broken < n->tensors + n->objects);
	dcp_arena_init(&arena, 8 << 20);
	for (int64_t id = 1; id <= (int64_t)n->tensors; id++) {
		assert_int_equal(dcp_index_tensor(dcp_version_index(v), id, &arena, &t, NULL),
				 0);
		found |= t.error && strstr(t.error, "x.tar/__1_0.distcp");
	}
	assert_true(found);
	dcp_arena_finish(&arena);
	dcp_version_close(v);
	dcp_buf_finish(&tar.b);
	t_dir_remove(&to);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(archived_directories_are_read),
		cmocka_unit_test(nemo_archives_are_read),
		cmocka_unit_test(archives_of_ranks_are_joined),
		cmocka_unit_test(compressed_files_are_read),
		cmocka_unit_test(loose_files_in_archives_are_read),
		cmocka_unit_test(plain_archives_are_not_copied),
		cmocka_unit_test(lost_copies_are_decoded_again),
		cmocka_unit_test(bad_archives_are_refused),
		cmocka_unit_test(damaged_ranks_break_their_keys_only),
		cmocka_unit_test(missing_members_break_their_keys_only),
	};

	return cmocka_run_group_tests_name("archive", tests, NULL, NULL);
}
