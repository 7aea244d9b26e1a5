/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabs: reply buffers, taken and given back by workers. There are two sizes: short slabs of
 * DCPFS_SLAB_SHORT bytes, and long slabs, in huge pages where available, which makes copying a
 * twelfth cheaper. Slabs are kept, so nothing is allocated once there are as many as workers
 * need at the same time.
 */
#pragma once
#include <stddef.h>

struct dcpfs_slabs;

#define DCPFS_SLAB_SHORT (128u << 10)

/* @most: size of the longest reply in bytes. */
struct dcpfs_slabs *dcpfs_slabs_create(size_t most);
void dcpfs_slabs_destroy(struct dcpfs_slabs *s);

/* A page-aligned buffer for @n bytes, at most those of the longest reply; or NULL. Given back
 * with the same @n. Any thread. */
void *dcpfs_slab_take(struct dcpfs_slabs *s, size_t n);
void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab, size_t n);
