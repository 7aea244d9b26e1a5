/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree/tree.h"

#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "fs/fs.h"
#include "fs/tree/dir_int.h"

/* clang-format off */
static const struct dcpfs_rows rows[] = {
	{ DCPFS_NPY_DIR, DCPFS_NPY, DCP_ROW_TENSOR, DCP_AS_NPY, "npy", ".npy", DCPFS_NPY_BLOB },
	{ DCPFS_RAW_DIR, DCPFS_RAW, DCP_ROW_TENSOR, DCP_AS_RAW, "raw", ".bin", DCPFS_RAW_BLOB },
	{ DCPFS_SAFETENSORS_DIR, DCPFS_SAFETENSORS, DCP_ROW_TENSOR, DCP_AS_SAFETENSORS, "safetensors", ".safetensors", DCPFS_SAFETENSORS_BLOB },
	{ DCPFS_OBJECTS_DIR, DCPFS_OBJECT, DCP_ROW_OBJECT, DCP_AS_RAW, "objects", ".json", DCPFS_ROOT },
	{ DCPFS_MEASURED_DIR, DCPFS_MEASURED, DCP_ROW_TENSOR, DCP_AS_RAW, "stats", ".json", DCPFS_ROOT, .named = true },
};
/* clang-format on */

const struct dcpfs_node *dcpfs_node(const struct dcpfs *fs, enum dcpfs_kind kind)
{
	return (unsigned)kind < DCPFS_KIND_COUNT ? &fs->nodes[kind] : NULL;
}

bool dcpfs_is_of_version(const struct dcpfs *fs, const struct dcpfs_node *node)
{
	while (node->kind != DCPFS_ROOT && node->kind != DCPFS_VERSION)
		node = &fs->nodes[node->parent];
	return node->kind == DCPFS_VERSION;
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

/* Look up the blob of an inode by its number in hex; blobs are not listed. */
int dcpfs_blob_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	size_t n = strlen(name);
	uint64_t ino = 0;

	if (n != 16 || strspn(name, "0123456789abcdef") != n)
		return -ENOENT;
	while (*name)
		ino = ino << 4 | (uint64_t)dcp_hex_digit(*name++);
	return dcpfs_blob_ino(dcpfs_ino_unpack(ino), &out->ino);
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

const struct dcpfs_node *dcpfs_child(const struct dcpfs *fs, enum dcpfs_kind parent,
				     enum dcpfs_slots in, const char *name)
{
	for (const struct dcpfs_node *n = fs->nodes; n < fs->nodes + DCPFS_KIND_COUNT; n++)
		if (is_fixed_child(n, parent, in) && !strcmp(n->name, name))
			return n;
	return NULL;
}

const struct dcpfs_node *dcpfs_child_at(const struct dcpfs *fs, enum dcpfs_kind parent,
					enum dcpfs_slots in, unsigned n)
{
	for (size_t i = 0; i < DCPFS_KIND_COUNT; i++)
		if (is_listed(&fs->nodes[i], parent, in) && n-- == 0)
			return &fs->nodes[i];
	return NULL;
}

unsigned dcpfs_child_dirs(const struct dcpfs *fs, enum dcpfs_kind parent, enum dcpfs_slots in)
{
	unsigned count = 0;

	for (size_t i = 0; i < DCPFS_KIND_COUNT; i++)
		count += is_listed(&fs->nodes[i], parent, in) && fs->nodes[i].type == DCPFS_DIR;
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
