/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-LM's own checkpoints, one directory for each model-parallel rank:
 *
 *	mp_rank_<TT>[_<PPP>][_<EEE>]/model_optim_rng.pt     see grid.c
 *	mp_rank_.../distrib_optim.pt                        flat buffers without names
 *
 * The model's tensors are joined (join.c): their keys lose "model" and "language_model", and layers
 * get their numbers in the whole model. All other entries are emitted from the first rank's file.
 * If another rank's entry differs, it is emitted below the name of that rank's directory:
 *
 *	args, iteration, rng_state, optimizer ...           of mp_rank_00_000
 *	mp_rank_01_000.rng_state ...                        where it differs
 *
 * If a file is missing, the keys that need it are broken. A version is committed by the file
 * latest_checkpointed_iteration.txt, which lies beside the versions.
 */
#include "core/format/megatron/megatron_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/intern.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"

/* Reading the files of mp_rank directories one after another: the model's tensors are kept, to be
 * joined later; everything else is emitted at once. */

enum { MAX_LOST = 256 }; /* missing ranks that are named one by one */

/* One file while it is emitted. */
struct emitter {
	struct dcp_megatron_legacy *m;
	uint32_t who;
	size_t nprefix;           /* components in front of its keys */
	struct dcp_intern *known; /* objects of the first rank: key NUL JSON */
	struct dcp_buf text;
};

/* Is @path that of a tensor or object of the model? @chunk: the model chunk of an interleaved
 * pipeline. */
static bool is_model(const struct emitter *w, const char *const *path, size_t npath,
		     uint32_t *chunk)
{
	const char *number;
	uint64_t n = 0;

	*chunk = 0;
	if (npath <= w->nprefix + 1 || strncmp(path[w->nprefix], "model", 5) != 0)
		return false;
	number = path[w->nprefix] + 5;
	if (*number && (!dcp_take_number(&number, NULL, 5, &n) || *number))
		return false;
	*chunk = (uint32_t)n; /* "model" alone: 0 */
	return true;
}

static int keep_model(struct emitter *w, const struct dcp_tensor *t, uint32_t chunk)
{
	size_t skip = w->nprefix + 1;
	const char *key = t->key;

	if (t->npath > skip + 1 && strcmp(t->path[skip], "language_model") == 0)
		skip++;
	for (size_t i = 0; i < skip; i++)
		key += strlen(t->path[i]) + 1;
	return dcp_megatron_legacy_keep(w->m, t, key, chunk, w->who);
}

static int on_tensor(void *ctx, const struct dcp_tensor *emitted)
{
	struct emitter *w = ctx;
	struct dcp_tensor t = *emitted;
	uint32_t chunk;

	if (is_model(w, t.path, t.npath, &chunk))
		return keep_model(w, emitted, chunk);
	t.alias_of = NULL; /* it may name a tensor of the model, whose key changes */
	return dcp_emit_tensor(w->m->in->sink, &t);
}

/* Emit all objects of the first rank, and those of other ranks that differ from it, compared byte
 * for byte. */
static int on_object(void *ctx, const struct dcp_object *o)
{
	struct emitter *w = ctx;
	const char *key = o->key;
	int rc = 0;

	for (size_t i = 0; i < w->nprefix && i + 1 < o->npath; i++)
		key += strlen(o->path[i]) + 1;
	dcp_buf_reset(&w->text);
	dcp_buf_add(&w->text, key, strlen(key) + 1);
	if (dcp_buf_add(&w->text, o->json, o->json ? o->json_len : 0) < 0)
		return -ENOMEM;
	if (w->nprefix == 0)
		rc = dcp_intern_add(w->known, w->text.p, w->text.n, DCP_INTERN_NONE, NULL);
	else if (o->json && dcp_intern_find(w->known, w->text.p, w->text.n) != DCP_INTERN_NONE)
		return 0;
	return rc < 0 ? rc : dcp_emit_object(w->m->in->sink, o);
}

/* Emit one file. Returns 1 when the file cannot be read, with the reason in @why. @first: the file
 * is the first one, so its keys get no prefix, and its arguments count for the run. */
static int emit_file(struct emitter *w, const char *dir, const char *name, const char *stem,
		     bool first, struct dcp_err *why)
{
	const struct dcp_load *in = w->m->in;
	const char *prefix[] = { dir, stem };
	struct dcp_sink sink = {
		.tensor = on_tensor, .object = on_object, .ctx = w, .next = in->sink
	};
	struct dcp_torch_state s = { .sink = &sink,
				     .prefix = prefix,
				     .nprefix = first  ? 0
						: stem ? 2
						       : 1 };
	char path[512];
	dcp_auto_torch struct dcp_torch *t = NULL;
	int rc;

	snprintf(path, sizeof(path), "%.250s/%.250s", dir, name);
	w->nprefix = s.nprefix;
	rc = dcp_emit_file(in->sink, path, &s.file);
	if (rc < 0)
		return rc;
	rc = dcp_torch_open_file(in->dir, path, &t, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	s.t = t;
	return dcp_torch_state_emit(&s);
}

/* Emit a file that cannot be read, as the broken object "<dir>.<stem>". */
static int emit_broken(struct emitter *w, const char *dir, const char *stem, const char *why)
{
	const char *const path[] = { dir, stem };
	const struct dcp_object o = { .path = path, .npath = 2, .type = "", .error = why };

	return dcp_emit_object(w->m->in->sink, &o);
}

/* Emit the other files of a directory (distrib_optim.pt, optim.pt, layer_wise_optimizer_0.pt, ...)
 * below the directory's name: flat buffers and lists whose order only the program knew. */
static int emit_others(struct emitter *w, const struct dcp_megatron_rank *r)
{
	dcp_auto_dir struct dcp_dir below = { 0 };
	int rc = 0;

	if (dcp_dir_open_at(w->m->in->dir, r->dir, &below, NULL) < 0)
		return 0;
	for (size_t i = 0; i < below.n && rc == 0; i++) {
		const char *name = below.entries[i].name, *dot = strrchr(name, '.');
		struct dcp_err why = { 0 };
		char stem[256];

		if (below.entries[i].is_dir || !dot || strcmp(dot, ".pt") != 0 ||
		    (r->file && strcmp(name, r->file) == 0))
			continue;
		snprintf(stem, sizeof(stem), "%.*s", (int)(dot - name), name);
		rc = emit_file(w, r->dir, name, stem, false, &why);
		if (rc == 1)
			rc = emit_broken(w, r->dir, stem, why.msg);
	}
	return rc;
}

/* Emit a directory that should be there, but is missing, as a broken object. */
static int emit_missing(const struct dcp_megatron_legacy *m, uint32_t tp, uint32_t pp,
			uint32_t ep)
{
	char dir[DCP_MEGATRON_DIR], why[256];

	dcp_megatron_legacy_dir(m, tp, pp, ep, dir);
	snprintf(why, sizeof(why),
		 "%s/%s is missing: expected %u tensor, %u pipeline and %u expert parallel "
		 "ranks",
		 dir, m->file, m->tp, m->pp, m->ep);
	return dcp_emit_broken(m->in->sink, dir, why);
}

/* Emit as broken objects the directories whose state is missing or cannot be read: it is not known
 * which keys only they have. */
static int emit_all_lost(const struct dcp_megatron_legacy *m)
{
	unsigned left = MAX_LOST;
	uint32_t first, step;
	int rc = 0;

	for (size_t i = 0; i < m->n && rc == 0; i++)
		if (m->rank[i].error)
			rc = dcp_emit_broken(m->in->sink, m->rank[i].dir, m->rank[i].error);
	for (uint32_t t = 0; t < m->tp && left > 0 && rc == 0; t++) {
		dcp_megatron_legacy_expected(m, t, &first, &step);
		for (uint32_t p = 0; p < m->pp && left > 0 && rc == 0; p++)
			for (uint32_t e = first; e < m->ep && left > 0 && rc == 0; e += step) {
				if (dcp_megatron_legacy_rank(m, t, p, e, DCP_MEGATRON_ANY))
					continue;
				rc = emit_missing(m, t, p, e);
				left--;
			}
	}
	return rc;
}

/* Emit the state of rank number @i. If its file cannot be read, the reason is kept in the rank. */
static int emit_state(struct emitter *w, size_t i, bool first)
{
	struct dcp_megatron_legacy *m = w->m;
	struct dcp_megatron_rank *r = &m->rank[i];
	struct dcp_err why = { 0 };
	int rc;

	w->who = (uint32_t)i;
	rc = emit_file(w, r->dir, r->file, NULL, first, &why);
	if (rc != 1)
		return rc;
	r->error = dcp_arena_strdup(&m->model.arena, why.msg);
	return r->error ? 0 : -ENOMEM;
}

/* Read the files of all ranks; those before number @first cannot be read. */
static int dcp_megatron_legacy_emit_ranks(struct dcp_megatron_legacy *m, size_t first)
{
	struct dcp_intern known = { 0 };
	struct emitter w = { .m = m, .known = &known };
	int rc = 0;

	/* The first readable rank is read before others, which are compared with it. */
	for (size_t i = 0; i < m->n && rc == 0; i++) {
		if (i >= first && m->rank[i].file)
			rc = emit_state(&w, i, i == first);
		if (rc == 0)
			rc = emit_others(&w, &m->rank[i]);
	}
	if (rc == 0)
		rc = emit_all_lost(m);
	dcp_intern_finish(&known);
	dcp_buf_finish(&w.text);
	return rc;
}

enum { MAX_RULES = 1 << 20 };

static enum dcp_match probe_legacy(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_megatron_rank r;

	for (size_t i = 0; i < dir->n; i++) {
		dcp_auto_dir struct dcp_dir below = { 0 };
		bool found;

		if (!dir->entries[i].is_dir ||
		    !dcp_megatron_rank_parse(dir->entries[i].name, &r) ||
		    dcp_dir_open_at(dir, dir->entries[i].name, &below, NULL) < 0)
			continue;
		found = dcp_megatron_rank_file(&below) != NULL;
		if (found)
			return DCP_MATCH_YES;
	}
	return DCP_MATCH_NO;
}

/* Read the arguments in the file of rank @r. Returns 1 when the file cannot be read, with the
 * reason in @why. */
static int read_args(struct dcp_megatron_legacy *m, const struct dcp_megatron_rank *r,
		     struct dcp_err *why)
{
	dcp_auto_torch struct dcp_torch *t = NULL;
	char path[512];
	int rc;

	snprintf(path, sizeof(path), "%.250s/%.250s", r->dir, r->file);
	rc = dcp_torch_open_file(m->in->dir, path, &t, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	dcp_megatron_legacy_read_args(m, dcp_torch_root(t));
	return 0;
}

/* Read the arguments from the first readable file, before any file is emitted: every file has
 * them. */
static int find_args(struct dcp_megatron_legacy *m, size_t *first, struct dcp_err *err)
{
	struct dcp_err last = { 0 };

	for (*first = 0; *first < m->n; ++*first) {
		struct dcp_megatron_rank *r = &m->rank[*first];
		struct dcp_err why = { 0 };
		int rc;

		if (!r->file)
			continue;
		rc = read_args(m, r, &why);
		if (rc <= 0)
			return rc;
		r->error = dcp_arena_strdup(&m->model.arena, why.msg);
		if (!r->error)
			return -ENOMEM;
		last = last.code ? last : why;
	}
	return dcp_err_give(err, &last, last.code ? last.code : -ENOENT);
}

static int read_rules(struct dcp_megatron_legacy *m, struct dcp_err *err)
{
	dcp_auto_free char *text = NULL;
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc;

	if (!dcp_dir_find(m->in->dir, DCP_MEGATRON_RULES))
		return 0;
	rc = dcp_emit_file(m->in->sink, DCP_MEGATRON_RULES, &number);
	if (rc == 0)
		rc = dcp_dir_input(m->in->dir, DCP_MEGATRON_RULES, &input, err);
	if (rc < 0)
		return rc;
	if (input.src.size > MAX_RULES)
		rc = dcp_fail(err, -E2BIG, DCP_MEGATRON_RULES " is too long");
	else
		text = malloc((size_t)input.src.size + 1);
	if (rc == 0)
		rc = text ? dcp_source_read(&input.src, 0, text, (size_t)input.src.size)
			  : -ENOMEM;
	if (rc == 0)
		rc = dcp_megatron_rules_parse(&m->rules, text, (size_t)input.src.size, err);
	return rc;
}

static int emit_facts(struct dcp_megatron_legacy *m)
{
	const struct dcp_sink *sink = m->in->sink;
	int rc = dcp_emit_fact(sink, 0, "framework", "megatron-lm");

	rc = dcp_emit_fact(sink, rc, "ranks", "%zu", m->n);
	if (m->etp == m->tp)
		rc = dcp_emit_fact(sink, rc, "parallel", "tp=%u pp=%u ep=%u", m->tp, m->pp,
				   m->ep);
	else
		rc = dcp_emit_fact(sink, rc, "parallel", "tp=%u pp=%u ep=%u etp=%u", m->tp,
				   m->pp, m->ep, m->etp);
	if (m->old_order)
		rc = dcp_emit_fact(sink, rc, "query_key_value", "%s",
				   m->version == 0   ? "parts_first"
				   : m->version == 1 ? "parts_last"
						     : "unknown");
	if (m->ninferred == 0)
		return rc;
	return dcp_emit_fact(
		sink, rc, "inferred",
		"how tensor-parallel ranks hold %zu of the tensors is not recorded: it was "
		"inferred from their names; rules in " DCP_MEGATRON_RULES " override it",
		m->ninferred);
}

static int load_legacy(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_megatron_legacy m = { .in = in };
	size_t first = 0;
	int rc = dcp_megatron_legacy_list(&m);

	dcp_copies_init(&m.model);
	if (rc == 0)
		rc = read_rules(&m, err);
	if (rc == 0)
		rc = find_args(&m, &first, err);
	if (rc == 0)
		rc = dcp_megatron_legacy_place(&m, err);
	if (rc == 0)
		rc = dcp_megatron_legacy_emit_ranks(&m, first);
	if (rc == 0)
		rc = dcp_megatron_legacy_emit_model(&m, err);
	if (rc == 0)
		rc = emit_facts(&m);
	if (rc == -ENOMEM)
		dcp_fail(err, rc, "out of memory for the model's tensors");
	dcp_copies_finish(&m.model);
	dcp_megatron_rules_finish(&m.rules);
	free(m.rank);
	return rc;
}

const struct dcp_format dcp_format_megatron_legacy = {
	.name = "megatron-legacy",
	.what = "Megatron-LM mp_rank directories",
	.probe = probe_legacy,
	.load = load_legacy,
	.marks =
		(const struct dcp_mark[]){
			{ "latest_checkpointed_iteration.txt",
			  "a Megatron-LM run without its iterations" },
			{ "mp_rank*(_+([0-9]))",
			  "a Megatron-LM checkpoint without model_optim_rng.pt" },
			{ 0 },
		},
};
