/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch: tensors and archives as torch.save writes them (torch 2.1 to 2.6; all since 1.6 read
 * them).
 *
 *	archive/data.pkl     the value, in which tensors are calls that name storages
 *	archive/byteorder    "little"
 *	archive/data/0 ...   storages: the elements
 *	archive/version      "3\n"
 */
#pragma once
#include "core/write/pickle.h"
#include "core/write/write.h"
#include "core/write/zip.h"

/* Why torch cannot have such a tensor, or NULL. */
const char *dcp_torch_write_refuses(const struct dcp_write_tensor *t);

/* Why a pickle cannot have that key, or NULL: it is not text. */
const char *dcp_torch_write_refuses_key(const char *key);

/* The part as a tensor of its own, in storage number @storage, to the pickle of protocol 2. */
void dcp_torch_write_tensor(struct dcp_pickler *p, const struct dcp_write_tensor *t,
			    const struct dcp_write_part *part, size_t storage);

/* torch.Size(values) */
void dcp_torch_write_size(struct dcp_pickler *p, const uint64_t *values, uint32_t n);

/* An archive: begin with the finished pickle, add storages 0, 1, ..., end. */
void dcp_torch_write_begin(struct dcp_zipper *z, struct dcp_writer *w,
			   const struct dcp_buf *pickle);
void dcp_torch_write_storage(struct dcp_zipper *z, size_t storage, size_t tensor, size_t part);
int dcp_torch_write_end(struct dcp_zipper *z);
