/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/loading/loading.h"

#include "tools/load/comm/job.h"

const char *const loading_ios[] = { "auto", "buffered", "direct", "mount", "gds", NULL };
const char *const loading_exchanges[] = { "auto", "never", "node", "all", NULL };

/* All ranks know of it; one line is enough, which rank 0 says. When that is lost, rank 1 does, and as it may have been on the
 * same machine, the first of each. */
static bool speaks(const struct loading *l)
{
	int32_t local;

	if (l->comm->rank == 0 || l->err.rank != 0 || !load_is_lost(l->err.code))
		return l->comm->rank == 0;
	return l->comm->rank == 1 || (load_job_local_rank(&local, NULL) == 0 && local == 0);
}

enum cmd_exit loading_fail(const struct loading *l, enum cmd_exit code)
{
	if (l->comm && !speaks(l))
		return code;
	if (l->err.rank >= 0 && l->comm && l->comm->ranks > 1 && !load_names_rank(&l->err))
		return cmd_fail(code, "rank %d: %s", l->err.rank, l->err.text);
	return cmd_fail(code, "%s", l->err.text);
}

int loading_timeout(const struct loading *l)
{
	return (int)(l->opts->timeout ? l->opts->timeout * 1000 : 60000);
}

int loading_agree(struct loading *l, int rc)
{
	rc = load_agree(l->comm, rc, &l->err, loading_timeout(l));
	return load_while(&l->err, rc, l->doing);
}
