/* SPDX-License-Identifier: Apache-2.0 */
/* load: services for all sources of the family while a checkpoint is loaded: memory, opened files,
 * places, names. */
#include "core/format/deepspeed/deepspeed_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"

const char *dcp_deepspeed_text(struct dcp_deepspeed *ds, const char *fmt, ...)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	char text[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n < 0)
		return NULL;
	if ((size_t)n < sizeof(text))
		return dcp_arena_strdup(&ds->arena, text);
	/* The text is longer than the buffer. */
	if (!dcp_buf_grow(&b, (size_t)n + 1))
		return NULL;
	va_start(ap, fmt);
	vsnprintf(b.p, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return dcp_arena_strdup(&ds->arena, b.p);
}

/* Keep the name of file @number: files are opened again by name when ranks are compared. */
static int note_name(struct dcp_deepspeed *ds, uint32_t number, const char *name)
{
	static const char *const none;
	const char *kept;

	if (ds->tp < 2)
		return 0;
	while (ds->names.n / sizeof(name) <= number && !dcp_buf_error(&ds->names))
		dcp_buf_add(&ds->names, &none, sizeof(none));
	kept = dcp_arena_strdup(&ds->arena, name);
	if (!kept || dcp_buf_error(&ds->names))
		return -ENOMEM;
	memcpy(ds->names.p + number * sizeof(kept), &kept, sizeof(kept));
	return 0;
}

int dcp_deepspeed_open(struct dcp_deepspeed *ds, const char *name,
		       struct dcp_deepspeed_input *out, struct dcp_err *why)
{
	int rc = dcp_emit_file(ds->in->sink, name, &out->file);

	out->t = NULL;
	if (rc < 0 || note_name(ds, out->file, name) < 0)
		return rc < 0 ? rc : -ENOMEM;
	rc = dcp_dir_input(ds->in->dir, name, &out->in, why);
	if (rc == 0) {
		rc = dcp_torch_open(&out->in.src, 0, &out->t, why);
		if (rc == 0) {
			ds->opened = true;
			return 0;
		}
		dcp_input_close(&out->in);
		out->t = NULL;
		dcp_err_where(why, rc, "%s", name);
	}
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (!ds->damage.code)
		ds->damage = *why;
	return 1;
}

void dcp_deepspeed_close(struct dcp_deepspeed_input *in)
{
	if (!in->t)
		return;
	dcp_torch_close(in->t);
	dcp_input_close(&in->in);
	in->t = NULL;
}

void dcp_deepspeed_place_tensor(const struct dcp_deepspeed_input *in,
				const struct dcp_torch_tensor *tt,
				struct dcp_deepspeed_place *out)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < tt->ndim; d++)
		volume *= tt->shape[d];
	*out = (struct dcp_deepspeed_place){
		.off = tt->off,
		.n = volume,
		.file = in->file,
		.dtype = (uint8_t)tt->dtype,
		.swap = tt->swap,
		.there = tt->row_major && tt->dtype != DCP_DTYPE_OTHER &&
			 tt->filter == DCP_FILTER_NONE,
	};
}

int dcp_deepspeed_take_place(const struct dcp_deepspeed_input *in, struct dcp_pv v,
			     struct dcp_deepspeed_place *out)
{
	struct dcp_torch_tensor tt;
	int rc = dcp_torch_tensor(in->t, v, &tt, NULL);

	if (rc == 1)
		dcp_deepspeed_place_tensor(in, &tt, out);
	return rc == -ENOMEM ? rc : 0;
}

int dcp_deepspeed_emit_broken(struct dcp_deepspeed *ds, const char *file, const char *why)
{
	return why ? dcp_emit_broken(ds->in->sink, file, why) : -ENOMEM;
}

/* Take a number of up to nine digits: no job has a billion ranks. */
static bool eat_number(const char **p, uint32_t *out)
{
	uint64_t v = 0;
	bool there = dcp_take_number(p, NULL, 9, &v);

	*out = (uint32_t)v;
	return there;
}

/* Is @p "mp_rank_", a number and @end? */
static bool eat_mp(const char *p, const char *end, struct dcp_deepspeed_name *out)
{
	return dcp_take_text(&p, "mp_rank_") && eat_number(&p, &out->mp) && strcmp(p, end) == 0;
}

/* [bf16_|fp16_]zero_pp_rank_0_mp_rank_00_... */
static bool parse_zero(const char *p, struct dcp_deepspeed_name *out)
{
	bool plain = !dcp_take_text(&p, "bf16_") && !dcp_take_text(&p, "fp16_");

	if (!dcp_take_text(&p, "zero_pp_rank_") || !eat_number(&p, &out->dp) ||
	    !dcp_take_text(&p, "_"))
		return false;
	out->sharded = true;
	out->kind = DCP_DEEPSPEED_OPTIM;
	/* Before 0.3.14 an underscore was forgotten. */
	if (eat_mp(p, "_optim_states.pt", out) || eat_mp(p, "optim_states.pt", out))
		return true;
	out->kind = DCP_DEEPSPEED_MODEL;
	return plain && eat_mp(p, "_model_states.pt", out);
}

/* layer_03-model_01-model_states.pt, layer_0_expert_5_mp_rank_00_model_states.pt */
static bool parse_layer(const char *p, struct dcp_deepspeed_name *out)
{
	if (!dcp_take_text(&p, "layer_") || !eat_number(&p, &out->layer))
		return false;
	if (dcp_take_text(&p, "_expert_")) {
		out->kind = DCP_DEEPSPEED_EXPERT;
		return eat_number(&p, &out->expert) && dcp_take_text(&p, "_") &&
		       eat_mp(p, "_model_states.pt", out);
	}
	out->kind = DCP_DEEPSPEED_LAYER;
	if (dcp_take_text(&p, "-model_states.pt"))
		return !*p;
	return dcp_take_text(&p, "-model_") && eat_number(&p, &out->mp) &&
	       !strcmp(p, "-model_states.pt");
}

bool dcp_deepspeed_name_parse(const char *name, struct dcp_deepspeed_name *out)
{
	const char *p = name;

	*out = (struct dcp_deepspeed_name){ .name = name, .kind = DCP_DEEPSPEED_MODEL };
	if (eat_mp(p, "_model_states.pt", out))
		return true;
	*out = (struct dcp_deepspeed_name){ .name = name };
	if (parse_zero(p, out))
		return true;
	*out = (struct dcp_deepspeed_name){ .name = name };
	if (parse_layer(p, out))
		return true;
	*out = (struct dcp_deepspeed_name){ .name = name, .kind = DCP_DEEPSPEED_EXPERT };
	if (dcp_take_text(&p, "expert_"))
		return eat_number(&p, &out->expert) && dcp_take_text(&p, "_") &&
		       eat_mp(p, "_model_states.pt", out);
	out->kind = DCP_DEEPSPEED_EXPERT_OPTIM;
	return dcp_take_text(&p, "expp_rank_") && eat_number(&p, &out->expert) &&
	       dcp_take_text(&p, "_") && eat_mp(p, "_optim_states.pt", out);
}

void dcp_deepspeed_name_of_rank(const struct dcp_deepspeed_name *like, uint32_t dp, uint32_t mp,
				char out[DCP_DEEPSPEED_NAME_MAX])
{
	const char *p = like->name;
	const char *what = like->kind == DCP_DEEPSPEED_MODEL ? "model" : "optim";
	int bits = strncmp(p, "bf16_", 5) == 0 || strncmp(p, "fp16_", 5) == 0 ? 5 : 0;
	size_t n = strlen(p);
	/* ".._00optim_states.pt" */
	bool joined = n > 16 && p[n - 16] != '_' && like->kind == DCP_DEEPSPEED_OPTIM;

	if (like->sharded)
		snprintf(out, DCP_DEEPSPEED_NAME_MAX,
			 "%.*szero_pp_rank_%" PRIu32 "_mp_rank_%02" PRIu32 "%s%s_states.pt",
			 bits, p, dp, mp, joined ? "" : "_", what);
	else
		snprintf(out, DCP_DEEPSPEED_NAME_MAX, "mp_rank_%02" PRIu32 "_%s_states.pt", mp,
			 what);
}

static int by_number(const void *x, const void *y)
{
	const struct dcp_deepspeed_name *a = x, *b = y;

	return DCP_CMP(a->kind, b->kind) ?: DCP_CMP(a->layer, b->layer) ?:
	       DCP_CMP(a->expert, b->expert) ?: DCP_CMP(a->mp, b->mp) ?:
	       DCP_CMP(a->dp, b->dp) ?: strcmp(a->name, b->name);
}

int dcp_deepspeed_list_files(const struct dcp_dir *dir, struct dcp_deepspeed_name **out,
			     size_t *n)
{
	struct dcp_deepspeed_name *f = calloc(dir->n + 1, sizeof(*f));

	*n = 0;
	if (!f)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir &&
		    dcp_deepspeed_name_parse(dir->entries[i].name, &f[*n]))
			++*n;
	DCP_SORT(f, *n, by_number);
	*out = f;
	return 0;
}

const struct dcp_deepspeed_name *dcp_deepspeed_files(const struct dcp_deepspeed *ds,
						     enum dcp_deepspeed_kind kind, size_t *n)
{
	size_t first = 0;

	while (first < ds->nfiles && ds->file[first].kind != kind)
		first++;
	*n = 0;
	while (first + *n < ds->nfiles && ds->file[first + *n].kind == kind)
		++*n;
	return ds->file + first;
}

const struct dcp_deepspeed_part *dcp_deepspeed_part_of(const struct dcp_deepspeed *ds,
						       uint64_t mp)
{
	size_t i;

	DCP_BISECT(i, 0, ds->nparts, ds->part[i].mp < mp);
	return i < ds->nparts && ds->part[i].mp == mp ? &ds->part[i] : NULL;
}

/* Does the file @mark of @above name @version? -1: there is no such file. */
static int is_named(const struct dcp_dir *above, const char *mark, const char *version)
{
	struct dcp_input in;
	char text[300];
	size_t n;

	if (!dcp_dir_find(above, mark) || dcp_dir_input(above, mark, &in, NULL) < 0)
		return -1;
	n = (size_t)DCP_MIN(in.src.size, sizeof(text) - 1);
	if (dcp_source_read(&in.src, 0, text, n) < 0)
		n = 0;
	dcp_input_close(&in);
	text[n] = '\0';
	text[strcspn(text, " \t\r\n")] = '\0';
	return strcmp(text, version) == 0;
}

bool dcp_deepspeed_committed(const struct dcp_dir *above, const char *version)
{
	return !above || is_named(above, "latest", version) > 0 ||
	       is_named(above, "latest_universal", version) > 0;
}

const struct dcp_deepspeed_rank *dcp_deepspeed_rank_of(const struct dcp_deepspeed_part *part,
						       uint64_t dp)
{
	size_t i;

	DCP_BISECT(i, 0, part->nranks, part->rank[i].name->dp < dp);
	return i < part->nranks && part->rank[i].name->dp == dp ? &part->rank[i] : NULL;
}

enum { MAX_LOST = 100 }; /* missing files that are named one by one */

/* Find the first model-parallel rank from @mp on that has no file; false: all have files. */
static bool lacks_part(const struct dcp_deepspeed *ds, uint32_t *mp)
{
	for (; *mp < ds->tp * ds->pp; ++*mp)
		if (!dcp_deepspeed_part_of(ds, *mp))
			return true;
	return false;
}

bool dcp_deepspeed_lacks(const struct dcp_deepspeed *ds, char missing[DCP_DEEPSPEED_NAME_MAX])
{
	uint32_t mp = 0;

	if (lacks_part(ds, &mp) && ds->part->nmodels) {
		dcp_deepspeed_name_of_rank(ds->part->model, 0, mp, missing);
		return true;
	}
	for (size_t i = 0; i < ds->nparts; i++) {
		const struct dcp_deepspeed_part *p = &ds->part[i];

		for (uint32_t r = 0; p->first && r < p->world; r++)
			if (!dcp_deepspeed_rank_of(p, r)) {
				dcp_deepspeed_name_of_rank(p->first, r, p->mp, missing);
				return true;
			}
	}
	return false;
}

int dcp_deepspeed_emit_lost(struct dcp_deepspeed *ds)
{
	char name[DCP_DEEPSPEED_NAME_MAX];
	int rc = 0;

	for (uint32_t mp = 0, n = 0;
	     rc == 0 && n < MAX_LOST && ds->part->nmodels && lacks_part(ds, &mp); mp++, n++) {
		dcp_deepspeed_name_of_rank(ds->part->model, 0, mp, name);
		rc = dcp_deepspeed_emit_broken(
			ds, name,
			dcp_deepspeed_text(
				ds,
				"%s is missing: nothing that only model-parallel rank %" PRIu32
				" of %" PRIu32 " holds can be shown",
				name, mp, ds->tp * ds->pp));
	}
	return rc;
}

/* Parameters with several names (tied weights), and which names are emitted by which source. */

/* ---- reading ---- */

static int add_alias(struct dcp_deepspeed *ds, const char *name, const char *real)
{
	struct dcp_deepspeed_alias a = { dcp_arena_strdup(&ds->arena, name),
					 dcp_arena_strdup(&ds->arena, real) };

	if (!a.name || !a.real)
		return -ENOMEM;
	return dcp_buf_add(&ds->alias, &a, sizeof(a));
}

/* Collect the names to which other names may be tied: trained parameters, and in stage 3 frozen
 * parameters, whose values the model file does not have either. */
static int name_params(const struct dcp_deepspeed_part *part, struct dcp_intern *names)
{
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < part->nparams; i++)
		rc = dcp_intern_str(names, part->param[i].name, NULL);
	for (size_t i = 0; rc >= 0 && i < part->nfrozen; i++)
		rc = dcp_intern_str(names, part->frozen[i].name, NULL);
	return rc;
}

/* Describe in @b the view of a storage that the model's tensor @v is: equal views have equal
 * bytes. */
static bool spell_view(struct dcp_buf *b, const struct dcp_torch *t, struct dcp_pv v)
{
	struct dcp_torch_tensor tt;

	if (dcp_torch_tensor(t, v, &tt, NULL) != 1)
		return false;
	dcp_buf_reset(b);
	dcp_buf_varint(b, tt.storage_off);
	dcp_buf_varint(b, tt.off);
	for (uint32_t d = 0; d < tt.ndim; d++)
		dcp_buf_varint(b, tt.shape[d]);
	return !dcp_buf_error(b);
}

/* Before 0.8 there was no shared_params. Then a tensor that is a view of a parameter's storage
 * under another name is tied to the parameter. */
static int infer_aliases(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part,
			 const struct dcp_deepspeed_input *in, struct dcp_pv module)
{
	struct dcp_intern names = { 0 }, views = { 0 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, owner = DCP_BUF_INIT;
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(module, &n);
	uint32_t number;
	int rc = name_params(part, &names);

	for (int real = 1; rc >= 0 && real >= 0; real--)
		for (size_t i = 0; rc >= 0 && i < n; i++) {
			const char *name = dcp_pv_str(kv[2 * i]), *of;

			if (!name || dcp_intern_has(&names, name) != real ||
			    !spell_view(&b, in->t, kv[2 * i + 1]))
				continue;
			if (real) {
				rc = dcp_intern_add(&views, b.p, b.n, DCP_INTERN_NONE, &number);
				if (rc == 1)
					dcp_buf_add(&owner, &name, sizeof(name));
				continue;
			}
			number = dcp_intern_find(&views, b.p, b.n);
			if (number == DCP_INTERN_NONE)
				continue;
			memcpy(&of, owner.p + number * sizeof(of), sizeof(of));
			rc = add_alias(ds, name, of);
		}
	dcp_intern_finish(&names);
	dcp_intern_finish(&views);
	return rc < 0 || dcp_buf_error(&owner) ? -ENOMEM : 0;
}

int dcp_deepspeed_read_aliases(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part,
			       const struct dcp_deepspeed_input *in)
{
	struct dcp_pv root = dcp_torch_root(in->t);
	const struct dcp_pv shared = dcp_pv_at(root, "shared_params");
	const struct dcp_pv *module = dcp_pv_get(root, "module"), *kv;
	size_t n;
	int rc = 0;

	/* Only the first rank fills shared_params; in the files of other ranks it is empty. */
	if (shared.type == DCP_PV_NONE || part->named->dp != 0)
		return module && part->nparams ? infer_aliases(ds, part, in, *module) : 0;
	kv = dcp_pv_pairs(shared, &n);
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (dcp_pv_str(kv[2 * i]) && dcp_pv_str(kv[2 * i + 1]))
			rc = add_alias(ds, dcp_pv_str(kv[2 * i]), dcp_pv_str(kv[2 * i + 1]));
	return rc;
}

/* ---- looking up ---- */

static int by_real(const void *x, const void *y)
{
	const struct dcp_deepspeed_alias *a = x, *b = y;

	return strcmp(a->real, b->real) ?: strcmp(a->name, b->name);
}

/* Sort the aliases and remove duplicates: every stage may name the same tied weight. */
static int sort_aliases(struct dcp_deepspeed *ds)
{
	struct dcp_deepspeed_alias *a = DCP_ITEMS(ds->alias, struct dcp_deepspeed_alias);
	size_t n = ds->alias.n / sizeof(*a), kept = 0;
	int rc = 0;

	DCP_SORT(a, n, by_real);
	for (size_t i = 0; rc >= 0 && i < n; i++) {
		uint32_t at = (uint32_t)kept;

		if (strcmp(a[i].name, a[i].real) == 0 ||
		    dcp_intern_has(&ds->emitted, a[i].name) ||
		    (kept && by_real(&a[kept - 1], &a[i]) == 0))
			continue;
		a[kept++] = a[i];
		rc = dcp_intern_str(&ds->reals, a[i].real, NULL);
		if (rc == 1)
			dcp_buf_add(&ds->real_at, &at, sizeof(at));
	}
	ds->alias.n = kept * sizeof(*a);
	return rc < 0 || dcp_buf_error(&ds->real_at) ? -ENOMEM : 0;
}

int dcp_deepspeed_name_all(struct dcp_deepspeed *ds)
{
	const struct dcp_deepspeed_alias *a;
	int rc = sort_aliases(ds);

	for (size_t i = 0; rc >= 0 && i < ds->nparts; i++) {
		const struct dcp_deepspeed_part *p = &ds->part[i];

		ds->zero |= p->ngroups > 0;
		for (size_t k = 0; rc >= 0 && (p->ngroups || ds->universal) && k < p->nparams;
		     k++)
			rc = dcp_intern_str(&ds->trained, p->param[k].name, NULL);
		for (size_t k = 0; rc >= 0 && k < p->nfrozen; k++)
			rc = dcp_intern_str(&ds->frozen, p->frozen[k].name, NULL);
	}
	a = DCP_ITEMS(ds->alias, struct dcp_deepspeed_alias);
	for (size_t i = 0; rc >= 0 && i < ds->alias.n / sizeof(*a); i++) {
		if (dcp_intern_has(&ds->trained, a[i].real))
			rc = dcp_intern_str(&ds->trained, a[i].name, NULL);
		else if (dcp_intern_has(&ds->frozen, a[i].real))
			rc = dcp_intern_str(&ds->frozen, a[i].name, NULL);
	}
	return rc < 0 ? -ENOMEM : 0;
}

static const struct dcp_deepspeed_alias *dcp_deepspeed_aliases(const struct dcp_deepspeed *ds,
							       const char *name, size_t *n)
{
	const struct dcp_deepspeed_alias *all =
		DCP_ITEMS(ds->alias, struct dcp_deepspeed_alias);
	uint32_t number = dcp_intern_find(&ds->reals, name, strlen(name)), at, end;

	*n = 0;
	if (number == DCP_INTERN_NONE)
		return NULL;
	memcpy(&at, ds->real_at.p + number * sizeof(at), sizeof(at));
	end = (uint32_t)(ds->alias.n / sizeof(*all));
	if (number + 1 < ds->reals.n)
		memcpy(&end, ds->real_at.p + (number + 1) * sizeof(end), sizeof(end));
	*n = end - at;
	return all + at;
}

int dcp_deepspeed_emit_one(struct dcp_deepspeed *ds, const char *rank, const char *role,
			   const char *name, const struct dcp_tensor *emitted)
{
	const char *path[3] = { rank, role, name };
	struct dcp_tensor t = *emitted;

	if (!t.dtype_name) {
		t.dtype_name = dcp_dtype_info(t.dtype)->name;
		t.itemsize = dcp_dtype_info(t.dtype)->size;
	}
	t.key = NULL;
	t.path = rank ? path : path + 1;
	t.npath = rank ? 3 : 2;
	return dcp_emit_tensor(ds->in->sink, &t);
}

int dcp_deepspeed_emit_tensor(struct dcp_deepspeed *ds, const char *rank, const char *role,
			      const char *name, const struct dcp_tensor *emitted)
{
	dcp_auto_buf struct dcp_buf first = DCP_BUF_INIT;
	const char *path[3] = { rank, role, name };
	struct dcp_tensor t = *emitted;
	const struct dcp_deepspeed_alias *alias;
	size_t n;
	int rc = dcp_deepspeed_emit_one(ds, rank, role, name, &t);

	alias = dcp_deepspeed_aliases(ds, name, &n);
	if (n && !t.alias_of && !t.error) {
		dcp_path_join(&first, rank ? path : path + 1, rank ? 3 : 2);
		t.alias_of = first.p;
	}
	if (dcp_buf_error(&first))
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = dcp_deepspeed_emit_one(ds, rank, role, alias[i].name, &t);
	return rc;
}

int dcp_deepspeed_emit_object(struct dcp_deepspeed *ds, const char *rank, const char *role,
			      const char *name, const char *type, const char *json)
{
	const char *path[3] = { rank, role, name };
	struct dcp_object o = { .path = rank ? path : path + 1,
				.npath = rank ? 3 : 2,
				.type = type,
				.json = json,
				.json_len = strlen(json) };
	const struct dcp_deepspeed_alias *alias;
	size_t n;
	int rc = 0;

	alias = dcp_deepspeed_aliases(ds, name, &n);
	for (size_t i = 0; rc == 0 && i <= n; i++) {
		path[2] = i == 0 ? name : alias[i - 1].name;
		rc = dcp_emit_object(ds->in->sink, &o);
	}
	return rc;
}

int dcp_deepspeed_note_unjoined(struct dcp_deepspeed *ds, const char *name, const char *why,
				const struct dcp_deepspeed_rule *rule)
{
	ds->nunjoined++;
	if (ds->unjoined)
		return 0;
	ds->unjoined = dcp_deepspeed_text(ds, "the first is %.200s: %s%s%.200s%s", name, why,
					  rule->pattern ? " (pattern \"" : "",
					  rule->pattern ? rule->pattern : "",
					  rule->pattern ? "\")" : "");
	return ds->unjoined ? 0 : -ENOMEM;
}

int dcp_deepspeed_emit_facts(struct dcp_deepspeed *ds)
{
	const struct dcp_sink *sink = ds->in->sink;
	int rc = dcp_emit_fact(sink, 0, "framework", "deepspeed%s%s", ds->version[0] ? " " : "",
			       ds->version);

	if (ds->nparts && ds->part->first)
		rc = dcp_emit_fact(sink, rc, "data_parallel_ranks", "%" PRIu32,
				   ds->part->world);
	if (ds->nparts > 1)
		rc = dcp_emit_fact(sink, rc, "model_parallel_ranks",
				   "%" PRIu32 " tensor-parallel, %zu pipeline stage%s", ds->tp,
				   ds->nparts / ds->tp, dcp_s(ds->nparts / ds->tp));
	if (!ds->unjoined)
		return rc;
	return dcp_emit_fact(sink, rc, "unjoined",
			     "%zu tensor%s, given for each tensor-parallel rank, as "
			     "mp_rank_<nn>.*; %s",
			     ds->nunjoined, dcp_s(ds->nunjoined), ds->unjoined);
}
