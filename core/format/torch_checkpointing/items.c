/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of torch_checkpointing, the successor of torch.distributed.checkpoint's
 * _experimental: one file for each item of the state and each rank.
 *
 *	<item>_<rank>.pt    by torch.save; or another file that the item's layout names, as .pt,
 *	                    .json, .safetensors or raw bytes
 *	metadata.pkl        how tensors are cut and where files lie, of items with a resharder
 *	tmp_<name>/         the directory before it is complete and renamed (see model/name.h)
 *
 * Other programs also write a metadata.pkl. So a directory with a metadata.pkl counts as such a
 * checkpoint only if a file or directory in it has a rank in its name. Without metadata.pkl only
 * the names "<item>_<rank>.pt" are known, and model_0.pt, model_1.pt are more often the epochs of
 * a training. Then the directory must have at least two items, all its files of weights must have
 * such names, and their ranks must be 0 to some n.
 *
 * torch_checkpointing's consolidation may have put <item>-00001-of-00002.safetensors beside the
 * ranks' files. These files hold the same tensors again and are left out.
 */
#include "core/format/torch_checkpointing/items_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/torch/torch.h"
#include "core/format/weights/name.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"

/* filename: the item, the rank and the form of a file, from its name. */

static bool known_extension(const char *dot, enum dcp_items_coding *out)
{
	static const struct {
		const char *name;
		enum dcp_items_coding coding;
	} known[] = {
		{ ".pt", DCP_ITEMS_TORCH },
		{ ".pth", DCP_ITEMS_TORCH },
		{ ".json", DCP_ITEMS_JSON },
		{ ".safetensors", DCP_ITEMS_SAFETENSORS },
	};

	for (size_t i = 0; dot && i < DCP_LEN(known); i++)
		if (strcmp(dot, known[i].name) == 0) {
			*out = known[i].coding;
			return true;
		}
	return false;
}

/* Is all of [p, end) a number without leading zeros, below the limit of ranks? */
static bool is_number(const char *p, const char *end, uint32_t *out)
{
	uint64_t n;

	if ((*p == '0' && end - p > 1) || !dcp_take_number(&p, end, 7, &n) || p != end ||
	    n >= DCP_ITEMS_MAX_RANKS)
		return false;
	*out = (uint32_t)n;
	return true;
}

bool dcp_items_rank_dir(const char *name, uint32_t *rank)
{
	const char *p = name + 4;

	if (strncmp(name, "rank", 4) != 0)
		return false;
	p += *p == '_';
	return is_number(p, p + strlen(p), rank);
}

bool dcp_items_name(const char *file, struct dcp_items_name *out)
{
	const char *dot = strrchr(file, '.'), *p = dot;
	struct dcp_weights_name unused;

	*out = (struct dcp_items_name){ .item = file };
	if (*file == '.' || !known_extension(dot, &out->coding))
		return false;
	if (dcp_weights_name(file, &unused) == DCP_WEIGHTS_SAFETENSORS_INDEX || unused.nparts)
		return false;
	while (p > file && *p != '_')
		p--;
	out->ranked = p > file && is_number(p + 1, dot, &out->rank);
	out->len = (size_t)((out->ranked ? p : dot) - file);
	/* model_rank_3.pt */
	if (out->ranked && out->len > 5 && memcmp(file + out->len - 5, "_rank", 5) == 0)
		out->len -= 5;
	return out->len > 0;
}

/*
 * The list of files: the files that metadata.pkl names, and files whose own names tell item and
 * rank. If metadata.pkl knows an item but does not place a file of it, the file is left over from
 * an older save and skipped.
 */

struct listing {
	struct dcp_items *r;
	struct dcp_intern seen; /* names */
	struct dcp_buf needs;   /* struct need, by item */
	size_t nneeds, need;    /* number of needs, and how many of them were used */
};

static const struct dcp_items_item *item_at(const struct dcp_items *r, size_t i)
{
	return DCP_ITEMS(r->meta.items, struct dcp_items_item) + i;
}

static int add_once(struct listing *l, const struct dcp_items_file *f)
{
	struct dcp_items *r = l->r;
	struct dcp_items_file own = *f;
	int rc = dcp_intern_str(&l->seen, f->name, NULL);

	if (rc <= 0)
		return rc;
	own.name = dcp_arena_strdup(&r->arena, f->name);
	dcp_buf_add(&r->files, &own, sizeof(own));
	r->nfiles++;
	return own.name ? dcp_buf_error(&r->files) : -ENOMEM;
}

/* ---- by metadata.pkl ---- */

/* Ranks that hold tensors of an item. */
struct need {
	uint32_t item;
	const struct dcp_items_list *ranks;
};

static int by_item(const void *pa, const void *pb)
{
	const struct need *a = pa, *b = pb;

	return DCP_CMP(a->item, b->item) ?: DCP_CMP(a->ranks, b->ranks);
}

/* Collect the needs of all entries, sorted by item. */
static int list_needs(struct listing *l)
{
	struct need last = { 0 }, *all;

	for (size_t i = 0; i < dcp_items_nentries(&l->r->meta); i++) {
		const struct dcp_items_entry *e = dcp_items_entry(&l->r->meta, i);

		for (const struct dcp_items_group *g = e->first; g; g = g->next) {
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

/* The needs of item @item. Callers pass items in rising order. */
static const struct need *needs_of(struct listing *l, size_t item, size_t *n)
{
	const struct need *all = DCP_ITEMS(l->needs, struct need);
	size_t from = l->need;

	while (l->need < l->nneeds && all[l->need].item == item)
		l->need++;
	*n = l->need - from;
	return all ? all + from : NULL;
}

/* Older versions wrote one file with all items of a rank, checkpoint_<rank>.pt. Returns 1 if it
 * is there. */
static int add_whole(struct listing *l, struct dcp_items_file *f)
{
	char name[40];

	snprintf(name, sizeof(name), "checkpoint_%u.pt", f->rank);
	if (!dcp_dir_find(l->r->in->dir, name))
		return 0;
	f->name = name;
	f->item = NULL;
	return add_once(l, f) < 0 ? -ENOMEM : 1;
}

static int add_default(struct listing *l, struct dcp_items_file *f)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;

	if (dcp_buf_printf(&name, "%s_%u.pt", f->item, f->rank) < 0)
		return -ENOMEM;
	f->name = name.p;
	if (!dcp_dir_find(l->r->in->dir, name.p)) {
		struct dcp_items_file whole = *f;
		int rc = add_whole(l, &whole);

		if (rc != 0 || !f->promised)
			return DCP_MIN(rc, 0);
	}
	return add_once(l, f);
}

/* Add the file of rank @rank that @at names, or the default file if @at names none. */
static int add_placed(struct listing *l, const struct dcp_items_item *it, uint32_t rank,
		      const struct dcp_items_layout *at, bool promised)
{
	struct dcp_items_file f = {
		.item = it->name, .rank = rank, .ranked = true, .promised = promised
	};

	if (!at || !at->path)
		return add_default(l, &f);
	f.name = at->path;
	f.error = at->error;
	f.coding = at->coding;
	return add_once(l, &f);
}

static int add_item(struct listing *l, size_t item)
{
	const struct dcp_items_item *it = item_at(l->r, item);
	const struct need *need;
	size_t nneed;
	int rc = 0;

	need = needs_of(l, item, &nneed);
	for (size_t i = 0; i < nneed; i++)
		for (size_t k = 0; k < need[i].ranks->n && rc >= 0; k++) {
			uint32_t rank = need[i].ranks->by_rank[k].rank;

			rc = add_placed(l, it, rank, dcp_items_layout_of(it, rank), true);
		}
	/* Layouts also name files of ranks for which no tensor is listed. These may be missing. */
	for (size_t i = 0; i < it->nlayouts && rc >= 0; i++)
		rc = add_placed(l, it, it->layout[i].rank, &it->layout[i], false);
	return rc < 0 ? rc : 0;
}

/* ---- by name ---- */

/* @below: "" or the directory of rank @rank. */
static int add_loose(struct listing *l, const char *below, const char *file,
		     const uint32_t *rank)
{
	struct dcp_items *r = l->r;
	struct dcp_items_name name;
	struct dcp_items_file f = { .ranked = rank != NULL, .rank = rank ? *rank : 0 };
	char full[600];
	int n = snprintf(full, sizeof(full), "%s%s", below, file);

	if (n < 0 || (size_t)n >= sizeof(full) || !dcp_items_name(file, &name))
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
	return add_once(l, &f);
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

/* Was the file @name made by consolidation? Then it holds the same tensors again. */
static bool is_twin(const char *name)
{
	struct dcp_weights_name hf;

	return dcp_weights_name(name, &hf) == DCP_WEIGHTS_SAFETENSORS_INDEX ||
	       (hf.kind == DCP_WEIGHTS_SAFETENSORS && hf.nparts);
}

/* A file with an unknown name may be an item too, so it is shown unchanged. */
static int add_unknown(struct listing *l, const char *name)
{
	const struct dcp_sink *sink = l->r->in->sink;
	struct dcp_items_name unused;

	if (is_twin(name))
		return dcp_emit_meta(sink, "left_out", name);
	if (*name == '.' || strcmp(name, "metadata.pkl") == 0 ||
	    dcp_items_name(name, &unused) || dcp_intern_has(&l->seen, name))
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

		if (e->is_dir && dcp_items_rank_dir(e->name, &rank))
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

/* Order files by rank, then by name; files without a rank come last. */
static int compare_files(const void *pa, const void *pb)
{
	const struct dcp_items_file *a = pa, *b = pb;

	return b->ranked - a->ranked ?: DCP_CMP(a->rank, b->rank) ?: strcmp(a->name, b->name);
}

static int dcp_items_list_files(struct dcp_items *r, struct dcp_err *err)
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
	DCP_SORT(DCP_ITEMS(r->files, struct dcp_items_file), r->nfiles, compare_files);
	for (size_t i = 0; i < r->nfiles && !r->has_meta; i++)
		r->world = DCP_MAX(r->world, (uint64_t)dcp_items_file(r, i)->rank + 1);
	return r->nfiles ? 0 : dcp_fail(err, -ENOENT, "no file of any item is there");
}

/*
 * Joining the files. A tensor whose place is known is emitted once, joined from the parts of all
 * ranks, under the item's name and its path in the item. Of replicas the lowest rank's is taken,
 * as torch_checkpointing does. The place comes from metadata.pkl, or from the DTensor or
 * ShardedTensor itself; if both give a place, they must agree. Other tensors and objects of rank r
 * are emitted below "rank<r>"; in a job of one rank they keep their names.
 *
 *	model_0.pt {"w": DTensor}         model.w, path model / w
 *	model_0.pt {"b": tensor}          model.b with metadata.pkl, rank0.model.b without
 *	step_0.pt 1000                    rank0.step
 */

enum { SCRATCH_LIMIT = 256 << 20, NAMES_LIMIT = 256 << 20 };

static void set_front(struct dcp_items *r, const struct dcp_items_file *f)
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
	const struct dcp_items *r = ctx;
	const struct dcp_object o = {
		.path = r->front.path, .npath = r->front.npath, .type = "", .error = why
	};

	return dcp_emit_object(r->in->sink, &o);
}

static int emit_file(void *ctx, size_t at, struct dcp_err *why)
{
	struct dcp_items *r = ctx;
	struct dcp_items_file *f = dcp_items_file(r, at);
	int rc;

	r->at = at;
	set_front(r, f);
	rc = dcp_items_read(r, why);
	/* A file that metadata.pkl does not need may be missing. */
	if (rc == 1 && why->code == -ENOENT && !f->promised)
		return 0;
	f->broken = rc == 1;
	return rc;
}

/* ---- all of it ---- */

/* A checkpoint whose metadata.pkl is missing or damaged is read from its files alone. */
static int read_meta(struct dcp_items *r, struct dcp_err *err)
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
		rc = dcp_items_meta_read(&r->meta, &input.src, &why);
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
	dcp_items_meta_finish(&r->meta);
	r->meta = (struct dcp_items_meta){ 0 };
	r->world = 0;
	o.error = why.msg;
	return dcp_emit_object(sink, &o);
}

static int emit_facts(const struct dcp_items *r)
{
	const struct dcp_sink *sink = r->in->sink;
	int rc = dcp_emit_fact(sink, 0, "framework", "torch_checkpointing");

	rc = dcp_emit_fact(sink, rc, "ranks", "%" PRIu64, r->world);
	return r->has_meta ? dcp_emit_fact(sink, rc, "version", "%s",
					   *r->meta.version ? r->meta.version : "1.0")
			   : rc;
}

static int dcp_items_load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_items r = { .in = in };
	int rc;

	dcp_arena_init(&r.arena, NAMES_LIMIT);
	dcp_arena_init(&r.scratch, SCRATCH_LIMIT);
	dcp_copies_init(&r.copies);
	dcp_shard_parts_init(&r.parts);
	rc = read_meta(&r, err);
	if (rc == 0)
		rc = dcp_items_list_files(&r, err);
	if (rc == 0)
		rc = dcp_copies_read(&r.copies, in, r.nfiles, emit_file, emit_broken, &r, err);
	if (rc == 0)
		rc = dcp_shard_parts_join(&r.parts, &r.copies, in->sink);
	if (rc == 0)
		rc = dcp_items_join(&r);
	if (rc == 0)
		rc = emit_facts(&r);
	if (rc == -ENOMEM)
		dcp_fail(err, rc, "out of memory for the parts of tensors");
	dcp_copies_finish(&r.copies);
	dcp_shard_parts_finish(&r.parts);
	dcp_items_meta_finish(&r.meta);
	dcp_places_finish(&r.places);
	dcp_arena_finish(&r.arena);
	dcp_arena_finish(&r.scratch);
	dcp_buf_finish(&r.files);
	dcp_buf_finish(&r.faults);
	return rc;
}

static const char metadata[] = "metadata.pkl";

/* ---- which directories ---- */

static bool has_rank(const struct dcp_dirent *e)
{
	struct dcp_items_name name;
	uint32_t rank;

	return e->is_dir ? dcp_items_rank_dir(e->name, &rank)
			 : dcp_items_name(e->name, &name) && name.ranked;
}

/* Is @file the name of an item's file that is recognised without a metadata.pkl? */
static bool is_plain(const char *file, struct dcp_items_name *out)
{
	struct dcp_rank_name other;

	/* torchtune numbers parts and epochs: hf_model_0001_0.pt */
	return dcp_items_name(file, out) && out->coding != DCP_ITEMS_JSON && out->ranked &&
	       !dcp_is_digit(file[out->len - 1]) && !dcp_rank_name(file, &other);
}

static bool all_ranks(const struct dcp_dir *dir)
{
	unsigned char *have = calloc(dir->n + 1, 1);
	struct dcp_items_name name;
	uint32_t most = 0;
	size_t n = 0;

	for (size_t i = 0; have && i < dir->n; i++) {
		if (dir->entries[i].is_dir || !is_plain(dir->entries[i].name, &name))
			continue;
		if (name.rank >= dir->n) {
			most = name.rank; /* fewer files than ranks: some are missing */
			break;
		}
		n += !have[name.rank];
		have[name.rank] = 1;
		most = DCP_MAX(most, name.rank);
	}
	free(have);
	return n > 0 && n == (size_t)most + 1;
}

/* May @file hold tensors, by its extension? */
static bool is_weights(const char *file)
{
	static const char *const known[] = { ".pt", ".pth", ".bin", ".ckpt", ".safetensors" };
	const char *dot = strrchr(file, '.');

	for (size_t i = 0; dot && i < DCP_LEN(known); i++)
		if (strcmp(dot, known[i]) == 0)
			return true;
	return false;
}

/* Are there several items, one file for each item and rank, and no other weights? */
static bool is_plain_dir(const struct dcp_dir *dir)
{
	const char *first = NULL;
	size_t len = 0;
	bool several = false;

	for (size_t i = 0; i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		struct dcp_items_name name;

		if (e->is_dir || !is_weights(e->name))
			continue;
		if (!is_plain(e->name, &name))
			return false;
		several |= first && (name.len != len || memcmp(first, name.item, len) != 0);
		first = name.item;
		len = name.len;
	}
	return several && all_ranks(dir);
}

static enum dcp_match probe_items(const struct dcp_dir *dir, char *why, size_t n)
{
	if (!dcp_dir_has_file(dir, metadata))
		return is_plain_dir(dir) ? DCP_MATCH_YES : DCP_MATCH_NO;
	for (size_t i = 0; i < dir->n; i++)
		if (has_rank(&dir->entries[i]))
			return DCP_MATCH_YES;
	return DCP_MATCH_NO;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_dir_find(dir, metadata) ? metadata : NULL;
}

const struct dcp_format dcp_format_torch_items = {
	.name = "torch-checkpointing",
	.what = "torch_checkpointing",
	.probe = probe_items,
	.commit_file = commit_file,
	.load = dcp_items_load,
};
