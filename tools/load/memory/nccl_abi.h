/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_abi: the functions and types of libnccl.so.2, NVIDIA's NCCL, that the loader uses, declared
 * here so that NCCL is not needed to build. tests/load/abi.c compares it with nccl.h where there is
 * one.
 */
#pragma once
#include <stddef.h>

struct ncclComm;
struct CUstream_st;

enum {
	LOAD_NCCL_SUCCESS = 0,
	LOAD_NCCL_IN_PROGRESS = 7,
	LOAD_NCCL_UINT8 = 1,

	LOAD_NCCL_LEAST = 21400, /* 2.14: the oldest with a nonblocking mode */
};

/* ncclUniqueId */
struct load_nccl_id {
	char bytes[128];
};

/* ncclConfig_t as of LOAD_NCCL_LEAST, which @version says; later members take their defaults. */
struct load_nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking;
};
#define LOAD_NCCL_MAGIC 0xcafebeefu

#ifndef LOAD_NCCL_ID /* tests/load/abi.c has nccl.h's */
#define LOAD_NCCL_ID struct load_nccl_id
#define LOAD_NCCL_CONFIG struct load_nccl_config
#define LOAD_NCCL_RESULT unsigned
#define LOAD_NCCL_TYPE unsigned
#endif

/* X(result, name, arguments) */
#define LOAD_NCCL_CALLS(X)                                                                     \
	X(LOAD_NCCL_RESULT, ncclGetVersion, (int *version))                                    \
	X(LOAD_NCCL_RESULT, ncclGetUniqueId, (LOAD_NCCL_ID * id))                              \
	X(LOAD_NCCL_RESULT, ncclCommInitRankConfig,                                            \
	  (struct ncclComm * *comm, int ranks, LOAD_NCCL_ID id, int rank,                      \
	   LOAD_NCCL_CONFIG *config))                                                          \
	X(LOAD_NCCL_RESULT, ncclCommGetAsyncError,                                             \
	  (struct ncclComm * comm, LOAD_NCCL_RESULT * state))                                  \
	X(LOAD_NCCL_RESULT, ncclCommAbort, (struct ncclComm * comm))                           \
	X(const char *, ncclGetErrorString, (LOAD_NCCL_RESULT code))                           \
	X(const char *, ncclGetLastError, (struct ncclComm * comm))                            \
	X(LOAD_NCCL_RESULT, ncclGroupStart, (void))                                            \
	X(LOAD_NCCL_RESULT, ncclGroupEnd, (void))                                              \
	X(LOAD_NCCL_RESULT, ncclSend,                                                          \
	  (const void *p, size_t n, LOAD_NCCL_TYPE type, int to, struct ncclComm *comm,        \
	   struct CUstream_st *stream))                                                        \
	X(LOAD_NCCL_RESULT, ncclRecv,                                                          \
	  (void *p, size_t n, LOAD_NCCL_TYPE type, int from, struct ncclComm *comm,            \
	   struct CUstream_st *stream))                                                        \
	X(LOAD_NCCL_RESULT, ncclAllGather,                                                     \
	  (const void *mine, void *all, size_t n, LOAD_NCCL_TYPE type, struct ncclComm *comm,  \
	   struct CUstream_st *stream))

#define LOAD_NCCL_MEMBER(result, name, arguments) result(*name) arguments;
struct load_nccl_calls {
	LOAD_NCCL_CALLS(LOAD_NCCL_MEMBER)
};
