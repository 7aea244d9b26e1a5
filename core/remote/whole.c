/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All of an answer in memory.
 */
#include "core/remote/http.h"

struct whole {
	struct dcp_http r;
	const struct dcp_http *asked;
	struct dcp_buf *out;
};

static int head_of_whole(void *ctx, const struct dcp_http *r, struct dcp_buf *headers,
			 struct dcp_err *err)
{
	const struct whole *w = ctx;

	return w->asked->head ? w->asked->head(w->asked->ctx, r, headers, err) : 0;
}

static bool refused_whole(void *ctx, const struct dcp_http *r)
{
	const struct whole *w = ctx;

	return w->asked->refused && w->asked->refused(w->asked->ctx, r);
}

static int take_whole(void *ctx, uint64_t at, const char *p, size_t n)
{
	const struct whole *w = ctx;

	/* an answer that was cut off begins again */
	w->out->n = at ? w->out->n : 0;
	return dcp_buf_add(w->out, p, n);
}

int dcp_http_get(struct dcp_http *r, size_t most, struct dcp_buf *out, struct dcp_err *err)
{
	struct whole w = { .r = *r, .asked = r, .out = out };
	int rc;

	w.r.head = head_of_whole;
	w.r.refused = refused_whole;
	w.r.take = take_whole;
	w.r.ctx = &w;
	w.r.off = 0;
	w.r.n = DCP_HTTP_ALL;
	w.r.size = most;
	dcp_buf_reset(out);
	rc = dcp_http_run(&w.r, 1, err);
	dcp_http_finish(r);
	w.r.head = r->head;
	w.r.refused = r->refused;
	w.r.ctx = r->ctx;
	*r = w.r;
	return rc;
}
