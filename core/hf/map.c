/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/model/tensor.h"
#include "core/parse/json.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"

enum { ROW_MEMORY = 512 << 20 };

struct mapping {
	struct dcp_version *base;
	const struct dcp_rules *rules;
	struct dcp_rules *found;      /* the rules that were found, if the caller gave none */
	const char *part;             /* map the keys that begin with this and a dot, or */
	const char *name;             /* the keys with this component */
	struct dcp_rules_place place; /* where the model lies, below the part */
	bool placed;      /* @place is known, and only keys of the model are mapped */
	uint64_t outside; /* number of keys that are not the model's */
	char adapter[DCP_RULES_ADAPTER_WORDS]
		    [16]; /* what adapter_config.json says; "": nothing */
	struct dcp_rules_config config;
	bool has_config;
	struct dcp_quantized *
		quantized; /* quantized tensors of the base; set only if tensors are to be cast */
	enum dcp_dtype cast;
	const struct dcp_sink *sink; /* set while rows are emitted */
	int emitted;                 /* result of the last emit */
	struct dcp_buf unused;       /* rules that no key fits */
};

/* The key or file that shows that the model is quantized, so that no tensor is cast; NULL: not
 * quantized. Scales are valid only in their own dtype, and codes only with their scales. */
static const char *kept_by(const struct mapping *m)
{
	if (m->quantized)
		return dcp_quantized_by(m->quantized);
	return m->has_config && m->config.quantized ? "config.json" : NULL;
}

/* ---- the source of the rules ---- */

static int list_keys(void *ctx, int (*fn)(void *fn_ctx, uint64_t number, const char *key),
		     void *fn_ctx, struct dcp_err *err)
{
	struct mapping *m = ctx;
	size_t part = m->part ? strlen(m->part) : 0;
	size_t prefix = m->placed ? strlen(m->place.prefix.p) : 0;
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(m->base), DCP_ROW_TENSOR, 0, true, &scan);

	m->outside = 0;
	while (rc >= 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		const char *key = row.key;

		if (m->part && (strncmp(key, m->part, part) != 0 || key[part] != '.'))
			key = NULL;
		else if (m->part)
			key += part + 1;
		if (!key || (m->placed && !dcp_rules_is_placed(&m->place, key)))
			m->outside++;
		else
			rc = fn(fn_ctx, (uint64_t)row.id, key + prefix);
	}
	return dcp_err_say(err, rc);
}

/* Use the requested part as a prefix of keys or, if no key begins with it, as a name inside
 * keys. */
static int find_part(struct mapping *m, struct dcp_err *err)
{
	int rc = m->part ? dcp_hf_part(m->base, m->part, err) : 1;

	if (rc == 0) {
		m->name = m->part;
		m->part = NULL;
	}
	return DCP_MIN(rc, 0);
}

static int get_tensor(void *ctx, uint64_t number, struct dcp_arena *arena,
		      struct dcp_tensor *out, struct dcp_err *err)
{
	const struct mapping *m = ctx;

	return dcp_index_tensor(dcp_version_index(m->base), (int64_t)number, arena, out, err);
}

static struct dcp_rules_source source_of(struct mapping *m)
{
	struct dcp_rules_source from = {
		.list = list_keys,
		.tensor = get_tensor,
		.ctx = m,
		.config = m->has_config ? &m->config : NULL,
		.framework = dcp_index_meta(dcp_version_index(m->base), "framework"),
		.qkv_order = dcp_index_meta(dcp_version_index(m->base), "query_key_value"),
		.part = m->name,
		.cast = kept_by(m) ? DCP_DTYPE_OTHER : m->cast
	};

	for (size_t i = 0; i < DCP_RULES_ADAPTER_WORDS; i++)
		from.adapter[i] = m->adapter[i][0] ? m->adapter[i] : NULL;
	from.files = dcp_index_files(dcp_version_index(m->base), &from.nfiles);
	return from;
}

/* ---- what becomes of it ---- */

/* Give a key that no rule matches an entry of its own, so that readers see that it is missing. */
static void say_key(void *ctx, enum dcp_rules_what what, const char *key, unsigned line,
		    const char *text)
{
	struct mapping *m = ctx;
	const struct dcp_object o = {
		.key = key, .path = &key, .npath = 1, .type = "unmapped", .error = text
	};

	if (what == DCP_RULES_UNUSED)
		dcp_buf_printf(&m->unused, "%s%u", m->unused.n ? " " : "", line);
	if (what == DCP_RULES_UNMATCHED && m->emitted == 0)
		m->emitted = dcp_emit_object(m->sink, &o);
}

static int emit_number(const struct dcp_sink *sink, const char *name, uint64_t n)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
	return dcp_emit_meta(sink, name, text);
}

static int emit_report(struct mapping *m, const struct dcp_rules_report *r)
{
	const struct {
		const char *name;
		uint64_t n;
	} numbers[] = { { "mapped", r->mapped },
			{ "dropped", r->dropped + m->outside },
			{ "unmatched", r->unmatched },
			{ "collisions", r->collisions },
			{ "failed", r->failed } };
	int code = 0;

	for (size_t i = 0; code == 0 && i < DCP_LEN(numbers); i++)
		code = emit_number(m->sink, numbers[i].name, numbers[i].n);
	if (code == 0 && m->unused.n && !dcp_buf_error(&m->unused))
		code = dcp_emit_meta(m->sink, "unused", m->unused.p);
	return code;
}

/* Pass on __metadata__ of the files except for the format: mapped tensors are in torch's format. */
static int emit_metadata(const struct mapping *m)
{
	const char *own = dcp_index_meta(dcp_version_index(m->base), "metadata");
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_jsonw w;

	if (!own)
		return 0;
	dcp_jsonw_init(&w, &text, false);
	dcp_safetensors_begin_meta(&w, "pt", own);
	dcp_jsonw_end(&w);
	return dcp_jsonw_error(&w) < 0 ? dcp_jsonw_error(&w)
				       : dcp_emit_meta(m->sink, "metadata", text.p);
}

/* Emit where the mapped model lies in the keys, and where other models lie. */
static int emit_place(struct mapping *m)
{
	const struct dcp_buf *others = &m->place.others;
	dcp_auto_buf struct dcp_buf list = DCP_BUF_INIT;
	int code = 0;

	for (size_t i = 0; i < others->n; i += strlen(others->p + i) + 1)
		dcp_buf_printf(&list, "%s%s", i ? ", " : "", others->p + i);
	if (*m->place.prefix.p)
		code = dcp_emit_meta(m->sink, "prefix", m->place.prefix.p);
	if (code == 0 && others->n)
		code = dcp_buf_error(&list) ? -ENOMEM
					    : dcp_emit_meta(m->sink, "others", list.p);
	return code;
}

/* Emit the facts of the base that users see, and how the mapped version was made. */
static int emit_facts(struct mapping *m)
{
	static const char *const kept[] = { "dcpfs_version", "format",        "version",
					    "source",        "commit_ns",     "framework",
					    "variant",       "inferred",      "lists",
					    "metadata_lost", "metadata_files" };
	const struct dcp_sink *sink = m->sink;
	int code = 0;

	for (size_t i = 0; code == 0 && i < DCP_LEN(kept); i++) {
		const char *value = dcp_index_meta(dcp_version_index(m->base), kept[i]);

		if (value)
			code = dcp_emit_meta(sink, kept[i], value);
	}
	if (code == 0)
		code = emit_metadata(m);
	if (code == 0 && m->part)
		code = dcp_emit_meta(sink, "part", m->part);
	if (code == 0 && m->placed)
		code = emit_place(m);
	if (code == 0 && m->cast)
		code = dcp_emit_meta(sink, kept_by(m) ? "kept" : "cast",
				     dcp_dtype_info(m->cast)->name);
	if (code == 0 && m->cast && kept_by(m))
		code = dcp_emit_meta(sink, "kept_by", kept_by(m));
	return code < 0 ? code : dcp_emit_meta(sink, "rules", dcp_rules_name(m->rules));
}

static int emit_mapped(void *ctx, const struct dcp_sink *sink, struct dcp_err *err)
{
	struct mapping *m = ctx;
	struct dcp_rules_source from = source_of(m);
	struct dcp_rules_report report = { .say = say_key, .ctx = m };
	int code;

	m->sink = sink;
	m->emitted = 0;
	dcp_buf_reset(&m->unused);
	code = emit_facts(m);
	if (code == 0)
		code = dcp_rules_map(m->rules, &from, sink, &report, err);
	if (code == 0)
		code = m->emitted;
	return code < 0 ? code : emit_report(m, &report);
}

/* ---- which ---- */

static uint64_t hash_all(const struct mapping *m)
{
	uint64_t rules = dcp_rules_hash(m->rules), hash = dcp_hash64(&rules, sizeof(rules));

	if (m->part)
		hash = dcp_hash64_more(hash, m->part, strlen(m->part));
	if (m->name)
		hash = dcp_hash64_more(hash, m->name, strlen(m->name) + 1);
	if (m->placed) {
		hash = dcp_hash64_more(hash, m->place.prefix.p, m->place.prefix.n);
		hash = dcp_hash64_more(hash, m->place.others.p, m->place.others.n);
	}
	for (size_t i = 0; i < DCP_RULES_ADAPTER_WORDS; i++)
		if (m->adapter[i][0])
			hash = dcp_hash64_more(dcp_hash64_more(hash, &i, sizeof(i)),
					       m->adapter[i], strlen(m->adapter[i]));
	if (m->cast)
		hash = dcp_hash64_more(hash, &m->cast, sizeof(m->cast));
	if (m->has_config)
		hash = dcp_hash64_more(hash, &m->config, sizeof(m->config));
	return hash;
}

static int read_config(struct mapping *m, struct dcp_hf *hf,
		       const struct dcp_rules_config *given, const struct dcp_log *log)
{
	struct dcp_assets *a = &hf->assets;
	struct dcp_err err = { 0 };
	int code = dcp_made_find(dcp_version_index(m->base), a, &hf->made);

	if (code < 0)
		return code;
	m->has_config = given != NULL;
	if (given)
		m->config = *given;
	if (given || !a->config.n)
		return 0;
	m->has_config = dcp_rules_config_parse(a->config.p, a->config.n, &m->config, &err) == 0;
	if (!m->has_config)
		dcp_log(log, DCP_LOG_WARN, "%s: config.json: %s", dcp_version_name(m->base),
			err.msg);
	if (!m->cast || !m->has_config || kept_by(m))
		return 0;
	if (m->config.dtype)
		m->config.dtype = m->cast;
	return dcp_made_retype(a, m->cast, &hf->made);
}

/* Read a text, true, false or null (also for a missing member, as PEFT does); "": anything else. */
static void read_word(const struct dcp_json *v, char out[16])
{
	int yes = -1;
	double number;

	dcp_json_bool(v, &yes);
	if (dcp_json_str(v))
		snprintf(out, 16, "%s", dcp_json_str(v));
	else if (yes >= 0)
		strcpy(out, yes ? "true" : "false");
	else if (!dcp_json_is_object(v) && !dcp_json_is_array(v) && !dcp_json_f64(v, &number))
		strcpy(out, "null");
}

/* Read adapter_config.json: no key says, for instance, which biases of the model belong to the
 * adapter. */
static int read_adapter(struct mapping *m, const struct dcp_hf *hf)
{
	static const char name[] = "adapter_config.json";
	const struct dcp_made *made = dcp_made_named(&hf->made, name);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	dcp_auto_json struct dcp_json *json = NULL;

	if (made)
		dcp_buf_add(&text, made->text.p, made->text.n);
	else
		dcp_assets_read(&hf->assets, name, &text);
	if (!text.n || dcp_json_parse(text.p, text.n, &json, NULL) < 0)
		return dcp_buf_error(&text);
	for (size_t i = 0; i < DCP_RULES_ADAPTER_WORDS; i++)
		read_word(dcp_json_get(json, dcp_rules_adapter_words[i]), m->adapter[i]);
	return 0;
}

/* ---- a part by its name: keys that begin with it, or have it between dots ---- */

/* No key has the requested prefix: list the first components of keys in the message. */
static int fail_no_part(struct dcp_version *base, const char *asked, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf list = DCP_BUF_INIT;
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	char part[5][68];
	size_t n = 0, i;

	if (dcp_index_scan(dcp_version_index(base), DCP_ROW_TENSOR, 0, false, &scan) < 0)
		return dcp_err_say(err, -EIO);
	while (n < DCP_LEN(part) && dcp_index_scan_next(scan, &row) > 0) {
		snprintf(part[n], sizeof(part[n]), "\"%.*s.\"",
			 (int)DCP_MIN(strcspn(row.key, "."), 64), row.key);
		for (i = 0; strcmp(part[i], part[n]) != 0; i++)
			;
		if (i < n)
			continue;
		dcp_buf_printf(&list, "%s%s", n ? ", " : "", part[n]);
		n++;
	}
	return dcp_fail(err, -ENOKEY, "no key begins with \"%.100s.\"; they begin with %s%s",
			asked, list.p ? list.p : "nothing", n == DCP_LEN(part) ? ", ..." : "");
}

/* Is @name a component of the key, other than the first? */
static bool has_component(const char *key, const char *name)
{
	size_t n = strlen(name);

	while ((key = strchr(key, '.')))
		if (strncmp(++key, name, n) == 0 && (!key[n] || key[n] == '.'))
			return true;
	return false;
}

int dcp_hf_part(struct dcp_version *base, const char *part, struct dcp_err *err)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	size_t n = strlen(part);
	struct dcp_row row;
	bool named = false;
	int rc = dcp_index_scan(dcp_version_index(base), DCP_ROW_TENSOR, 0, true, &scan);

	while (rc >= 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		if (strncmp(row.key, part, n) == 0 && row.key[n] == '.')
			return 1;
		named |= has_component(row.key, part);
	}
	if (rc < 0)
		return dcp_err_say(err, rc);
	return named ? 0 : fail_no_part(base, part, err);
}

/* ---- tied tensors ---- */

/* Append where the bytes of @key are stored, and their dtype; false: there is no such key. */
static bool pack_tensor(struct dcp_index *ix, const char *key, int64_t *id, struct dcp_buf *out)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(ROW_MEMORY);
	struct dcp_tensor t;
	struct dcp_row row;
	bool there;

	there = dcp_index_by_key(ix, DCP_ROW_TENSOR, key, &arena, &row) == 0 && !row.broken &&
		dcp_index_tensor(ix, row.id, &arena, &t, NULL) == 0;
	if (there) {
		*id = row.id;
		dcp_buf_str(out, t.dtype_name);
		dcp_buf_add(out, &t.dtype, sizeof(t.dtype));
		dcp_buf_add(out, t.shape, t.ndim * sizeof(*t.shape));
		dcp_pack_pieces(out, &t);
	}
	return there && !dcp_buf_error(out);
}

static void find_tied(const struct mapping *m, struct dcp_index *ix, struct dcp_buf *tied)
{
	const char *key, *of;

	for (size_t i = 0; m->config.tie == 1 && dcp_rules_tie(m->rules, i, &key, &of); i++) {
		dcp_auto_buf struct dcp_buf a = DCP_BUF_INIT, b = DCP_BUF_INIT;
		int64_t id, unused;

		if (pack_tensor(ix, key, &id, &a) && pack_tensor(ix, of, &unused, &b) &&
		    a.n == b.n && memcmp(a.p, b.p, a.n) == 0)
			dcp_buf_add(tied, &id, sizeof(id));
	}
}

/* ---- opening ---- */

/*
 * Find the preset for the keys of the base. For a Hugging Face model config.json tells which keys
 * are the model's, whatever wraps the model; then the preset only says how these keys are stored.
 */
static int find_rules(struct mapping *m, struct dcp_rules **out, struct dcp_err *err)
{
	struct dcp_rules_source from = source_of(m);
	struct dcp_rules_preset preset;
	int code = dcp_rules_find_place(&from, &m->place, err);

	from.placed = code > 0;
	if (code >= 0)
		code = dcp_rules_detect(&from, &preset, err);
	if (code == 0 && from.placed && strcmp(preset.name, "hf") == 0) {
		m->placed = true;
		from.placed = false;
		code = dcp_rules_detect(&from, &preset, err);
	}
	return code < 0 ? code : dcp_rules_preset(preset.name, out, err);
}

/* Fail if the rules match no key, since an empty model would hide that mistake. The message names a
 * key, the nearest rule, and the preset that the keys need. */
static int check_any(struct mapping *m, struct dcp_index *ix, struct dcp_err *err)
{
	uint64_t left = dcp_index_meta_number(ix, "unmatched"),
		 dropped = dcp_index_meta_number(ix, "dropped");
	struct dcp_rules_source from = source_of(m);
	struct dcp_rules_preset preset;
	char why[600] = "", other[100] = "";
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(ROW_MEMORY);
	struct dcp_object o;
	struct dcp_row row;
	bool near = false;
	int code;

	if (dcp_index_meta_number(ix, "mapped") + dcp_index_meta_number(ix, "collisions") +
		    dcp_index_meta_number(ix, "failed") ||
	    left + dropped == 0)
		return 0;
	code = dcp_rules_detect(&from, &preset, err);
	if (code == 0)
		code = dcp_index_scan(ix, DCP_ROW_OBJECT, 0, false, &scan);
	if (code < 0)
		return dcp_err_say(err, code);
	while (!near && dcp_index_scan_next(scan, &row) > 0) {
		if (dcp_index_object(ix, row.id, &arena, &o, NULL) == 0 && o.error) {
			near = strstr(o.error, "nearest") != NULL;
			if (near || !*why)
				snprintf(why, sizeof(why), ": %.250s: %.300s", row.key,
					 o.error);
		}
		dcp_arena_reset(&arena);
	}
	if (strcmp(preset.name, dcp_rules_name(m->rules)) != 0)
		snprintf(other, sizeof(other), "; its keys need the preset %s (auto)",
			 preset.name);
	return dcp_fail(err, -ENOKEY,
			"no key comes out (rules: %.200s): %llu dropped, %llu left out%s%s",
			dcp_rules_name(m->rules), (unsigned long long)dropped,
			(unsigned long long)left, why, other);
}

/* Determine everything that decides the result of the mapping. */
static int prepare_mapping(struct mapping *m, struct dcp_hf *hf, const struct dcp_hf_opts *how,
			   const struct dcp_log *log, struct dcp_err *err)
{
	int code = m->cast ? dcp_quantized_find(m->base, NULL, &m->quantized, err) : 0;

	if (code == 0)
		code = dcp_err_say(err, read_config(m, hf, how->config, log));
	if (code == 0)
		code = dcp_err_say(err, read_adapter(m, hf));
	if (code == 0)
		code = find_part(m, err);
	if (code == 0 && m->has_config) {
		hf->config = malloc(sizeof(m->config));
		if (!hf->config)
			return dcp_err_say(err, -ENOMEM);
		*hf->config = m->config;
	}
	if (code == 0 && !m->rules) {
		code = find_rules(m, &m->found, err);
		m->rules = m->found;
	}
	return code;
}

static int find_rest(const struct mapping *m, struct dcp_hf *hf, struct dcp_index *ix)
{
	int code;

	find_tied(m, ix, &hf->tied);
	code = dcp_adapter_find(ix, &hf->assets, false, &hf->adapter);
	/* This file would make transformers load the base model that it names, not the model beside
	 * it. */
	if (m->placed && !hf->adapter)
		dcp_assets_drop(&hf->assets, "adapter_config.json");
	return code < 0 ? code : dcp_buf_error(&hf->tied);
}

int dcp_hf_open(struct dcp_version *base, const struct dcp_hf_opts *how,
		const struct dcp_store_opts *opts, struct dcp_version **out,
		struct dcp_err *err)
{
	struct mapping m = {
		.base = base, .rules = how->rules, .part = how->part, .cast = how->cast
	};
	struct dcp_derive derive = { .name = "hf", .emit = emit_mapped, .ctx = &m };
	struct dcp_version *v = NULL;
	struct dcp_hf *hf = dcp_hf_create();
	int code = hf ? dcp_hf_find_assets(base, how, dcp_files_opts(dcp_version_files(base)),
					   hf, err)
		      : dcp_err_say(err, -ENOMEM);

	if (code == 0)
		code = prepare_mapping(&m, hf, how, opts->log, err);
	if (code == 0) {
		derive.hash = hash_all(&m);
		code = dcp_version_derive(base, &derive, &hf->derived, opts, &v, err);
	}
	if (code == 0)
		code = dcp_err_say(err, find_rest(&m, hf, dcp_version_index(v)));
	if (code == 0 && !how->even_none)
		code = check_any(&m, dcp_version_index(v), err);
	dcp_rules_free(m.found);
	dcp_rules_place_finish(&m.place);
	dcp_buf_finish(&m.unused);
	dcp_quantized_free(m.quantized);
	if (code == 0) {
		*out = v;
		return 0;
	}
	if (v)
		dcp_version_close(v);
	else if (hf)
		hf->derived.close(&hf->derived);
	return dcp_err_where(err, code, "%.100s", dcp_version_name(base));
}
