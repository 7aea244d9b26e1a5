/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several files as one version. Everything is read twice: first for the keys alone, then to be
 * told. A key that several files have gets the file's label in front, everywhere; unless it
 * is an object with the same value in all of them, which is told once.
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/paddle_plain_int.h"
#include "core/model/tensor.h"

/* What is known of one key. */
struct seen {
	uint32_t first, last; /* number of the part that had it */
	uint32_t value;       /* number of an object's JSON; DCP_INTERN_NONE: not known */
	bool clash;
};

struct merge {
	struct dcp_intern keys, values;
	struct dcp_buf seen; /* struct seen by number of the key */
	uint32_t part;       /* the one at hand */
	struct dcp_err *err;
};

static struct seen *seen_of(const struct merge *m, uint32_t number)
{
	return (struct seen *)(void *)m->seen.p + number;
}

static int note(struct merge *m, const char *key, uint32_t value)
{
	struct seen s = { .first = m->part, .last = m->part, .value = value };
	struct seen *old;
	uint32_t number;
	int rc = dcp_intern_add(&m->keys, key, strlen(key), DCP_INTERN_NONE, &number);

	if (rc == 1)
		dcp_buf_add(&m->seen, &s, sizeof(s));
	if (rc < 0 || dcp_buf_error(&m->seen))
		return dcp_fail(m->err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for keys");
	if (rc == 1)
		return 0;
	old = seen_of(m, number);
	if (old->last != m->part)
		old->clash |= value == DCP_INTERN_NONE || old->value != value;
	old->last = m->part;
	return 0;
}

/* ---- the first reading ---- */

static int note_tensor(void *ctx, const struct dcp_tensor *t)
{
	return note(ctx, t->key, DCP_INTERN_NONE);
}

static int note_object(void *ctx, const struct dcp_object *o)
{
	struct merge *m = ctx;
	uint32_t value = DCP_INTERN_NONE;

	if (o->json &&
	    dcp_intern_add(&m->values, o->json, o->json_len, DCP_INTERN_NONE, &value) < 0)
		return dcp_fail(m->err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for values");
	return note(m, o->key, value);
}

static int ignore_file(void *ctx, const char *name, uint32_t *number)
{
	(void)ctx;
	(void)name;
	*number = 0;
	return 0;
}

static int ignore_fact(void *ctx, const char *name, const char *value)
{
	(void)ctx;
	(void)name;
	(void)value;
	return 0;
}

static int ignore_sidecar(void *ctx, const char *name)
{
	(void)ctx;
	(void)name;
	return 0;
}

/* ---- the second ---- */

static int choose(void *ctx, const char *key)
{
	const struct merge *m = ctx;
	uint32_t number = dcp_intern_find(&m->keys, key, strlen(key));
	const struct seen *s;

	if (number == DCP_INTERN_NONE)
		return 0;
	s = seen_of(m, number);
	if (s->clash)
		return 1;
	return s->first == m->part ? 0 : 2;
}

/*
 * What is wrong with a part, told or remembered in @err: the version is refused when that is
 * all of them.
 */
static int tell_part(struct merge *m, const struct dcp_load *in, const struct dcp_pdpart *part,
		     bool again, size_t *nbroken)
{
	struct dcp_sink notes = {
		.file = ignore_file,
		.tensor = note_tensor,
		.object = note_object,
		.meta = ignore_fact,
		.unpacked = ignore_file,
		.sidecar = ignore_sidecar,
		.ctx = m,
	};
	struct dcp_pdpart p = *part;
	struct dcp_err why = { 0 };
	int rc;

	p.sink = again ? in->sink : &notes;
	p.choose = again ? choose : NULL;
	p.ctx = m;
	rc = dcp_pdpart_tell(in->dir, &p, &why);
	if (rc == 0)
		return 0;
	if (rc == -ENOMEM || rc == -ENOSPC || !why.code) {
		if (m->err && why.code)
			*m->err = why;
		return rc;
	}
	(*nbroken)++;
	if (!again && m->err)
		*m->err = why;
	return again ? dcp_pdpart_broken(&p, why.msg) : 0;
}

int dcp_pdmerge(const struct dcp_load *in, const struct dcp_pdpart *parts, size_t n,
		struct dcp_err *err)
{
	struct merge m = { .err = err };
	size_t nbroken = 0;
	int rc = 0;

	for (int again = 0; rc == 0 && again < 2; again++) {
		for (size_t i = 0; rc == 0 && i < n; i++) {
			m.part = (uint32_t)i;
			rc = tell_part(&m, in, &parts[i], again, &nbroken);
		}
		if (rc == 0 && !again && nbroken == n)
			rc = err && err->code ? err->code : -EBADMSG;
	}
	dcp_intern_finish(&m.keys);
	dcp_intern_finish(&m.values);
	dcp_buf_finish(&m.seen);
	return rc;
}
