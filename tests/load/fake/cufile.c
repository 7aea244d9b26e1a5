/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcufile.so.0 whose reads go into the memory of the fake libcuda.so.1 beside it. FAKE_CUDA_FAIL names its
 * calls, too; a read may fail with a code, or with 0 come short.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/load/fake/fake.h"
#include "tools/load/memory/cufile_abi.h"

#define DECLARE(result, name, arguments)                                                       \
	__attribute__((visibility("default"))) result name arguments;
LOAD_CUFILE_CALLS(DECLARE)

enum { NOT_SUPPORTED = 5008 };

static struct load_cufile_error done(const char *name)
{
	int code = fake_has_context() ? fake_fails(name) : NOT_SUPPORTED;

	return (struct load_cufile_error){ (unsigned)code, 0 };
}

struct load_cufile_error cuFileDriverOpen(void)
{
	return done("cuFileDriverOpen");
}

struct load_cufile_error cuFileDriverClose(void)
{
	return done("cuFileDriverClose");
}

struct load_cufile_error cuFileHandleRegister(void **handle, struct load_cufile_descr *descr)
{
	struct load_cufile_error e = done("cuFileHandleRegister");
	int *fd = malloc(sizeof(*fd));

	if (descr->type != LOAD_CUFILE_FD || !(fcntl(descr->handle.fd, F_GETFL) & O_DIRECT) ||
	    !fd)
		e.code = NOT_SUPPORTED;
	if (e.code) {
		free(fd);
		return e;
	}
	*fd = descr->handle.fd;
	*handle = fd;
	return e;
}

void cuFileHandleDeregister(void *handle)
{
	free(handle);
}

struct load_cufile_error cuFileBufRegister(const void *base, size_t n, int flags)
{
	struct load_cufile_error e = done("cuFileBufRegister");

	if (fake_device_of(base) < 0 || n == 0 || flags)
		e.code = NOT_SUPPORTED;
	return e;
}

struct load_cufile_error cuFileBufDeregister(const void *base)
{
	(void)base;
	return done("cuFileBufDeregister");
}

ssize_t cuFileRead(void *handle, void *base, size_t n, off_t off, off_t at)
{
	int code = fake_fails("cuFileRead");
	ssize_t got;
	void *own;

	if (!fake_has_context())
		return -NOT_SUPPORTED;
	if (code)
		return code == HANGS ? (ssize_t)n / 2 : -code;
	if (n % 4096 || off % 4096 || at % 4096 || fake_device_of((char *)base + at) < 0 ||
	    posix_memalign(&own, 4096, n))
		return -NOT_SUPPORTED;
	got = pread(*(int *)handle, own, n, off);
	if (got > 0)
		fake_write((char *)base + at, own, (size_t)got);
	free(own);
	return got < 0 ? -errno : got;
}
