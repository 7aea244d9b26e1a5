/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks do for themselves, and how it ends: when one fails, the others are asked to stop.
 */
#include "tools/save/ranks/ranks_int.h"

static int run(void *ctx)
{
	struct dcpsave *s = ctx;

	return dcp_err_say(&s->step_err, s->step_fn(s, &s->step_err));
}

void save_step_start(struct dcpsave *s, save_step_fn fn)
{
	s->step_fn = fn;
	s->step_err = (struct dcp_err){ 0 };
	s->stop = false;
	load_step_start(&s->step, run, s);
}

int save_step_end(struct dcpsave *s, struct dcpload_error *err)
{
	int timeout = (int)s->config.timeout_ms;
	int rc = load_step_wait(&s->step, s->comm, true, timeout, err);

	save_step_drop(s);
	if (rc < 0)
		return rc;
	rc = load_fail_err(err, s->step.rc, &s->step_err);
	return load_agree(s->comm, rc, err, timeout);
}

int save_step(struct dcpsave *s, save_step_fn fn, struct dcpload_error *err)
{
	save_step_start(s, fn);
	return save_step_end(s, err);
}

void save_step_drop(struct dcpsave *s)
{
	__atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
	load_step_join(&s->step);
}
