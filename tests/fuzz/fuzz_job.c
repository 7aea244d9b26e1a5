/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes choose a checkpoint and one layout or two (tests/unit/t/model/job.h, rule.h): everything
 * the plan of the whole job tells must be what the slow reference says, and the plan the same
 * when tensors are told the other way round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/parse/layout/layout.h"
#include "tests/unit/t/model/job.h"
#include "tests/unit/t/model/rule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static struct dcp_layout *layout(struct t_choice *c)
{
	struct dcp_layout *l = NULL;
	char text[T_RULE_TEXT];

	t_rule_layout(text, T_JOB_RANKS, c);
	must(dcp_layout_parse("fuzz", text, strlen(text), &l, NULL) == 0, text);
	return l;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct t_choice c = { .p = data, .n = n };
	size_t there[T_JOB_TENSORS], back[T_JOB_TENSORS];
	struct dcp_layout *to, *from = NULL;
	uint64_t digest[2] = { 0 };
	static struct t_job w;
	const char *wrong;

	if (n == 0)
		return 0;
	to = layout(&c);
	if (t_pick(&c, 3) == 1)
		from = layout(&c);
	w.opts = (struct dcp_job_opts){ .to = to, .from = from };
	t_job_random(&w, &c, false);
	for (size_t i = 0; i < w.n; i++) {
		there[i] = i;
		back[i] = w.n - 1 - i;
	}
	wrong = t_job_check(&w, there, &digest[0]);
	if (!wrong)
		wrong = t_job_check(&w, back, &digest[1]);
	must(!wrong, wrong);
	must(digest[0] == digest[1], "told the other way round, another plan");
	dcp_layout_free(to);
	dcp_layout_free(from);
	return 0;
}
