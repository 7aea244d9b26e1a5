/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's and Paddle's own cuts (golden/cuts.txt), element by element.
 * covers: layout
 */
#include "tests/unit/t_layout.h"

#include "core/base/arena.h"
#include "core/model/tensor.h"

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
			t_assert_says(&err, "leaves less than nothing");
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
	size_t torch = 0, paddle = 0, refused = 0;
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
		refused += strchr(line, '!') != NULL;
		check_line(line);
	}
	fclose(f);
	print_message("           %zu of torch, %zu of paddle, %zu refused\n", torch, paddle,
		      refused);
	assert_true(torch > 1500 && paddle > 400 && refused > 20);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(frameworks_cut_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
