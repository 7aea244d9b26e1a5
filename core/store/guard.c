/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/guard.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

static bool installed;
static __thread sigjmp_buf *rescue; /* where this thread goes on SIGBUS; NULL: nowhere */

static void on_sigbus(int sig)
{
	sigjmp_buf *to = rescue;

	if (to) {
		rescue = NULL;
		siglongjmp(*to, 1);
	}
	signal(sig, SIG_DFL); /* not ours: the faulting access repeats and kills us */
}

int dcp_guard_install(void)
{
	/* NODEFER: leaving the handler by a jump must not keep the signal blocked */
	struct sigaction sa = { .sa_handler = on_sigbus, .sa_flags = SA_NODEFER };

	if (sigaction(SIGBUS, &sa, NULL) < 0)
		return -errno;
	installed = true;
	return 0;
}

bool dcp_guard_active(void)
{
	return installed;
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
