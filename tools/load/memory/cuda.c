/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs of NVIDIA, by the driver API. As in the CUDA runtime, the primary context is used, so that
 * memory and streams of the caller can be used; it is current only during a call. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/model/geometry/strided.h"
#include "tools/load/error.h"
#include "tools/load/memory/cuda_abi.h"
#include "tools/load/memory/memory.h"
#include "tools/load/memory/scatter.h"

static int open_library(struct load_cuda_driver *d, struct dcpload_error *err)
{
#define NAME(name, arguments) #name,
	static const char *const names[] = { LOAD_CUDA_CALLS(NAME) };
#undef NAME
	char why[256];
	int rc = dcp_library_open("libcuda.so.1", names, DCP_LEN(names), (void **)&d->call, why,
				  sizeof(why));

	_Static_assert(sizeof(d->call) == sizeof(names), "pointers alone");
	if (rc == -ELIBBAD)
		return load_fail(err, rc,
				 "%s: NVIDIA's driver is too old, CUDA 11.0 is the oldest that "
				 "is supported",
				 why);
	return rc < 0 ? load_fail(err, rc, "no GPU: %s", why) : 0;
}

/* "CUDA_ERROR_OUT_OF_MEMORY" */
static const char *name_of(const struct load_cuda_driver *d, unsigned code)
{
	const char *name;

	return d->call.cuGetErrorName(code, &name) == LOAD_CUDA_SUCCESS && name
		       ? name
		       : "an unknown error";
}

/* Fail with @code as the result of @call, "cuInit". Returns a negative errno. */
static int load_cuda_failed(const struct load_cuda_driver *d, unsigned code, const char *call,
			    struct dcpload_error *err)
{
	int rc = code == LOAD_CUDA_OUT_OF_MEMORY ? -ENOMEM
		 : code == LOAD_CUDA_NO_DEVICE   ? -ENODEV
						 : -EREMOTEIO;

	return load_fail(err, rc, "%s: %s", call, name_of(d, code));
}

int load_cuda_driver(struct load_cuda_driver *d, struct dcpload_error *err)
{
	unsigned code;
	int rc = open_library(d, err);

	if (rc < 0)
		return rc;
	code = d->call.cuInit(0);
	if (code)
		return load_cuda_failed(d, code, "no GPU: cuInit", err);
	code = d->call.cuDriverGetVersion(&d->version);
	if (code)
		return load_cuda_failed(d, code, "cuDriverGetVersion", err);
	if (d->version < LOAD_CUDA_LEAST)
		return load_fail(err, -ELIBBAD,
				 "NVIDIA's driver is of CUDA %d.%d; 11.0 is the oldest that "
				 "will do",
				 d->version / 1000, d->version % 1000 / 10);
	code = d->call.cuDeviceGetCount(&d->gpus);
	if (code)
		return load_cuda_failed(d, code, "cuDeviceGetCount", err);
	return d->gpus > 0 ? 0 : load_fail(err, -ENODEV, "no GPU: the driver shows none");
}

/* The NUMA node that is nearest to a GPU, according to the kernel; -1: not known. */
static int load_cuda_node(const struct load_cuda_driver *d, int device)
{
	char id[32] = "", path[80];
	dcp_auto_file FILE *f = NULL;
	int node = -1;

	if (d->call.cuDeviceGetPCIBusId(id, sizeof(id), device))
		return -1;
	for (char *p = id; *p; p++)
		*p = (char)(*p >= 'A' && *p <= 'F' ? *p - 'A' + 'a' : *p);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", id);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &node) != 1)
		node = -1;
	return node;
}

const char *load_cuda_library(void)
{
	static char text[32]; /* every thread writes the same text */
	struct load_cuda_driver d;
	struct dcpload_error err;

	if (open_library(&d, &err) < 0 || d.call.cuDriverGetVersion(&d.version))
		return NULL;
	snprintf(text, sizeof(text), "%d.%d", d.version / 1000, d.version % 1000 / 10);
	return text;
}

int load_cuda_probe_sharing(char *found, size_t size, struct dcpload_error *err)
{
	struct load_cuda_driver d;
	int mode = LOAD_CUDA_MODE_DEFAULT, reached = 0, can, first, other,
	    rc = load_cuda_driver(&d, err);

	if (rc < 0)
		return rc;
	if (d.call.cuDeviceGet(&first, 0) ||
	    d.call.cuDeviceGetAttribute(&mode, LOAD_CUDA_MODE, first))
		return load_fail(err, -EREMOTEIO, "the first GPU does not answer");
	for (int i = 1; i < d.gpus; i++)
		reached += !d.call.cuDeviceGet(&other, i) &&
			   !d.call.cuDeviceCanAccessPeer(&can, first, other) && can;
	snprintf(found, size,
		 "the first GPU takes %s; it reaches the memory of %d of %d others",
		 mode == LOAD_CUDA_MODE_DEFAULT
			 ? "several processes"
			 : "one process at a time, or none (compute mode)",
		 reached, d.gpus - 1);
	return mode == LOAD_CUDA_MODE_DEFAULT && reached == d.gpus - 1;
}

int load_cuda_probe(char *found, size_t size, struct dcpload_error *err)
{
	struct load_cuda_driver d;
	char name[80] = "", near[40] = "";
	int device, node = -1, rc = load_cuda_driver(&d, err);

	if (rc < 0)
		return rc;
	if (d.call.cuDeviceGet(&device, 0) == LOAD_CUDA_SUCCESS) {
		d.call.cuDeviceGetName(name, sizeof(name), device);
		node = load_cuda_node(&d, device);
	}
	if (node >= 0)
		snprintf(near, sizeof(near), ", near memory node %d", node);
	snprintf(found, size, "driver of CUDA %d.%d; %d GPU%s, the first: %s%s",
		 d.version / 1000, d.version % 1000 / 10, d.gpus, dcp_s((uint64_t)d.gpus), name,
		 near);
	return 0;
}

enum {
	TIMEOUT_MS = 60000, /* unless the opener says otherwise */
	PIECE = 4 << 20,    /* of fetch() */
	PIECES = 3,         /* while the processor copies one piece, two are in flight */
	BOUNCE = PIECES * PIECE,
	/* bytes whose copy takes as long as starting a copy; pieces are multiples of it */
	LEAST = 64 << 10,
};

/* The kernel, as text that the driver compiles for the GPU. */
static const char ptx[] =
#include "tools/load/scatter_ptx.h"
	;

struct cuda {
	struct load_device base;
	struct load_cuda_driver driver;
	int device;
	struct CUctx_st *context;
	struct CUmod_st *module;
	struct CUfunc_st *scatter;
	void **lanes; /* every lane, for cuda_ended() */
	size_t nlanes, cap_lanes;
	void *lane, *mark[PIECES]; /* for zero() and fetch() */
	/* pinned memory that fetch() copies to; NULL: not allocated yet */
	void *bounce;
	bool pinned; /* @bounce is pinned */
};

static unsigned long long get_address(const void *p)
{
	return (unsigned long long)(uintptr_t)p;
}

/* ---- calls ---- */

static int say_failed(struct cuda *c, unsigned code, const char *call)
{
	struct dcpload_error err;
	int rc = load_cuda_failed(&c->driver, code, call, &err);

	snprintf(c->base.said, sizeof(c->base.said), "%.199s", err.text);
	return rc;
}

/* Make a call with the context current, and return its code. */
#define CODE(c, name, ...)                                                                     \
	({                                                                                     \
		struct CUctx_st *was_;                                                         \
		unsigned code_ = (c)->driver.call.cuCtxPushCurrent_v2((c)->context);           \
                                                                                               \
		if (code_ == LOAD_CUDA_SUCCESS) {                                              \
			code_ = (c)->driver.call.name(__VA_ARGS__);                            \
			(c)->driver.call.cuCtxPopCurrent_v2(&was_);                            \
		}                                                                              \
		code_;                                                                         \
	})

static int check_result(struct cuda *c, unsigned code, const char *call)
{
	return code == LOAD_CUDA_SUCCESS ? 0 : say_failed(c, code, call);
}

/* The same, but returns 0 or a negative errno. */
#define CALL(c, name, ...) check_result(c, CODE(c, name, __VA_ARGS__), #name)

static struct cuda *get_cuda(struct load_device *d)
{
	return (struct cuda *)d;
}

/* ---- memory ---- */

static int cuda_alloc(struct load_device *d, uint64_t n, void **out)
{
	unsigned long long p;
	int rc = CALL(get_cuda(d), cuMemAlloc_v2, &p, n);

	if (rc == 0)
		*out = (void *)(uintptr_t)p;
	return rc;
}

static int cuda_alloc_managed(struct load_device *d, uint64_t n, void **out)
{
	unsigned long long p;
	int rc = CALL(get_cuda(d), cuMemAllocManaged, &p, n, LOAD_CUDA_GLOBAL);

	if (rc == 0)
		*out = (void *)(uintptr_t)p;
	return rc;
}

static void cuda_free(struct load_device *d, void *p, uint64_t n)
{
	CALL(get_cuda(d), cuMemFree_v2, get_address(p));
}

static int cuda_share(struct load_device *d, void *p, struct load_shared *out)
{
	_Static_assert(sizeof(*out) == sizeof(LOAD_CUDA_IPC_HANDLE), "as the driver's");
	return CALL(get_cuda(d), cuIpcGetMemHandle, (LOAD_CUDA_IPC_HANDLE *)out,
		    get_address(p));
}

static int cuda_unmap(struct load_device *d, void *p)
{
	return CALL(get_cuda(d), cuIpcCloseMemHandle, get_address(p));
}

static int cuda_map(struct load_device *d, const struct load_shared *shared, uint64_t bytes,
		    void **out)
{
	LOAD_CUDA_IPC_HANDLE handle;
	unsigned long long p, base;
	size_t n;
	int rc;

	memcpy(&handle, shared, sizeof(handle));
	rc = CALL(get_cuda(d), cuIpcOpenMemHandle_v2, &p, handle, LOAD_CUDA_LAZY_PEER);
	if (rc < 0)
		return rc;
	rc = CALL(get_cuda(d), cuMemGetAddressRange_v2, &base, &n, p);
	if (rc == 0 && (p < base || p - base > n || bytes > n - (p - base))) {
		snprintf(d->said, sizeof(d->said),
			 "a window of %llu bytes is announced, and its mapping has %zu",
			 (unsigned long long)bytes, n);
		rc = -EPROTO;
	}
	if (rc == 0)
		*out = (void *)(uintptr_t)p;
	else
		cuda_unmap(d, (void *)(uintptr_t)p);
	return rc;
}

static int cuda_kind_of(struct load_device *d, const void *p)
{
	struct cuda *c = get_cuda(d);
	unsigned type = 0, managed = 0;
	int number = c->device, rc;
	unsigned code =
		CODE(c, cuPointerGetAttribute, &type, LOAD_CUDA_MEMORY_TYPE, get_address(p));

	if (code == LOAD_CUDA_INVALID_VALUE) /* CUDA does not know the address */
		return DCPLOAD_MEMORY_HOST;
	rc = check_result(c, code, "cuPointerGetAttribute");
	if (rc == 0)
		rc = CALL(c, cuPointerGetAttribute, &managed, LOAD_CUDA_IS_MANAGED,
			  get_address(p));
	if (rc == 0)
		rc = CALL(c, cuPointerGetAttribute, &number, LOAD_CUDA_ORDINAL, get_address(p));
	if (rc < 0)
		return rc;
	if (managed)
		return DCPLOAD_MEMORY_MANAGED;
	if (type != LOAD_CUDA_DEVICE)
		return DCPLOAD_MEMORY_PINNED;
	if (number != c->device) {
		snprintf(d->said, sizeof(d->said), "the memory is of cuda:%d", number);
		return -EXDEV;
	}
	return DCPLOAD_MEMORY_DEVICE;
}

static int cuda_enter(struct load_device *d)
{
	return get_cuda(d)->driver.call.cuCtxPushCurrent_v2(get_cuda(d)->context) ? -EREMOTEIO
										  : 0;
}

static void cuda_leave(struct load_device *d)
{
	struct CUctx_st *was;

	get_cuda(d)->driver.call.cuCtxPopCurrent_v2(&was);
}

static int cuda_pin(struct load_device *d, void *p, uint64_t n)
{
	return CALL(get_cuda(d), cuMemHostRegister_v2, p, n, LOAD_CUDA_PORTABLE);
}

static void cuda_unpin(struct load_device *d, void *p)
{
	CALL(get_cuda(d), cuMemHostUnregister, p);
}

/* ---- lanes are streams, marks are events ---- */

static int cuda_lane_open(struct load_device *d, void **lane)
{
	struct cuda *c = get_cuda(d);
	int rc;

	if (DCP_GROW(c->lanes, c->cap_lanes, c->nlanes) < 0)
		return -ENOMEM;
	rc = CALL(c, cuStreamCreate, (struct CUstream_st **)lane, LOAD_CUDA_NON_BLOCKING);
	if (rc == 0)
		c->lanes[c->nlanes++] = *lane;
	return rc;
}

/* Is work of the lane still running? A failure ends all queued work. */
static bool is_running(struct cuda *c, void *lane)
{
	return CODE(c, cuStreamQuery, lane) == LOAD_CUDA_NOT_READY;
}

/* A lane with work that has not ended is kept, for cuda_ended(). */
static void cuda_lane_close(struct load_device *d, void *lane)
{
	struct cuda *c = get_cuda(d);

	for (size_t i = 0; i < c->nlanes && !is_running(c, lane); i++) {
		if (c->lanes[i] != lane)
			continue;
		c->lanes[i] = c->lanes[--c->nlanes];
		CALL(c, cuStreamDestroy_v2, lane);
		return;
	}
}

static bool cuda_ended(struct load_device *d)
{
	bool ended = true;

	for (size_t i = 0; i < get_cuda(d)->nlanes && ended; i++)
		ended = !is_running(get_cuda(d), get_cuda(d)->lanes[i]);
	return ended;
}

static int cuda_mark_open(struct load_device *d, void **mark)
{
	return CALL(get_cuda(d), cuEventCreate, (struct CUevent_st **)mark,
		    LOAD_CUDA_DISABLE_TIMING);
}

static void cuda_mark_close(struct load_device *d, void *mark)
{
	CALL(get_cuda(d), cuEventDestroy_v2, mark);
}

static int cuda_mark(struct load_device *d, void *mark, void *lane)
{
	return CALL(get_cuda(d), cuEventRecord, mark, lane);
}

static int cuda_follow(struct load_device *d, void *lane, void *mark)
{
	return CALL(get_cuda(d), cuStreamWaitEvent, lane, mark, 0);
}

static int cuda_passed(struct load_device *d, void *mark)
{
	struct cuda *c = get_cuda(d);
	unsigned code = CODE(c, cuEventQuery, mark);

	if (code == LOAD_CUDA_NOT_READY)
		return 0;
	return code ? say_failed(c, code, "what was queued failed: cuEventQuery") : 1;
}

/* ---- copies ---- */

static int cuda_clear(struct load_device *d, void *lane, void *p, uint64_t n)
{
	return CALL(get_cuda(d), cuMemsetD8Async, get_address(p), 0, n, lane);
}

static int cuda_copy(struct load_device *d, void *lane, void *dst, const void *src, uint64_t n)
{
	return CALL(get_cuda(d), cuMemcpyHtoDAsync_v2, get_address(dst), src, n, lane);
}

/* Can one copy move rows of @run bytes, @stride apart, or planes of them, @plane apart (0:
 * none)? */
static bool is_box(uint64_t run, uint64_t rows, uint64_t stride, uint64_t plane)
{
	return stride >= run && stride <= INT_MAX &&
	       (plane == 0 || (plane % stride == 0 && plane / stride >= rows));
}

/* Copy dimensions @k and up: as planes of rows, as rows, or one after the other. */
static int copy_dims(struct cuda *c, void *lane, char *dst, const uint8_t *src,
		     const struct dcp_strided *s, uint32_t k)
{
	uint32_t left = s->ndim - k, in = s->ndim - 1;
	uint64_t file_plane = left == 2 ? s->file_stride[k] : 0,
		 dst_plane = left == 2 ? s->dst_stride[k] : 0;
	int rc = 0;

	if (left == 0)
		return cuda_copy(&c->base, lane, dst, src, s->run);
	if (left <= 2 && is_box(s->run, s->count[in], s->file_stride[in], file_plane) &&
	    is_box(s->run, s->count[in], s->dst_stride[in], dst_plane)) {
		struct load_cuda_copy box = { .src_type = LOAD_CUDA_HOST,
					      .src_host = src,
					      .src_pitch = s->file_stride[in],
					      .dst_type = LOAD_CUDA_DEVICE,
					      .dst_device = get_address(dst),
					      .dst_pitch = s->dst_stride[in],
					      .width = s->run,
					      .height = s->count[in],
					      .depth = left == 2 ? s->count[k] : 1 };

		box.src_height = left == 2 ? file_plane / box.src_pitch : box.height;
		box.dst_height = left == 2 ? dst_plane / box.dst_pitch : box.height;
		return CALL(c, cuMemcpy3DAsync_v2, &box, lane);
	}
	for (uint64_t i = 0; i < s->count[k] && rc == 0; i++)
		rc = copy_dims(c, lane, dst + i * s->dst_stride[k], src + i * s->file_stride[k],
			       s, k + 1);
	return rc;
}

static int cuda_copy_runs(struct load_device *d, void *lane, char *dst, const uint8_t *src,
			  const struct dcp_strided *s)
{
	return copy_dims(get_cuda(d), lane, dst + s->dst, src, s, 0);
}

static int cuda_scatter(struct load_device *d, void *lane, const struct load_job *jobs,
			uint32_t n, uint64_t blocks)
{
	struct cuda *c = get_cuda(d);
	unsigned long long at = get_address(jobs);
	void *arguments[] = { &at, &n };

	return CALL(c, cuLaunchKernel, c->scatter, (unsigned)blocks, 1, 1, LOAD_SCATTER_THREADS,
		    1, 1, 0, lane, arguments, NULL);
}

/* ---- at once ---- */

static int cuda_zero(struct load_device *d, void *p, uint64_t n)
{
	int rc = cuda_clear(d, get_cuda(d)->lane, p, n);

	return rc < 0 ? rc
		      : load_device_settle(d, get_cuda(d)->mark[0], get_cuda(d)->lane,
					   d->timeout_ms);
}

static int open_bounce(struct cuda *c)
{
	int rc = c->bounce ? 0 : load_host.alloc(NULL, BOUNCE, &c->bounce);

	if (rc == 0 && !c->pinned)
		c->pinned = cuda_pin(&c->base, c->bounce, BOUNCE) == 0;
	return rc;
}

/* Copies through memory that is never freed, so an abandoned copy writes nowhere else. Such copies
 * do not wait in the driver, where no timeout applies. */
static int cuda_fetch(struct load_device *d, void *dst, const void *src, uint64_t n)
{
	struct cuda *c = get_cuda(d);
	/* Small copies have the same number of pieces, but shorter ones. */
	uint64_t size = DCP_MIN(dcp_div_up(n, PIECES * LEAST) * LEAST, (uint64_t)PIECE);
	uint64_t at, now, queued = 0;
	int rc = open_bounce(c);

	for (at = 0; at < n && rc == 0; at += now) {
		uint64_t turn = at / size % PIECES;

		for (; rc == 0 && queued < n && queued < at + PIECES * size; queued += now) {
			uint64_t i = queued / size % PIECES;

			now = DCP_MIN(n - queued, size);
			rc = CALL(c, cuMemcpyDtoHAsync_v2, (char *)c->bounce + i * PIECE,
				  get_address((const char *)src + queued), now, c->lane);
			if (rc == 0)
				rc = cuda_mark(d, c->mark[i], c->lane);
			d->given_up |= rc < 0; /* other pieces may be in flight */
		}
		now = DCP_MIN(n - at, size);
		if (rc == 0)
			rc = load_device_wait(d, c->mark[turn], d->timeout_ms);
		if (rc == 0)
			memcpy((char *)dst + at, (char *)c->bounce + turn * PIECE, now);
	}
	return rc;
}

/* ---- opening one ---- */

static void cuda_close(struct load_device *d)
{
	struct cuda *c = get_cuda(d);
	bool keep = d->kept || load_device_runs(d);

	if (c->pinned && !keep)
		cuda_unpin(d, c->bounce);
	if (c->bounce && !keep)
		load_host.free(NULL, c->bounce, BOUNCE);
	for (size_t i = 0; i < PIECES; i++)
		if (c->mark[i])
			cuda_mark_close(d, c->mark[i]);
	if (c->lane)
		cuda_lane_close(d, c->lane);
	if (c->module && !keep)
		CALL(c, cuModuleUnload, c->module);
	if (c->context && !keep)
		c->driver.call.cuDevicePrimaryCtxRelease_v2(c->device);
	free(c->lanes);
	free(c);
}

static const struct load_memory kind = {
	.name = "cuda",
	.alloc = cuda_alloc,
	.free = cuda_free,
	.zero = cuda_zero,
	.fetch = cuda_fetch,
	.close = cuda_close,
	.alloc_managed = cuda_alloc_managed,
	.share = cuda_share,
	.map = cuda_map,
	.unmap = cuda_unmap,
	.enter = cuda_enter,
	.leave = cuda_leave,
	.kind_of = cuda_kind_of,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
	.lane_open = cuda_lane_open,
	.lane_close = cuda_lane_close,
	.ended = cuda_ended,
	.mark_open = cuda_mark_open,
	.mark_close = cuda_mark_close,
	.mark = cuda_mark,
	.follow = cuda_follow,
	.passed = cuda_passed,
	.clear = cuda_clear,
	.copy = cuda_copy,
	.copy_runs = cuda_copy_runs,
	.scatter = cuda_scatter,
};

/* Load the kernel; without it the host does its work. */
static void load_kernel(struct cuda *c)
{
	int rc = CALL(c, cuModuleLoadData, &c->module, ptx);

	if (rc == 0)
		rc = CALL(c, cuModuleGetFunction, &c->scatter, c->module, "dcpload_scatter");
	c->base.scatters = rc == 0;
	if (rc < 0)
		snprintf(c->base.why, sizeof(c->base.why), "the host converts: %.140s",
			 c->base.said);
}

static int begin_device(struct cuda *c)
{
	struct load_device *d = &c->base;
	char name[64] = "";
	int rc = 0, unified = 0;
	unsigned code = c->driver.call.cuDeviceGet(&c->device, (int)d->number);

	if (code)
		return say_failed(c, code, "cuDeviceGet");
	if (c->driver.call.cuDeviceGetName(name, sizeof(name), c->device) == LOAD_CUDA_SUCCESS)
		snprintf(d->name, sizeof(d->name), "cuda:%u, %s", d->number, name);
	code = c->driver.call.cuDeviceGetAttribute(&unified, LOAD_CUDA_UNIFIED, c->device);
	if (code)
		return say_failed(c, code, "cuDeviceGetAttribute");
	if (!unified) {
		snprintf(d->said, sizeof(d->said), "it has no unified addresses");
		return -ENODEV;
	}
	code = c->driver.call.cuDevicePrimaryCtxRetain(&c->context, c->device);
	if (code)
		return say_failed(c, code, "cuDevicePrimaryCtxRetain");
	rc = cuda_lane_open(d, &c->lane);
	for (size_t i = 0; rc == 0 && i < PIECES; i++)
		rc = cuda_mark_open(d, &c->mark[i]);
	if (rc == 0)
		load_kernel(c);
	d->node = load_cuda_node(&c->driver, c->device);
	return rc;
}

int load_cuda_open(int number, uint32_t local, struct load_device **out,
		   struct dcpload_error *err)
{
	struct cuda *c = calloc(1, sizeof(*c));
	int rc = c ? load_cuda_driver(&c->driver, err)
		   : load_fail(err, -ENOMEM, "out of memory");

	if (rc == 0 && number >= c->driver.gpus)
		rc = load_fail(err, -ENODEV, "there is no cuda:%d, only 0 to %d", number,
			       c->driver.gpus - 1);
	if (rc < 0) {
		free(c);
		return rc;
	}
	c->base.kind = &kind;
	c->base.users = 1;
	c->base.timeout_ms = TIMEOUT_MS;
	c->base.number = number < 0 ? local % (uint32_t)c->driver.gpus : (uint32_t)number;
	snprintf(c->base.name, sizeof(c->base.name), "cuda:%u", c->base.number);
	rc = begin_device(c);
	if (rc < 0) {
		load_device_said(&c->base, rc, err);
		cuda_close(&c->base);
		return rc;
	}
	*out = &c->base;
	return 0;
}
