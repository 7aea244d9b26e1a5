/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens libdcpload-mpi.so: beside the library or program that this is part of, in the folder load/ there (as it is
 * built), or where the system looks for libraries.
 */
#include "tools/load/comm/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/load/comm/job.h"
#include "tools/load/comm/transport.h"

#define MODULE "libdcpload-mpi.so"

/* Is the module beside the file that this code is in, or in @folder there? */
static bool beside(const char *folder, char *out, size_t size)
{
	struct link_map *map = NULL;
	char exe[PATH_MAX] = "";
	Dl_info info;
	const char *own, *end;

	if (!dladdr1((const void *)load_job_transport, &info, (void **)&map, RTLD_DL_LINKMAP))
		return false;
	/* The program itself has no name there. */
	own = map && map->l_name[0] ? map->l_name : exe;
	if (own == exe && readlink("/proc/self/exe", exe, sizeof(exe) - 1) < 0)
		return false;
	end = strrchr(own, '/');
	return end &&
	       snprintf(out, size, "%.*s/%s" MODULE, (int)(end - own), own, folder) <
		       (int)size &&
	       access(out, F_OK) == 0;
}

/*
 * Opened with global symbols, because Open MPI's plugins look for those of Open MPI. Never closed, as
 * Open MPI cannot be unloaded.
 */
static void *open_module(char *why, size_t size)
{
	const int flags = RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE;
	char path[PATH_MAX];
	void *module = NULL;

	if (beside("", path, sizeof(path)) || beside("load/", path, sizeof(path)))
		module = dlopen(path, flags);
	else
		module = dlopen(MODULE, flags);
	if (!module) {
		const char *text = dlerror();

		snprintf(why, size, "%s", text ? text : MODULE ": cannot be opened");
	}
	return module;
}

bool load_mpi_try(char *why, size_t size)
{
	void *module = open_module(why, size);

	if (module)
		dlclose(module);
	return module != NULL;
}

int load_mpi_open(const void *mpi_comm, const struct dcpload_comm_config *config,
		  struct dcpload_comm **out, struct dcpload_error *err)
{
	char why[512];
	void *module = open_module(why, sizeof(why));
	__typeof__(dcpload_mpi_open) *entry;
	int timeout_ms, rc = load_job_timeout(config->timeout_ms, &timeout_ms, err);

	if (!module)
		return load_fail(
			err, -ELIBACC,
			"no MPI: %s; needed are dcpfs's module " MODULE
			" and Open MPI (Debian: libopenmpi3); without them start the ranks "
			"with torchrun or srun, or say where rank 0 is in MASTER_ADDR",
			why);
	entry = (__typeof__(entry))dlsym(module, "dcpload_mpi_open");
	if (!entry)
		rc = load_fail(err, -ELIBBAD, MODULE " is not dcpfs's");
	if (rc == 0)
		rc = entry(DCPLOAD_ABI, mpi_comm, load_job_mpi_ranks(), timeout_ms, out, err);
	dlclose(module);
	return rc;
}
