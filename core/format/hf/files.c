/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/hf/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/format/format.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"

static int by_rank(const void *a, const void *b)
{
	const struct dcp_hf_file *x = a, *y = b;

	return DCP_CMP(dcp_hf_rank(x->set_name), dcp_hf_rank(y->set_name)) ?:
	       strcmp(x->set_name, y->set_name) ?: strcmp(x->name, y->name);
}

static int add_file(struct dcp_hf *h, const struct dcp_hf_name *name, const char *below,
		    const char *file)
{
	size_t n = strlen(below) + strlen(file) + 1;
	char *full = dcp_arena_alloc(&h->arena, n);
	struct dcp_hf_file *f = &h->files[h->nfiles];

	f->set_name = dcp_arena_strdup(&h->arena, name->set);
	if (!full || !f->set_name)
		return -ENOMEM;
	snprintf(full, n, "%s%s", below, file);
	f->name = full;
	f->nparts = name->nparts;
	h->nfiles++;
	return 0;
}

/* The file that is the source was judged by its content, whatever it is called. */
static bool is_ours(const struct dcp_dir *dir, const char *file, enum dcp_hf_kind kind,
		    struct dcp_hf_name *name)
{
	return dcp_hf_name(file, name) == kind || dir->is_file;
}

int dcp_hf_add_files(struct dcp_hf *h, const struct dcp_dir *dir, const char *below,
		     enum dcp_hf_kind kind)
{
	bool twins = dcp_hf_has_model(dir, kind);
	struct dcp_hf_name name;
	int rc;

	dcp_hf_sets_finish(&h->kept);
	rc = dcp_hf_sets_read(&h->kept, dir, kind);
	h->files = dcp_arena_calloc(&h->arena, dir->n + 1, sizeof(*h->files));
	if (!h->files)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < dir->n; i++)
		if (!dir->entries[i].is_dir &&
		    is_ours(dir, dir->entries[i].name, kind, &name) &&
		    !(twins && dcp_hf_rank(name.set) == DCP_HF_RANK_TWIN) &&
		    !dcp_hf_sets_hide(&h->kept, name.set))
			rc = add_file(h, &name, below, dir->entries[i].name);
	DCP_SORT(h->files, h->nfiles, by_rank);
	return rc;
}

/* A set begins with file @first. */
static int add_set(struct dcp_hf *h, const char *name, uint32_t first)
{
	struct dcp_hf_set *set = &h->sets[h->nsets++];

	*set = (struct dcp_hf_set){ .name = name, .first = first };
	if (dcp_hf_sets_bare(&h->kept, name))
		return 0;
	set->component = dcp_arena_strndup(&h->arena, name, dcp_hf_component(name));
	return set->component ? 0 : -ENOMEM;
}

/* Files stand in order of their sets, so those of one are a run. */
int dcp_hf_make_sets(struct dcp_hf *h)
{
	int rc = 0;

	h->sets = dcp_arena_calloc(&h->arena, h->nfiles + 1, sizeof(*h->sets));
	if (!h->sets)
		return -ENOMEM;
	for (size_t i = 0; rc >= 0 && i < h->nfiles; i++) {
		struct dcp_hf_file *f = &h->files[i];

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

const struct dcp_hf_file *dcp_hf_find_file(const struct dcp_hf *h, const char *name)
{
	uint32_t i =
		name ? dcp_intern_find(&h->file_names, name, strlen(name)) : DCP_INTERN_NONE;

	return i == DCP_INTERN_NONE ? NULL : &h->files[i];
}

static int read_index(struct dcp_hf *h, struct dcp_hf_set *set, const char *name,
		      struct dcp_err *err)
{
	const char *kept = dcp_arena_strdup(&h->arena, name);

	return kept ? dcp_hf_index_read(h->in->dir, h->in->sink, kept, &set->index, err)
		    : -ENOMEM;
}

/* The files that the index names are the model. Those of the same set in another number of parts
 * are of another save; shards of ranks are not in it. */
static int find_left_over(struct dcp_hf *h, const struct dcp_hf_set *set)
{
	const struct dcp_hf_file *named = NULL;
	const struct dcp_json *value;
	const void *iter = NULL;
	const char *key;
	int rc = 0;

	while (!named && (iter = dcp_json_next(set->index.map, iter, &key, &value)))
		named = dcp_hf_find_file(h, dcp_json_str(value));
	for (uint32_t i = set->first; rc == 0 && named && i < set->first + set->n; i++) {
		struct dcp_hf_file *f = &h->files[i];

		f->left_over = named->set == f->set && f->nparts != named->nparts &&
			       strncmp(f->name, "shard-", 6) != 0;
		if (f->left_over)
			rc = dcp_emit_meta(h->in->sink, "left_out", f->name);
	}
	return rc;
}

int dcp_hf_read_indexes(struct dcp_hf *h, const struct dcp_dir *dir, enum dcp_hf_kind kind,
			bool any, struct dcp_err *err)
{
	const char *other = any ? dcp_hf_index_name(dir, kind) : NULL;
	struct dcp_hf_name name;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		uint32_t set;

		if (e->is_dir || dcp_hf_name(e->name, &name) != kind)
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

const char *dcp_hf_key(struct dcp_hf *h, const struct dcp_hf_set *set, const char *key)
{
	if (!set->component)
		return key;
	dcp_buf_reset(&h->num);
	dcp_buf_printf(&h->num, "%s.%s", set->component, key);
	return dcp_buf_error(&h->num) ? NULL : h->num.p;
}

int dcp_hf_emit_tensor(struct dcp_hf *h, const struct dcp_hf_set *set, struct dcp_tensor *t,
		       const char *error)
{
	const char *path[2] = { set->component, t->key };
	bool below = set->component;

	t->path = below ? path : path + 1;
	t->npath = below ? 2 : 1;
	t->key = NULL;
	t->error = error;
	return dcp_emit_tensor(h->in->sink, t);
}

int dcp_hf_emit_promised(struct dcp_hf *h, const struct dcp_hf_set *set)
{
	const struct dcp_json *value;
	const void *iter = NULL;
	const char *key;
	int rc = 0;

	while (rc == 0 && (iter = dcp_json_next(set->index.map, iter, &key, &value))) {
		const char *file = dcp_json_str(value), *shown = dcp_hf_key(h, set, key);
		struct dcp_tensor t = { .key = key, .dtype_name = "" };
		const struct dcp_hf_file *f;
		struct dcp_err why;

		if (!shown)
			return -ENOMEM;
		if (dcp_intern_has(&h->names, shown))
			continue;
		f = dcp_hf_find_file(h, file);
		rc = dcp_hf_emit_tensor(h, set, &t,
					dcp_hf_index_excuse(&set->index, file, f != NULL,
							    f ? f->error : NULL, &why));
	}
	return rc;
}

void dcp_hf_finish(struct dcp_hf *h)
{
	for (size_t i = 0; i < h->nsets; i++)
		dcp_hf_index_finish(&h->sets[i].index);
	dcp_hf_sets_finish(&h->kept);
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
