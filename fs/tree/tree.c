/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree/tree.h"

#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/model/name.h"

/* clang-format off */
static const struct dcpfs_node nodes[DCPFS_KIND_COUNT] = {
	[DCPFS_ROOT]              = { DCPFS_ROOT, DCPFS_ROOT, DCPFS_DIR, NULL, true, DCPFS_IN_ALL },
	[DCPFS_LATEST]            = { DCPFS_LATEST, DCPFS_ROOT, DCPFS_LINK, "latest", true, DCPFS_IN_ALL },
	[DCPFS_CONTROL]           = { DCPFS_CONTROL, DCPFS_ROOT, DCPFS_DIR, ".dcpfs", false, DCPFS_IN_ALL },
	[DCPFS_STATUS]            = { DCPFS_STATUS, DCPFS_CONTROL, DCPFS_FILE, "status.json", true, DCPFS_IN_ALL },
	[DCPFS_ERRORS]            = { DCPFS_ERRORS, DCPFS_CONTROL, DCPFS_FILE, "errors.json", true, DCPFS_IN_ALL },
	[DCPFS_INCOMPLETE]        = { DCPFS_INCOMPLETE, DCPFS_CONTROL, DCPFS_FILE, "incomplete.json", true, DCPFS_IN_ALL },
	[DCPFS_STATS]             = { DCPFS_STATS, DCPFS_CONTROL, DCPFS_FILE, "stats", true, DCPFS_IN_ALL },
	[DCPFS_CONFIG]            = { DCPFS_CONFIG, DCPFS_CONTROL, DCPFS_FILE, "config.json", true, DCPFS_IN_ALL },
	[DCPFS_TAGS_DIR]          = { DCPFS_TAGS_DIR, DCPFS_ROOT, DCPFS_DIR, "tags", false, DCPFS_IN_ALL },
	[DCPFS_TAG]               = { DCPFS_TAG, DCPFS_TAGS_DIR, DCPFS_LINK, NULL, false, DCPFS_IN_ALL },
	[DCPFS_BY_KEY_DIR]        = { DCPFS_BY_KEY_DIR, DCPFS_ROOT, DCPFS_DIR, "by-key", false, DCPFS_IN_ALL },
	[DCPFS_BY_KEY]            = { DCPFS_BY_KEY, DCPFS_BY_KEY_DIR, DCPFS_DIR, NULL, false, DCPFS_IN_ALL },
	[DCPFS_BY_KEY_LINK]       = { DCPFS_BY_KEY_LINK, DCPFS_BY_KEY, DCPFS_LINK, NULL, false, DCPFS_IN_ALL },
	[DCPFS_VERSION]           = { DCPFS_VERSION, DCPFS_ROOT, DCPFS_DIR, NULL, false, DCPFS_IN_ALL },
	[DCPFS_README]            = { DCPFS_README, DCPFS_VERSION, DCPFS_FILE, "README.txt", false, DCPFS_IN_VERSION },
	[DCPFS_INDEX_JSON]        = { DCPFS_INDEX_JSON, DCPFS_VERSION, DCPFS_FILE, "index.json", false, DCPFS_IN_BOTH },
	[DCPFS_INDEX_JSONL]       = { DCPFS_INDEX_JSONL, DCPFS_VERSION, DCPFS_FILE, "index.jsonl", false, DCPFS_IN_VERSION },
	[DCPFS_NPY_DIR]           = { DCPFS_NPY_DIR, DCPFS_VERSION, DCPFS_DIR, "npy", false, DCPFS_IN_BOTH },
	[DCPFS_RAW_DIR]           = { DCPFS_RAW_DIR, DCPFS_VERSION, DCPFS_DIR, "raw", false, DCPFS_IN_BOTH },
	[DCPFS_SAFETENSORS_DIR]   = { DCPFS_SAFETENSORS_DIR, DCPFS_VERSION, DCPFS_DIR, "safetensors", false, DCPFS_IN_BOTH },
	[DCPFS_OBJECTS_DIR]       = { DCPFS_OBJECTS_DIR, DCPFS_VERSION, DCPFS_DIR, "objects", false, DCPFS_IN_BOTH },
	[DCPFS_FILES_DIR]         = { DCPFS_FILES_DIR, DCPFS_VERSION, DCPFS_DIR, "files", false, DCPFS_IN_VERSION },
	[DCPFS_FILES_SUB]         = { DCPFS_FILES_SUB, DCPFS_FILES_DIR, DCPFS_DIR, NULL, false, DCPFS_IN_ALL },
	[DCPFS_SIDECAR]           = { DCPFS_SIDECAR, DCPFS_FILES_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_SHARD_DIR]         = { DCPFS_SHARD_DIR, DCPFS_VERSION, DCPFS_DIR, "shard", false, DCPFS_IN_VERSION | DCPFS_IN_HF | DCPFS_UNLISTED },
	[DCPFS_LAYOUT]            = { DCPFS_LAYOUT, DCPFS_SHARD_DIR, DCPFS_DIR, NULL, false, DCPFS_IN_ALL },
	[DCPFS_LAYOUT_JSON]       = { DCPFS_LAYOUT_JSON, DCPFS_LAYOUT, DCPFS_FILE, "layout.json", false, DCPFS_IN_ALL },
	[DCPFS_PLAN_JSON]         = { DCPFS_PLAN_JSON, DCPFS_VERSION, DCPFS_FILE, "plan.json", false, DCPFS_IN_RANK },
	[DCPFS_MODEL]             = { DCPFS_MODEL, DCPFS_VERSION, DCPFS_FILE, "model.safetensors", false, DCPFS_IN_RANK },
	[DCPFS_HF]                = { DCPFS_HF, DCPFS_VERSION, DCPFS_DIR, "hf", false, DCPFS_IN_VERSION },
	[DCPFS_HF_README]         = { DCPFS_HF_README, DCPFS_VERSION, DCPFS_FILE, "README.md", false, DCPFS_IN_HF },
	[DCPFS_HF_INDEX]          = { DCPFS_HF_INDEX, DCPFS_VERSION, DCPFS_FILE, "model.safetensors.index.json", false, DCPFS_IN_HF },
	[DCPFS_BLOB_DIR]          = { DCPFS_BLOB_DIR, DCPFS_CONTROL, DCPFS_DIR, "blob", false, DCPFS_IN_ALL },
	[DCPFS_NPY_BLOB]          = { DCPFS_NPY_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_RAW_BLOB]          = { DCPFS_RAW_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_SAFETENSORS_BLOB]  = { DCPFS_SAFETENSORS_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_MODEL_BLOB]        = { DCPFS_MODEL_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_NPY]               = { DCPFS_NPY, DCPFS_NPY_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_RAW]               = { DCPFS_RAW, DCPFS_RAW_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_SAFETENSORS]       = { DCPFS_SAFETENSORS, DCPFS_SAFETENSORS_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
	[DCPFS_OBJECT]            = { DCPFS_OBJECT, DCPFS_OBJECTS_DIR, DCPFS_FILE, NULL, false, DCPFS_IN_ALL },
};

static const struct dcpfs_rows rows[] = {
	{ DCPFS_NPY_DIR, DCPFS_NPY, DCP_ROW_TENSOR, DCP_AS_NPY, ".npy", DCPFS_NPY_BLOB },
	{ DCPFS_RAW_DIR, DCPFS_RAW, DCP_ROW_TENSOR, DCP_AS_RAW, ".bin", DCPFS_RAW_BLOB },
	{ DCPFS_SAFETENSORS_DIR, DCPFS_SAFETENSORS, DCP_ROW_TENSOR, DCP_AS_SAFETENSORS, ".safetensors", DCPFS_SAFETENSORS_BLOB },
	{ DCPFS_OBJECTS_DIR, DCPFS_OBJECT, DCP_ROW_OBJECT, DCP_AS_RAW, ".json", DCPFS_ROOT },
};
/* clang-format on */

const struct dcpfs_node *dcpfs_node(enum dcpfs_kind kind)
{
	return (unsigned)kind < DCPFS_KIND_COUNT ? &nodes[kind] : NULL;
}

const struct dcpfs_rows *dcpfs_rows_in(enum dcpfs_kind dir)
{
	for (size_t i = 0; i < DCP_LEN(rows); i++)
		if (rows[i].dir == dir)
			return &rows[i];
	return NULL;
}

const struct dcpfs_rows *dcpfs_rows_of(enum dcpfs_kind file)
{
	for (size_t i = 0; i < DCP_LEN(rows); i++)
		if (rows[i].file == file)
			return &rows[i];
	return NULL;
}

int dcpfs_blob_ino(struct dcpfs_ino ino, uint64_t *blob)
{
	const struct dcpfs_rows *r = dcpfs_rows_of(ino.kind);
	bool all = ino.kind == DCPFS_MODEL || ino.kind == DCPFS_VERSION;
	enum dcpfs_kind kind = r ? r->blob : all ? DCPFS_MODEL_BLOB : DCPFS_ROOT;

	if (kind == DCPFS_ROOT || !ino.slot)
		return -ENOENT;
	*blob = dcpfs_ino_pack(ino.slot, kind, ino.row);
	return 0;
}

struct dcpfs_ino dcpfs_blob_about(struct dcpfs_ino blob)
{
	for (size_t i = 0; i < DCP_LEN(rows); i++)
		if (rows[i].blob == blob.kind)
			return (struct dcpfs_ino){ blob.slot, rows[i].file, blob.row };
	return (struct dcpfs_ino){ blob.slot, DCPFS_MODEL, blob.row };
}

static bool is_fixed_child(const struct dcpfs_node *n, enum dcpfs_kind parent,
			   enum dcpfs_slots in)
{
	return n->parent == parent && n->name && n->slots & in;
}

static bool is_listed(const struct dcpfs_node *n, enum dcpfs_kind parent, enum dcpfs_slots in)
{
	return is_fixed_child(n, parent, in) &&
	       !(in == DCPFS_IN_HF && n->slots & DCPFS_UNLISTED);
}

const struct dcpfs_node *dcpfs_child(enum dcpfs_kind parent, enum dcpfs_slots in,
				     const char *name)
{
	for (size_t i = 0; i < DCP_LEN(nodes); i++)
		if (is_fixed_child(&nodes[i], parent, in) && !strcmp(nodes[i].name, name))
			return &nodes[i];
	return NULL;
}

const struct dcpfs_node *dcpfs_child_at(enum dcpfs_kind parent, enum dcpfs_slots in, unsigned n)
{
	for (size_t i = 0; i < DCP_LEN(nodes); i++)
		if (is_listed(&nodes[i], parent, in) && n-- == 0)
			return &nodes[i];
	return NULL;
}

unsigned dcpfs_child_dirs(enum dcpfs_kind parent, enum dcpfs_slots in)
{
	unsigned count = 0;

	for (size_t i = 0; i < DCP_LEN(nodes); i++)
		count += is_listed(&nodes[i], parent, in) && nodes[i].type == DCPFS_DIR;
	return count;
}

bool dcpfs_stem(const char *name, const char *extension, char *stem)
{
	size_t n = strlen(name), e = strlen(extension);

	if (n <= e || n - e > DCP_NAME_MAX || memcmp(name + n - e, extension, e) != 0)
		return false;
	memcpy(stem, name, n - e);
	stem[n - e] = '\0';
	return true;
}
