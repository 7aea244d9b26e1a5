/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/layout.h"
#include "core/parse/layout/layout.h"

struct dcp_layout *t_layout(const char *text)
{
	struct dcp_layout *l = NULL;
	struct dcp_err err = { 0 };

	if (dcp_layout_parse("test", text, strlen(text), &l, &err) < 0)
		fail_msg("%s\n%s", err.msg, text);
	return l;
}

struct t_list t_list_of(const struct dcp_axis *axis)
{
	struct t_list out = { .n = axis->len };

	assert_true(axis->len <= T_MAX_AXIS);
	for (size_t i = 0; i < out.n; i++)
		out.at[i] = T_HOLE;
	for (size_t s = 0, at = 0; s < axis->n; s++) {
		assert_true(axis->span[s].n > 0);
		assert_int_equal(axis->span[s].at, at);
		for (uint64_t i = 0; i < axis->span[s].n; i++)
			out.at[at++] = (int)(axis->span[s].lo + i);
	}
	return out;
}

uint32_t t_numbers(char *text, uint64_t *out)
{
	uint32_t n = 0;

	for (char *s = text; *s; s += *s == 'x')
		out[n++] = strtoull(s, &s, 10);
	return n;
}
