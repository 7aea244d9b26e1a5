/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files there are: those that metadata.pkl places, and others whose names say what they
 * are. A file of an item that metadata.pkl knows, but not this file, is of an older save.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/sort.h"
#include "core/format/hf/name.h"
#include "core/format/torch_checkpointing/items_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"

struct listing {
	struct dcp_titems *r;
	struct dcp_intern seen; /* names */
	struct dcp_buf needs;   /* struct need */
	size_t nneeds, need;    /* and how many of them were used */
};

static const struct dcp_titems_item *item_at(const struct dcp_titems *r, size_t i)
{
	return DCP_ITEMS(r->meta.items, struct dcp_titems_item) + i;
}

static int add(struct listing *l, const struct dcp_titems_file *f)
{
	struct dcp_titems *r = l->r;
	struct dcp_titems_file own = *f;
	int rc = dcp_intern_str(&l->seen, f->name, NULL);

	if (rc <= 0)
		return rc;
	own.name = dcp_arena_strdup(&r->arena, f->name);
	dcp_buf_add(&r->files, &own, sizeof(own));
	r->nfiles++;
	return own.name ? dcp_buf_error(&r->files) : -ENOMEM;
}

/* ---- by metadata.pkl ---- */

/* Ranks that hold something of an item. */
struct need {
	uint32_t item;
	const struct dcp_titems_list *ranks;
};

static int by_item(const void *pa, const void *pb)
{
	const struct need *a = pa, *b = pb;

	return DCP_CMP(a->item, b->item) ?: DCP_CMP(a->ranks, b->ranks);
}

/* All of them, sorted by item. */
static int list_needs(struct listing *l)
{
	struct need last = { 0 }, *all;

	for (size_t i = 0; i < dcp_titems_nentries(&l->r->meta); i++) {
		const struct dcp_titems_entry *e = dcp_titems_entry(&l->r->meta, i);

		for (const struct dcp_titems_group *g = e->first; g; g = g->next) {
			struct need one = { e->item, g->ranks };

			if (!g->ranks || by_item(&one, &last) == 0)
				continue;
			last = one;
			dcp_buf_add(&l->needs, &one, sizeof(one));
		}
	}
	all = DCP_ITEMS(l->needs, struct need);
	l->nneeds = DCP_NITEMS(l->needs, struct need);
	DCP_SORT(all, l->nneeds, by_item);
	return dcp_buf_error(&l->needs);
}

/* What is needed of item @item, which comes after the items that were asked for before. */
static const struct need *needs_of(struct listing *l, size_t item, size_t *n)
{
	const struct need *all = DCP_ITEMS(l->needs, struct need);
	size_t from = l->need;

	while (l->need < l->nneeds && all[l->need].item == item)
		l->need++;
	*n = l->need - from;
	return all ? all + from : NULL;
}

/* Before there was a file for each item, a rank had one for all: checkpoint_<rank>.pt. */
static int add_whole(struct listing *l, struct dcp_titems_file *f)
{
	char name[40];

	snprintf(name, sizeof(name), "checkpoint_%u.pt", f->rank);
	if (!dcp_dir_find(l->r->in->dir, name))
		return 0;
	f->name = name;
	f->item = NULL;
	return add(l, f) < 0 ? -ENOMEM : 1;
}

static int add_default(struct listing *l, struct dcp_titems_file *f)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;

	if (dcp_buf_printf(&name, "%s_%u.pt", f->item, f->rank) < 0)
		return -ENOMEM;
	f->name = name.p;
	if (!dcp_dir_find(l->r->in->dir, name.p)) {
		struct dcp_titems_file whole = *f;
		int rc = add_whole(l, &whole);

		if (rc != 0 || !f->promised)
			return DCP_MIN(rc, 0);
	}
	return add(l, f);
}

/* The file of rank @rank, where @at or the rule says. */
static int add_placed(struct listing *l, const struct dcp_titems_item *it, uint32_t rank,
		      const struct dcp_titems_layout *at, bool promised)
{
	struct dcp_titems_file f = {
		.item = it->name, .rank = rank, .ranked = true, .promised = promised
	};

	if (!at || !at->path)
		return add_default(l, &f);
	f.name = at->path;
	f.error = at->error;
	f.coding = at->coding;
	return add(l, &f);
}

static int add_item(struct listing *l, size_t item)
{
	const struct dcp_titems_item *it = item_at(l->r, item);
	const struct need *need;
	size_t nneed;
	int rc = 0;

	need = needs_of(l, item, &nneed);
	for (size_t i = 0; i < nneed; i++)
		for (size_t k = 0; k < need[i].ranks->n && rc >= 0; k++) {
			uint32_t rank = need[i].ranks->by_rank[k].rank;

			rc = add_placed(l, it, rank, dcp_titems_layout_of(it, rank), true);
		}
	/* What a rank has of it besides, if it has. */
	for (size_t i = 0; i < it->nlayouts && rc >= 0; i++)
		rc = add_placed(l, it, it->layout[i].rank, &it->layout[i], false);
	return rc < 0 ? rc : 0;
}

/* ---- by name ---- */

/* @below: "" or the directory of rank @rank. */
static int add_loose(struct listing *l, const char *below, const char *file,
		     const uint32_t *rank)
{
	struct dcp_titems *r = l->r;
	struct dcp_titems_name name;
	struct dcp_titems_file f = { .ranked = rank != NULL, .rank = rank ? *rank : 0 };
	char full[600];
	int n = snprintf(full, sizeof(full), "%s%s", below, file);

	if (n < 0 || (size_t)n >= sizeof(full) || !dcp_titems_name(file, &name))
		return 0;
	if (!rank && name.ranked) {
		f.ranked = true;
		f.rank = name.rank;
	}
	f.item = dcp_arena_strndup(&r->arena, name.item, name.len);
	if (!f.item)
		return -ENOMEM;
	if (dcp_intern_find(&r->meta.names, f.item, name.len) != DCP_INTERN_NONE ||
	    (r->has_meta && f.ranked && f.rank >= r->world))
		return 0;
	f.name = full;
	f.coding = name.coding;
	return add(l, &f);
}

static int add_rank_dir(struct listing *l, const char *name, uint32_t rank)
{
	dcp_auto_dir struct dcp_dir below = { 0 };
	char path[300];
	int rc = 0;

	snprintf(path, sizeof(path), "%s/", name);
	if (dcp_dir_open_at(l->r->in->dir, name, &below, NULL) < 0)
		return 0;
	for (size_t i = 0; i < below.n && rc >= 0; i++)
		if (!below.entries[i].is_dir)
			rc = add_loose(l, path, below.entries[i].name, &rank);
	return rc;
}

/* What consolidation made: the same tensors once more. */
static bool is_twin(const char *name)
{
	struct dcp_hf_name hf;

	return dcp_hf_name(name, &hf) == DCP_HF_SAFETENSORS_INDEX ||
	       (hf.kind == DCP_HF_SAFETENSORS && hf.nparts);
}

/* A file that no rule names may be an item too: it is shown as it is. */
static int add_unknown(struct listing *l, const char *name)
{
	const struct dcp_sink *sink = l->r->in->sink;
	struct dcp_titems_name unused;

	if (is_twin(name))
		return dcp_emit_meta(sink, "left_out", name);
	if (*name == '.' || strcmp(name, "metadata.pkl") == 0 ||
	    dcp_titems_name(name, &unused) || dcp_intern_has(&l->seen, name))
		return 0;
	return dcp_emit_sidecar(sink, name);
}

static int add_by_name(struct listing *l)
{
	const struct dcp_dir *dir = l->r->in->dir;
	int rc = 0;

	for (size_t i = 0; i < dir->n && rc >= 0; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		uint32_t rank;

		if (e->is_dir && dcp_titems_rank_dir(e->name, &rank))
			rc = add_rank_dir(l, e->name, rank);
		if (e->is_dir)
			continue;
		rc = add_loose(l, "", e->name, NULL);
		if (rc >= 0)
			rc = add_unknown(l, e->name);
	}
	return rc;
}

/* ---- all ---- */

/* Files of no rank last, else by rank; of one rank by name. */
static int compare_files(const void *pa, const void *pb)
{
	const struct dcp_titems_file *a = pa, *b = pb;

	return b->ranked - a->ranked ?: DCP_CMP(a->rank, b->rank) ?: strcmp(a->name, b->name);
}

int dcp_titems_list_files(struct dcp_titems *r, struct dcp_err *err)
{
	struct listing l = { .r = r };
	int rc = list_needs(&l);

	for (size_t i = 0; i < r->meta.names.n && rc >= 0; i++)
		rc = add_item(&l, i);
	if (rc >= 0)
		rc = add_by_name(&l);
	dcp_intern_finish(&l.seen);
	dcp_buf_finish(&l.needs);
	if (rc == -ENOMEM)
		return dcp_fail(err, rc, "out of memory for names of files");
	if (rc < 0)
		return rc;
	DCP_SORT(DCP_ITEMS(r->files, struct dcp_titems_file), r->nfiles, compare_files);
	for (size_t i = 0; i < r->nfiles && !r->has_meta; i++)
		r->world = DCP_MAX(r->world, (uint64_t)dcp_titems_file(r, i)->rank + 1);
	return r->nfiles ? 0 : dcp_fail(err, -ENOENT, "no file of any item is there");
}
