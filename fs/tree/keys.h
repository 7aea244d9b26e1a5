/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys: every tensor key of any opened version, once.
 *
 * Made on first use, from the names in the indexes, newest version first; 24 bytes a key,
 * however many versions have it. A version that is opened later adds the keys that the others do
 * not have; when one leaves, all is discarded. A key is identified by the hash of its file stem:
 * of two with the same hash, which does not happen by chance, only the first is shown.
 *
 * Safe from any thread.
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
/* One was opened. */
void dcpfs_keys_grow(struct dcpfs_keys *k);

/* The number of the key with that stem, or -ENOENT; -ENOMEM. Numbers fit in DCPFS_ROW_MAX. */
int dcpfs_keys_find(struct dcpfs *fs, const char *stem, uint64_t *number);

/* The first key whose number is at least *number, which is set to it, and its stem. -ENOENT. */
int dcpfs_keys_next(struct dcpfs *fs, uint64_t *number, char stem[DCP_NAME_MAX + 1]);
