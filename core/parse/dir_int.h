/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_int: the two ways to open below a directory, apart, so that the one for kernels
 * without openat2 is tested on kernels that have it.
 */
#pragma once
#include <stdbool.h>

/* Ask the kernel. -ENOSYS or -EPERM: it cannot, or a sandbox forbids asking. */
int dcp_open_kernel(int dirfd, const char *name, int flags);

/* The file that a link of Hugging Face's cache leads to; see dir_hub.c. -EXDEV: no such link.
 */
int dcp_open_blob(int dirfd, const char *name, int flags);

/* One component at a time, refusing every link with -EXDEV. */
int dcp_open_walk(int dirfd, const char *name, int flags);
