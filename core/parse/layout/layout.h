/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: from a text or a name to a layout. The grammar is specified in core/LAYOUT.md.
 */
#pragma once
#include <stddef.h>

struct dcp_err;
struct dcp_layout;

/*
 * Parse @n bytes of a layout file, called @name in messages and by dcp_layout_name(). Also
 * taken: the JSON spellings of LAYOUT.md. -EINVAL: name, line and what is wrong, with the
 * nearest valid thing; -E2BIG; -ENOMEM.
 */
int dcp_layout_parse(const char *name, const char *text, size_t n, struct dcp_layout **out,
		     struct dcp_err *err);

/*
 * A built-in layout: "fsdp<N>", "dim<k>x<N>", "tp<N>:<preset>". -ENOENT: no such name (the
 * message names the nearest); -EINVAL: a malformed built-in name. "mesh:dp2,tp4:<file-stem>" is
 * resolved by callers that know the files: see dcp_layout_on_mesh().
 */
int dcp_layout_named(const char *name, struct dcp_layout **out, struct dcp_err *err);

/* The @i-th preset of "tp<N>:<preset>"; NULL past the last. */
const char *dcp_layout_preset(size_t i);

/* The rules of @l over another mesh, "dp2,tp4", which must have every dim the rules name. */
int dcp_layout_on_mesh(const struct dcp_layout *l, const char *mesh, struct dcp_layout **out,
		       struct dcp_err *err);
