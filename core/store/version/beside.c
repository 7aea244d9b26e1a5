/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sidecars: files in a version's directory that are not data of its family, such as config.json, a
 * tokenizer, 1_Pooling/config.json. Names decide, and only files that the family has not read are
 * emitted. Links that lead out of the directory are ignored, links to directories are not followed,
 * and numbered saves below are versions of their own.
 *
 * Files and directories that may hold weights but were not read are named as left out; for a
 * directory of which nothing was read, only the directory is named. In a numbered save every such
 * directory is named, whatever its content, and elsewhere every directory with the name of a part.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/format/parts/parts.h"
#include "core/format/weights/files.h"
#include "core/model/name.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/version/version_int.h"

/* MAX_DEPTH: levels in which sidecars count, and numbered saves are versions of their own. Weights
 * may lie deeper: in a directory for each module, and the name of a module may be a number. */
enum {
	MAX_DEPTH = 4,
	MAX_WALK = 24,
	MAX_FILES = 100000,
	MAX_SIDECARS = 1000,
	MAX_SIZE = 256 << 20
};

struct emitter {
	const struct dcp_sink *sink;
	const struct dcp_index_writer *w;
	size_t n, nsidecars;
	struct dcp_buf names; /* left-out names, each ending in NUL */
};

/* What a directory contains: files that were read, and others. */
struct found {
	size_t read, weights, others;
};

static int emit_file(struct emitter *t, const struct dcp_dir *dir, const struct dcp_dirent *e,
		     const char *name, unsigned depth, struct found *f)
{
	bool sidecar = depth <= MAX_DEPTH && dcp_weights_is_sidecar(e->name);

	if (dcp_index_was_emitted(t->w, name)) {
		f->read++;
		return 0;
	}
	if (sidecar && e->size <= MAX_SIZE && t->nsidecars < MAX_SIDECARS &&
	    dcp_site_has(&dir->at, e->name)) {
		t->nsidecars++;
		return dcp_emit_sidecar(t->sink, name);
	}
	f->weights += dcp_weights_may_be(e->name);
	f->others += !sidecar;
	return 0;
}

/* @numbered: the version's directory is that of a numbered save. */
static int emit_below(struct emitter *t, const struct dcp_dir *dir, const char *below,
		      unsigned depth, bool numbered, struct found *all)
{
	int code = 0;

	for (size_t i = 0; code == 0 && i < dir->n && t->n < MAX_FILES; i++, t->n++) {
		const struct dcp_dirent *e = &dir->entries[i];
		char name[PATH_MAX];
		dcp_auto_dir struct dcp_dir child = { 0 };
		struct found own = { 0 };
		bool part, unused;
		size_t before = t->names.n;
		int n = snprintf(name, sizeof(name), "%s%s%s", below, e->name,
				 e->is_dir ? "/" : "");

		if (*e->name == '.' || n < 0 || (size_t)n >= sizeof(name))
			continue;
		if (!e->is_dir)
			code = emit_file(t, dir, e, name, depth, &own);
		else if (depth == MAX_WALK || e->is_link ||
			 (depth < MAX_DEPTH && dcp_order_is_numbered(e->name)) ||
			 dcp_dir_open_at(dir, e->name, &child, NULL) < 0)
			continue;
		else
			code = emit_below(t, &child, name, depth + 1, numbered, &own);
		part = dcp_parts_is_dir(e, &unused, NULL);
		if (code == 0 && !own.read &&
		    (own.weights ||
		     (own.others && (part || (depth == 1 && e->is_dir && numbered))))) {
			t->names.n = before;
			code = dcp_buf_add(&t->names, name, (size_t)n + 1);
		}
		all->read += own.read;
		all->weights += own.weights;
		all->others += own.others;
	}
	return code;
}

int dcp_emit_beside(const struct dcp_dir *dir, const struct dcp_sink *sink,
		    const struct dcp_index_writer *w)
{
	struct emitter t = { .sink = sink, .w = w };
	struct found all = { 0 };
	const char *slash = strrchr(dir->path, '/');
	bool numbered = dcp_order_is_save(slash ? slash + 1 : dir->path);
	int code = dir->is_file ? 0 : emit_below(&t, dir, "", 1, numbered, &all);

	for (size_t at = 0; code == 0 && at < t.names.n; at += strlen(t.names.p + at) + 1)
		code = dcp_emit_meta(sink, "left_out", t.names.p + at);
	dcp_buf_finish(&t.names);
	return code;
}
