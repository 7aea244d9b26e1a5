/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting the files together. A tensor whose place is known is emitted once, under the item's name
 * and its path in it, made of what all ranks hold; of replicas the lowest rank's is taken, as
 * torch_checkpointing takes it. The place comes from metadata.pkl, and from what a DTensor or
 * ShardedTensor says of itself; where both say it they must agree. Other tensors and objects
 * of rank r are emitted below "rank<r>"; of a job of one rank they keep their names.
 *
 *	model_0.pt {"w": DTensor}         model.w, path model / w
 *	model_0.pt {"b": tensor}          model.b with metadata.pkl, rank0.model.b without
 *	step_0.pt 1000                    rank0.step
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "core/format/torch_checkpointing/items_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"

enum { SCRATCH_LIMIT = 256 << 20, NAMES_LIMIT = 256 << 20 };

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
static int emit_broken(void *ctx, size_t at, const char *why)
{
	const struct dcp_titems *r = ctx;
	const struct dcp_object o = {
		.path = r->front.path, .npath = r->front.npath, .type = "", .error = why
	};

	return dcp_emit_object(r->in->sink, &o);
}

static int emit_file(void *ctx, size_t at, struct dcp_err *why)
{
	struct dcp_titems *r = ctx;
	struct dcp_titems_file *f = dcp_titems_file(r, at);
	int rc;

	r->at = at;
	set_front(r, f);
	rc = dcp_titems_read(r, why);
	/* What only a rule named need not be there. */
	if (rc == 1 && why->code == -ENOENT && !f->promised)
		return 0;
	f->broken = rc == 1;
	return rc;
}

/* ---- all of it ---- */

/* Without its metadata.pkl a checkpoint is read as far as its files speak for themselves. */
static int read_meta(struct dcp_titems *r, struct dcp_err *err)
{
	static const char *const name = "metadata.pkl";
	const struct dcp_sink *sink = r->in->sink;
	struct dcp_err why = { 0 };
	struct dcp_object o = { .path = &name, .npath = 1, .type = "" };
	struct dcp_input input;
	uint32_t number;
	int rc;

	if (!dcp_dir_find(r->in->dir, name))
		return 0;
	rc = dcp_emit_file(sink, name, &number);
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
	if (rc == -ENOMEM)
		return dcp_err_give(err, &why, rc);
	dcp_titems_meta_finish(&r->meta);
	r->meta = (struct dcp_titems_meta){ 0 };
	r->world = 0;
	o.error = why.msg;
	return dcp_emit_object(sink, &o);
}

static int emit_facts(const struct dcp_titems *r)
{
	const struct dcp_sink *sink = r->in->sink;
	int rc = dcp_emit_fact(sink, 0, "framework", "torch_checkpointing");

	rc = dcp_emit_fact(sink, rc, "ranks", "%" PRIu64, r->world);
	return r->has_meta ? dcp_emit_fact(sink, rc, "version", "%s",
					   *r->meta.version ? r->meta.version : "1.0")
			   : rc;
}

int dcp_titems_load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_titems r = { .in = in };
	int rc;

	dcp_arena_init(&r.arena, NAMES_LIMIT);
	dcp_arena_init(&r.scratch, SCRATCH_LIMIT);
	dcp_copies_init(&r.copies);
	dcp_tparts_init(&r.parts);
	rc = read_meta(&r, err);
	if (rc == 0)
		rc = dcp_titems_list_files(&r, err);
	if (rc == 0)
		rc = dcp_copies_read(&r.copies, in, r.nfiles, emit_file, emit_broken, &r, err);
	if (rc == 0)
		rc = dcp_tparts_join(&r.parts, &r.copies, in->sink);
	if (rc == 0)
		rc = dcp_titems_join(&r);
	if (rc == 0)
		rc = emit_facts(&r);
	if (rc == -ENOMEM)
		dcp_fail(err, rc, "out of memory for the parts of tensors");
	dcp_copies_finish(&r.copies);
	dcp_tparts_finish(&r.parts);
	dcp_titems_meta_finish(&r.meta);
	dcp_places_finish(&r.places);
	dcp_arena_finish(&r.arena);
	dcp_arena_finish(&r.scratch);
	dcp_buf_finish(&r.files);
	dcp_buf_finish(&r.faults);
	return rc;
}
