/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys as a tree of their components. Dots inside a component make further levels, because keys of
 * a state_dict are dotted names, and users look for layers. All paths are sorted component by
 * component; walking them in that order opens nodes in the order in which they are shown, and a
 * node's parent always stands before it. So sums run backwards over one array and nothing recurses.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

struct tree_opts {
	int form;
	uint64_t depth;
	struct pick_opts pick;
};

static const struct opt opts[] = { { 'd', "depth", "N", "show N levels; 0: all (default)",
				     OPT_UINT, .off = offsetof(struct tree_opts, depth),
				     .max = 1000 },
				   PICK_OPTS_READ(struct tree_opts),
				   PICK_OPTS_ROWS(struct tree_opts),
				   OPT_END };

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

#define NO_NODE SIZE_MAX
#define TREE_LIMIT ((size_t)4 << 30) /* paths of some ten million keys */

struct leaf {
	const char *const *path;
	size_t npath;
	const char *what;         /* "BF16 [16, 8]", or the type of an object */
	uint64_t bytes, elements; /* 0 of an alias */
	bool tensor, alias, broken;
	const char *key;
};

struct node {
	const char *name;
	size_t parent, last_child; /* NO_NODE: none */
	size_t depth;
	const struct leaf *leaf;           /* the key of this node, or NULL */
	bool twice;                        /* another node has this path */
	uint64_t bytes, elements, tensors; /* at and below */
};

struct forest {
	struct dcp_arena arena;
	struct dcp_index *ix;
	struct leaf *leaves;
	size_t nleaves, leaf_cap;
	struct node *nodes;
	size_t nnodes, node_cap;
};

/* Parts that dots cut @s into; 1 when one would be empty: such a dot is not a separator. */
static size_t count_parts(const char *s)
{
	size_t n = 1;

	for (const char *p = s; *p; p++) {
		if (*p != '.')
			continue;
		if (p == s || !p[1] || p[1] == '.')
			return 1;
		n++;
	}
	return n;
}

static int split_path(struct forest *f, struct leaf *leaf)
{
	size_t n = 0, at = 0;
	const char **parts;

	for (size_t i = 0; i < leaf->npath; i++)
		n += count_parts(leaf->path[i]);
	parts = dcp_arena_calloc(&f->arena, n + 1, sizeof(*parts));
	if (!parts)
		return -ENOMEM;
	for (size_t i = 0; i < leaf->npath; i++) {
		const char *s = leaf->path[i];

		for (size_t k = count_parts(s); k > 1; k--) {
			size_t len = strcspn(s, ".");

			parts[at] = dcp_arena_strndup(&f->arena, s, len);
			if (!parts[at++])
				return -ENOMEM;
			s += len + 1;
		}
		parts[at++] = s;
	}
	if (n == 0)
		parts[n++] = "";
	leaf->path = parts;
	leaf->npath = n;
	return 0;
}

static int add_leaf(struct forest *f, struct leaf leaf, const char *what)
{
	if (split_path(f, &leaf) < 0)
		return -ENOMEM;
	leaf.what = dcp_arena_strdup(&f->arena, what);
	leaf.key = dcp_arena_strdup(&f->arena, leaf.key);
	if (!leaf.what || !leaf.key || DCP_GROW(f->leaves, f->leaf_cap, f->nleaves) < 0)
		return -ENOMEM;
	f->leaves[f->nleaves++] = leaf;
	return 0;
}

static int add_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct forest *f = ctx;
	struct dcp_tensor t;
	struct dcp_object ob;
	char shape[128], what[256];
	uint64_t elements;
	int rc = kind == DCP_ROW_TENSOR
			 ? dcp_index_tensor(f->ix, row->id, &f->arena, &t, NULL)
			 : dcp_index_object(f->ix, row->id, &f->arena, &ob, NULL);

	if (rc < 0)
		return rc;
	if (kind == DCP_ROW_OBJECT)
		return add_leaf(f,
				(struct leaf){ .path = ob.path,
					       .npath = ob.npath,
					       .broken = ob.error != NULL,
					       .key = row->key },
				ob.type ? ob.type : "?");
	if (row->alias_of)
		elements = 0;
	else if (!dcp_shape_volume(t.shape, t.ndim, &elements))
		elements = UINT64_MAX;
	snprintf(what, sizeof(what), "%.64s %s", t.dtype_name,
		 dcp_dims_text(shape, sizeof(shape), t.shape, t.ndim));
	return add_leaf(f,
			(struct leaf){ t.path, t.npath, NULL, row->alias_of ? 0 : row->nbytes,
				       elements, true, row->alias_of != 0, t.error != NULL,
				       row->key },
			what);
}

static int compare_leaves(const void *pa, const void *pb)
{
	const struct leaf *a = pa, *b = pb;
	size_t n = DCP_MIN(a->npath, b->npath);

	for (size_t i = 0; i < n; i++) {
		int c = dcp_name_compare(a->path[i], b->path[i]);

		if (c)
			return c;
	}
	return DCP_CMP(a->npath, b->npath);
}

static size_t new_node(struct forest *f, const char *name, size_t parent)
{
	size_t at = f->nnodes;

	if (DCP_GROW(f->nodes, f->node_cap, f->nnodes) < 0)
		return NO_NODE;
	f->nodes[f->nnodes++] = (struct node){
		.name = name,
		.parent = parent,
		.last_child = NO_NODE,
		.depth = parent == NO_NODE ? 0 : f->nodes[parent].depth + 1,
	};
	if (parent != NO_NODE)
		f->nodes[parent].last_child = at;
	return at;
}

/* The node of @leaf: down along nodes that are still open, then new ones. */
static int plant_leaf(struct forest *f, const struct leaf *leaf)
{
	size_t at = 0;

	for (size_t i = 0; i < leaf->npath; i++) {
		size_t child = f->nodes[at].last_child;

		if (child == NO_NODE || strcmp(f->nodes[child].name, leaf->path[i]) != 0)
			child = new_node(f, leaf->path[i], at);
		if (child == NO_NODE)
			return -ENOMEM;
		at = child;
	}
	/* Two keys may have one path (a clash the index has named): both are shown, with their
	 * keys. */
	if (f->nodes[at].leaf) {
		f->nodes[at].twice = true;
		at = new_node(f, f->nodes[at].name, f->nodes[at].parent);
		if (at == NO_NODE)
			return -ENOMEM;
		f->nodes[at].twice = true;
	}
	f->nodes[at].leaf = leaf;
	f->nodes[at].bytes = leaf->bytes;
	f->nodes[at].elements = leaf->elements;
	f->nodes[at].tensors = leaf->tensor;
	return 0;
}

static int build_forest(struct forest *f, const char *root)
{
	int rc = dcp_all_rows(f->ix, add_row, f);

	if (rc < 0)
		return rc;
	DCP_SORT(f->leaves, f->nleaves, compare_leaves);
	if (new_node(f, root, NO_NODE) == NO_NODE)
		return -ENOMEM;
	for (size_t i = 0; i < f->nleaves && rc == 0; i++)
		rc = plant_leaf(f, &f->leaves[i]);
	for (size_t i = f->nnodes; rc == 0 && i-- > 1;) {
		struct node *up = &f->nodes[f->nodes[i].parent];

		if (dcp_ckd_add(&up->bytes, up->bytes, f->nodes[i].bytes))
			up->bytes = UINT64_MAX;
		if (dcp_ckd_add(&up->elements, up->elements, f->nodes[i].elements))
			up->elements = UINT64_MAX;
		up->tensors += f->nodes[i].tensors;
	}
	return rc;
}

/* The branches above @at, outermost first, then its own. */
static void draw_branches(const struct forest *f, size_t at, bool utf8, struct dcp_buf *line)
{
	const char *const art[2][4] = { { "    ", "|   ", "`-- ", "|-- " },
					{ "    ", "\u2502   ", "\u2514\u2500\u2500 ",
					  "\u251c\u2500\u2500 " } };
	const struct node *n = &f->nodes[at];
	dcp_auto_buf struct dcp_buf last = DCP_BUF_INIT;

	for (size_t k = at; f->nodes[k].parent != NO_NODE; k = f->nodes[k].parent)
		dcp_buf_add(&last, f->nodes[f->nodes[k].parent].last_child == k ? "1" : "0", 1);
	if (dcp_buf_error(&last)) {
		line->failed = true;
		return;
	}
	for (size_t d = n->depth; d-- > 0;)
		dcp_buf_str(line, art[utf8][(d == 0 ? 2 : 0) + (last.p[d] == '0')]);
}

static void describe_node(const struct node *n, struct dcp_buf *note)
{
	char size[OUT_SIZE], count[32];

	if (n->leaf) {
		out_text(note, n->leaf->what);
		if (n->leaf->tensor && n->leaf->alias)
			dcp_buf_str(note, ", alias");
		else if (n->leaf->tensor)
			dcp_buf_printf(note, ", %s", out_size(size, n->leaf->bytes));
		if (n->leaf->broken)
			dcp_buf_str(note, ", broken");
		if (n->twice) {
			dcp_buf_str(note, ", key ");
			out_text(note, n->leaf->key);
		}
	}
	if (n->last_child != NO_NODE) {
		dcp_buf_printf(note, "%s%s, %s tensor%s", n->leaf ? "; below: " : "",
			       out_size(size, n->bytes), out_count(count, n->tensors),
			       dcp_s(n->tensors));
		dcp_buf_printf(note, ", %s parameter%s", out_params(size, n->elements),
			       dcp_s(n->elements));
	}
}

/* The name of node @at, and the columns that its branches and its note leave for it. -ENOMEM. */
static int measure_node(struct forest *f, size_t at, const struct out *o,
			struct out_short *name)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT, around = DCP_BUF_INIT;
	const struct node *n = &f->nodes[at];
	size_t used;

	out_text(&text, *n->name ? n->name : "\"\"");
	draw_branches(f, at, o->utf8, &around);
	describe_node(n, &around);
	if (dcp_buf_error(&text) || dcp_buf_error(&around))
		return -ENOMEM;
	used = out_width(around.p ? around.p : "") + 2;
	name->whole = dcp_arena_strdup(&f->arena, text.p);
	name->max = !o->width ? SIZE_MAX : o->width > used + 12 ? o->width - used : 12;
	return name->whole ? 0 : -ENOMEM;
}

static void draw_node(const struct forest *f, size_t at, const char *name, struct out *o)
{
	dcp_auto_buf struct dcp_buf note = DCP_BUF_INIT;

	draw_branches(f, at, o->utf8, &o->buf);
	dcp_buf_str(&o->buf, name);
	describe_node(&f->nodes[at], &note);
	if (note.p)
		dcp_buf_printf(&o->buf, "  %s", note.p);
	dcp_buf_str(&o->buf, "\n");
	o->buf.failed = o->buf.failed || note.failed;
}

static bool is_drawn(const struct forest *f, size_t at, const struct tree_opts *t)
{
	return !t->depth || f->nodes[at].depth <= t->depth;
}

/* Names are shortened together, so that they stay different. -ENOMEM. */
static int draw_forest(struct forest *f, const struct tree_opts *t, struct out *o)
{
	dcp_auto_free struct out_short *names = calloc(f->nnodes + 1, sizeof(*names));
	size_t n = 0;
	int rc = names ? 0 : -ENOMEM;

	for (size_t i = 0; rc == 0 && i < f->nnodes; i++)
		if (is_drawn(f, i, t))
			rc = measure_node(f, i, o, &names[n++]);
	if (rc == 0)
		rc = out_shorten(&f->arena, names, n, o->utf8);
	n = 0;
	for (size_t i = 0; rc == 0 && i < f->nnodes; i++)
		if (is_drawn(f, i, t))
			draw_node(f, i, names[n++].shown, o);
	return rc;
}

/* The path of a node, as a JSON array. */
static void put_path(const struct forest *f, size_t at, struct out *o, const char **path)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_jsonw w;

	for (size_t k = at; f->nodes[k].parent != NO_NODE; k = f->nodes[k].parent)
		path[f->nodes[k].depth - 1] = f->nodes[k].name;
	if (o->form == OUT_JSON) {
		dcp_jsonw_put_strs(&o->json, "path", path, f->nodes[at].depth);
		return;
	}
	dcp_jsonw_init(&w, &text, false);
	dcp_jsonw_strs(&w, path, f->nodes[at].depth);
	o->buf.failed = o->buf.failed || dcp_jsonw_error(&w) < 0;
	out_put_str(o, "path", text.p ? text.p : "");
}

/* Put a row for a node, parents first; its path gives the place. */
static void put_node(const struct forest *f, size_t at, struct out *o, const char **path)
{
	const struct node *n = &f->nodes[at];

	out_row(o);
	put_path(f, at, o, path);
	out_put_u64(o, "nbytes", n->bytes);
	out_put_u64(o, "tensors", n->tensors);
	out_put_u64(o, "elements", n->elements);
	out_put_str(o, "what", n->leaf ? n->leaf->what : NULL);
	out_row_end(o);
}

static enum cmd_exit print_forest(struct forest *f, const struct tree_opts *t,
				  const struct pick *p, struct out *o)
{
	/* clang-format off */
	static const struct out_field fields[] = {
		{ "path" }, { "nbytes" }, { "tensors" }, { "elements" }, { "what" }, { NULL }
	};
	/* clang-format on */
	size_t deepest = 0;
	const char **path;

	for (size_t i = 0; i < f->nnodes; i++)
		deepest = DCP_MAX(deepest, f->nodes[i].depth);
	path = calloc(deepest + 1, sizeof(*path));
	if (!path)
		return cmd_fail(CMD_ENV, "out of memory");
	out_row(o);
	if (t->form == OUT_JSON)
		dcp_jsonw_put_str(&o->json, "version", p->ck.name);
	out_list(o, "nodes", fields);
	if (t->form == OUT_TEXT && draw_forest(f, t, o) < 0)
		o->buf.failed = true;
	for (size_t i = 0; t->form != OUT_TEXT && i < f->nnodes; i++)
		if (is_drawn(f, i, t))
			put_node(f, i, o, path);
	free(path);
	out_list_end(o, false);
	if (t->form == OUT_JSON)
		dcp_jsonw_end(&o->json);
	return out_flush(o);
}

static enum cmd_exit run_tree(const void *opts_in, const struct opt_args *args)
{
	const struct tree_opts *t = opts_in;
	struct forest f = { 0 };
	struct pick p;
	struct out o;
	enum cmd_exit code = pick_open(&p, args, &t->pick);

	out_init(&o, t->form);
	dcp_arena_init(&f.arena, TREE_LIMIT);
	if (code == CMD_OK && p.ck.base)
		code = hf_check(p.ck.v, &t->pick.hf, "tree", false);
	if (code == CMD_OK) {
		int rc;

		f.ix = dcp_version_index(p.ck.v);
		rc = build_forest(&f, p.ck.name);
		code = rc < 0 ? pick_unreadable(&p, rc) : print_forest(&f, t, &p, &o);
	}
	dcp_arena_finish(&f.arena);
	free(f.leaves);
	free(f.nodes);
	out_finish(&o);
	pick_finish(&p);
	return code;
}

const struct cmd cmd_tree = {
	.name = "tree",
	.what = "show the keys as a tree, with sizes and parameters",
	.about = "Show the components of all keys as a tree, with the bytes below each. Layers "
		 "are in the order of their numbers.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct tree_opts),
	.run = run_tree,
	.examples = { "dcpfs tree /data/run1 --depth 2", "dcpfs tree /data/run1 2500" },
};
