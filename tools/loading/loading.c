/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/loading/loading.h"

const char *const loading_ios[] = { "auto", "buffered", "direct", "mount", "gds", NULL };
const char *const loading_exchanges[] = { "auto", "never", "node", "all", NULL };

enum cmd_exit loading_fail(const struct loading *l, enum cmd_exit code)
{
	/* All ranks know of it; one line is enough. */
	if (l->comm && l->comm->rank != 0)
		return code;
	if (l->err.rank >= 0 && l->comm && l->comm->ranks > 1)
		return cmd_fail(code, "rank %d: %s", l->err.rank, l->err.text);
	return cmd_fail(code, "%s", l->err.text);
}

int loading_timeout(const struct loading *l)
{
	return (int)(l->opts->timeout ? l->opts->timeout * 1000 : 60000);
}

int loading_agree(struct loading *l, int rc)
{
	return load_agree(l->comm, rc, &l->err, loading_timeout(l));
}
