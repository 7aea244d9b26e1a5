/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An adapter looks at nothing but what its sink returns, and emits something every few
 * microseconds: the place to end a build from.
 */
#include <errno.h>

#include "core/store/version/version_int.h"

static int check(const struct dcp_stopper *s)
{
	return dcp_stopped(s->opts) ? -ECANCELED : 0;
}

static int stop_file(void *ctx, const char *name, uint32_t *number)
{
	const struct dcp_stopper *s = ctx;
	int code = check(s);

	return code < 0 ? code : s->to->file(s->to->ctx, name, number);
}

static int stop_tensor(void *ctx, const struct dcp_tensor *t)
{
	const struct dcp_stopper *s = ctx;
	int code = check(s);

	return code < 0 ? code : s->to->tensor(s->to->ctx, t);
}

static int stop_object(void *ctx, const struct dcp_object *o)
{
	const struct dcp_stopper *s = ctx;
	int code = check(s);

	return code < 0 ? code : s->to->object(s->to->ctx, o);
}

static int stop_meta(void *ctx, const char *name, const char *value)
{
	const struct dcp_stopper *s = ctx;
	int code = check(s);

	return code < 0 ? code : s->to->meta(s->to->ctx, name, value);
}

static int stop_unpacked(void *ctx, const char *name, uint32_t *number)
{
	const struct dcp_stopper *s = ctx;
	int code = check(s);

	return code < 0 ? code : s->to->unpacked(s->to->ctx, name, number);
}

static int stop_sidecar(void *ctx, const char *name)
{
	const struct dcp_stopper *s = ctx;
	int code = check(s);

	return code < 0 ? code : s->to->sidecar(s->to->ctx, name);
}

struct dcp_sink dcp_stopper_sink(struct dcp_stopper *s)
{
	return (struct dcp_sink){
		.file = stop_file,
		.tensor = stop_tensor,
		.object = stop_object,
		.meta = stop_meta,
		.unpacked = stop_unpacked,
		.sidecar = stop_sidecar,
		.ctx = s,
	};
}
