/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies in a version's directory and is not data of its family: config.json, a tokenizer,
 * 1_Pooling/config.json. Names decide, and only files that the family has not read are emitted.
 * Links out of the directory lead nowhere, links to directories are not followed, and numbered
 * saves below are versions of their own.
 */
#include <limits.h>
#include <stdio.h>

#include "core/base/cleanup.h"
#include "core/format/hf/extras.h"
#include "core/model/order.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/version/version_int.h"

enum { MAX_DEPTH = 4, MAX_FILES = 1000, MAX_SIZE = 256 << 20 };

struct emitter {
	const struct dcp_sink *sink;
	const struct dcp_index_writer *w;
	size_t n;
};

static int emit_below(struct emitter *t, const struct dcp_dir *dir, const char *below,
		      unsigned depth)
{
	int code = 0;

	for (size_t i = 0; code == 0 && i < dir->n && t->n < MAX_FILES; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		char name[PATH_MAX];
		dcp_auto_dir struct dcp_dir child = { 0 };
		int n = snprintf(name, sizeof(name), "%s%s%s", below, e->name,
				 e->is_dir ? "/" : "");

		if (*e->name == '.' || n < 0 || (size_t)n >= sizeof(name))
			continue;
		if (!e->is_dir && e->size <= MAX_SIZE && dcp_hf_is_sidecar(e->name) &&
		    !dcp_index_was_emitted(t->w, name) && dcp_site_has(&dir->at, e->name)) {
			code = dcp_emit_sidecar(t->sink, name);
			t->n++;
		}
		if (!e->is_dir || depth == MAX_DEPTH || dcp_order_is_numbered(e->name) ||
		    e->is_link || dcp_dir_open_at(dir, e->name, &child, NULL) < 0)
			continue;
		code = emit_below(t, &child, name, depth + 1);
	}
	return code;
}

int dcp_emit_beside(const struct dcp_dir *dir, const struct dcp_sink *sink,
		    const struct dcp_index_writer *w)
{
	struct emitter t = { .sink = sink, .w = w };

	return dir->is_file ? 0 : emit_below(&t, dir, "", 1);
}
