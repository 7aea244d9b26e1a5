/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's and Paddle's own cuts (golden/cuts.txt), element by element, and transformers' of its
 * models by their plans (golden/tp_plans.txt): a plan read as a layout, and the presets.
 * covers: layout
 */
#include "tests/unit/t/model/layout.h"

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/tensor.h"
#include "core/parse/layout/layout.h"

/* "*", "-", "4+2,9+1" or "=3": so many, of which T_HOLE is the first. */
static struct t_list list_from(char *text, int size)
{
	struct t_list out = { 0 };

	if (strcmp(text, "*") == 0)
		for (int i = 0; i < size; i++)
			out.at[out.n++] = i;
	if (*text == '=') {
		out.at[0] = T_HOLE;
		out.n = strtoull(text + 1, NULL, 10);
		return out;
	}
	for (char *s = strtok(text, ","); s && *s != '*' && *s != '-'; s = strtok(NULL, ",")) {
		int lo, n;

		assert_int_equal(sscanf(s, "%d+%d", &lo, &n), 2);
		for (int i = 0; i < n; i++)
			out.at[out.n++] = lo + i;
	}
	return out;
}

/* One rank's answer, "0+2/ *", against the layout's. */
static void check_rank(const struct dcp_layout *l, uint32_t rank, char *want, uint32_t ndim,
		       const uint64_t *shape, const char *line)
{
	struct dcp_arena arena;
	struct dcp_cut cut;
	char *next = want;

	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(dcp_layout_cut(l, rank, "w", ndim, shape, &arena, &cut, NULL), 1);
	assert_int_equal(cut.ndim, ndim);
	for (uint32_t d = 0; d < ndim; d++) {
		struct t_list w = list_from(strsep(&next, "/"), (int)shape[d]);
		struct t_list g = t_list_of(&cut.axis[d]);

		if (w.at[0] == T_HOLE && w.n == g.n)
			continue;
		if (w.n != g.n || memcmp(w.at, g.at, w.n * sizeof(w.at[0])) != 0)
			fail_msg("rank %u, dimension %u: %s", rank, d, line);
	}
	dcp_arena_finish(&arena);
}

/* The layout that a line of the table is about. */
static struct dcp_layout *layout_for(const char *mesh, const char *rule)
{
	char text[512], *at = text;
	uint64_t size[DCP_LAYOUT_MAX_DIMS];
	char copy[64];
	uint32_t ndim;

	snprintf(copy, sizeof(copy), "%s", mesh);
	ndim = t_numbers(copy, size);
	at += sprintf(at, "mesh");
	for (uint32_t d = 0; d < ndim; d++)
		at += sprintf(at, " %c=%d", 'a' + (int)d, (int)size[d]);
	at += sprintf(at, "\n* ");
	for (int depth = 0; *rule; rule++) {
		depth += *rule == '(' || *rule == '[';
		depth -= *rule == ')' || *rule == ']';
		*at++ = *rule == ',' && depth == 0 ? ' ' : *rule;
	}
	*at = '\0';
	return t_layout(text);
}

/* Paddle's rule is refused on some rank at least: what is left of a first cut decides. */
static void check_refused(const struct dcp_layout *l, uint32_t ndim, const uint64_t *shape,
			  const char *line)
{
	bool refused = false;

	for (uint32_t rank = 0; rank < dcp_layout_ranks(l); rank++) {
		struct dcp_err err = { 0 };
		struct dcp_arena arena;
		struct dcp_cut cut;

		dcp_arena_init(&arena, 1 << 20);
		if (dcp_layout_cut(l, rank, "w", ndim, shape, &arena, &cut, &err) < 0) {
			t_assert_says(&err, "nothing is left for the last");
			refused = true;
		}
		dcp_arena_finish(&arena);
	}
	if (!refused)
		fail_msg("not refused: %s", line);
}

static void check_line(char *line)
{
	char whole[4096], *word[5], *next = line;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_layout *l;
	uint32_t ndim;

	snprintf(whole, sizeof(whole), "%s", line);
	for (size_t i = 0; i < 5; i++)
		word[i] = strsep(&next, " ");
	assert_non_null(word[4]);
	l = layout_for(word[1], word[2]);
	ndim = t_numbers(word[3], shape);
	next = word[4];
	if (*next == '!')
		check_refused(l, ndim, shape, whole);
	else
		for (uint32_t rank = 0; rank < dcp_layout_ranks(l); rank++)
			check_rank(l, rank, strsep(&next, ";"), ndim, shape, whole);
	dcp_layout_free(l);
}

static void frameworks_cut_the_same(void **state)
{
	size_t torch = 0, paddle = 0, fsdp = 0, refused = 0;
	char line[4096];
	FILE *f = fopen("tests/golden/cuts.txt", "r");

	(void)state;
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		if (line[0] == '#')
			continue;
		torch += strncmp(line, "torch", 5) == 0;
		paddle += strncmp(line, "paddle", 6) == 0;
		fsdp += strncmp(line, "fsdp2", 5) == 0;
		refused += strchr(line, '!') != NULL;
		check_line(line);
	}
	fclose(f);
	print_message("           %zu of torch, %zu of paddle, %zu of FSDP2, %zu refused\n",
		      torch, paddle, fsdp, refused);
	assert_true(torch > 1500 && paddle > 400 && fsdp > 50 && refused > 20);
}

/* The models of transformers that a preset cuts as transformers does. */
static const struct {
	const char *preset, *models;
} presets[] = {
	{ "tp2:llama", "cohere cohere2 ernie4_5 exaone4 gemma gemma2 gemma3_text granite "
		       "helium internlm3 llama "
		       "ministral3 mistral olmo olmo2 olmo3 qwen2 qwen3 seed_oss smollm3" },
	{ "tp2:qwen",
	  "qwen2 qwen2_moe qwen2_vl_text qwen2_5_vl_text qwen3 qwen3_moe qwen3_vl_moe_text" },
	{ "tp2:qwen3-next", "qwen3_5_moe_text qwen3_5_text qwen3_next" },
	{ "tp2:mixtral", "minimax minimax_m2 mixtral" },
	{ "tp2:gpt-neox", "gpt_neox" },
};

enum plan_kind { TP, EP };

/* What the file says of the models that one "model" line names. */
struct block {
	char models[1024];        /* with a blank before and behind each */
	struct dcp_buf plan[2];   /* as JSON, the closing brace left out */
	struct dcp_layout *as[2]; /* the plan as a layout; NULL: there is none */
	size_t ep, ep_cut;        /* keys that the EP plan should cut, and does */
};

static bool has_word(const char *words, const char *word, size_t n)
{
	for (const char *at = words; (at = strstr(at, word)); at++)
		if ((at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
			return true;
	return false;
}

static bool is_preset_of(size_t preset, const struct block *b)
{
	char models[sizeof(b->models)], *next = models, *model;

	snprintf(models, sizeof(models), "%s", b->models);
	while ((model = strsep(&next, " ")))
		if (*model && has_word(presets[preset].models, model, strlen(model)))
			return true;
	return false;
}

/* Does rank 1 of 2 have the same of a tensor with so many dimensions of 8? */
static bool same_cut(const struct dcp_layout *got, const struct dcp_layout *want,
		     const char *key, uint32_t ndim)
{
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_arena arena;
	struct dcp_cut g, w;
	bool same = true;

	for (uint32_t d = 0; d < ndim; d++)
		shape[d] = 8;
	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(dcp_layout_cut(got, 1, key, ndim, shape, &arena, &g, NULL), 1);
	assert_int_equal(dcp_layout_cut(want, 1, key, ndim, shape, &arena, &w, NULL), 1);
	for (uint32_t d = 0; d < ndim; d++) {
		struct t_list x = t_list_of(&g.axis[d]), y = t_list_of(&w.axis[d]);

		same = same && x.n == y.n && memcmp(x.at, y.at, x.n * sizeof(x.at[0])) == 0;
	}
	dcp_arena_finish(&arena);
	return same;
}

/* A name stands for all below it; transformers stops at the module's own parameters. */
static bool is_nested(const char *key)
{
	return strcmp(key, "model.embed_tokens.embed_norm.weight") == 0;
}

static void check_key(struct block *b, enum plan_kind kind, const struct dcp_layout *want,
		      const struct dcp_layout *whole, const char *key, uint32_t ndim)
{
	if (b->as[kind] && !same_cut(b->as[kind], want, key, ndim) && !is_nested(key))
		fail_msg("%s of%s", key, b->models);
	if (kind == EP) {
		b->ep++;
		return;
	}
	if (b->as[EP])
		b->ep_cut += !same_cut(b->as[EP], whole, key, ndim);
	for (size_t i = 0; i < DCP_LEN(presets); i++) {
		struct dcp_layout *preset;

		if (!is_preset_of(i, b))
			continue;
		assert_int_equal(dcp_layout_named(presets[i].preset, &preset, NULL), 0);
		if (!same_cut(preset, want, key, ndim))
			fail_msg("%s: %s of%s", presets[i].preset, key, b->models);
		dcp_layout_free(preset);
	}
}

static struct dcp_layout *layout_of_plan(struct dcp_buf *plan)
{
	struct dcp_layout *l;
	struct dcp_err err = { 0 };

	if (plan->n == 0)
		return NULL;
	dcp_buf_str(plan, "}");
	if (dcp_layout_parse("plan", plan->p, plan->n, &l, &err) < 0)
		fail_msg("%s", err.msg);
	dcp_buf_reset(plan);
	return l;
}

/* "cut tp NDIM PLACEMENT KEY...", from NDIM on. */
static void check_cut(struct block *b, enum plan_kind kind, char *next)
{
	uint32_t ndim = (uint32_t)strtoul(strsep(&next, " "), NULL, 10);
	struct dcp_layout *want, *whole = t_layout("mesh tp=2\n* replicate\n");
	char text[128], *key;

	snprintf(text, sizeof(text), "mesh tp=2\n* %s\n", strsep(&next, " "));
	want = t_layout(text);
	for (int k = TP; k <= EP; k++)
		if (b->plan[k].n)
			b->as[k] = layout_of_plan(&b->plan[k]);
	while ((key = strsep(&next, " ")))
		check_key(b, kind, want, whole, key, ndim);
	dcp_layout_free(want);
	dcp_layout_free(whole);
}

static void end_block(struct block *b)
{
	if (b->ep != b->ep_cut)
		fail_msg("%zu keys cut by experts, not %zu, of%s", b->ep_cut, b->ep, b->models);
	for (int k = TP; k <= EP; k++) {
		dcp_layout_free(b->as[k]);
		dcp_buf_finish(&b->plan[k]);
	}
	*b = (struct block){ 0 };
}

static void check_plan_line(struct block *b, char *line)
{
	char *next = line, *word = strsep(&next, " "), *style, *name;
	enum plan_kind kind = strcmp(word, "ep") == 0 ? EP : TP;

	if (strcmp(word, "model") == 0) {
		end_block(b);
		assert_true((size_t)snprintf(b->models, sizeof(b->models), " %s ", next) <
			    sizeof(b->models));
		return;
	}
	if (strcmp(word, "cut") == 0) {
		kind = strcmp(strsep(&next, " "), "ep") == 0 ? EP : TP;
		check_cut(b, kind, next);
		return;
	}
	style = strsep(&next, " ");
	if (b->plan[kind].n == 0)
		dcp_buf_str(&b->plan[kind], "{\"mesh\": \"tp=2\"");
	while ((name = strsep(&next, " ")))
		dcp_buf_printf(&b->plan[kind], ", \"%s\": \"%s\"", name, style);
}

static void transformers_cuts_the_same(void **state)
{
	size_t models = 0, of_presets = 0, size = 0, listed = 0;
	struct block b = { 0 };
	char *line = NULL;
	FILE *f = fopen("tests/golden/tp_plans.txt", "r");

	(void)state;
	assert_non_null(f);
	while (getline(&line, &size, f) > 0) {
		line[strcspn(line, "\n")] = '\0';
		if (line[0] == '#')
			continue;
		for (char *s = line; strncmp(line, "model ", 6) == 0 && (s = strchr(s, ' '));) {
			size_t n = strcspn(++s, " ");
			char model[64] = "";

			memcpy(model, s, n < sizeof(model) ? n : 0);
			models++;
			for (size_t i = 0; i < DCP_LEN(presets); i++)
				of_presets += has_word(presets[i].models, model, n);
		}
		check_plan_line(&b, line);
	}
	end_block(&b);
	free(line);
	fclose(f);
	for (size_t i = 0; i < DCP_LEN(presets); i++) {
		listed++;
		for (const char *s = presets[i].models; *s; s++)
			listed += *s == ' ';
	}
	print_message("           %zu models, %zu of presets\n", models, of_presets);
	assert_int_equal(of_presets, listed);
	assert_true(models > 120);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(frameworks_cut_the_same),
		cmocka_unit_test(transformers_cuts_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
