/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: what dcpfs itself writes in hf/: README.md, which says what was made of which keys and what
 * is missing, and model.safetensors.index.json, where there are several model files.
 */
#pragma once
#include <stdint.h>

struct dcp_err;
struct dcpfs;
struct dcpfs_spool;
struct dcpfs_version;

/* @ver: an open slot of hf/. 0, or what the index gave. */
int dcpfs_hf_readme(const struct dcpfs *fs, const struct dcpfs_version *ver,
		    struct dcpfs_spool *s, struct dcp_err *err);
int dcpfs_hf_weight_map(const struct dcpfs_version *ver, struct dcpfs_spool *s,
			struct dcp_err *err);
/* File number @i of those that are made (dcp_version_made). -ENOENT: there are fewer. */
int dcpfs_hf_made(const struct dcpfs_version *ver, uint64_t i, struct dcpfs_spool *s);
