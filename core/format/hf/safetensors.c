/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of safetensors files: what DCP's HuggingFaceStorageWriter leaves, and what
 * Hugging Face's own save_pretrained() does.
 *
 *	*.safetensors                        whole tensors, or shards with DCP_SHARDING_INFO
 *	<model>.safetensors.index.json       which file holds which key; only with whole tensors
 *	sharded/<shard>.safetensors          read only when no file stands beside it: a
 *	                                     consolidated save keeps its shards there
 *
 * Nothing commits such a save. Names of the form <model>-<i>-of-<n> say how many there should
 * be, in all ranks' files (shard-<rank>-<model>-<i>-of-<n>) together.
 *
 * Files of one model are a set (name.h). A directory that belongs together is one version
 * and may hold several sets: the model keeps its keys when it is the only one, those of every
 * other set have its name in front (adapter_model.<key>). The same model once more is left out,
 * as a variant (the fact "variant" says which one is shown) or under Mistral's names
 * (consolidated*.safetensors beside model*.safetensors). Without a sign that all belongs
 *together each set is a version: a folder of downloaded models.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/log.h"
#include "core/format/formats.h"
#include "core/format/hf/extras.h"
#include "core/format/hf/safetensors_int.h"
#include "core/model/tensor.h"
#include "core/parse/dir/dir.h"
#include "core/parse/magic.h"

/* ---- which directories ---- */

/* Do its files have nothing to do with each other? */
static bool is_loose(const struct dcp_dir *dir)
{
	return (dcp_hf_many_sets(dir, DCP_HF_SAFETENSORS) || dcp_hf_has_torch(dir)) &&
	       !dcp_hf_is_home(dir);
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	const struct dcp_dirent *below = dcp_dir_find(dir, "sharded");
	const char *index = dcp_hf_index_name(dir, DCP_HF_SAFETENSORS_INDEX);
	enum dcp_match match, sharded_match;
	struct dcp_dir sharded;

	match = dcp_hf_check_parts(dir, DCP_HF_SAFETENSORS, why, n);
	if (match != DCP_MATCH_NO)
		return is_loose(dir) ? DCP_MATCH_MANY : match;
	if (index) {
		snprintf(why, n, "%s is there, but no safetensors file", index);
		match = DCP_MATCH_INCOMPLETE;
	}
	if (!below || !below->is_dir || dcp_dir_open_at(dir, "sharded", &sharded, NULL) < 0)
		return match;
	sharded_match = dcp_hf_check_parts(&sharded, DCP_HF_SAFETENSORS, why, n);
	dcp_dir_close(&sharded);
	return sharded_match == DCP_MATCH_NO ? match : sharded_match;
}

static bool group(const char *file, char *version)
{
	enum { ROOM = DCP_GROUP_MAX - sizeof(".safetensors") };
	struct dcp_hf_name name;

	if (dcp_hf_name(file, &name) != DCP_HF_SAFETENSORS &&
	    name.kind != DCP_HF_SAFETENSORS_INDEX)
		return false;
	snprintf(version, DCP_GROUP_MAX, "%.*s.safetensors", (int)ROOM, name.set);
	return true;
}

static bool begins(const uint8_t *head, size_t n)
{
	return dcp_magic_is_safetensors(head, n);
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_hf_index_name(dir, DCP_HF_SAFETENSORS_INDEX);
}

/* ---- which files ---- */

static int by_rank(const void *a, const void *b)
{
	const struct dcp_hf_file *x = a, *y = b;
	unsigned rx = dcp_hf_rank(x->set_name), ry = dcp_hf_rank(y->set_name);
	int by_set = strcmp(x->set_name, y->set_name);

	if (rx != ry)
		return rx < ry ? -1 : 1;
	return by_set ? by_set : strcmp(x->name, y->name);
}

static int add_file(struct dcp_hf *h, const struct dcp_hf_name *name, const char *below,
		    const char *file)
{
	size_t n = strlen(below) + strlen(file) + 1;
	char *full = dcp_arena_alloc(&h->arena, n);
	struct dcp_hf_file *f = &h->files[h->nfiles];

	f->set_name = dcp_arena_strndup(&h->arena, name->set, strlen(name->set));
	if (!full || !f->set_name)
		return -ENOMEM;
	snprintf(full, n, "%s%s", below, file);
	f->name = full;
	h->nfiles++;
	return 0;
}

/* The file that is the source was judged by its content, whatever it is called. */
static bool is_ours(const struct dcp_dir *dir, const char *file, struct dcp_hf_name *name)
{
	return dcp_hf_name(file, name) == DCP_HF_SAFETENSORS || dir->is_file;
}

static int add_files(struct dcp_hf *h, const struct dcp_dir *dir, const char *below)
{
	bool twins = dcp_hf_has_model(dir, DCP_HF_SAFETENSORS);
	struct dcp_hf_name name;
	int rc;

	dcp_hf_sets_finish(&h->kept);
	rc = dcp_hf_sets_read(&h->kept, dir, DCP_HF_SAFETENSORS);
	h->files = dcp_arena_calloc(&h->arena, dir->n + 1, sizeof(*h->files));
	if (!h->files)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < dir->n; i++)
		if (!dir->entries[i].is_dir && is_ours(dir, dir->entries[i].name, &name) &&
		    !(twins && dcp_hf_rank(name.set) == DCP_HF_RANK_TWIN) &&
		    !dcp_hf_sets_hide(&h->kept, name.set))
			rc = add_file(h, &name, below, dir->entries[i].name);
	qsort(h->files, h->nfiles, sizeof(*h->files), by_rank);
	return rc;
}

static int list_files(struct dcp_hf *h, struct dcp_err *err)
{
	struct dcp_dir sharded;
	int rc = add_files(h, h->in->dir, "");

	if (rc == 0 && h->nfiles == 0) {
		rc = dcp_dir_open_at(h->in->dir, "sharded", &sharded, err);
		if (rc < 0)
			return rc;
		rc = add_files(h, &sharded, "sharded/");
		dcp_dir_close(&sharded);
	}
	if (rc < 0)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory for file names");
	if (h->nfiles == 0)
		return dcp_fail(err, -ENOENT, DCP_ERR_NO_OFFSET, "no safetensors file");
	return 0;
}

/* ---- their sets ---- */

/* Files stand in order of their sets, so those of one are a run. */
static int make_sets(struct dcp_hf *h)
{
	uint32_t number;
	int rc = 0;

	h->sets = dcp_arena_calloc(&h->arena, h->nfiles, sizeof(*h->sets));
	if (!h->sets)
		return -ENOMEM;
	for (size_t i = 0; rc >= 0 && i < h->nfiles; i++) {
		struct dcp_hf_file *f = &h->files[i];

		rc = dcp_intern_add(&h->file_names, f->name, strlen(f->name), DCP_INTERN_NONE,
				    &number);
		if (rc >= 0)
			rc = dcp_intern_add(&h->set_names, f->set_name, strlen(f->set_name),
					    DCP_INTERN_NONE, &f->set);
		if (rc == 1)
			h->sets[h->nsets++] = (struct dcp_hf_set){ .name = f->set_name,
								   .first = (uint32_t)i };
		if (rc >= 0)
			h->sets[f->set].n++;
	}
	return rc < 0 ? -ENOMEM : 0;
}

static int read_index(struct dcp_hf *h, struct dcp_hf_set *set, const char *name,
		      struct dcp_err *err)
{
	return dcp_hf_index_read(h->in->dir, h->in->sink, name, &set->index, err);
}

/* Each index is of the set that is called like it; one that is called otherwise of the only
 * set. */
static int read_indexes(struct dcp_hf *h, struct dcp_err *err)
{
	const char *any = dcp_hf_index_name(h->in->dir, DCP_HF_SAFETENSORS_INDEX);
	struct dcp_hf_name name;
	int rc = 0;

	for (size_t i = 0; any && rc == 0 && i < h->in->dir->n; i++) {
		const struct dcp_dirent *e = &h->in->dir->entries[i];
		uint32_t set;

		if (e->is_dir || dcp_hf_name(e->name, &name) != DCP_HF_SAFETENSORS_INDEX)
			continue;
		set = dcp_intern_find(&h->set_names, name.set, strlen(name.set));
		if (set != DCP_INTERN_NONE && !h->sets[set].index.name)
			rc = read_index(h, &h->sets[set], e->name, err);
	}
	if (rc == 0 && any && h->nsets == 1 && !h->sets->index.name)
		rc = read_index(h, h->sets, any, err);
	return rc;
}

static int read_all(struct dcp_hf *h, struct dcp_err *err)
{
	const struct dcp_progress *progress = h->in->progress;
	int rc = list_files(h, err);

	if (rc == 0 && make_sets(h) < 0)
		rc = dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for file names");
	if (rc == 0)
		rc = read_indexes(h, err);
	for (uint32_t i = 0; i < h->nfiles && rc == 0; i++) {
		rc = dcp_hf_read(h, i, err);
		if (progress)
			progress->tell(progress->ctx, i + 1, h->nfiles, "files");
	}
	for (uint32_t i = 0; i < h->nsets && rc == 0; i++)
		rc = dcp_hf_add_set(h, i, err);
	return rc;
}

/* ---- load ---- */

static int tell_facts(struct dcp_hf *h)
{
	const struct dcp_sink *sink = h->in->sink;
	char text[24];
	int rc = sink->meta(sink->ctx, "framework", h->dcp ? "torch" : "safetensors");

	snprintf(text, sizeof(text), "%zu", h->nfiles);
	if (rc == 0)
		rc = sink->meta(sink->ctx, "world_files", text);
	for (size_t i = 0; i < h->nsets && rc == 0; i++)
		if (dcp_hf_variant(h->sets[i].name))
			rc = sink->meta(sink->ctx, "variant", dcp_hf_variant(h->sets[i].name));
	for (size_t i = 0; i < h->nfiles && rc == 0; i++) {
		const struct dcp_hf_file *f = &h->files[i];
		const char *why = f->error ? f->error : f->cut;

		if (!why)
			continue;
		dcp_log(h->in->log, DCP_LOG_WARN, "%s", why);
		rc = sink->meta(sink->ctx, "broken_file", why);
	}
	return rc;
}

static bool is_shown(void *ctx, const char *name)
{
	return dcp_hf_find_file(ctx, name) != NULL;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_hf h = { .in = in };
	int rc;

	dcp_arena_init(&h.arena, DCP_HF_MEMORY);
	rc = read_all(&h, err);
	if (rc == 0)
		rc = dcp_hf_tell(&h, err);
	if (rc == 0)
		rc = dcp_hf_tell_rest(in, is_shown, &h, err);
	if (rc == 0)
		rc = tell_facts(&h);
	for (size_t i = 0; i < h.nsets; i++)
		dcp_hf_index_finish(&h.sets[i].index);
	dcp_hf_sets_finish(&h.kept);
	dcp_intern_finish(&h.file_names);
	dcp_intern_finish(&h.set_names);
	dcp_intern_finish(&h.names);
	dcp_intern_finish(&h.aliases);
	dcp_buf_finish(&h.keys);
	dcp_buf_finish(&h.shards);
	dcp_buf_finish(&h.num);
	dcp_buf_finish(&h.pieces);
	dcp_arena_finish(&h.arena);
	return rc;
}

const struct dcp_format dcp_format_torch_hf = {
	.name = "safetensors",
	.what = "safetensors files (Hugging Face, or DCP's HuggingFaceStorageWriter)",
	.probe = probe,
	.group = group,
	.begins = begins,
	.apart = true,
	.commit_file = commit_file,
	.load = load,
};
