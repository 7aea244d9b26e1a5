/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf_int.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>

#include "core/base/err.h"
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
