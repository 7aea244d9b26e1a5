/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to be preloaded where the kernel has no modules, so that cuFile would not be used:
 * /proc/modules can be read, and is empty; with DCPFS_TEST_NO_MODULES it cannot.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int open64(const char *path, int flags, ...);

int open64(const char *path, int flags, ...)
{
	va_list ap;
	int mode;

	va_start(ap, flags);
	mode = va_arg(ap, int); /* without O_CREAT it is not looked at */
	va_end(ap);
	if (strcmp(path, "/proc/modules") == 0) {
		if (getenv("DCPFS_TEST_NO_MODULES")) {
			errno = EACCES;
			return -1;
		}
		path = "/dev/null";
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
