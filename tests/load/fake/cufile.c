/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcufile.so.0 whose reads go into the memory of the fake libcuda.so.1 beside it, of files that
 * are not in FUSE. FAKE_CUDA_FAIL names its calls, too; a read may fail with a code, or with "hang"
 * come short; so may "batch", a read of a batch, which with "hang" never ends. FAKE_CUFILE_NVFS:
 * the major version of nvidia-fs.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tests/load/fake/fake.h"
#include "tools/load/memory/cufile_abi.h"

#define DECLARE(result, name, arguments)                                                       \
	__attribute__((visibility("default"))) result name arguments;
LOAD_CUFILE_CALLS(DECLARE)
LOAD_CUFILE_MORE(DECLARE)

enum { NOT_SUPPORTED = 5008 };

static _Atomic bool lost; /* a read never ends, cancelled or not */

static struct load_cufile_error make_result(const char *name)
{
	int code = fake_has_context() ? fake_fails(name) : NOT_SUPPORTED;

	return (struct load_cufile_error){ (unsigned)code, 0 };
}

static __attribute__((constructor)) void print_banner(void)
{
	printf("NVIDIA's libraries say what they like\n");
}

struct load_cufile_error cuFileDriverOpen(void)
{
	const char *own = getenv("CUFILE_LOGFILE_PATH");
	FILE *log = fopen(own ? own : "cufile.log", "a");

	if (log)
		fclose(log);
	return make_result("cuFileDriverOpen");
}

struct load_cufile_error cuFileDriverClose(void)
{
	return make_result("cuFileDriverClose");
}

struct load_cufile_error cuFileHandleRegister(void **handle, struct load_cufile_descr *descr)
{
	struct load_cufile_error e = make_result("cuFileHandleRegister");
	struct statfs fs;

	if (descr->type != LOAD_CUFILE_FD || !(fcntl(descr->handle.fd, F_GETFL) & O_DIRECT) ||
	    fstatfs(descr->handle.fd, &fs) < 0 || fs.f_type == FUSE_SUPER_MAGIC)
		e.code = NOT_SUPPORTED;
	*handle = (void *)(uintptr_t)descr->handle.fd;
	return e;
}

void cuFileHandleDeregister(void *handle)
{
	(void)handle;
}

struct load_cufile_error cuFileBufRegister(const void *base, size_t n, int flags)
{
	struct load_cufile_error e = make_result("cuFileBufRegister");

	if (fake_device_of(base) < 0 || n == 0 || flags)
		e.code = NOT_SUPPORTED;
	return e;
}

struct load_cufile_error cuFileBufDeregister(const void *base)
{
	(void)base;
	if (lost) {
		fprintf(stderr, "cuFileBufDeregister: a read still writes to it\n");
		abort();
	}
	return make_result("cuFileBufDeregister");
}

static ssize_t read_as(const char *name, void *handle, void *base, size_t n, off_t off,
		       off_t at)
{
	int code = fake_fails(name);
	ssize_t got;
	void *own;

	if (!fake_has_context())
		return -NOT_SUPPORTED;
	if (code)
		return code == HANGS ? (ssize_t)n / 2 : -code;
	if (n % 4096 || off % 4096 || at % 4096 || fake_device_of((char *)base + at) < 0 ||
	    posix_memalign(&own, 4096, n))
		return -NOT_SUPPORTED;
	got = pread((int)(uintptr_t)handle, own, n, off);
	if (got > 0)
		fake_write((char *)base + at, own, (size_t)got);
	free(own);
	return got < 0 ? -errno : got;
}

ssize_t cuFileRead(void *handle, void *base, size_t n, off_t off, off_t at)
{
	return read_as("cuFileRead", handle, base, n, off, at);
}

struct load_cufile_error cuFileDriverGetProperties(struct load_cufile_properties *p)
{
	int major = fake_number("FAKE_CUFILE_NVFS", 0);

	*p = (struct load_cufile_properties){ .major = (unsigned)major,
					      .control = major < 3 ? 2 : 0,
					      .batch = 8 };
	return make_result("cuFileDriverGetProperties");
}

/* ---- batches: done when the caller asks, some at a time, the last first ---- */

/* None is freed: one that never ends is kept. */
static struct batch {
	struct batch *next;
	struct load_cufile_request request[8];
	unsigned most, n;
	bool hangs;
} * _Atomic batches;

struct load_cufile_error cuFileBatchIOSetUp(void **batch, unsigned n)
{
	struct load_cufile_error e = make_result("cuFileBatchIOSetUp");
	struct batch *b = calloc(1, sizeof(*b));

	if (n > 8 || !b)
		e.code = NOT_SUPPORTED;
	if (b) {
		b->most = n;
		b->next = atomic_exchange(&batches, b);
	}
	*batch = b;
	return e;
}

struct load_cufile_error cuFileBatchIOSubmit(void *batch, unsigned n,
					     struct load_cufile_request *requests,
					     unsigned flags)
{
	struct load_cufile_error e = make_result("cuFileBatchIOSubmit");
	struct batch *b = batch;

	if (b->n || n == 0 || n > b->most || flags)
		e.code = NOT_SUPPORTED;
	for (unsigned i = 0; i < n && !e.code; i++) {
		if (requests[i].mode != LOAD_CUFILE_BATCH || requests[i].opcode)
			e.code = NOT_SUPPORTED;
		b->request[i] = requests[i];
	}
	b->n = e.code ? 0 : n;
	fake_tell("batch %u\n", b->n);
	return e;
}

struct load_cufile_error cuFileBatchIOGetStatus(void *batch, unsigned least, unsigned *n,
						struct load_cufile_event *events,
						struct timespec *timeout)
{
	struct load_cufile_error e = make_result("cuFileBatchIOGetStatus");
	unsigned most = *n < 3 ? *n : 3;
	struct batch *b = batch;

	for (*n = 0; *n < most && b->n && !e.code;) {
		struct load_cufile_request *r = &b->request[b->n - 1];
		int code = b->hangs ? HANGS : fake_fails("batch");
		ssize_t got;

		if (code == HANGS) {
			lost = b->hangs = true;
			nanosleep(timeout, NULL);
			break;
		}
		got = code ? -code
			   : read_as("batched", r->handle, r->base, r->n, r->off, r->at);
		events[(*n)++] = (struct load_cufile_event){
			r->cookie, got < 0 ? 0x40 : LOAD_CUFILE_COMPLETE, (size_t)got
		};
		b->n--;
	}
	(void)least;
	return e;
}

struct load_cufile_error cuFileBatchIOCancel(void *batch)
{
	((struct batch *)batch)->n = ((struct batch *)batch)->hangs;
	return make_result("cuFileBatchIOCancel");
}

void cuFileBatchIODestroy(void *batch)
{
	(void)batch;
}
