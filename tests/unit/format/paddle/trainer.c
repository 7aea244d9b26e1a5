/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/paddle.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

static void load_dir(const struct t_dir *tree, struct dcp_dir *dir, struct t_sink *s,
		     const char *format)
{
	struct dcp_load in = { .dir = dir, .sink = &s->sink };
	const struct dcp_format *f;
	struct dcp_err err = { 0 };
	enum dcp_match match;

	assert_int_equal(dcp_dir_open(tree->root, dir, NULL), 0);
	t_sink_init(s, dir);
	f = dcp_format_probe(dir, &match, NULL, 0);
	assert_non_null(f);
	assert_string_equal(f->name, format);
	assert_int_equal(match, DCP_MATCH_YES);
	if (f->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
}

/* One version of several directories: only the model's keys are told without its name. */
static void trainer_directories_are_known(void **state)
{
	static const char *const want[] = { "w", "master_weights.w.w_0", "w.w_0",
					    "optimizer_states.w" };
	struct dcp_dir dir;
	struct t_dir tree;
	struct t_sink s;
	enum dcp_match match;
	char why[256];

	(void)state;
	t_dir_make(&tree, "paddle");
	t_paddle_put(&tree, "model_state/", 0, "w");
	t_paddle_put(&tree, "master_weights/", 0, "w.w_0");
	t_paddle_put(&tree, "optimizer_states/", 0, "w");
	t_dir_text(&tree, "optimizer_states/README", "x");
	t_dir_text(&tree, "tokenizer.json", "{}");
	load_dir(&tree, &dir, &s, "paddle-parts");
	assert_int_equal(s.ntensors, 3);
	for (size_t i = 0; i < DCP_LEN(want); i++) {
		const struct dcp_tensor *t = t_sink_tensor(&s, want[i]);
		size_t n;
		char *bytes;

		if (i == 2) {
			assert_null(t);
			continue;
		}
		bytes = t_sink_read(&s, t, &n, NULL);
		assert_non_null(bytes);
		assert_memory_equal(bytes, ((float[]){ 0, 0.5f }), 8);
		free(bytes);
	}
	assert_string_equal(t_sink_tensor(&s, "optimizer_states.w")->path[0],
			    "optimizer_states");
	assert_string_equal(dcp_format_paddle_parts.commit_file(&dir), "optimizer_states");
	t_sink_finish(&s);
	dcp_dir_close(&dir);

	t_case("one of them without metadata");
	t_dir_delete(&tree, "master_weights/0.metadata");
	assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
	assert_non_null(dcp_format_probe(&dir, &match, why, sizeof(why)));
	assert_int_equal(match, DCP_MATCH_INCOMPLETE);
	assert_non_null(strstr(why, "master_weights: 0.metadata is missing"));
	dcp_dir_close(&dir);

	t_case("one of them empty");
	t_dir_delete(&tree, "master_weights/0_0.distcp");
	assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
	assert_non_null(dcp_format_probe(&dir, &match, why, sizeof(why)));
	assert_int_equal(match, DCP_MATCH_INCOMPLETE);
	assert_non_null(strstr(why, "master_weights is empty"));
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(trainer_directories_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
