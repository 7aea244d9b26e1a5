/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame: the tensor of a torch.save item, without parsing items that are framed alike.
 *
 * torch.save puts everything that describes a single tensor before the tensor's bytes: the local
 * header of data.pkl, data.pkl, byteorder, and the local header of the storage. Items of tensors
 * with the same dtype and shape have the same bytes there, except for the checksum of the storage.
 * So the head of an item that was parsed is kept, and an item with the same head and the same
 * size holds the same tensor at the same place: a read of some 600 bytes and a comparison replace
 * a read of the item's end, the zip directory and the pickle.
 *
 * The directory at the end of such an item is not read. Damage there goes unnoticed; the tensor's
 * bytes and everything that describes them do not lie there.
 */
#pragma once
#include "core/parse/torch/torch.h"

struct dcp_torch_frames;

/* The heads that were seen, none yet. Safe from any thread. NULL: no memory. */
struct dcp_torch_frames *dcp_torch_frames_create(void);
void dcp_torch_frames_destroy(struct dcp_torch_frames *f);

/*
 * The tensor that the stream @item is. Returns 1, 0 (the object is not a tensor), or what
 * dcp_torch_open() and dcp_torch_tensor() return. @f may be NULL.
 */
int dcp_torch_item(struct dcp_torch_frames *f, const struct dcp_source *item,
		   struct dcp_torch_tensor *out, struct dcp_err *err);
/* How many items were recognised by their head. */
uint64_t dcp_torch_frames_hits(struct dcp_torch_frames *f);
