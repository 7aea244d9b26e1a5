/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fairseq2: a directory for each step, and in it a torch.save file for each rank.
 *
 *	step_10/model/pp_00/tp_00/sdp_00.pt       plain tensors: the rank's rows of each
 *	        optimizer/pp_00/tp_00/sdp_00.pt
 *	        trainer/rank_00.pt
 *	        data_reader/dp_00.pt
 *
 * pp counts pipeline stages, tp tensor-parallel ranks, sdp the ranks that share the remainder. The
 * model is joined as by fairseq2's own loader: the rows of the sdp ranks one after the other, then
 * along the dimension that tensor parallelism cuts, which the layers' names tell. All other keys
 * begin with the names of their file, "trainer.rank_00.step"; but a tensor that records its part of
 * the whole (DTensor, ShardedTensor) is joined from all sdp ranks, "optimizer.pp_00.tp_00".
 *
 * Sources: checkpoint/manager.py, model_checkpoint/native.py, model_checkpoint/common.py,
 * models/llama/sharder.py of 0.5 to 0.8.
 */
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/gather/join.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"

enum { LEVELS = 3, MOST_MISSING = 16 };

/* The directories of a step, and what lies in them level by level; the last level are files. The
 * model comes first. */
static const struct {
	const char *name, *level[LEVELS];
} trees[] = {
	{ "model", { "pp_", "tp_", "sdp_" } },
	{ "optimizer", { "pp_", "tp_", "sdp_" } },
	{ "trainer", { "rank_" } },
	{ "data_reader", { "dp_" } },
};

/* Which dimension do tensor-parallel ranks cut? They do not cut norms and the biases of sums. */
static const struct {
	const char *key;
	int dim; /* WHOLE, or BY_WIDTH: rows, or columns where a row is less wide than the model */
} cuts[] = {
#define WHOLE (-1)
#define BY_WIDTH (-2)
	{ "*.@(q|k|v)_proj.@(weight|bias)", 0 },
	{ "*.ffn.@(inner|gate)_proj.@(weight|bias)", 0 },
	{ "final_proj.@(weight|bias)", 0 },
	{ "*.output_proj.weight", 1 },
	{ "*.output_proj.bias", WHOLE },
	{ "*.embed.weight", BY_WIDTH },
	{ "*norm.@(weight|bias)", WHOLE },
};

/* A file and the numbers in its path. */
struct file {
	const char *name;
	const char *why; /* not NULL: why it cannot be read */
	uint32_t tree, at[LEVELS];
};

struct reading {
	const struct dcp_load *in;
	struct dcp_buf files;     /* struct file, in order of their numbers */
	uint32_t of[LEVELS];      /* numbers of stages, tensor-parallel and sharded ranks of the
				   * model */
	size_t ntrainers;         /* number of trainer files, one for each rank */
	uint64_t width;           /* of the model; 0: not known */
	size_t at;                /* the file that is read */
	struct dcp_copies parts;  /* of the model */
	struct dcp_copies shards; /* parts that record their place in the whole */
	struct dcp_places places; /* of the joined tensors */
	struct dcp_join join;
	struct dcp_buf key, path;
};

/* ---- files ---- */

/* Parse "sdp_03.pt" of the last level, or "tp_00" of others. */
static bool is_rank(const struct dcp_dirent *e, const char *prefix, bool last, uint32_t *out)
{
	const char *p = e->name + strlen(prefix);
	char name[32];
	uint64_t n;

	if (e->is_dir == last || strncmp(e->name, prefix, strlen(prefix)) != 0 ||
	    !dcp_take_number(&p, NULL, 6, &n))
		return false;
	*out = (uint32_t)n;
	snprintf(name, sizeof(name), last ? "%s%02u.pt" : "%s%02u", prefix, *out);
	return strcmp(name, e->name) == 0;
}

static const char *level_of(uint32_t tree, uint32_t level)
{
	return level < LEVELS ? trees[tree].level[level] : NULL;
}

/* Add the files in @dir and below it. @f: the numbers so far, @path: the directory's name and a
 * slash. */
static int add_files(struct reading *r, const struct dcp_dir *dir, struct file *f,
		     uint32_t level, const char *path)
{
	bool last = !level_of(f->tree, level + 1);
	int rc = 0;

	for (size_t i = 0; i < dir->n && rc == 0; i++) {
		dcp_auto_dir struct dcp_dir below = { 0 };
		const char *name = dir->entries[i].name;
		char full[256];

		if (!is_rank(&dir->entries[i], trees[f->tree].level[level], last,
			     &f->at[level]))
			continue;
		snprintf(full, sizeof(full), last ? "%.200s%.40s" : "%.200s%.40s/", path, name);
		f->name = last ? dcp_arena_strdup(&r->parts.arena, full) : NULL;
		if (last)
			rc = f->name ? dcp_buf_add(&r->files, f, sizeof(*f)) : -ENOMEM;
		else if (dcp_dir_open_at(dir, name, &below, NULL) == 0)
			rc = add_files(r, &below, f, level + 1, full);
	}
	return rc;
}

static int by_numbers(const void *pa, const void *pb)
{
	const struct file *a = pa, *b = pb;
	int order = DCP_CMP(a->tree, b->tree);

	for (uint32_t k = 0; k < LEVELS && !order; k++)
		order = DCP_CMP(a->at[k], b->at[k]);
	return order ?: strcmp(a->name, b->name);
}

static struct file *file_at(const struct reading *r, size_t i)
{
	return DCP_ITEMS(r->files, struct file) + i;
}

/* Add the missing files: each stage, tensor-parallel and sharded rank has a file of the model, even
 * if only its optimizer is there. */
static int add_missing(struct reading *r)
{
	size_t i = 0, n = DCP_NITEMS(r->files, struct file);
	uint64_t all;

	for (size_t k = 0; k < n; k++)
		for (uint32_t d = 0; d < LEVELS && file_at(r, k)->tree <= 1; d++)
			r->of[d] = DCP_MAX(r->of[d], file_at(r, k)->at[d] + 1);
	if (dcp_ckd_mul(&all, (uint64_t)r->of[0] * r->of[1], r->of[2]) ||
	    all / MOST_MISSING > n)
		return -E2BIG;
	for (uint64_t k = 0; k < all; k++) {
		struct file f = { .why = "" };
		char name[80];

		f.at[2] = (uint32_t)(k % r->of[2]);
		f.at[1] = (uint32_t)(k / r->of[2] % r->of[1]);
		f.at[0] = (uint32_t)(k / r->of[2] / r->of[1]);
		if (i < n && !file_at(r, i)->tree &&
		    memcmp(file_at(r, i)->at, f.at, sizeof(f.at)) == 0) {
			i++;
			continue;
		}
		snprintf(name, sizeof(name), "model/pp_%02u/tp_%02u/sdp_%02u.pt", f.at[0],
			 f.at[1], f.at[2]);
		f.name = dcp_arena_strdup(&r->parts.arena, name);
		if (!f.name || dcp_buf_add(&r->files, &f, sizeof(f)) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int list_files(struct reading *r, struct dcp_err *err)
{
	int rc = 0;

	for (struct file f = { 0 }; f.tree < DCP_LEN(trees) && rc == 0; f.tree++) {
		dcp_auto_dir struct dcp_dir dir = { 0 };
		size_t before = r->files.n;
		char path[24];

		snprintf(path, sizeof(path), "%s/", trees[f.tree].name);
		memset(f.at, 0, sizeof(f.at));
		if (dcp_dir_has_dir(r->in->dir, trees[f.tree].name) &&
		    dcp_dir_open_at(r->in->dir, trees[f.tree].name, &dir, NULL) == 0)
			rc = add_files(r, &dir, &f, 0, path);
		if (f.tree == 2)
			r->ntrainers = (r->files.n - before) / sizeof(f);
	}
	for (int again = 0; again < 2 && rc == 0; again++) {
		DCP_SORT(DCP_ITEMS(r->files, struct file), DCP_NITEMS(r->files, struct file),
			 by_numbers);
		rc = again ? 0 : add_missing(r);
	}
	return rc == -E2BIG
		       ? dcp_fail(err, -EBADMSG, "most of the files of its ranks are missing")
		       : rc;
}

/* ---- reading ---- */

/* "optimizer", "pp_00", "tp_00", "sdp_00" */
static size_t path_of(const struct file *f, char text[LEVELS][16], const char *path[LEVELS + 1])
{
	size_t n = 1;

	path[0] = trees[f->tree].name;
	for (uint32_t k = 0; level_of(f->tree, k); k++) {
		snprintf(text[k], sizeof(text[k]), "%s%02u", level_of(f->tree, k), f->at[k]);
		path[n++] = text[k];
	}
	return n;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct reading *r = ctx;

	if (fnmatch("*.q_proj.weight", t->key, 0) == 0 && t->ndim == 2)
		r->width = t->shape[1];
	return dcp_copies_add(&r->parts, t, (uint32_t)r->at, file_at(r, r->at)->name);
}

/* Keep a tensor that records its place in the whole, under its key without the rank, which is the
 * last component of its file. */
static int on_shard(void *ctx, const struct dcp_tensor *emitted)
{
	struct reading *r = ctx;
	const struct file *f = file_at(r, r->at);
	struct dcp_tensor t = *emitted;
	size_t rank = 0;

	while (f->tree && level_of(f->tree, (uint32_t)rank))
		rank++;
	dcp_buf_reset(&r->path);
	dcp_buf_reset(&r->key);
	for (size_t i = 0; i < t.npath; i++)
		if (!rank || i != rank)
			dcp_buf_add(&r->path, &t.path[i], sizeof(t.path[i]));
	t.path = DCP_ITEMS(r->path, const char *);
	t.npath = DCP_NITEMS(r->path, const char *);
	dcp_path_join(&r->key, t.path, t.npath);
	if (dcp_buf_error(&r->path) || dcp_buf_add(&r->key, "", 1) < 0)
		return -ENOMEM;
	t.key = r->key.p;
	return dcp_copies_add(&r->shards, &t, (uint32_t)r->at, f->name);
}

static int read_file(void *ctx, size_t at, struct dcp_err *why)
{
	struct reading *r = ctx;
	const struct dcp_load *in = r->in;
	struct file *f = file_at(r, at);
	const struct dcp_sink model = { .tensor = on_tensor, .ctx = r, .next = in->sink };
	const char *path[LEVELS + 1];
	char text[LEVELS][16];
	struct dcp_torch_state s = { .sink = f->tree ? in->sink : &model,
				     .prefix = path,
				     .nprefix = f->tree ? path_of(f, text, path) : 0,
				     .shard = on_shard,
				     .ctx = r };
	dcp_auto_torch struct dcp_torch *t = NULL;
	int rc;

	r->at = at;
	if (f->why)
		rc = dcp_fail(why, -ENOENT, "%s is missing", f->name);
	else
		rc = dcp_emit_file(in->sink, f->name, &s.file)
			     ?: dcp_torch_open_file(in->dir, f->name, &t, why);
	if (rc < 0 && why->code && rc != -ENOMEM) {
		f->why = dcp_arena_strdup(&r->parts.arena, why->msg);
		return f->why ? 1 : -ENOMEM;
	}
	s.t = t;
	return rc < 0 ? rc : dcp_torch_state_emit(&s);
}

static int emit_broken(void *ctx, size_t at, const char *why)
{
	struct reading *r = ctx;
	const char *path[LEVELS + 1];
	char text[LEVELS][16];
	const struct dcp_object o = { .path = path,
				      .npath = path_of(file_at(r, at), text, path),
				      .type = "",
				      .error = why };

	return dcp_emit_object(r->in->sink, &o);
}

/* ---- the model ---- */

/* A tensor that is being joined. */
struct whole {
	struct reading *r;
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	int dim; /* the dimension that tensor-parallel ranks cut, or WHOLE */
	struct dcp_err why;
};

static int find_cut(struct whole *w)
{
	size_t i = 0;

	w->dim = WHOLE;
	if (w->r->of[1] == 1)
		return 0;
	while (i < DCP_LEN(cuts) && fnmatch(cuts[i].key, w->t.key, FNM_EXTMATCH) != 0)
		i++;
	if (i < DCP_LEN(cuts))
		w->dim = cuts[i].dim;
	if (w->dim == BY_WIDTH && w->t.ndim == 2 && w->r->width)
		w->dim = w->t.shape[1] != w->r->width;
	if (i < DCP_LEN(cuts) && w->dim != BY_WIDTH && w->dim < (int)w->t.ndim)
		return 0;
	return dcp_fail(
		&w->why, -ENOTSUP,
		"the files do not say how %u tensor-parallel ranks hold it, and its name "
		"does not show it: load it in fairseq2 and save the model's state_dict",
		w->r->of[1]);
}

/* Is @c a part of the same tensor? */
static int check_part(struct whole *w, const struct dcp_copy *c)
{
	const struct dcp_tensor *t = &c->t;

	if (t->error)
		return dcp_fail(&w->why, -EBADMSG, "%s: %s", c->file, t->error);
	if (t->dtype != w->t.dtype || strcmp(t->dtype_name, w->t.dtype_name) != 0 ||
	    t->ndim != w->t.ndim ||
	    (t->ndim > 1 && memcmp(t->shape + 1, w->t.shape + 1, (t->ndim - 1) * 8) != 0))
		return dcp_fail(&w->why, -EBADMSG,
				"%s and %s disagree about its dtype or shape",
				file_at(w->r, w->r->at)->name, c->file);
	return 0;
}

/*
 * Add the rows of the sharded ranks of tensor-parallel rank @tp in stage @pp one after the other.
 * They begin at *@first, which is moved past them. *@c: the first copy that was not taken. The last
 * ranks may have no rows.
 */
static int add_rows(struct whole *w, uint32_t pp, uint32_t tp, uint64_t *first,
		    const struct dcp_copy **c)
{
	size_t at = ((size_t)pp * w->r->of[1] + tp) * w->r->of[2], n = 0;
	bool ended = false;

	for (uint32_t k = 0; k < w->r->of[2]; k++, at++) {
		const struct file *f = file_at(w->r, at);
		int rc;

		if (f->why)
			return dcp_fail(&w->why, -EBADMSG, "%s", f->why);
		if (!*c || (*c)->who != at) {
			ended = true;
			continue;
		}
		if (ended)
			return dcp_fail(
				&w->why, -EBADMSG,
				"%s holds a part of it, and a rank before that does not",
				f->name);
		rc = check_part(w, *c);
		if (rc < 0)
			return rc;
		rc = dcp_join_add_part(&w->r->join, &(*c)->t, first, &w->r->parts.arena);
		if (rc == 0 && w->t.ndim && dcp_ckd_add(&first[0], first[0], (*c)->t.shape[0]))
			rc = -EBADMSG;
		if (rc < 0)
			return dcp_fail(&w->why, rc, "it ends beyond 64 bits");
		*c = (*c)->next;
		n++;
	}
	return n ? 0
		 : dcp_fail(&w->why, -EBADMSG, "%s does not hold it, as other ranks do",
			    file_at(w->r, at - 1)->name);
}

static int add_parts(struct whole *w, const struct dcp_copies_key *k)
{
	struct reading *r = w->r;
	const struct dcp_copy *c = k->first;
	uint64_t first[DCP_MAX_NDIM] = { 0 }, rows = 0;
	uint32_t pp = file_at(r, c->who)->at[0];
	size_t all = (size_t)r->of[0] * r->of[1] * r->of[2];
	int rc = find_cut(w);

	if (rc == 0 && r->ntrainers % all)
		return dcp_fail(
			&w->why, -EBADMSG,
			"trainer/ has files of %zu ranks, which is no multiple of the %zu "
			"in model/: files are missing",
			r->ntrainers, all);
	for (uint32_t tp = 0; tp < r->of[1] && rc == 0; tp++) {
		uint64_t start = w->dim == 0 ? first[0] : 0;

		first[0] = start;
		if (w->dim > 0 && dcp_ckd_mul(&first[w->dim], w->t.shape[w->dim], tp))
			return dcp_fail(&w->why, -EBADMSG, "it ends beyond 64 bits");
		rc = add_rows(w, pp, tp, first, &c);
		if (rc == 0 && tp && first[0] - start != rows)
			rc = dcp_fail(&w->why, -EBADMSG,
				      "tensor-parallel ranks hold %" PRIu64 " and %" PRIu64
				      " rows of it",
				      rows, first[0] - start);
		rows = first[0] - start;
	}
	if (rc == 0 && c)
		rc = dcp_fail(&w->why, -ENOTSUP, "several pipeline stages hold it: %s and %s",
			      k->first->file, c->file);
	if (rc < 0)
		return rc; /* it keeps the shape of its first part */
	if (w->t.ndim)
		w->shape[0] = first[0];
	if (w->dim > 0 && dcp_ckd_add(&w->shape[w->dim], first[w->dim], w->t.shape[w->dim]))
		return dcp_fail(&w->why, -EBADMSG, "it ends beyond 64 bits");
	return 0;
}

static int emit_key(struct reading *r, uint32_t key)
{
	const struct dcp_copies_key *k = dcp_copies_at(&r->parts, key);
	struct whole w = { .r = r, .t = k->first->t };
	int rc;

	r->at = k->first->who;
	memcpy(w.shape, w.t.shape, w.t.ndim * sizeof(*w.shape));
	w.t.alias_of = w.t.error = NULL;
	dcp_join_begin(&r->join);
	rc = add_parts(&w, k);
	w.t.shape = w.shape;
	if (rc == 0)
		rc = dcp_join_end(&r->join, &w.t, NULL, "no file holds them", &w.why);
	if (rc == -ENOMEM)
		return rc;
	w.t.error = w.why.code ? w.why.msg : NULL;
	if (!w.t.error && w.t.npieces) /* tied tensors have all their pieces in common */
		rc = dcp_places_find(&r->places, &w.t);
	return w.t.error || rc >= 0 ? dcp_emit_tensor(r->in->sink, &w.t) : rc;
}

/* ---- the family ---- */

static enum dcp_match probe_fairseq2(const struct dcp_dir *dir, char *why, size_t n)
{
	dcp_auto_dir struct dcp_dir model = { 0 };
	uint32_t number;

	if (!dcp_dir_has_dir(dir, "model") || dcp_dir_open_at(dir, "model", &model, NULL) < 0)
		return DCP_MATCH_NO;
	for (size_t i = 0; i < model.n; i++)
		if (is_rank(&model.entries[i], "pp_", false, &number))
			return DCP_MATCH_YES;
	return DCP_MATCH_NO;
}

/* Other directories of a step are not read. */
static int name_others(const struct dcp_load *in)
{
	int rc = 0;

	for (size_t i = 0; i < in->dir->n && rc == 0; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];
		size_t k = 0;

		while (k < DCP_LEN(trees) && strcmp(trees[k].name, e->name) != 0)
			k++;
		if (e->is_dir && k == DCP_LEN(trees))
			rc = dcp_emit_meta(in->sink, "left_out", e->name);
	}
	return rc;
}

static int load_fairseq2(const struct dcp_load *in, struct dcp_err *err)
{
	struct reading r = { .in = in, .of = { 1, 1, 1 } };
	int rc;

	dcp_copies_init(&r.parts);
	dcp_copies_init(&r.shards);
	rc = list_files(&r, err);
	if (rc == 0)
		rc = dcp_copies_read(&r.parts, in, DCP_NITEMS(r.files, struct file), read_file,
				     emit_broken, &r, err);
	for (uint32_t k = 0; k < r.parts.names.n && rc == 0; k++)
		rc = emit_key(&r, k);
	if (rc == 0)
		rc = dcp_copies_emit_all(&r.shards, in->sink,
					 r.parts.nbroken ? r.parts.broken.msg : NULL);
	if (rc == 0)
		rc = name_others(in);
	rc = dcp_emit_fact(in->sink, rc, "framework", "fairseq2");
	rc = dcp_emit_fact(in->sink, rc, "ranks", "%u pipeline, %u tensor-parallel, %u sharded",
			   r.of[0], r.of[1], r.of[2]);
	dcp_copies_finish(&r.parts);
	dcp_copies_finish(&r.shards);
	dcp_places_finish(&r.places);
	dcp_join_finish(&r.join);
	dcp_buf_finish(&r.files);
	dcp_buf_finish(&r.key);
	dcp_buf_finish(&r.path);
	return rc;
}

const struct dcp_format dcp_format_fairseq2 = {
	.name = "fairseq2",
	.what = "fairseq2",
	.probe = probe_fairseq2,
	.load = load_fairseq2,
};
