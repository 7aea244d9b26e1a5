/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fault.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>

#include "core/store/guard.h"

static void on_sigbus(int sig)
{
	dcp_guard_fault();
	signal(sig, SIG_DFL); /* not ours: the faulting access repeats and ends the process */
}

int dcpfs_fault_install(void)
{
	/* NODEFER: leaving the handler by a jump must not keep the signal blocked */
	struct sigaction sa = { .sa_handler = on_sigbus, .sa_flags = SA_NODEFER };

	if (sigaction(SIGBUS, &sa, NULL) < 0)
		return -errno;
	dcp_guard_enable();
	return 0;
}
