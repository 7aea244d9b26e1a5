/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/version/version_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/version/assets.h"
#include "core/store/version/version.h"

enum { MEMORY = 64 << 20 };

static const char config_json[] = "config.json";

/* What a config says of the model, and the tokenizer's files together. */
static bool is_alone(const struct dcp_made *m)
{
	return strcmp(m->name, config_json) == 0 || strcmp(m->name, "adapter_config.json") == 0;
}

static void leave_to_files(const struct dcp_assets *a, struct dcp_buf *made)
{
	struct dcp_made *m = DCP_ITEMS(*made, struct dcp_made);
	size_t n = DCP_NITEMS(*made, struct dcp_made), kept = 0;
	bool tokenizer = false;

	for (size_t i = 0; i < n; i++)
		tokenizer |= !is_alone(&m[i]) && dcp_assets_has(a, m[i].name);
	for (size_t i = 0; i < n; i++)
		if (strcmp(m[i].name, config_json) == 0 ? a->config.n > 0
		    : is_alone(&m[i])                   ? dcp_assets_has(a, m[i].name)
							: tokenizer)
			dcp_made_forget(&m[i]);
		else
			m[kept++] = m[i];
	made->n = kept * sizeof(*m);
}

static int from_megatron(struct dcp_index *ix, struct dcp_buf *made)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(MEMORY);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_object o;
	struct dcp_row row;
	int rc = dcp_index_by_key(ix, DCP_ROW_OBJECT, "args", &arena, &row);

	if (rc == 0)
		rc = dcp_index_object(ix, row.id, &arena, &o, NULL);
	if (rc == 0 && o.json)
		rc = dcp_rules_infer(o.json, o.json_len, &text);
	return rc == -ENOENT ? 0
	       : rc == 1     ? dcp_made_add(made, config_json, "args", &text)
			     : rc;
}

static int from_job(const struct dcp_assets *a, struct dcp_buf *made)
{
	dcp_auto_buf struct dcp_buf job = DCP_BUF_INIT, text = DCP_BUF_INIT;
	int rc = 0;

	dcp_assets_read_job(a, &job);
	if (job.n)
		rc = dcp_rules_infer_job(job.p, job.n, &text);
	return rc == 1 ? dcp_made_add(made, config_json, a->job, &text) : rc;
}

int dcp_made_find(struct dcp_index *ix, struct dcp_assets *a, struct dcp_buf *made)
{
	const struct dcp_made *config;
	int rc = dcp_composer_files(ix, made);

	if (rc == 0 && !a->config.n && !dcp_made_named(made, config_json))
		rc = from_megatron(ix, made);
	if (rc == 0)
		leave_to_files(a, made);
	if (rc == 0 && !a->config.n && !dcp_made_named(made, config_json) && a->job)
		rc = from_job(a, made);
	config = rc == 0 ? dcp_made_named(made, config_json) : NULL;
	if (config)
		dcp_buf_add(&a->config, config->text.p, config->text.n);
	return rc < 0 ? rc : dcp_buf_error(&a->config);
}

int dcp_made_retype(struct dcp_assets *a, enum dcp_dtype to, struct dcp_buf *made)
{
	struct dcp_made *config = dcp_made_named(made, config_json);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = dcp_rules_config_retype(a->config.p, a->config.n, to, &text);

	if (rc <= 0)
		return rc;
	dcp_buf_reset(&a->config);
	dcp_buf_add(&a->config, text.p, text.n);
	if (!config)
		rc = dcp_made_add(made, config_json, NULL, &text);
	else {
		dcp_buf_finish(&config->text);
		config->text = text;
		text = (struct dcp_buf)DCP_BUF_INIT;
	}
	return rc < 0 ? rc : dcp_buf_error(&a->config);
}
