/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_driver: the driver's library, opened when a GPU is asked for.
 */
#pragma once
#include "tools/load/dcpload.h"
#include "tools/load/memory/cuda_abi.h"

struct load_cuda_driver {
	struct load_cuda_calls call;
	int version; /* 13000: of CUDA 13.0 */
	int gpus;
};

/*
 * -ELIBACC: no library; -ELIBBAD: it is too old, or lacks a function; -ENODEV: no GPU. It stays
 * open, as it cannot be closed.
 */
int load_cuda_driver(struct load_cuda_driver *out, struct dcpload_error *err);

/* Fail with @code as the result of @call, "cuInit". Returns a negative errno. */
int load_cuda_failed(const struct load_cuda_driver *d, unsigned code, const char *call,
		     struct dcpload_error *err);
/* The NUMA node that is nearest to a GPU, according to the kernel; -1: not known. */
int load_cuda_node(const struct load_cuda_driver *d, int device);
