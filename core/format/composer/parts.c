/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory that Composer's newer interface writes. Model and optimizer are checkpoints of
 * their own, torch.save files or sharded ones; the rest is for resuming.
 *
 *	model/model.pt {"w": tensor}         model.w, path model / w
 *	optim/.metadata optim/__0_0.distcp   optim.<key>
 *	resumption.pkl                       resumption.<key>, objects
 *	composer_metadata.json               the object composer_metadata
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/format/composer/composer_int.h"
#include "core/format/format.h"
#include "core/format/nest/inner.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/pyjson/pyjson.h"

enum { MAX_METADATA = 16 << 20 };

/* Did it fail for a reason that concerns this part alone? */
static bool is_damage(int rc)
{
	return rc == -EBADMSG || rc == -EINVAL || rc == -ENOTSUP || rc == -E2BIG ||
	       rc == -ENOENT || rc == -EXDEV || rc == -EACCES || rc == -EIO;
}

/* ---- composer_metadata.json ---- */

static int emit_metadata(const struct dcp_load *in)
{
	static const char *const key = "composer_metadata";
	struct dcp_object o = { .key = key, .path = &key, .npath = 1, .type = "dict" };
	const struct dcp_sink *sink = in->sink;
	dcp_auto_json struct dcp_json *root = NULL;
	dcp_auto_input struct dcp_input input = { 0 };
	dcp_auto_free char *text = NULL;
	struct dcp_err why = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(sink, DCP_COMPOSER_METADATA, &number);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(in->dir, DCP_COMPOSER_METADATA, &input, &why);
	if (rc == 0)
		rc = dcp_json_read(&input.src, MAX_METADATA, &text, &root, &why);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return dcp_emit_broken(sink, key, why.msg);
	/* the spaces around it are not part of the value */
	o.json = text + strspn(text, " \t\r\n");
	o.json_len = (size_t)input.src.size - (size_t)(o.json - text);
	while (o.json_len && strchr(" \t\r\n", o.json[o.json_len - 1]))
		o.json_len--;
	return dcp_emit_object(sink, &o);
}

/* ---- resumption.pkl ---- */

struct resuming {
	const struct dcp_load *in;
	struct dcp_buf json;
	int rc; /* what ended the walk, when it was not the walk */
};

static int on_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	struct resuming *w = ctx;
	struct dcp_object o = { .key = leaf->key, .path = leaf->path, .npath = leaf->npath };
	uint64_t left = UINT64_MAX;
	int rc = dcp_pyjson_object(&w->json, NULL, leaf->value, leaf->path, leaf->npath, &left,
				   &o);

	w->rc = rc < 0 ? rc : dcp_emit_object(w->in->sink, &o);
	return w->rc;
}

static int emit_resumption(const struct dcp_load *in)
{
	static const char *const prefix = "resumption";
	struct dcp_walk how = { .prefix = &prefix, .nprefix = 1, .how = DCP_WALK_LISTS };
	struct dcp_pickle_opts opts = { 0 };
	struct resuming w = { .in = in };
	dcp_auto_pickle struct dcp_pickle *p = NULL;
	struct dcp_err why = { 0 };
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc;

	if (!dcp_dir_find(in->dir, DCP_COMPOSER_RESUMPTION))
		return 0;
	rc = dcp_emit_file(in->sink, DCP_COMPOSER_RESUMPTION, &number);
	if (rc < 0)
		return rc;
	rc = dcp_dir_input(in->dir, DCP_COMPOSER_RESUMPTION, &input, &why);
	if (rc == 0) {
		rc = dcp_pickle_read(&input.src, &opts, &p, NULL, &why);
		if (rc == 0)
			rc = dcp_pyjson_walk_with(NULL, dcp_pickle_root(p), &how, on_leaf, &w);
	}
	dcp_buf_finish(&w.json);
	if (rc == 0 || w.rc < 0 || rc == -ENOMEM)
		return rc;
	return dcp_emit_broken(in->sink, prefix,
			       why.code ? why.msg : "nested too deep to be walked");
}

/* ---- all of it ---- */

/* Returns 1 when the part is damaged: it is emitted, with why. */
static int emit_part(const struct dcp_load *in, const char *name, struct dcp_err *why)
{
	int rc = dcp_inner_load_at(in, name, name, why);

	if (rc == 0 || !is_damage(rc) || !why->code)
		return rc;
	rc = dcp_emit_broken(in->sink, name, why->msg);
	return rc < 0 ? rc : 1;
}

int dcp_composer_emit_parts(const struct dcp_load *in, struct dcp_err *err)
{
	static const char *const parts[] = { "model", "optim" };
	int rc = dcp_emit_fact(in->sink, 0, "framework", "composer");
	size_t there = 0, broken = 0;
	struct dcp_err why = { 0 };

	rc = dcp_emit_fact(in->sink, rc, "lists", "opened");
	for (size_t i = 0; rc >= 0 && i < DCP_LEN(parts); i++) {
		if (!dcp_dir_has_dir(in->dir, parts[i]))
			continue;
		why = (struct dcp_err){ 0 };
		rc = emit_part(in, parts[i], &why);
		there++;
		broken += rc == 1;
	}
	if (rc >= 0)
		rc = emit_metadata(in);
	if (rc >= 0)
		rc = emit_resumption(in);
	if (rc >= 0 && there && broken == there)
		rc = why.code;
	if (rc < 0 && rc == why.code && err)
		*err = why;
	return DCP_MIN(rc, 0);
}
