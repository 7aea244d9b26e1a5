/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting the files together. A tensor whose place is known is told once, under the item's name
 * and its path in it, made of what all ranks hold; of replicas the lowest rank's is taken, as
 * torch_checkpointing takes it. The place comes from metadata.pkl, and from what a DTensor or
 * ShardedTensor says of itself; where both say it they must agree. Other tensors and objects
 * of rank r are told below "rank<r>"; of a job of one rank they keep their names.
 *
 *	model_0.pt {"w": DTensor}         model.w, path model / w
 *	model_0.pt {"b": tensor}          model.b with metadata.pkl, rank0.model.b without
 *	step_0.pt 1000                    rank0.step
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/torch_checkpointing/items_int.h"
#include "core/format/torch_checkpointing/place.h"
#include "core/model/tensor.h"
#include "core/parse/dir/dir.h"

enum { SCRATCH_LIMIT = 256 << 20, NAMES_LIMIT = 256 << 20 };

struct dcp_titems_file *dcp_titems_file(const struct dcp_titems *r, size_t i)
{
	return (struct dcp_titems_file *)(void *)r->files.p + i;
}

/* ---- tensors of the file at hand ---- */

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
	fault = (const char **)(void *)r->faults.p + k;
	if (*fault)
		return 0;
	snprintf(text, sizeof(text), "rank %u, %.250s: %s", f->rank, f->name, why->msg);
	*fault = dcp_arena_strndup(&r->arena, text, strlen(text));
	return *fault ? 0 : -ENOMEM;
}

static int keep(struct dcp_titems *r, const struct dcp_tensor *t, const struct dcp_err *fault)
{
	int rc = dcp_copies_add(&r->copies, t, (uint32_t)r->at);

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

int dcp_titems_on_part(void *ctx, const struct dcp_tensor *told)
{
	struct dcp_titems *r = ctx;
	const struct dcp_titems_group *g;
	struct dcp_tensor t = *told;
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

/* Tell a tensor without a place. What it is another name of may have one, and is told later. */
static int tell_own(struct dcp_titems *r, const struct dcp_tensor *told)
{
	size_t rank = r->front.nrank ? strlen(r->front.rank) + 1 : 0;
	const struct dcp_titems_group *g;
	struct dcp_tensor t = *told;

	if (t.alias_of && look_up(r, t.alias_of + rank, &g))
		t.alias_of = NULL;
	return r->in->sink->tensor(r->in->sink->ctx, &t);
}

int dcp_titems_on_tensor(void *ctx, const struct dcp_tensor *told)
{
	struct dcp_titems *r = ctx;
	const struct dcp_titems_group *g;
	const struct dcp_titems_entry *e;
	struct dcp_tensor t = *told, placed;
	struct dcp_err why = { 0 };
	int rc;

	drop_rank(r, &t);
	e = look_up(r, t.key, &g);
	if (!e)
		return tell_own(r, told);
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
	t.npieces = 0;
	return keep(r, &t, &why);
}

/* ---- files ---- */

static void set_front(struct dcp_titems *r, const struct dcp_titems_file *f)
{
	r->front.npath = r->front.nrank = 0;
	if (f->ranked && r->world != 1) {
		snprintf(r->front.rank, sizeof(r->front.rank), "rank%u", f->rank);
		r->front.path[r->front.npath++] = r->front.rank;
		r->front.nrank = 1;
	}
	if (f->item)
		r->front.path[r->front.npath++] = f->item;
}

/* A file that cannot be read is an object with its error. */
static int tell_broken(const struct dcp_titems *r, const char *why)
{
	const struct dcp_sink *sink = r->in->sink;
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	struct dcp_object o = {
		.path = r->front.path, .npath = r->front.npath, .type = "", .error = why
	};

	for (size_t i = 0; i < r->front.npath; i++)
		dcp_buf_printf(&key, "%s%s", i ? "." : "", r->front.path[i]);
	dcp_buf_add(&key, "", 0);
	if (dcp_buf_error(&key))
		return -ENOMEM;
	o.key = key.p;
	return sink->object(sink->ctx, &o);
}

static int tell_file(struct dcp_titems *r, struct dcp_err *err)
{
	struct dcp_titems_file *f = dcp_titems_file(r, r->at);
	struct dcp_err why = { 0 };
	int rc;

	set_front(r, f);
	rc = dcp_titems_read(r, &why, err);
	if (rc != 1)
		return rc;
	/* What only a rule named need not be there. */
	if (why.code == -ENOENT && !f->promised)
		return 0;
	f->broken = true;
	if (r->nbroken++ == 0)
		r->broken = why;
	return tell_broken(r, why.msg);
}

static int tell_files(struct dcp_titems *r, struct dcp_err *err)
{
	const struct dcp_progress *progress = r->in->progress;
	int rc = 0;

	for (r->at = 0; r->at < r->nfiles && rc == 0; r->at++) {
		rc = tell_file(r, err);
		if (progress)
			progress->tell(progress->ctx, r->at + 1, r->nfiles, "files");
	}
	if (rc == 0 && r->nbroken == r->nfiles) {
		if (err)
			*err = r->broken;
		return r->broken.code ? r->broken.code : -EBADMSG;
	}
	return rc;
}

/* ---- all of it ---- */

/* Without its metadata.pkl a checkpoint is read as far as its files speak for themselves. */
static int read_meta(struct dcp_titems *r, struct dcp_err *err)
{
	static const char *const name = "metadata.pkl";
	const struct dcp_sink *sink = r->in->sink;
	struct dcp_err why = { 0 };
	struct dcp_object o = { .key = name, .path = &name, .npath = 1, .type = "" };
	struct dcp_input input;
	uint32_t number;
	int rc;

	if (!dcp_dir_find(r->in->dir, name))
		return 0;
	rc = sink->file(sink->ctx, name, &number);
	if (rc < 0)
		return rc;
	rc = dcp_dir_input(r->in->dir, name, &input, &why);
	if (rc == 0) {
		rc = dcp_titems_meta_read(&r->meta, &input.src, &why);
		if (rc < 0)
			dcp_err_where(&why, rc, "%s", name);
		dcp_input_close(&input);
	}
	r->has_meta = rc == 0;
	r->world = r->meta.world;
	if (rc == 0)
		return 0;
	if (rc == -ENOMEM) {
		if (err)
			*err = why;
		return rc;
	}
	dcp_titems_meta_finish(&r->meta);
	r->meta = (struct dcp_titems_meta){ 0 };
	r->world = 0;
	o.error = why.msg;
	return sink->object(sink->ctx, &o);
}

static int tell_facts(const struct dcp_titems *r)
{
	const struct dcp_sink *sink = r->in->sink;
	char text[24];
	int rc = sink->meta(sink->ctx, "framework", "torch_checkpointing");

	snprintf(text, sizeof(text), "%" PRIu64, r->world);
	if (rc == 0)
		rc = sink->meta(sink->ctx, "ranks", text);
	if (rc == 0 && r->has_meta)
		rc = sink->meta(sink->ctx, "version",
				*r->meta.version ? r->meta.version : "1.0");
	return rc;
}

int dcp_titems_load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_titems r = { .in = in };
	int rc;

	dcp_arena_init(&r.arena, NAMES_LIMIT);
	dcp_arena_init(&r.scratch, SCRATCH_LIMIT);
	dcp_copies_init(&r.copies);
	rc = read_meta(&r, err);
	if (rc == 0)
		rc = dcp_titems_list_files(&r, err);
	if (rc == 0)
		rc = tell_files(&r, err);
	if (rc == 0)
		rc = dcp_titems_join(&r);
	if (rc == 0)
		rc = tell_facts(&r);
	if (rc == -ENOMEM)
		dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory for the parts of tensors");
	dcp_copies_finish(&r.copies);
	dcp_titems_meta_finish(&r.meta);
	dcp_places_finish(&r.places);
	dcp_arena_finish(&r.arena);
	dcp_arena_finish(&r.scratch);
	dcp_buf_finish(&r.files);
	dcp_buf_finish(&r.faults);
	return rc;
}
