/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trainers on top of Paddle (PaddleNLP, PaddleFormers) save one step as several distributed
 * checkpoints side by side, each in a directory of its own:
 *
 *	model_state/  master_weights/  optimizer_states/
 *
 * All these directories are one version. Keys of the model are unchanged; keys of every other
 * directory begin with the directory's name.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/format/nest/relay.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"

static const char *const parts[] = { "model_state",     "master_weights", "optimizer_states",
				     "optimizer_state", "ema_states",     "ema_state",
				     "dist_ckpt" };

/* Does the directory @part hold the model's weights? dist_ckpt also holds the optimizer. */
static bool is_model(const char *part)
{
	return strcmp(part, "model_state") == 0 || strcmp(part, "dist_ckpt") == 0;
}

/* The names of files below the directories count, too, since other programs may use the same names
 * of directories. */
static enum dcp_match probe_trainer(const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = DCP_MATCH_NO;
	const char *empty = NULL;
	char inner[200];

	for (size_t i = 0; i < DCP_LEN(parts); i++) {
		enum dcp_match m;
		struct dcp_dir part;

		if (!dcp_dir_has_dir(dir, parts[i]) ||
		    dcp_dir_open_at(dir, parts[i], &part, NULL) < 0)
			continue;
		m = dcp_format_paddle_dist.probe(&part, inner, sizeof(inner));
		if (part.n == 0)
			empty = parts[i];
		dcp_dir_close(&part);
		if (m == DCP_MATCH_INCOMPLETE) {
			snprintf(why, n, "%s: %s", parts[i], inner);
			return m;
		}
		if (m != DCP_MATCH_NO)
			match = DCP_MATCH_YES;
	}
	if (match == DCP_MATCH_YES && empty) {
		snprintf(why, n, "%s is empty: the save was interrupted or is still running",
			 empty);
		match = DCP_MATCH_INCOMPLETE;
	}
	return match;
}

/* The commit file is the last of the directories, which changes when files are put into it. */
static const char *commit_file(const struct dcp_dir *dir)
{
	const char *last = NULL;

	for (size_t i = 0; i < DCP_LEN(parts); i++)
		if (dcp_dir_has_dir(dir, parts[i]))
			last = parts[i];
	return last;
}

struct loading {
	const char *part;
	size_t number;
	bool bare; /* there is only one directory with a model */
};

/* Emit the facts of the first part as facts of the whole. Warnings and overlaps of all parts are
 * emitted with the name of their part. */
static int on_meta(void *ctx, const char *name, const char *value)
{
	struct dcp_relay *r = ctx;
	const struct loading *l = r->ctx;
	char text[600];

	if (strcmp(name, "warning") != 0 && strcmp(name, "overlaps") != 0)
		return l->number ? 0 : dcp_emit_meta(r->to, name, value);
	snprintf(text, sizeof(text), "%s: %s", l->part, value);
	return dcp_emit_meta(r->to, name, text);
}

static int load_part(const struct dcp_load *in, struct loading *l, struct dcp_err *err)
{
	char below[32];
	dcp_auto_relay struct dcp_relay relay = {
		.to = in->sink,
		.below = below,
		.prefix = l->bare && is_model(l->part) ? NULL : l->part,
		.ctx = l,
	};
	dcp_auto_dir struct dcp_dir dir = { 0 };
	struct dcp_load inner;
	int rc = dcp_dir_open_at(in->dir, l->part, &dir, err);

	if (rc < 0)
		return rc;
	snprintf(below, sizeof(below), "%s/", l->part);
	inner = dcp_relay_load(&relay, in, &dir);
	relay.sink.meta = on_meta;
	rc = dcp_format_paddle_dist.load(&inner, err);
	return rc < 0 ? dcp_err_where(err, rc, "%s", l->part) : 0;
}

static int load_trainer(const struct dcp_load *in, struct dcp_err *err)
{
	struct loading l = {
		.bare = !(dcp_dir_find(in->dir, "model_state") &&
			  dcp_dir_find(in->dir, "dist_ckpt")),
	};
	char why[200];
	int rc = 0;

	for (size_t i = 0; i < DCP_LEN(parts) && rc == 0; i++) {
		dcp_auto_dir struct dcp_dir dir = { 0 };
		enum dcp_match m;

		if (!dcp_dir_has_dir(in->dir, parts[i]) ||
		    dcp_dir_open_at(in->dir, parts[i], &dir, NULL) < 0)
			continue;
		m = dcp_format_paddle_dist.probe(&dir, why, sizeof(why));
		if (m == DCP_MATCH_NO)
			continue;
		l.part = parts[i];
		rc = load_part(in, &l, err);
		l.number++;
	}
	if (rc == 0 && !l.number)
		rc = dcp_fail(err, -ENOENT, "no part holds a {uid}.metadata");
	return rc;
}

const struct dcp_format dcp_format_paddle_parts = {
	.name = "paddle-parts",
	.what = "model_state/, optimizer_states/ and master_weights/ of Paddle trainers",
	.probe = probe_trainer,
	.commit_file = commit_file,
	.load = load_trainer,
};
