/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/near.h"
#include "core/rules/rules_int.h"

bool dcp_rules_preset_at(size_t i, struct dcp_rules_preset *out)
{
	if (i >= dcp_rules_npresets)
		return false;
	*out = dcp_rules_presets[i];
	return true;
}

int dcp_rules_preset(const char *name, struct dcp_rules **out, struct dcp_err *err)
{
	size_t best = dcp_near_limit(name) + 1;
	const char *nearest = NULL;

	for (size_t i = 0; i < dcp_rules_npresets; i++) {
		const struct dcp_rules_preset *p = &dcp_rules_presets[i];
		size_t d = dcp_near_distance(name, p->name, best);

		if (strcmp(p->name, name) == 0)
			return dcp_rules_parse(p->text, strlen(p->text), name, out, err);
		if (d < best) {
			best = d;
			nearest = p->name;
		}
	}
	return dcp_fail(err, -ENOENT, DCP_ERR_NO_OFFSET, "no preset %.60s%s%s%s", name,
			nearest ? ", nearest is \"" : "", nearest ? nearest : "",
			nearest ? "\"" : "");
}
