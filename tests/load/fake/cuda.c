/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of libcuda.so.1. */
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/load/fake/fake.h"
#include "tools/load/memory/scatter.h"

/* ---- what was asked for ---- */

static uint64_t nth[4]; /* calls so far of what is to fail */

int fake_number(const char *name, int otherwise)
{
	const char *s = getenv(name);

	return s && *s ? atoi(s) : otherwise;
}

int fake_fails(const char *name)
{
	const char *s = getenv("FAKE_CUDA_FAIL");
	size_t n = strlen(name);

	for (unsigned i = 0; s && i < 4; i++, s = strchr(s, ' ') ? strchr(s, ' ') + 1 : NULL) {
		char *end;
		uint64_t at;

		if (strncmp(s, name, n) || s[n] != ':')
			continue;
		at = strtoull(s + n + 1, &end, 10);
		if (__atomic_add_fetch(&nth[i], 1, __ATOMIC_RELAXED) == at || !at)
			return strncmp(end, ":hang", 5) == 0 ? HANGS : atoi(end + 1);
	}
	return 0;
}

void fake_tell(const char *fmt, ...)
{
	const char *path = getenv("FAKE_CUDA_LOG");
	FILE *f = path ? fopen(path, "ae") : NULL;
	va_list ap;

	if (!f)
		return;
	va_start(ap, fmt);
	vfprintf(f, fmt, ap);
	va_end(ap);
	fclose(f);
}

/* ---- calls ---- */

#define DECLARE(name, arguments) __attribute__((visibility("default"))) unsigned name arguments;
LOAD_CUDA_CALLS(DECLARE)

#define MAY_FAIL(name)                                                                         \
	do {                                                                                   \
		int code_ = fake_fails(name);                                                  \
		if (code_)                                                                     \
			return (unsigned)code_;                                                \
	} while (0)

/* ---- contexts ---- */

struct CUctx_st {
	int device, retained;
};
static struct CUctx_st contexts[64];
static __thread struct CUctx_st *stack[16];
static __thread unsigned depth;

/* Calls that need a context. */
#define NEEDS_CONTEXT(name)                                                                    \
	MAY_FAIL(name);                                                                        \
	if (!depth)                                                                            \
		return INVALID_CONTEXT;                                                        \
	if (fake_broken)                                                                       \
	return fake_broken

bool fake_has_context(void)
{
	return depth > 0;
}

int fake_context_device(void)
{
	return depth ? stack[depth - 1]->device : -1;
}

unsigned cuInit(unsigned flags)
{
	MAY_FAIL("cuInit");
	return flags ? INVALID : fake_number("FAKE_CUDA_GPUS", 2) ? 0 : LOAD_CUDA_NO_DEVICE;
}

unsigned cuDriverGetVersion(int *version)
{
	MAY_FAIL("cuDriverGetVersion");
	*version = fake_number("FAKE_CUDA_VERSION", 13000);
	return 0;
}

unsigned cuGetErrorName(unsigned error, const char **name)
{
	*name = error == LOAD_CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
		: error == LOAD_CUDA_NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
		: error == FAILED                ? "CUDA_ERROR_LAUNCH_FAILED"
						 : NULL;
	return *name ? 0 : INVALID;
}

unsigned cuDeviceGetCount(int *n)
{
	MAY_FAIL("cuDeviceGetCount");
	*n = fake_number("FAKE_CUDA_GPUS", 2);
	return 0;
}

unsigned cuDeviceGet(int *device, int number)
{
	MAY_FAIL("cuDeviceGet");
	*device = number;
	return 0;
}

unsigned cuDeviceGetName(char *name, int size, int device)
{
	MAY_FAIL("cuDeviceGetName");
	snprintf(name, (size_t)size, "Fake %d", device);
	return 0;
}

unsigned cuDeviceGetAttribute(int *value, unsigned attribute, int device)
{
	(void)device;
	MAY_FAIL("cuDeviceGetAttribute");
	*value =
		attribute == LOAD_CUDA_MODE
			? fake_number("FAKE_CUDA_MODE", LOAD_CUDA_MODE_DEFAULT)
			: attribute == LOAD_CUDA_UNIFIED && fake_number("FAKE_CUDA_UNIFIED", 1);
	return 0;
}

unsigned cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	MAY_FAIL("cuDeviceCanAccessPeer");
	*can = device != peer;
	return 0;
}

unsigned cuDeviceGetPCIBusId(char *id, int size, int device)
{
	MAY_FAIL("cuDeviceGetPCIBusId");
	if (getenv("FAKE_CUDA_PCI"))
		snprintf(id, (size_t)size, "%s", getenv("FAKE_CUDA_PCI"));
	else
		snprintf(id, (size_t)size, "FFFF:%02X:00.0", device);
	return 0;
}

unsigned cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device)
{
	MAY_FAIL("cuDevicePrimaryCtxRetain");
	fake_tell("context %d\n", device);
	contexts[device].device = device;
	contexts[device].retained++;
	*context = &contexts[device];
	return 0;
}

unsigned cuDevicePrimaryCtxRelease_v2(int device)
{
	MAY_FAIL("cuDevicePrimaryCtxRelease_v2");
	if (contexts[device].retained == 1 && fake_hangs()) {
		fprintf(stderr, "a context ends while an operation of it runs\n");
		abort();
	}
	return contexts[device].retained-- > 0 ? 0 : INVALID;
}

unsigned cuCtxPushCurrent_v2(struct CUctx_st *context)
{
	MAY_FAIL("cuCtxPushCurrent_v2");
	if (depth == 16 || context->retained <= 0)
		return INVALID;
	stack[depth++] = context;
	return 0;
}

unsigned cuCtxPopCurrent_v2(struct CUctx_st **context)
{
	MAY_FAIL("cuCtxPopCurrent_v2");
	if (!depth)
		return INVALID;
	*context = stack[--depth];
	return 0;
}

/* ---- memory ---- */

unsigned cuMemAlloc_v2(unsigned long long *p, size_t n)
{
	unsigned code;
	void *m;

	NEEDS_CONTEXT("cuMemAlloc_v2");
	m = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (n == 0 || m == MAP_FAILED)
		return n ? LOAD_CUDA_OUT_OF_MEMORY : INVALID;
	code = fake_add(m, n, stack[depth - 1]->device);
	*p = (unsigned long long)(uintptr_t)m;
	fake_tell("alloc %zu\n", n);
	return code;
}

unsigned cuMemAllocManaged(unsigned long long *p, size_t n, unsigned flags)
{
	void *m;

	NEEDS_CONTEXT("cuMemAllocManaged");
	m = n && flags == LOAD_CUDA_GLOBAL
		    ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
		    : MAP_FAILED;
	*p = (unsigned long long)(uintptr_t)m;
	fake_tell("managed %zu\n", n);
	return m == MAP_FAILED ? INVALID : fake_add(m, n, stack[depth - 1]->device + MANAGED);
}

unsigned cuMemFree_v2(unsigned long long p)
{
	NEEDS_CONTEXT("cuMemFree_v2");
	fake_tell("free\n");
	return fake_forget((void *)(uintptr_t)p, true);
}

unsigned cuMemGetAddressRange_v2(unsigned long long *base, size_t *n, unsigned long long p)
{
	NEEDS_CONTEXT("cuMemGetAddressRange_v2");
	*base = p;
	*n = fake_size((void *)(uintptr_t)p);
	if (getenv("FAKE_CUDA_SHORT") &&
	    *n > 4096) /* longer windows than the probe's are cut */
		*n = 4096;
	return *n ? 0 : INVALID;
}

unsigned cuIpcGetMemHandle(struct load_cuda_ipc_handle *handle, unsigned long long p)
{
	NEEDS_CONTEXT("cuIpcGetMemHandle");
	return fake_share((void *)(uintptr_t)p, handle);
}

unsigned cuIpcOpenMemHandle_v2(unsigned long long *p, struct load_cuda_ipc_handle handle,
			       unsigned flags)
{
	void *m = NULL;
	unsigned code;

	NEEDS_CONTEXT("cuIpcOpenMemHandle_v2");
	code = flags == LOAD_CUDA_LAZY_PEER ? fake_map(&handle, stack[depth - 1]->device, &m)
					    : INVALID;
	*p = (unsigned long long)(uintptr_t)m;
	return code;
}

unsigned cuIpcCloseMemHandle(unsigned long long p)
{
	NEEDS_CONTEXT("cuIpcCloseMemHandle");
	return fake_unmap((void *)(uintptr_t)p);
}

/* The node that memory is to be taken from; -1: any. */
static int find_preferred(void *p)
{
	unsigned long nodes[16] = { 0 };
	int mode = 0;

	if (syscall(SYS_get_mempolicy, &mode, nodes, 1025, p, MPOL_F_ADDR) < 0 ||
	    mode != MPOL_PREFERRED)
		return -1;
	for (int i = 0; i < 1024; i++)
		if (nodes[i / 64] >> i % 64 & 1)
			return i;
	return -1;
}

unsigned cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	unsigned code;

	(void)flags;
	NEEDS_CONTEXT("cuMemHostRegister_v2");
	code = fake_add(p, n, -1);
	fake_tell("pin %zu node %d\n", n, find_preferred(p));
	return code;
}

unsigned cuMemHostUnregister(void *p)
{
	NEEDS_CONTEXT("cuMemHostUnregister");
	fake_tell("unpin\n");
	return fake_forget(p, false);
}

unsigned cuPointerGetAttribute(void *value, unsigned attribute, unsigned long long p)
{
	int device = fake_device_of((void *)(uintptr_t)p);

	NEEDS_CONTEXT("cuPointerGetAttribute");
	if (device == -2)
		return INVALID;
	*(int *)value = attribute == LOAD_CUDA_MEMORY_TYPE
				? (device >= 0 ? LOAD_CUDA_DEVICE : LOAD_CUDA_HOST)
			: attribute == LOAD_CUDA_ORDINAL ? device % MANAGED
							 : device >= MANAGED;
	return 0;
}

/* ---- what is queued ---- */

static struct load_cuda_copy make_flat(const void *src, unsigned src_type, void *dst,
				       unsigned dst_type, size_t n)
{
	return (struct load_cuda_copy){ .src_type = src_type,
					.src_host = src,
					.src_device = (unsigned long long)(uintptr_t)src,
					.dst_type = dst_type,
					.dst_host = dst,
					.dst_device = (unsigned long long)(uintptr_t)dst,
					.width = n,
					.height = 1,
					.depth = 1 };
}

unsigned cuMemcpyHtoDAsync_v2(unsigned long long dst, const void *src, size_t n,
			      struct CUstream_st *stream)
{
	NEEDS_CONTEXT("cuMemcpyHtoDAsync_v2");
	return fake_queue(stream,
			  (struct fake_operation){ .kind = COPY_IN,
						   .box = make_flat(src, LOAD_CUDA_HOST,
								    (void *)(uintptr_t)dst,
								    LOAD_CUDA_DEVICE, n) });
}

unsigned cuMemcpyDtoHAsync_v2(void *dst, unsigned long long src, size_t n,
			      struct CUstream_st *stream)
{
	NEEDS_CONTEXT("cuMemcpyDtoHAsync_v2");
	return fake_queue(stream,
			  (struct fake_operation){ .kind = COPY_OUT,
						   .box = make_flat((void *)(uintptr_t)src,
								    LOAD_CUDA_DEVICE, dst,
								    LOAD_CUDA_HOST, n) });
}

unsigned cuMemcpy3DAsync_v2(const struct load_cuda_copy *copy, struct CUstream_st *stream)
{
	NEEDS_CONTEXT("cuMemcpy3DAsync_v2");
	if (copy->src_pitch < copy->width || copy->dst_pitch < copy->width ||
	    (copy->depth > 1 &&
	     (copy->src_height < copy->height || copy->dst_height < copy->height)))
		return INVALID;
	return fake_queue(stream, (struct fake_operation){ .kind = COPY_BOX, .box = *copy });
}

unsigned cuMemsetD8Async(unsigned long long p, unsigned char value, size_t n,
			 struct CUstream_st *stream)
{
	NEEDS_CONTEXT("cuMemsetD8Async");
	return fake_queue(stream,
			  (struct fake_operation){ .kind = SET,
						   .box = { .dst_device = p, .width = n },
						   .value = (char)value });
}

unsigned cuStreamCreate(struct CUstream_st **stream, unsigned flags)
{
	NEEDS_CONTEXT("cuStreamCreate");
	return flags == LOAD_CUDA_NON_BLOCKING ? fake_stream(stream) : INVALID;
}

unsigned cuStreamDestroy_v2(struct CUstream_st *stream)
{
	NEEDS_CONTEXT("cuStreamDestroy_v2");
	fake_stream_end(stream);
	return 0;
}

unsigned cuStreamQuery(struct CUstream_st *stream)
{
	NEEDS_CONTEXT("cuStreamQuery");
	return fake_stream_is_idle(stream) ? 0 : LOAD_CUDA_NOT_READY;
}

unsigned cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
	(void)flags;
	NEEDS_CONTEXT("cuStreamWaitEvent");
	return fake_queue(stream, (struct fake_operation){ .kind = WAIT,
							   .event = event,
							   .time = event->recorded });
}

/* None is freed: it may be destroyed before streams come to it. */
static struct CUevent_st *events;
static pthread_mutex_t event_lock = PTHREAD_MUTEX_INITIALIZER;

unsigned cuEventCreate(struct CUevent_st **event, unsigned flags)
{
	NEEDS_CONTEXT("cuEventCreate");
	*event = flags == LOAD_CUDA_DISABLE_TIMING ? calloc(1, sizeof(**event)) : NULL;
	if (!*event)
		return INVALID;
	pthread_mutex_lock(&event_lock);
	(*event)->next = events;
	events = *event;
	pthread_mutex_unlock(&event_lock);
	return 0;
}

unsigned cuEventDestroy_v2(struct CUevent_st *event)
{
	NEEDS_CONTEXT("cuEventDestroy_v2");
	(void)event;
	return 0;
}

unsigned cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
	NEEDS_CONTEXT("cuEventRecord");
	return fake_queue(stream, (struct fake_operation){ .kind = RECORD,
							   .event = event,
							   .time = fake_record(event) });
}

unsigned cuEventQuery(struct CUevent_st *event)
{
	NEEDS_CONTEXT("cuEventQuery");
	return fake_is_done(event) ? 0 : LOAD_CUDA_NOT_READY;
}

/* ---- the kernel ---- */

static char module_there, kernel_there;

unsigned cuModuleLoadData(struct CUmod_st **module, const void *image)
{
	NEEDS_CONTEXT("cuModuleLoadData");
	if (!strstr(image, ".version 6.3") || !strstr(image, ".entry dcpload_scatter"))
		return INVALID;
	*module = (struct CUmod_st *)&module_there;
	return 0;
}

unsigned cuModuleUnload(struct CUmod_st *module)
{
	NEEDS_CONTEXT("cuModuleUnload");
	return module == (struct CUmod_st *)&module_there ? 0 : INVALID;
}

unsigned cuModuleGetFunction(struct CUfunc_st **function, struct CUmod_st *module,
			     const char *name)
{
	(void)module;
	NEEDS_CONTEXT("cuModuleGetFunction");
	*function = (struct CUfunc_st *)&kernel_there;
	return strcmp(name, "dcpload_scatter") == 0 ? 0 : NOT_FOUND;
}

unsigned cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
			unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
			unsigned shared, struct CUstream_st *stream, void **arguments,
			void **extra)
{
	NEEDS_CONTEXT("cuLaunchKernel");
	if (function != (struct CUfunc_st *)&kernel_there || grid_y != 1 || grid_z != 1 ||
	    block_x != LOAD_SCATTER_THREADS || block_y != 1 || block_z != 1 || shared ||
	    extra || grid_x == 0)
		return INVALID;
	return fake_queue(stream, (struct fake_operation){
					  .kind = LAUNCH,
					  .jobs = *(const struct load_job *const *)arguments[0],
					  .n = *(const uint32_t *)arguments[1],
					  .blocks = grid_x });
}
