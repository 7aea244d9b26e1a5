/* SPDX-License-Identifier: Apache-2.0 */
/* composer: recognises Composer's file names and states, for the families that may find them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_torch;

/*
 * Does the name @file follow Composer's own templates: "ep1-ba6-rank3.pt", "ba6-rank3.pt.tar"? Then
 * @rank receives its rank, and @save (DCP_GROUP_MAX bytes) the name of the save, which is the name
 * of rank 0's file.
 */
bool dcp_composer_name(const char *file, char *save, uint64_t *rank);

/* Is the object of the stream a Composer state: {"state": {...}, "rng": [...]}? */
bool dcp_composer_is_state(const struct dcp_torch *t);
