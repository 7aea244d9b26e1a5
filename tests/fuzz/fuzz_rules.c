/* SPDX-License-Identifier: Apache-2.0 */
/* A file of rules for mp_rank directories: refused with its line, or of use, whatever it says.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/megatron/megatron_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char *const keys[] = { "decoder.layers.0.mlp.linear_fc1.weight", "", "w",
					    "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a" };
	struct dcp_megatron_rules rules = { 0 };
	struct dcp_err err = { 0 };
	int rc = dcp_megatron_rules_parse(&rules, (const char *)data, n, &err);

	must(rc == 0 || (rc == err.code && strstr(err.msg, "dcpfs.rules:")));
	for (size_t i = 0; rc == 0 && i < sizeof(keys) / sizeof(*keys); i++) {
		struct dcp_megatron_rule r;

		if (dcp_megatron_rules_find(&rules, keys[i], &r))
			must(r.replicate || r.groups > 0);
	}
	dcp_megatron_rules_finish(&rules);
	return 0;
}
