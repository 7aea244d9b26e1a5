/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of parts, and the one kind of part that is not a family: a JSON file.
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/parts/parts.h"
#include "core/model/tensor.h"
#include "core/origin/source.h"
#include "core/parse/json.h"

enum { MAX_JSON = 64 << 20 };

/* ---- the list ---- */

void dcp_parts_init(struct dcp_parts *p, unsigned depth)
{
	*p = (struct dcp_parts){ .depth = depth };
	dcp_arena_init(&p->arena, 256u << 20);
}

size_t dcp_parts_n(const struct dcp_parts *p)
{
	return DCP_NITEMS(p->list, struct dcp_part);
}

struct dcp_part *dcp_parts_at(const struct dcp_parts *p, size_t i)
{
	return DCP_ITEMS(p->list, struct dcp_part) + i;
}

void dcp_parts_finish(struct dcp_parts *p)
{
	for (size_t i = 0; i < dcp_parts_n(p); i++)
		dcp_dir_close(&dcp_parts_at(p, i)->dir);
	dcp_buf_finish(&p->list);
	dcp_arena_finish(&p->arena);
}

static bool is_taken(const struct dcp_parts *p, const char *name)
{
	for (size_t i = 0; i < dcp_parts_n(p); i++)
		if (strcmp(dcp_parts_at(p, i)->name, name) == 0)
			return true;
	return false;
}

int dcp_parts_add(struct dcp_parts *p, const char *name, const char *below,
		  enum dcp_part_role role, const struct dcp_format *format, struct dcp_dir *dir)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_part part = { .role = role, .format = format, .dir = *dir };

	dcp_buf_str(&text, name);
	for (unsigned i = 2; !dcp_buf_error(&text) && is_taken(p, text.p); i++) {
		dcp_buf_reset(&text);
		dcp_buf_printf(&text, "%s_%u", name, i);
	}
	if (!dcp_buf_error(&text)) {
		part.name = dcp_arena_strndup(&p->arena, text.p, text.n);
		part.below = dcp_arena_strdup(&p->arena, below);
	}
	if (part.name && part.below)
		dcp_buf_add(&p->list, &part, sizeof(part));
	if (part.name && part.below && !dcp_buf_error(&p->list))
		return 0;
	dcp_dir_close(dir);
	return -ENOMEM;
}

/* ---- a JSON file ---- */

static enum dcp_match probe_json(const struct dcp_dir *dir, char *why, size_t n)
{
	return dir->n == 1 ? DCP_MATCH_YES : DCP_MATCH_NO;
}

/* As one object, named by its part; what is not quite JSON (Python writes NaN) is passed
 * through as a file. */
static int emit_json(const struct dcp_load *in, const char *name, const struct dcp_source *src,
		     struct dcp_err *err)
{
	dcp_auto_free char *text = NULL;
	dcp_auto_json struct dcp_json *root = NULL;
	struct dcp_object o = { .key = "" };
	int rc = dcp_json_read(src, MAX_JSON, &text, &root, err);

	if (rc == -EBADMSG || rc == -E2BIG)
		return dcp_emit_sidecar(in->sink, name);
	if (rc < 0)
		return dcp_err_where(err, rc, "%s", name);
	o.type = dcp_json_is_object(root) ? "dict" : dcp_json_is_array(root) ? "list" : "value";
	o.json = text;
	o.json_len = dcp_json_squeeze(text, (size_t)src->size);
	return dcp_emit_object(in->sink, &o);
}

static int load_json(const struct dcp_load *in, struct dcp_err *err)
{
	const char *name = in->dir->entries[0].name;
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(in->sink, name, &number);

	if (rc == 0)
		rc = dcp_dir_input(in->dir, name, &input, err);
	if (rc < 0)
		return rc;
	return emit_json(in, name, &input.src, err);
}

const struct dcp_format dcp_part_json = {
	.name = "json",
	.what = "a JSON file beside a checkpoint",
	.probe = probe_json,
	.load = load_json,
};
