/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/index/said.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/base/jsonw.h"
#include "core/parse/json.h"
#include "core/store/index/index.h"

#define NOTHING UINT32_MAX

struct dcp_said {
	struct dcp_index *ix;
	struct dcp_json *fact;       /* NULL: all files say the same */
	const struct dcp_json *says; /* in it */
	uint32_t *of;                /* file: what it says, or NOTHING; nfiles */
	size_t nfiles, nsays;
	bool *is_said; /* by files of the tensors that were added; nsays */
	struct dcp_arena arena;
	struct dcp_buf text;
};

static int read_fact(struct dcp_said *s, const char *text)
{
	const struct dcp_json *files;
	int rc = dcp_json_parse(text, strlen(text), &s->fact, NULL);

	if (rc < 0)
		return rc == -ENOMEM ? rc : -EBADMSG;
	s->says = dcp_json_get(s->fact, "says");
	s->nsays = dcp_json_len(s->says);
	s->is_said = calloc(s->nsays + 1, sizeof(*s->is_said));
	s->of = malloc((s->nfiles + 1) * sizeof(*s->of));
	if (!s->of || !s->is_said)
		return -ENOMEM;
	memset(s->of, 0xff, s->nfiles * sizeof(*s->of));
	files = dcp_json_get(s->fact, "files");
	for (size_t i = 0; i < dcp_json_len(files); i++) {
		const struct dcp_json *pair = dcp_json_at(files, i);
		uint64_t file, says;

		if (!dcp_json_u64(dcp_json_at(pair, 0), &file) || file >= s->nfiles ||
		    !dcp_json_u64(dcp_json_at(pair, 1), &says) || says >= s->nsays)
			return -EBADMSG;
		s->of[file] = (uint32_t)says;
	}
	return 0;
}

int dcp_said_create(struct dcp_index *ix, struct dcp_said **out)
{
	const char *text = dcp_index_meta(ix, "metadata_files");
	struct dcp_said *s = calloc(1, sizeof(*s));
	int rc = 0;

	if (!s)
		return -ENOMEM;
	s->ix = ix;
	dcp_arena_init(&s->arena, (size_t)1 << 30);
	dcp_index_files(ix, &s->nfiles);
	if (text)
		rc = read_fact(s, text);
	if (rc < 0)
		dcp_said_free(s);
	else
		*out = s;
	return rc;
}

void dcp_said_free(struct dcp_said *s)
{
	if (!s)
		return;
	dcp_json_free(s->fact);
	dcp_arena_finish(&s->arena);
	dcp_buf_finish(&s->text);
	free(s->of);
	free(s->is_said);
	free(s);
}

int dcp_said_add(struct dcp_said *s, int64_t id)
{
	struct dcp_tensor t;
	int rc;

	if (!s->fact)
		return 0;
	dcp_arena_reset(&s->arena);
	rc = dcp_index_tensor(s->ix, id, &s->arena, &t, NULL);
	for (size_t i = 0; rc == 0 && i < t.npieces; i++)
		if (t.pieces[i].file < s->nfiles && s->of[t.pieces[i].file] != NOTHING)
			s->is_said[s->of[t.pieces[i].file]] = true;
	return rc;
}

static int put_pairs(struct dcp_said *s, struct dcp_intern *names, struct dcp_jsonw *w)
{
	const char *name, *value, *format = NULL;
	int rc = 0;

	for (size_t i = 0; !format && i < s->nsays; i++)
		if (s->is_said[i])
			format = dcp_json_str(dcp_json_get(dcp_json_at(s->says, i), "format"));
	if (dcp_index_meta(s->ix, "map"))
		format = "pt";
	if (format)
		dcp_jsonw_put_str(w, "format", format);
	for (size_t i = 0; i < s->nsays; i++) {
		const struct dcp_json *v;
		const void *iter = NULL;

		while (s->is_said[i] && rc >= 0 &&
		       (iter = dcp_json_next(dcp_json_at(s->says, i), iter, &name, &v))) {
			value = dcp_json_str(v);
			if (!value || strcmp(name, "format") == 0)
				continue;
			rc = dcp_intern_str(names, name, NULL);
			if (rc > 0)
				dcp_jsonw_put_str(w, name, value);
		}
	}
	return rc < 0 ? -ENOMEM : 0;
}

int dcp_said_take(struct dcp_said *s, const char **object)
{
	struct dcp_intern names = DCP_INTERN_INIT;
	struct dcp_jsonw w;
	int rc;

	*object = dcp_index_meta(s->ix, "metadata");
	if (!s->fact)
		return 0;
	dcp_buf_reset(&s->text);
	dcp_jsonw_init(&w, &s->text, false);
	dcp_jsonw_object(&w);
	rc = put_pairs(s, &names, &w);
	dcp_jsonw_end(&w);
	dcp_intern_finish(&names);
	memset(s->is_said, 0, s->nsays * sizeof(*s->is_said));
	if (rc == 0)
		rc = dcp_jsonw_error(&w);
	*object = s->text.p;
	return rc;
}
