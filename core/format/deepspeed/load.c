/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load: what every file of the family needs while a checkpoint is loaded: memory, opened files,
 * places.
 */
#include "core/format/deepspeed/deepspeed_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/format/deepspeed/emit.h"

const char *dcp_ds_text(struct dcp_ds *ds, const char *fmt, ...)
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
	/* A name may be long. */
	if (!dcp_buf_grow(&b, (size_t)n + 1))
		return NULL;
	va_start(ap, fmt);
	vsnprintf(b.p, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return dcp_arena_strdup(&ds->arena, b.p);
}

/* Files are named again when ranks are compared. */
static int note_name(struct dcp_ds *ds, uint32_t number, const char *name)
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

int dcp_ds_open(struct dcp_ds *ds, const char *name, struct dcp_ds_input *out,
		struct dcp_err *why)
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

void dcp_ds_close(struct dcp_ds_input *in)
{
	if (!in->t)
		return;
	dcp_torch_close(in->t);
	dcp_input_close(&in->in);
	in->t = NULL;
}

void dcp_ds_place_tensor(const struct dcp_ds_input *in, const struct dcp_torch_tensor *tt,
			 struct dcp_ds_place *out)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < tt->ndim; d++)
		volume *= tt->shape[d];
	*out = (struct dcp_ds_place){
		.off = tt->off,
		.n = volume,
		.file = in->file,
		.dtype = (uint8_t)tt->dtype,
		.swap = tt->swap,
		.there = tt->row_major && tt->dtype != DCP_DTYPE_OTHER &&
			 tt->filter == DCP_FILTER_NONE,
	};
}

int dcp_ds_take_place(const struct dcp_ds_input *in, struct dcp_pv v, struct dcp_ds_place *out)
{
	struct dcp_torch_tensor tt;
	int rc = dcp_torch_tensor(in->t, v, &tt, NULL);

	if (rc == 1)
		dcp_ds_place_tensor(in, &tt, out);
	return rc == -ENOMEM ? rc : 0;
}

int dcp_ds_emit_broken(struct dcp_ds *ds, const char *file, const char *why)
{
	return why ? dcp_emit_broken(ds->in->sink, file, why) : -ENOMEM;
}

/* Up to nine digits: no job has a billion ranks. */
static bool eat_number(const char **p, uint32_t *out)
{
	uint64_t v = 0;
	bool there = dcp_take_number(p, NULL, 9, &v);

	*out = (uint32_t)v;
	return there;
}

/* "mp_rank_00", and what follows must be @end. */
static bool eat_mp(const char *p, const char *end, struct dcp_ds_name *out)
{
	return dcp_take_text(&p, "mp_rank_") && eat_number(&p, &out->mp) && strcmp(p, end) == 0;
}

/* [bf16_|fp16_]zero_pp_rank_0_mp_rank_00_... */
static bool parse_zero(const char *p, struct dcp_ds_name *out)
{
	bool plain = !dcp_take_text(&p, "bf16_") && !dcp_take_text(&p, "fp16_");

	if (!dcp_take_text(&p, "zero_pp_rank_") || !eat_number(&p, &out->dp) ||
	    !dcp_take_text(&p, "_"))
		return false;
	out->sharded = true;
	out->kind = DCP_DS_OPTIM;
	/* Before 0.3.14 an underscore was forgotten. */
	if (eat_mp(p, "_optim_states.pt", out) || eat_mp(p, "optim_states.pt", out))
		return true;
	out->kind = DCP_DS_MODEL;
	return plain && eat_mp(p, "_model_states.pt", out);
}

/* layer_03-model_01-model_states.pt, layer_0_expert_5_mp_rank_00_model_states.pt */
static bool parse_layer(const char *p, struct dcp_ds_name *out)
{
	if (!dcp_take_text(&p, "layer_") || !eat_number(&p, &out->layer))
		return false;
	if (dcp_take_text(&p, "_expert_")) {
		out->kind = DCP_DS_EXPERT;
		return eat_number(&p, &out->expert) && dcp_take_text(&p, "_") &&
		       eat_mp(p, "_model_states.pt", out);
	}
	out->kind = DCP_DS_LAYER;
	if (dcp_take_text(&p, "-model_states.pt"))
		return !*p;
	return dcp_take_text(&p, "-model_") && eat_number(&p, &out->mp) &&
	       !strcmp(p, "-model_states.pt");
}

bool dcp_ds_name_parse(const char *name, struct dcp_ds_name *out)
{
	const char *p = name;

	*out = (struct dcp_ds_name){ .name = name, .kind = DCP_DS_MODEL };
	if (eat_mp(p, "_model_states.pt", out))
		return true;
	*out = (struct dcp_ds_name){ .name = name };
	if (parse_zero(p, out))
		return true;
	*out = (struct dcp_ds_name){ .name = name };
	if (parse_layer(p, out))
		return true;
	*out = (struct dcp_ds_name){ .name = name, .kind = DCP_DS_EXPERT };
	if (dcp_take_text(&p, "expert_"))
		return eat_number(&p, &out->expert) && dcp_take_text(&p, "_") &&
		       eat_mp(p, "_model_states.pt", out);
	out->kind = DCP_DS_EXPERT_OPTIM;
	return dcp_take_text(&p, "expp_rank_") && eat_number(&p, &out->expert) &&
	       dcp_take_text(&p, "_") && eat_mp(p, "_optim_states.pt", out);
}

void dcp_ds_name_of_rank(const struct dcp_ds_name *like, uint32_t dp, uint32_t mp,
			 char out[DCP_DS_NAME_MAX])
{
	const char *p = like->name;
	const char *what = like->kind == DCP_DS_MODEL ? "model" : "optim";
	int bits = strncmp(p, "bf16_", 5) == 0 || strncmp(p, "fp16_", 5) == 0 ? 5 : 0;
	size_t n = strlen(p);
	/* ".._00optim_states.pt" */
	bool joined = n > 16 && p[n - 16] != '_' && like->kind == DCP_DS_OPTIM;

	if (like->sharded)
		snprintf(out, DCP_DS_NAME_MAX,
			 "%.*szero_pp_rank_%" PRIu32 "_mp_rank_%02" PRIu32 "%s%s_states.pt",
			 bits, p, dp, mp, joined ? "" : "_", what);
	else
		snprintf(out, DCP_DS_NAME_MAX, "mp_rank_%02" PRIu32 "_%s_states.pt", mp, what);
}

static int by_number(const void *x, const void *y)
{
	const struct dcp_ds_name *a = x, *b = y;

	return DCP_CMP(a->kind, b->kind) ?: DCP_CMP(a->layer, b->layer) ?:
	       DCP_CMP(a->expert, b->expert) ?: DCP_CMP(a->mp, b->mp) ?:
	       DCP_CMP(a->dp, b->dp) ?: strcmp(a->name, b->name);
}

int dcp_ds_list_files(const struct dcp_dir *dir, struct dcp_ds_name **out, size_t *n)
{
	struct dcp_ds_name *f = calloc(dir->n + 1, sizeof(*f));

	*n = 0;
	if (!f)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && dcp_ds_name_parse(dir->entries[i].name, &f[*n]))
			++*n;
	DCP_SORT(f, *n, by_number);
	*out = f;
	return 0;
}

const struct dcp_ds_name *dcp_ds_files(const struct dcp_ds *ds, enum dcp_ds_kind kind,
				       size_t *n)
{
	size_t first = 0;

	while (first < ds->nfiles && ds->file[first].kind != kind)
		first++;
	*n = 0;
	while (first + *n < ds->nfiles && ds->file[first + *n].kind == kind)
		++*n;
	return ds->file + first;
}

const struct dcp_ds_part *dcp_ds_part_of(const struct dcp_ds *ds, uint64_t mp)
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

bool dcp_ds_committed(const struct dcp_dir *above, const char *version)
{
	return !above || is_named(above, "latest", version) > 0 ||
	       is_named(above, "latest_universal", version) > 0;
}

const struct dcp_ds_rank *dcp_ds_rank_of(const struct dcp_ds_part *part, uint64_t dp)
{
	size_t i;

	DCP_BISECT(i, 0, part->nranks, part->rank[i].name->dp < dp);
	return i < part->nranks && part->rank[i].name->dp == dp ? &part->rank[i] : NULL;
}

enum { MAX_LOST = 100 }; /* files that are missing, by name */

/* The first model-parallel rank from @mp on that no file is of; false: all have one. */
static bool lacks_part(const struct dcp_ds *ds, uint32_t *mp)
{
	for (; *mp < ds->tp * ds->pp; ++*mp)
		if (!dcp_ds_part_of(ds, *mp))
			return true;
	return false;
}

bool dcp_ds_lacks(const struct dcp_ds *ds, char missing[DCP_DS_NAME_MAX])
{
	uint32_t mp = 0;

	if (lacks_part(ds, &mp) && ds->part->nmodels) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, missing);
		return true;
	}
	for (size_t i = 0; i < ds->nparts; i++) {
		const struct dcp_ds_part *p = &ds->part[i];

		for (uint32_t r = 0; p->first && r < p->world; r++)
			if (!dcp_ds_rank_of(p, r)) {
				dcp_ds_name_of_rank(p->first, r, p->mp, missing);
				return true;
			}
	}
	return false;
}

int dcp_ds_emit_lost(struct dcp_ds *ds)
{
	char name[DCP_DS_NAME_MAX];
	int rc = 0;

	for (uint32_t mp = 0, n = 0;
	     rc == 0 && n < MAX_LOST && ds->part->nmodels && lacks_part(ds, &mp); mp++, n++) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, name);
		rc = dcp_ds_emit_broken(
			ds, name,
			dcp_ds_text(
				ds,
				"%s is missing: nothing that only model-parallel rank %" PRIu32
				" of %" PRIu32 " holds can be shown",
				name, mp, ds->tp * ds->pp));
	}
	return rc;
}
