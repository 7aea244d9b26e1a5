/* SPDX-License-Identifier: Apache-2.0 */
#include "core/write/pickle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/base/text.h"

#define NONE UINT32_MAX

enum shape { SHAPE_DICT, SHAPE_LIST, SHAPE_NUMBERED };

struct node {
	uint32_t parent, first, last, next; /* its children; the next child of its parent */
	uint32_t n;                         /* children */
	uint32_t name; /* in names: the parent's number and the component */
	size_t item;   /* SIZE_MAX: it is a container */
	uint8_t shape;
	bool holds; /* tensors or dicts */
};

struct dcp_tree {
	const struct dcp_write_set *set;
	size_t lost; /* an item for which there is no place; SIZE_MAX: none */
	struct dcp_buf nodes;
	struct dcp_intern names; /* name i is that of node i + 1; node 0 is the outermost */
	uint32_t *of_item;       /* its node; NONE: skipped */
	size_t nitems;
};

static struct node *nodes_of(const struct dcp_tree *t)
{
	return DCP_ITEMS(t->nodes, struct node);
}

static const char *name_of(const struct dcp_tree *t, uint32_t node)
{
	return dcp_intern_text(&t->names, node - 1) + sizeof(uint32_t);
}

/* ---- making it ---- */

/* Find the child of that name, or make it. */
static int add_child(struct dcp_tree *t, uint32_t parent, const char *name, uint32_t *out)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	struct node new = {
		.parent = parent, .first = NONE, .last = NONE, .next = NONE, .item = SIZE_MAX
	};
	uint32_t number;
	int rc;

	dcp_buf_add(&key, &parent, sizeof(parent));
	if (dcp_buf_str(&key, name) < 0)
		return -ENOMEM;
	rc = dcp_intern_add(&t->names, key.p, key.n, 0, &number);
	if (rc < 0)
		return rc;
	*out = number + 1;
	if (rc == 0)
		return 0;
	if (dcp_buf_add(&t->nodes, &new, sizeof(new)) < 0)
		return -ENOMEM;
	if (nodes_of(t)[parent].last == NONE)
		nodes_of(t)[parent].first = *out;
	else
		nodes_of(t)[nodes_of(t)[parent].last].next = *out;
	nodes_of(t)[parent].last = *out;
	nodes_of(t)[parent].n++;
	return 0;
}

/* Place an item. -EEXIST: its path goes through another item, or ends at a container. */
static int place_path(struct dcp_tree *t, const char *const *path, size_t n, uint32_t *out)
{
	uint32_t at = 0;

	for (size_t i = 0; i < n; i++) {
		int rc = nodes_of(t)[at].item != SIZE_MAX ? -EEXIST
							  : add_child(t, at, path[i], &at);

		if (rc < 0)
			return rc;
	}
	*out = at;
	return nodes_of(t)[at].item != SIZE_MAX || nodes_of(t)[at].n || n == 0 ? -EEXIST : 0;
}

/* Is @key the components of @path joined with dots, perhaps after a prefix and a dot (the file, if
 * several files hold the same paths)? */
static bool is_path_of(const char *key, const char *const *path, size_t n, size_t *prefix)
{
	size_t len = n ? n - 1 : 0, at;

	for (size_t i = 0; i < n; i++)
		len += strlen(path[i]);
	if (n == 0 || len > strlen(key))
		return false;
	at = strlen(key) - len;
	if (at == 1 || (at && key[at - 1] != '.'))
		return false;
	*prefix = at ? at - 1 : 0;
	for (size_t i = 0; i < n; at += strlen(path[i++]) + 1)
		if (strncmp(key + at, path[i], strlen(path[i])) != 0 ||
		    (i + 1 < n && key[at + strlen(path[i])] != '.'))
			return false;
	return true;
}

static int place_item(struct dcp_tree *t, const char *const *path, size_t n, const char *key,
		      uint32_t *at)
{
	dcp_auto_free const char **whole = NULL;
	dcp_auto_free char *file = NULL;
	size_t prefix;

	if (!is_path_of(key, path, n, &prefix))
		return place_path(t, &key, 1, at);
	if (prefix == 0)
		return place_path(t, path, n, at);
	whole = calloc(n + 1, sizeof(*whole));
	file = strndup(key, prefix);
	if (!whole || !file)
		return -ENOMEM;
	whole[0] = file;
	memcpy(whole + 1, path, n * sizeof(*path));
	return place_path(t, whole, n + 1, at);
}

static int add_item(struct dcp_tree *t, size_t item, const char *const *path, size_t n,
		    const char *key)
{
	uint32_t at;
	int rc = place_item(t, path, n, key, &at);

	if (rc == -EEXIST)
		rc = place_path(t, &key, 1, &at);
	if (rc == -EEXIST) { /* its key is the name of a container: no place is left */
		t->lost = item;
		return 0;
	}
	if (rc < 0)
		return rc;
	nodes_of(t)[at].item = item;
	t->of_item[item] = at;
	return 0;
}

/* A decimal number as str() writes it. */
static bool is_number(const char *s, uint64_t *out)
{
	return (*s != '0' || !s[1]) && dcp_is_number(s, out) && *out <= INT64_MAX;
}

static enum shape shape_of(const struct dcp_tree *t, uint32_t node)
{
	const struct node *n = &nodes_of(t)[node];
	bool in_order = true;
	uint64_t v, i = 0;

	if (node == 0 || n->n == 0)
		return SHAPE_DICT;
	for (uint32_t c = n->first; c != NONE; c = nodes_of(t)[c].next, i++) {
		if (!is_number(name_of(t, c), &v))
			return SHAPE_DICT;
		in_order &= v < n->n;
	}
	if (strcmp(name_of(t, node), "state") == 0)
		return SHAPE_NUMBERED;
	/* names differ, so none is missing */
	return in_order && (n->holds || t->set->lists) ? SHAPE_LIST : SHAPE_DICT;
}

/* The children of a list in the order of their numbers. */
static int sort_list(struct dcp_tree *t, uint32_t node)
{
	struct node *n = &nodes_of(t)[node];
	uint32_t *at = calloc(n->n, sizeof(*at));
	uint64_t v = 0;

	if (!at)
		return -ENOMEM;
	for (uint32_t c = n->first; c != NONE; c = nodes_of(t)[c].next)
		if (is_number(name_of(t, c), &v))
			at[v] = c;
	for (uint32_t i = 0; i < n->n; i++)
		nodes_of(t)[at[i]].next = i + 1 < n->n ? at[i + 1] : NONE;
	n->first = at[0];
	free(at);
	return 0;
}

int dcp_tree_make(const struct dcp_write_set *set, const bool *skip, struct dcp_tree **out)
{
	const struct node root = {
		.parent = NONE, .first = NONE, .last = NONE, .next = NONE, .item = SIZE_MAX
	};
	struct dcp_tree *t = calloc(1, sizeof(*t));
	int rc = 0;

	if (!t)
		return -ENOMEM;
	t->set = set;
	t->lost = SIZE_MAX;
	t->nitems = set->ntensors + set->nobjects;
	t->of_item = malloc((t->nitems + 1) * sizeof(*t->of_item));
	dcp_buf_add(&t->nodes, &root, sizeof(root));
	if (!t->of_item || dcp_buf_error(&t->nodes))
		rc = -ENOMEM;
	else
		memset(t->of_item, 0xff, (t->nitems + 1) * sizeof(*t->of_item));
	for (size_t i = 0; rc == 0 && i < set->ntensors; i++)
		if (!skip || !skip[i])
			rc = add_item(t, i, set->tensors[i].path, set->tensors[i].npath,
				      set->tensors[i].key);
	for (size_t i = 0; rc == 0 && i < set->nobjects; i++)
		rc = add_item(t, set->ntensors + i, set->objects[i].path, set->objects[i].npath,
			      set->objects[i].key);
	/* from the last node on, so that children come before their parents */
	for (uint32_t i = (uint32_t)DCP_NITEMS(t->nodes, struct node); rc == 0 && i-- > 0;) {
		struct node *n = &nodes_of(t)[i];

		n->shape = (uint8_t)shape_of(t, i);
		if (n->item < set->ntensors || (n->item == SIZE_MAX && n->shape != SHAPE_LIST))
			n->holds = true;
		if (i)
			nodes_of(t)[n->parent].holds |= n->holds;
		if (n->shape == SHAPE_LIST)
			rc = sort_list(t, i);
	}
	if (rc < 0)
		dcp_tree_free(t);
	else
		*out = t;
	return rc;
}

const char *dcp_tree_lost(const struct dcp_tree *t)
{
	return t->lost == SIZE_MAX ? NULL : dcp_write_key(t->set, t->lost);
}

void dcp_tree_free(struct dcp_tree *t)
{
	if (!t)
		return;
	dcp_intern_finish(&t->names);
	dcp_buf_finish(&t->nodes);
	free(t->of_item);
	free(t);
}

/* ---- pickling it ---- */

static void put_name(const struct dcp_tree *t, struct dcp_pickler *p, uint32_t node,
		     bool counts)
{
	enum shape shape = nodes_of(t)[nodes_of(t)[node].parent].shape;
	uint64_t v;

	if ((shape == SHAPE_NUMBERED || (counts && shape == SHAPE_LIST)) &&
	    is_number(name_of(t, node), &v))
		dcp_pickler_u64(p, v);
	else
		dcp_pickler_str(p, name_of(t, node));
}

size_t dcp_tree_depth(const struct dcp_tree *t, size_t i)
{
	uint32_t node = t->of_item[i] == NONE ? 0 : t->of_item[i];
	size_t n = 0;

	for (; node; node = nodes_of(t)[node].parent)
		n++;
	return n;
}

static int put_from(const struct dcp_tree *t, struct dcp_pickler *p, uint32_t root,
		    uint64_t more, int (*put)(void *ctx, struct dcp_pickler *p, size_t i),
		    void *ctx)
{
	uint32_t at = root;

	/* down to the first child, on to the next, or up if there is no next */
	for (;;) {
		const struct node *n = &nodes_of(t)[at];
		int rc = 0;

		if (at != root && nodes_of(t)[n->parent].shape != SHAPE_LIST)
			put_name(t, p, at, false);
		if (n->item != SIZE_MAX)
			rc = put(ctx, p, n->item);
		else
			dcp_pickler_open(
				p, n->shape == SHAPE_LIST ? DCP_PICKLE_LIST : DCP_PICKLE_DICT,
				n->n + (at ? 0 : more));
		if (rc < 0)
			return rc;
		if (n->first != NONE) {
			at = n->first;
			continue;
		}
		while (at != root && nodes_of(t)[at].next == NONE)
			at = nodes_of(t)[at].parent;
		if (at == root)
			return 0;
		at = nodes_of(t)[at].next;
	}
}

int dcp_tree_put(const struct dcp_tree *t, struct dcp_pickler *p, uint64_t more,
		 int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx)
{
	return t->lost == SIZE_MAX ? put_from(t, p, 0, more, put, ctx) : -EEXIST;
}

/* The outermost list of objects around the item; its own node if there is none. */
static uint32_t list_of(const struct dcp_tree *t, size_t i)
{
	uint32_t at = t->of_item[i], up = nodes_of(t)[at].parent;

	while (nodes_of(t)[up].shape == SHAPE_LIST && !nodes_of(t)[up].holds) {
		at = up;
		up = nodes_of(t)[at].parent;
	}
	return at;
}

size_t dcp_tree_first(const struct dcp_tree *t, size_t i)
{
	uint32_t at = t->of_item[i] == NONE ? NONE : list_of(t, i);

	if (at == NONE)
		return i;
	while (nodes_of(t)[at].first != NONE)
		at = nodes_of(t)[at].first;
	return nodes_of(t)[at].item;
}

size_t dcp_tree_key(const struct dcp_tree *t, size_t i)
{
	size_t n = strlen(dcp_write_key(t->set, i));

	if (t->of_item[i] == NONE)
		return n;
	for (uint32_t at = t->of_item[i], end = list_of(t, i); at != end;
	     at = nodes_of(t)[at].parent)
		n -= 1 + strlen(name_of(t, at));
	return n;
}

int dcp_tree_put_item(const struct dcp_tree *t, struct dcp_pickler *p, size_t i,
		      int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx)
{
	return t->of_item[i] == NONE ? put(ctx, p, i)
				     : put_from(t, p, list_of(t, i), 0, put, ctx);
}

static void put_components(const struct dcp_tree *t, struct dcp_pickler *p, uint32_t node)
{
	uint32_t up[256];
	size_t n = 0;

	for (; node && n < DCP_LEN(up); node = nodes_of(t)[node].parent)
		up[n++] = node;
	dcp_pickler_open(p, DCP_PICKLE_TUPLE, n);
	while (n--)
		put_name(t, p, up[n], true);
}

void dcp_tree_put_path(const struct dcp_tree *t, struct dcp_pickler *p, size_t i)
{
	if (t->of_item[i] != NONE) {
		put_components(t, p, list_of(t, i));
		return;
	}
	dcp_pickler_open(p, DCP_PICKLE_TUPLE, 1);
	dcp_pickler_str(p, dcp_write_key(t->set, i));
}
