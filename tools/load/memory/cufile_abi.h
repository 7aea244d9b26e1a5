/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cufile_abi: the functions and types of libcufile.so.0, NVIDIA's GPUDirect Storage, that the
 * loader uses, declared here so that cuFile is not needed to build. tests/load/abi.c compares it
 * with cufile.h where there is one.
 */
#pragma once
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

enum {
	LOAD_CUFILE_SUCCESS = 0,
	LOAD_CUFILE_FD = 1, /* CU_FILE_HANDLE_TYPE_OPAQUE_FD */

	LOAD_CUFILE_BATCH = 1,   /* CUfileBatchMode_t */
	LOAD_CUFILE_READ = 0,    /* CUfileOpcode_t */
	LOAD_CUFILE_WAITING = 1, /* CUfileStatus_t */
	LOAD_CUFILE_PENDING = 2,
	LOAD_CUFILE_COMPLETE = 16,

	LOAD_CUFILE_COMPAT = 1, /* bit of control, CUfileDriverControlFlags_t */
};

struct load_cufile_error {
	unsigned code; /* 5008: no GPUDirect for this file */
	unsigned cuda;
};

struct load_cufile_descr {
	unsigned type;
	union {
		int fd;
		void *handle;
	} handle;
	const void *fs_ops;
};

struct load_cufile_properties {
	unsigned major, minor; /* version of nvidia-fs; 0: it is not installed */
	size_t poll, direct;
	unsigned status, control;
	unsigned flags, cache, per_buffer, pinned;
	unsigned batch, batch_ms; /* requests, at most */
};

struct load_cufile_request {
	unsigned mode;
	void *base;
	off_t off, at;
	size_t n;
	void *handle;
	unsigned opcode;
	void *cookie;
};

struct load_cufile_event {
	void *cookie;
	unsigned status;
	size_t got;
};

#ifndef LOAD_CUFILE_ERROR /* tests/load/abi.c has cufile.h's */
#define LOAD_CUFILE_ERROR struct load_cufile_error
#define LOAD_CUFILE_DESCR struct load_cufile_descr
#define LOAD_CUFILE_PROPERTIES struct load_cufile_properties
#define LOAD_CUFILE_REQUEST struct load_cufile_request
#define LOAD_CUFILE_EVENT struct load_cufile_event
#endif

/* X(result, name, arguments) */
#define LOAD_CUFILE_CALLS(X)                                                                   \
	X(LOAD_CUFILE_ERROR, cuFileDriverOpen, (void))                                         \
	X(LOAD_CUFILE_ERROR, cuFileDriverClose, (void))                                        \
	X(LOAD_CUFILE_ERROR, cuFileHandleRegister, (void **handle, LOAD_CUFILE_DESCR *descr))  \
	X(void, cuFileHandleDeregister, (void *handle))                                        \
	X(LOAD_CUFILE_ERROR, cuFileBufRegister, (const void *base, size_t n, int flags))       \
	X(LOAD_CUFILE_ERROR, cuFileBufDeregister, (const void *base))                          \
	X(ssize_t, cuFileRead, (void *handle, void *base, size_t n, off_t off, off_t at))
/* Functions that older libraries may lack: first the functions for batches, then those that
 * describe the driver. */
#define LOAD_CUFILE_MORE(X)                                                                    \
	X(LOAD_CUFILE_ERROR, cuFileBatchIOSetUp, (void **batch, unsigned n))                   \
	X(LOAD_CUFILE_ERROR, cuFileBatchIOSubmit,                                              \
	  (void *batch, unsigned n, LOAD_CUFILE_REQUEST *requests, unsigned flags))            \
	X(LOAD_CUFILE_ERROR, cuFileBatchIOGetStatus,                                           \
	  (void *batch, unsigned least, unsigned *n, LOAD_CUFILE_EVENT *events,                \
	   struct timespec *timeout))                                                          \
	X(LOAD_CUFILE_ERROR, cuFileBatchIOCancel, (void *batch))                               \
	X(void, cuFileBatchIODestroy, (void *batch))                                           \
	X(LOAD_CUFILE_ERROR, cuFileDriverGetProperties, (LOAD_CUFILE_PROPERTIES * properties))

#define LOAD_CUFILE_MEMBER(result, name, arguments) result(*name) arguments;
struct load_cufile_calls {
	LOAD_CUFILE_CALLS(LOAD_CUFILE_MEMBER)
	LOAD_CUFILE_MORE(LOAD_CUFILE_MEMBER)
};
