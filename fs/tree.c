/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree.h"

#include <string.h>

#include "core/base/base.h"
#include "core/model/name.h"

/* clang-format off */
static const struct dcpfs_node nodes[DCPFS_KIND_COUNT] = {
	[DCPFS_ROOT]            = { DCPFS_ROOT, DCPFS_ROOT, DCPFS_DIR, NULL, true },
	[DCPFS_LATEST]          = { DCPFS_LATEST, DCPFS_ROOT, DCPFS_LINK, "latest", true },
	[DCPFS_CONTROL]         = { DCPFS_CONTROL, DCPFS_ROOT, DCPFS_DIR, ".dcpfs", false },
	[DCPFS_STATUS]          = { DCPFS_STATUS, DCPFS_CONTROL, DCPFS_FILE, "status.json", true },
	[DCPFS_ERRORS]          = { DCPFS_ERRORS, DCPFS_CONTROL, DCPFS_FILE, "errors.json", true },
	[DCPFS_INCOMPLETE]      = { DCPFS_INCOMPLETE, DCPFS_CONTROL, DCPFS_FILE, "incomplete.json", true },
	[DCPFS_STATS]           = { DCPFS_STATS, DCPFS_CONTROL, DCPFS_FILE, "stats", true },
	[DCPFS_CONFIG]          = { DCPFS_CONFIG, DCPFS_CONTROL, DCPFS_FILE, "config.json", true },
	[DCPFS_VERSION]         = { DCPFS_VERSION, DCPFS_ROOT, DCPFS_DIR, NULL, false },
	[DCPFS_README]          = { DCPFS_README, DCPFS_VERSION, DCPFS_FILE, "README.txt", false },
	[DCPFS_INDEX_JSON]      = { DCPFS_INDEX_JSON, DCPFS_VERSION, DCPFS_FILE, "index.json", false },
	[DCPFS_INDEX_JSONL]     = { DCPFS_INDEX_JSONL, DCPFS_VERSION, DCPFS_FILE, "index.jsonl", false },
	[DCPFS_NPY_DIR]         = { DCPFS_NPY_DIR, DCPFS_VERSION, DCPFS_DIR, "npy", false },
	[DCPFS_RAW_DIR]         = { DCPFS_RAW_DIR, DCPFS_VERSION, DCPFS_DIR, "raw", false },
	[DCPFS_SAFETENSORS_DIR] = { DCPFS_SAFETENSORS_DIR, DCPFS_VERSION, DCPFS_DIR, "safetensors", false },
	[DCPFS_OBJECTS_DIR]     = { DCPFS_OBJECTS_DIR, DCPFS_VERSION, DCPFS_DIR, "objects", false },
	[DCPFS_NPY]             = { DCPFS_NPY, DCPFS_NPY_DIR, DCPFS_FILE, NULL, false },
	[DCPFS_RAW]             = { DCPFS_RAW, DCPFS_RAW_DIR, DCPFS_FILE, NULL, false },
	[DCPFS_SAFETENSORS]     = { DCPFS_SAFETENSORS, DCPFS_SAFETENSORS_DIR, DCPFS_FILE, NULL, false },
	[DCPFS_OBJECT]          = { DCPFS_OBJECT, DCPFS_OBJECTS_DIR, DCPFS_FILE, NULL, false },
};

static const struct dcpfs_rows rows[] = {
	{ DCPFS_NPY_DIR, DCPFS_NPY, DCP_ROW_TENSOR, DCP_AS_NPY, ".npy" },
	{ DCPFS_RAW_DIR, DCPFS_RAW, DCP_ROW_TENSOR, DCP_AS_RAW, ".bin" },
	{ DCPFS_SAFETENSORS_DIR, DCPFS_SAFETENSORS, DCP_ROW_TENSOR, DCP_AS_SAFETENSORS, ".safetensors" },
	{ DCPFS_OBJECTS_DIR, DCPFS_OBJECT, DCP_ROW_OBJECT, DCP_AS_RAW, ".json" },
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

static bool is_fixed_child(const struct dcpfs_node *n, enum dcpfs_kind parent)
{
	return n->parent == parent && n->name;
}

const struct dcpfs_node *dcpfs_child(enum dcpfs_kind parent, const char *name)
{
	for (size_t i = 0; i < DCP_LEN(nodes); i++)
		if (is_fixed_child(&nodes[i], parent) && !strcmp(nodes[i].name, name))
			return &nodes[i];
	return NULL;
}

const struct dcpfs_node *dcpfs_child_at(enum dcpfs_kind parent, unsigned n)
{
	for (size_t i = 0; i < DCP_LEN(nodes); i++)
		if (is_fixed_child(&nodes[i], parent) && n-- == 0)
			return &nodes[i];
	return NULL;
}

unsigned dcpfs_child_dirs(enum dcpfs_kind parent)
{
	unsigned count = 0;

	for (size_t i = 0; i < DCP_LEN(nodes); i++)
		count += is_fixed_child(&nodes[i], parent) && nodes[i].type == DCPFS_DIR;
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
