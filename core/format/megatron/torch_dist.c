/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-Core's distributed checkpoints: a DCP directory, and these files and keys besides:
 *
 *	metadata.json   {"sharded_backend": "torch_dist", ...}
 *	.metadata ...   keys, stacked layers, and flattened optimizer shards of 0.12 to 0.15: see
 *	                format/dcp/tensor.c; parts of objects, <key>/shard_<at>_<of>: see
 *	                format/dcp/object.c
 *	common.pt       all that is not sharded (newer versions keep it as common_state/shard_0_1)
 *
 * Checkpoints of fsdp_dtensor and torch_dcp have no metadata.json and are plain DCP directories.
 * The zarr backend, removed in 2026, is refused: there each tensor is a directory of its own.
 */
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/format/parts/parts.h"
#include "core/model/tensor.h"
#include "core/parse/json.h"

#define MARK "metadata.json"
#define COMMON "common.pt"

enum { MAX_MARK = 1 << 20, MAX_LOOKED_AT = 16 };

/* Does @dir have the directory of a zarr array? Megatron's zarr backend wrote only such
 * directories. */
static bool has_zarr(const struct dcp_dir *dir)
{
	int left = MAX_LOOKED_AT;
	bool found = false;

	for (size_t i = 0; i < dir->n && left > 0 && !found; i++) {
		struct dcp_dir below;

		if (!dir->entries[i].is_dir ||
		    dcp_dir_open_at(dir, dir->entries[i].name, &below, NULL))
			continue;
		found = dcp_dir_find(&below, ".zarray") != NULL;
		dcp_dir_close(&below);
		left--;
	}
	return found;
}

static enum dcp_match probe_torch_dist(const struct dcp_dir *dir, char *why, size_t n)
{
	if (!dcp_dir_has_file(dir, MARK))
		return DCP_MATCH_NO;
	return dcp_dir_has_file(dir, ".metadata") || has_zarr(dir) ? DCP_MATCH_YES
								   : DCP_MATCH_NO;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return MARK; /* written last */
}

/* Read metadata.json, which names the backend, into @root. */
static int read_mark(const struct dcp_load *in, struct dcp_json **root, struct dcp_err *err)
{
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(in->sink, MARK, &number);

	if (rc == 0)
		rc = dcp_dir_input(in->dir, MARK, &input, err);
	if (rc < 0)
		return rc;
	rc = dcp_json_read(&input.src, MAX_MARK, NULL, root, err);
	return rc < 0 ? dcp_err_where(err, rc, MARK) : 0;
}

/* Refuse the backends that cannot be read, with a message that names a way out. A directory without
 * metadata.json is DCP. */
static int check_backend(const struct dcp_json *root, bool dcp, struct dcp_err *err)
{
	const char *backend = dcp_json_str(dcp_json_get(root, "sharded_backend"));

	if (backend && strcmp(backend, "zarr") == 0)
		return dcp_fail(err, -ENOTSUP,
				"Megatron's zarr backend is not supported: load it with "
				"megatron-core 0.15 or older and save it with "
				"--dist-ckpt-format torch_dist");
	if (!dcp)
		return dcp_fail(
			err, -ENOTSUP,
			"%s checkpoint without .metadata: arrays of zarr, which are not "
			"supported; save it with --dist-ckpt-format torch_dist",
			backend ? backend : "a");
	return 0;
}

static bool is_common(void *ctx, const struct dcp_dirent *e)
{
	const bool *common = ctx;

	return (strcmp(e->name, COMMON) == 0) == *common;
}

static int add_dir(struct dcp_parts *p, const struct dcp_dir *dir, bool common)
{
	struct dcp_dir part;
	int rc = dcp_dir_only(dir, is_common, &common, &part);

	if (rc < 0)
		return rc;
	return dcp_parts_add(p, common ? "common" : "model", "", DCP_PART_PLAIN,
			     common ? &dcp_format_torch_save : &dcp_format_torch_dcp, &part);
}

static int emit_parts(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_parts parts;
	int rc;

	dcp_parts_init(&parts, 0);
	rc = add_dir(&parts, in->dir, false);
	if (rc == 0 && dcp_dir_has_file(in->dir, COMMON))
		rc = add_dir(&parts, in->dir, true);
	rc = rc < 0 ? dcp_fail(err, rc, "out of memory for parts")
		    : dcp_parts_emit(in, &parts, err);
	dcp_parts_finish(&parts);
	return rc;
}

static int load_torch_dist(const struct dcp_load *in, struct dcp_err *err)
{
	dcp_auto_json struct dcp_json *root = NULL;
	int rc = read_mark(in, &root, err);
	const char *backend;

	if (rc == 0)
		rc = check_backend(root, dcp_dir_has_file(in->dir, ".metadata"), err);
	backend = dcp_json_str(dcp_json_get(root, "sharded_backend"));
	if (backend)
		rc = dcp_emit_fact(in->sink, rc, "framework", "megatron-core");
	if (backend)
		rc = dcp_emit_fact(in->sink, rc, "sharded_backend", "%s", backend);
	return rc < 0 ? rc : emit_parts(in, err);
}

const struct dcp_format dcp_format_megatron = {
	.name = "megatron",
	.what = "Megatron-Core distributed checkpoints",
	.probe = probe_torch_dist,
	.commit_file = commit_file,
	.load = load_torch_dist,
};
