/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All data is written: what the ranks know of it goes to rank 0, which completes the checkpoint.
 */
#include <errno.h>

#include "tools/save/ranks/ranks_int.h"
#include "tools/save/save_int.h"

/* To all ranks, since that is what communicators can. */
static int share_sums(struct dcpsave *s, struct dcpload_error *err)
{
	int timeout = (int)s->config.timeout_ms;
	dcp_auto_buf struct dcp_buf mine = DCP_BUF_INIT;
	struct load_blobs b;
	int rc =
		load_agree(s->comm, load_say(err, save_put_sums(s->save, &mine)), err, timeout);

	if (rc == 0)
		rc = load_gather(s->comm, mine.p, mine.n, &b, err, timeout);
	if (rc < 0)
		return rc;
	for (uint32_t r = 0; rc == 0 && save_leads(s->save) && r < s->comm->ranks; r++)
		rc = save_take_sums(s->save, b.at[r], b.n[r]);
	load_blobs_free(&b);
	return load_agree(s->comm, load_say(err, rc), err, timeout);
}

static int complete(struct dcpsave *s, struct dcp_err *err)
{
	int rc = save_makes_files(s) ? save_seal(s->save, err) : 0;

	return rc == 0 && save_makes_files(s) ? save_publish(s->save, err) : rc;
}

int save_finish(struct dcpsave *s, struct dcpload_error *err)
{
	int rc = s->any_placed ? save_step(s, save_check_placed, err) : 0;

	if (rc == 0 && s->comm->ranks > 1 && !s->gathers)
		rc = share_sums(s, err);
	return rc == 0 ? save_step(s, complete, err) : rc;
}
