/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's universal checkpoint, as its ds_to_universal makes it from other checkpoints:
 *
 *	universal/zero/<name>/fp32.pt, exp_avg.pt, ...  {"param": tensor, "cat_dim": 0}; step.pt: the value alone
 *	universal/zero/optimizer_state.pt               param_groups, and the rest of the optimizer
 *	universal/mp_rank_00_model_states.pt            the module, and the rest of a run
 *	universal/zero_pp_rank_0_mp_rank_00_model_states.pt    the same for ZeRO 3, without the module
 *	latest_universal                                "universal"
 *
 * Names of parameters and states come from keys of a DeepSpeed checkpoint ("exp_avg.emb.weight"),
 * from an optimizer's state ("optimizer.state.emb.weight.exp_avg", where the name is one
 * component), or from a weight's path after "model". DeepSpeed converts tensors that are not F32.
 * ZeRO 1 and 2 read the step of each parameter, ZeRO 3 the step in optimizer_state.pt.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/text.h"
#include "core/model/tensor.h"
#include "core/write/pickle.h"
#include "core/write/write.h"

#define TAG "universal"

enum where { STATE, MODULE, OPTIMIZER, MODEL, GROUP, NOWHERE };

/* The place of a tensor or object: state "exp_avg" of parameter @name, or entry @name of a file. */
struct place {
	enum where where;
	const char *state;
	char *name;
};

struct saving {
	const struct dcp_write_set *set;
	struct dcp_writer *w;
	struct place *place; /* of items */
	size_t n;
	bool has_module;
	struct dcp_intern seen; /* names that are written already */
	struct dcp_pickler p;
	struct dcp_err *err;
};

/* ---- where things go ---- */

static bool is_of_optimizer(const char *key)
{
	return strncmp(key, "optimizer_state.pt.", 19) == 0 || strstr(key, "optim_states.pt.");
}

static bool is_of_file(const char *key)
{
	return is_of_optimizer(key) || strstr(key, "_model_states.pt.");
}

static char *join_path(const char *const *path, size_t n)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	dcp_path_join(&b, path, n);
	return dcp_buf_error(&b) ? NULL : strdup(b.n ? b.p : "");
}

/* {"state": {"emb.weight": {"exp_avg": ...}}} below anything. */
static bool is_state(const char *const *path, size_t n)
{
	return n >= 3 && strcmp(path[n - 3], "state") == 0;
}

static bool is_word(const char *s, const char *const *words)
{
	while (*words && strcmp(s, *words) != 0)
		words++;
	return *words != NULL;
}

static void place_tensor(const struct dcp_write_tensor *t, bool deepspeed, struct place *out)
{
	static const char *const tops[] = { "model", "module", "state_dict", "model_state_dict",
					    NULL };
	const char *const *path = t->path;
	size_t n = t->npath, skip = n > 1 && is_word(path[0], tops);

	*out = (struct place){ .where = STATE, .state = "fp32" };
	if (is_state(path, n)) {
		out->state = path[n - 1];
		out->name = strdup(path[n - 2]);
	} else if (deepspeed && n == 2 && strcmp(path[0], "module") != 0) {
		out->state = path[0];
		out->name = strdup(path[1]);
	} else {
		if ((deepspeed && n == 2) ||
		    (t->dtype != DCP_DTYPE_F32 && !dcp_dtype_can_cast(t->dtype, DCP_DTYPE_F32)))
			out->where = MODULE; /* it is not a parameter */
		out->name = join_path(path + skip, n - skip);
	}
}

/* If several ranks have a name, the first is used. */
static void place_object(const struct dcp_object *o, struct place *out)
{
	/* weights that were frozen are parameters like the others here */
	static const char *const nowhere[] = { "frozen_param_shapes", "frozen_param_fragments",
					       NULL };
	const char *last = o->npath ? o->path[o->npath - 1] : o->key;

	*out = (struct place){ .where = MODEL };
	if (is_of_file(o->key)) {
		out->where = is_word(last, nowhere)    ? NOWHERE
			     : is_of_optimizer(o->key) ? OPTIMIZER
						       : MODEL;
		out->name = strdup(last);
	} else if (is_state(o->path, o->npath)) {
		out->where = STATE;
		out->state = last;
		out->name = strdup(o->path[o->npath - 2]);
	} else if (o->npath >= 3 && strcmp(o->path[o->npath - 3], "param_groups") == 0) {
		out->where = GROUP;
		out->name = strdup(last);
	} else {
		out->name = strdup(o->key);
	}
}

static bool can_name(const char *file)
{
	return *file && *file != '.' && !strchr(file, '/') && strlen(file) <= 255 &&
	       dcp_utf8_all_shown(file);
}

static const char *refuses_tensor(const struct dcp_write_tensor *t)
{
	struct place p;
	const char *why = dcp_torch_write_refuses(t);

	if (why)
		return why;
	if (is_of_file(t->key))
		return "it belongs to a rank's own file";
	for (int deepspeed = 0; deepspeed < 2 && !why; deepspeed++) {
		place_tensor(t, deepspeed, &p);
		if (!p.name)
			return "there is no memory for it";
		if (p.where == STATE && (!can_name(p.name) || strchr(p.state, '/') ||
					 strlen(p.state) > 64 || !dcp_utf8_all_shown(p.state)))
			why = "it cannot be the name of a file";
		free(p.name);
	}
	return why;
}

static const char *refuses_object(const struct dcp_object *o)
{
	static const char *const own[] = { "module", "optimizer", "optimizer_state_dict",
					   NULL };
	struct place p;
	const char *why = dcp_value_refuses(o, false);

	if (why)
		return why;
	place_object(o, &p);
	if (!p.name)
		return "there is no memory for it";
	if (p.where == STATE && (!can_name(p.name) || strcmp(p.state, "step") != 0))
		why = "a state of a parameter is a tensor";
	else if (is_word(p.name, own))
		why = "DeepSpeed has something else by that name";
	free(p.name);
	return why;
}

static int find_places(struct saving *s)
{
	bool deepspeed = false;

	for (size_t i = 0; i < s->set->ntensors; i++)
		deepspeed |= s->set->tensors[i].npath == 2 &&
			     strcmp(s->set->tensors[i].path[0], "fp32") == 0;
	s->n = s->set->ntensors + s->set->nobjects;
	s->place = calloc(s->n + 1, sizeof(*s->place));
	for (size_t i = 0; s->place && i < s->n; i++) {
		struct place *p = &s->place[i];

		if (i < s->set->ntensors)
			place_tensor(&s->set->tensors[i], deepspeed, p);
		else
			place_object(&s->set->objects[i - s->set->ntensors], p);
		if (!p->name)
			return -ENOMEM;
		s->has_module |= p->where == MODULE;
	}
	return s->place ? 0 : -ENOMEM;
}

/* ---- values ---- */

static int put_object(struct saving *s, size_t item)
{
	return dcp_value_put(&s->p, &s->set->objects[item - s->set->ntensors], NULL);
}

static int put_item(struct saving *s, size_t item, size_t storage)
{
	const struct dcp_write_tensor *t = &s->set->tensors[item];

	if (item >= s->set->ntensors)
		return put_object(s, item);
	dcp_torch_write_tensor(&s->p, t, &t->parts[0], storage);
	return 0;
}

/* The pickle is complete; @n tensors of it follow. */
static int put_archive(struct saving *s, const struct dcp_buf *pickle, const size_t *tensor,
		       size_t n)
{
	struct dcp_zipper z;
	int rc = dcp_pickler_end(&s->p);

	if (rc < 0)
		return rc;
	dcp_torch_write_begin(&z, s->w, pickle);
	for (size_t i = 0; i < n; i++)
		dcp_torch_write_storage(&z, i, tensor[i], 0);
	return dcp_torch_write_end(&z);
}

/* ---- zero/ ---- */

static int put_state(struct saving *s, size_t item)
{
	const struct place *p = &s->place[item];
	bool tensor = item < s->set->ntensors, alone = strcmp(p->state, "step") == 0;
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT, name = DCP_BUF_INIT;
	int rc;

	if (dcp_buf_printf(&name, TAG "/zero/%s/%s.pt", p->name, p->state) < 0)
		return -ENOMEM;
	rc = dcp_intern_add(&s->seen, name.p, name.n, 0, NULL);
	if (rc <= 0)
		return rc < 0 ? rc
			      : dcp_fail(s->err, -EINVAL,
					 "%s is state %s of %s, and so is another: --skip one",
					 dcp_write_key(s->set, item), p->state, p->name);
	dcp_writer_file(s->w, name.p, false);
	dcp_pickler_init(&s->p, &pickle, 2);
	if (!alone)
		dcp_pickler_put(&s->p, "{2 s i s", "cat_dim", 0, "param");
	rc = put_item(s, item, 0);
	return rc < 0 ? rc : put_archive(s, &pickle, &item, tensor);
}

/* Count the distinct names among the entries of a file at one place; with @put, put each
 * entry once. */
static int put_entries(struct saving *s, enum where where, bool put, uint64_t *count)
{
	struct dcp_intern seen = { 0 };
	int rc = 0;

	*count = 0;
	for (size_t i = s->set->ntensors; rc >= 0 && i < s->n; i++) {
		const char *name = s->place[i].name;

		if (s->place[i].where != where || strcmp(name, "params") == 0 ||
		    strcmp(name, "param_groups") == 0)
			continue;
		rc = dcp_intern_str(&seen, name, NULL);
		if (rc == 1) {
			++*count;
			if (put) {
				dcp_pickler_str(&s->p, name);
				rc = put_object(s, i);
			}
		}
	}
	dcp_intern_finish(&seen);
	return DCP_MIN(rc, 0);
}

/* Put a list of dicts. If the options of an optimizer are separate keys, there is one group with
 * their first values. */
static int put_groups(struct saving *s)
{
	uint64_t n;
	int rc;

	for (size_t i = s->set->ntensors; i < s->n; i++)
		if (s->place[i].where == OPTIMIZER &&
		    strcmp(s->place[i].name, "param_groups") == 0)
			return put_object(s, i);
	rc = put_entries(s, GROUP, false, &n);
	dcp_pickler_put(&s->p, "[1 {*", n);
	return rc < 0 ? rc : put_entries(s, GROUP, true, &n);
}

static size_t find_step(const struct saving *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->place[i].where == STATE && strcmp(s->place[i].state, "step") == 0)
			return i;
	return SIZE_MAX;
}

static bool has_entry(const struct saving *s, enum where where, const char *name)
{
	for (size_t i = s->set->ntensors; i < s->n; i++)
		if (s->place[i].where == where && strcmp(s->place[i].name, name) == 0)
			return true;
	return false;
}

static int put_optimizer(struct saving *s)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	bool version = has_entry(s, OPTIMIZER, "ds_version");
	size_t step = find_step(s);
	uint64_t n;
	int rc = put_entries(s, OPTIMIZER, false, &n);

	dcp_writer_file(s->w, TAG "/zero/optimizer_state.pt", false);
	dcp_pickler_init(&s->p, &pickle, 2);
	dcp_pickler_open(&s->p, DCP_PICKLE_DICT, n + 2 + !version);
	if (rc == 0)
		rc = put_entries(s, OPTIMIZER, true, &n);
	if (!version)
		dcp_pickler_put(&s->p, "s s", "ds_version", "0.16.0");
	dcp_pickler_str(&s->p, "param_groups");
	if (rc == 0)
		rc = put_groups(s);
	dcp_pickler_put(&s->p, "s {2 s {1 i {1 s", "optimizer_state_dict", "state", 0, "step");
	if (step == SIZE_MAX)
		dcp_pickler_int(&s->p, 0);
	else if (rc == 0)
		rc = put_item(s, step, 0);
	dcp_pickler_str(&s->p, "param_groups");
	if (rc == 0)
		rc = put_groups(s);
	return rc < 0 ? rc : put_archive(s, &pickle, &step, step < s->set->ntensors);
}

/* ---- the model file ---- */

/* Does the tensor belong to the module: as a weight, or as the master copy of a weight that is not
 * stored elsewhere? */
static bool is_in_module(const struct saving *s, size_t tensor)
{
	const struct place *p = &s->place[tensor];

	return p->where == MODULE ||
	       (!s->has_module && p->where == STATE && strcmp(p->state, "fp32") == 0);
}

static int put_module(struct saving *s, size_t *tensor, size_t *n)
{
	uint64_t count = 0;
	int rc = 0;

	for (size_t i = 0; i < s->set->ntensors; i++)
		count += is_in_module(s, i);
	dcp_pickler_open(&s->p, DCP_PICKLE_DICT, count);
	for (size_t i = 0; rc == 0 && i < s->set->ntensors; i++) {
		if (!is_in_module(s, i))
			continue;
		dcp_pickler_str(&s->p, s->place[i].name);
		tensor[*n] = i;
		rc = put_item(s, i, (*n)++);
	}
	return rc;
}

/* [{name: torch.Size}] of the parameters. */
static void put_shapes(struct saving *s)
{
	uint64_t n = 0;

	for (size_t i = 0; i < s->set->ntensors; i++)
		n += s->place[i].where == STATE && strcmp(s->place[i].state, "fp32") == 0;
	dcp_pickler_put(&s->p, "[1 {*", n);
	for (size_t i = 0; i < s->set->ntensors; i++) {
		const struct dcp_write_tensor *t = &s->set->tensors[i];

		if (s->place[i].where != STATE || strcmp(s->place[i].state, "fp32") != 0)
			continue;
		dcp_pickler_str(&s->p, s->place[i].name);
		dcp_torch_write_size(&s->p, t->shape, t->ndim);
	}
}

static const struct {
	const char *name;
	char what; /* [] {} None 0 1, s: param_shapes, v: a version */
} wanted[] = {
	{ "buffer_names", '[' },
	{ "param_shapes", 's' },
	{ "frozen_param_shapes", 'N' },
	{ "shared_params", '{' },
	{ "lr_scheduler", 'N' },
	{ "frozen_param_fragments", 'N' },
	{ "data_sampler", 'N' },
	{ "random_ltd", 'N' },
	{ "sparse_tensor_module_names", '[' },
	{ "skipped_steps", '0' },
	{ "global_steps", '0' },
	{ "global_samples", '0' },
	{ "dp_world_size", '1' },
	{ "mp_world_size", '1' },
	{ "ds_config", '{' },
	{ "ds_version", 'v' },
};

static void put_wanted(struct saving *s, char what)
{
	if (what == 's')
		put_shapes(s);
	else if (what == 'v')
		dcp_pickler_str(&s->p, "0.16.0");
	else if (what == 'N')
		dcp_pickler_none(&s->p);
	else if (what == '[' || what == '{')
		dcp_pickler_open(&s->p, what == '[' ? DCP_PICKLE_LIST : DCP_PICKLE_DICT, 0);
	else
		dcp_pickler_int(&s->p, what - '0');
}

/* ZeRO 3 looks for a file of another name, and reads no weights from it. */
static int put_model(struct saving *s, const char *file, bool module)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	dcp_auto_free size_t *tensor = calloc(s->set->ntensors + 1, sizeof(*tensor));
	uint64_t n, missing = 0;
	size_t ntensors = 0;
	int rc = put_entries(s, MODEL, false, &n);

	if (rc < 0 || !tensor)
		return rc < 0 ? rc : -ENOMEM;
	for (size_t i = 0; i < DCP_LEN(wanted); i++)
		missing += !has_entry(s, MODEL, wanted[i].name);
	dcp_writer_file(s->w, file, false);
	dcp_pickler_init(&s->p, &pickle, 2);
	dcp_pickler_open(&s->p, DCP_PICKLE_DICT, 2 + missing + n);
	dcp_pickler_str(&s->p, "module");
	if (module)
		rc = put_module(s, tensor, &ntensors);
	else
		dcp_pickler_open(&s->p, DCP_PICKLE_DICT, 0);
	dcp_pickler_put(&s->p, "s N", "optimizer");
	for (size_t i = 0; i < DCP_LEN(wanted); i++)
		if (!has_entry(s, MODEL, wanted[i].name)) {
			dcp_pickler_str(&s->p, wanted[i].name);
			put_wanted(s, wanted[i].what);
		}
	if (rc == 0)
		rc = put_entries(s, MODEL, true, &n);
	return rc < 0 ? rc : put_archive(s, &pickle, tensor, ntensors);
}

static int plan_files(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	struct saving s = { .set = set, .w = w, .err = err };
	int rc = find_places(&s);

	for (size_t i = 0; rc == 0 && i < s.n; i++)
		if (s.place[i].where == STATE)
			rc = put_state(&s, i);
	if (rc == 0)
		rc = put_optimizer(&s);
	if (rc == 0)
		rc = put_model(&s, TAG "/mp_rank_00_model_states.pt", true);
	if (rc == 0)
		rc = put_model(&s, TAG "/zero_pp_rank_0_mp_rank_00_model_states.pt", false);
	if (rc == 0) {
		dcp_writer_file(w, "latest_universal", true);
		dcp_writer_bytes(w, TAG, strlen(TAG));
	}
	for (size_t i = 0; s.place && i < s.n; i++)
		free(s.place[i].name);
	free(s.place);
	dcp_intern_finish(&s.seen);
	return rc;
}

const struct dcp_write_format dcp_write_deepspeed_universal = {
	.name = "deepspeed-universal",
	.what = "DeepSpeed's universal checkpoint",
	.takes = DCP_WRITE_OBJECTS | DCP_WRITE_RENAMES,
	.refuses = refuses_tensor,
	.refuses_object = refuses_object,
	.plan = plan_files,
};
