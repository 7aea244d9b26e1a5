/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/loading/loading.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/export/export.h"
#include "tools/load/comm/step.h"

const char *const loading_ios[] = { "auto", "buffered", "direct", "mount", "gds", NULL };
const char *const loading_exchanges[] = { "auto", "never", "node", "all", NULL };

enum cmd_exit loading_fail(const struct loading *l, enum cmd_exit code)
{
	if (l->comm && !export_speaks(l->comm, &l->err))
		return code;
	if (l->err.rank >= 0 && l->comm && l->comm->ranks > 1 && !load_names_rank(&l->err))
		return cmd_fail(code, "rank %d: %s", l->err.rank, l->err.text);
	return cmd_fail(code, "%s", l->err.text);
}

enum cmd_exit loading_matches_nothing(struct loading *l)
{
	const struct opt_texts *keys = &l->opts->keys;

	load_fail(&l->err, -ENOENT, "--keys %s%s: matches no tensor of %s that is loaded",
		  keys->v[0], keys->n > 1 ? ", ..." : "", dcpload_version(l->ck));
	return loading_fail(l, CMD_NO);
}

int loading_timeout(const struct loading *l)
{
	return export_timeout(l->opts->timeout);
}

int loading_agree(struct loading *l, int rc)
{
	rc = load_agree(l->comm, rc, &l->err, loading_timeout(l));
	return load_while(&l->err, rc, l->doing);
}

struct work {
	struct loading *l;
	int (*fn)(struct loading *l, struct dcpload_error *err);
	struct dcpload_error err;
};

static int work(void *ctx)
{
	struct work *w = ctx;

	return w->fn(w->l, &w->err);
}

int loading_step(struct loading *l, int (*fn)(struct loading *l, struct dcpload_error *err))
{
	struct work w = { .l = l, .fn = fn, .err = { .rank = -1 } };
	int done,
		rc = load_step_run(l->comm, work, NULL, &w, &done, loading_timeout(l), &l->err);

	if (rc < 0)
		return load_while(&l->err, rc, l->doing);
	if (done < 0)
		l->err = w.err;
	return loading_agree(l, done);
}
