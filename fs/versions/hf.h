/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: a version as a Hugging Face model directory, as a slot of its own.
 *
 * The slot is a struct dcpfs_version over a mapped version (core/store/version/mapped.h), made
 * when hf/ is looked up and mapped when it is entered. It is kept among the ranks of the
 * version (fs/versions/ranks.h), and goes with it.
 *
 * Its tensors are in natural order of their names in model.safetensors, or in several files of at
 * most opts.hf_shard_size bytes each, unless one tensor alone is larger; none where there is none; an adapter in one. Within a file those with
 * larger elements come first where they would not be aligned otherwise.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/rights.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/store/version/assets.h"

struct dcp_err;
struct dcp_grants;
struct dcpfs;
struct dcpfs_ino;
struct dcpfs_version;

#define DCPFS_HF_SHARD_SIZE 5000000000u

struct dcpfs_hf {
	int64_t *row;  /* ids of the tensors that are shown, file after file */
	size_t *first; /* of each file: its first in row; and how many there are in all */
	size_t nfiles;
	uint64_t nbytes; /* of all tensors shown */
	/* with allow_other: of each root; and of the way to the one that the user named */
	struct dcp_grants *grants[DCP_ASSET_ROOTS + 1];
	struct dcp_rights common; /* to read what describes all keys */
};

/* Map @ver, which is such a slot and whose base is open; no other thread is doing it. */
int dcpfs_hf_open(struct dcpfs *fs, struct dcpfs_version *ver, bool (*stop)(void *ctx),
		  struct dcp_err *err);
void dcpfs_hf_free(struct dcpfs_hf *hf);

/* The name of its model file number @n, "model-00001-of-00012.safetensors", or what else dcp_version_stem() says;
 * after the last one: of the list of them. */
void dcpfs_hf_name(const struct dcpfs_version *ver, uint64_t n,
		   char name[DCP_SAFETENSORS_NAME]);

/* Call @fn for the tensors of its model file number @n, in their order. -ENOENT: there is no such
 * file; a negative return of @fn is passed on. */
struct dcp_row;
int dcpfs_hf_rows(const struct dcpfs_version *ver, uint64_t n,
		  int (*fn)(void *ctx, struct dcp_row *row), void *ctx);

/* Who may read node @i of it, or of a rank below it; @search: of a directory, to enter it. */
struct dcp_rights dcpfs_hf_rights(const struct dcpfs_version *ver, const struct dcpfs_ino *i,
				  struct dcp_rights *search);
