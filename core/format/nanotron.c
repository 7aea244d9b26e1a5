/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nanotron: a directory for each step, and in it a safetensors file for each parameter and rank.
 *
 *	10/model/model/decoder/0/pp_block/attn/qkv_proj/
 *	            model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors
 *	         .../input_layernorm/model_weight.safetensors      not cut
 *	   optimizer/ lr_scheduler/ random/ *.pt      torch.save, one a rank
 *	   checkpoint_metadata.json  model_config.json  config.yaml
 *
 * The directories are the modules' names: the key is model.decoder.0.pp_block.attn.qkv_proj.weight.
 * A file has the one tensor "data", and __metadata__ says which boxes of the whole it holds:
 *
 *	unsharded_shape            "(256, 64)"
 *	local_global_slices_pairs  "0,64,None|None,None,None#64,128,None|None,None,None;..."
 *
 * each pair is a box of the file's tensor and its place in the whole: start, stop and step of each
 * dimension. Ranks of experts are in the name, too (_exp-rank-0-of-2), and cut likewise. Keys of
 * the other directories begin with the names of directory and file. The fact "framework" tells the
 * rules of hf/ which order rotary embeddings have, as in model_config.json.
 *
 * Sources: parallel/parameters.py, serialize/weights.py, serialize/utils.py of 2024 to 2025.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/gather/join.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/parse/torch/torch.h"

enum { MAX_LEVELS = 24, MAX_CONFIG = 1 << 20 };

static const char begin[] = "model_", end[] = ".safetensors";

struct reading {
	const struct dcp_load *in;
	struct dcp_buf files;    /* const char *: of the model, in the arena of parts */
	struct dcp_copies parts; /* of the model */
	size_t at;               /* the file that is read */
	uint64_t ranks;          /* tensor-parallel */
};

/* ---- files ---- */

/* The number of ranks in the name @file, for @kind "_tp-rank-": "_tp-rank-1-of-2" gives 2. 0:
 * damaged. */
static uint64_t count_ranks(const char *file, const char *kind)
{
	const char *p = strstr(file, kind);
	uint64_t ranks = 1;

	if (!p)
		return 1;
	p = strstr(p, "-of-");
	p = p ? p + 4 : "";
	return dcp_take_number(&p, NULL, 6, &ranks) ? ranks : 0;
}

/* Parse "model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors": "weight", and 2 of @ranks. */
static bool is_parameter(const char *file, char name[NAME_MAX + 1], uint64_t *ranks)
{
	char *p;

	if (strncmp(file, begin, strlen(begin)) != 0 || !dcp_has_extension(file, end))
		return false;
	snprintf(name, NAME_MAX + 1, "%.*s", (int)(strlen(file) - strlen(begin) - strlen(end)),
		 file + strlen(begin));
	if (dcp_is_digit(*name)) /* the second model of a trainer */
		return false;
	p = strstr(name, "_pp-rank-");
	if (p)
		*p = '\0';
	*ranks = count_ranks(file, "_tp-rank-");
	return *ranks > 0;
}

static int add_files(struct reading *r, const struct dcp_dir *dir, const char *path,
		     unsigned level)
{
	int rc = 0;

	for (size_t i = 0; i < dir->n && rc == 0; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		dcp_auto_dir struct dcp_dir below = { 0 };
		struct dcp_err why = { .msg = "nests too deep" };
		char full[PATH_MAX], name[NAME_MAX + 1];
		const char *kept;
		uint64_t ranks;
		int n = snprintf(full, sizeof(full), "%s%s%s", path, e->name,
				 e->is_dir ? "/" : "");

		if (*e->name == '.' || n < 0 || (size_t)n >= sizeof(full))
			continue;
		if (e->is_dir && !e->is_link) {
			rc = level < MAX_LEVELS ? dcp_dir_open_at(dir, e->name, &below, &why)
						: -E2BIG;
			rc = rc == 0         ? add_files(r, &below, full, level + 1)
			     : rc == -ENOMEM ? rc
					     : dcp_emit_broken(r->in->sink, full, why.msg);
		} else if (!e->is_dir && is_parameter(e->name, name, &ranks)) {
			kept = dcp_arena_strdup(&r->parts.arena, full);
			rc = kept ? dcp_buf_add(&r->files, &kept, sizeof(kept)) : -ENOMEM;
			r->ranks = DCP_MAX(r->ranks, ranks);
		}
	}
	return rc;
}

/* ---- one file ---- */

/* Parse "64"; "None" gives @none. */
static bool take_bound(const char **p, uint64_t none, uint64_t *out)
{
	*out = none;
	if (strncmp(*p, "None", 4) == 0) {
		*p += 4;
		return true;
	}
	return dcp_take_number(p, NULL, 19, out);
}

/* Parse "0,64,None|None,None,None" of @ndim dimensions, each at most @shape, into @lo and @len. */
static bool take_slices(const char **p, uint32_t ndim, const uint64_t *shape, uint64_t *lo,
			uint64_t *len)
{
	for (uint32_t k = 0; k < ndim; k++) {
		uint64_t stop, step;

		if (k && *(*p)++ != '|')
			return false;
		if (!take_bound(p, 0, &lo[k]) || *(*p)++ != ',' ||
		    !take_bound(p, shape[k], &stop) || *(*p)++ != ',' ||
		    !take_bound(p, 1, &step) || step != 1 || lo[k] > stop || stop > shape[k])
			return false;
		len[k] = stop - lo[k];
	}
	return true;
}

/* Parse "(256, 64)" or "(256,)"; numpy 2 writes its numbers as "np.int64(256)". */
static bool read_shape(const char *s, uint32_t ndim, uint64_t *shape)
{
	if (*s++ != '(')
		return false;
	for (uint32_t k = 0; k < ndim; k++) {
		s += strspn(s, ", )");
		dcp_take_text(&s, "np.int64(");
		if (!dcp_take_number(&s, NULL, 19, &shape[k]))
			return false;
	}
	return strspn(s, ", )") == strlen(s);
}

/* Add the boxes of the whole that the file has of @t, whose shape is the file's. */
static int add_boxes(struct reading *r, const struct dcp_safetensors *st, struct dcp_tensor *t,
		     const struct dcp_piece *all)
{
	struct dcp_arena *arena = &r->parts.arena;
	const char *pairs = dcp_safetensors_meta(st, "local_global_slices_pairs");
	const char *whole = dcp_safetensors_meta(st, "unsharded_shape");
	const uint64_t *own = t->shape;
	uint64_t *shape = dcp_arena_calloc(arena, t->ndim + 1u, sizeof(*shape));
	const char *file = DCP_ITEMS(r->files, const char *)[r->at];
	int rc = shape ? 0 : -ENOMEM;

	if (rc == 0 && !read_shape(whole, t->ndim, shape)) {
		t->error = "its unsharded_shape is damaged";
		return dcp_copies_add(&r->parts, t, (uint32_t)r->at, file);
	}
	t->shape = shape;
	while (rc == 0) {
		uint64_t *at = dcp_arena_calloc(arena, 4 * t->ndim + 1u, sizeof(*at));
		struct dcp_torch_placement_box box = { at, at + t->ndim, at + 2 * t->ndim };
		struct dcp_piece p = *all;
		uint64_t *len = at + 3 * t->ndim;

		if (!at)
			return -ENOMEM;
		if (!take_slices(&pairs, t->ndim, own, at + t->ndim, len) || *pairs++ != '#' ||
		    !take_slices(&pairs, t->ndim, shape, at, at + 2 * t->ndim) ||
		    memcmp(len, box.len, t->ndim * sizeof(*len)) != 0 ||
		    (*pairs && *pairs != ';'))
			t->error = "its local_global_slices_pairs are damaged";
		else if (dcp_torch_placement_piece(&box, t->ndim, own, NULL, t->itemsize, arena,
						   &p) < 0)
			t->error = "its local_global_slices_pairs are too large";
		t->pieces = &p;
		t->npieces = !t->error;
		rc = dcp_copies_add(&r->parts, t, (uint32_t)r->at, file);
		if (t->error || !*pairs++)
			break;
	}
	return rc;
}

/* Add @entry as a tensor whose key follows from the place of the file. */
static int add_entry(struct reading *r, const struct dcp_safetensors *st,
		     const struct dcp_safetensors_entry *e, uint32_t number)
{
	const char *file = DCP_ITEMS(r->files, const char *)[r->at];
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	char name[NAME_MAX + 1];
	const char *dir = strchr(file, '/') + 1, *last = strrchr(file, '/') + 1;
	uint64_t zero[DCP_MAX_NDIM] = { 0 }, ranks = 1;
	struct dcp_piece p = {
		.lo = zero, .len = e->shape, .off = e->off, .nbytes = e->nbytes, .file = number
	};
	struct dcp_tensor t = {
		.dtype = e->dtype,
		.dtype_name = e->dtype_name,
		.itemsize = e->itemsize,
		.ndim = e->ndim,
		.shape = e->shape,
		.pieces = &p,
		.npieces = 1,
	};
	bool data = strcmp(e->name, "data") == 0;
	const char *path[MAX_LEVELS + 3];
	char *text;

	is_parameter(last, name, &ranks);
	dcp_buf_printf(&key, "%.*s%s", (int)(last - dir), dir, name);
	text = key.p ? dcp_arena_strdup(&r->parts.arena, key.p) : NULL;
	if (!text)
		return -ENOMEM;
	while (text)
		path[t.npath++] = strsep(&text, "/");
	for (char *s = key.p; *s; s++)
		*s = *s == '/' ? '.' : *s;
	if (!data) {
		path[t.npath++] = e->name;
		dcp_buf_printf(&key, ".%s", e->name);
	}
	if (dcp_buf_error(&key))
		return -ENOMEM;
	t.path = path;
	t.key = key.p;
	p.run_n = e->itemsize ? e->nbytes / e->itemsize : 0;
	if (data && dcp_safetensors_meta(st, "local_global_slices_pairs") &&
	    dcp_safetensors_meta(st, "unsharded_shape"))
		return add_boxes(r, st, &t, &p);
	if (data && (ranks > 1 || count_ranks(last, "_exp-rank-") != 1))
		t.error = "it does not say which part of the whole it is "
			  "(local_global_slices_pairs)";
	return dcp_copies_add(&r->parts, &t, (uint32_t)r->at, file);
}

static int read_file(void *ctx, size_t at, struct dcp_err *why)
{
	struct reading *r = ctx;
	const char *file = DCP_ITEMS(r->files, const char *)[at];
	dcp_auto_input struct dcp_input input = { 0 };
	struct dcp_safetensors st = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(r->in->sink, file, &number);

	if (rc < 0)
		return rc;
	r->at = at;
	dcp_load_progress(r->in, at, DCP_NITEMS(r->files, const char *), "files");
	rc = dcp_dir_input(r->in->dir, file, &input, why);
	if (rc == 0)
		rc = dcp_safetensors_read(&input.src, &r->parts.arena, &st, why);
	if (rc < 0 && rc != -ENOMEM)
		dcp_err_where(why, rc, "%s", file);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	for (size_t i = 0; i < st.n && rc == 0; i++)
		rc = add_entry(r, &st, &st.entries[i], number);
	return rc;
}

static int emit_broken(void *ctx, size_t at, const char *why)
{
	const struct reading *r = ctx;

	return dcp_emit_broken(r->in->sink, DCP_ITEMS(r->files, const char *)[at], why);
}

/* ---- what lies beside the model ---- */

/* Emit a file of torch.save below the names of its directory and itself. */
static int emit_state(const struct reading *r, const char *dir, const char *file)
{
	char full[PATH_MAX], stem[NAME_MAX + 1];
	const char *path[] = { dir, stem };
	struct dcp_torch_state s = {
		.sink = r->in->sink, .prefix = path, .nprefix = 2, .tuples = true
	};
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_err why = { 0 };
	int rc;

	snprintf(full, sizeof(full), "%s/%s", dir, file);
	snprintf(stem, sizeof(stem), "%.*s", (int)dcp_stem(file), file);
	rc = dcp_emit_file(r->in->sink, full, &s.file);
	if (rc < 0)
		return rc;
	rc = dcp_torch_open_file(r->in->dir, full, &t, &why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : dcp_emit_broken(r->in->sink, full, why.msg);
	s.t = t;
	return dcp_torch_state_emit(&s);
}

static int emit_states(const struct reading *r)
{
	static const char *const dirs[] = { "optimizer", "lr_scheduler", "random" };
	int rc = 0;

	for (size_t i = 0; i < DCP_LEN(dirs) && rc == 0; i++) {
		dcp_auto_dir struct dcp_dir dir = { 0 };

		if (!dcp_dir_has_dir(r->in->dir, dirs[i]) ||
		    dcp_dir_open_at(r->in->dir, dirs[i], &dir, NULL) < 0)
			continue;
		for (size_t k = 0; k < dir.n && rc == 0; k++)
			if (!dir.entries[k].is_dir &&
			    dcp_has_extension(dir.entries[k].name, ".pt"))
				rc = emit_state(r, dirs[i], dir.entries[k].name);
	}
	return rc;
}

/* Before this option existed, rotary embeddings were interleaved. */
static const char *name_framework(const struct reading *r)
{
	dcp_auto_input struct dcp_input input = { 0 };
	dcp_auto_json struct dcp_json *config = NULL;
	const struct dcp_json *said;
	int interleaved = true;

	if (dcp_dir_input(r->in->dir, "model_config.json", &input, NULL) < 0 ||
	    dcp_json_read(&input.src, MAX_CONFIG, NULL, &config, NULL) < 0)
		return "nanotron of unknown rotary order";
	said = dcp_json_get(config, "rope_interleaved");
	if (said && !dcp_json_bool(said, &interleaved))
		interleaved = true;
	return interleaved ? "nanotron-interleaved" : "nanotron";
}

/* ---- the family ---- */

/* Are there directories of modules with a parameter file in the first of them, at any depth? */
static bool holds_modules(const struct dcp_dir *dir, unsigned level)
{
	char name[NAME_MAX + 1];
	uint64_t ranks;

	for (size_t i = 0; i < dir->n && level > 0; i++)
		if (!dir->entries[i].is_dir && is_parameter(dir->entries[i].name, name, &ranks))
			return true;
	for (size_t i = 0; i < dir->n && level < MAX_LEVELS; i++) {
		dcp_auto_dir struct dcp_dir below = { 0 };

		if (*dir->entries[i].name == '.')
			continue;
		if (dir->entries[i].is_dir && !dir->entries[i].is_link)
			return dcp_dir_open_at(dir, dir->entries[i].name, &below, NULL) == 0 &&
			       holds_modules(&below, level + 1);
		if (level == 0)
			return false;
	}
	return false;
}

static enum dcp_match probe_nanotron(const struct dcp_dir *dir, char *why, size_t n)
{
	dcp_auto_dir struct dcp_dir model = { 0 };

	return dcp_dir_has_dir(dir, "model") &&
			       dcp_dir_open_at(dir, "model", &model, NULL) == 0 &&
			       holds_modules(&model, 0)
		       ? DCP_MATCH_YES
		       : DCP_MATCH_NO;
}

static int load_nanotron(const struct dcp_load *in, struct dcp_err *err)
{
	struct reading r = { .in = in, .ranks = 1 };
	dcp_auto_dir struct dcp_dir model = { 0 };
	int rc;

	dcp_copies_init(&r.parts);
	rc = dcp_dir_open_at(in->dir, "model", &model, err);
	if (rc == 0)
		rc = add_files(&r, &model, "model/", 0);
	if (rc == 0)
		rc = dcp_copies_read(&r.parts, in, DCP_NITEMS(r.files, const char *), read_file,
				     emit_broken, &r, err);
	if (rc == 0)
		rc = dcp_copies_emit_all(&r.parts, in->sink,
					 "a file of another tensor-parallel rank is missing");
	if (rc == 0)
		rc = emit_states(&r);
	rc = dcp_emit_fact(in->sink, rc, "framework", "%s", name_framework(&r));
	rc = dcp_emit_fact(in->sink, rc, "ranks", "%llu tensor-parallel",
			   (unsigned long long)r.ranks);
	dcp_copies_finish(&r.parts);
	dcp_buf_finish(&r.files);
	return rc;
}

const struct dcp_format dcp_format_nanotron = {
	.name = "nanotron",
	.what = "nanotron",
	.probe = probe_nanotron,
	.load = load_nanotron,
};
