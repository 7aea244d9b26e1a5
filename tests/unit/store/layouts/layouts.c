/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts by name: those of files, which of two counts, what is said of a name that none has.
 */
#include "tests/unit/t.h"

#include "core/base/err.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "tests/unit/t/parse/dir.h"

#define RANKS(n) "mesh dp=" #n "\n* shard(0, optional)\n"

struct world {
	struct t_dir d;
	char said[2048];
	struct dcp_scan scan;
	struct dcp_found found;
	struct dcp_layouts *t;
};

static void say(void *ctx, enum dcp_log_level level, const char *message)
{
	struct world *w = ctx;

	(void)level;
	strncat(w->said, message, sizeof(w->said) - strlen(w->said) - 1);
}

static int create(struct world *w, const char *const *files, size_t n, struct dcp_err *err)
{
	const struct dcp_log log = { DCP_LOG_WARN, say, w };
	const struct dcp_layouts_opts opts = { .files = files,
					       .nfiles = n,
					       .source = t_dir_path(&w->d, "src"),
					       .scan = &w->scan,
					       .user_dir = t_dir_path(&w->d, "user"),
					       .log = &log };

	return dcp_layouts_create(&opts, &w->t, err);
}

static void setup(struct world *w)
{
	*w = (struct world){ .found = { .where = "run/step-1" },
			     .scan = { .found = &w->found, .n = 1 } };
	t_dir_make(&w->d, "layouts");
	t_dir_text(&w->d, "given/own.txt", RANKS(3));
	t_dir_text(&w->d, "src/own.dcpl", RANKS(5));
	t_dir_text(&w->d, "src/llama.dcpl", RANKS(2));
	t_dir_text(&w->d, "src/bad.dcpl", "mesh tp=\n");
	t_dir_text(&w->d, "src/other.txt", RANKS(7));
	t_dir_sub(&w->d, "src/run/step-1");
	t_dir_text(&w->d, "src/run/beside.dcpl", RANKS(6));
	t_dir_text(&w->d, "user/llama.dcpl", RANKS(7));
	t_dir_text(&w->d, "user/mine.dcpl", RANKS(4));
}

static void teardown(struct world *w)
{
	dcp_layouts_destroy(w->t);
	t_dir_remove(&w->d);
}

/* clang-format off */
static const struct {
	const char *what, *name;
	int code;
	uint32_t ranks;
	const char *says;
} names[] = {
	{ "a file of --layout, by its stem", "own", 0, 3, NULL },
	{ "of the source, which comes before the user's", "llama", 0, 2, NULL },
	{ "where its versions lie", "beside", 0, 6, NULL },
	{ "of the user", "mine", 0, 4, NULL },
	{ "built in", "fsdp8", 0, 8, NULL },
	{ "a file's rules on another mesh", "mesh:dp6:mine", 0, 6, NULL },
	{ "a file that is not a layout", "bad", -ENOENT, 0, NULL },
	{ "another extension", "other", -ENOENT, 0, NULL },
	{ "nearly one's name", "lama", -ENOENT, 0, "nearest is \"llama\"" },
	{ "with the extension", "mine.dcpl", -ENOENT, 0, "nearest is \"mine\"" },
	{ "a mesh for nearly one's name", "mesh:dp2:min", -ENOENT, 0, "nearest is \"mine\"" },
	{ "a mesh for a built-in one", "mesh:dp2:fsdp8", -ENOENT, 0, "no layout file of that name" },
	{ "a mesh for none", "mesh:dp2", -ENOENT, 0, "the form is mesh:" },
};
/* clang-format on */

static void layouts_are_found_by_name(void **state)
{
	const struct dcp_named_layout *l;
	const char *own;
	struct world w;

	(void)state;
	setup(&w);
	own = t_dir_path(&w.d, "given/own.txt");
	assert_int_equal(create(&w, &own, 1, NULL), 0);
	if (!strstr(w.said, "bad.dcpl is left out"))
		fail_msg("the log says \"%s\"", w.said);
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		struct dcp_err err = { 0 };

		t_case(names[i].what);
		assert_int_equal(dcp_layouts_find(w.t, names[i].name, &l, &err), names[i].code);
		if (names[i].says)
			t_assert_says(&err, names[i].says);
		if (names[i].code)
			continue;
		assert_string_equal(l->name, names[i].name);
		assert_int_equal(dcp_layout_ranks(l->l), names[i].ranks);
		assert_ptr_equal(dcp_layouts_by_id(w.t, l->id), l);
	}
	assert_null(dcp_layouts_by_id(w.t, UINT64_MAX));
	assert_string_equal(dcp_layouts_at(w.t, 0)->name, "beside");
	assert_string_equal(dcp_layouts_at(w.t, 3)->name, "own");
	assert_null(dcp_layouts_at(w.t, 4)); /* what is built in is not listed */
	assert_int_equal(dcp_layouts_find(w.t, "mesh:dp6:mine", &l, NULL), 0);
	assert_non_null(strstr(dcp_layouts_file(w.t, l), "user/mine.dcpl"));
	teardown(&w);
}

static void words_open_layouts(void **state)
{
	const struct dcp_named_layout *l;
	struct dcp_err err = { 0 };
	char word[256];
	struct world w;

	(void)state;
	setup(&w);
	assert_int_equal(create(&w, NULL, 0, NULL), 0);
	assert_int_equal(dcp_layouts_open(w.t, t_dir_path(&w.d, "src/other.txt"), &l, NULL), 0);
	assert_int_equal(dcp_layout_ranks(l->l), 7);
	snprintf(word, sizeof(word), "mesh:dp2:%s", t_dir_path(&w.d, "src/other.txt"));
	assert_int_equal(dcp_layouts_open(w.t, word, &l, NULL), 0);
	assert_int_equal(dcp_layout_ranks(l->l), 2);
	assert_int_equal(dcp_layouts_open(w.t, "fsdp8", &l, NULL), 0);
	assert_int_equal(dcp_layouts_open(w.t, "fsdpp", &l, NULL), -EINVAL);
	assert_int_equal(dcp_layouts_open(w.t, t_dir_path(&w.d, "src/bad.dcpl"), &l, NULL),
			 -EBADMSG);
	assert_int_equal(dcp_layouts_open(w.t, t_dir_path(&w.d, "src/lama.dcpl"), &l, &err),
			 -ENOENT);
	t_assert_says(&err, "nearest is \"llama.dcpl\"");
	teardown(&w);
}

static void wrong_files_are_refused(void **state)
{
	struct dcp_err err = { 0 };
	const char *files[2];
	struct world w;

	(void)state;
	setup(&w);
	files[0] = t_dir_path(&w.d, "given/own.txt");
	files[1] = t_dir_path(&w.d, "src/own.dcpl");
	assert_int_equal(create(&w, files, 2, &err), -EEXIST);
	t_assert_says(&err, "another file's layout is called own, too");
	files[0] = t_dir_path(&w.d, "src/bad.dcpl");
	assert_int_equal(create(&w, files, 1, &err), -EBADMSG);
	files[0] = t_dir_path(&w.d, "src");
	assert_int_equal(create(&w, files, 1, &err), -EBADMSG);
	files[0] = t_dir_path(&w.d, "given/own.txt/x.dcpl");
	assert_int_equal(create(&w, files, 1, &err), -ENOTDIR);
	t_assert_says(&err, "own.txt/x.dcpl: Not a directory");
	files[0] = t_dir_path(&w.d, "given/.dcpl");
	assert_int_equal(create(&w, files, 1, &err), -EBADMSG);
	t_assert_says(&err, "not a name for a layout");
	assert_null(w.t);
	teardown(&w);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layouts_are_found_by_name),
		cmocka_unit_test(words_open_layouts),
		cmocka_unit_test(wrong_files_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
