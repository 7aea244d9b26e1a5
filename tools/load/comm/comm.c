/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of transports.
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "tools/load/comm/job.h"
#include "tools/load/comm/transport.h"

static const struct transport {
	const char *name;
	int (*open)(struct dcpload_comm **out, struct dcpload_error *err);
} transports[] = {
	{ "env", load_tcp_open },
	{ "alone", load_alone_open },
};

int dcpload_comm_open(const char *how, struct dcpload_comm **out, struct dcpload_error *err)
{
	if (strcmp(how, "auto") == 0)
		how = load_job_transport();
	for (size_t i = 0; i < DCP_LEN(transports); i++)
		if (strcmp(transports[i].name, how) == 0)
			return transports[i].open(out, err);
	return load_fail(err, -EINVAL,
			 "no transport \"%s\"; there are auto, mpi, env and alone", how);
}

void dcpload_comm_close(struct dcpload_comm *comm)
{
	if (comm && comm->close)
		comm->close(comm->ctx);
}
