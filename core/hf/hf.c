/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf_int.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"

/* ---- what a loader asks for ---- */

const char *dcp_hf_missing(const struct dcp_hf *hf)
{
	const char *name = hf->adapter ? hf->adapter->config : "config.json";
	bool found = !name || dcp_made_named(&hf->made, name) ||
		     dcp_assets_has(&hf->assets, name) ||
		     (!hf->adapter && (hf->config || hf->assets.config.n > 0));

	return found ? NULL : name;
}

void dcp_hf_ask(const struct dcp_hf *hf, const char *name, struct dcp_buf *out)
{
	dcp_buf_printf(out, "hf/ has no %s, which %s needs: --hf-assets DIR", name,
		       hf->adapter ? hf->adapter->loader : "from_pretrained");
}

int dcp_hf_find_assets(struct dcp_version *base, const struct dcp_hf_opts *how,
		       const struct dcp_files_opts *files, struct dcp_hf *hf,
		       struct dcp_err *err)
{
	struct dcp_asset_from from = { .extra = how->assets,
				       .where = how->where,
				       .at = dcp_version_place(base),
				       .index = dcp_version_index(base) };
	dcp_auto_free char *source = NULL;
	int code = dcp_source_resolve(how->source, &source);

	if (code < 0)
		return dcp_err_say(err, code);
	from.source = source;
	code = dcp_assets_find(&from, files, &hf->assets, err);
	hf->derived.beside = hf->assets.root;
	hf->derived.nbeside = hf->assets.nroots;
	return code;
}

static int check_assets(const struct dcp_derived *d, struct dcp_err *err)
{
	return dcp_assets_check(&((const struct dcp_hf *)d)->assets, err);
}

static void close_hf(struct dcp_derived *d)
{
	struct dcp_hf *hf = (struct dcp_hf *)d;

	dcp_assets_finish(&hf->assets);
	dcp_made_finish(&hf->made);
	dcp_buf_finish(&hf->tied);
	free(hf->config);
	free(hf);
}

struct dcp_hf *dcp_hf_create(void)
{
	struct dcp_hf *hf = calloc(1, sizeof(*hf));

	if (hf)
		hf->derived = (struct dcp_derived){ .check = check_assets, .close = close_hf };
	return hf;
}

int dcp_hf_ask_config(struct dcp_version *base, const struct dcp_hf_opts *how,
		      struct dcp_buf *out)
{
	struct dcp_index *ix = dcp_version_index(base);
	struct dcp_hf *hf = dcp_hf_create();
	const char *name = NULL;
	int code = hf ? dcp_hf_find_assets(base, how, NULL, hf, NULL) : -ENOMEM;

	if (code == 0)
		code = dcp_made_find(ix, &hf->assets, &hf->made);
	if (code == 0)
		code = dcp_adapter_find(ix, &hf->assets, true, &hf->adapter);
	if (code >= 0)
		name = dcp_hf_missing(hf);
	if (name)
		dcp_hf_ask(hf, name, out);
	if (hf)
		close_hf(&hf->derived);
	return code < 0 ? code : dcp_buf_error(out) < 0 ? -ENOMEM : name != NULL;
}

/* ---- what it has ---- */

const struct dcp_hf *dcp_hf_of(const struct dcp_version *v)
{
	return (const struct dcp_hf *)dcp_version_derived(v);
}

const struct dcp_rules_config *dcp_hf_config(const struct dcp_version *v)
{
	return dcp_hf_of(v) ? dcp_hf_of(v)->config : NULL;
}

const struct dcp_assets *dcp_hf_assets(const struct dcp_version *v)
{
	return dcp_hf_of(v) ? &dcp_hf_of(v)->assets : NULL;
}

int dcp_hf_open_asset(struct dcp_version *v, size_t i, struct dcp_view **out,
		      struct dcp_err *err)
{
	const struct dcp_assets *a = dcp_hf_assets(v);

	if (!a || i >= a->n)
		return dcp_err_say(err, -ENOENT);
	return dcp_view_open_beside(v, a->at[i].root, a->at[i].number, out, err);
}

bool dcp_hf_next_file(const struct dcp_version *v, size_t *i, struct dcp_hf_file *out)
{
	const struct dcp_hf *hf = dcp_hf_of(v);
	size_t nmade = hf ? DCP_NITEMS(hf->made, struct dcp_made) : 0, number;

	if (*i < nmade) {
		const struct dcp_made *m = &DCP_ITEMS(hf->made, const struct dcp_made)[*i];

		*out = (struct dcp_hf_file){ m->name, m->text.n, m, (*i)++ };
		return true;
	}
	while (hf && (number = (*i)++ - nmade) < hf->assets.n) {
		const char *name = hf->assets.at[number].name;

		*out = (struct dcp_hf_file){ name, dcp_asset_id(&hf->assets, number)->size,
					     NULL, number };
		if (!dcp_made_named(&hf->made, name))
			return true;
	}
	return false;
}

bool dcp_hf_has_file(const struct dcp_version *v, const char *name)
{
	struct dcp_hf_file f;

	for (size_t i = 0; dcp_hf_next_file(v, &i, &f);)
		if (fnmatch(name, f.name, 0) == 0)
			return true;
	return false;
}

const char *dcp_hf_inferred(const struct dcp_version *v)
{
	const struct dcp_hf *hf = dcp_hf_of(v);
	const struct dcp_made *config = hf ? dcp_made_named(&hf->made, "config.json") : NULL;

	return config ? config->from : NULL;
}

const struct dcp_adapter *dcp_hf_adapter(const struct dcp_version *v)
{
	return dcp_hf_of(v) ? dcp_hf_of(v)->adapter : NULL;
}

const char *dcp_hf_stem(const struct dcp_version *v)
{
	const struct dcp_rules_config *c = dcp_hf_config(v);

	return dcp_hf_adapter(v)       ? dcp_hf_adapter(v)->stem
	       : c && c->class_name[0] ? "diffusion_pytorch_model"
				       : "model";
}

size_t dcp_hf_ntied(const struct dcp_version *v)
{
	return dcp_hf_of(v) ? DCP_NITEMS(dcp_hf_of(v)->tied, int64_t) : 0;
}

bool dcp_hf_is_tied(const struct dcp_version *v, int64_t id)
{
	for (size_t i = 0; i < dcp_hf_ntied(v); i++)
		if (DCP_ITEMS(dcp_hf_of(v)->tied, const int64_t)[i] == id)
			return true;
	return false;
}

/* ---- adapter ---- */

static const char peft_json[] = "adapter_config.json";

static const struct dcp_adapter peft = {
	.stem = "adapter_model",
	.config = peft_json,
	.loader = "PEFT",
	.use = "    PeftModel.from_pretrained(model, \"<this directory>\")\n"
	       "    vllm serve MODEL --enable-lora --lora-modules NAME=<this directory>\n"
};
static const struct dcp_adapter mlx = {
	.stem = "adapters",
	.config = peft_json,
	.loader = "MLX",
	.use = "    mlx_lm.generate --model MODEL --adapter-path <this directory>\n"
};
static const struct dcp_adapter pipeline = {
	.stem = "pytorch_lora_weights",
	.loader = "diffusers",
	.use = "    pipeline.load_lora_weights(\"<this directory>\")    # of diffusers\n"
	       "\nComfyUI and others take the file itself.\n"
};
static const struct dcp_adapter plain = {
	.stem = "adapter_model",
	.use = "The program that saved it loads it: its keys are as they were saved.\n"
};

/* The name of every tensor of a model that PEFT wraps says so, so some keys here and there do. */
enum { WRAPPED_PLACES = 4, WRAPPED_KEYS = 64 };

/* Facts about the keys seen so far. */
struct keys {
	bool any, peft, all_peft, lora, all_lora, lower, of_text;
};

static bool begins_with_any(const char *key, const char *const *with, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strncmp(key, with[i], strlen(with[i])) == 0)
			return true;
	return false;
}

static void look_at(struct keys *k, const char *key)
{
	static const char *const of_peft[] = { "base_model.", "prompt_embeddings",
					       "prefix_task_" };
	static const char *const of_text[] = { "model.layers.", "layers.", "transformer.h." };
	enum dcp_lora lora = dcp_rules_lora(key);
	size_t n = strlen(key);

	k->any = true;
	k->peft |= strstr(key, "base_model.model.") != NULL ||
		   begins_with_any(key, of_peft + 1, DCP_LEN(of_peft) - 1);
	k->all_peft &= begins_with_any(key, of_peft, DCP_LEN(of_peft));
	k->lora |= lora == DCP_LORA_YES;
	k->all_lora &= lora != DCP_LORA_NO;
	k->lower |= dcp_ends_with(key, n, ".lora_a");
	k->of_text |= begins_with_any(key, of_text, DCP_LEN(of_text));
}

/*
 * Look at keys from row @after on. All keys are read as long as every key so far may belong to an
 * adapter; otherwise, if @wrapped, up to WRAPPED_KEYS, until a key shows that PEFT wraps the model.
 */
static int look_from(struct dcp_index *ix, int64_t after, bool wrapped, struct keys *k)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	size_t n = 0;
	int rc = dcp_index_scan(ix, DCP_ROW_TENSOR, after, true, &scan);

	while (rc >= 0 &&
	       (k->all_peft || k->all_lora || (wrapped && !k->peft && n < WRAPPED_KEYS)) &&
	       (rc = dcp_index_scan_next(scan, &row)) > 0) {
		look_at(k, row.key);
		n++;
	}
	return rc < 0 ? rc : 0;
}

int dcp_adapter_find(struct dcp_index *ix, const struct dcp_assets *assets, bool wrapped,
		     const struct dcp_adapter **out)
{
	const struct dcp_index_counts *counts = dcp_index_counts(ix);
	int64_t last = (int64_t)(counts->tensors + counts->objects) - WRAPPED_KEYS, at = 0;
	struct keys k = { .all_peft = true, .all_lora = true };
	bool config = !assets->config.n && dcp_assets_has(assets, peft_json);
	int rc = look_from(ix, 0, wrapped, &k);

	/* As long as every key may belong to an adapter, none was skipped. */
	while (rc == 0 && wrapped && !k.peft && !k.all_peft && !k.all_lora && at < last) {
		at += (last + WRAPPED_PLACES - 2) / (WRAPPED_PLACES - 1);
		rc = look_from(ix, DCP_MIN(at, last), wrapped, &k);
	}
	if (rc < 0)
		return rc;
	*out = k.peft && (wrapped || k.all_peft) ? &peft
	       : !k.lora || !k.all_lora          ? config ? &peft : NULL
	       : config                          ? k.lower ? &mlx : &peft
	       : k.of_text                       ? &plain
						 : &pipeline;
	return 1;
}

/* Distributes the tensors over the files of the model. */

enum { PLAN_MEMORY = 1 << 30 }; /* names of keys */

struct plan {
	struct dcp_arena arena;
	struct dcp_buf items; /* struct dcp_safetensors_item, by row */
	const struct dcp_version *v;
};

static int add_item(struct plan *p, const struct dcp_row *row)
{
	struct dcp_safetensors_item item = { .number = (uint64_t)row->id,
					     .nbytes = row->nbytes,
					     .itemsize = dcp_dtype_info(row->dtype)->size };

	if (row->broken || dcp_hf_is_tied(p->v, row->id) ||
	    !dcp_view_can_show(row->key, row->dtype, DCP_AS_SAFETENSORS))
		return 0;
	item.key = dcp_arena_strdup(&p->arena, row->key);
	dcp_buf_add(&p->items, &item, sizeof(item));
	return item.key && !dcp_buf_error(&p->items) ? 0 : -ENOMEM;
}

static int arrange_items(struct dcp_hf_weights *out, struct plan *p, uint64_t size)
{
	struct dcp_safetensors_item *item = DCP_ITEMS(p->items, struct dcp_safetensors_item);
	size_t n = DCP_NITEMS(p->items, struct dcp_safetensors_item);

	out->row = calloc(n + 1, sizeof(*out->row));
	out->first = calloc(n + 2, sizeof(*out->first));
	if (!out->row || !out->first)
		return -ENOMEM;
	if (n)
		out->nfiles = dcp_safetensors_arrange(item, n, size, out->first);
	for (size_t i = 0; i < n; i++) {
		out->row[i] = (int64_t)item[i].number;
		out->nbytes += item[i].nbytes;
	}
	return 0;
}

int dcp_hf_weights_plan(struct dcp_version *v, uint64_t size, struct dcp_hf_weights *out)
{
	struct plan p = { .arena = DCP_ARENA_INIT(PLAN_MEMORY), .v = v };
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = add_item(&p, &row);
	if (rc == 0)
		rc = arrange_items(out, &p, dcp_hf_adapter(v) ? UINT64_MAX : size);
	dcp_arena_finish(&p.arena);
	dcp_buf_finish(&p.items);
	return rc;
}

/* Where a row belongs: row @id is tensor number @at of a file. */
struct placed {
	uint64_t id;
	size_t at;
};

struct kept_row {
	const char *key, *name;
	uint64_t nbytes, *shape;
	enum dcp_dtype dtype;
	uint32_t ndim;
};

/* Rows are requested in ascending order, in one pass. */
static int keep_rows(struct dcp_index *ix, const struct placed *p, size_t n,
		     struct kept_row *out, struct dcp_arena *arena)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	size_t i = 0;
	int rc = dcp_index_scan(ix, DCP_ROW_TENSOR, (int64_t)p[0].id - 1, false, &scan);

	if (rc < 0)
		return rc;
	while (i < n && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct kept_row *to = &out[p[i].at];

		if ((uint64_t)row.id != p[i].id)
			continue;
		i++;
		*to = (struct kept_row){ .key = dcp_arena_strdup(arena, row.key),
					 .name = dcp_arena_strdup(arena, row.name),
					 .shape = dcp_arena_calloc(arena, row.ndim + 1,
								   sizeof(*to->shape)),
					 .nbytes = row.nbytes,
					 .dtype = row.dtype,
					 .ndim = row.ndim };
		if (!to->key || !to->name || !to->shape) {
			rc = -ENOMEM;
			break;
		}
		memcpy(to->shape, row.shape, row.ndim * sizeof(*to->shape));
	}
	return rc < 0 ? rc : i < n ? -EBADMSG : 0;
}

int dcp_hf_weights_rows(const struct dcp_version *v, const struct dcp_hf_weights *w, size_t n,
			int (*fn)(void *ctx, struct dcp_row *row), void *ctx)
{
	size_t first, count;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(PLAN_MEMORY);
	struct kept_row *rows;
	struct placed *p;
	int rc = -ENOMEM;

	if (n >= w->nfiles)
		return -ENOENT;
	first = w->first[n];
	count = w->first[n + 1] - first;
	if (count == 0)
		return 0;
	p = dcp_arena_calloc(&arena, count, sizeof(*p));
	rows = dcp_arena_calloc(&arena, count, sizeof(*rows));
	if (p && rows) {
		for (size_t i = 0; i < count; i++)
			p[i] = (struct placed){ (uint64_t)w->row[first + i], i };
		DCP_SORT(p, count, dcp_by_u64);
		rc = keep_rows(dcp_version_index(v), p, count, rows, &arena);
	}
	for (size_t i = 0; rc == 0 && i < count; i++) {
		struct dcp_row row = { .id = w->row[first + i],
				       .key = rows[i].key,
				       .name = rows[i].name,
				       .nbytes = rows[i].nbytes,
				       .dtype = rows[i].dtype,
				       .ndim = rows[i].ndim };

		memcpy(row.shape, rows[i].shape, row.ndim * sizeof(*row.shape));
		rc = fn(ctx, &row);
	}
	return rc;
}

void dcp_hf_weights_name(const struct dcp_version *v, const struct dcp_hf_weights *w, size_t n,
			 char name[DCP_SAFETENSORS_NAME])
{
	dcp_safetensors_file_name(name, dcp_hf_stem(v), n, w->nfiles);
}

void dcp_hf_weights_finish(struct dcp_hf_weights *w)
{
	free(w->row);
	free(w->first);
}
