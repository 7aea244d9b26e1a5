/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of transports.
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "tools/load/comm/job.h"
#include "tools/load/comm/transport.h"

static int mpi_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		    struct dcpload_error *err)
{
	return load_mpi_open(NULL, config, out, err);
}

/* MPI, or TCP where its module is not installed and the launcher says enough about ranks. */
static int mpi_or_tcp(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		      struct dcpload_error *err)
{
	struct load_job job;
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
