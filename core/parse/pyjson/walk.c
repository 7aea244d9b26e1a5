/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/parse/pyjson/pyjson_int.h"

enum { MAX_NOTED = 1 << 16 }; /* bytes of notes, the limit of a fact; later notes are dropped */

struct walk {
	const struct dcp_pystream *s;
	struct dcp_pyjson_path path;
	struct dcp_pyjson_trail trail;
	uint64_t visits, max_visits;
	unsigned how;
	dcp_leaf_fn take;
	struct dcp_buf *containers;
	size_t nth; /* the current value's index in its container; NOWHERE: it is the root */
	uint64_t leaves; /* leaves so far */
	dcp_leaf_fn fn;
	void *ctx;
};

#define NOWHERE SIZE_MAX

static int read_torch(const void *ctx, struct dcp_pv v, uint64_t off, void *buf, size_t n)
{
	return dcp_torch_read(ctx, v, off, buf, n);
}

const struct dcp_pystream *dcp_pyjson_torch(const struct dcp_torch *t, struct dcp_pystream *out)
{
	if (!t)
		return NULL;
	*out = (struct dcp_pystream){
		.size = dcp_torch_pickle_size(t),
		.is_tensor = dcp_torch_is_tensor,
		.read = read_torch,
		.ctx = t,
	};
	return out;
}

uint64_t dcp_pyjson_allowed(const struct dcp_pystream *s, uint64_t least, uint64_t each,
			    uint64_t most)
{
	uint64_t n = s ? s->size : most;

	return n >= (most - least) / each ? most : least + each * n;
}

static bool is_tensor(const struct walk *w, struct dcp_pv v)
{
	return w->s && w->s->is_tensor(v);
}

static bool is_torch(const struct walk *w)
{
	return w->s && w->s->is_tensor == dcp_torch_is_tensor;
}

/* Count the visit of a value with @n parts. Numbers and similar parts cost little, so 32 parts
 * count as one visit. */
static int spend_visit(struct walk *w, size_t n)
{
	w->visits += 1 + n / 32;
	return w->visits > w->max_visits ? -E2BIG : 0;
}

static int show_leaf(struct walk *w, dcp_leaf_fn fn, struct dcp_pv v, bool tensor, bool nested)
{
	struct dcp_leaf leaf = {
		.path = dcp_pyjson_parts(&w->path),
		.npath = w->path.n,
		.key = dcp_pyjson_path_key(&w->path, w->path.n),
		.value = v,
		.is_tensor = tensor,
		.nested = nested,
	};

	return leaf.key ? fn(w->ctx, &leaf) : -ENOMEM;
}

static int emit_leaf(struct walk *w, struct dcp_pv v, bool tensor, bool nested)
{
	return show_leaf(w, w->fn, v, tensor, nested);
}

static void enter_value(struct walk *w, struct dcp_pv v)
{
	w->trail.at[w->trail.n].node = v.node;
	w->trail.at[w->trail.n].npath = w->path.n;
	w->trail.n++;
}

/* ---- tensors inside a leaf ---- */

/* May @v contain a tensor? If not, it is skipped, and no path to it is spelled. */
static bool may_hold(struct dcp_pv v)
{
	return v.type >= DCP_PV_TUPLE && v.type != DCP_PV_GLOBAL && v.type != DCP_PV_PERSID;
}

static int find_tensors(struct walk *w, struct dcp_pv v);

/* Emit the tensors in one part of a value. The part's component is on the path already. */
static int find_in_part(struct walk *w, struct dcp_pv v)
{
	return is_tensor(w, v) ? emit_leaf(w, v, true, true) : find_tensors(w, v);
}

static int walk_value(struct walk *w, struct dcp_pv v);

/* find_in_part() or walk_value() */
typedef int part_fn(struct walk *w, struct dcp_pv v);

/* Call @fn for @v, then remove the component of @v from the path. @pushed is the result of adding
 * the component. */
static int do_part(struct walk *w, int pushed, struct dcp_pv v, part_fn *fn)
{
	int r = pushed < 0 ? pushed : fn(w, v);

	if (pushed == 0)
		dcp_pyjson_pop(&w->path);
	return r;
}

static int do_items(struct walk *w, const struct dcp_pv *item, size_t n, part_fn *fn)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		if (fn != walk_value && !may_hold(item[i]))
			continue;
		w->nth = i;
		r = do_part(w, dcp_pyjson_push_index(&w->path, i), item[i], fn);
	}
	return r;
}

static int do_pairs(struct walk *w, const struct dcp_pv *kv, size_t n, part_fn *fn)
{
	dcp_auto_free uint32_t *last = NULL;
	size_t nth = 0;
	int r = dcp_pyjson_duplicates(kv, n, &last);

	for (size_t i = 0; r == 0 && i < n; i++) {
		size_t from = last ? last[i] : i;

		if (from == UINT32_MAX || (fn != walk_value && !may_hold(kv[2 * from + 1])))
			continue;
		w->nth = nth++;
		r = do_part(w, dcp_pyjson_push_key(&w->path, kv[2 * i]), kv[2 * from + 1], fn);
	}
	return r;
}

static int find_under(struct walk *w, const char *name, struct dcp_pv v)
{
	return may_hold(v) ? do_part(w, dcp_pyjson_push(&w->path, name, strlen(name)), v,
				     find_in_part)
			   : 0;
}

/* Parameters, buffers and modules have their own names, as in state_dict(). */
static int find_in_module(struct walk *w, struct dcp_pv state)
{
	const struct dcp_pv *kv, *own;
	size_t n = 0, nown;
	int r = 0;

	kv = dcp_pv_pairs(state, &n);
	for (size_t i = 0; r == 0 && i < n; i++) {
		struct dcp_pv key = kv[2 * i], value = kv[2 * i + 1];

		if (dcp_pyjson_unnamed(key) && dcp_pyjson_mapping(value, &own, &nown))
			r = do_pairs(w, own, nown, find_in_part);
		else
			r = find_under(w, key.node->data, value);
	}
	return r;
}

static int emit_nested(struct walk *w, struct dcp_pv v)
{
	return emit_leaf(w, v, true, true);
}

static int find_in_parts(struct walk *w, const struct dcp_torch_parts *p)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < p->n; i++) {
		const char *name = p->part[i].name;

		r = p->part[i].self ? do_part(w, dcp_pyjson_push(&w->path, name, strlen(name)),
					      p->part[i].value, emit_nested)
				    : find_under(w, name, p->part[i].value);
	}
	return r;
}

static int find_in_class(struct walk *w, const struct dcp_pyjson_look *l)
{
	int r = 0;

	if (l->nargs) {
		r = dcp_pyjson_push(&w->path, "args", 4);
		if (r < 0)
			return r;
		r = do_items(w, l->args, l->nargs, find_in_part);
		dcp_pyjson_pop(&w->path);
	}
	if (r == 0)
		r = find_under(w, "kwargs", l->kwargs);
	if (r == 0)
		r = l->module ? find_in_module(w, l->state) : find_under(w, "state", l->state);
	if (r == 0)
		r = do_items(w, l->items, l->nitems, find_in_part);
	return r == 0 ? do_pairs(w, l->pairs, l->npairs, find_in_part) : r;
}

/* A value that is nested too deep, or contains itself, is not walked. Its leaf is emitted
 * nevertheless, and the reason is reported when writing the leaf as JSON fails. */
static int find_tensors(struct walk *w, struct dcp_pv v)
{
	struct dcp_pyjson_look l;
	int r = 0;

	if (!may_hold(v) || w->trail.n == DCP_PYJSON_MAX_DEPTH ||
	    dcp_pyjson_trail_find(&w->trail, v) >= 0)
		return 0;
	dcp_pyjson_look(v, &l);
	r = spend_visit(w, l.nargs + l.nitems + l.npairs);
	if (r < 0)
		return r;
	enter_value(w, v);
	switch (l.form) {
	case DCP_PYJSON_LIST:
	case DCP_PYJSON_SET:
		r = do_items(w, l.items, l.nitems, find_in_part);
		break;
	case DCP_PYJSON_DICT:
		r = do_pairs(w, l.pairs, l.npairs, find_in_part);
		break;
	case DCP_PYJSON_PARTS:
		r = is_torch(w) ? find_in_parts(w, &l.parts) : 0;
		break;
	case DCP_PYJSON_CLASS:
		r = find_in_class(w, &l);
		break;
	case DCP_PYJSON_SCALAR:
	case DCP_PYJSON_SECONDS:
	case DCP_PYJSON_TIME:
	case DCP_PYJSON_TEXT:
	case DCP_PYJSON_BYTES:
	case DCP_PYJSON_ARRAY:
	case DCP_PYJSON_NAME:
	case DCP_PYJSON_STORAGE:
		break;
	}
	w->trail.n--;
	return r;
}

/* ---- leaves ---- */

static bool is_sequence(const struct walk *w, struct dcp_pv v)
{
	return v.type == DCP_PV_LIST || (v.type == DCP_PV_TUPLE && w->how & DCP_WALK_TUPLES);
}

/* Is @v a tensor, or a tensor that consists of several tensors? */
static bool counts_as_tensor(const struct walk *w, struct dcp_pv v)
{
	struct dcp_torch_parts parts;

	return is_tensor(w, v) || (is_torch(w) && dcp_torch_parts(v, &parts));
}

/* Does @list contain a mapping or a tensor at any depth? 1, 0 or -E2BIG. */
static int list_is_open(struct walk *w, struct dcp_pv list, unsigned depth)
{
	const struct dcp_pv *item, *pairs;
	size_t n = 0, npairs;
	int r;

	if (depth == DCP_PYJSON_MAX_DEPTH)
		return 0;
	item = dcp_pv_items(list, &n);
	r = spend_visit(w, n);
	for (size_t i = 0; r == 0 && i < n; i++) {
		if (!may_hold(item[i]))
			continue;
		if (dcp_pyjson_mapping(item[i], &pairs, &npairs) ||
		    counts_as_tensor(w, item[i]))
			return 1;
		if (is_sequence(w, item[i]))
			r = list_is_open(w, item[i], depth + 1);
	}
	return r;
}

static int every_list_is_open(struct walk *w, struct dcp_pv list)
{
	size_t n = 0;

	dcp_pv_items(list, &n);
	return n > DCP_WALK_MAX_LIST ? list_is_open(w, list, 0) : n > 0;
}

static int holds_tensor(struct walk *w, struct dcp_pv tuple)
{
	size_t n = 0;
	const struct dcp_pv *item = dcp_pv_items(tuple, &n);
	int r = spend_visit(w, n);

	for (size_t i = 0; r == 0 && i < n; i++)
		r = counts_as_tensor(w, item[i]);
	return r;
}

static int walk_leaf(struct walk *w, struct dcp_pv v)
{
	int r = w->take ? show_leaf(w, w->take, v, false, false) : 0;

	w->leaves++;
	if (r)
		return r < 0 ? r : 0;
	if (is_tensor(w, v))
		return emit_leaf(w, v, true, false);
	if (w->how & DCP_WALK_INSIDE)
		r = find_tensors(w, v);
	return r ? r : emit_leaf(w, v, false, false);
}

/* Is it certain that Python's literal_eval() reads no value of another type in the text @key? Yes,
 * if @key begins with a name that is not a constant, and has no quotes. */
static bool is_word(const struct dcp_pv *key)
{
	static const char *const constants[] = { "None", "True", "False" };
	const char *s = key->node->data;
	size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz0123456789");

	for (size_t i = 0; i < DCP_LEN(constants); i++)
		if (n == strlen(constants[i]) && memcmp(s, constants[i], n) == 0)
			return false;
	return n && s[0] > '9' && !strpbrk(s, "'\"");
}

/* Add a note of @what with the current path. Returns 1 if it was added, 0 if there is no room or
 * the path has a tab or newline, or -ENOMEM. */
static int add_note(struct walk *w, const char *what)
{
	struct dcp_buf *b = w->containers;

	if (!b || b->n > MAX_NOTED)
		return 0;
	for (size_t i = 0; i < w->path.n; i++)
		if (strpbrk(dcp_pyjson_parts(&w->path)[i], "\t\n"))
			return 0;
	dcp_buf_str(b, what);
	for (size_t i = 0; i < w->path.n; i++)
		dcp_buf_printf(b, "\t%s", dcp_pyjson_parts(&w->path)[i]);
	dcp_buf_str(b, "\n");
	return dcp_buf_error(b) < 0 ? dcp_buf_error(b) : 1;
}

/* Note the class of a mapping that is not a dict. Half of the room is left to other notes. */
static int note_class(struct walk *w, struct dcp_pv v)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	struct dcp_pv make;
	const char *class = dcp_pyjson_type(v);

	if (strcmp(class, "dict") == 0 || w->containers->n > MAX_NOTED / 2)
		return 0;
	make = dcp_pv_item(v.node->obj->args, 0);
	dcp_buf_printf(&name, "%s", class);
	if (make.type == DCP_PV_GLOBAL)
		dcp_buf_printf(&name, ":%s", dcp_pyjson_class(make));
	if (dcp_buf_error(&name))
		return -ENOMEM;
	return strpbrk(name.p, "\t\n") ? 0 : add_note(w, name.p);
}

/* Note a mapping with @n keys if the paths of its values look like those of a list, or if some keys
 * are not text. */
static int note_mapping(struct walk *w, const struct dcp_pv *kv, size_t n)
{
	size_t others = 0, digits = 0;
	int r = 0;

	for (size_t i = 0; i < n; i++) {
		const struct dcp_pv *key = &kv[2 * i];

		others += key->type != DCP_PV_STR;
		digits += key->type == DCP_PV_STR && key->node->data[0] >= '0' &&
			  key->node->data[0] <= '9';
	}
	if (!others)
		return digits == n && (n || w->nth == NOWHERE) ? add_note(w, "dict") : 0;
	for (size_t i = 0; r >= 0 && i < n; i++) {
		if (kv[2 * i].type != DCP_PV_STR || is_word(&kv[2 * i]))
			continue;
		r = dcp_pyjson_push_key(&w->path, kv[2 * i]);
		if (r < 0)
			return r;
		r = add_note(w, "text");
		dcp_pyjson_pop(&w->path);
		if (r == 0) /* not added: without the note "keys" all keys count as text */
			return 0;
	}
	return r < 0 ? r : add_note(w, "keys");
}

/* Note a container without leaves, which no path shows. It is item @nth of its parent. */
static int note_empty(struct walk *w, size_t nth)
{
	char what[32];
	int r;

	snprintf(what, sizeof(what), "%zu", nth);
	r = add_note(w, what);
	return DCP_MIN(r, 0);
}

static int walk_value(struct walk *w, struct dcp_pv v)
{
	const struct dcp_pv *in = NULL;
	uint64_t before = w->leaves;
	size_t n = 0, nth = w->nth;
	bool mapping;
	int r = spend_visit(w, 0), open = 0;

	if (r < 0)
		return r;
	mapping = dcp_pyjson_mapping(v, &in, &n);
	if (mapping)
		open = n > 0 || !(w->how & DCP_WALK_LISTS);
	else if (v.type == DCP_PV_LIST && w->how & DCP_WALK_LISTS)
		open = every_list_is_open(w, v);
	else if (v.type == DCP_PV_TUPLE && w->how & DCP_WALK_LISTS)
		open = holds_tensor(w, v);
	else if (is_sequence(w, v))
		open = list_is_open(w, v, 0);
	if (open < 0)
		return open;
	if (!open) {
		r = w->path.n ? 0 : add_note(w, "leaf");
		return r < 0 ? r : walk_leaf(w, v);
	}
	if (w->trail.n == DCP_PYJSON_MAX_DEPTH)
		return -E2BIG;
	if (w->containers) {
		r = mapping ? note_class(w, v)
			    : add_note(w, v.type == DCP_PV_LIST ? "list" : "tuple");
		if (mapping && r >= 0)
			r = note_mapping(w, in, n);
	}
	if (r < 0)
		return r;
	enter_value(w, v);
	if (!mapping)
		in = dcp_pv_items(v, &n);
	r = mapping ? do_pairs(w, in, n, walk_value) : do_items(w, in, n, walk_value);
	w->trail.n--;
	return r == 0 && w->leaves == before && nth != NOWHERE ? note_empty(w, nth) : r;
}

static int walk_stream(const struct dcp_pystream *s, struct dcp_pv root,
		       const struct dcp_walk *how, dcp_leaf_fn fn, void *ctx)
{
	struct walk *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	w->s = s;
	w->max_visits = DCP_PYJSON_VISITS_OF(s);
	w->how = how->how;
	w->take = how->take;
	w->containers = how->containers;
	w->nth = NOWHERE;
	w->fn = fn;
	w->ctx = ctx;
	r = dcp_pyjson_path_init(&w->path, how->prefix, how->nprefix);
	if (r == 0)
		r = walk_value(w, root);
	dcp_pyjson_path_finish(&w->path);
	free(w);
	return r;
}

int dcp_pyjson_walk_in(const struct dcp_pystream *s, struct dcp_pv root,
		       const char *const *prefix, size_t nprefix, unsigned how, dcp_leaf_fn fn,
		       void *ctx)
{
	struct dcp_walk walk = { .prefix = prefix, .nprefix = nprefix, .how = how };

	return walk_stream(s, root, &walk, fn, ctx);
}

int dcp_pyjson_walk_with(const struct dcp_torch *t, struct dcp_pv root,
			 const struct dcp_walk *how, dcp_leaf_fn fn, void *ctx)
{
	struct dcp_pystream s;

	return walk_stream(dcp_pyjson_torch(t, &s), root, how, fn, ctx);
}
