/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name: what Composer's files are called, and what is in them.
 */
#include "core/format/composer/composer.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/parse/torch/torch.h"

/* After "<word><digits>", the word not being the end of a longer one; NULL: it is not there.
 */
static const char *behind_number(const char *name, const char *from, const char *word)
{
	for (const char *p = from; (p = strstr(p, word)); p++) {
		const char *end = p + strlen(word);

		if ((p == name || !isalnum((unsigned char)p[-1])) &&
		    isdigit((unsigned char)*end))
			return end + strspn(end, "0123456789");
	}
	return NULL;
}

bool dcp_composer_name(const char *file, char *save, uint64_t *rank)
{
	const char *batch = behind_number(file, file, "ba");
	const char *end = batch ? behind_number(file, batch, "rank") : NULL;
	const char *digits;
	int n;

	if (!end || *end != '.')
		return false;
	digits = dcp_digits_before(file, end);
	n = snprintf(save, DCP_GROUP_MAX, "%.*s0%s", (int)(digits - file), file, end);
	if (!dcp_take_number(&digits, NULL, 9, rank))
		return false;
	return n > 0 && n < DCP_GROUP_MAX;
}

static bool only_state_and_rng(struct dcp_pv root)
{
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(root, &n);

	for (size_t i = 0; i < n; i++)
		if (!dcp_pv_is_str(kv[2 * i], "state") && !dcp_pv_is_str(kv[2 * i], "rng"))
			return false;
	return n > 0;
}

bool dcp_composer_is_state(const struct dcp_torch *t)
{
	static const char *const parts[] = { "timestamp",    "rank_zero_seed", "run_name",
					     "integrations", "metadata",       "algorithms",
					     "callbacks",    "schedulers" };
	struct dcp_pv root = dcp_torch_root(t);
	const struct dcp_pv state = dcp_pv_at(root, "state");

	if (!dcp_pv_is_mapping(root) || !only_state_and_rng(root))
		return false;
	for (size_t i = 0; dcp_pv_is_mapping(state) && i < DCP_LEN(parts); i++)
		if (dcp_pv_get(state, parts[i]))
			return true;
	return false;
}
