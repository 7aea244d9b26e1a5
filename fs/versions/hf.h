/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: a version as a Hugging Face model directory, with its own slot. The slot is a struct
 * dcpfs_version over a mapped version (core/store/version/mapped.h), made when hf/ is looked up
 * and mapped when it is entered. It is kept among the ranks of the version
 * (fs/versions/ranks.h), and goes with the version. Tensors are in natural order of their
 * names, in model.safetensors or in several files of at most opts.hf_shard_size bytes (more if
 * a single tensor is larger); an adapter is always one file; without tensors there is no file.
 * Within a file, tensors with larger elements come first where alignment needs it.
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
	int64_t *row;  /* row ids of the shown tensors, file by file */
	size_t *first; /* index in row of each file's first tensor; and the number of all */
	size_t nfiles;
	uint64_t nbytes; /* of all tensors shown */
	/* with allow_other: rights of each root; and of the way to --hf-assets */
	struct dcp_grants *grants[DCP_ASSET_ROOTS + 1];
	struct dcp_rights common; /* to read what describes all keys */
};

/* Map @ver, a slot of hf/ whose version is open. Call in one thread at a time. */
int dcpfs_hf_open(struct dcpfs *fs, struct dcpfs_version *ver, bool (*stop)(void *ctx),
		  struct dcp_err *err);
void dcpfs_hf_free(struct dcpfs_hf *hf);

/*
 * The name of model file number @n, as "model-00001-of-00012.safetensors" (dcp_version_stem());
 * after the last one, the name of the index of model files.
 */
void dcpfs_hf_name(const struct dcpfs_version *ver, uint64_t n,
		   char name[DCP_SAFETENSORS_NAME]);

/*
 * Call @fn for the tensors of model file number @n, in their order. -ENOENT: no such file; a
 * negative return of @fn is passed on.
 */
struct dcp_row;
int dcpfs_hf_rows(const struct dcpfs_version *ver, uint64_t n,
		  int (*fn)(void *ctx, struct dcp_row *row), void *ctx);

/*
 * The rights of node @i of hf/, or of a rank below it; @search: those to enter it, if it is a
 * directory.
 */
struct dcp_rights dcpfs_hf_rights(const struct dcpfs_version *ver, const struct dcpfs_ino *i,
				  struct dcp_rights *search);
