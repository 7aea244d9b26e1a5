/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cufile_abi: what is used of libcufile.so.0, NVIDIA's GPUDirect Storage, declared here so that nothing is
 * needed to build. tests/load/abi.c compares it with cufile.h where there is one.
 */
#pragma once
#include <stddef.h>
#include <sys/types.h>

enum {
	LOAD_CUFILE_SUCCESS = 0,
	LOAD_CUFILE_FD = 1, /* CU_FILE_HANDLE_TYPE_OPAQUE_FD */
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

#ifndef LOAD_CUFILE_ERROR /* tests/load/abi.c has cufile.h's */
#define LOAD_CUFILE_ERROR struct load_cufile_error
#define LOAD_CUFILE_DESCR struct load_cufile_descr
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

#define LOAD_CUFILE_MEMBER(result, name, arguments) result(*name) arguments;
struct load_cufile_calls {
	LOAD_CUFILE_CALLS(LOAD_CUFILE_MEMBER)
};
