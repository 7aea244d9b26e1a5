/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overtime: the numbers of tensors in every version of a source, and how far one version is from
 * the one before.
 */
#pragma once
#include <stdint.h>

#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

/*
 * Of the tensors that @keys name, a row a complete version, the oldest first; as a drawing into
 * @file.
 */
enum cmd_exit overtime(const char *source, const struct pick_opts *opts,
		       const struct opt_texts *keys, unsigned jobs, uint64_t rate,
		       enum out_form form, const char *file);
