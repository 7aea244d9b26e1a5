/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sink: what is emitted for the files of several ranks, kept until all are read.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/format/torch_checkpointing/items_int.h"
#include "core/format/torch_checkpointing/place.h"
#include "core/model/tensor.h"

struct dcp_titems_file *dcp_titems_file(const struct dcp_titems *r, size_t i)
{
	return DCP_ITEMS(r->files, struct dcp_titems_file) + i;
}

/* The key and path of @t without the rank. */
static void drop_rank(const struct dcp_titems *r, struct dcp_tensor *t)
{
	for (size_t i = 0; i < r->front.nrank && i < t->npath; i++) {
		t->key += strlen(t->path[i]) + (t->npath > 1);
		t->path++;
		t->npath--;
	}
}

/* Keep why key number @k is wrong whatever the other ranks hold. */
static int note_fault(struct dcp_titems *r, uint32_t k, const struct dcp_err *why)
{
	const struct dcp_titems_file *f = dcp_titems_file(r, r->at);
	static const char *const none = NULL;
	const char **fault;
	char text[sizeof(why->msg) + 300];

	while (r->faults.n / sizeof(none) < r->copies.names.n && !dcp_buf_error(&r->faults))
		dcp_buf_add(&r->faults, &none, sizeof(none));
	if (dcp_buf_error(&r->faults))
		return -ENOMEM;
	fault = DCP_ITEMS(r->faults, const char *) + k;
	if (*fault)
		return 0;
	snprintf(text, sizeof(text), "rank %u, %.250s: %s", f->rank, f->name, why->msg);
	*fault = dcp_arena_strdup(&r->arena, text);
	return *fault ? 0 : -ENOMEM;
}

static int keep(struct dcp_titems *r, const struct dcp_tensor *t, const struct dcp_err *fault)
{
	int rc =
		dcp_copies_add(&r->copies, t, (uint32_t)r->at, dcp_titems_file(r, r->at)->name);

	if (rc < 0 || !fault)
		return rc;
	return note_fault(r, dcp_intern_find(&r->copies.names, t->key, strlen(t->key)), fault);
}

/* What metadata.pkl says of @key in the rank at hand. */
static const struct dcp_titems_entry *look_up(const struct dcp_titems *r, const char *key,
					      const struct dcp_titems_group **g)
{
	const struct dcp_titems_file *f = dcp_titems_file(r, r->at);
	const struct dcp_titems_entry *e = f->ranked ? dcp_titems_find(&r->meta, key) : NULL;

	*g = e ? dcp_titems_group_of(e, f->rank) : NULL;
	return *g ? e : NULL;
}

int dcp_titems_on_part(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_titems *r = ctx;
	const struct dcp_titems_group *g;
	struct dcp_tensor t = *emitted;
	struct dcp_err why = { 0 };
	int rc = 0;

	drop_rank(r, &t);
	if (look_up(r, t.key, &g) && !t.error) {
		dcp_arena_reset(&r->scratch);
		rc = dcp_titems_compare(g, dcp_titems_file(r, r->at)->rank, &t, &r->scratch,
					&why);
	}
	if (rc == -ENOMEM)
		return rc;
	return keep(r, &t, rc < 0 ? &why : NULL);
}

/* Emit a tensor without a place. What it is another name of may have one, and is emitted later. */
static int emit_own(struct dcp_titems *r, const struct dcp_tensor *emitted)
{
	size_t rank = r->front.nrank ? strlen(r->front.rank) + 1 : 0;
	const struct dcp_titems_group *g;
	struct dcp_tensor t = *emitted;

	if (t.alias_of && look_up(r, t.alias_of + rank, &g))
		t.alias_of = NULL;
	return dcp_emit_tensor(r->in->sink, &t);
}

int dcp_titems_on_tensor(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_titems *r = ctx;
	const struct dcp_titems_group *g;
	const struct dcp_titems_entry *e;
	struct dcp_tensor t = *emitted, placed;
	struct dcp_err why = { 0 };
	int rc;

	drop_rank(r, &t);
	e = look_up(r, t.key, &g);
	if (!e)
		return emit_own(r, emitted);
	t.path = e->path;
	t.npath = e->npath;
	if (t.error)
		return keep(r, &t, NULL);
	dcp_arena_reset(&r->scratch);
	rc = dcp_titems_place(g, dcp_titems_file(r, r->at)->rank, &t, &r->scratch, &placed,
			      &why);
	if (rc == 0)
		return keep(r, &placed, NULL);
	if (rc == -ENOMEM)
		return rc;
	t.error = why.msg;
	return keep(r, &t, &why);
}
