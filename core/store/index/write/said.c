/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What files say beside their tensors (__metadata__ of safetensors) as facts of the version:
 * "metadata", an object of all pairs, the format first; "metadata_lost", where files say one
 * name differently: the value of the file that was emitted first counts where both are joined,
 * and the others are listed with it; and "metadata_files", where they say different things at
 * all: {"says": [object, ...], "files": [[number of the file, which of says], ...]}.
 */
#include <errno.h>
#include <string.h>

#include "core/base/jsonw.h"
#include "core/store/index/write/write_int.h"

enum { MAX_LOST = 256, MAX_SHOWN = 300 };

struct pair {
	const char *name, *value, *file;
};

struct lost {
	const char *name, *why;
};

struct sayer {
	const char *file;
	uint32_t says;
};

/* @p, which is said otherwise than @kept; NULL: which cannot be kept. */
static int add_lost(struct dcp_index_writer *w, const struct pair *p, const struct pair *kept)
{
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;
	struct lost lost = { dcp_arena_strdup(&w->text, p->name), NULL };

	if (DCP_NITEMS(w->lost, lost) == MAX_LOST)
		return 0;
	if (kept)
		dcp_buf_printf(&why,
			       "%s says \"%.*s\" in __metadata__ and %s \"%.*s\", which counts "
			       "in a file that has tensors of both",
			       p->file, MAX_SHOWN, p->value, kept->file, MAX_SHOWN,
			       kept->value);
	else
		dcp_buf_printf(&why,
			       "%s says it in __metadata__; it is too long or not Unicode",
			       p->file);
	if (!dcp_buf_error(&why))
		lost.why = dcp_arena_strdup(&w->text, why.p);
	if (lost.name && lost.why)
		dcp_buf_add(&w->lost, &lost, sizeof(lost));
	return !lost.name || !lost.why || dcp_buf_error(&w->lost) ? dcp_index_no_memory(w) : 0;
}

/* Files that say the same share one record. */
static int end_file(struct dcp_index_writer *w)
{
	struct sayer *s = DCP_ITEMS(w->sayers, struct sayer);
	size_t n = DCP_NITEMS(w->sayers, struct sayer);
	int rc;

	if (!n || s[n - 1].says != DCP_INTERN_NONE)
		return 0;
	dcp_jsonw_end(&w->saying_json);
	if (dcp_jsonw_error(&w->saying_json) < 0)
		return dcp_index_no_memory(w);
	if (w->nsayings > DCP_INDEX_MAX_SAID) /* all say all, as "metadata" has it */
		return 0;
	rc = dcp_intern_str(&w->sayings, w->saying.p, &s[n - 1].says);
	w->nsayings += rc > 0 ? w->saying.n : 0;
	return rc < 0 ? dcp_index_no_memory(w) : 0;
}

static int begin_file(struct dcp_index_writer *w, const char *file)
{
	const struct sayer s = { dcp_arena_strdup(&w->text, file), DCP_INTERN_NONE };
	int rc = end_file(w);

	dcp_buf_reset(&w->saying);
	dcp_jsonw_init(&w->saying_json, &w->saying, false);
	dcp_jsonw_object(&w->saying_json);
	dcp_buf_add(&w->sayers, &s, sizeof(s));
	if (rc == 0 && (!s.file || dcp_buf_error(&w->sayers)))
		rc = dcp_index_no_memory(w);
	return rc;
}

int dcp_index_emit_said(void *ctx, const char *file, const char *name, const char *value)
{
	struct dcp_index_writer *w = ctx;
	struct pair p;
	const struct pair *known;
	uint32_t number;
	int rc;

	if (w->err.code)
		return w->err.code;
	if (!name)
		return begin_file(w, file);
	if (w->sayers.n && w->saying.n < DCP_INDEX_MAX_SAID && dcp_json_can_say(name) &&
	    dcp_json_can_say(value))
		dcp_jsonw_put_str(&w->saying_json, name, value);
	number = dcp_intern_find(&w->said, name, strlen(name));
	known = number == DCP_INTERN_NONE ? NULL : DCP_ITEMS(w->pairs, struct pair) + number;
	if (known && strcmp(known->value, value) == 0)
		return 0;
	p = (struct pair){ name, value, file };
	if (known)
		return add_lost(w, &p, known);
	/* As JSON a byte takes six at most. */
	w->nsaid += 6 * (strlen(name) + strlen(value)) + 8;
	if (w->nsaid > DCP_INDEX_MAX_SAID || !dcp_json_can_say(name) ||
	    !dcp_json_can_say(value))
		return add_lost(w, &p, NULL);
	p = (struct pair){ dcp_arena_strdup(&w->text, name), dcp_arena_strdup(&w->text, value),
			   dcp_arena_strdup(&w->text, file) };
	if (!p.name || !p.value || !p.file)
		return dcp_index_no_memory(w);
	rc = dcp_intern_str(&w->said, name, NULL);
	dcp_buf_add(&w->pairs, &p, sizeof(p));
	return rc < 0 || dcp_buf_error(&w->pairs) ? dcp_index_no_memory(w) : 0;
}

static void put_pairs(const struct dcp_index_writer *w, struct dcp_jsonw *json)
{
	const struct pair *p = DCP_ITEMS(w->pairs, struct pair);
	uint32_t format = dcp_intern_find(&w->said, "format", 6);

	dcp_jsonw_object(json);
	if (format != DCP_INTERN_NONE)
		dcp_jsonw_put_str(json, p[format].name, p[format].value);
	for (uint32_t i = 0; i < w->said.n; i++)
		if (i != format)
			dcp_jsonw_put_str(json, p[i].name, p[i].value);
	dcp_jsonw_end(json);
}

static void put_lost(const struct dcp_index_writer *w, struct dcp_jsonw *json)
{
	const struct lost *l = DCP_ITEMS(w->lost, struct lost);

	dcp_jsonw_array(json);
	for (size_t i = 0; i < DCP_NITEMS(w->lost, struct lost); i++) {
		dcp_jsonw_object(json);
		dcp_jsonw_put_str(json, "name", l[i].name);
		dcp_jsonw_put_str(json, "why", l[i].why);
		dcp_jsonw_end(json);
	}
	dcp_jsonw_end(json);
}

static void put_files(const struct dcp_index_writer *w, struct dcp_jsonw *json)
{
	const struct sayer *s = DCP_ITEMS(w->sayers, struct sayer);

	dcp_jsonw_object(json);
	dcp_jsonw_put_array(json, "says");
	for (uint32_t i = 0; i < w->sayings.n; i++) {
		const char *text = dcp_intern_text(&w->sayings, i);

		dcp_jsonw_raw(json, text, strlen(text));
	}
	dcp_jsonw_end(json);
	dcp_jsonw_put_array(json, "files");
	for (size_t i = 0; i < DCP_NITEMS(w->sayers, struct sayer); i++) {
		uint32_t number;

		if (!dcp_index_find_file(w, s[i].file, false, &number) &&
		    !dcp_index_find_file(w, s[i].file, true, &number))
			continue;
		dcp_jsonw_array(json);
		dcp_jsonw_u64(json, number);
		dcp_jsonw_u64(json, s[i].says);
		dcp_jsonw_end(json);
	}
	dcp_jsonw_end(json);
	dcp_jsonw_end(json);
}

int dcp_index_tell_said(struct dcp_index_writer *w,
			int (*tell)(struct dcp_index_writer *w, const char *name,
				    const char *value))
{
	static const struct {
		const char *name;
		void (*put)(const struct dcp_index_writer *w, struct dcp_jsonw *json);
	} facts[] = { { "metadata", put_pairs },
		      { "metadata_lost", put_lost },
		      { "metadata_files", put_files } };
	int rc = end_file(w);
	const size_t n[] = { w->pairs.n, w->lost.n,
			     w->sayings.n > 1 && w->nsayings <= DCP_INDEX_MAX_SAID
				     ? w->sayings.n
				     : 0 };

	for (size_t i = 0; rc == 0 && i < DCP_LEN(facts); i++) {
		dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
		struct dcp_jsonw json;

		if (!n[i])
			continue;
		dcp_jsonw_init(&json, &text, false);
		facts[i].put(w, &json);
		rc = dcp_jsonw_error(&json) < 0 ? dcp_index_no_memory(w)
						: tell(w, facts[i].name, text.p);
	}
	return rc;
}
