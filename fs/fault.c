/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fault.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#include "core/store/io/files.h"

/*
 * A jump out of the handler does not restore the signal mask as a return would, so restore it
 * here.
 */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *before = context;

	pthread_sigmask(SIG_SETMASK, &before->uc_sigmask, NULL);
	dcp_guard_fault();
	signal(sig, SIG_DFL); /* the access faults again, which ends the process */
}

int dcpfs_fault_install(void)
{
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

	if (sigaction(SIGBUS, &sa, NULL) < 0)
		return -errno;
	dcp_guard_enable();
	return 0;
}
