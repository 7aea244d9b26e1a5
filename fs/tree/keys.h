/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys: the set of tensor keys of all open versions. The set is made on first use, from the
 * names in the indexes, newest version first, and takes 24 bytes a key. A version that is
 * opened later adds its new keys; when a version leaves the list, the set is discarded. A key
 * is identified by the hash of its file stem: of two keys with the same hash, which does not
 * happen by chance, only the first is shown. Safe from any thread.
 */
#pragma once
#include <stdint.h>

#include "core/model/name.h"

struct dcpfs;
struct dcpfs_keys;

struct dcpfs_keys *dcpfs_keys_create(void);
void dcpfs_keys_destroy(struct dcpfs_keys *k);

/* A version left the list. */
void dcpfs_keys_drop(struct dcpfs_keys *k);
/* A version was opened. */
void dcpfs_keys_grow(struct dcpfs_keys *k);

/* Find the number of the key with that stem, at most DCPFS_ROW_MAX. -ENOENT, -ENOMEM. */
int dcpfs_keys_find(struct dcpfs *fs, const char *stem, uint64_t *number);

/* Find the first key whose number is at least *number: sets *number and the stem. -ENOENT. */
int dcpfs_keys_next(struct dcpfs *fs, uint64_t *number, char stem[DCP_NAME_MAX + 1]);
