/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/cuda_driver.h"

#include <errno.h>
#include <stdio.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/library.h"
#include "core/base/text.h"
#include "tools/load/error.h"
#include "tools/load/memory/memory.h"

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

int load_cuda_failed(const struct load_cuda_driver *d, unsigned code, const char *call,
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

int load_cuda_node(const struct load_cuda_driver *d, int device)
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
