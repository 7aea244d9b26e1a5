/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every layout in tests/bad/layout is refused, and says why in exactly these words.
 * covers: layout
 */
#include "tests/unit/t.h"

#include <dirent.h>

#include "core/model/layout/layout.h"
#include "core/parse/layout/layout.h"

/* clang-format off */
static const struct {
	const char *name;
	int code;
	const char *says;
} bad[] = {
	{ "control-byte", -EINVAL, "control-byte:2: byte 0x01; a layout is text" },
	{ "drop-with-another", -EINVAL, "drop-with-another:2: drop must be the only placement: no rank holds the key" },
	{ "empty", -EINVAL, "empty: no rules; \"* replicate\" is the simplest" },
	{ "flat-two-rules", -EINVAL, "flat-two-rules:2: flat(pad=8, even): pad cannot be combined with another way to split" },
	{ "glob-escape-at-end", -EINVAL, "glob-escape-at-end:2: a glob ends in a lone \\" },
	{ "glob-missing", -EINVAL, "glob-missing:2: a rule begins with a glob, such as *.weight" },
	{ "glob-number-wrong", -EINVAL, "glob-number-wrong:2: glob {a-b}.*: {} holds a number, as in {3} {0-15} {16-} {*}" },
	{ "glob-range-backwards", -EINVAL, "glob-range-backwards:2: glob {9-3}.*: {} holds a number, as in {3} {0-15} {16-} {*}" },
	{ "glob-too-many-numbers", -E2BIG, "glob-too-many-numbers:2: glob {1}.{2}.{3}.{4}.{5}.{6}.{7}.{8}.{9}: 9 numbers; the limit is 8" },
	{ "interleave-block-zero", -EINVAL, "interleave-block-zero:2: interleave(0, 0): block is at least 1, not 0" },
	{ "json-behind-the-end", -EINVAL, "json-behind-the-end:1: JSON has byte 0x78 at 19, expected nothing after the object" },
	{ "json-escape", -EINVAL, "json-escape:1: strings hold neither backslashes nor control bytes" },
	{ "json-name-twice", -EINVAL, "json-name-twice:3: \"a.b\" stands on line 2 too" },
	{ "json-number", -EINVAL, "json-number:1: expected a string or a list of numbers, found 3" },
	{ "json-open", -EINVAL, "json-open:2: JSON ends at byte 34, expected ',' or '}'" },
	{ "json-style-misspelt", -EINVAL, "json-style-misspelt:2: \"colwize\" is neither a style nor a placement, nearest is \"colwise\"" },
	{ "mesh-after-rule", -EINVAL, "mesh-after-rule:3: mesh lines stand before the rules" },
	{ "mesh-dimension-left-out", -EINVAL, "mesh-dimension-left-out:2: shard(0): over which mesh dimension? write shard(0)@dp, or another one" },
	{ "mesh-dimension-twice", -EINVAL, "mesh-dimension-twice:2: two placements over mesh dimension tp" },
	{ "mesh-dimension-unknown", -EINVAL, "mesh-dimension-unknown:2: the mesh has no dimension \"pt\", nearest is \"tp\"" },
	{ "mesh-missing", -EINVAL, "mesh-missing:1: a mesh line, such as mesh dp=2 tp=4, comes first" },
	{ "mesh-name-too-long", -E2BIG, "mesh-name-too-long:1: a mesh dimension's name has at most 31 bytes, not 33" },
	{ "mesh-name-twice", -EINVAL, "mesh-name-twice:1: mesh dimension dp twice" },
	{ "mesh-size-missing", -EINVAL, "mesh-size-missing:1: a mesh is written dp=2 tp=4, not dp= tp=2" },
	{ "mesh-size-zero", -EINVAL, "mesh-size-zero:1: mesh dimension dp has 0 ranks; 1 is the least" },
	{ "mesh-too-many-dimensions", -E2BIG, "mesh-too-many-dimensions:1: more than 8 mesh dimensions" },
	{ "mesh-too-many-ranks", -E2BIG, "mesh-too-many-ranks:1: the mesh has more than 1048576 ranks" },
	{ "mesh-without-dimensions", -EINVAL, "mesh-without-dimensions:1: a mesh is written dp=2 tp=4, not empty" },
	{ "only-comments", -EINVAL, "only-comments: no rules; \"* replicate\" is the simplest" },
	{ "only-dimension-twice", -EINVAL, "only-dimension-twice:2: only: pp twice" },
	{ "only-past-the-end", -EINVAL, "only-past-the-end:2: only: pp has coordinates 0 to 3, not 4" },
	{ "only-range-backwards", -EINVAL, "only-range-backwards:2: only: 3-1 is not a range" },
	{ "only-without-ranks", -EINVAL, "only-without-ranks:2: only: which ranks? write only(pp=0)" },
	{ "paddle-dimension-past-the-mesh", -EINVAL, "paddle-dimension-past-the-mesh:2: dims_mapping names mesh dimension 2 of 2" },
	{ "paddle-no-comma", -EINVAL, "paddle-no-comma:2: numbers are separated by commas" },
	{ "paddle-open", -EINVAL, "paddle-open:2: dims_mapping: a [ that is not closed" },
	{ "placement-missing", -EINVAL, "placement-missing:2: no placement after the globs; replicate is one" },
	{ "placement-misspelt", -EINVAL, "placement-misspelt:2: shrad(0) is not a placement, nearest is \"shard\"; in a glob ( is written \\(" },
	{ "placement-unknown-behind-another", -EINVAL, "placement-unknown-behind-another:2: sard(1)@dp is not a placement, nearest is \"shard\"" },
	{ "placement-word-misspelt", -EINVAL, "placement-word-misspelt:2: replicat is not a placement, nearest is \"replicate\"; a key of that name is written \\replicat" },
	{ "shard-argument-unknown", -EINVAL, "shard-argument-unknown:2: shard(0, blanced): no argument \"blanced\", nearest is \"balanced\"" },
	{ "shard-behind-flat", -EINVAL, "shard-behind-flat:2: after flat there are no dimensions left to cut" },
	{ "shard-bracket-open", -EINVAL, "shard-bracket-open:2: a list ends in ], not as in [1,2)" },
	{ "shard-group-of-nothing", -EINVAL, "shard-group-of-nothing:2: shard(0, groups=[2,0]): a group of 0" },
	{ "shard-groups-padded", -EINVAL, "shard-groups-padded:2: shard(0, pad, groups=[2,1]): groups cannot be padded" },
	{ "shard-list-negative", -EINVAL, "shard-list-negative:2: a list holds numbers, as in [4,2,2], not [3,-1])" },
	{ "shard-list-number-too-large", -EINVAL, "shard-list-number-too-large:2: a list holds numbers, as in [4,2,2], not [99999999999999999999])" },
	{ "shard-list-sum-too-large", -EINVAL, "shard-list-sum-too-large:2: shard(0, groups=[9223372036854775807,9223372036854775807,9223372036854775807]): the list adds up to too much" },
	{ "shard-sizes-count", -EINVAL, "shard-sizes-count:2: shard(0, sizes=[1,2,3]): 3 sizes for 4 ranks of tp" },
	{ "shard-too-many-arguments", -EINVAL, "shard-too-many-arguments:2: more than 8 arguments in (0, a, b, c, d, e, f, g, h)" },
	{ "shard-two-rules", -EINVAL, "shard-two-rules:2: shard(0, even, last): one rule is enough" },
	{ "shard-without-dimension", -EINVAL, "shard-without-dimension:2: shard(even): which dimension? write shard(0)" },
	{ "stage-without-layers", -EINVAL, "stage-without-layers:2: stage@pp: layers is missing" },
	{ "stage-without-number", -EINVAL, "stage-without-number:2: glob *.layers.*.weight: stage needs a {} for the number, as in *.layers.{*}.*" },
	{ "strided-without-factor", -EINVAL, "strided-without-factor:2: strided(0): split_factor is missing" },
	{ "torch-misspelt", -EINVAL, "torch-misspelt:2: Replicated() is not one of torch's placements, nearest is \"Replicate\"" },
	{ "torch-partial", -EINVAL, "torch-partial:2: Partial is a sum not yet taken; no rank holds a part of the tensor" },
	{ "torch-too-few", -EINVAL, "torch-too-few:2: 1 placement for a mesh of 2 dimensions" },
	{ "torch-too-many", -EINVAL, "torch-too-many:2: more placements than the 1 of the mesh" },
};
/* clang-format on */

static size_t slurp(const char *name, char *text, size_t size)
{
	char path[512];
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "tests/bad/layout/%s", name);
	f = fopen(path, "r");
	assert_non_null(f);
	n = fread(text, 1, size, f);
	fclose(f);
	return n;
}

static void bad_layouts_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		struct dcp_layout *l = NULL;
		struct dcp_err err = { 0 };
		char text[512];
		size_t n;

		t_case(bad[i].name);
		n = slurp(bad[i].name, text, sizeof(text));
		assert_int_equal(dcp_layout_parse(bad[i].name, text, n, &l, &err), bad[i].code);
		assert_string_equal(err.msg, bad[i].says);
		assert_int_equal(err.code, bad[i].code);
		assert_null(l);
		assert_int_equal(dcp_layout_parse(bad[i].name, text, n, &l, NULL), bad[i].code);
	}
}

static void no_bad_layout_is_forgotten(void **state)
{
	DIR *dir = opendir("tests/bad/layout");

	(void)state;
	assert_non_null(dir);
	for (struct dirent *d; (d = readdir(dir)) != NULL;) {
		bool listed = d->d_name[0] == '.';

		for (size_t i = 0; i < DCP_LEN(bad); i++)
			listed |= strcmp(d->d_name, bad[i].name) == 0;
		if (!listed)
			fail_msg("no row for tests/bad/layout/%s", d->d_name);
	}
	closedir(dir);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_layouts_are_refused),
		cmocka_unit_test(no_bad_layout_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
