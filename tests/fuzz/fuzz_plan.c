/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes choose a tensor, its pieces, a cut and ranges of it (tests/unit/t/model/plan.h);
 * strided descriptors and meetings must say of every byte what the slow reference says.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/t/model/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct t_choice c = { .p = data, .n = n };
	static struct t_plan w;
	const char *wrong;

	if (n == 0)
		return 0;
	wrong = t_plan_check(&w, &c);
	if (wrong) {
		fprintf(stderr, "%s\n", wrong);
		abort();
	}
	return 0;
}
