/* SPDX-License-Identifier: Apache-2.0 */
/* The names by which parts of a version are known. */
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/formats.h"
#include "core/format/nest/relay.h"
#include "core/format/parts/parts.h"
#include "core/format/weights/name.h"
#include "core/model/name.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"
#include "core/parse/json.h"

/* clang-format off */
/* Directories that are parts. A single directory with @alone is a version by itself, since other
 * programs do not use its name. */
static const struct {
	const char *glob;
	bool alone;
	enum dcp_part_role role;
} directories[] = {
	{ "pytorch_model_fsdp_[0-9]*", true, DCP_PART_MODEL },
	{ "pytorch_model_[0-9]*", true, DCP_PART_MODEL },
	{ "pytorch_model", true, DCP_PART_MODEL }, /* Accelerate's, of DeepSpeed */
	{ "global_step[0-9]*", false, DCP_PART_STATE }, /* DeepSpeed's, of a Trainer; see parts.c */
	{ "optimizer_[0-9]*", false, DCP_PART_STATE },
	{ "actor", true, DCP_PART_MODEL },
	{ "critic", true, DCP_PART_MODEL },
	{ "weights", true, DCP_PART_MODEL }, /* NeMo's, beside context/ */
	{ "model_weights", true, DCP_PART_MODEL }, /* beside model_config.yaml, unpacked or in a .nemo */
	{ "tp_rank_[0-9]*", true, DCP_PART_STATE }, /* NeMo's before that: model_weights.ckpt of each rank */
	{ "mp_rank_[0-9]*", true, DCP_PART_STATE }, /* the same without pipeline stages, unless the files are Megatron's or DeepSpeed's */
	{ "dist_ckpt", true, DCP_PART_MODEL },
	{ "modeling", true, DCP_PART_MODEL }, /* ColossalAI's, beside optimizer/ */
	{ "model", false, DCP_PART_MODEL },
	{ "optimizer", false, DCP_PART_STATE },
	{ "optim", false, DCP_PART_STATE },
	{ "lr_scheduler", false, DCP_PART_STATE },
	{ "scheduler", false, DCP_PART_STATE },
	{ "extra_state", false, DCP_PART_STATE },
	{ "train_state", false, DCP_PART_STATE },
	{ "recipe_state", false, DCP_PART_STATE },
	{ "dataloader", false, DCP_PART_STATE },
	{ "huggingface", false, DCP_PART_STATE },
};

/* Files that are parts. A state file makes the files beside it one version; other files join such a
 * version. */
static const struct {
	const char *glob;
	bool state;
} files[] = {
	{ "optimizer.pt", true },
	{ "optimizer.bin", true },
	{ "optimizer_[0-9]*.bin", true },
	{ "optim.pt", true },
	{ "optimizer_state.pt", true },
	{ "scheduler.pt", true },
	{ "scheduler.bin", true },
	{ "scheduler_[0-9]*.bin", true },
	{ "lr_scheduler.pt", true },
	{ "lr_scheduler", true }, /* ColossalAI's */
	{ "scaler.pt", true },
	{ "rng_state.pth", true },
	{ "rng_state_[0-9]*.pth", true },
	{ "random_states_[0-9]*.pkl", true },
	{ "sampler.bin", true },
	{ "sampler_[0-9]*.bin", true },
	{ "dl_state_dict.bin", true },
	{ "dl_state_dict_[0-9]*.bin", true },
	{ "custom_checkpoint_[0-9]*.pkl", true },
	{ "dataloader.pt", true },
	{ "dataloader_[0-9]*.pt", true },
	{ "data.pt", true },
	{ "meta.pt", true },
	{ "common.pt", true },
	{ "extra_state.pt", true },
	{ "train_state.pt", true },
	{ "trainer_state.pt", true },
	{ "training_state.pt", true },
	{ "recipe_state.pt", true },
	{ "client_state.pt", true },
	{ "training_args.bin", false },
	{ "trainer_state.json", false },
};

/* Files that hold a model when they lie beside parts; other .pt files are versions. */
static const char *const models[] = {
	"model.pt",          "model.pth",           "model.bin",
	"pytorch_model.bin", "pytorch_model_*.bin", "adapter_model.bin",
	"adapter_model.pt",  "weights.pt",        "model_state", /* PaddleNLP's */
};

/* clang-format on */

static bool matches_glob(const char *glob, const char *name)
{
	return fnmatch(glob, name, FNM_PERIOD) == 0;
}

bool dcp_parts_is_file(const struct dcp_dirent *e, bool *state)
{
	for (size_t i = 0; !e->is_dir && i < DCP_LEN(files); i++)
		if (matches_glob(files[i].glob, e->name)) {
			*state = files[i].state;
			return true;
		}
	return false;
}

bool dcp_parts_is_dir(const struct dcp_dirent *e, bool *alone, enum dcp_part_role *role)
{
	for (size_t i = 0; e->is_dir && i < DCP_LEN(directories); i++)
		if (matches_glob(directories[i].glob, e->name)) {
			*alone = directories[i].alone;
			if (role)
				*role = directories[i].role;
			return true;
		}
	return false;
}

bool dcp_parts_may_be_role(const struct dcp_dirent *e)
{
	static const char *const saves[] = { "best*", "last*", "final*", "latest*" };
	bool unused;

	for (size_t i = 0; i < DCP_LEN(saves); i++)
		if (matches_glob(saves[i], e->name))
			return false;
	return e->is_dir && !e->is_link && *e->name != '.' && !dcp_order_is_save(e->name) &&
	       !dcp_parts_is_dir(e, &unused, NULL);
}

enum dcp_parts_home dcp_parts_home(const struct dcp_dir *dir)
{
	static const struct {
		const char *glob;
		enum dcp_parts_home home;
	} homes[] = {
		{ "model_index.json", DCP_HOME_PIPELINE },
		{ "modules.json", DCP_HOME_MODULES },
		{ "random_states_[0-9]*.pkl", DCP_HOME_STATES },
		{ "rng_state*.pth", DCP_HOME_STATES },
		{ "adapter_config.json", DCP_HOME_ADAPTER },
	};

	for (size_t h = 0; h < DCP_LEN(homes); h++)
		for (size_t i = 0; i < dir->n; i++)
			if (!dir->entries[i].is_dir &&
			    matches_glob(homes[h].glob, dir->entries[i].name))
				return homes[h].home;
	return DCP_HOME_NONE;
}

bool dcp_parts_is_hf(const struct dcp_format *format)
{
	return format == &dcp_format_torch_hf || format == &dcp_format_torch_bin;
}

bool dcp_parts_is_model(const char *name)
{
	for (size_t i = 0; i < DCP_LEN(models); i++)
		if (matches_glob(models[i], name))
			return true;
	return false;
}

enum dcp_part_role dcp_parts_role(const char *group)
{
	static const char *const states[] = {
		"optim*", "pytorch_optim*", "extra_state*", "*scheduler*",
		"rng*",   "random_states*", "dataloader*",  "*train*_state*",
	};

	for (size_t i = 0; i < DCP_LEN(states); i++)
		if (matches_glob(states[i], group))
			return DCP_PART_STATE;
	return DCP_PART_MODEL;
}

/* The list of parts, and JSON files, the only kind of part that is not a family. */

enum { MAX_JSON = 64 << 20 };

/* ---- the list ---- */

void dcp_parts_init(struct dcp_parts *p, unsigned depth)
{
	*p = (struct dcp_parts){ .depth = depth };
	dcp_arena_init(&p->arena, 256u << 20);
}

size_t dcp_parts_n(const struct dcp_parts *p)
{
	return DCP_NITEMS(p->list, struct dcp_part);
}

struct dcp_part *dcp_parts_at(const struct dcp_parts *p, size_t i)
{
	return DCP_ITEMS(p->list, struct dcp_part) + i;
}

void dcp_parts_finish(struct dcp_parts *p)
{
	for (size_t i = 0; i < dcp_parts_n(p); i++)
		dcp_dir_close(&dcp_parts_at(p, i)->dir);
	dcp_buf_finish(&p->list);
	dcp_arena_finish(&p->arena);
}

static bool is_taken(const struct dcp_parts *p, const char *name)
{
	for (size_t i = 0; i < dcp_parts_n(p); i++)
		if (strcmp(dcp_parts_at(p, i)->name, name) == 0)
			return true;
	return false;
}

int dcp_parts_add(struct dcp_parts *p, const char *name, const char *below,
		  enum dcp_part_role role, const struct dcp_format *format, struct dcp_dir *dir)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_part part = { .role = role, .format = format, .dir = *dir };

	dcp_buf_str(&text, name);
	for (unsigned i = 2; !dcp_buf_error(&text) && is_taken(p, text.p); i++) {
		dcp_buf_reset(&text);
		dcp_buf_printf(&text, "%s_%u", name, i);
	}
	if (!dcp_buf_error(&text)) {
		part.name = dcp_arena_strndup(&p->arena, text.p, text.n);
		part.below = dcp_arena_strdup(&p->arena, below);
	}
	if (part.name && part.below)
		dcp_buf_add(&p->list, &part, sizeof(part));
	if (part.name && part.below && !dcp_buf_error(&p->list))
		return 0;
	dcp_dir_close(dir);
	return -ENOMEM;
}

/* ---- a JSON file ---- */

static enum dcp_match probe_json(const struct dcp_dir *dir, char *why, size_t n)
{
	return dir->n == 1 ? DCP_MATCH_YES : DCP_MATCH_NO;
}

/* Emit a JSON file as one object with the name of its part. A file that is not strict JSON (Python
 * writes NaN) is passed through as a file. */
static int emit_json(const struct dcp_load *in, const char *name, const struct dcp_source *src,
		     struct dcp_err *err)
{
	dcp_auto_free char *text = NULL;
	dcp_auto_json struct dcp_json *root = NULL;
	struct dcp_object o = { .key = "" };
	int rc = dcp_json_read(src, MAX_JSON, &text, &root, err);

	if (rc == -EBADMSG || rc == -E2BIG)
		return dcp_emit_sidecar(in->sink, name);
	if (rc < 0)
		return dcp_err_where(err, rc, "%s", name);
	o.type = dcp_json_is_object(root) ? "dict" : dcp_json_is_array(root) ? "list" : "value";
	o.json = text;
	o.json_len = dcp_json_squeeze(text, (size_t)src->size);
	return dcp_emit_object(in->sink, &o);
}

static int load_json(const struct dcp_load *in, struct dcp_err *err)
{
	const char *name = in->dir->entries[0].name;
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(in->sink, name, &number);

	if (rc == 0)
		rc = dcp_dir_input(in->dir, name, &input, err);
	if (rc < 0)
		return rc;
	return emit_json(in, name, &input.src, err);
}

const struct dcp_format dcp_part_json = {
	.name = "json",
	.what = "a JSON file beside a checkpoint",
	.probe = probe_json,
	.load = load_json,
};

/*
 * Emits parts, each through a relay that puts the part's name in front of its keys. Only a sole
 * model of a version keeps its keys. All other keys get the name in any case, because a key must
 * not depend on the contents of other parts.
 */

struct emitter {
	const struct dcp_load *in;
	const struct dcp_parts *parts;
	size_t nmodels, nbroken;
	const struct dcp_part *part; /* the current part */
	bool holds_model;            /* a plain part had tensors that are not states */
	struct dcp_buf text;
};

static const char *prefix_of(const struct emitter *w)
{
	enum dcp_part_role role = w->part->role;
	bool bare = role == DCP_PART_PLAIN || (role != DCP_PART_STATE && w->nmodels == 1);

	return bare ? NULL : w->part->name;
}

static int emit_broken(const struct emitter *w, const char *why)
{
	dcp_log(w->in->log, DCP_LOG_WARN, "%s%s", w->part->below, why);
	return dcp_emit_broken(w->in->sink, w->part->name, why);
}

/* Is @t a weight of a model, and not a state of an optimizer or the like? */
static bool is_weight(const struct dcp_tensor *t)
{
	const char *first = t->npath ? t->path[0] : t->key;

	return t->ndim > 0 && dcp_parts_role(first) == DCP_PART_MODEL &&
	       strcmp(first, "state") != 0 && strcmp(first, "param_groups") != 0;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct emitter *w = ctx;

	w->holds_model |= w->part->role == DCP_PART_PLAIN && is_weight(t);
	return dcp_emit_tensor(w->in->sink, t);
}

/* Leave out a part with the same model again, and emit the names of its files as left out. */
static int leave_out(const struct emitter *w)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < w->part->dir.n; i++)
		if (!dcp_weights_is_sidecar(w->part->dir.entries[i].name))
			rc = dcp_emit_meta(w->in->sink, "left_out",
					   w->part->dir.entries[i].name);
	return rc;
}

static int emit_part(struct emitter *w, struct dcp_err *err)
{
	const struct dcp_sink sink = { .tensor = on_tensor, .ctx = w, .next = w->in->sink };
	dcp_auto_relay struct dcp_relay r = { .to = &sink,
					      .below = w->part->below,
					      .prefix = prefix_of(w) };
	struct dcp_load in = dcp_relay_load(&r, w->in, &w->part->dir);
	struct dcp_err why = { 0 };
	bool broken;
	int rc;

	if (w->part->role == DCP_PART_SPARE && w->holds_model)
		return leave_out(w);
	in.depth++;
	in.uncommitted = false;
	in.is_part = r.prefix != NULL;
	rc = w->part->format->load(&in, &why);
	broken = rc < 0 && rc != -ENOMEM && r.rc == 0;
	if (broken && ++w->nbroken < dcp_parts_n(w->parts))
		return emit_broken(w, why.msg);
	if (rc < 0 && err)
		*err = why;
	return rc;
}

/* "model: torch-dcp, optimizer: torch-save" */
static int emit_facts(struct emitter *w)
{
	dcp_buf_reset(&w->text);
	for (size_t i = 0; i < dcp_parts_n(w->parts); i++) {
		const struct dcp_part *part = dcp_parts_at(w->parts, i);

		dcp_buf_printf(&w->text, "%s%s: %s", i ? ", " : "", part->name,
			       part->format->name);
	}
	if (dcp_buf_error(&w->text))
		return -ENOMEM;
	return dcp_emit_meta(w->in->sink, "parts", w->text.p);
}

/* ---- files that are not parts ---- */

static bool is_below(const struct dcp_parts *parts, const char *below)
{
	for (size_t i = 0; i < dcp_parts_n(parts); i++) {
		const struct dcp_part *p = dcp_parts_at(parts, i);

		if (strcmp(p->below, below) == 0 && (*below || dcp_parts_is_hf(p->format)))
			return true;
	}
	return false;
}

static int emit_sidecars(const struct dcp_load *in, const struct dcp_dir *dir,
			 const char *below)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		char name[2 * NAME_MAX + 2];
		bool unused;

		if (e->is_dir || *e->name == '.' || !dcp_weights_is_sidecar(e->name) ||
		    (!*below && dcp_parts_is_file(e, &unused)))
			continue;
		snprintf(name, sizeof(name), "%s%s", below, e->name);
		rc = dcp_emit_sidecar(in->sink, name);
	}
	return rc;
}

/* Emit the files beside models in directories: model_index.json, tokenizer/, scheduler/. */
static int emit_rest(const struct dcp_load *in, const struct dcp_parts *parts)
{
	enum dcp_parts_home home = dcp_parts_home(in->dir);
	int rc = 0;

	if (home != DCP_HOME_NONE && !is_below(parts, ""))
		rc = emit_sidecars(in, in->dir, "");
	for (size_t i = 0; home == DCP_HOME_PIPELINE && rc == 0 && i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];
		char below[NAME_MAX + 2];
		dcp_auto_dir struct dcp_dir sub = { 0 };

		snprintf(below, sizeof(below), "%s/", e->name);
		if (!e->is_dir || *e->name == '.' || is_below(parts, below) || e->is_link ||
		    dcp_dir_open_at(in->dir, e->name, &sub, NULL) < 0)
			continue;
		rc = emit_sidecars(in, &sub, below);
	}
	return rc;
}

int dcp_parts_emit(const struct dcp_load *in, const struct dcp_parts *p, struct dcp_err *err)
{
	struct emitter w = { .in = in, .parts = p };
	int rc = 0;

	for (size_t i = 0; i < dcp_parts_n(p); i++)
		w.nmodels += dcp_parts_at(p, i)->role == DCP_PART_MODEL ||
			     dcp_parts_at(p, i)->role == DCP_PART_SPARE;
	for (size_t i = 0; rc == 0 && i < dcp_parts_n(p); i++) {
		w.part = dcp_parts_at(p, i);
		rc = emit_part(&w, err);
	}
	if (rc == 0)
		rc = emit_facts(&w);
	if (rc == 0 && in->depth == 0)
		rc = emit_rest(in, p);
	dcp_buf_finish(&w.text);
	return rc;
}
