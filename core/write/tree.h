/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree: the tensors and objects of a set nested as their paths say, for formats that hold one
 * nested value.
 *
 * A path does not distinguish lists from dicts: where components are 0, 1, ... without a gap it
 * is a list, but below "state", where optimizers have dicts with integer keys. An item whose
 * path goes through another item, or is not what its key is made of, has its key in the
 * outermost dict.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/write/pickle.h"
#include "core/write/write.h"

struct dcp_tree;

/* @skip: tensors that lie in objects; NULL: none. -ENOMEM. */
int dcp_tree_make(const struct dcp_write_set *set, const bool *skip, struct dcp_tree **out);
void dcp_tree_free(struct dcp_tree *t);

/* How many dicts and lists item @i lies in; 0: in none, it was skipped or has no place. */
size_t dcp_tree_depth(const struct dcp_tree *t, size_t i);

/* The key of an item that has no place, because its key is also the path of a container; NULL:
 * all have. */
const char *dcp_tree_lost(const struct dcp_tree *t);

/* Add it all to the pickle; @put adds item number @i of the set: a tensor, or from ntensors on
 * an object. Its negative return ends that and is returned. The outermost dict has room for
 * @more pairs, which the caller adds then. */
int dcp_tree_put(const struct dcp_tree *t, struct dcp_pickler *p, uint64_t more,
		 int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx);

/*
 * For formats that hold a list of objects as one object, as torch does: the first item of the
 * outermost such list that item @i lies in; @i: it lies in none. And bytes of that first item's
 * key that are the key of the list; all of it: there is none.
 */
size_t dcp_tree_first(const struct dcp_tree *t, size_t i);
size_t dcp_tree_key(const struct dcp_tree *t, size_t i);

/* That list, or item @i; returns as dcp_tree_put(). And the path of it as a tuple: str, and int
 * where it counts a list. */
int dcp_tree_put_item(const struct dcp_tree *t, struct dcp_pickler *p, size_t i,
		      int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx);
void dcp_tree_put_path(const struct dcp_tree *t, struct dcp_pickler *p, size_t i);
