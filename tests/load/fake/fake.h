/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 without a GPU. Its devices have memory of the host that nothing may touch but the
 * copies and kernels that are queued here: outside of these it has no permissions, so a processor
 * that reads or writes it dies. Each stream is a thread of its own, which takes its time, so what
 * is queued is done later. The kernel of the loader is run as it is written, compiled for the
 * processor.
 *
 *	FAKE_CUDA_GPUS	number of devices, 2 by default
 *	FAKE_CUDA_LOG	file that tells what was queued (+) and done (-), in order
 *	FAKE_CUDA_FAIL	NAME:N:CODE, the N-th call of NAME (0: each) fails with CODE; "run:N:CODE": the N-th
 *			operation on a stream, and all after it; so of one kind, as the log names them: "launch:N:CODE"; CODE
 *			"hang": it never ends. Up to four, with spaces between
 *	FAKE_CUDA_SLOW	milliseconds that a copy of more than 64 KiB to a device takes
 *	FAKE_CUDA_SLOW_KERNEL	the same of a kernel
 *	FAKE_CUDA_PCI	of each device, its folder in /sys/bus/pci/devices
 *	FAKE_CUDA_VERSION	of the driver, 13000 by default
 *	FAKE_CUDA_UNIFIED	0: devices have addresses of their own
 *	FAKE_CUDA_MODE	compute mode
 *
 * Freeing, unpinning or unmapping what an operation still uses, one that never ends above all, is
 * the end of a process. What other processes are to map becomes a file in memory, which they open
 * at /proc. The process that it is of cannot map it; freeing it while another has it mapped is the
 * end of a process.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/load/memory/cuda_abi.h"

struct load_job;

enum {
	INVALID = 1,
	INVALID_CONTEXT = 201,
	NOT_FOUND = 500,
	MISALIGNED = 716,
	FAILED = 719,
	HANGS = -1
};

/* ---- device.c ---- */

/* The context failed: every call says so. */
extern unsigned fake_broken;

#pragma GCC visibility push(default) /* used by the fakes of other libraries */

int fake_number(const char *name, int otherwise);
/* Does FAKE_CUDA_FAIL want this call to fail? Its code; 0: no. */
int fake_fails(const char *name);
/* A line of the log. */
void fake_tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Is a context current in this thread? Its device; -1: none is. */
bool fake_has_context(void);
int fake_context_device(void);
/* -2: in no memory of a device, nor pinned. */
int fake_device_of(const void *p);
/* Write to a device's memory, as another device of the machine can. */
void fake_write(void *dst, const void *src, size_t n);
/*
 * Queue what @step does, again and again until it returns true; memory of devices can be used in
 * it.
 */
struct CUstream_st;
unsigned fake_queue_steps(struct CUstream_st *s, bool (*step)(void *),
			  bool (*uses)(const void *, const char *p, size_t n), void *arg);

#pragma GCC visibility pop

/*
 * Memory of a device; managed memory of it (+ MANAGED), which anyone may touch; pinned memory of
 * the host (-1).
 */
enum { MANAGED = 1000 };
unsigned fake_add(void *p, size_t n, int device);
unsigned fake_forget(void *p, bool device);
unsigned fake_share(void *p, struct load_cuda_ipc_handle *handle);
unsigned fake_map(const struct load_cuda_ipc_handle *handle, int device, void **out);
unsigned fake_unmap(void *p);
/* Of the region that begins at @p, in bytes; 0: there is none. */
size_t fake_size(const void *p);

struct CUevent_st {
	struct CUevent_st *next;
	uint64_t recorded, done; /* times */
};

struct fake_operation {
	struct fake_operation *next;
	enum { COPY_IN, COPY_OUT, COPY_BOX, SET, LAUNCH, RECORD, WAIT, STEPS } kind;
	struct load_cuda_copy box;
	const struct load_job *jobs;
	struct CUevent_st *event;
	uint64_t time; /* of the event */
	bool (*step)(void *);
	bool (*uses)(const void *, const char *p, size_t n); /* does it use of these bytes? */
	void *arg;                                           /* freed */
	uint32_t n, blocks;
	char value;
};

unsigned fake_stream(struct CUstream_st **out);
void fake_stream_end(struct CUstream_st *s);
unsigned fake_queue(struct CUstream_st *s, struct fake_operation o);
bool fake_stream_is_idle(struct CUstream_st *s);
/* Does an operation on a stream never end? */
bool fake_hangs(void);
uint64_t fake_record(struct CUevent_st *event);
bool fake_is_done(struct CUevent_st *event);
