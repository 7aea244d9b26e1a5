/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json says that a model has, held against what transformers saved of such models. */
#include "core/base/intern.h"
#include "core/rules/rules.h"
#include "tests/unit/t.h"

enum { MOST = 200 };

struct saved {
	char key[MOST][120];
	uint32_t ndim[MOST];
	uint64_t shape[MOST][3];
	bool seen[MOST];
	size_t n;
};

static int compare(void *ctx, const struct dcp_rules_expected *x)
{
	struct saved *s = ctx;
	size_t i = 0;

	while (i < s->n && strcmp(s->key[i], x->key) != 0)
		i++;
	if (i == s->n && !x->optional)
		fail_msg("%s was not saved", x->key);
	if (i == s->n)
		return 0;
	assert_false(s->seen[i]);
	s->seen[i] = true;
	if (x->ndim && (x->ndim != s->ndim[i] ||
			memcmp(x->shape, s->shape[i], x->ndim * sizeof(*x->shape)) != 0))
		fail_msg("%s: [%llu, %llu] of %u, saved [%llu, %llu]", x->key,
			 (unsigned long long)x->shape[0], (unsigned long long)x->shape[1],
			 x->ndim, (unsigned long long)s->shape[i][0],
			 (unsigned long long)s->shape[i][1]);
	return 0;
}

static void check_model(const char *config, struct saved *s)
{
	struct dcp_rules_config c;

	t_case(config);
	assert_int_equal(dcp_rules_config_parse(config, strlen(config), &c, NULL), 0);
	assert_int_equal(c.dtype, DCP_DTYPE_F32);
	assert_int_equal(dcp_rules_expect(&c, compare, s), 1);
	for (size_t i = 0; i < s->n; i++)
		if (!s->seen[i])
			fail_msg("%s was not expected", s->key[i]);
	memset(s, 0, sizeof(*s));
}

static void models_of_every_family_are_expected(void **state)
{
	static struct saved s;
	char config[2048] = "", line[2048];
	FILE *f = fopen("tests/golden/hf-shapes.txt", "re");

	(void)state;
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		char *at = strchr(line, ' ');

		line[strcspn(line, "\n")] = '\0';
		if (*line == '{') {
			if (*config)
				check_model(config, &s);
			strcpy(config, line);
			continue;
		}
		assert_true(at && s.n < MOST && (size_t)(at - line) < sizeof(s.key[0]));
		memcpy(s.key[s.n], line, (size_t)(at - line));
		while (*at)
			s.shape[s.n][s.ndim[s.n]++] = strtoull(at, &at, 10);
		s.n++;
	}
	check_model(config, &s);
	fclose(f);
}

static int find_head(void *ctx, const struct dcp_rules_expected *x)
{
	if (strcmp(x->key, "lm_head.weight") == 0)
		*(int *)ctx = x->optional;
	return 0;
}

/* The output layer of a model may be the embedding, unless its config.json says that it is not. */
static void tied_embeddings_are_optional(void **state)
{
	for (int tie = -1; tie <= 1; tie++) {
		struct dcp_rules_config c = {
			.model_type = "llama", .layers = 1, .hidden = 8, .tie = tie
		};
		int optional = -1;

		(void)state;
		assert_int_equal(dcp_rules_expect(&c, find_head, &optional), 1);
		assert_int_equal(optional, tie != 0);
	}
}

static int count(void *ctx, const struct dcp_rules_expected *x)
{
	++*(int *)ctx;
	return x->ndim && strcmp(x->key, "model.norm.weight") == 0 ? -EPERM : 0;
}

static void unknown_models_expect_nothing(void **state)
{
	static const char *const configs[] = {
		"{}",
		"{\"model_type\": \"lama\", \"num_hidden_layers\": 2}",
		"{\"model_type\": \"llama mistral\", \"num_hidden_layers\": 2}",
		"{\"model_type\": \"llama\"}",
		"{\"model_type\": \"llama\", \"num_hidden_layers\": 99999999999}",
		"{\"model_type\": \"mixtral\", \"num_hidden_layers\": 4294967296, "
		"\"num_experts\": "
		"4294967296}",
	};
	struct dcp_rules_config c;
	int n = 0;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(configs); i++) {
		t_case(configs[i]);
		assert_int_equal(
			dcp_rules_config_parse(configs[i], strlen(configs[i]), &c, NULL), 0);
		assert_int_equal(dcp_rules_expect(&c, count, &n), 0);
		assert_int_equal(n, 0);
	}
	c = (struct dcp_rules_config){ .model_type = "llama", .layers = 1, .hidden = 8 };
	assert_int_equal(dcp_rules_expect(&c, count, &n), -EPERM);
	assert_int_equal(n, 2);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(models_of_every_family_are_expected),
		cmocka_unit_test(tied_embeddings_are_optional),
		cmocka_unit_test(unknown_models_expect_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
