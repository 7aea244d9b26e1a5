/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces cuda.c in builds without it. */
#include <errno.h>
#include <stddef.h>

#include "tools/load/error.h"
#include "tools/load/memory/memory.h"

int load_cuda_probe(char *found, size_t size, struct dcpload_error *err)
{
	return load_fail(err, -ENOTSUP,
			 "no GPU: dcpfs was built without CUDA (-Dcuda=disabled)");
}

const char *load_cuda_library(void)
{
	return NULL;
}

int load_cuda_probe_sharing(char *found, size_t size, struct dcpload_error *err)
{
	return load_cuda_probe(found, size, err);
}

int load_cuda_open(int number, uint32_t local, struct load_device **out,
		   struct dcpload_error *err)
{
	return load_cuda_probe(NULL, 0, err);
}
