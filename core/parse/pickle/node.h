/* SPDX-License-Identifier: Apache-2.0 */
/* node: making nodes, sharing equal ones. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/parse/pickle/mem.h"

/*
 * Makers. All give a node with one reference, or NULL (see over). Items move in: the
 * node takes over the references of the caller, on success only. The depth of what has
 * items is the caller's to check: it may come out larger than the limit by one.
 */
/* STR and its like of @n bytes, which the caller writes; there is room for 8 more. */
struct dcp_pnode *dcp_pkl_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off);
struct dcp_pnode *dcp_pkl_far_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off);
struct dcp_pnode *dcp_pkl_tuple(struct dcp_pkl_mem *m, const struct dcp_pv *items, size_t n);
struct dcp_pnode *dcp_pkl_container(struct dcp_pkl_mem *m);
struct dcp_pnode *dcp_pkl_object(struct dcp_pkl_mem *m, struct dcp_pv callable,
				 struct dcp_pv args, struct dcp_pv kwargs, bool called);
/* The same pair gives the same node as a rule. Neither may contain a NUL. */
struct dcp_pnode *dcp_pkl_global(struct dcp_pkl_mem *m, const char *module, size_t nmodule,
				 const char *name, size_t nname);

/* The object's own struct dcp_pobj, which may be changed; NULL when memory is out. */
struct dcp_pobj *dcp_pkl_own(struct dcp_pkl_mem *m, struct dcp_pnode *node);

/* Move @n items after those of a container; the deepest of them counts for its depth. */
bool dcp_pkl_extend(struct dcp_pkl_mem *m, struct dcp_pnode *c, const struct dcp_pv *items,
		    size_t n);

/* Forget the tables that only serve sharing; what they alone held is released. */
void dcp_pkl_mem_settle(struct dcp_pkl_mem *m);
