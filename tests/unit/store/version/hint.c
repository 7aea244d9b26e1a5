/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint: a directory that is no checkpoint is known by the marks in the rows of families. Families
 * that are not read: scan.c.
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/store/version/version.h"
#include "tests/unit/t/parse/dir.h"

/* clang-format off */
static const struct {
	const char *what, *names, *says;
} cases[] = {
	{ "DeepSpeed", "run/zero_to_fp32.py run/latest run/global_step5/x",
	  "run is a DeepSpeed checkpoint, by its zero_to_fp32.py, but what dcpfs reads" },
	{ "DeepSpeed, a tag without its files", "run/global_step5/x", "run is a DeepSpeed or verl checkpoint, by its global_step5" },
	{ "DeepSpeed below", "run/sub/global_step5/x", "run/sub, a DeepSpeed or verl checkpoint, but what dcpfs reads" },
	{ "Megatron-LM", "run/latest_checkpointed_iteration.txt run/iter_0000005/mp_rank_00/x",
	  "run is a Megatron-LM run without its iterations, by its latest_checkpointed_iteration.txt" },
	{ "a rank of Megatron-LM", "run/mp_rank_00_001/x", "run is a Megatron-LM checkpoint without model_optim_rng.pt" },
	{ "what two families have is the special one's", "run/zero_to_fp32.py run/model.onnx", "a DeepSpeed checkpoint" },
	{ "and a foreign one's before general files", "run/.snapshot_metadata run/x.distcp.old run/sub/x", "a torchsnapshot checkpoint" },
};
/* clang-format on */

static void families_are_known_by_their_marks(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char copy[256], *save = NULL;
		struct dcp_scan scan = { 0 };
		struct dcp_err err = { 0 };
		struct t_dir d;

		t_case(cases[i].what);
		t_dir_make(&d, "test_hint");
		snprintf(copy, sizeof(copy), "%s", cases[i].names);
		for (char *name = strtok_r(copy, " ", &save); name;
		     name = strtok_r(NULL, " ", &save))
			t_dir_text(&d, name, "");
		assert_int_equal(dcp_scan(t_dir_path(&d, "run"), &scan, &err), -EINVAL);
		t_assert_says(&err, cases[i].says);
		dcp_scan_finish(&scan);
		t_dir_remove(&d);
	}
}

static void every_mark_names_its_family(void **state)
{
	(void)state;
	for (size_t i = 0; dcp_formats[i]; i++)
		for (const struct dcp_mark *m = dcp_formats[i]->marks; m && m->glob; m++)
			assert_true(m->what && !m->todo);
	for (const struct dcp_mark *m = dcp_foreign; m->glob; m++)
		assert_true(m->what && m->todo && !m->general);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(families_are_known_by_their_marks),
		cmocka_unit_test(every_mark_names_its_family),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
