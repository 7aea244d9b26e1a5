/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_int: what the files behind torch.h share; only they include it.
 *
 *	torch.c         which container is it, and the zip one; items that begin alike
 *	legacy.c        five pickles in a row, then the storages; the tar container of torch 0.1
 *	tensor.c        what a rebuild call says; tensors that are made of several
 *	storage.c       dtypes, storages, and what of one a tensor takes
 */
#pragma once
#include "core/base/arena.h"
#include "core/origin/dir/dir.h"
#include "core/origin/source.h"
#include "core/parse/torch/torch.h"

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

/* What the tar container of torch 0.1 has besides the object; see legacy.c. */
struct dcp_torch_tar_storage {
	uint64_t id, off, numel;
	const char *dtype; /* torch's name */
};
struct dcp_torch_tar_tensor {
	uint64_t id, storage;
	uint64_t at; /* of its sizes, strides and first element */
	uint32_t ndim;
	bool empty; /* has no storage */
};
struct dcp_torch_tar {
	struct dcp_torch_tar_storage *storages; /* by id */
	struct dcp_torch_tar_tensor *tensors;   /* by id */
	size_t nstorages, ntensors;
};

struct dcp_torch {
	struct dcp_source src; /* first member: the stream, its head from memory */
	const struct dcp_source *under;
	struct dcp_input file; /* that it is, if it was opened by name */
	size_t head_n;
	struct dcp_source window;            /* data.pkl in a zip archive */
	const struct dcp_source *pickle_src; /* what src_off of a value counts in */
	struct dcp_pickle *pickle;
	uint64_t pickle_n; /* bytes of the stream up to the end of it */
	struct dcp_arena arena;
	struct dcp_torch_record *records; /* sorted by key */
	size_t nrecords;
	struct dcp_torch_tar tar;
	bool big_endian;
	/* Of a zip archive with a byteorder: the end of it and of data.pkl; else 0. */
	uint64_t small_end;
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

/* What torch calls to make a tensor again. */
enum dcp_torch_kind {
	DCP_TORCH_NONE,    /* no tensor */
	DCP_TORCH_V1,      /* storage, offset, size, stride */
	DCP_TORCH_V2,      /* + requires_grad, hooks[, metadata] */
	DCP_TORCH_V3,      /* + requires_grad, hooks, dtype[, metadata] */
	DCP_TORCH_WRAPPED, /* the first argument is the tensor */
	DCP_TORCH_TYPED,   /* function, class, arguments, state */
	DCP_TORCH_SPARSE,  /* from here on: see tensor.c */
	DCP_TORCH_QUANTIZED,
	DCP_TORCH_NESTED,
	DCP_TORCH_JAGGED,
	DCP_TORCH_META,
	DCP_TORCH_SUBCLASS, /* tensors lie in its arguments or state */
	DCP_TORCH_REFUSED,
};

struct dcp_torch_call {
	enum dcp_torch_kind kind;
	const char *what; /* the kind in words, when it is not dense */
	const struct dcp_pv *arg;
	size_t n;
	struct dcp_pv state; /* of a SUBCLASS: its attributes */
};

/* Read the storages' places after the five pickles. The stream is known to begin like one. */
int dcp_torch_open_legacy(struct dcp_torch *t, struct dcp_err *err);

/* The same for the tar of torch 0.1. */
int dcp_torch_open_tar(struct dcp_torch *t, struct dcp_err *err);

/* The tensor whose number that text is: 1, or negative. */
int dcp_torch_tar_tensor(const struct dcp_torch *t, const char *number,
			 struct dcp_torch_tensor *out, struct dcp_err *err);

/* Is it a class or function of torch? */
bool dcp_torch_is_global(struct dcp_pv v);

/* torch's name of the dtype that a class of storages holds, or NULL. */
const char *dcp_torch_storage_dtype(struct dcp_pv class);

/* Put a dtype torch calls @name into @x: 0, or -ENOTSUP. */
int dcp_torch_take_dtype(struct dcp_torch_tensor *x, const char *name, struct dcp_err *err);

/* Place @x, whose first element is number @first of the view @s, whose bytes start at @base. */
int dcp_torch_place(struct dcp_torch_tensor *x, const struct dcp_torch_storage *s,
		    uint64_t first, uint64_t base, struct dcp_err *err);

/* Sort the records by key; two of one key are refused. Then find one; NULL: there is none. */
int dcp_torch_sort_records(struct dcp_torch *t, struct dcp_err *err);
struct dcp_torch_record *dcp_torch_find_record(const struct dcp_torch *t, const char *key);
