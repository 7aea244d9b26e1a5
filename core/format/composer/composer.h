/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer: recognizing Composer's file names and states, for all families that may find them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_torch;

/*
 * Is @file named by Composer's own templates: "ep1-ba6-rank3.pt", "ba6-rank3.pt.tar"? Then its
 * rank goes into @rank, and the save's name, which is that of rank 0's file of the same save, into
 * @save (DCP_GROUP_MAX bytes).
 */
bool dcp_composer_name(const char *file, char *save, uint64_t *rank);

/* Is the object of the stream a Composer state: {"state": {...}, "rng": [...]}? */
bool dcp_composer_is_state(const struct dcp_torch *t);
