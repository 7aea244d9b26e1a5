/* SPDX-License-Identifier: Apache-2.0 */
/* The table of nodes. */
#include "fs/tree/dir_int.h"

/* clang-format off */
#define NODE(kind, ...) [kind] = { kind, __VA_ARGS__ }

const struct dcpfs_node dcpfs_nodes[DCPFS_KIND_COUNT] = {
	NODE(DCPFS_ROOT, DCPFS_ROOT, DCPFS_DIR, NULL, DCPFS_IN_ALL, .live = true, .lookup = dcpfs_versions_lookup, .list = dcpfs_versions_list),
	NODE(DCPFS_LATEST, DCPFS_ROOT, DCPFS_LINK, "latest", DCPFS_IN_ALL, .live = true, .readlink = dcpfs_latest_readlink),
	NODE(DCPFS_CONTROL, DCPFS_ROOT, DCPFS_DIR, ".dcpfs", DCPFS_IN_ALL),
	NODE(DCPFS_STATUS, DCPFS_CONTROL, DCPFS_FILE, "status.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_ERRORS, DCPFS_CONTROL, DCPFS_FILE, "errors.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_INCOMPLETE, DCPFS_CONTROL, DCPFS_FILE, "incomplete.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_STATS, DCPFS_CONTROL, DCPFS_FILE, "stats", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_METRICS, DCPFS_CONTROL, DCPFS_FILE, "metrics", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_CONFIG, DCPFS_CONTROL, DCPFS_FILE, "config.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_LOG, DCPFS_CONTROL, DCPFS_FILE, "log", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_TAGS_DIR, DCPFS_ROOT, DCPFS_DIR, "tags", DCPFS_IN_ALL, .lookup = dcpfs_tags_lookup, .list = dcpfs_tags_list),
	NODE(DCPFS_TAG, DCPFS_TAGS_DIR, DCPFS_LINK, NULL, DCPFS_IN_ALL, .readlink = dcpfs_tag_readlink),
	NODE(DCPFS_BY_KEY_DIR, DCPFS_ROOT, DCPFS_DIR, "by-key", DCPFS_IN_ALL, .lookup = dcpfs_keys_lookup, .list = dcpfs_keys_list),
	NODE(DCPFS_BY_KEY, DCPFS_BY_KEY_DIR, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_by_key_lookup, .list = dcpfs_by_key_list, .attr = dcpfs_by_key_attr),
	NODE(DCPFS_BY_KEY_LINK, DCPFS_BY_KEY, DCPFS_LINK, NULL, DCPFS_IN_ALL, .readlink = dcpfs_by_key_readlink),
	NODE(DCPFS_VERSION, DCPFS_ROOT, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_hf_lookup, .list = dcpfs_hf_list),
	NODE(DCPFS_README, DCPFS_VERSION, DCPFS_FILE, "README.txt", DCPFS_IN_VERSION),
	NODE(DCPFS_INDEX_JSON, DCPFS_VERSION, DCPFS_FILE, "index.json", DCPFS_IN_BOTH),
	NODE(DCPFS_INDEX_JSONL, DCPFS_VERSION, DCPFS_FILE, "index.jsonl", DCPFS_IN_VERSION),
	NODE(DCPFS_NPY_DIR, DCPFS_VERSION, DCPFS_DIR, "npy", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_RAW_DIR, DCPFS_VERSION, DCPFS_DIR, "raw", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_SAFETENSORS_DIR, DCPFS_VERSION, DCPFS_DIR, "safetensors", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_OBJECTS_DIR, DCPFS_VERSION, DCPFS_DIR, "objects", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_FILES_DIR, DCPFS_VERSION, DCPFS_DIR, "files", DCPFS_IN_VERSION, .lookup = dcpfs_sidecars_lookup, .list = dcpfs_sidecars_list),
	NODE(DCPFS_FILES_SUB, DCPFS_FILES_DIR, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_sidecars_lookup, .list = dcpfs_sidecars_list),
	NODE(DCPFS_SIDECAR, DCPFS_FILES_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL, .attr = dcpfs_sidecar_attr),
	NODE(DCPFS_SHARD_DIR, DCPFS_VERSION, DCPFS_DIR, "shard", DCPFS_IN_VERSION | DCPFS_IN_HF | DCPFS_UNLISTED, .lookup = dcpfs_layouts_lookup, .list = dcpfs_layouts_list),
	NODE(DCPFS_LAYOUT, DCPFS_SHARD_DIR, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_ranks_lookup, .list = dcpfs_ranks_list),
	NODE(DCPFS_LAYOUT_JSON, DCPFS_LAYOUT, DCPFS_FILE, "layout.json", DCPFS_IN_ALL),
	NODE(DCPFS_PLAN_JSON, DCPFS_VERSION, DCPFS_FILE, "plan.json", DCPFS_IN_RANK),
	NODE(DCPFS_MODEL, DCPFS_VERSION, DCPFS_FILE, "model.safetensors", DCPFS_IN_RANK),
	NODE(DCPFS_HF, DCPFS_VERSION, DCPFS_DIR, "hf", DCPFS_IN_VERSION),
	NODE(DCPFS_HF_README, DCPFS_VERSION, DCPFS_FILE, "README.md", DCPFS_IN_HF),
	NODE(DCPFS_HF_INDEX, DCPFS_VERSION, DCPFS_FILE, NULL, DCPFS_IN_HF),
	NODE(DCPFS_HF_MADE, DCPFS_VERSION, DCPFS_FILE, NULL, DCPFS_IN_HF),
	NODE(DCPFS_BLOB_DIR, DCPFS_CONTROL, DCPFS_DIR, "blob", DCPFS_IN_ALL, .lookup = dcpfs_blob_lookup),
	NODE(DCPFS_NPY_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_RAW_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_SAFETENSORS_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_MODEL_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_NPY, DCPFS_NPY_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_RAW, DCPFS_RAW_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_SAFETENSORS, DCPFS_SAFETENSORS_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_OBJECT, DCPFS_OBJECTS_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
};
/* clang-format on */
