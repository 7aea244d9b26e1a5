/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights by torch.save, as save_pretrained() of Hugging Face wrote them before safetensors.
 *
 *	pytorch_model.bin, adapter_model.bin, diffusion_pytorch_model.bin   a flat dict
 *	pytorch_model-00001-of-00002.bin     a part of the dict; pytorch_model.bin.index.json
 *	                                     lists which part holds which key
 *
 * Sets and variants are those of files.c. Other .bin files do not belong to this family, since
 * any program may have written them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/formats.h"
#include "core/format/torch/torch.h"
#include "core/format/weights/files.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"

/* Is @e a file of weights, by its name? Not model.bin, which other programs write too
 * (CTranslate2). */
static bool is_ours(const struct dcp_dirent *e, enum dcp_weights_kind kind,
		    struct dcp_weights_name *name)
{
	return !e->is_dir && dcp_weights_name(e->name, name) == kind &&
	       dcp_weights_is_named(name->set) && strncmp(name->set, "model", 5) != 0;
}

static bool keep_ours(void *ctx, const struct dcp_dirent *e)
{
	struct dcp_weights_name name;

	return is_ours(e, DCP_WEIGHTS_TORCH, &name) ||
	       is_ours(e, DCP_WEIGHTS_TORCH_INDEX, &name);
}

static enum dcp_match probe_bin(const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = DCP_MATCH_NO;
	const char *index;
	dcp_auto_dir struct dcp_dir ours = { 0 };

	if (dcp_dir_only(dir, keep_ours, NULL, &ours) < 0)
		return DCP_MATCH_NO;
	index = dcp_weights_index_name(&ours, DCP_WEIGHTS_TORCH_INDEX);
	match = dcp_weights_check_parts(&ours, DCP_WEIGHTS_TORCH, why, n);
	if (match == DCP_MATCH_NO && index) {
		snprintf(why, n, "%s is there, but no file of weights", index);
		match = DCP_MATCH_INCOMPLETE;
	}
	return match;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_weights_index_name(dir, DCP_WEIGHTS_TORCH_INDEX);
}

/* ---- load ---- */

struct bin {
	struct dcp_weights h;
	struct dcp_err *err;
	/* while a set is read */
	const struct dcp_weights_file *at;
	struct dcp_weights_set *set;
};

static int list_files(struct bin *b)
{
	dcp_auto_dir struct dcp_dir ours = { 0 };
	int rc = dcp_dir_only(b->h.in->dir, keep_ours, NULL, &ours);

	if (rc == 0)
		rc = dcp_weights_add_files(&b->h, &ours, "", DCP_WEIGHTS_TORCH);
	if (rc == 0)
		rc = dcp_weights_make_sets(&b->h);
	return rc < 0 ? rc
		      : dcp_weights_read_indexes(&b->h, &ours, DCP_WEIGHTS_TORCH_INDEX, false,
						 b->err);
}

/* The key in the file. */
static const char *stored_key(const struct bin *b, const char *key)
{
	return b->set->component ? key + strlen(b->set->component) + 1 : key;
}

/* Is the key left over from an older save? It is if another file, which the index names for it,
 * exists. */
static bool is_elsewhere(void *ctx, const char *key)
{
	const struct bin *b = ctx;
	const char *file = dcp_weights_index_file(&b->set->index, stored_key(b, key));

	return file && strcmp(file, b->at->name) != 0 && dcp_weights_find_file(&b->h, file);
}

/* ---- a sink before the sink: which keys were emitted? ---- */

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct bin *b = ctx;
	int rc = dcp_intern_str(&b->h.names, t->key, NULL);

	return rc < 0 ? rc : dcp_emit_tensor(b->h.in->sink, t);
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	struct bin *b = ctx;
	int rc = dcp_intern_str(&b->h.names, o->key, NULL);

	return rc < 0 ? rc : dcp_emit_object(b->h.in->sink, o);
}

/* ---- files ---- */

static int keep_error(struct bin *b, struct dcp_weights_file *f, const struct dcp_err *why)
{
	f->error = dcp_arena_strdup(&b->h.arena, why->msg);
	if (!f->error)
		return -ENOMEM;
	if (++b->h.nbroken < b->h.nfiles)
		return 0;
	if (b->err) /* all files are broken: nothing can be shown */
		*b->err = *why;
	return why->code ? why->code : -EBADMSG;
}

static int read_file(struct bin *b, struct dcp_weights_file *f)
{
	const struct dcp_sink sink = {
		.tensor = on_tensor, .object = on_object, .ctx = b, .next = b->h.in->sink
	};
	struct dcp_torch_state s = {
		.sink = &sink,
		.prefix = &b->set->component,
		.nprefix = b->set->component != NULL,
		.tuples = true,
		.skip = is_elsewhere,
		.ctx = b,
	};
	struct dcp_err why = { 0 };
	dcp_auto_torch struct dcp_torch *t = NULL;
	int rc = dcp_emit_file(&sink, f->name, &s.file);

	if (rc < 0)
		return rc;
	b->at = f;
	rc = dcp_torch_open_file(b->h.in->dir, f->name, &t, &why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : keep_error(b, f, &why);
	s.t = t;
	return dcp_torch_state_emit(&s);
}

/* Emit a broken file as an object if there is no index: then it is not known which keys it held. */
static int emit_broken(struct bin *b, const struct dcp_weights_file *f)
{
	const struct dcp_sink *sink = b->h.in->sink;
	int rc = dcp_emit_meta(sink, "broken_file", f->error);

	return rc < 0 || b->set->index.name ? rc : dcp_emit_broken(sink, f->name, f->error);
}

/* ---- sets ---- */

static int read_files(struct bin *b, size_t first, size_t end)
{
	int rc = 0;

	for (size_t i = first; rc == 0 && i < end; i++) {
		rc = b->h.files[i].left_over ? 0 : read_file(b, &b->h.files[i]);
		dcp_load_progress(b->h.in, i + 1, b->h.nfiles, "files");
	}
	return rc;
}

static int emit_set(struct bin *b, struct dcp_weights_set *set)
{
	const char *variant = dcp_weights_variant(set->name);
	size_t end = set->first + set->n;
	int rc = variant ? dcp_emit_meta(b->h.in->sink, "variant", variant) : 0;

	b->set = set;
	if (rc == 0)
		rc = read_files(b, set->first, end);
	for (size_t i = set->first; rc == 0 && i < end; i++)
		if (b->h.files[i].error)
			rc = emit_broken(b, &b->h.files[i]);
	return rc == 0 ? dcp_weights_emit_promised(&b->h, set) : rc;
}

static bool is_shown(void *ctx, const char *name)
{
	const struct bin *b = ctx;

	return dcp_weights_find_file(&b->h, name) != NULL;
}

static int load_all(struct bin *b)
{
	const struct dcp_sink *sink = b->h.in->sink;
	int rc = list_files(b);

	if (rc == 0 && b->h.nfiles == 0)
		return dcp_fail(b->err, -ENOENT, "no file of weights");
	for (size_t i = 0; rc == 0 && i < b->h.nsets; i++)
		rc = emit_set(b, &b->h.sets[i]);
	if (rc == 0)
		rc = dcp_weights_emit_rest(b->h.in, is_shown, b);
	rc = dcp_emit_fact(sink, rc, "framework", "torch");
	return dcp_emit_fact(sink, rc, "world_files", "%zu", b->h.nfiles);
}

static int load_bin(const struct dcp_load *in, struct dcp_err *err)
{
	struct bin b = { .h.in = in, .err = err };
	int rc;

	dcp_arena_init(&b.h.arena, DCP_WEIGHTS_MEMORY);
	rc = load_all(&b);
	dcp_weights_finish(&b.h);
	return rc;
}

const struct dcp_format dcp_format_torch_bin = {
	.name = "hf-bin",
	.what = "pytorch_model.bin and its like (Hugging Face)",
	.probe = probe_bin,
	.commit_file = commit_file,
	.load = load_bin,
	.marks =
		(const struct dcp_mark[]){
			{ "pytorch_model*.bin", "a directory of torch.save files",
			  .general = true },
			{ 0 },
		},
};
