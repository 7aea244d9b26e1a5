/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/base/text.h"
#include "core/rules/rules.h"

enum dcp_lora dcp_rules_lora(const char *key)
{
	static const char *const parts[] = { ".lora_",  ".lora.",      "_lora.",
					     "_lora1.", "_lora2.",     ".hada_",
					     ".lokr_",  ".oft_blocks", ".oft_diag" };
	static const char *const tops[] = { "lora_", "lycoris_" };
	static const char *const beside[] = { ".alpha",  ".dora_scale", ".diff",
					      ".diff_b", ".rescale",    ".scalar",
					      ".w_norm", ".b_norm",     ".on_input" };
	static const char *const apart[] = { "optimizer", "scheduler." };
	size_t n = strlen(key);

	for (size_t i = 0; i < DCP_LEN(apart); i++)
		if (strncmp(key, apart[i], strlen(apart[i])) == 0)
			return DCP_LORA_BESIDE;
	for (size_t i = 0; i < DCP_LEN(parts); i++)
		if (strstr(key, parts[i]))
			return DCP_LORA_YES;
	for (size_t i = 0; i < DCP_LEN(tops); i++)
		if (strncmp(key, tops[i], strlen(tops[i])) == 0)
			return DCP_LORA_YES;
	for (size_t i = 0; i < DCP_LEN(beside); i++)
		if (dcp_ends_with(key, n, beside[i]))
			return DCP_LORA_BESIDE;
	return DCP_LORA_NO;
}
