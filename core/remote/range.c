/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "core/remote/remote.h"

static int head(void *ctx, const struct dcp_http *h, struct dcp_buf *heads, struct dcp_err *err)
{
	const struct dcp_range *range = ctx;
	struct dcp_remote_file *o = range->o;

	return o->remote->ops->head ? o->remote->ops->head(o->remote, h, heads, err) : 0;
}

static bool refused(void *ctx, const struct dcp_http *h)
{
	const struct dcp_range *range = ctx;
	struct dcp_remote_file *o = range->o;

	return o->remote->ops->refused && o->remote->ops->refused(o->remote, h);
}

static int take(void *ctx, uint64_t at, const char *p, size_t n)
{
	const struct dcp_range *range = ctx;

	return range->take(range->ctx, at, p, n);
}

int dcp_remote_get(struct dcp_remote_file *o, struct dcp_range *ranges, size_t n)
{
	struct dcp_http *r;
	int rc = 0;

	if (o->changed)
		return -ESTALE;
	r = calloc(n ? n : 1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		ranges[i].o = o;
		r[i] = (struct dcp_http){ .url = o->url,
					  .head = head,
					  .refused = refused,
					  .take = take,
					  .ctx = &ranges[i],
					  .off = ranges[i].off,
					  .n = ranges[i].n,
					  .size = o->size,
					  .plain = o->remote->plain,
					  .match = o->remote->ops->pinned ? NULL : o->tag,
					  .since = o->modified };
	}
	rc = dcp_http_run(r, n, NULL);
	for (size_t i = 0; i < n; i++)
		dcp_http_finish(&r[i]);
	free(r);
	if (rc == -ENOENT)
		rc = -ESTALE; /* it was there when it was listed */
	if (rc == -ESTALE) {
		o->changed = true;
		dcp_remote_distrust(o->remote);
	}
	return rc == -EACCES || rc == -ENOTSUP || rc == -ENOMEM || rc == -ESTALE ? rc
	       : rc < 0                                                          ? -EIO
										 : 0;
}
