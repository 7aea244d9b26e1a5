/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names that trainers give, oldest first, as a person would put them.
 *
 * covers: name
 */
#include "tests/unit/t.h"

#include "core/model/name.h"

enum { MOST = 8 };

/* clang-format off */
static const struct {
	const char *what;
	const char *names[MOST];
} schemes[] = {
	{ "torchtitan", { "step-9", "step-10", "step-100", "step-1000" } },
	{ "Hugging Face Trainer", { "checkpoint-500", "checkpoint-1000", "checkpoint-10000" } },
	{ "Lightning", { "epoch=0-step=5000.ckpt", "epoch=3-step=100.ckpt", "epoch=3-step=100-v1.ckpt",
			 "epoch=10-step=20.ckpt", "last.ckpt", "last-v1.ckpt" } },
	{ "Lightning with a metric", { "epoch=1-val_loss=0.10.ckpt", "epoch=2-val_loss=9.99.ckpt",
				       "epoch=10-val_loss=0.99.ckpt" } },
	{ "DeepSpeed", { "global_step99", "global_step100", "global_step1000_universal", "global_step1000" } },
	{ "Megatron-LM", { "release", "iter_0000010", "iter_0000500", "iter_1000000" } },
	{ "Composer", { "ep0-ba900", "ep1-ba2", "ep1-ba1234567", "ep2-ba1" } },
	{ "Composer, files", { "ep0-ba9-rank0.pt", "ep0-ba10-rank0.pt", "latest-rank0.pt" } },
	{ "Paddle", { "0", "1", "9", "10", "11" } },
	{ "verl", { "global_step_9", "global_step_10", "global_step_100" } },
	{ "NeMo", { "megatron_gpt--val_loss=9.13-step=900-consumed_samples=7200.0",
		    "megatron_gpt--val_loss=2.53-step=1000-consumed_samples=8000.0",
		    "megatron_gpt--val_loss=1.20-step=1100-consumed_samples=8800.0-last" } },
	{ "NeMo, epochs", { "model--val_loss=9.99-epoch=2", "model--val_loss=1.20-epoch=3",
			    "model--val_loss=5.00-epoch=12-last" } },
	{ "NeMo, distributed", { "default--val_loss=1.0-epoch=0-consumed_samples=512.0",
				 "default--val_loss=0.5-epoch=1-consumed_samples=64.0-last" } },
	{ "torchtune", { "epoch_0", "epoch_2", "epoch_10" } },
	{ "Accelerate", { "checkpoint_0", "checkpoint_2", "checkpoint_10" } },
	{ "Keras, YOLO", { "weights.9-0.75.pt", "weights.10-0.31.pt", "last.pt" } },
	{ "metrics in words", { "epoch_9_loss_0.31", "epoch_10_loss_0.90", "epoch_11_acc_12" } },
	{ "metrics first", { "acc_97.5_epoch_9", "acc_12.5_epoch_10" } },
	{ "parameters first", { "lr=1e-4-step=10", "lr=5e-5-step=20", "lr=0.1-step=30" } },
	{ "no exponent: a letter is behind it", { "lr=1e5k-step=9", "lr=2e5k-step=1" } },
	{ "labels with digits", { "top5=99-step=3", "top5=1.5-step=4" } },
	{ "fairseq", { "checkpoint_best.pt", "checkpoint1.pt", "checkpoint9.pt", "checkpoint10.pt",
		       "checkpoint_last.pt" } },
	{ "detectron2", { "model_0004999.pth", "model_0009999.pth", "model_final.pth" } },
	{ "MaxText, Orbax", { "0", "500", "2500" } },
	{ "times, ISO 8601", { "2024-01-30T11-02-09Z", "2024-01-30T11-10-00Z", "2024-02-01T00-00-00Z" } },
	{ "times", { "20240130_110209", "20240130_110210", "20240201_000000" } },
	{ "times with a name", { "run_2023-12-31_23-59-59", "run_2024-01-01_00-00-00" } },
	{ "seconds", { "ckpt-999999999", "ckpt-1706612529", "ckpt-1706612530" } },
	{ "zeros in front or not", { "step-0008", "step-10", "step-0011" } },
	{ "longer than 64 bits", { "s99999999999999999999999", "s100000000000000000000000" } },
	{ "names of several kinds", { "checkpoint-500", "step-1000", "iter_0002000" } },
	{ "no number, number, end", { "best", "step-1", "step-100000", "final" } },
	{ "a digest is not a number", { "9fceb02d0ae598e95dc970b74767f19372d61af8", "1" } },
	{ "a short one", { "step-5-9fceb02", "step-6-1234abc" } },
	{ "a short one in front", { "1234abc-step-1", "9fceb02-step-2" } },
	{ "a UUID", { "550e8400-e29b-41d4-a716-446655440000", "step-1" } },
	{ "variants", { "step-9", "step-10-hf", "step-10-ema", "step-10" } },
	{ "the end, with a number", { "step-1000-last", "step-1000", "step-2000-final", "final_model_7b" } },
	{ "not the end", { "everlasting", "finally", "lasting-1" } },
	{ "releases", { "v1.2", "v1.10", "v2.0" } },
	{ "words that hold a metric's", { "accelerate_9", "accelerate_10", "power_11" } },
	{ "letters and signs", { "a-1", "B-2", "_3", "4" } },
	{ "beyond ASCII", { "schritt-9-\xc3\xbc", "\xe6\xad\xa9-10" } },
	{ "without a number, by name when nothing else", { "best", "release" } },
};

static const struct {
	const char *name;
	bool want;
} unfinished[] = {
	{ "tmp-checkpoint-500", true },
	{ "checkpoint-500.tmp", true },
	{ "step_5.orbax-checkpoint-tmp-1706612529", true },
	{ "step-5.partial", true },
	{ "5.TMP", true },
	{ "step-5.incomplete", true },
	{ "tmp", false }, /* where a user put it */
	{ "step-5", false },
	{ "attempt-5", false },
	{ "partially-5", false },
}, numbered[] = {
	{ "checkpoint-500", true },
	{ "checkpoint_3", true },
	{ "step_000100", true },
	{ "epoch=3-step=200", true },
	{ "Epoch3", true },
	{ "iter_0000005", true },
	{ "global_step5", false }, /* DeepSpeed's, also inside checkpoint-5 */
	{ "checkpoint_epoch_3_step_100", true },
	{ "epoch-step-7", true },
	{ "checkpoint_best_3", false },
	{ "checkpoint", false },
	{ "steps-5", false },
	{ "2_Dense", false },
	{ "optimizer_0", false },
	{ "5", false },
}, saves[] = {
	{ "checkpoint-500", true },
	{ "global_step5", true },
	{ "5", true },
	{ "00010", true },
	{ "global_step", false },
	{ "", false },
	{ "2_Dense", false },
};
/* clang-format on */

static int sign(int v)
{
	return (v > 0) - (v < 0);
}

/* Every pair of a scheme, both ways round. */
static void names_sort_by_their_scheme(void **state)
{
	(void)state;
	for (size_t s = 0; s < DCP_LEN(schemes); s++) {
		const char *const *n = schemes[s].names;

		t_case(schemes[s].what);
		for (int i = 0; i < MOST && n[i]; i++)
			for (int k = 0; k < MOST && n[k]; k++)
				if (sign(dcp_order_compare(n[i], 7, n[k], 7)) != sign(i - k))
					fail_msg("%s and %s", n[i], n[k]);
	}
}

static void times_decide_without_numbers_only(void **state)
{
	(void)state;
	assert_true(dcp_order_compare("step-1", 9, "step-2", 5) < 0);
	assert_true(dcp_order_compare("best", 9, "release", 5) > 0);
	assert_true(dcp_order_compare("9fceb02d", 5, "0fceb02d", 9) < 0);
	assert_true(dcp_order_compare("last", 9, "final", 5) > 0);
	assert_true(dcp_order_compare("best", 9, "step-1", 5) < 0);
	assert_true(dcp_order_compare("final", 5, "step-1", 9) > 0);
}

/* Whatever the names are: of three, the order is one. */
static void the_order_is_transitive(void **state)
{
	enum { ALL = DCP_LEN(schemes) * MOST };
	static bool before[ALL][ALL];
	const char *all[ALL];
	size_t n = 0;

	(void)state;
	for (size_t s = 0; s < DCP_LEN(schemes); s++)
		for (int i = 0; i < MOST && schemes[s].names[i]; i++)
			all[n++] = schemes[s].names[i];
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++) {
			int d = dcp_order_compare(all[i], 0, all[k], 0);

			assert_int_equal(sign(d),
					 -sign(dcp_order_compare(all[k], 0, all[i], 0)));
			assert_int_equal(d == 0, strcmp(all[i], all[k]) == 0);
			before[i][k] = d < 0;
		}
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++)
			for (size_t j = 0; before[i][k] && j < n; j++)
				if (before[k][j] && !before[i][j])
					fail_msg("%s, %s, %s", all[i], all[k], all[j]);
}

static void unfinished_names_are_known(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(unfinished); i++) {
		t_case(unfinished[i].name);
		assert_int_equal(dcp_order_is_unfinished(unfinished[i].name),
				 unfinished[i].want);
	}
}

static void names_of_numbered_saves_are_known(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(numbered); i++) {
		t_case(numbered[i].name);
		assert_int_equal(dcp_order_is_numbered(numbered[i].name), numbered[i].want);
	}
	for (size_t i = 0; i < DCP_LEN(saves); i++) {
		t_case(saves[i].name);
		assert_int_equal(dcp_order_is_save(saves[i].name), saves[i].want);
	}
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_sort_by_their_scheme),
		cmocka_unit_test(times_decide_without_numbers_only),
		cmocka_unit_test(the_order_is_transitive),
		cmocka_unit_test(unfinished_names_are_known),
		cmocka_unit_test(names_of_numbered_saves_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
