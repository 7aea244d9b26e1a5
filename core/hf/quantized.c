/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/parse/json.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"

enum { MAX_CONFIG = 16 << 20 };

/* What was found in one module, or below one key. */
struct module {
	bool code, scale;
	uint32_t says; /* the key of a scale, by its number in texts */
};

struct dcp_quantized {
	struct dcp_intern modules;
	struct dcp_buf at;        /* struct module */
	struct dcp_intern scales; /* keys of scales */
	const char *by;
	char config[64]; /* the file that says that the model is quantized; "": none */
};

/* ---- names and dtypes ---- */

static const char *last_of(const char *key)
{
	const char *dot = strrchr(key, '.');

	return dot ? dot + 1 : key;
}

/* Does this name belong to a scale, or to a tensor with a scale, whatever lies beside it? */
static bool is_sure(const char *last)
{
	static const char *const names[] = {
		"qweight",        "weight_packed", "weight_scale", "weight_scale_inv",
		"weight_scale_2", "absmax",        "SCB",          "weight_scale_bytes"
	};

	for (size_t i = 0; i < DCP_LEN(names); i++)
		if (strcmp(last, names[i]) == 0)
			return true;
	return false;
}

/* Does a tensor of this name, beside codes, hold their scales, their offsets or a table of their
 * values? */
static bool is_scale(const char *last)
{
	static const char *const words[] = { "scale",     "absmax",     "qmap",   "quant_map",
					     "SCB",       "codebook",   "qzeros", "zero_point",
					     "centroids", "quant_state" };

	if (strstr(last, "scaler"))
		return false;
	for (size_t i = 0; i < DCP_LEN(words); i++)
		if (strstr(last, words[i]))
			return true;
	return false;
}

/* Does the dtype have few bits, or is it an integer in which codes are packed? U16 is excluded,
 * since it may mean BF16, and so is I64, which is used for counters. */
static bool is_code(const struct dcp_row *row)
{
	static const enum dcp_dtype small[] = {
		DCP_DTYPE_F8_E4M3,     DCP_DTYPE_F8_E5M2, DCP_DTYPE_F8_E4M3FNUZ,
		DCP_DTYPE_F8_E5M2FNUZ, DCP_DTYPE_F8_E8M0, DCP_DTYPE_F4,
		DCP_DTYPE_F6_E2M3,     DCP_DTYPE_F6_E3M2, DCP_DTYPE_I8,
		DCP_DTYPE_U8,          DCP_DTYPE_I16,     DCP_DTYPE_I32,
		DCP_DTYPE_U32,
	};

	for (size_t i = 0; row->ndim && i < DCP_LEN(small); i++)
		if (row->dtype == small[i])
			return true;
	return false;
}

static const struct module *find_module(const struct dcp_quantized *q, const char *key,
					size_t n)
{
	uint32_t i = dcp_intern_find(&q->modules, key, n);

	return i == DCP_INTERN_NONE ? NULL : DCP_ITEMS(q->at, struct module) + i;
}

/* ---- looking ---- */

static int see_row(struct dcp_quantized *q, const struct dcp_row *row)
{
	const char *last = last_of(row->key);
	bool sure = is_sure(last), scale = sure || is_scale(last), code = is_code(row);
	struct module *m, fresh = { 0 };
	uint32_t i;
	int rc = 0;

	if (!scale && !code)
		return 0;
	rc = dcp_intern_add(&q->modules, row->key, (size_t)(last - row->key), DCP_INTERN_NONE,
			    &i);
	if (rc == 1)
		dcp_buf_add(&q->at, &fresh, sizeof(fresh));
	if (rc < 0 || dcp_buf_error(&q->at))
		return -ENOMEM;
	m = DCP_ITEMS(q->at, struct module) + i;
	if (scale && !m->scale)
		rc = dcp_intern_str(&q->scales, row->key, &m->says);
	m->scale |= scale;
	m->code |= sure || (code && !scale);
	return DCP_MIN(rc, 0);
}

static int see_all(struct dcp_quantized *q, const struct dcp_version *v)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, false, &scan);

	while (rc >= 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = see_row(q, &row);
	return rc;
}

/* Does the file @name say that the model is quantized? A file whose name only quantized models have
 * does so by itself. */
static bool says_so(const struct dcp_version *v, const char *name)
{
	static const char *const sure[] = { "hf_quant_config.json", "quantize_config.json",
					    "quant_config.json" };
	dcp_auto_blob struct dcp_blob blob = { 0 };
	dcp_auto_json struct dcp_json *json = NULL;
	struct dcp_source src;

	for (size_t i = 0; i < DCP_LEN(sure); i++)
		if (strcmp(name, sure[i]) == 0)
			return true;
	if (strcmp(name, "config.json") != 0 ||
	    dcp_site_open(dcp_version_place(v), name, &blob, NULL, NULL) < 0)
		return false;
	src = dcp_source_blob(&blob);
	return dcp_json_read(&src, MAX_CONFIG, NULL, &json, NULL) == 0 &&
	       (dcp_json_is_object(dcp_json_get(json, "quantization_config")) ||
		dcp_json_is_object(dcp_json_get(json, "compression_config")));
}

/* Look at the configs beside the weights. */
static void see_configs(struct dcp_quantized *q, const struct dcp_version *v)
{
	size_t n;
	const struct dcp_file_id *id = dcp_index_files(dcp_version_index(v), &n);

	for (size_t i = 0; !*q->config && i < n; i++)
		if (id[i].shown && says_so(v, id[i].name))
			snprintf(q->config, sizeof(q->config), "%s", id[i].name);
}

int dcp_quantized_find(const struct dcp_version *v, const struct dcp_version *base,
		       struct dcp_quantized **out, struct dcp_err *err)
{
	struct dcp_quantized *q = calloc(1, sizeof(*q));
	const struct module *m;
	int rc = q ? see_all(q, v) : -ENOMEM;

	*out = NULL;
	if (rc == 0 && base)
		rc = see_all(q, base);
	if (rc == 0)
		see_configs(q, base ? base : v);
	if (rc == 0 && dcp_hf_config(v) && dcp_hf_config(v)->quantized)
		snprintf(q->config, sizeof(q->config), "config.json");
	m = q ? DCP_ITEMS(q->at, struct module) : NULL;
	for (uint32_t i = 0; rc == 0 && !q->by && i < q->modules.n; i++)
		if (m[i].code && m[i].scale)
			q->by = dcp_intern_text(&q->scales, m[i].says);
	if (rc == 0 && *q->config)
		q->by = q->config;
	if (rc == 0 && q->by)
		*out = q;
	else
		dcp_quantized_free(q);
	return dcp_err_say(err, rc);
}

void dcp_quantized_free(struct dcp_quantized *q)
{
	if (!q)
		return;
	dcp_intern_finish(&q->modules);
	dcp_intern_finish(&q->scales);
	dcp_buf_finish(&q->at);
	free(q);
}

/* ---- asking ---- */

const char *dcp_quantized_by(const struct dcp_quantized *q)
{
	return q->by;
}

const char *dcp_quantized_row(const struct dcp_quantized *q, const struct dcp_row *row)
{
	const char *last = last_of(row->key);
	bool code = is_code(row), scale = is_sure(last) || is_scale(last);
	const struct module *m = q ? find_module(q, row->key, (size_t)(last - row->key)) : NULL;
	dcp_auto_buf struct dcp_buf below = DCP_BUF_INIT;

	if (!q || (!code && !scale))
		return NULL;
	if (m && m->code && m->scale)
		return dcp_intern_text(&q->scales, m->says);
	dcp_buf_printf(&below, "%s.", row->key); /* weight.absmax */
	m = code && !dcp_buf_error(&below) ? find_module(q, below.p, below.n) : NULL;
	if (m && m->scale)
		return dcp_intern_text(&q->scales, m->says);
	return code || *q->config ? q->by : NULL;
}

int dcp_quantized_refuse(const struct dcp_row *row, const char *by, struct dcp_err *err)
{
	return dcp_fail(err, -ENOTSUP,
			"%s belongs to quantized weights, as %s says: codes and scales mean "
			"numbers only together, and dcpfs does not multiply them yet. Take it "
			"as it is stored, without a conversion, or choose other keys",
			row->key, by);
}
