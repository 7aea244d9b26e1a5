/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One torch.save file for each rank, written by the rank.
 *
 *	checkpoint_<R>.pt                  torch.distributed.checkpoint._experimental
 *	<what>_world_size_<N>_rank_<R>.pt  verl, and others that train with FSDP
 *	<what>_rank<R>.pt, rank_<R>.pt     other programs: also .pth and .bin; Accelerate's
 *	                                   LOCAL_STATE_DICT is pytorch_model_fsdp_rank<R>.bin
 *	consolidated.<RR>.pth              Meta's Llama, whose tensors are joined below
 *
 * Files of different <what> are versions of their own. Nothing commits such a save, so a rank
 * whose file is missing makes it incomplete.
 *
 * Joining the ranks' files. A tensor that records which part of the whole it is (DTensor,
 * ShardedTensor) is emitted once, under its key, joined from the parts of all ranks; replicas count
 * once. The files do not tell how plain tensors and objects of different ranks are related, so
 * those of rank r are emitted below "rank<r>", keys and paths alike, even with a single rank. The
 * model of a single FSDP rank consists of whole tensors, which keep their names like the DTensors
 * of several ranks.
 *
 *	checkpoint_0.pt {"model": {"w": tensor}}    rank0.model.w, path rank0 / model / w
 *	checkpoint_0.pt {"model": {"w": DTensor}}   model.w
 *
 * A file that cannot be read is emitted as the object "rank<r>" with its error; tensors with a part
 * in the file are broken, and their errors name it.
 */
#include "core/format/torch/torch.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"

/*
 * Meta's Llama has a file for each rank. The files do not tell how tensors are cut, but the names
 * of fairscale's layers do.
 *
 *	ColumnParallelLinear      wq wk wv w1 w3 output        rows of the weight
 *	RowParallelLinear         wo w2                        columns
 *	VocabParallelEmbedding    tok_embeddings               rows, in Llama 3
 *	ParallelEmbedding         tok_embeddings               columns, in Llama 1 and 2: all rows, less wide than the model
 *	RMSNorm and rope.freqs                                 each rank has all of it
 */

enum cut { ROWS, COLUMNS, EMBEDDING, WHOLE };

static const struct {
	const char *key;
	enum cut cut;
} cuts[] = {
	{ "layers.*.attention.w[qkv].weight", ROWS },
	{ "layers.*.feed_forward.w[13].weight", ROWS },
	{ "output.weight", ROWS },
	{ "layers.*.attention.wo.weight", COLUMNS },
	{ "layers.*.feed_forward.w2.weight", COLUMNS },
	{ "tok_embeddings.weight", EMBEDDING },
	{ "layers.*.attention_norm.weight", WHOLE },
	{ "layers.*.ffn_norm.weight", WHOLE },
	{ "norm.weight", WHOLE },
	{ "rope.freqs", WHOLE },
};

/* Is it the name of a consolidated.<RR>.pth? */
static bool dcp_rank_is_meta(const struct dcp_rank_name *name)
{
	return name->len == 12 && strncmp(name->set, "consolidated.", 13) == 0;
}

/* Add the part that rank number @who holds of a matrix cut along @dim. */
static int add_part(struct dcp_meta *m, const struct dcp_tensor *t, uint32_t dim, uint32_t who,
		    const char *file)
{
	uint64_t shape[2], lo[2] = { 0 };
	struct dcp_tensor part = *t;
	struct dcp_piece piece;

	if (t->ndim != 2 || t->error)
		return dcp_copies_add(m->whole, t, who, file);
	memcpy(shape, t->shape, sizeof(shape));
	if (dcp_ckd_mul(&lo[dim], shape[dim], who) ||
	    dcp_ckd_mul(&shape[dim], shape[dim], m->nranks))
		return -E2BIG;
	part.shape = shape;
	if (t->npieces) {
		piece = t->pieces[0];
		piece.lo = lo;
		part.pieces = &piece;
	}
	return dcp_copies_add(m->whole, &part, who, file);
}

/* Add @t of rank number @who; its key lacks the rank. Returns 1 if Meta's ranks do not hold this
 * key, -ENOMEM, -E2BIG. */
static int dcp_meta_add(struct dcp_meta *m, const struct dcp_tensor *t, uint32_t who,
			const char *file)
{
	size_t i = 0;

	while (i < DCP_LEN(cuts) && fnmatch(cuts[i].key, t->key, 0) != 0)
		i++;
	if (i == DCP_LEN(cuts))
		return 1;
	if (strcmp(t->key, "norm.weight") == 0 && t->ndim == 1)
		m->width = t->shape[0];
	if (cuts[i].cut == EMBEDDING)
		return dcp_copies_add(&m->embeddings, t, who, file);
	if (cuts[i].cut == WHOLE)
		return dcp_copies_add(m->whole, t, who, file);
	return add_part(m, t, cuts[i].cut == COLUMNS, who, file);
}

/* Called after the last tensor. */
static int dcp_meta_end(struct dcp_meta *m)
{
	const struct dcp_copy *c =
		m->embeddings.names.n ? dcp_copies_at(&m->embeddings, 0)->first : NULL;
	int rc = 0;

	for (; c && rc == 0; c = c->next)
		rc = add_part(m, &c->t, c->t.ndim == 2 && c->t.shape[1] != m->width, c->who,
			      c->file);
	return rc;
}

enum { MAX_RANKS = 1 << 20 };

/* ---- names ---- */

/* Find the digits that end at @end, without leading zeros; NULL: none, or too many. */
static const char *number_before(const char *start, const char *end, uint64_t *out)
{
	const char *p = dcp_digits_before(start, end), *q = p;

	*out = 0;
	if ((*p == '0' && end - p > 1) || !dcp_take_number(&q, end, 7, out))
		return NULL;
	return p;
}

bool dcp_rank_name(const char *file, struct dcp_rank_name *out)
{
	static const char world[] = "_world_size_";
	const char *dot = strrchr(file, '.'), *end, *p;

	*out = (struct dcp_rank_name){ .set = file, .len = 12 };
	if (dcp_rank_is_meta(out)) {
		p = file + 13;
		return dcp_take_number(&p, NULL, 2, &out->rank) && p == file + 15 &&
		       strcmp(p, ".pth") == 0;
	}
	if (!dot || (strcmp(dot, ".pt") && strcmp(dot, ".pth") && strcmp(dot, ".bin")))
		return false;
	end = number_before(file, dot, &out->rank);
	if (!end || *file == '.')
		return false;
	if (dcp_ends_with(file, (size_t)(end - file), "rank_"))
		end -= 5;
	else if (dcp_ends_with(file, (size_t)(end - file), "rank"))
		end -= 4;
	else if (strncmp(file, "checkpoint_", 11) != 0 || end != file + 11)
		return false;
	/* Composer's ep1-ba6-rank0.pt are not parts of one state. */
	if (end > file && end[-1] != '_')
		return false;
	end -= end > file;
	p = number_before(file, end, &out->world);
	if (!p || !dcp_ends_with(file, (size_t)(p - file), world))
		out->world = 0;
	out->len = (size_t)(end - file);
	return out->world == 0 || out->rank < out->world;
}

static bool same_set(const struct dcp_rank_name *a, const struct dcp_rank_name *b)
{
	return a->len == b->len && memcmp(a->set, b->set, a->len) == 0;
}

/* ---- sets ---- */

struct set {
	struct dcp_rank_name first; /* any of its files */
	const char *file;           /* the name of that file */
	uint64_t most;              /* highest rank */
	size_t n, at;               /* how many, and the entry of the first */
	bool zero;                  /* rank 0 is there */
};

static void count_set(const struct dcp_dir *dir, struct set *s)
{
	struct dcp_rank_name name;

	for (size_t i = 0; i < dir->n; i++) {
		if (dir->entries[i].is_dir || !dcp_rank_name(dir->entries[i].name, &name) ||
		    !same_set(&name, &s->first))
			continue;
		if (s->n++ == 0)
			s->at = i;
		s->zero |= name.rank == 0;
		s->most = DCP_MAX(s->most, name.rank);
	}
}

/* Files are a set if their names tell the number of ranks, or if rank 0 is not alone; a
 * checkpoint_0.pt may be alone. */
static bool is_set(const struct set *s)
{
	return s->first.world ||
	       (s->zero && (s->n > 1 || strncmp(s->file, "checkpoint_", 11) == 0));
}

/* The next set at or after entry @*at; false: no more. */
static bool next_set(const struct dcp_dir *dir, size_t *at, struct set *s)
{
	for (; *at < dir->n; ++*at) {
		const struct dcp_dirent *e = &dir->entries[*at];
		struct dcp_rank_name before;

		*s = (struct set){ .file = e->name };
		if (e->is_dir || !dcp_rank_name(e->name, &s->first))
			continue;
		/* Names are sorted: files of a set are neighbours, with few exceptions. */
		if (*at > 0 && dcp_rank_name(dir->entries[*at - 1].name, &before) &&
		    same_set(&before, &s->first))
			continue;
		count_set(dir, s);
		if (s->at == *at && is_set(s)) {
			++*at;
			return true;
		}
	}
	return false;
}

static void say_missing(const struct dcp_dir *dir, const struct set *s, char *why, size_t n)
{
	uint64_t ranks = s->first.world ? s->first.world : s->most + 1;
	unsigned char *have = ranks <= MAX_RANKS ? calloc(ranks, 1) : NULL;
	size_t tail = strcspn(s->file + s->first.len, "0123456789");
	struct dcp_rank_name name;
	uint64_t r = 0;

	for (size_t i = 0; have && i < dir->n; i++)
		if (!dir->entries[i].is_dir && dcp_rank_name(dir->entries[i].name, &name) &&
		    same_set(&name, &s->first))
			have[name.rank] = 1;
	while (have && r < ranks && have[r])
		r++;
	snprintf(why, n,
		 "%.*s%0*" PRIu64 "%s is missing: the save was interrupted or is still running",
		 (int)DCP_MIN(s->first.len + tail, (size_t)200), s->file,
		 dcp_rank_is_meta(&s->first) ? 2 : 1, r, strrchr(s->file, '.'));
	free(have);
}

static enum dcp_match probe_ranks(const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = DCP_MATCH_NO;
	size_t at = 0, nsets = 0;
	struct set s;

	while (next_set(dir, &at, &s)) {
		uint64_t ranks = s.first.world ? s.first.world : s.most + 1;

		nsets++;
		if (s.n >= ranks && match == DCP_MATCH_NO)
			match = DCP_MATCH_YES;
		if (s.n >= ranks || match == DCP_MATCH_INCOMPLETE)
			continue;
		say_missing(dir, &s, why, n);
		match = DCP_MATCH_INCOMPLETE;
	}
	return nsets > 1 ? DCP_MATCH_MANY : match;
}

static bool group_by_set(const char *file, char *version)
{
	struct dcp_rank_name name;

	if (!dcp_rank_name(file, &name) || name.len >= DCP_GROUP_MAX)
		return false;
	memcpy(version, name.set, name.len);
	version[name.len] = '\0';
	if (name.len == 0)
		strcpy(version, "rank");
	return true;
}

/* ---- loading ---- */

struct rank_file {
	const char *file;
	struct dcp_rank_name name;
};

struct ranks {
	const struct dcp_load *in;
	struct rank_file *file; /* by rank */
	size_t n;
	struct dcp_copies shards;
	struct dcp_shard_parts parts; /* shards of tensors that consist of several */
	struct dcp_meta meta;
	size_t at;      /* the file that is read */
	size_t nprefix; /* components in front of its keys */
};

static int by_rank(const void *a, const void *b)
{
	const struct rank_file *x = a, *y = b;

	return DCP_CMP(x->name.rank, y->name.rank) ?: strcmp(x->file, y->file);
}

static int list_files(struct ranks *r)
{
	const struct dcp_dir *dir = r->in->dir;

	r->file = calloc(dir->n + 1, sizeof(*r->file));
	if (!r->file)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++) {
		struct rank_file *f = &r->file[r->n];

		f->file = dir->entries[i].name;
		r->n += !dir->entries[i].is_dir && dcp_rank_name(f->file, &f->name);
	}
	DCP_SORT(r->file, r->n, by_rank);
	return 0;
}

/* The tensor with the key of the whole model, without the rank. */
static struct dcp_tensor without_rank(const struct ranks *r, const struct dcp_tensor *emitted)
{
	struct dcp_tensor t = *emitted;

	/* The file is a single tensor without a name of its own. */
	if (t.npath == r->nprefix)
		return t;
	for (size_t i = 0; i < r->nprefix && i + 1 < t.npath; i++)
		t.key += strlen(emitted->path[i]) + 1;
	t.path += r->nprefix;
	t.npath -= r->nprefix;
	return t;
}

static int on_shard(void *ctx, const struct dcp_tensor *emitted)
{
	struct ranks *r = ctx;
	struct dcp_tensor t = without_rank(r, emitted);

	return dcp_copies_add(&r->shards, &t, (uint32_t)r->at, r->file[r->at].file);
}

static int on_meta(void *ctx, const struct dcp_tensor *emitted)
{
	struct ranks *r = ctx;
	struct dcp_tensor t = without_rank(r, emitted);
	int rc = dcp_meta_add(&r->meta, &t, (uint32_t)r->at, r->file[r->at].file);

	if (rc != 1)
		return rc;
	t = *emitted;
	t.alias_of = NULL; /* the tensor that it names may be joined, too */
	return r->in->sink->tensor(r->in->sink->ctx, &t);
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	const struct ranks *r = ctx;

	return r->in->sink->object(r->in->sink->ctx, o);
}

/* Returns 1 if the rank's file cannot be read, with the reason in @why. */
static int emit_rank(void *ctx, size_t at, struct dcp_err *why)
{
	struct ranks *r = ctx;
	const struct dcp_load *in = r->in;
	const struct rank_file *f = &r->file[at];
	char component[40];
	const char *prefix = component;
	struct dcp_sink meta = { .tensor = on_meta, .object = on_object, .ctx = r };
	struct dcp_torch_state s = { .sink = dcp_rank_is_meta(&f->name) ? &meta : in->sink,
				     .shard = on_shard,
				     .parts = &r->parts,
				     .who = (uint32_t)at,
				     .name = f->file,
				     .ctx = r };
	dcp_auto_torch struct dcp_torch *t = NULL;
	int rc;

	r->at = at;
	snprintf(component, sizeof(component), "rank%" PRIu64, f->name.rank);
	r->nprefix = f->name.world != 1 || strncmp(f->name.set, "model", 5) != 0;
	s.prefix = &prefix;
	s.nprefix = s.own = r->nprefix;
	rc = dcp_emit_file(in->sink, f->file, &s.file);
	if (rc < 0)
		return rc;
	rc = dcp_torch_open_file(in->dir, f->file, &t, why);
	if (rc == 0)
		rc = dcp_torch_state_check(t, f->file, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	s.t = t;
	return dcp_torch_state_emit(&s);
}

static int emit_broken(void *ctx, size_t at, const char *why)
{
	const struct ranks *r = ctx;
	char component[40];

	snprintf(component, sizeof(component), "rank%" PRIu64, r->file[at].name.rank);
	return dcp_emit_broken(r->in->sink, component, why);
}

static int load_ranks(const struct dcp_load *in, struct dcp_err *err)
{
	struct ranks r = { .in = in };
	int rc = list_files(&r);

	dcp_copies_init(&r.shards);
	dcp_shard_parts_init(&r.parts);
	dcp_copies_init(&r.meta.embeddings);
	r.meta.whole = &r.shards;
	r.meta.nranks = r.n;
	if (rc == 0)
		rc = dcp_copies_read(&r.shards, in, r.n, emit_rank, emit_broken, &r, err);
	if (rc == 0)
		rc = dcp_meta_end(&r.meta);
	if (rc == 0)
		rc = dcp_shard_parts_join(&r.parts, &r.shards, in->sink);
	if (rc == 0)
		rc = dcp_copies_emit_all(&r.shards, in->sink, NULL);
	rc = dcp_emit_fact(in->sink, rc, "framework", "torch");
	rc = dcp_emit_fact(in->sink, rc, "ranks", "%zu", r.n);
	dcp_copies_finish(&r.shards);
	dcp_shard_parts_finish(&r.parts);
	dcp_copies_finish(&r.meta.embeddings);
	free(r.file);
	return rc;
}

const struct dcp_format dcp_format_torch_ranks = {
	.name = "torch-ranks",
	.what = "one torch.save file a rank (FSDP, DCP _experimental)",
	.probe = probe_ranks,
	.group = group_by_set,
	.load = load_ranks,
};
