/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_int: what the files that read a metadata.pkl share.
 */
#pragma once
#include "core/format/torch_checkpointing/meta/meta.h"
#include "core/parse/pickle/pickle.h"

/* Count @n more; -E2BIG when it is more than any real file says. */
int dcp_titems_work(struct dcp_titems_meta *m, uint64_t n, struct dcp_err *err);

/*
 * Read the list @v of groups into @out. What is wrong with a group is its error; -E2BIG and
 * -ENOMEM are the only failures.
 */
int dcp_titems_read_groups(struct dcp_titems_meta *m, struct dcp_pv v,
			   struct dcp_titems_group **out, struct dcp_err *err);

struct dcp_titems_entry *dcp_titems_entries(const struct dcp_titems_meta *m);
struct dcp_titems_item *dcp_titems_items(const struct dcp_titems_meta *m);

/* The number of the item @name, which is made where it is new. */
int dcp_titems_get_item(struct dcp_titems_meta *m, const char *name, uint32_t *number);

/* ---- layout.c ---- */

/* {rank: layout or None} of item @number. */
int dcp_titems_read_layouts(struct dcp_titems_meta *m, uint32_t number, struct dcp_pv v,
			    struct dcp_err *err);
/* {rank: {item: layout or None}}, which version 1.0 has in its root. */
int dcp_titems_read_flat_layouts(struct dcp_titems_meta *m, struct dcp_pv root,
				 struct dcp_err *err);
