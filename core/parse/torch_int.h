/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_int: what the files behind torch.h share, and nobody else includes.
 *
 *	torch.c         which container is it, and the zip one
 *	torch_legacy.c  five pickles in a row, then the storages
 *	torch_tensor.c  what a rebuild call says
 */
#pragma once
#include "core/base/arena.h"
#include "core/parse/source.h"
#include "core/parse/torch.h"

struct dcp_zip_member;

enum {
	/* All small records of a one-tensor archive lie in its first bytes: one read for them.
	 */
	DCP_TORCH_HEAD = 4096,
};

/* Where the bytes of one storage lie. */
struct dcp_torch_record {
	const char *key;
	uint64_t off; /* DCP_TORCH_UNLOCATED: the local header was not read yet */
	uint64_t size;
	const struct dcp_zip_member *member; /* NULL: legacy stream */
};
#define DCP_TORCH_UNLOCATED UINT64_MAX

struct dcp_torch {
	struct dcp_source src; /* first member: the stream, its head from memory */
	const struct dcp_source *under;
	size_t head_n;
	struct dcp_source window;            /* data.pkl in a zip archive */
	const struct dcp_source *pickle_src; /* what src_off of a value counts in */
	struct dcp_pickle *pickle;
	uint64_t pickle_n; /* bytes of the stream up to the end of it */
	struct dcp_arena arena;
	struct dcp_torch_record *records; /* sorted by key */
	size_t nrecords;
	bool big_endian;
	size_t memory;
	uint8_t head[DCP_TORCH_HEAD];
};

/* A storage as a persistent id names it. */
struct dcp_torch_storage {
	const char *key;
	const char *dtype_name; /* torch's; of an untyped storage "uint8" */
	uint32_t itemsize;
	uint64_t numel;
	uint64_t view_off, view_n; /* part of it that is meant, in elements */
};

/* Returns 0, -EBADMSG, -ENOTSUP. @id is a PERSID. */
int dcp_torch_storage_id(struct dcp_pv id, struct dcp_torch_storage *out, struct dcp_err *err);

/* Read the storages' places behind the five pickles. The stream is known to begin like one. */
int dcp_torch_open_legacy(struct dcp_torch *t, struct dcp_err *err);

/* Sort the records by key; two of one key are refused. */
int dcp_torch_sort_records(struct dcp_torch *t, struct dcp_err *err);
