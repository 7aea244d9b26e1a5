/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/base.h"

void notify_ready(const char *mnt)
{
	const char *name = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t n = name ? strlen(name) : 0;
	dcp_auto_fd int fd = -1;
	char text[512];
	int len;

	if (!n || n >= sizeof(to.sun_path) || (name[0] != '/' && name[0] != '@'))
		return;
	memcpy(to.sun_path, name, n);
	if (name[0] == '@') /* of the abstract name space */
		to.sun_path[0] = '\0';
	len = snprintf(text, sizeof(text), "READY=1\nMAINPID=%d\nSTATUS=mounted at %.400s",
		       (int)getpid(), mnt);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && sendto(fd, text, (size_t)len, MSG_NOSIGNAL, (struct sockaddr *)&to,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		return; /* the manager's time for a start runs out, and it says so */
}

bool notify_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	char own[64];
	struct stat st;

	if (!stream || fstat(STDERR_FILENO, &st) < 0)
		return false;
	snprintf(own, sizeof(own), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	return strcmp(own, stream) == 0;
}
