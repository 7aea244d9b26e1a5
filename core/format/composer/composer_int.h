/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_int: what the files that read Composer's checkpoints share; only they include it.
 *
 *	composer.c        which kind of save it is, by names of files and by what a state looks like
 *	ranks.c           torch.save files: one, or one a rank
 *	parts.c           the directory with composer_metadata.json
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_load;

/* ---- ranks.c ---- */

/* A file of the save; @name is borrowed. */
struct dcp_composer_file {
	const char *name;
	uint64_t rank;
};

/* Emit the files of one save, by rank. */
int dcp_composer_emit_files(const struct dcp_load *in, const struct dcp_composer_file *files,
			    size_t n, struct dcp_err *err);

/* ---- parts.c ---- */

#define DCP_COMPOSER_METADATA "composer_metadata.json"
#define DCP_COMPOSER_RESUMPTION "resumption.pkl"

int dcp_composer_emit_parts(const struct dcp_load *in, struct dcp_err *err);
