/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing here is needed to serve a checkpoint. It is for the person who named the wrong
 * directory, or one of a family that is not done yet.
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/name.h"
#include "core/parse/dir.h"
#include "core/store/version_int.h"

enum { MAX_LOOKED_AT = 1000 };

/* Names that give a family away. Where two fit, the first is the better guess. */
static const struct {
	const char *glob, *what;
} families[] = {
	{ "zero_to_fp32.py", "a DeepSpeed checkpoint" },
	{ "*zero_pp_rank_*_optim_states.pt", "a DeepSpeed ZeRO checkpoint" },
	{ "mp_rank_*_model_states.pt", "a DeepSpeed checkpoint" },
	{ "global_step*", "a DeepSpeed checkpoint" },
	{ "latest_checkpointed_iteration.txt", "a Megatron-LM checkpoint" },
	{ "mp_rank_*", "a Megatron-LM checkpoint" },
	{ "_CHECKPOINT_METADATA", "an Orbax checkpoint" },
	{ "ocdbt.process_*", "an Orbax checkpoint" },
	{ "_METADATA", "an Orbax checkpoint" },
	{ "manifest.ocdbt", "an Orbax checkpoint" },
	{ "zarr.json", "a Zarr store" },
	{ ".zgroup", "a Zarr store" },
	{ ".zarray", "a Zarr store" },
	{ ".zmetadata", "a Zarr store" },
	{ "*.gguf", "a GGUF model" },
	{ "*.pt2", "a torch.export program" },
	{ "*.pte", "an ExecuTorch program" },
	{ "*.onnx", "an ONNX model" },
	{ "*.h5", "a Keras model" },
	{ "flax_model*.msgpack", "a Flax model" },
	{ "*.safetensors", "a directory of safetensors files" },
	{ "*.safetensors.index.json", "a directory of safetensors files" },
	{ "*.ckpt.index", "a TensorFlow checkpoint" },
	{ "pytorch_model*.bin", "a directory of torch.save files" },
	{ "*.pt", "a directory of torch.save files" },
	{ "*.pth", "a directory of torch.save files" },
	{ "*.ckpt", "a directory of torch.save files" },
};

/* The family whose mark lies in @dir, and that name. */
static const char *family_of(const struct dcp_dir *dir, const char **mark)
{
	for (size_t f = 0; f < DCP_LEN(families); f++)
		for (size_t i = 0; i < dir->n; i++)
			if (fnmatch(families[f].glob, dir->entries[i].name, 0) == 0) {
				*mark = dir->entries[i].name;
				return families[f].what;
			}
	return NULL;
}

/* What was found on the way down; the last by name is the newest. */
struct hunt {
	unsigned looked_at;
	char *path; /* of a checkpoint two levels down */
	char *name;
	const struct dcp_format *format;
	char *other; /* of a directory of another family */
	const char *family;
};

static void note(struct hunt *h, const struct dcp_dir *dir, const char *name)
{
	enum dcp_match match = DCP_MATCH_NO;
	const struct dcp_format *format = dcp_format_probe(dir, &match, NULL, 0);
	const char *mark;

	if (format && match == DCP_MATCH_YES &&
	    (!h->name || dcp_name_compare(h->name, name) < 0)) {
		free(h->path);
		free(h->name);
		h->path = strdup(dir->path);
		h->name = strdup(name);
		h->format = format;
	}
	if (!format && !h->other && family_of(dir, &mark)) {
		h->other = strdup(dir->path);
		h->family = family_of(dir, &mark);
	}
}

/* The directories in @dir, and with @deeper those in them too. */
static void hunt_below(struct hunt *h, const struct dcp_dir *dir, bool deeper)
{
	for (size_t i = dir->n; i-- > 0 && h->looked_at < MAX_LOOKED_AT;) {
		const struct dcp_dirent *e = &dir->entries[i];
		struct dcp_dir child;

		if (!e->is_dir || *e->name == '.' ||
		    dcp_dir_open_at(dir, e->name, &child, NULL) < 0)
			continue;
		h->looked_at++;
		note(h, &child, e->name);
		if (deeper)
			hunt_below(h, &child, false);
		dcp_dir_close(&child);
	}
}

/* "torch.distributed.checkpoint, safetensors files": what this program knows. */
static void put_known(struct dcp_buf *b)
{
	size_t start = b->n;

	for (size_t i = 0; dcp_formats[i]; i++) {
		if (b->n - start + strlen(dcp_formats[i]->what) > 160) {
			dcp_buf_str(b, ", ...");
			return;
		}
		dcp_buf_printf(b, "%s%s", i ? ", " : "", dcp_formats[i]->what);
	}
}

static void put_nearest(struct dcp_buf *b, const struct dcp_dir *dir, const struct hunt *h)
{
	const char *mark, *family = family_of(dir, &mark);

	if (h->path)
		dcp_buf_printf(b, "; closest: %.200s (%s)", h->path, h->format->what);
	else if (family)
		dcp_buf_printf(
			b, "; by its %.60s it is %s, not supported by this version of dcpfs",
			mark, family);
	else if (h->other)
		dcp_buf_printf(b, "; %.200s is %s, not supported by this version of dcpfs",
			       h->other, h->family);
	else if (dir->n)
		dcp_buf_printf(b, "; it holds %.60s%s", dir->entries[0].name,
			       dir->n > 1 ? " and more" : "");
	else
		dcp_buf_str(b, "; it is empty");
}

/* A file by itself: is it part of a checkpoint that lies where it lies? */
static int explain_file(const struct dcp_dir *dir, struct dcp_err *err)
{
	const char *slash = strrchr(dir->path, '/'), *mark, *family = family_of(dir, &mark);
	int n = slash > dir->path ? (int)(slash - dir->path) : 1;
	const struct dcp_format *format = NULL;
	enum dcp_match match = DCP_MATCH_NO;
	char above[300];
	struct dcp_dir all;

	snprintf(above, sizeof(above), "%.*s", n, dir->path);
	if (dcp_dir_open(above, &all, NULL) == 0) {
		format = dcp_format_probe(&all, &match, NULL, 0);
		dcp_dir_close(&all);
	}
	if (format && match == DCP_MATCH_YES)
		return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
				"%.200s is one file of a checkpoint; the whole is %.200s (%s)",
				dir->path, above, format->what);
	if (family)
		return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
				"%.200s is no checkpoint by itself: by its name it is of %s",
				dir->path, family);
	return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
			"%.200s is a file, but no checkpoint that dcpfs knows by its name",
			dir->path);
}

int dcp_scan_explain(const struct dcp_dir *dir, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct hunt h = { 0 };

	if (dir->is_file)
		return explain_file(dir, err);
	hunt_below(&h, dir, true);
	dcp_buf_str(&b, "looked in it and one level below for ");
	put_known(&b);
	put_nearest(&b, dir, &h);
	dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET, "%.120s is not a checkpoint: %s", dir->path,
		 b.failed ? "out of memory" : b.p);
	free(h.path);
	free(h.name);
	free(h.other);
	return -EINVAL;
}
