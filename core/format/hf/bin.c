/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What save_pretrained() of Hugging Face left before safetensors: weights by torch.save.
 *
 *	pytorch_model.bin, adapter_model.bin, diffusion_pytorch_model.bin   a flat dict
 *	pytorch_model-00001-of-00002.bin     a part of it, and pytorch_model.bin.index.json,
 *	                                     which says which part holds which key
 *
 * Sets and variants are those of safetensors.c. Other .bin files are not ours: they may
 * be anybody's.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/formats.h"
#include "core/format/hf/extras.h"
#include "core/format/hf/index.h"
#include "core/format/hf/name.h"
#include "core/format/torch/state.h"
#include "core/model/tensor.h"
#include "core/parse/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/torch/torch.h"

static const size_t arena_limit = 64u << 20; /* names of a million files */

/* A file of weights, by name: not "model", which others write too (CTranslate2). */
static bool is_ours(const struct dcp_dirent *e, enum dcp_hf_kind kind, struct dcp_hf_name *name)
{
	return !e->is_dir && dcp_hf_name(e->name, name) == kind &&
	       dcp_hf_is_weights(name->set) && strncmp(name->set, "model", 5) != 0;
}

static bool keep_ours(void *ctx, const struct dcp_dirent *e)
{
	struct dcp_hf_name name;

	(void)ctx;
	return is_ours(e, DCP_HF_TORCH, &name) || is_ours(e, DCP_HF_TORCH_INDEX, &name);
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = DCP_MATCH_NO;
	const char *index;
	struct dcp_dir ours;

	if (dcp_dir_only(dir, keep_ours, NULL, &ours) < 0)
		return DCP_MATCH_NO;
	index = dcp_hf_index_name(&ours, DCP_HF_TORCH_INDEX);
	match = dcp_hf_check_parts(&ours, DCP_HF_TORCH, why, n);
	if (match == DCP_MATCH_NO && index) {
		snprintf(why, n, "%s is there, but no file of weights", index);
		match = DCP_MATCH_INCOMPLETE;
	}
	dcp_dir_close(&ours);
	return match;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_hf_index_name(dir, DCP_HF_TORCH_INDEX);
}

/* ---- load ---- */

struct file {
	const char *name, *set, *error;
	const char *index; /* of its set; told by the first of it */
};

struct bin {
	const struct dcp_load *in;
	struct dcp_err *err;
	struct dcp_arena arena;
	struct file *files; /* in order of their sets */
	size_t nfiles, nbroken;
	struct dcp_hf_sets kept;       /* which of the sets are shown, and how */
	struct dcp_intern names, sets; /* of files, to their numbers; of sets, to first's */
	struct dcp_buf first;          /* uint32_t, of each set: its first file */
	/* while a set is read */
	const struct file *at;
	struct dcp_hf_index index;
	const char *prefix;      /* its name, unless it keeps its keys: NULL */
	struct dcp_intern shown; /* keys told so far */
};

static int by_rank(const void *a, const void *b)
{
	const struct file *x = a, *y = b;
	unsigned rx = dcp_hf_rank(x->set), ry = dcp_hf_rank(y->set);
	int by_set = strcmp(x->set, y->set);

	if (rx != ry)
		return rx < ry ? -1 : 1;
	return by_set ? by_set : strcmp(x->name, y->name);
}

static int no_memory(struct bin *b)
{
	return dcp_fail(b->err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for keys");
}

static int list_files(struct bin *b)
{
	const struct dcp_dir *dir = b->in->dir;
	struct dcp_hf_name name;
	struct dcp_dir ours;
	int rc = dcp_dir_only(dir, keep_ours, NULL, &ours);

	if (rc == 0) {
		rc = dcp_hf_sets_read(&b->kept, &ours, DCP_HF_TORCH);
		dcp_dir_close(&ours);
	}
	b->files = dcp_arena_calloc(&b->arena, dir->n + 1, sizeof(*b->files));
	if (rc < 0 || !b->files)
		return no_memory(b);
	for (size_t i = 0; i < dir->n; i++) {
		if (!is_ours(&dir->entries[i], DCP_HF_TORCH, &name) ||
		    dcp_hf_sets_hide(&b->kept, name.set))
			continue;
		b->files[b->nfiles].name = dir->entries[i].name;
		b->files[b->nfiles].set =
			dcp_arena_strndup(&b->arena, name.set, strlen(name.set));
		if (!b->files[b->nfiles++].set)
			return no_memory(b);
	}
	qsort(b->files, b->nfiles, sizeof(*b->files), by_rank);
	return 0;
}

/* From names to files and to sets. */
static int number_files(struct bin *b)
{
	uint32_t number;
	int rc = 0;

	for (uint32_t i = 0; rc >= 0 && i < b->nfiles; i++) {
		const struct file *f = &b->files[i];

		rc = dcp_intern_add(&b->names, f->name, strlen(f->name), DCP_INTERN_NONE,
				    &number);
		if (rc >= 0)
			rc = dcp_intern_add(&b->sets, f->set, strlen(f->set), DCP_INTERN_NONE,
					    &number);
		if (rc == 1)
			dcp_buf_add(&b->first, &i, sizeof(i));
	}
	return rc < 0 || dcp_buf_error(&b->first) ? no_memory(b) : 0;
}

static const struct file *find_file(const struct bin *b, const char *name)
{
	uint32_t i = name ? dcp_intern_find(&b->names, name, strlen(name)) : DCP_INTERN_NONE;

	return i == DCP_INTERN_NONE ? NULL : &b->files[i];
}

/* Each index goes to the first file of its set. */
static void find_indexes(struct bin *b)
{
	const uint32_t *first = DCP_ITEMS(b->first, uint32_t);
	struct dcp_hf_name name;

	for (size_t i = 0; i < b->in->dir->n; i++) {
		const struct dcp_dirent *e = &b->in->dir->entries[i];
		uint32_t set;

		if (!is_ours(e, DCP_HF_TORCH_INDEX, &name))
			continue;
		set = dcp_intern_find(&b->sets, name.set, strlen(name.set));
		if (set != DCP_INTERN_NONE)
			b->files[first[set]].index = e->name;
	}
}

/* The key as it stands in the file. */
static const char *stored_key(const struct bin *b, const char *key)
{
	return b->prefix ? key + strlen(b->prefix) + 1 : key;
}

/* A key that the index says is in another file that is there: this one is a left-over. */
static bool elsewhere(void *ctx, const char *key)
{
	const struct bin *b = ctx;
	const char *file = dcp_hf_index_file(&b->index, stored_key(b, key));

	return file && strcmp(file, b->at->name) != 0 && find_file(b, file);
}

/* ---- a sink before the sink: which keys were told? ---- */

static int note_key(struct bin *b, const char *key)
{
	uint32_t number;

	return dcp_intern_add(&b->shown, key, strlen(key), DCP_INTERN_NONE, &number) < 0
		       ? no_memory(b)
		       : 0;
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	struct bin *b = ctx;

	return b->in->sink->file(b->in->sink->ctx, name, number);
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct bin *b = ctx;
	int rc = note_key(b, t->key);

	return rc < 0 ? rc : b->in->sink->tensor(b->in->sink->ctx, t);
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	struct bin *b = ctx;
	int rc = note_key(b, o->key);

	return rc < 0 ? rc : b->in->sink->object(b->in->sink->ctx, o);
}

/* ---- files ---- */

static int keep_error(struct bin *b, struct file *f, const struct dcp_err *why)
{
	f->error = dcp_arena_strndup(&b->arena, why->msg, strlen(why->msg));
	if (!f->error)
		return no_memory(b);
	if (++b->nbroken < b->nfiles)
		return 0;
	if (b->err) /* nothing is left to show */
		*b->err = *why;
	return why->code ? why->code : -EBADMSG;
}

static int read_file(struct bin *b, struct file *f)
{
	const struct dcp_sink sink = {
		.file = on_file, .tensor = on_tensor, .object = on_object, .ctx = b
	};
	struct dcp_tstate s = {
		.sink = &sink,
		.prefix = &b->prefix,
		.nprefix = b->prefix ? 1 : 0,
		.tuples = true,
		.skip = elsewhere,
		.ctx = b,
	};
	struct dcp_err why = { 0 };
	struct dcp_input input;
	struct dcp_torch *t;
	int rc = on_file(b, f->name, &s.file);

	if (rc < 0)
		return rc;
	b->at = f;
	rc = dcp_dir_input(b->in->dir, f->name, &input, &why);
	if (rc < 0)
		return keep_error(b, f, &why);
	rc = dcp_torch_open(&input.src, 0, &t, &why);
	if (rc == 0) {
		s.t = t;
		rc = dcp_tstate_tell(&s, b->err);
		dcp_torch_close(t);
	} else if (rc == -ENOMEM) {
		rc = no_memory(b);
	} else {
		dcp_err_where(&why, rc, "%s", f->name);
		rc = keep_error(b, f, &why);
	}
	dcp_input_close(&input);
	return rc;
}

/* Without an index nobody knows which keys a broken file held: the file stands for them. */
static int tell_broken(struct bin *b, const struct file *f)
{
	struct dcp_object o = {
		.key = f->name, .path = &f->name, .npath = 1, .type = "", .error = f->error
	};
	const struct dcp_sink *sink = b->in->sink;
	int rc = sink->meta(sink->ctx, "broken_file", f->error);

	return rc < 0 || b->index.name ? rc : sink->object(sink->ctx, &o);
}

/* ---- sets ---- */

/* Keys that the index promises and no file had. */
static int tell_promised(struct bin *b)
{
	const struct dcp_json *value;
	const void *iter = NULL;
	const char *key;
	int rc = 0;

	while (rc == 0 && (iter = dcp_json_next(b->index.map, iter, &key, &value))) {
		dcp_auto_buf struct dcp_buf shown = DCP_BUF_INIT;
		const char *path[2] = { b->prefix, key };
		struct dcp_tensor t = { .dtype_name = "", .path = path + !b->prefix };
		const struct file *f = find_file(b, dcp_json_str(value));
		struct dcp_err why;

		dcp_buf_printf(&shown, "%s%s%s", b->prefix ? b->prefix : "",
			       b->prefix ? "." : "", key);
		if (dcp_buf_error(&shown))
			return no_memory(b);
		if (dcp_intern_find(&b->shown, shown.p, shown.n) != DCP_INTERN_NONE)
			continue;
		t.key = shown.p;
		t.npath = b->prefix ? 2 : 1;
		t.error = dcp_hf_index_excuse(&b->index, dcp_json_str(value), f != NULL,
					      f ? f->error : NULL, &why);
		rc = b->in->sink->tensor(b->in->sink->ctx, &t);
	}
	return rc;
}

static int read_files(struct bin *b, size_t first, size_t end)
{
	const struct dcp_progress *progress = b->in->progress;
	int rc = 0;

	for (size_t i = first; rc == 0 && i < end; i++) {
		rc = read_file(b, &b->files[i]);
		if (progress)
			progress->tell(progress->ctx, i + 1, b->nfiles, "files");
	}
	return rc;
}

static int tell_set(struct bin *b, size_t first, size_t end)
{
	const char *set = b->files[first].set, *variant = dcp_hf_variant(set);
	char component[DCP_GROUP_MAX];
	const char *index = b->files[first].index;
	int rc = variant ? b->in->sink->meta(b->in->sink->ctx, "variant", variant) : 0;

	snprintf(component, sizeof(component), "%.*s", (int)dcp_hf_component(set), set);
	b->prefix = dcp_hf_sets_bare(&b->kept, set) ? NULL : component;
	if (rc == 0 && index)
		rc = dcp_hf_index_read(b->in->dir, b->in->sink, index, &b->index, b->err);
	if (rc == 0)
		rc = read_files(b, first, end);
	for (size_t i = first; rc == 0 && i < end; i++)
		if (b->files[i].error)
			rc = tell_broken(b, &b->files[i]);
	if (rc == 0)
		rc = tell_promised(b);
	dcp_hf_index_finish(&b->index);
	return rc;
}

static bool is_shown(void *ctx, const char *name)
{
	return find_file(ctx, name) != NULL;
}

static int load_all(struct bin *b)
{
	const struct dcp_sink *sink = b->in->sink;
	char text[24];
	int rc = list_files(b);

	if (rc == 0 && b->nfiles == 0)
		return dcp_fail(b->err, -ENOENT, DCP_ERR_NO_OFFSET, "no file of weights");
	if (rc == 0)
		rc = number_files(b);
	if (rc == 0)
		find_indexes(b);
	for (size_t i = 0, end; rc == 0 && i < b->nfiles; i = end) {
		for (end = i + 1; end < b->nfiles; end++)
			if (strcmp(b->files[end].set, b->files[i].set) != 0)
				break;
		rc = tell_set(b, i, end);
	}
	if (rc == 0)
		rc = dcp_hf_tell_rest(b->in, is_shown, b, b->err);
	if (rc == 0)
		rc = sink->meta(sink->ctx, "framework", "torch");
	snprintf(text, sizeof(text), "%zu", b->nfiles);
	return rc < 0 ? rc : sink->meta(sink->ctx, "world_files", text);
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct bin b = { .in = in, .err = err };
	int rc;

	dcp_arena_init(&b.arena, arena_limit);
	rc = load_all(&b);
	dcp_hf_sets_finish(&b.kept);
	dcp_intern_finish(&b.names);
	dcp_intern_finish(&b.sets);
	dcp_intern_finish(&b.shown);
	dcp_buf_finish(&b.first);
	dcp_arena_finish(&b.arena);
	return rc;
}

const struct dcp_format dcp_format_torch_bin = {
	.name = "hf-bin",
	.what = "pytorch_model.bin and its like (Hugging Face)",
	.probe = probe,
	.commit_file = commit_file,
	.load = load,
};
