/* SPDX-License-Identifier: Apache-2.0 */
/*
 * field: what one value inside a DCP .metadata says.
 *
 * A class has one name here, whichever module torch kept it in over the years. Every function
 * accepts any value; errors say what was found and what was expected.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

struct dcp_buf;
struct dcp_err;

enum dcp_tfield_class {
	DCP_TFIELD_OTHER,
	DCP_TFIELD_METADATA,
	DCP_TFIELD_INDEX,
	DCP_TFIELD_TENSOR,
	DCP_TFIELD_BYTES,
	DCP_TFIELD_CHUNK,
	DCP_TFIELD_PROPERTIES,
	DCP_TFIELD_INFO,
	DCP_TFIELD_STORAGE_META,
	DCP_TFIELD_SHARDED_1_12, /* a class that only torch 1.12 wrote */
	DCP_TFIELD_PLAN,         /* the parts of Megatron's all_local_plans */
};

/* Which of torch's classes is @v an object of? */
enum dcp_tfield_class dcp_tfield_class(struct dcp_pv v);

/* "module.Name" of an object, else Python's name of its type. Valid while @v is. */
const char *dcp_tfield_type(struct dcp_pv v, char *buf, size_t n);

/* torch.Size, tuple or list of non-negative numbers. @what names the field for messages. */
int dcp_tfield_dims(struct dcp_pv v, const char *what, uint64_t dims[DCP_MAX_NDIM],
		    uint32_t *ndim, struct dcp_err *err);

/* The dtype in a TensorProperties: name as torch has it ("bfloat16"), valid while @v is. */
int dcp_tfield_dtype(struct dcp_pv v, const char **name, struct dcp_err *err);

/* A _StorageInfo. */
struct dcp_tfield_info {
	const char *path; /* valid while the value is */
	size_t path_len;
	uint64_t off, nbytes;
	enum dcp_filter filter;
};
int dcp_tfield_info(struct dcp_pv v, struct dcp_tfield_info *out, struct dcp_err *err);

/* Append a str or an int in the form of Python's str(), a NUL as C0 80; false for anything
 * else. */
bool dcp_tfield_component(struct dcp_buf *out, struct dcp_pv v);
