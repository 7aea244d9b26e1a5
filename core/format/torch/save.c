/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save: each is a checkpoint by itself, called by its name.
 *
 *	model.pt {"w": tensor}      version model.pt, key w
 *	mean.pt tensor              version mean.pt, key mean
 *
 * What torch.save wrote is a matter of content, not of names: a file that is something else
 * says so when it is opened. Composer's states are emitted by its rules whatever they are called.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/text.h"
#include "core/format/composer/composer.h"
#include "core/format/formats.h"
#include "core/format/torch/state.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"

static bool has_extension(const char *name)
{
	static const char *const known[] = {
		".pt", ".pth", ".ckpt", ".bin", ".th", ".pth.tar"
	};

	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (dcp_has_extension(name, known[i]))
			return true;
	return false;
}

/* A file that is the source was judged by its content; a file that is a part alone, by its
 * whole name. */
static bool is_ours(const struct dcp_load *in, const char *name)
{
	return in->dir->is_file || (in->depth > 0 && in->dir->n == 1) || has_extension(name);
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && has_extension(dir->entries[i].name))
			return dir->is_file ? DCP_MATCH_YES : DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

static bool group(const char *file, char *version)
{
	size_t n = strlen(file);

	if (*file == '.' || n >= DCP_GROUP_MAX || !has_extension(file))
		return false;
	memcpy(version, file, n + 1);
	return true;
}

/* A ZIP archive; or, before torch 1.6, a pickle of its magic number. */
static bool begins(const uint8_t *head, size_t n)
{
	return n >= 6 &&
	       (memcmp(head, "PK\3\4", 4) == 0 || memcmp(head, "\x80\2\x8a\nl\xfc", 6) == 0);
}

/* @containers receives the classes of the containers that are opened. */
static int emit_file(const struct dcp_load *in, const char *name, struct dcp_buf *containers,
		     struct dcp_err *err)
{
	char stem[DCP_GROUP_MAX];
	struct dcp_tstate s = { .sink = in->sink, .whole = in->is_part ? NULL : stem };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_stretch all = { 0 };
	int rc = dcp_emit_file(in->sink, name, &s.file);

	snprintf(stem, sizeof(stem), "%.*s", (int)dcp_stem(name), name);
	if (rc == 0)
		rc = dcp_torch_open_file(in->dir, name, &t, err);
	if (rc == -EBADMSG && in->depth > 0) /* of a trainer that does not use torch */
		return dcp_pickle_emit(in, name, s.file, s.whole, err);
	if (rc == 0)
		rc = dcp_tstate_check(t, name, err);
	if (rc < 0)
		return rc;
	s.t = t;
	all.file = s.file;
	all.nbytes = all.n = dcp_torch_size(t);
	s.stored = &all;
	s.lists = dcp_composer_is_state(t);
	s.tuples = !s.lists;
	s.containers = containers;
	if (s.lists)
		rc = dcp_emit_meta(in->sink, "lists", "opened");
	return rc < 0 ? rc : dcp_tstate_emit(&s);
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf containers = DCP_BUF_INIT;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < in->dir->n; i++)
		if (!in->dir->entries[i].is_dir && is_ours(in, in->dir->entries[i].name))
			rc = emit_file(in, in->dir->entries[i].name, &containers, err);
	if (rc == 0 && containers.n && !in->is_part)
		rc = dcp_emit_meta(in->sink, "containers", containers.p);
	return dcp_emit_fact(in->sink, rc, "framework", "torch");
}

const struct dcp_format dcp_format_torch_save = {
	.name = "torch-save",
	.what = "torch.save files",
	.probe = probe,
	.group = group,
	.begins = begins,
	.load = load,
	.marks =
		(const struct dcp_mark[]){
			{ "@(*.pt|*.pth|*.ckpt)", "a directory of torch.save files",
			  .general = true },
			{ 0 },
		},
};
