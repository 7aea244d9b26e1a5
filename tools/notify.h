/* SPDX-License-Identifier: Apache-2.0 */
/* notify: what the manager of services (systemd) wants to know of a mount in the foreground. */
#pragma once
#include <stdbool.h>

/*
 * Tell the manager that the mount at @mnt answers: a datagram to the socket that NOTIFY_SOCKET
 * names. Without that variable nothing happens.
 */
void notify_ready(const char *mnt);

/* Is standard error a stream of the journal, where a line may begin with its level: "<4>"? */
bool notify_is_journal(void);
