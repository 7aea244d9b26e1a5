/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_int: declarations for the files behind torch.h; only they include it.
 *
 *	torch.c         detects the container; the zip container; items with known heads
 *	legacy.c        five pickles, then the storages; the tar container of torch 0.1
 *	tensor.c        the calls that rebuild a tensor; tensors that consist of several
 *	storage.c       dtypes, storages, and the part of a storage that a tensor covers
 */
#pragma once
#include "core/base/arena.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"

struct dcp_zip_member;

enum {
	/* Small records of an archive with one tensor lie in its first bytes: one read. */
	DCP_TORCH_HEAD = 4096,
};

/* The place of the bytes of a storage. */
struct dcp_torch_record {
	const char *key;
	uint64_t off; /* DCP_TORCH_UNLOCATED until the local header is read */
	uint64_t size;
	const struct dcp_zip_member *member; /* NULL: legacy stream */
};
#define DCP_TORCH_UNLOCATED UINT64_MAX

/* The parts of the tar container of torch 0.1 besides the object; see legacy.c. */
struct dcp_torch_tar_storage {
	uint64_t id, off, numel;
	const char *dtype; /* torch's name */
};
struct dcp_torch_tar_tensor {
	uint64_t id, storage;
	uint64_t at; /* place of its sizes, strides and first element */
	uint32_t ndim;
	bool empty; /* has no storage */
};
struct dcp_torch_tar {
	struct dcp_torch_tar_storage *storages; /* by id */
	struct dcp_torch_tar_tensor *tensors;   /* by id */
	size_t nstorages, ntensors;
};

struct dcp_torch {
	struct dcp_source src;          /* must be first: the stream, with its head in memory */
	const struct dcp_source *under; /* the stream itself */
	struct dcp_input file;          /* open if the stream was opened by name */
	size_t head_n;
	struct dcp_source window;            /* data.pkl in a zip archive */
	const struct dcp_source *pickle_src; /* the source that src_off of a value refers to */
	struct dcp_pickle *pickle;
	uint64_t pickle_n; /* bytes of the stream up to the end of the pickle */
	struct dcp_arena arena;
	struct dcp_torch_record *records; /* sorted by key */
	size_t nrecords;
	struct dcp_torch_tar tar;
	bool big_endian;
	/* Of a zip archive with the member byteorder: where byteorder and data.pkl end; else 0. */
	uint64_t small_end;
	size_t memory;
	uint8_t head[DCP_TORCH_HEAD];
};

/* A storage as a persistent id describes it. */
struct dcp_torch_storage {
	const char *key;
	const char *dtype_name; /* torch's name; "uint8" for an untyped storage */
	uint32_t itemsize;
	uint64_t numel;
	uint64_t view_off, view_n; /* the covered part of the storage, in elements */
};

/* Returns 0, -EBADMSG, -ENOTSUP. @id is a PERSID. */
int dcp_torch_storage_id(struct dcp_pv id, struct dcp_torch_storage *out, struct dcp_err *err);

/* The function that torch calls to rebuild a tensor, by its arguments. */
enum dcp_torch_kind {
	DCP_TORCH_NONE,    /* not a tensor */
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
	DCP_TORCH_SUBCLASS, /* its tensors lie in its arguments or state */
	DCP_TORCH_REFUSED,
};

struct dcp_torch_call {
	enum dcp_torch_kind kind;
	const char *what; /* the kind in words, if it is not dense */
	const struct dcp_pv *arg;
	size_t n;
	struct dcp_pv state; /* SUBCLASS: its attributes */
};

/* Open a stream of five pickles, and find the storages after them. The caller has checked that the
 * stream begins like such a stream. */
int dcp_torch_open_legacy(struct dcp_torch *t, struct dcp_err *err);

/* The same for the tar container of torch 0.1. */
int dcp_torch_open_tar(struct dcp_torch *t, struct dcp_err *err);

/* Find the tensor whose number is the text @number. Returns 1, or negative. */
int dcp_torch_tar_tensor(const struct dcp_torch *t, const char *number,
			 struct dcp_torch_tensor *out, struct dcp_err *err);

/* Is @v a class or function of torch? */
bool dcp_torch_is_global(struct dcp_pv v);

/* torch's name of the dtype of the storage class @class, or NULL. */
const char *dcp_torch_storage_dtype(struct dcp_pv class);

/* Set the dtype of @x to the dtype that torch calls @name. Returns 0 or -ENOTSUP. */
int dcp_torch_take_dtype(struct dcp_torch_tensor *x, const char *name, struct dcp_err *err);

/* Compute the place of @x. Its first element is element @first of the view @s; the bytes of that
 * storage start at @base. */
int dcp_torch_place(struct dcp_torch_tensor *x, const struct dcp_torch_storage *s,
		    uint64_t first, uint64_t base, struct dcp_err *err);

/* Sort the records by key and refuse two records of one key. After that, find a record by its key;
 * NULL: there is none. */
int dcp_torch_sort_records(struct dcp_torch *t, struct dcp_err *err);
struct dcp_torch_record *dcp_torch_find_record(const struct dcp_torch *t, const char *key);
