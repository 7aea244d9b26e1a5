/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ino: an inode number identifies a node of the tree by arithmetic alone.
 *
 *   bits 63-41   slot of the version, of its hf/, or of the part of a rank in either (0: the root and
 *                nodes of no version)
 *   bits 40-35   kind of node (enum dcpfs_kind)
 *   bits 34-0    row id in the version's index, for kinds that have rows; number of the layout
 *                or key, for kinds that belong to one; for the link latest, the slot it leads
 *                to
 *
 * So lookup and forget need no table, and numbers are the same after a remount as long as the
 * slot is, which is a hash of the version's name and commit time, and of layout and rank. The
 * root is 1, as FUSE has it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum dcpfs_kind {
	DCPFS_ROOT,
	DCPFS_LATEST,
	DCPFS_CONTROL, /* .dcpfs/ and its files */
	DCPFS_STATUS,
	DCPFS_ERRORS,
	DCPFS_INCOMPLETE,
	DCPFS_STATS,
	DCPFS_METRICS,
	DCPFS_CONFIG,
	DCPFS_LOG,
	DCPFS_TAGS_DIR,
	DCPFS_TAG, /* a link; slot: of the version it leads to */
	DCPFS_BY_KEY_DIR,
	DCPFS_BY_KEY,      /* a key's directory; the row is its number */
	DCPFS_BY_KEY_LINK, /* the same, and the slot of the version */
	DCPFS_VERSION,     /* the directory of a slot (a version or a rank), and its entries */
	DCPFS_README,
	DCPFS_INDEX_JSON,
	DCPFS_INDEX_JSONL,
	DCPFS_NPY_DIR,
	DCPFS_RAW_DIR,
	DCPFS_SAFETENSORS_DIR,
	DCPFS_OBJECTS_DIR,
	DCPFS_MEASURED_DIR, /* stats/ */
	DCPFS_FILES_DIR,
	/* a directory below files/; row of its first file, and the depth in the low three bits */
	DCPFS_FILES_SUB,
	DCPFS_SIDECAR,     /* the row is 1 + the number among the version's files, or assets */
	DCPFS_SHARD_DIR,   /* a version's layouts */
	DCPFS_LAYOUT,      /* a layout's ranks; the row is its number */
	DCPFS_LAYOUT_JSON, /* the same */
	DCPFS_PLAN_JSON,   /* a rank's */
	DCPFS_MODEL,       /* a rank's, or one of hf/; the row is its number */
	DCPFS_HF,          /* only a name: lookup gives the DCPFS_VERSION of another slot */
	DCPFS_HF_README,   /* these three: of the slot of hf/ */
	DCPFS_HF_INDEX,
	DCPFS_HF_MADE, /* a file made from the checkpoint's data; the row is its number */
	DCPFS_BLOB_DIR,
	DCPFS_NPY_BLOB, /* DCPFS_*_BLOB: about the file of that row */
	DCPFS_RAW_BLOB,
	DCPFS_SAFETENSORS_BLOB,
	DCPFS_MODEL_BLOB, /* about a file of many tensors */
	DCPFS_NPY,        /* a file for each row */
	DCPFS_RAW,
	DCPFS_SAFETENSORS,
	DCPFS_OBJECT,
	DCPFS_MEASURED, /* the statistics of a tensor */
};
#define DCPFS_KIND_COUNT (DCPFS_MEASURED + 1)

#define DCPFS_SLOT_BITS 23
#define DCPFS_KIND_BITS 6
#define DCPFS_ROW_BITS 35
#define DCPFS_ROW_MAX ((1ull << DCPFS_ROW_BITS) - 1)

struct dcpfs_ino {
	uint32_t slot;
	enum dcpfs_kind kind;
	uint64_t row;
};

static inline uint64_t dcpfs_ino_pack(uint32_t slot, enum dcpfs_kind kind, uint64_t row)
{
	if (slot == 0 && kind == DCPFS_ROOT)
		return 1;
	return (uint64_t)slot << (DCPFS_KIND_BITS + DCPFS_ROW_BITS) |
	       (uint64_t)kind << DCPFS_ROW_BITS | row;
}

static inline bool dcpfs_is_blob(enum dcpfs_kind kind)
{
	return kind >= DCPFS_NPY_BLOB && kind <= DCPFS_MODEL_BLOB;
}

/* Any number unpacks; a kind past DCPFS_KIND_COUNT names nothing. */
static inline struct dcpfs_ino dcpfs_ino_unpack(uint64_t ino)
{
	if (ino == 1)
		return (struct dcpfs_ino){ 0, DCPFS_ROOT, 0 };
	return (struct dcpfs_ino){
		(uint32_t)(ino >> (DCPFS_KIND_BITS + DCPFS_ROW_BITS)),
		(enum dcpfs_kind)(ino >> DCPFS_ROW_BITS & ((1 << DCPFS_KIND_BITS) - 1)),
		ino & DCPFS_ROW_MAX,
	};
}
