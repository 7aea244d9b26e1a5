/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds versions of several checkpoints that trainers put beside each other:
 *
 *	Hugging Face Trainer  model.safetensors optimizer.pt scheduler.pt rng_state_<R>.pth
 *	                      trainer_state.json; with FSDP directories as Accelerate's
 *	Accelerate            pytorch_model_fsdp_0/ optimizer_0/ scheduler.bin sampler.bin
 *	                      random_states_<R>.pkl
 *	Lightning             a DCP directory with meta.pt in it
 *	torchtune             model-0000i-of-0000N.safetensors recipe_state/recipe_state.pt
 *	verl                  actor/ critic/ data.pt, and in actor/ files of each rank:
 *	                      {model,optim,extra_state}_world_size_<N>_rank_<R>.pt
 *	Megatron-LM           a DCP directory with common.pt in it (see format/megatron/torch_dist.c)
 *	diffusers             unet/ vae/ text_encoder/ below model_index.json; while it trains
 *	                      unet/ unet_ema/ beside Accelerate's files
 *	sentence-transformers 2_Dense/ and the like below modules.json
 *	PaddleNLP             model_state.tp00.pdparams optimizer.tp00.pdopt scheduler.pdparams
 *	                      rng_state_<N>.pth training_args.bin, both by paddle.save
 *	PEFT                  adapters with names other than "default", each in a directory
 *	ColossalAI            modeling/ optimizer/: pytorch_model-<i>.bin with its index
 *	NeMo-RL               policy/weights/ policy/optimizer/ train_dataloader.pt in step_<N>/
 *	transformers          model-<i>-of-<N>.safetensors beside a DCP of the optimizer
 *
 * The names in the tables of names.c decide: a directory is one version if it holds at least two
 * parts, and one of them is a state file or a directory that the tables name. So a plain DCP or
 * Hugging Face directory is not changed, and .pt files with other names stay versions by
 * themselves. A part may be of any family of formats.c. Models in directories of any name, except
 * names of numbered saves, are parts, too: if the table of homes says so; if the directory itself
 * is a numbered save (then other files in it are parts as well); or if it holds state files and one
 * such directory, but no model.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/formats.h"
#include "core/format/parts/parts.h"
#include "core/format/weights/name.h"
#include "core/model/name.h"

static const char steps[] = "global_step"; /* a number after it: DeepSpeed's tags */

/* The parts found so far in one directory. */
struct finding {
	dcp_families all;
	const struct dcp_format *self; /* the family of parts, among them */
	const struct dcp_dir *dir;
	struct dcp_parts *parts;
	size_t nmain, nstate, nalone, ndirs;
	enum dcp_parts_home home;
	bool step;       /* it has the name of a numbered save: all in it belongs to the save */
	bool incomplete; /* a part is incomplete, with the reason in @why */
	char *why;
	size_t n;
};

/* ---- parts in a directory ---- */

static bool is_entry(void *ctx, const struct dcp_dirent *e)
{
	return strcmp(e->name, ctx) == 0;
}

static bool is_main(void *ctx, const struct dcp_dirent *e)
{
	bool unused;

	return !dcp_parts_is_file(e, &unused) && !dcp_parts_is_dir(e, &unused, NULL);
}

/* Note that the version is incomplete because a part is. The first reason is kept. */
static void note_incomplete(struct finding *f, const char *below, const char *why)
{
	if (!f->incomplete && f->n > 0)
		snprintf(f->why, f->n, "%s%s", below, why);
	f->incomplete = true;
}

/* "model_world_size_8" -> "model", "optimizer.pt" -> "optimizer" */
static void name_of(char *name, size_t n, const char *file)
{
	const char *world = strstr(file, "_world_size_");
	size_t len = dcp_stem(file);

	if (world && world > file)
		len = (size_t)(world - file);
	snprintf(name, n, "%.*s", (int)DCP_MIN(len, n - 1), file);
}

/* Is @group a checkpoint? A config.json may belong to a group, but is no group by itself. */
static bool is_group(const struct dcp_dir *dir, const struct dcp_format *format,
		     const char *group)
{
	struct dcp_dir part;
	char why[256];
	bool is;

	if (dcp_format_group(format, dir, group, &part) < 0)
		return true;
	is = format->probe(&part, why, sizeof(why)) != DCP_MATCH_NO;
	dcp_dir_close(&part);
	return is;
}

/* May the groups of @format in @dir be parts of one version? They may if there is only one group,
 * if their names tell the number of ranks, or if they have the names of a model or its states. */
static bool is_groups(const struct dcp_dir *dir, const struct dcp_format *format, bool *several)
{
	char group[DCP_GROUP_MAX], first[DCP_GROUP_MAX] = "";

	*several = false;
	for (size_t i = 0; i < dir->n; i++) {
		if (dir->entries[i].is_dir || !format->group(dir->entries[i].name, group))
			continue;
		*several |= *first && strcmp(first, group) != 0;
		memcpy(first, group, sizeof(first));
	}
	for (size_t i = 0; *several && i < dir->n; i++)
		if (!dir->entries[i].is_dir && format->group(dir->entries[i].name, group) &&
		    !strstr(group, "_world_size_") && !dcp_parts_is_model(group) &&
		    dcp_parts_role(group) != DCP_PART_STATE && is_group(dir, format, group))
			return false;
	return *first != '\0';
}

/* Add each group of @dir, once. A group that is alone in a directory has the directory's name. */
static int add_groups(struct finding *f, const struct dcp_dir *dir, const char *name,
		      const char *below, enum dcp_part_role role,
		      const struct dcp_format *format, bool several)
{
	char group[DCP_GROUP_MAX], before[DCP_GROUP_MAX] = "", part_name[DCP_GROUP_MAX],
				   why[256];

	for (size_t i = 0; i < dir->n; i++) {
		enum dcp_match match;
		struct dcp_dir part;
		int rc;

		/* Names are sorted, and the names of a group begin with the group's. */
		if (dir->entries[i].is_dir || !format->group(dir->entries[i].name, group) ||
		    strcmp(group, before) == 0)
			continue;
		memcpy(before, group, sizeof(before));
		rc = dcp_format_group(format, dir, group, &part);
		if (rc < 0)
			return rc;
		why[0] = '\0';
		match = format->probe(&part, why, sizeof(why));
		if (match == DCP_MATCH_INCOMPLETE)
			note_incomplete(f, below, why);
		name_of(part_name, sizeof(part_name), group);
		if (match == DCP_MATCH_NO)
			dcp_dir_close(&part);
		else
			rc = dcp_parts_add(f->parts, several || !*below ? part_name : name,
					   below,
					   role != DCP_PART_STATE && (several || !*below)
						   ? dcp_parts_role(part_name)
						   : role,
					   format, &part);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static enum dcp_match find_parts(dcp_families all, const struct dcp_dir *dir,
				 struct dcp_parts *out, char *why, size_t n);

/* The family of a directory. It is kept, because finding it may read files from a server. */
struct probed {
	const struct dcp_format *format; /* NULL: none */
	enum dcp_match match;
	char why[256];
};

/* Find the family of @dir, a part or the rest of a version. @own: @dir may itself consist of parts,
 * unless a family that is asked before parts takes it. */
static struct probed probe_part(const struct finding *f, const struct dcp_dir *dir, bool own)
{
	struct probed p = { .match = DCP_MATCH_NO };
	struct dcp_parts below;

	for (size_t i = 0; own && f->all[i] != f->self; i++)
		if (f->all[i]->probe(dir, p.why, sizeof(p.why)) == DCP_MATCH_YES) {
			p.match = DCP_MATCH_YES;
			p.format = f->all[i];
			return p;
		}
	if (own && f->parts->depth + 1 < DCP_PARTS_DEPTH) {
		dcp_parts_init(&below, f->parts->depth + 1);
		p.match = find_parts(f->all, dir, &below, p.why, sizeof(p.why));
		dcp_parts_finish(&below);
	}
	p.format = p.match != DCP_MATCH_NO ? f->self
					   : dcp_format_probe_in(f->all, f->self, dir, &p.match,
								 p.why, sizeof(p.why));
	return p;
}

/* Add the contents of @dir, whose family is in @p, as parts; @dir is taken over. Returns the number
 * of parts added. */
static int add_probed(struct finding *f, const char *name, const char *below,
		      enum dcp_part_role role, struct dcp_dir *dir, const struct probed *p)
{
	size_t before = dcp_parts_n(f->parts);
	const struct dcp_format *format = p->format;
	bool several;
	int rc = 0;

	if (p->match == DCP_MATCH_INCOMPLETE)
		note_incomplete(f, below, p->why);
	if (!format || p->match == DCP_MATCH_NO || format->shy ||
	    (p->match == DCP_MATCH_MANY && !is_groups(dir, format, &several))) {
		dcp_dir_close(dir);
		return 0;
	}
	if (p->match == DCP_MATCH_MANY) {
		rc = add_groups(f, dir, name, below, role, format, several);
		dcp_dir_close(dir);
	} else {
		rc = dcp_parts_add(f->parts, name, below, role, format, dir);
	}
	return rc < 0 ? rc : (int)(dcp_parts_n(f->parts) - before);
}

static int add_dir(struct finding *f, const char *name, const char *below,
		   enum dcp_part_role role, struct dcp_dir *dir)
{
	const struct probed p = probe_part(f, dir, *below);

	return add_probed(f, name, below, role, dir, &p);
}

/* ---- a version ---- */

static bool is_dcp(const struct dcp_format *format)
{
	return format == &dcp_format_torch_dcp || format == &dcp_format_torch_dcp_local;
}

/* Is @e a file beside a DCP? Files of torch.distributed.checkpoint always belong to the DCP. */
static bool is_beside_dcp(void *ctx, const struct dcp_dirent *e)
{
	return !e->is_dir && is_main(ctx, e) && !dcp_has_extension(e->name, ".metadata") &&
	       strcmp(e->name, ".metadata") != 0 && !dcp_has_extension(e->name, ".distcp");
}

static bool is_of_dcp(void *ctx, const struct dcp_dirent *e)
{
	return !is_beside_dcp(ctx, e);
}

/* Add weights of Hugging Face that lie beside a DCP, in which transformers keeps the optimizer. */
static int add_spare(struct finding *f)
{
	struct dcp_part *dcp = dcp_parts_at(f->parts, dcp_parts_n(f->parts) - 1);
	char why[256] = "";
	const struct dcp_format *format;
	enum dcp_match match;
	struct dcp_dir rest, own;
	int rc = dcp_dir_only(f->dir, is_beside_dcp, NULL, &rest);

	if (rc < 0)
		return rc;
	format = dcp_format_probe_in(f->all, f->self, &rest, &match, why, sizeof(why));
	if (!format || !dcp_parts_is_hf(format) || match == DCP_MATCH_MANY ||
	    !dcp_weights_is_home(&rest)) {
		dcp_dir_close(&rest);
		return 0;
	}
	if (match == DCP_MATCH_INCOMPLETE)
		note_incomplete(f, "", why);
	dcp->role = DCP_PART_PLAIN;
	f->nmain++;
	rc = dcp_dir_only(f->dir, is_of_dcp, NULL, &own);
	if (rc < 0) {
		dcp_dir_close(&rest);
		return rc;
	}
	dcp_dir_close(&dcp->dir);
	dcp->dir = own;
	return dcp_parts_add(f->parts, "model", "", DCP_PART_SPARE, format, &rest);
}

/* Is there a model among the files of @rest? -1: a family takes all of them. */
static int has_model(const struct finding *f, const struct dcp_dir *rest)
{
	enum dcp_match match;
	const struct dcp_format *format =
		dcp_format_probe_in(f->all, f->self, rest, &match, NULL, 0);

	if (!format || match == DCP_MATCH_MANY)
		return 0;
	if (!format->group && !dcp_parts_is_hf(format))
		return -1;
	return dcp_parts_is_hf(format) && dcp_weights_is_home(rest);
}

static int add_loose_group(struct finding *f, const struct dcp_dir *rest,
			   const struct dcp_format *format, const char *group)
{
	bool named = strstr(group, "_world_size_") || dcp_parts_is_model(group);
	char name[DCP_GROUP_MAX], why[256] = "";
	enum dcp_match match;
	struct dcp_dir part;
	int rc = dcp_format_group(format, rest, group, &part);

	if (rc < 0)
		return rc;
	match = format->probe(&part, why, sizeof(why));
	if (match == DCP_MATCH_NO) {
		dcp_dir_close(&part);
		return 0;
	}
	if (match == DCP_MATCH_INCOMPLETE)
		note_incomplete(f, "", why);
	name_of(name, sizeof(name), group);
	f->nmain++;
	return dcp_parts_add(f->parts, name, "", named ? dcp_parts_role(name) : DCP_PART_STATE,
			     format, &part);
}

/* Add files that are checkpoints by themselves, beside directories that are parts: files and
 * directories must not hide each other. */
static int add_loose(struct finding *f, const struct dcp_dir *rest)
{
	struct dcp_groups g = { .n = 0 };
	int rc = dcp_groups_list(f->all, rest, NULL, &g);

	for (size_t i = 0; rc == 0 && i < g.n; i++)
		if (!g.at[i].format->shy)
			rc = add_loose_group(f, rest, g.at[i].format,
					     dcp_intern_text(&g.names, g.at[i].name));
	dcp_groups_finish(&g);
	return rc;
}

/* Add the rest of the directory, without the names of the tables. */
static int add_main(struct finding *f)
{
	struct dcp_dir rest;
	int rc = dcp_dir_only(f->dir, is_main, NULL, &rest);

	if (rc < 0)
		return rc;
	if (f->ndirs && has_model(f, &rest) == 0) {
		rc = add_loose(f, &rest);
		dcp_dir_close(&rest);
		return rc;
	}
	rc = add_dir(f, "model", "", DCP_PART_MODEL, &rest);
	f->nmain = rc > 0 ? (size_t)rc : 0;
	if (rc == 1 && is_dcp(dcp_parts_at(f->parts, dcp_parts_n(f->parts) - 1)->format))
		rc = add_spare(f);
	return rc < 0 ? rc : 0;
}

/* Add a directory. Links are not parts, since they may form a circle. The number of a step is left
 * out of the name, so that the keys of all steps are the same. */
static int add_below(struct finding *f, const struct dcp_dirent *e, bool alone,
		     enum dcp_part_role role)
{
	const char *name = strncmp(e->name, steps, strlen(steps)) ? e->name : steps;
	char below[NAME_MAX + 2];
	struct dcp_dir sub;
	int rc;

	if (e->is_link || dcp_dir_open_at(f->dir, e->name, &sub, NULL) < 0)
		return 0;
	snprintf(below, sizeof(below), "%s/", e->name);
	rc = add_dir(f, name, below, role, &sub);
	f->ndirs += rc > 0;
	f->nalone += rc > 0 &&
		     (alone || (role == DCP_PART_MODEL && (f->step || f->parts->depth > 0)));
	return rc < 0 ? rc : 0;
}

/* A directory with a name that is in no table (policy/, value/), which may be a part. */
struct role {
	const char *name;
	struct dcp_dir dir;
	struct probed is;
};

/* Find these directories. In a step's directory all count; elsewhere only those that hold something
 * and do not have the name of a save. */
static int find_roles(const struct finding *f, struct dcp_buf *roles)
{
	int rc = 0;

	for (size_t i = 0; i < f->dir->n && rc == 0; i++) {
		const struct dcp_dirent *e = &f->dir->entries[i];
		struct role r = { .name = e->name };
		bool unused;

		if (f->step ? !e->is_dir || e->is_link || *e->name == '.' ||
				      dcp_order_is_numbered(e->name) ||
				      dcp_parts_is_dir(e, &unused, NULL)
			    : !dcp_parts_may_be_role(e))
			continue;
		if (dcp_dir_open_at(f->dir, e->name, &r.dir, NULL) < 0)
			continue;
		r.is = probe_part(f, &r.dir, true);
		if (r.is.format && r.is.match != DCP_MATCH_NO && !r.is.format->shy)
			rc = dcp_buf_add(roles, &r, sizeof(r));
		else
			rc = 1;
		if (rc)
			dcp_dir_close(&r.dir);
		rc = DCP_MIN(rc, 0);
	}
	return rc;
}

/* Are there files of states, but no model? Then these and one directory with a checkpoint are one
 * version, whatever their names are. */
static bool lacks_model(const struct finding *f)
{
	size_t states = 0;

	for (size_t i = 0; i < f->dir->n; i++) {
		bool state;

		states += dcp_parts_is_file(&f->dir->entries[i], &state) && state;
		if (dcp_parts_is_model(f->dir->entries[i].name))
			return false;
	}
	return states && f->parts->depth == 0;
}

/* Is there a model among the files that are in no table? *model is the result of has_model(). */
static int find_model(const struct finding *f, int *model)
{
	struct dcp_dir rest;
	int rc = dcp_dir_only(f->dir, is_main, NULL, &rest);

	if (rc < 0)
		return rc;
	*model = has_model(f, &rest);
	dcp_dir_close(&rest);
	return 0;
}

/* Add a directory that holds a model or several parts. Beside a model it must hold several parts,
 * because the directory of a model may also hold copies of the model. */
static int add_role(struct finding *f, struct role *r, bool beside_model)
{
	char below[NAME_MAX + 2];
	int rc;

	if (beside_model && r->is.format != f->self)
		return 0;
	snprintf(below, sizeof(below), "%s/", r->name);
	rc = add_probed(f, r->name, below, beside_model ? DCP_PART_STATE : DCP_PART_MODEL,
			&r->dir, &r->is);
	r->dir = (struct dcp_dir){ 0 };
	f->ndirs += rc > 0;
	f->nalone += rc > 0;
	return DCP_MIN(rc, 0);
}

static int add_roles(struct finding *f)
{
	dcp_auto_buf struct dcp_buf roles = DCP_BUF_INIT;
	int model = -1, rc = 0;

	if (f->home != DCP_HOME_NONE || (!f->step && !lacks_model(f)))
		return 0;
	if (!f->step)
		rc = find_roles(f, &roles);
	if (rc == 0 && (f->step || DCP_NITEMS(roles, struct role) == 1))
		rc = find_model(f, &model);
	if (rc == 0 && f->step && model >= 0)
		rc = find_roles(f, &roles);
	for (size_t i = 0; i < DCP_NITEMS(roles, struct role); i++) {
		struct role *r = DCP_ITEMS(roles, struct role) + i;

		if (rc == 0 && (f->step ? model >= 0 : model == 0))
			rc = add_role(f, r, model);
		dcp_dir_close(&r->dir);
	}
	return rc;
}

/* Add a directory with a name that is in no table, if it holds a model with Hugging Face's
 * names. */
static int add_model(struct finding *f, const struct dcp_dirent *e)
{
	enum dcp_part_role role = f->home == DCP_HOME_PIPELINE || f->home == DCP_HOME_STATES
					  ? DCP_PART_MODEL
					  : DCP_PART_STATE; /* of the model beside it */
	char below[NAME_MAX + 2], why[256] = "";
	const struct dcp_format *format;
	enum dcp_match match;
	struct dcp_dir sub;

	if (*e->name == '.' || dcp_order_is_numbered(e->name) || e->is_link ||
	    dcp_dir_open_at(f->dir, e->name, &sub, NULL) < 0)
		return 0;
	format = dcp_format_probe_in(f->all, f->self, &sub, &match, why, sizeof(why));
	if (!dcp_parts_is_hf(format) || match == DCP_MATCH_MANY ||
	    (f->home == DCP_HOME_ADAPTER && !dcp_dir_find(&sub, "adapter_config.json"))) {
		dcp_dir_close(&sub);
		return 0;
	}
	snprintf(below, sizeof(below), "%s/", e->name);
	if (match == DCP_MATCH_INCOMPLETE)
		note_incomplete(f, below, why);
	f->ndirs++;
	f->nalone += f->home == DCP_HOME_PIPELINE;
	return dcp_parts_add(f->parts, e->name, below, role, format, &sub);
}

static const struct dcp_format *format_of(const char *file)
{
	const char *dot = strrchr(file, '.');

	if (dot && strcmp(dot, ".json") == 0)
		return &dcp_part_json;
	return dot && strcmp(dot, ".pkl") == 0 ? &dcp_format_pickle : &dcp_format_torch_save;
}

static int add_file(struct finding *f, const struct dcp_dirent *e)
{
	char name[DCP_GROUP_MAX];
	struct dcp_dir part;
	int rc = dcp_dir_only(f->dir, is_entry, (void *)(uintptr_t)e->name, &part);

	name_of(name, sizeof(name), e->name);
	return rc < 0 ? rc
		      : dcp_parts_add(f->parts, name, "", DCP_PART_STATE, format_of(e->name),
				      &part);
}

/* DeepSpeed's tag directories are versions where they stand by themselves. The Hugging Face Trainer
 * keeps one beside its own state files. */
static bool is_version(const struct finding *f, const char *name)
{
	size_t tags = 0, states = 0;

	if (strncmp(name, steps, strlen(steps)) != 0)
		return false;
	for (size_t i = 0; i < f->dir->n; i++) {
		const struct dcp_dirent *e = &f->dir->entries[i];
		bool state;

		tags += e->is_dir && strncmp(e->name, steps, strlen(steps)) == 0;
		states += dcp_parts_is_file(e, &state) && state;
	}
	return tags > 1 || states == 0;
}

/* Find all parts. Files come last: they are only parts if there is a directory or a model. */
static int add_all(struct finding *f)
{
	int rc = 0;

	f->home = dcp_parts_home(f->dir);
	for (size_t i = 0; i < f->dir->n && rc == 0; i++) {
		const struct dcp_dirent *e = &f->dir->entries[i];
		enum dcp_part_role role;
		bool alone;

		if (dcp_parts_is_dir(e, &alone, &role) && !is_version(f, e->name))
			rc = add_below(f, e, alone, role);
		else if (e->is_dir && f->home != DCP_HOME_NONE)
			rc = add_model(f, e);
	}
	if (rc == 0)
		rc = add_roles(f);
	if (rc == 0)
		rc = add_main(f);
	if (rc < 0 || f->ndirs + f->nmain == 0)
		return rc;
	for (size_t i = 0; i < f->dir->n && rc == 0; i++) {
		bool state;

		if (!dcp_parts_is_file(&f->dir->entries[i], &state))
			continue;
		f->nstate += state;
		rc = add_file(f, &f->dir->entries[i]);
	}
	return rc;
}

static bool is_step(const struct dcp_dir *dir)
{
	const char *slash = strrchr(dir->path, '/'), *name = slash ? slash + 1 : dir->path;

	return dcp_order_is_save(name);
}

static bool has_safetensors(const struct dcp_dir *dir)
{
	for (size_t i = 0; i < dir->n; i++)
		if (dcp_has_extension(dir->entries[i].name, ".safetensors"))
			return true;
	return false;
}

/* May @dir hold parts? If no name of the tables is there, it is not examined further. */
static bool may_be(const struct dcp_dir *dir, bool step)
{
	bool any = dcp_parts_home(dir) != DCP_HOME_NONE ||
		   (dcp_dir_find(dir, ".metadata") &&
		    (has_safetensors(dir) || dcp_weights_has_torch(dir))),
	     decides;

	for (size_t i = 0; i < dir->n && !any; i++) {
		const struct dcp_dirent *e = &dir->entries[i];

		any = (step && e->is_dir) || dcp_parts_is_dir(e, &decides, NULL) ||
		      (dcp_parts_is_file(e, &decides) && decides) ||
		      (!e->is_dir && strstr(e->name, "_world_size_"));
	}
	return any;
}

static enum dcp_match find_parts(dcp_families all, const struct dcp_dir *dir,
				 struct dcp_parts *out, char *why, size_t n)
{
	struct finding f = { .all = all, .dir = dir, .parts = out, .why = why, .n = n };
	bool one;

	f.step = out->depth == 0 && is_step(dir);

	while (!(*all)->composite)
		all++;
	f.self = *all;

	if (!may_be(dir, f.step) || add_all(&f) < 0)
		return DCP_MATCH_NO;
	/* A directory that only looks like a part may hold versions of its own. */
	one = f.ndirs + f.nmain > 1 || (f.nmain && f.nstate) || (f.ndirs && f.nstate) ||
	      f.nalone;
	if (!one || f.ndirs + f.nmain == 0)
		return DCP_MATCH_NO;
	return f.incomplete ? DCP_MATCH_INCOMPLETE : DCP_MATCH_YES;
}

enum dcp_match dcp_parts_probe(dcp_families all, const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = dcp_format_composer.probe(dir, why, n);
	struct dcp_parts parts;

	/* A checkpoint of Composer that is still being written looks like parts. */
	if (match == DCP_MATCH_INCOMPLETE)
		return DCP_MATCH_NO;
	dcp_parts_init(&parts, 0);
	match = find_parts(all, dir, &parts, why, n);
	dcp_parts_finish(&parts);
	return match;
}

int dcp_parts_load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_parts parts;
	int rc;

	dcp_parts_init(&parts, in->depth);
	if (find_parts(in->formats, in->dir, &parts, NULL, 0) == DCP_MATCH_NO)
		rc = dcp_fail(err, -ENOENT, "its parts cannot be found again");
	else
		rc = dcp_parts_emit(in, &parts, err);
	dcp_parts_finish(&parts);
	return rc;
}
