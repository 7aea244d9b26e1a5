/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-Core's sharded objects: byte items that are parts of one object.
 *
 *	<key>/shard_<offset>_<shape>        rng_state/shard_0.1_2.4: rank (0, 1) of 2 x 4
 *
 * Offset and shape are numbers joined by dots; releases of 2024 may leave the last number of
 * the shape away. The item is a list of one value, which Megatron takes out when it loads. The
 * names stay as they are; a part that the shape has and no name is emitted as broken.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/number.h"
#include "core/format/dcp/dcp_int.h"

enum { MAX_DIMS = DCP_LEN(((struct dcp_tdcp_shard *)0)->at), MAX_LOST = 256 };

/* "0.1_": its numbers, 0 when it has none; @p is left after it. */
static uint32_t read_numbers(const char **p, char end, uint64_t n[MAX_DIMS])
{
	uint32_t count = 0;
	bool more = true, good;

	for (; more; *p += more) {
		if (count == MAX_DIMS || !dcp_take_number(p, NULL, 18, &n[count++]))
			return 0;
		more = **p == '.';
	}
	good = **p == end;
	*p += **p != '\0';
	return good ? count : 0;
}

bool dcp_tdcp_is_shard(const char *key, struct dcp_tdcp_shard *s)
{
	const char *p = strrchr(key, '/');
	uint32_t ndim;

	if (!p || strncmp(p, "/shard_", 7) != 0)
		return false;
	s->nkey = (size_t)(p - key);
	p += 7;
	s->ndim = read_numbers(&p, '_', s->at);
	s->shape = p;
	ndim = s->ndim ? read_numbers(&p, '\0', s->of) : 0;
	s->cut = ndim + 1 == s->ndim;
	if (ndim != s->ndim && !s->cut)
		return false;
	for (uint32_t k = 0; k < ndim; k++)
		if (s->at[k] >= s->of[k])
			return false;
	return ndim > 0;
}

/* The name of part @at of the object that @s is a part of. */
static int name_part(const char *key, const struct dcp_tdcp_shard *s, const uint64_t *at,
		     struct dcp_buf *out)
{
	dcp_buf_reset(out);
	dcp_buf_add(out, key, s->nkey);
	for (uint32_t k = 0; k < s->ndim; k++)
		dcp_buf_printf(out, "%s%llu", k ? "." : "/shard_", (unsigned long long)at[k]);
	return dcp_buf_printf(out, "_%s", s->shape);
}

static bool is_emitted(const struct dcp_tmeta *m, const char *name, size_t n)
{
	uint32_t number = dcp_intern_find(&m->names, name, n);

	return number != DCP_INTERN_NONE && m->keys[number].entry != 0;
}

/* Row-major; false after the last. */
static bool next_part(const struct dcp_tdcp_shard *s, uint64_t *at)
{
	for (uint32_t k = s->ndim; k-- > 0; at[k] = 0)
		if (++at[k] < s->of[k])
			return true;
	return false;
}

/* Parts of the object of @key that are not there; at most *@left are named. Each is either
 * there, of which there are as many as keys, or takes one from *@left. */
static int emit_parts(struct dcp_tdcp_emitter *w, const char *key,
		      const struct dcp_tdcp_shard *s, unsigned *left)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	uint64_t at[MAX_DIMS] = { 0 };
	int rc = 0;

	do {
		struct dcp_object o = { .npath = 1, .type = "" };
		char why[160];

		if (name_part(key, s, at, &name))
			return -ENOMEM;
		if (is_emitted(w->m, name.p, name.n))
			continue;
		snprintf(why, sizeof(why),
			 ".metadata has no such part of the object, whose parts are %s: a rank "
			 "did not save it",
			 s->shape);
		o.key = name.p;
		o.path = &o.key;
		o.error = why;
		rc = dcp_emit_object(w->sink, &o);
		--*left;
	} while (rc == 0 && *left && next_part(s, at));
	return rc;
}

int dcp_tdcp_emit_lost_shards(struct dcp_tdcp_emitter *w)
{
	struct dcp_intern seen = DCP_INTERN_INIT;
	dcp_auto_buf struct dcp_buf object = DCP_BUF_INIT;
	unsigned left = MAX_LOST;
	int rc = 0;

	for (uint32_t k = 0; k < w->m->names.n && left && rc == 0; k++) {
		const char *key = dcp_intern_text(&w->m->names, k);
		struct dcp_tdcp_shard s;

		if (!w->m->keys[k].entry ||
		    dcp_tmeta_entry(w->m, w->m->keys[k].entry).kind != DCP_TMETA_BYTES ||
		    !dcp_tdcp_is_shard(key, &s) || s.cut)
			continue;
		dcp_buf_reset(&object);
		dcp_buf_add(&object, key, s.nkey + 1);
		dcp_buf_str(&object, s.shape);
		rc = dcp_buf_error(&object)
			     ? -ENOMEM
			     : dcp_intern_add(&seen, object.p, object.n, DCP_INTERN_NONE, NULL);
		if (rc < 0)
			rc = -ENOMEM;
		else if (rc == 1)
			rc = emit_parts(w, key, &s, &left);
	}
	dcp_intern_finish(&seen);
	return rc;
}
