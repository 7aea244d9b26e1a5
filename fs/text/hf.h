/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: the generated files of hf/: README.md, which says how keys were mapped and what is
 * missing, and model.safetensors.index.json, if there are several model files.
 */
#pragma once
#include <stdint.h>

struct dcp_err;
struct dcpfs;
struct dcpfs_spool;
struct dcpfs_version;

/* @ver: an open slot of hf/. 0, or the error of the index. */
int dcpfs_hf_readme(const struct dcpfs *fs, const struct dcpfs_version *ver,
		    struct dcpfs_spool *s, struct dcp_err *err);
int dcpfs_hf_weight_map(const struct dcpfs_version *ver, struct dcpfs_spool *s,
			struct dcp_err *err);
/* Generated file number @i (dcp_version_made). -ENOENT: there are fewer. */
int dcpfs_hf_made(const struct dcpfs_version *ver, uint64_t i, struct dcpfs_spool *s);
