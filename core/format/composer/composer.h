/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer: what Composer's names and states look like, for whoever meets them.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct dcp_torch;

/*
 * Is @file named by Composer's own templates: "ep1-ba6-rank3.pt", "ba6-rank3.pt.tar"? Then its
 * rank is told, and the name that rank 0's file of the same save has, which is what the save is
 * called: into @save, DCP_GROUP_MAX bytes.
 */
bool dcp_composer_name(const char *file, char *save, uint64_t *rank);

/* Is the object of the stream a Composer state: {"state": {...}, "rng": [...]}? */
bool dcp_composer_is_state(const struct dcp_torch *t);
