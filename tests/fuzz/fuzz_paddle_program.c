/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever the bytes of a program: its names are sorted, each once, or there is a reason. */
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"
#include "core/parse/paddle/paddle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_paddle_program p;
	struct dcp_err err = { 0 };
	int rc = dcp_paddle_program_read(&src, &p, &err);

	must(rc == 0 || (err.code == rc && err.msg[0]));
	if (rc < 0)
		return 0;
	for (size_t i = 0; i < p.n; i++) {
		must(p.vars[i].name[0] && p.vars[i].ndim <= DCP_MAX_NDIM);
		must(i == 0 || strcmp(p.vars[i - 1].name, p.vars[i].name) < 0);
	}
	dcp_paddle_program_finish(&p);
	return 0;
}
