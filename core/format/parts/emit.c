/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling parts takes two passes: the first only collects the keys, and finds those that
 * several parts have; the second tells everything through a relay that puts the part's name in
 * front of these. A name that is made so may be another part's own key: then that one moves
 * too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/log.h"
#include "core/format/formats.h"
#include "core/format/nest/relay.h"
#include "core/format/parts/parts.h"
#include "core/model/tensor.h"

#define SEVERAL UINT32_MAX

struct telling {
	const struct dcp_load *in;
	const struct dcp_parts *parts;
	struct dcp_intern keys;
	struct dcp_buf owner;        /* uint32_t per key: the part that has it, or SEVERAL */
	struct dcp_buf broken;       /* struct dcp_err per part; code 0: it can be read */
	const struct dcp_part *part; /* at hand */
	uint32_t at;
	struct dcp_buf text;
};

static uint32_t *owner_of(const struct telling *w, uint32_t key)
{
	return (uint32_t *)(void *)w->owner.p + key;
}

static struct dcp_err *broken_of(const struct telling *w, size_t part)
{
	return (struct dcp_err *)(void *)w->broken.p + part;
}

/* ---- the first pass ---- */

static int note_key(struct telling *w, const char *key)
{
	uint32_t number, *owner;
	int rc = dcp_intern_add(&w->keys, key, strlen(key), DCP_INTERN_NONE, &number);

	if (rc == 1)
		dcp_buf_add(&w->owner, &w->at, sizeof(w->at));
	if (rc < 0 || dcp_buf_error(&w->owner))
		return -ENOMEM;
	owner = owner_of(w, number);
	if (*owner != w->at)
		*owner = SEVERAL;
	return 0;
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	(void)ctx;
	(void)name;
	*number = 0;
	return 0;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	return note_key(ctx, t->key);
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	return note_key(ctx, o->key);
}

static int on_meta(void *ctx, const char *name, const char *value)
{
	(void)ctx;
	(void)name;
	(void)value;
	return 0;
}

static int on_sidecar(void *ctx, const char *name)
{
	(void)ctx;
	(void)name;
	return 0;
}

static int load_part(const struct telling *w, const struct dcp_part *part,
		     const struct dcp_sink *sink, bool again, struct dcp_err *err)
{
	const struct dcp_load in = {
		.dir = &part->dir,
		.sink = sink,
		.progress = again ? w->in->progress : NULL,
		.log = again ? w->in->log : NULL,
	};
	struct dcp_parts below;
	int rc = 0;

	if (part->format != &dcp_format_parts)
		return part->format->load(&in, err);
	dcp_parts_init(&below, w->parts->depth + 1);
	if (dcp_parts_find(&part->dir, &below, NULL, 0) == DCP_MATCH_YES)
		rc = dcp_parts_tell(&in, &below, err);
	else
		rc = dcp_fail(err, -ENOENT, DCP_ERR_NO_OFFSET, "its parts are gone");
	dcp_parts_finish(&below);
	return rc;
}

static int collect(struct telling *w, struct dcp_err *err)
{
	struct dcp_sink sink = {
		.file = on_file,
		.tensor = on_tensor,
		.object = on_object,
		.meta = on_meta,
		.unpacked = on_file,
		.sidecar = on_sidecar,
		.ctx = w,
	};
	size_t n = dcp_parts_n(w->parts), nbroken = 0;

	for (w->at = 0; w->at < n; w->at++) {
		const struct dcp_part *part = dcp_parts_at(w->parts, w->at);
		struct dcp_err why = { 0 };
		int rc = load_part(w, part, &sink, false, &why);

		if (rc == -ENOMEM || (rc < 0 && ++nbroken == n)) {
			if (err)
				*err = why;
			return rc;
		}
		if (rc < 0)
			rc = note_key(w, part->name);
		if (rc == 0 && why.code == 0)
			why.msg[0] = '\0';
		dcp_buf_add(&w->broken, &why, sizeof(why));
		if (rc < 0 || dcp_buf_error(&w->broken))
			return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET,
					"out of memory for the keys of parts");
	}
	return 0;
}

/* The key as part @part tells it when several have it. */
static uint32_t find_longer(struct telling *w, size_t part, uint32_t key)
{
	dcp_buf_reset(&w->text);
	dcp_buf_printf(&w->text, "%s.%s", dcp_parts_at(w->parts, part)->name,
		       dcp_intern_text(&w->keys, key));
	return dcp_buf_error(&w->text) ? DCP_INTERN_NONE
				       : dcp_intern_find(&w->keys, w->text.p, w->text.n);
}

/* Keys that clash with what a clashing key becomes; each of them may push the next. */
static int spread(struct telling *w)
{
	dcp_auto_buf struct dcp_buf todo = DCP_BUF_INIT;
	size_t nparts = dcp_parts_n(w->parts);

	for (uint32_t k = 0; k < w->keys.n; k++)
		if (*owner_of(w, k) == SEVERAL)
			dcp_buf_add(&todo, &k, sizeof(k));
	while (!dcp_buf_error(&todo) && todo.n > 0) {
		uint32_t k;

		todo.n -= sizeof(k);
		memcpy(&k, todo.p + todo.n, sizeof(k));
		for (size_t p = 0; p < nparts; p++) {
			uint32_t other = find_longer(w, p, k);

			if (other == DCP_INTERN_NONE || *owner_of(w, other) == SEVERAL)
				continue;
			*owner_of(w, other) = SEVERAL;
			dcp_buf_add(&todo, &other, sizeof(other));
		}
	}
	return dcp_buf_error(&todo) ? -ENOMEM : dcp_buf_error(&w->text);
}

/* ---- the second pass ---- */

static int place(void *ctx, const char *name, struct dcp_place *out)
{
	const struct telling *w = ctx;
	int n = snprintf(out->name, sizeof(out->name), "%s%s", w->part->below, name);

	return n < 0 || (size_t)n >= sizeof(out->name) ? -ENAMETOOLONG : 0;
}

static const char *prefix(void *ctx, const char *key)
{
	const struct telling *w = ctx;
	uint32_t number = dcp_intern_find(&w->keys, key, strlen(key));

	return number != DCP_INTERN_NONE && *owner_of(w, number) == SEVERAL ? w->part->name
									    : NULL;
}

static int tell_broken(struct telling *w, const struct dcp_sink *sink, const char *why)
{
	const char *name = w->part->name;
	struct dcp_object o = {
		.key = name, .path = &name, .npath = 1, .type = "", .error = why
	};

	dcp_log(w->in->log, DCP_LOG_WARN, "%s%s", w->part->below, why);
	return sink->object(sink->ctx, &o);
}

static int tell_part(struct telling *w, struct dcp_err *err)
{
	struct dcp_relay r = { .to = w->in->sink, .place = place, .prefix = prefix, .ctx = w };
	struct dcp_sink sink = dcp_relay_sink(&r);
	const struct dcp_err *broken = broken_of(w, w->at);
	int rc = broken->code ? tell_broken(w, &sink, broken->msg)
			      : load_part(w, w->part, &sink, true, err);

	dcp_relay_finish(&r);
	return rc;
}

/* "model: torch-dcp, optimizer: torch-save" */
static int tell_facts(struct telling *w)
{
	dcp_buf_reset(&w->text);
	for (size_t i = 0; i < dcp_parts_n(w->parts); i++) {
		const struct dcp_part *part = dcp_parts_at(w->parts, i);

		dcp_buf_printf(&w->text, "%s%s: %s", i ? ", " : "", part->name,
			       part->format->name);
	}
	if (dcp_buf_error(&w->text))
		return -ENOMEM;
	return w->in->sink->meta(w->in->sink->ctx, "parts", w->text.p);
}

int dcp_parts_tell(const struct dcp_load *in, const struct dcp_parts *p, struct dcp_err *err)
{
	struct telling w = { .in = in, .parts = p };
	int rc = collect(&w, err);

	if (rc == 0)
		rc = spread(&w);
	for (w.at = 0; rc == 0 && w.at < dcp_parts_n(p); w.at++) {
		w.part = dcp_parts_at(p, w.at);
		rc = tell_part(&w, err);
	}
	if (rc == 0)
		rc = tell_facts(&w);
	dcp_intern_finish(&w.keys);
	dcp_buf_finish(&w.owner);
	dcp_buf_finish(&w.broken);
	dcp_buf_finish(&w.text);
	return rc;
}
