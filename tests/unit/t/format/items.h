/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_items: checkpoints of torch_checkpointing for tests: a metadata.pkl opcode by opcode, and
 * ranks' files of float tensors. And such a checkpoint, loaded into a sink.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/sink.h"

struct t_dir;

/* How all ranks of a mesh hold a tensor. */
struct t_titem {
	const char *path;  /* of it in its item, as JSON: "[\"w\"]" */
	const char *type;  /* NULL: DTensorShardingMetadata */
	const char *dtype; /* NULL: torch.float32 */
	const int64_t *shape;
	size_t ndim;
	/* Per mesh dimension its ranks, and "S0", "R", "T0/2" (strided, with its split factor).
	 */
	const int64_t *mesh;
	const char *const *placed;
	size_t nmesh;
	const int64_t *ranks; /* of the mesh, flattened; NULL: 0, 1, .. */
	size_t nranks;        /* 0: as many as the mesh has */
	/* default_tensor_v1, of one rank: @nboxes times global offset, local offset, size */
	const int64_t *boxes;
	size_t nboxes;
};

/* Where the file of a rank lies. */
struct t_titem_file {
	int64_t rank;
	const char *path, *format; /* NULL: by default */
};

struct t_titem_meta {
	const char *item;
	bool flat; /* of version 1.0 */
	int64_t world;
	const struct t_titem *tensor;
	size_t ntensors;
	const struct t_titem_file *file;
	size_t nfiles;
};

/* Write the metadata.pkl. */
void t_titem_put_meta(const struct t_dir *d, const struct t_titem_meta *m);

/* One tensor of a rank's file. */
struct t_titem_local {
	const char *key;
	const float *data;
	const int64_t *shape;
	size_t ndim;
};

/* Write {key: tensor, ..} by torch.save, or as safetensors. */
void t_titem_put_torch(const struct t_dir *d, const char *name, const struct t_titem_local *t,
		       size_t n);
void t_titem_put_safetensors(const struct t_dir *d, const char *name,
			     const struct t_titem_local *t, size_t n);

/* ---- a sound one ---- */

/* Item "model" of two ranks: "w" of shape [5, 2] in rows, 3 and 2 of them, and "b" of shape [5]
 * in both. Elements are 0, 1, 2, ... */
void t_titem_put_sound(const struct t_dir *d);

extern const struct t_titem t_titem_w, t_titem_b;
extern const struct t_titem_file t_titem_default[2];
extern const float t_titem_numbers[10];

/* ---- loading ---- */

struct t_titem_loaded {
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_err err;
	int rc;
};

void t_titem_load(struct t_titem_loaded *l, const struct t_dir *d);
void t_titem_unload(struct t_titem_loaded *l);

/* The error of tensor or object @key says @part. */
void t_titem_broken(const struct t_titem_loaded *l, const char *key, const char *part);
/* Tensor @key can be read. */
void t_titem_sound(const struct t_titem_loaded *l, const char *key);
