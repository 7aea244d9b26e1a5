/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/weights/files.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/torch/torch.h"
#include "core/format/weights/name.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/torch/torch.h"

static int by_rank(const void *a, const void *b)
{
	const struct dcp_weights_file *x = a, *y = b;

	return DCP_CMP(dcp_weights_rank(x->set_name), dcp_weights_rank(y->set_name)) ?:
	       strcmp(x->set_name, y->set_name) ?: strcmp(x->name, y->name);
}

static int add_file(struct dcp_weights *h, const struct dcp_weights_name *name,
		    const char *below, const char *file)
{
	size_t n = strlen(below) + strlen(file) + 1;
	char *full = dcp_arena_alloc(&h->arena, n);
	struct dcp_weights_file *f = &h->files[h->nfiles];

	f->set_name = dcp_arena_strdup(&h->arena, name->set);
	if (!full || !f->set_name)
		return -ENOMEM;
	snprintf(full, n, "%s%s", below, file);
	f->name = full;
	f->nparts = name->nparts;
	h->nfiles++;
	return 0;
}

/* A file that is itself the source was recognised by its contents, so its name does not count. */
static bool is_ours(const struct dcp_dir *dir, const char *file, enum dcp_weights_kind kind,
		    struct dcp_weights_name *name)
{
	return dcp_weights_name(file, name) == kind || dir->is_file;
}

int dcp_weights_add_files(struct dcp_weights *h, const struct dcp_dir *dir, const char *below,
			  enum dcp_weights_kind kind)
{
	bool twins = dcp_weights_has_model(dir, kind);
	struct dcp_weights_name name;
	int rc;

	dcp_weights_sets_finish(&h->kept);
	rc = dcp_weights_sets_read(&h->kept, dir, kind);
	h->files = dcp_arena_calloc(&h->arena, dir->n + 1, sizeof(*h->files));
	if (!h->files)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < dir->n; i++)
		if (!dir->entries[i].is_dir &&
		    is_ours(dir, dir->entries[i].name, kind, &name) &&
		    !(twins && dcp_weights_rank(name.set) == DCP_WEIGHTS_RANK_TWIN) &&
		    !dcp_weights_sets_hide(&h->kept, name.set))
			rc = add_file(h, &name, below, dir->entries[i].name);
	DCP_SORT(h->files, h->nfiles, by_rank);
	return rc;
}

/* Add the set that begins with file @first. */
static int add_set(struct dcp_weights *h, const char *name, uint32_t first)
{
	struct dcp_weights_set *set = &h->sets[h->nsets++];

	*set = (struct dcp_weights_set){ .name = name, .first = first };
	if (dcp_weights_sets_bare(&h->kept, name))
		return 0;
	set->component = dcp_arena_strndup(&h->arena, name, dcp_weights_component(name));
	return set->component ? 0 : -ENOMEM;
}

/* Files are in the order of their sets, so the files of one set are consecutive. */
int dcp_weights_make_sets(struct dcp_weights *h)
{
	int rc = 0;

	h->sets = dcp_arena_calloc(&h->arena, h->nfiles + 1, sizeof(*h->sets));
	if (!h->sets)
		return -ENOMEM;
	for (size_t i = 0; rc >= 0 && i < h->nfiles; i++) {
		struct dcp_weights_file *f = &h->files[i];

		rc = dcp_intern_str(&h->file_names, f->name, NULL);
		if (rc >= 0)
			rc = dcp_intern_str(&h->set_names, f->set_name, &f->set);
		if (rc == 1)
			rc = add_set(h, f->set_name, (uint32_t)i);
		if (rc >= 0)
			h->sets[f->set].n++;
	}
	return rc < 0 ? -ENOMEM : 0;
}

const struct dcp_weights_file *dcp_weights_find_file(const struct dcp_weights *h,
						     const char *name)
{
	uint32_t i =
		name ? dcp_intern_find(&h->file_names, name, strlen(name)) : DCP_INTERN_NONE;

	return i == DCP_INTERN_NONE ? NULL : &h->files[i];
}

static int read_index(struct dcp_weights *h, struct dcp_weights_set *set, const char *name,
		      struct dcp_err *err)
{
	const char *kept = dcp_arena_strdup(&h->arena, name);

	return kept ? dcp_weights_index_read(h->in->dir, h->in->sink, kept, &set->index, err)
		    : -ENOMEM;
}

/* Mark files as left over. The files that the index names are the model. Files of the same set with
 * another number of parts are of another save; shards of ranks are not in the index. */
static int find_left_over(struct dcp_weights *h, const struct dcp_weights_set *set)
{
	const struct dcp_weights_file *named = NULL;
	const struct dcp_json *value;
	const void *iter = NULL;
	const char *key;
	int rc = 0;

	while (!named && (iter = dcp_json_next(set->index.map, iter, &key, &value)))
		named = dcp_weights_find_file(h, dcp_json_str(value));
	for (uint32_t i = set->first; rc == 0 && named && i < set->first + set->n; i++) {
		struct dcp_weights_file *f = &h->files[i];

		f->left_over = named->set == f->set && f->nparts != named->nparts &&
			       strncmp(f->name, "shard-", 6) != 0;
		if (f->left_over)
			rc = dcp_emit_meta(h->in->sink, "left_out", f->name);
	}
	return rc;
}

int dcp_weights_read_indexes(struct dcp_weights *h, const struct dcp_dir *dir,
			     enum dcp_weights_kind kind, bool any, struct dcp_err *err)
{
	const char *other = any ? dcp_weights_index_name(dir, kind) : NULL;
	struct dcp_weights_name name;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		uint32_t set;

		if (e->is_dir || dcp_weights_name(e->name, &name) != kind)
			continue;
		set = dcp_intern_find(&h->set_names, name.set, strlen(name.set));
		if (set != DCP_INTERN_NONE && !h->sets[set].index.name)
			rc = read_index(h, &h->sets[set], e->name, err);
	}
	if (rc == 0 && other && h->nsets == 1 && !h->sets->index.name)
		rc = read_index(h, h->sets, other, err);
	for (size_t i = 0; rc == 0 && i < h->nsets; i++)
		rc = find_left_over(h, &h->sets[i]);
	return rc;
}

const char *dcp_weights_key(struct dcp_weights *h, const struct dcp_weights_set *set,
			    const char *key)
{
	if (!set->component)
		return key;
	dcp_buf_reset(&h->num);
	dcp_buf_printf(&h->num, "%s.%s", set->component, key);
	return dcp_buf_error(&h->num) ? NULL : h->num.p;
}

int dcp_weights_emit_tensor(struct dcp_weights *h, const struct dcp_weights_set *set,
			    struct dcp_tensor *t, const char *error)
{
	const char *path[2] = { set->component, t->key };
	bool below = set->component;

	t->path = below ? path : path + 1;
	t->npath = below ? 2 : 1;
	t->key = NULL;
	t->error = error;
	return dcp_emit_tensor(h->in->sink, t);
}

int dcp_weights_emit_promised(struct dcp_weights *h, const struct dcp_weights_set *set)
{
	const struct dcp_json *value;
	const void *iter = NULL;
	const char *key;
	int rc = 0;

	while (rc == 0 && (iter = dcp_json_next(set->index.map, iter, &key, &value))) {
		const char *file = dcp_json_str(value), *shown = dcp_weights_key(h, set, key);
		struct dcp_tensor t = { .key = key, .dtype_name = "" };
		const struct dcp_weights_file *f;
		struct dcp_err why;

		if (!shown)
			return -ENOMEM;
		if (dcp_intern_has(&h->names, shown))
			continue;
		f = dcp_weights_find_file(h, file);
		rc = dcp_weights_emit_tensor(
			h, set, &t,
			dcp_weights_index_excuse(&set->index, file, f != NULL,
						 f ? f->error : NULL, &why));
	}
	return rc;
}

void dcp_weights_finish(struct dcp_weights *h)
{
	for (size_t i = 0; i < h->nsets; i++)
		dcp_weights_index_finish(&h->sets[i].index);
	dcp_weights_sets_finish(&h->kept);
	dcp_intern_finish(&h->file_names);
	dcp_intern_finish(&h->set_names);
	dcp_intern_finish(&h->names);
	dcp_intern_finish(&h->aliases);
	dcp_buf_finish(&h->keys);
	dcp_buf_finish(&h->shards);
	dcp_buf_finish(&h->num);
	dcp_join_finish(&h->join);
	dcp_arena_finish(&h->arena);
}

static bool matches_any(const char *const *globs, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (fnmatch(globs[i], name, FNM_PERIOD) == 0)
			return true;
	return false;
}

bool dcp_weights_is_sidecar(const char *name)
{
	static const char *const globs[] = {
		"*.json",  "*.jsonl", "*.txt",       "*.md",     "*.jinja",
		"*.model", "*.py",    "*.tiktoken",  "*.vocab",  "*.bpe",
		"*.spm",   "*.yaml",  "*.yml",       "LICENSE*", "LICENCE*",
		"README*", "NOTICE*", "USE_POLICY*", "COPYING*", "MODEL_CARD*",
	};
	struct dcp_weights_name unused;

	return matches_any(globs, DCP_LEN(globs), name) &&
	       dcp_weights_name(name, &unused) == DCP_WEIGHTS_OTHER;
}

/* Is @name that of a file by torch.save? @sure: no other program uses such a name. */
static bool may_be_state(const char *name, bool *sure)
{
	static const char *const ours[] = { "*.pt", "*.pth", "random_states_[0-9]*.pkl",
					    "custom_checkpoint_[0-9]*.pkl" };
	static const char *const maybe[] = { "*.bin", "*.ckpt" };

	*sure = matches_any(ours, DCP_LEN(ours), name);
	return *sure || matches_any(maybe, DCP_LEN(maybe), name);
}

/* This includes containers that dcpfs does not read, or does not read beside other weights. */
bool dcp_weights_may_be(const char *name)
{
	static const char *const globs[] = { "*.safetensors", "*.bin",     "*.ckpt",  "*.pth",
					     "*.pt",          "*.h5",      "*.ot",    "*.onnx",
					     "*.msgpack",     "*.gguf",    "*.pkl",   "*.npz",
					     "*.tflite",      "*.mlmodel", "*.distcp" };

	return matches_any(globs, DCP_LEN(globs), name);
}

/* Does the file @name hold the shown weights once more, by torch.save or under Meta's names? */
static bool is_twin(const char *name)
{
	struct dcp_weights_name n;

	if (fnmatch("consolidated.*.pth", name, 0) == 0)
		return true;
	return dcp_weights_name(name, &n) != DCP_WEIGHTS_OTHER && dcp_weights_is_named(n.set);
}

static int leave_out(const struct dcp_load *in, const char *name)
{
	return dcp_emit_meta(in->sink, "left_out", name);
}

/* Emit the contents of a file by torch.save below the file's name. */
static int emit_state(const struct dcp_load *in, const char *name, bool sure)
{
	char stem[DCP_GROUP_MAX];
	const char *prefix = stem;
	struct dcp_torch_state s = {
		.sink = in->sink, .prefix = &prefix, .nprefix = 1, .tuples = true
	};
	struct dcp_err why = { 0 };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_stretch all = { 0 };
	int rc = dcp_emit_file(in->sink, name, &s.file);

	if (rc < 0)
		return rc;
	snprintf(stem, sizeof(stem), "%.*s", (int)dcp_stem(name), name);
	rc = dcp_torch_open_file(in->dir, name, &t, &why);
	if (rc == 0)
		rc = dcp_torch_state_check(t, name, &why);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return sure ? dcp_emit_broken(in->sink, stem, why.msg) : leave_out(in, name);
	s.t = t;
	all.file = s.file;
	all.nbytes = all.n = dcp_torch_size(t);
	s.stored = &all;
	return dcp_torch_state_emit(&s);
}

static int emit_one(const struct dcp_load *in, const char *name)
{
	bool sure;

	if (dcp_weights_is_sidecar(name))
		return dcp_emit_sidecar(in->sink, name);
	if (!is_twin(name) && may_be_state(name, &sure) && strlen(name) < DCP_GROUP_MAX)
		return emit_state(in, name, sure);
	return dcp_weights_may_be(name) ? leave_out(in, name) : 0;
}

int dcp_weights_emit_rest(const struct dcp_load *in, bool (*shown)(void *ctx, const char *name),
			  void *ctx)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];

		if (!e->is_dir && *e->name != '.' && !shown(ctx, e->name))
			rc = emit_one(in, e->name);
	}
	return rc;
}
