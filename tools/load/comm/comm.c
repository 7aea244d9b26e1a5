/* SPDX-License-Identifier: Apache-2.0 */
/* The table of transports. */
#include "tools/load/comm/comm.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"

/* The transport of one process. */

static int alone_allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	if (n)
		memmove(all, mine, n);
	return 0;
}

static int alone_alltoallv(void *ctx, const void *const *send, const uint64_t *nsend,
			   void *const *recv, const uint64_t *nrecv, int timeout_ms)
{
	if (nsend[0] != nrecv[0])
		return -EPROTO;
	return alone_allgather(ctx, send[0], nsend[0], recv[0], timeout_ms);
}

static int load_alone_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
			   struct dcpload_error *err);

static int alone_split(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		       int timeout_ms)
{
	return load_alone_open(NULL, out, NULL);
}

const struct dcpload_comm load_alone = {
	.size = sizeof(load_alone),
	.ranks = 1,
	.name = "alone",
	.allgather = alone_allgather,
	.alltoallv = alone_alltoallv,
	.split = alone_split,
};

static int load_alone_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
			   struct dcpload_error *err)
{
	(void)config;
	struct dcpload_comm *comm = malloc(sizeof(*comm));

	if (!comm)
		return load_say(err, -ENOMEM);
	*comm = load_alone;
	comm->ctx = comm;
	comm->close = free;
	*out = comm;
	return 0;
}

/* Opens libdcpload-mpi.so: beside the library or program that contains this code, in the folder
 * load/ there (as in a build tree), or on the system's search path. */

#define MODULE "libdcpload-mpi.so"

/* Is the module in the directory of the file that contains this code, or in @folder there? */
static bool find_module(const char *folder, char *out, size_t size)
{
	struct link_map *map = NULL;
	char exe[PATH_MAX] = "";
	Dl_info info;
	const char *own, *end;

	if (!dladdr1((const void *)load_job_transport, &info, (void **)&map, RTLD_DL_LINKMAP))
		return false;
	/* The program itself has an empty name in the list of loaded files. */
	own = map && map->l_name[0] ? map->l_name : exe;
	if (own == exe && readlink("/proc/self/exe", exe, sizeof(exe) - 1) < 0)
		return false;
	end = strrchr(own, '/');
	return end &&
	       snprintf(out, size, "%.*s/%s" MODULE, (int)(end - own), own, folder) <
		       (int)size &&
	       access(out, F_OK) == 0;
}

/* Opened with global symbols, because Open MPI's plugins look for those of Open MPI. Never closed,
 * as Open MPI cannot be unloaded. */
static void *open_module(char *why, size_t size)
{
	const int flags = RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE;
	char path[PATH_MAX];
	void *module = NULL;

	if (find_module("", path, sizeof(path)) || find_module("load/", path, sizeof(path)))
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

/* Open MPI: MPI_COMM_WORLD, or a duplicate of what @mpi_comm points to. -ELIBACC: not installed. */
static int load_mpi_open(const void *mpi_comm, const struct dcpload_comm_config *config,
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

static int mpi_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		    struct dcpload_error *err)
{
	return load_mpi_open(NULL, config, out, err);
}

/* MPI; or TCP if the module is not installed and the launcher sets enough variables. */
static int mpi_or_tcp(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		      struct dcpload_error *err)
{
	struct load_launch job;
	int rc = mpi_open(config, out, err);

	return rc == -ELIBACC && load_job_find(&job, NULL) == 0
		       ? load_tcp_open(config, out, err)
		       : rc;
}

static const struct transport {
	const char *name;
	int (*open)(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		    struct dcpload_error *err);
} transports[] = {
	{ "mpi", mpi_open },
	{ "env", load_tcp_open },
	{ "alone", load_alone_open },
};

int dcpload_comm_open_as(const char *how, const struct dcpload_comm_config *config,
			 struct dcpload_comm **out, struct dcpload_error *err)
{
	struct dcpload_comm_config c = { 0 };

	if (config)
		memcpy(&c, config, DCP_MIN((size_t)config->size, sizeof(c)));
	if (c.flags & ~DCPLOAD_COMM_INSECURE)
		return load_fail(err, -EINVAL, "dcpload_comm_config: unknown flags 0x%x",
				 c.flags);
	if (strcmp(how, "auto") == 0) {
		how = load_job_transport();
		if (strcmp(how, "mpi") == 0)
			return mpi_or_tcp(&c, out, err);
	}
	for (size_t i = 0; i < DCP_LEN(transports); i++)
		if (strcmp(transports[i].name, how) == 0)
			return transports[i].open(&c, out, err);
	return load_fail(err, -EINVAL,
			 "no transport \"%s\"; there are auto, mpi, env and alone", how);
}

int dcpload_comm_open(const char *how, struct dcpload_comm **out, struct dcpload_error *err)
{
	return dcpload_comm_open_as(how, NULL, out, err);
}

int dcpload_comm_from_mpi(const void *mpi_comm, struct dcpload_comm **out,
			  struct dcpload_error *err)
{
	const struct dcpload_comm_config config = { .size = sizeof(config) };

	if (!mpi_comm)
		return load_fail(err, -EINVAL, "no communicator");
	return load_mpi_open(mpi_comm, &config, out, err);
}

void dcpload_comm_close(struct dcpload_comm *comm)
{
	if (comm && comm->close)
		comm->close(comm->ctx);
}
