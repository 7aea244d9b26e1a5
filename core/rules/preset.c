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

bool dcp_rules_preset_named(const char *name, struct dcp_rules_preset *out)
{
	for (size_t i = 0; dcp_rules_preset_at(i, out); i++)
		if (strcmp(out->name, name) == 0)
			return true;
	return false;
}

/* Is @name part of the preset's name, or that of it? "llama", "megatron-llama". */
static bool overlaps(const char *name, const char *preset)
{
	return strlen(name) > 2 && (strstr(preset, name) || strstr(name, preset));
}

int dcp_rules_preset(const char *name, struct dcp_rules **out, struct dcp_err *err)
{
	struct dcp_near nearness = dcp_near_to(name);
	const char *nearest = NULL;
	struct dcp_rules_preset p;
	char near[256] = "";

	if (dcp_rules_preset_named(name, &p))
		return dcp_rules_parse(p.text, strlen(p.text), name, out, err);
	for (size_t i = 0; dcp_rules_preset_at(i, &p); i++) {
		size_t n = strlen(near);

		if (dcp_near_take(&nearness, p.name))
			nearest = p.name;
		if (overlaps(name, p.name) && n + strlen(p.name) + 2 < sizeof(near))
			snprintf(near + n, sizeof(near) - n, "%s%s", n ? ", " : "", p.name);
	}
	if (*near && (!nearest || nearness.best > 2))
		return dcp_fail(err, -ENOENT, "no preset %.60s, near are %s", name, near);
	return dcp_fail(err, -ENOENT, "no preset %.60s%s%s%s", name,
			nearest ? ", nearest is \"" : "", nearest ? nearest : "",
			nearest ? "\"" : "");
}
