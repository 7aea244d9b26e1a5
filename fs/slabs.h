/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabs: reply buffers, taken and given back by workers: no allocation once they are warm.
 * As many exist as reads were ever gathered at the same time.
 */
#pragma once
#include <stddef.h>

struct dcpfs_slabs;

struct dcpfs_slabs *dcpfs_slabs_create(size_t bytes);
void dcpfs_slabs_destroy(struct dcpfs_slabs *s);

/* A page-aligned buffer, or NULL. Any thread. */
void *dcpfs_slab_take(struct dcpfs_slabs *s);
void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab);
