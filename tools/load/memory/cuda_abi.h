/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_abi: the functions and types of libcuda.so.1, the library of NVIDIA's driver, that the
 * loader uses, declared here so that CUDA is not needed to build. tests/load/abi.c compares it with
 * the toolkit's cuda.h where there is one. Functions have the names of the library, to which cuda.h
 * maps the documented names by macros.
 */
#pragma once
#include <stddef.h>

#include "tools/load/dcpload.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

enum {
	LOAD_CUDA_SUCCESS = 0,
	LOAD_CUDA_INVALID_VALUE = 1,
	LOAD_CUDA_OUT_OF_MEMORY = 2,
	LOAD_CUDA_NO_DEVICE = 100,
	LOAD_CUDA_NOT_READY = 600,
	LOAD_CUDA_ALREADY_REGISTERED = 712,

	LOAD_CUDA_HOST = 1, /* CU_MEMORYTYPE_ */
	LOAD_CUDA_DEVICE = 2,

	LOAD_CUDA_MEMORY_TYPE = 2, /* CU_POINTER_ATTRIBUTE_ */
	LOAD_CUDA_IS_MANAGED = 8,
	LOAD_CUDA_ORDINAL = 9,

	LOAD_CUDA_MODE = 20, /* CU_DEVICE_ATTRIBUTE_ */
	LOAD_CUDA_UNIFIED = 41,
	LOAD_CUDA_MODE_DEFAULT = 0, /* CU_COMPUTEMODE_ */

	LOAD_CUDA_NON_BLOCKING = 1,   /* CU_STREAM_ */
	LOAD_CUDA_DISABLE_TIMING = 2, /* CU_EVENT_ */
	LOAD_CUDA_PORTABLE = 1,       /* CU_MEMHOSTREGISTER_ */
	LOAD_CUDA_GLOBAL = 1,         /* CU_MEM_ATTACH_ */
	LOAD_CUDA_LAZY_PEER = 1,      /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */

	LOAD_CUDA_LEAST = 11000, /* the oldest driver: CUDA 11.0 */
};

/* CUDA_MEMCPY3D_v2 */
struct load_cuda_copy {
	size_t src_x, src_y, src_z, src_lod;
	unsigned src_type;
	const void *src_host;
	unsigned long long src_device;
	void *src_array, *zero0;
	size_t src_pitch, src_height;
	size_t dst_x, dst_y, dst_z, dst_lod;
	unsigned dst_type;
	void *dst_host;
	unsigned long long dst_device;
	void *dst_array, *zero1;
	size_t dst_pitch, dst_height;
	size_t width, height, depth;
};

/* CUipcMemHandle */
struct load_cuda_ipc_handle {
	char bytes[64];
};

#ifndef LOAD_CUDA_COPY /* tests/load/abi.c has cuda.h's */
#define LOAD_CUDA_COPY struct load_cuda_copy
#define LOAD_CUDA_IPC_HANDLE struct load_cuda_ipc_handle
#endif

/* X(name, arguments): each returns a CUresult. */
#define LOAD_CUDA_CALLS(X)                                                                     \
	X(cuInit, (unsigned flags))                                                            \
	X(cuDriverGetVersion, (int *version))                                                  \
	X(cuGetErrorName, (unsigned error, const char **name))                                 \
	X(cuDeviceGetCount, (int *n))                                                          \
	X(cuDeviceGet, (int *device, int number))                                              \
	X(cuDeviceGetName, (char *name, int size, int device))                                 \
	X(cuDeviceGetAttribute, (int *value, unsigned attribute, int device))                  \
	X(cuDeviceGetPCIBusId, (char *id, int size, int device))                               \
	X(cuDeviceCanAccessPeer, (int *can, int device, int peer))                             \
	X(cuDevicePrimaryCtxRetain, (struct CUctx_st * *context, int device))                  \
	X(cuDevicePrimaryCtxRelease_v2, (int device))                                          \
	X(cuCtxPushCurrent_v2, (struct CUctx_st * context))                                    \
	X(cuCtxPopCurrent_v2, (struct CUctx_st * *context))                                    \
	X(cuMemAlloc_v2, (unsigned long long *p, size_t n))                                    \
	X(cuMemAllocManaged, (unsigned long long *p, size_t n, unsigned flags))                \
	X(cuMemFree_v2, (unsigned long long p))                                                \
	X(cuMemGetAddressRange_v2,                                                             \
	  (unsigned long long *base, size_t *n, unsigned long long p))                         \
	X(cuIpcGetMemHandle, (LOAD_CUDA_IPC_HANDLE * handle, unsigned long long p))            \
	X(cuIpcOpenMemHandle_v2,                                                               \
	  (unsigned long long *p, LOAD_CUDA_IPC_HANDLE handle, unsigned flags))                \
	X(cuIpcCloseMemHandle, (unsigned long long p))                                         \
	X(cuMemHostRegister_v2, (void *p, size_t n, unsigned flags))                           \
	X(cuMemHostUnregister, (void *p))                                                      \
	X(cuPointerGetAttribute, (void *value, unsigned attribute, unsigned long long p))      \
	X(cuMemcpyHtoDAsync_v2,                                                                \
	  (unsigned long long dst, const void *src, size_t n, struct CUstream_st *stream))     \
	X(cuMemcpyDtoHAsync_v2,                                                                \
	  (void *dst, unsigned long long src, size_t n, struct CUstream_st *stream))           \
	X(cuMemcpy3DAsync_v2, (const LOAD_CUDA_COPY *copy, struct CUstream_st *stream))        \
	X(cuMemsetD8Async,                                                                     \
	  (unsigned long long p, unsigned char value, size_t n, struct CUstream_st *stream))   \
	X(cuStreamCreate, (struct CUstream_st * *stream, unsigned flags))                      \
	X(cuStreamDestroy_v2, (struct CUstream_st * stream))                                   \
	X(cuStreamQuery, (struct CUstream_st * stream))                                        \
	X(cuStreamWaitEvent,                                                                   \
	  (struct CUstream_st * stream, struct CUevent_st * event, unsigned flags))            \
	X(cuEventCreate, (struct CUevent_st * *event, unsigned flags))                         \
	X(cuEventDestroy_v2, (struct CUevent_st * event))                                      \
	X(cuEventRecord, (struct CUevent_st * event, struct CUstream_st * stream))             \
	X(cuEventQuery, (struct CUevent_st * event))                                           \
	X(cuModuleLoadData, (struct CUmod_st * *module, const void *image))                    \
	X(cuModuleUnload, (struct CUmod_st * module))                                          \
	X(cuModuleGetFunction,                                                                 \
	  (struct CUfunc_st * *function, struct CUmod_st * module, const char *name))          \
	X(cuLaunchKernel,                                                                      \
	  (struct CUfunc_st * function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,              \
	   struct CUstream_st *stream, void **arguments, void **extra))

#define LOAD_CUDA_MEMBER(name, arguments) unsigned(*name) arguments;
struct load_cuda_calls {
	LOAD_CUDA_CALLS(LOAD_CUDA_MEMBER)
};

/* cuda_driver: the driver's library, opened when a GPU is first needed. */

struct load_cuda_driver {
	struct load_cuda_calls call;
	int version; /* 13000: of CUDA 13.0 */
	int gpus;
};

/* -ELIBACC: no library; -ELIBBAD: the library is too old, or lacks a function; -ENODEV: no GPU. The
 * library stays open, because it cannot be closed. */
int load_cuda_driver(struct load_cuda_driver *out, struct dcpload_error *err);
