/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/jsonw.h"
#include "core/model/tensor.h"
#include "core/parse/parse.h"
#include "core/parse/pyjson/pyjson_int.h"

struct writer {
	struct dcp_jsonw w;
	const struct dcp_pystream *s;
	struct dcp_buf *classes; /* NULL: not wanted */
	const char *class;       /* the last class in it */
	struct dcp_pyjson_path path;
	struct dcp_pyjson_trail trail;
	size_t start;
	uint64_t containers, max_containers, max_json;
};

static int write_value(struct writer *x, struct dcp_pv v);

static int check_size(const struct writer *x)
{
	if (x->w.out->n - x->start + (x->classes ? x->classes->n : 0) > x->max_json)
		return -E2BIG;
	return dcp_jsonw_error(&x->w);
}

/* Note the class of a value before it is written, if values of another class have the same JSON.
 * The class of the outermost value is known. */
static void note_class(struct writer *x, struct dcp_pv v, const struct dcp_pyjson_look *l)
{
	static const char *const plain[] = {
		[DCP_PYJSON_LIST] = "list",
		[DCP_PYJSON_SET] = "set",
		[DCP_PYJSON_BYTES] = "bytes",
		[DCP_PYJSON_DICT] = "dict",
	};
	bool other = l->form == DCP_PYJSON_SECONDS || l->form == DCP_PYJSON_TIME ||
		     (l->form == DCP_PYJSON_ARRAY && l->array.scalar);
	const char *class;

	if (!x->classes || x->w.values == 0 ||
	    (!other && (l->form >= DCP_LEN(plain) || !plain[l->form])))
		return;
	class = dcp_pyjson_type(v);
	if (!other && strcmp(class, plain[l->form]) == 0)
		return;
	dcp_buf_printf(x->classes, "%s%llu", x->class ? " " : "",
		       (unsigned long long)x->w.values);
	if (!x->class || strcmp(x->class, class) != 0)
		dcp_buf_printf(x->classes, ":%s", class);
	x->class = class;
}

/* Escapes can make a text six times as long: check that it fits before it is written. */
static bool text_fits(const struct writer *x, const struct dcp_pnode *str)
{
	uint64_t left = x->max_json - DCP_MIN(x->w.out->n - x->start, x->max_json);
	uint64_t n = str->n;

	if (n <= left / 6)
		return true;
	for (size_t i = 0; i < str->n && n <= left; i++)
		n += (unsigned char)str->data[i] < 0x20 ? 5 : 0;
	return n <= left;
}

static void open_named(struct writer *x, const char *name)
{
	dcp_jsonw_object(&x->w);
	dcp_jsonw_key(&x->w, name);
}

/* ---- bytes ---- */

/* Without a stream to read from, write the place of bytes that only the stream holds. */
static int write_far(struct writer *x, const struct dcp_pnode *node)
{
	open_named(x, "$bytes_at");
	dcp_jsonw_array(&x->w);
	dcp_jsonw_u64(&x->w, node->src_off);
	dcp_jsonw_u64(&x->w, node->n);
	dcp_jsonw_end(&x->w);
	dcp_jsonw_end(&x->w);
	return 0;
}

/* Get all bytes of @v; if they are a copy, @copy owns it. 1: they cannot be read. */
static int get_bytes(struct writer *x, struct dcp_pv v, uint8_t **copy, const void **p)
{
	uint64_t n = dcp_pyjson_bytes_len(v);
	size_t made;

	*p = v.type == DCP_PV_NONE ? "" : v.node->data;
	if (v.type != DCP_PV_STR && *p)
		return 0;
	if (v.type != DCP_PV_STR && !x->s)
		return 1;
	*copy = malloc((size_t)n + 1);
	*p = *copy;
	if (!*copy)
		return -ENOMEM;
	if (v.type != DCP_PV_STR)
		return x->s->read(x->s->ctx, v, 0, *copy, (size_t)n);
	dcp_latin1_narrow(v.node->data, v.node->n, *copy, &made); /* it was checked before */
	return 0;
}

static int write_bytes(struct writer *x, struct dcp_pv v)
{
	uint64_t n = dcp_pyjson_bytes_len(v);
	dcp_auto_free uint8_t *copy = NULL;
	const void *p;
	int r;

	if (n / 3 * 4 > x->max_json)
		return -E2BIG;
	r = get_bytes(x, v, &copy, &p);
	if (r != 0)
		return r < 0 ? r : write_far(x, v.node);
	open_named(x, "$bytes");
	dcp_jsonw_base64(&x->w, p, (size_t)n);
	dcp_jsonw_end(&x->w);
	return 0;
}

/* Write a few elements as numbers, in a nested list per dimension; a scalar as its number. */
static int write_array(struct writer *x, const struct dcp_pyjson_array *a)
{
	dcp_auto_free uint8_t *copy = NULL;
	const void *p = NULL;
	bool few = dcp_pyjson_few(a);
	int r = few ? get_bytes(x, a->payload, &copy, &p) : 0;

	if (r < 0)
		return r;
	few = few && r == 0;
	if (few && a->scalar) {
		dcp_pyjson_numbers(&x->w, a, p);
		return 0;
	}
	open_named(x, "$ndarray");
	dcp_jsonw_object(&x->w);
	dcp_jsonw_put_str(&x->w, "dtype", a->descr);
	dcp_jsonw_put_array(&x->w, "shape");
	for (size_t i = 0; i < a->ndim; i++) {
		uint64_t dim = 0;

		dcp_pv_u64(a->shape[i], &dim);
		dcp_jsonw_u64(&x->w, dim);
	}
	dcp_jsonw_end(&x->w);
	if (!few && a->fortran && a->ndim > 1) {
		dcp_jsonw_put_bool(&x->w, "fortran_order", true);
	}
	dcp_jsonw_key(&x->w, "data");
	r = 0;
	if (few)
		dcp_pyjson_numbers(&x->w, a, p);
	else
		r = write_bytes(x, a->payload);
	dcp_jsonw_end(&x->w);
	dcp_jsonw_end(&x->w);
	return r;
}

/* ---- containers ---- */

/* Write @v; @pushed is the result of adding its component to the path. */
static int write_pushed(struct writer *x, int pushed, struct dcp_pv v)
{
	int r = pushed < 0 ? pushed : write_value(x, v);

	if (pushed == 0)
		dcp_pyjson_pop(&x->path);
	return r;
}

static int write_items(struct writer *x, const struct dcp_pv *item, size_t n)
{
	int r = 0;

	dcp_jsonw_array(&x->w);
	for (size_t i = 0; r == 0 && i < n; i++)
		/* Numbers and similar values need no path: some lists have a million of them. */
		r = item[i].type <= DCP_PV_STR
			    ? write_value(x, item[i])
			    : write_pushed(x, dcp_pyjson_push_index(&x->path, i), item[i]);
	dcp_jsonw_end(&x->w);
	return r;
}

/* Can the dict be an object? Not if a key is not a str, or looks like one of our markers. */
static bool plain_keys(const struct dcp_pv *kv, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (kv[2 * i].type != DCP_PV_STR || kv[2 * i].node->data[0] == '$')
			return false;
	return true;
}

static int write_pair(struct writer *x, struct dcp_pv key, struct dcp_pv value, bool plain)
{
	int r;

	if (plain) {
		if (!text_fits(x, key.node))
			return -E2BIG;
		dcp_jsonw_key_n(&x->w, key.node->data, key.node->n);
	} else {
		dcp_jsonw_array(&x->w);
		r = write_value(x, key);
		if (r < 0)
			return r;
	}
	r = write_pushed(x, dcp_pyjson_push_key(&x->path, key), value);
	if (!plain)
		dcp_jsonw_end(&x->w);
	return r;
}

static int write_pairs(struct writer *x, const struct dcp_pv *kv, size_t n)
{
	dcp_auto_free uint32_t *last = NULL;
	int r = dcp_pyjson_duplicates(kv, n, &last);
	bool plain = plain_keys(kv, n);

	if (r < 0)
		return r;
	if (plain) {
		dcp_jsonw_object(&x->w);
	} else {
		open_named(x, "$dict");
		dcp_jsonw_array(&x->w);
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		size_t from = last ? last[i] : i;

		if (from != UINT32_MAX)
			r = write_pair(x, kv[2 * i], kv[2 * from + 1], plain);
	}
	if (!plain)
		dcp_jsonw_end(&x->w);
	dcp_jsonw_end(&x->w);
	return r;
}

static int write_set(struct writer *x, const struct dcp_pyjson_look *l)
{
	int r;

	open_named(x, "$set");
	r = write_items(x, l->items, l->nitems);
	dcp_jsonw_end(&x->w);
	return r;
}

/* ---- classes ---- */

/* {"$class": name, "args": [arg]} */
static int write_simple(struct writer *x, const char *class, const char *arg)
{
	open_named(x, "$class");
	dcp_jsonw_str(&x->w, class);
	dcp_jsonw_put_array(&x->w, "args");
	dcp_jsonw_str(&x->w, arg);
	dcp_jsonw_end(&x->w);
	dcp_jsonw_end(&x->w);
	return 0;
}

static int write_name(struct writer *x, struct dcp_pv v)
{
	const char *type = dcp_pyjson_type(v);

	if (strcmp(type, "type") == 0)
		return write_simple(x, type, dcp_pyjson_class(v));
	if (strcmp(type, "torch.dtype") == 0)
		return write_simple(x, type, v.node->name);
	return write_simple(x, type, v.node->full);
}

/* A storage by itself: its class, and the persistent id after the word "storage". */
static int write_storage(struct writer *x, struct dcp_pv v)
{
	size_t n = 0;
	const struct dcp_pv *id = NULL;
	int r;

	if (v.node->nitems == 1)
		id = dcp_pv_items(v.node->items[0], &n);
	open_named(x, "$class");
	dcp_jsonw_str(&x->w, dcp_pyjson_type(v));
	dcp_jsonw_key(&x->w, "args");
	if (n > 2 && id[1].type == DCP_PV_GLOBAL)
		r = write_items(x, id + 2, n - 2);
	else
		r = write_items(x, v.node->items, v.node->nitems);
	dcp_jsonw_end(&x->w);
	return r;
}

static int write_part(struct writer *x, const char *name, struct dcp_pv v)
{
	dcp_jsonw_key(&x->w, name);
	return write_pushed(x, dcp_pyjson_push(&x->path, name, strlen(name)), v);
}

/* Names are those of find_in_module() in walk.c. */
static int write_module(struct writer *x, struct dcp_pv state)
{
	const struct dcp_pv *kv, *own;
	size_t n = 0, nown;
	int r = 0;

	kv = dcp_pv_pairs(state, &n);
	dcp_jsonw_put_object(&x->w, "state");
	for (size_t i = 0; r == 0 && i < n; i++) {
		struct dcp_pv key = kv[2 * i], value = kv[2 * i + 1];

		if (!text_fits(x, key.node)) {
			r = -E2BIG;
		} else if (dcp_pyjson_unnamed(key) && dcp_pyjson_mapping(value, &own, &nown)) {
			dcp_jsonw_key(&x->w, key.node->data);
			r = write_pairs(x, own, nown);
		} else {
			r = write_part(x, key.node->data, value);
		}
	}
	dcp_jsonw_end(&x->w);
	return r;
}

static int write_args(struct writer *x, const struct dcp_pyjson_look *l)
{
	int r = dcp_pyjson_push(&x->path, "args", 4);

	if (r < 0)
		return r;
	dcp_jsonw_key(&x->w, "args");
	r = write_items(x, l->args, l->nargs);
	dcp_pyjson_pop(&x->path);
	return r;
}

static int write_class(struct writer *x, const struct dcp_pyjson_look *l)
{
	int r = 0;

	open_named(x, "$class");
	if (l->class.type == DCP_PV_GLOBAL)
		dcp_jsonw_str(&x->w, dcp_pyjson_class(l->class));
	else
		r = write_value(x, l->class);
	if (r == 0 && l->nargs)
		r = write_args(x, l);
	if (r == 0 && l->kwargs.type != DCP_PV_NONE)
		r = write_part(x, "kwargs", l->kwargs);
	if (r == 0 && l->state.type != DCP_PV_NONE)
		r = l->module ? write_module(x, l->state) : write_part(x, "state", l->state);
	if (r == 0 && l->items) {
		dcp_jsonw_key(&x->w, "items");
		r = write_items(x, l->items, l->nitems);
	}
	if (r == 0 && l->pairs) {
		dcp_jsonw_key(&x->w, "dict");
		r = write_pairs(x, l->pairs, l->npairs);
	}
	dcp_jsonw_end(&x->w);
	return r;
}

static int write_marker(struct writer *x, const char *name, size_t npath)
{
	const char *key = dcp_pyjson_path_key(&x->path, npath);

	if (!key)
		return -ENOMEM;
	open_named(x, name);
	dcp_jsonw_str(&x->w, key);
	dcp_jsonw_end(&x->w);
	return 0;
}

/* Write the parts of a tensor that consists of several. */
static int write_parts(struct writer *x, const struct dcp_torch_parts *p)
{
	int r = 0;

	open_named(x, "$class");
	dcp_jsonw_str(&x->w, p->kind);
	for (size_t i = 0; r == 0 && i < p->n; i++) {
		if (!p->part[i].self) {
			r = write_part(x, p->part[i].name, p->part[i].value);
			continue;
		}
		dcp_jsonw_key(&x->w, p->part[i].name);
		r = dcp_pyjson_push(&x->path, p->part[i].name, strlen(p->part[i].name));
		if (r < 0)
			return r;
		r = write_marker(x, "$tensor", x->path.n);
		dcp_pyjson_pop(&x->path);
	}
	dcp_jsonw_end(&x->w);
	return r;
}

/* ---- values ---- */

static void write_scalar(struct writer *x, struct dcp_pv v)
{
	if (v.type == DCP_PV_NONE)
		dcp_jsonw_null(&x->w);
	else if (v.type == DCP_PV_BOOL)
		dcp_jsonw_bool(&x->w, v.b);
	else if (v.type == DCP_PV_INT)
		dcp_jsonw_i64(&x->w, v.i);
	else if (v.type == DCP_PV_FLOAT)
		dcp_jsonw_f64(&x->w, v.f);
	else if (v.type == DCP_PV_STR)
		dcp_jsonw_str_n(&x->w, v.node->data, v.node->n);
	else
		dcp_jsonw_bigint(&x->w, (const uint8_t *)v.node->data, v.node->n);
}

static int write_form(struct writer *x, struct dcp_pv v)
{
	struct dcp_pyjson_look l;

	dcp_pyjson_look(v, &l);
	note_class(x, v, &l);
	switch (l.form) {
	case DCP_PYJSON_SCALAR:
		write_scalar(x, v);
		return 0;
	case DCP_PYJSON_SECONDS:
		dcp_jsonw_f64(&x->w, l.seconds);
		return 0;
	case DCP_PYJSON_TIME:
		dcp_jsonw_str(&x->w, l.iso);
		return 0;
	case DCP_PYJSON_TEXT:
		write_scalar(x, l.text);
		return 0;
	case DCP_PYJSON_BYTES:
		return write_bytes(x, l.text);
	case DCP_PYJSON_LIST:
		return write_items(x, l.items, l.nitems);
	case DCP_PYJSON_SET:
		return write_set(x, &l);
	case DCP_PYJSON_DICT:
		return write_pairs(x, l.pairs, l.npairs);
	case DCP_PYJSON_ARRAY:
		return write_array(x, &l.array);
	case DCP_PYJSON_NAME:
		return write_name(x, v);
	case DCP_PYJSON_STORAGE:
		return write_storage(x, v);
	case DCP_PYJSON_PARTS:
		return write_parts(x, &l.parts);
	case DCP_PYJSON_CLASS:
		return write_class(x, &l);
	}
	return 0;
}

static int write_value(struct writer *x, struct dcp_pv v)
{
	int at, r = check_size(x);

	if (r < 0)
		return r;
	if (v.type == DCP_PV_STR && !text_fits(x, v.node))
		return -E2BIG;
	if (v.type <= DCP_PV_STR) {
		write_scalar(x, v);
		return 0;
	}
	if (x->s && x->s->is_tensor(v))
		return write_marker(x, "$tensor", x->path.n);
	at = dcp_pyjson_trail_find(&x->trail, v);
	if (at >= 0)
		return write_marker(x, "$cycle", x->trail.at[at].npath);
	if (x->trail.n == DCP_PYJSON_MAX_DEPTH || ++x->containers > x->max_containers)
		return -E2BIG;
	x->trail.at[x->trail.n].node = v.node;
	x->trail.at[x->trail.n++].npath = x->path.n;
	r = write_form(x, v);
	x->trail.n--;
	return r;
}

/*
 * dcp_pyjson_write() for a stream. @classes, unless NULL, receives the classes of values inside, in
 * the form of dcp_object.classes, if their JSON does not show them (tuple, torch.Size and list;
 * frozenset and set; bytearray and bytes; OrderedDict and dict; times, time spans and numpy
 * scalars, which are text and numbers).
 */
static int write_in(struct dcp_buf *out, struct dcp_buf *classes, const struct dcp_pystream *s,
		    struct dcp_pv v, const char *const *path, size_t npath)
{
	struct writer *x = calloc(1, sizeof(*x));
	int r;

	if (!x)
		return -ENOMEM;
	dcp_jsonw_init(&x->w, out, false);
	x->s = s;
	x->classes = classes;
	x->start = out->n;
	x->max_json = DCP_PYJSON_JSON_OF(s);
	x->max_containers = DCP_PYJSON_CONTAINERS_OF(s);
	r = dcp_pyjson_path_init(&x->path, path, npath);
	if (r == 0)
		r = write_value(x, v);
	if (r == 0)
		r = check_size(x);
	if (r == 0 && classes)
		r = dcp_buf_error(classes);
	if (r < 0 && out->p && !dcp_buf_error(out)) {
		out->n = x->start;
		out->p[out->n] = '\0';
	}
	dcp_pyjson_path_finish(&x->path);
	free(x);
	return r;
}

int dcp_pyjson_write(struct dcp_buf *out, const struct dcp_torch *t, struct dcp_pv v,
		     const char *const *path, size_t npath)
{
	struct dcp_pystream s;

	return write_in(out, NULL, dcp_pyjson_torch(t, &s), v, path, npath);
}

int dcp_pyjson_object(struct dcp_buf *out, const struct dcp_pystream *s, struct dcp_pv v,
		      const char *const *path, size_t npath, uint64_t *left,
		      struct dcp_object *o)
{
	dcp_auto_buf struct dcp_buf classes = DCP_BUF_INIT;
	int rc = -E2BIG;

	o->type = dcp_pyjson_type(v);
	dcp_buf_reset(out);
	if (*left)
		rc = write_in(out, &classes, s, v, path, npath);
	o->json_len = rc == 0 ? out->n : 0;
	if (rc == 0 && classes.n) { /* after the JSON and its NUL */
		dcp_buf_add(out, "", 1);
		dcp_buf_add(out, classes.p, classes.n);
	}
	if (rc == -ENOMEM || dcp_buf_error(out))
		return -ENOMEM;
	*left -= DCP_MIN(*left, (uint64_t)out->n);
	o->json = rc == 0 ? out->p : NULL;
	o->classes = rc == 0 && classes.n ? out->p + o->json_len + 1 : NULL;
	o->error = rc == 0 ? NULL : "nested too deep, or too long, to be shown as JSON";
	return 0;
}
