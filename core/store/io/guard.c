/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/guard.h"

#include <errno.h>
#include <setjmp.h>
#include <stddef.h>

static bool enabled;
static __thread sigjmp_buf *rescue; /* where this thread goes on a fault; NULL: nowhere */

void dcp_guard_enable(void)
{
	enabled = true;
}

bool dcp_guard_enabled(void)
{
	return enabled;
}

void dcp_guard_fault(void)
{
	sigjmp_buf *to = rescue;

	if (!to)
		return;
	rescue = NULL;
	siglongjmp(*to, 1);
}

int dcp_guard_run(int (*fn)(void *arg), void *arg)
{
	sigjmp_buf here;
	int rc;

	if (sigsetjmp(here, 0))
		return -EIO;
	rescue = &here;
	rc = fn(arg);
	rescue = NULL;
	return rc;
}
