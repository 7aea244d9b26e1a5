/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/version/infer.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"

enum { MEMORY = 64 << 20, MAX_PARTS = 32, MAX_CONFIG = 1 << 20 };

/* The JSON of the object @key, in @arena. 1, 0: there is none. */
static int object(struct dcp_index *ix, const char *key, struct dcp_arena *arena,
		  struct dcp_object *out)
{
	struct dcp_row row;
	int rc = dcp_index_by_key(ix, DCP_ROW_OBJECT, key, arena, &row);

	if (rc == 0)
		rc = dcp_index_object(ix, row.id, arena, out, NULL);
	return rc == -ENOENT ? 0 : rc < 0 ? rc : out->json != NULL;
}

static int from_megatron(struct dcp_index *ix, struct dcp_buf *out)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(MEMORY);
	struct dcp_object o;
	int rc = object(ix, "args", &arena, &o);

	if (rc > 0)
		rc = dcp_rules_infer(o.json, o.json_len, out);
	return rc;
}

/* ---- Composer ---- */

/* A leaf of what was a dict once: "attn_config.alibi". Those of one dict are consecutive. */
static const char content[] = "state.integrations.huggingface.model.config.content.";

static const char has_model[] =
	"state.integrations.huggingface.model.config.content.model_type";

struct rebuilding {
	struct dcp_jsonw w;
	char open
		[1024]; /* the path of the containers that are open, each with a dot after it */
	bool list[MAX_PARTS];
	size_t depth;
};

static bool is_number(const char *s, size_t n)
{
	return n && strspn(s, "0123456789") >= n;
}

static void close_to(struct rebuilding *r, const char *path)
{
	size_t n = strlen(r->open);

	while (n && strncmp(r->open, path, n) != 0) {
		r->open[--n] = '\0';
		while (n && r->open[n - 1] != '.')
			r->open[--n] = '\0';
		dcp_jsonw_end(&r->w);
		r->depth--;
	}
}

/* The name of a member, or nothing in a list. */
static void name(struct rebuilding *r, const char *s, size_t n)
{
	if (!r->list[r->depth])
		dcp_jsonw_key_n(&r->w, s, n);
}

/* -E2BIG: deeper or longer than any config is. */
static int add_leaf(struct rebuilding *r, const char *path, const struct dcp_object *o)
{
	const char *at, *dot;

	close_to(r, path);
	at = path + strlen(r->open);
	for (; (dot = strchr(at, '.')); at = dot + 1) {
		size_t n = (size_t)(dot + 1 - path);

		if (n >= sizeof(r->open) || r->depth + 1 == MAX_PARTS)
			return -E2BIG;
		name(r, at, (size_t)(dot - at));
		r->depth++;
		/* The labels of a classifier have numbers for names. */
		r->list[r->depth] = is_number(dot + 1, strcspn(dot + 1, ".")) &&
				    strncmp(at, "id2label.", 9) != 0;
		if (r->list[r->depth])
			dcp_jsonw_array(&r->w);
		else
			dcp_jsonw_object(&r->w);
		memcpy(r->open, path, n);
		r->open[n] = '\0';
	}
	name(r, at, strlen(at));
	dcp_jsonw_raw(&r->w, o->json, o->json_len);
	return 0;
}

static int from_composer(struct dcp_index *ix, struct dcp_buf *out)
{
	struct rebuilding r = { 0 };
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(MEMORY);
	struct dcp_row row;
	int rc = dcp_index_by_key(ix, DCP_ROW_OBJECT, has_model, &arena, &row);

	if (rc == 0)
		rc = dcp_index_scan(ix, DCP_ROW_OBJECT, 0, false, &scan);
	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	dcp_jsonw_init(&r.w, out, true);
	dcp_jsonw_object(&r.w);
	while (rc >= 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct dcp_object o;

		/* "_attn_implementation_autoset": what transformers notes to itself, and would obey. */
		if (strncmp(row.key, content, sizeof(content) - 1) != 0 ||
		    row.key[sizeof(content) - 1] == '_' || row.broken)
			continue;
		dcp_arena_reset(&arena);
		rc = dcp_index_object(ix, row.id, &arena, &o, NULL);
		if (rc == 0 && out->n > MAX_CONFIG)
			rc = -E2BIG;
		if (rc == 0)
			rc = add_leaf(&r, row.key + sizeof(content) - 1, &o);
	}
	close_to(&r, "");
	dcp_jsonw_end(&r.w);
	dcp_buf_str(out, "\n");
	if (rc == 0)
		rc = dcp_jsonw_error(&r.w);
	return rc == -E2BIG ? 0 : rc < 0 ? rc : 1;
}

int dcp_config_infer(struct dcp_index *ix, struct dcp_buf *out, const char **from)
{
	int rc = from_megatron(ix, out);

	*from = "args";
	if (rc == 0) {
		dcp_buf_reset(out);
		*from = "state.integrations.huggingface";
		rc = from_composer(ix, out);
	}
	if (rc <= 0) {
		dcp_buf_reset(out);
		*from = NULL;
	}
	return rc;
}
