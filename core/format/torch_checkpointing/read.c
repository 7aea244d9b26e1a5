/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emits one file leaf by leaf, in each of the forms that it may have:
 *
 *	torch.save    like every torch.save file; but a list or tuple that holds tensors with a
 *	              place is opened, because torch_checkpointing opens all lists and tuples
 *	safetensors   names are paths joined with dots; metadata.pkl has the path's components
 *	JSON          objects are opened, everything else is a value
 *	raw bytes     one object, {"$bytes": base64}
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/jsonw.h"
#include "core/format/torch/torch.h"
#include "core/format/torch_checkpointing/items_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/parse/torch/torch.h"

enum { MAX_TEXT = 64 << 20, MAX_RAW = 1 << 20, HEADER_MEMORY = 1 << 30 };

struct reading {
	struct dcp_items *r;
	const struct dcp_items_file *f;
	struct dcp_stretch all; /* of the file */
	struct dcp_sink sink;   /* takes tensors itself, passes the rest on */
	struct dcp_torch_state state;
};

/* ---- torch.save ---- */

/* Is @v a list or tuple with tensors that may have a place in a whole? */
static bool holds_parts(const struct dcp_items *r, struct dcp_pv v)
{
	const struct dcp_pv *item;
	size_t n;

	if (v.type != DCP_PV_LIST && v.type != DCP_PV_TUPLE)
		return false;
	item = dcp_pv_items(v, &n);
	for (size_t i = 0; i < n; i++)
		if ((r->has_meta && dcp_torch_is_tensor(item[i])) || dcp_shard_is(item[i]))
			return true;
	return false;
}

static int on_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	struct reading *w = ctx;
	struct dcp_torch_state inside = w->state;
	int rc;

	if (!holds_parts(w->r, leaf->value))
		return 0;
	inside.root = &leaf->value;
	inside.prefix = leaf->path;
	inside.nprefix = leaf->npath;
	inside.lists = true;
	inside.tuples = true;
	inside.take = NULL;
	inside.stored = NULL;
	inside.ctx = w->r;
	rc = dcp_torch_state_emit(&inside);
	return rc < 0 ? rc : 1;
}

static int on_part(void *ctx, const struct dcp_tensor *t)
{
	return dcp_items_on_part(((struct reading *)ctx)->r, t);
}

static int read_torch(struct reading *w, const struct dcp_source *src, struct dcp_err *why)
{
	dcp_auto_torch struct dcp_torch *t = NULL;
	int rc = dcp_torch_open(src, 0, &t, why);

	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	w->state = (struct dcp_torch_state){
		.t = t,
		.sink = &w->sink,
		.prefix = w->r->front.path,
		.nprefix = w->r->front.npath,
		.file = w->f->number,
		.stored = &w->all,
		.take = on_leaf,
		.shard = on_part,
		.parts = &w->r->parts,
		.who = (uint32_t)w->r->at,
		.name = w->f->name,
		.own = w->r->front.nrank,
		.ctx = w,
	};
	return dcp_torch_state_emit(&w->state);
}

/* ---- safetensors ---- */

static int emit_entry(struct reading *w, const struct dcp_safetensors_entry *e)
{
	const struct dcp_items_emitted *front = &w->r->front;
	const char *path[3] = { front->path[0], front->path[1] };
	struct dcp_piece p = {
		.off = e->off,
		.nbytes = e->nbytes,
		.file = w->f->number,
		.enc = DCP_ENC_PLAIN,
	};
	struct dcp_tensor t = {
		.path = path,
		.npath = front->npath + 1,
		.dtype = e->dtype,
		.dtype_name = e->dtype == DCP_DTYPE_OTHER ? e->dtype_name
							  : dcp_dtype_info(e->dtype)->name,
		.itemsize = e->itemsize,
		.ndim = e->ndim,
		.shape = e->shape,
	};

	path[front->npath] = e->name;
	dcp_tensor_one_piece(&t, &p);
	return dcp_emit_tensor(&w->sink, &t);
}

static int read_safetensors(struct reading *w, const struct dcp_source *src,
			    struct dcp_err *why)
{
	struct dcp_safetensors st;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(HEADER_MEMORY);
	int rc = dcp_safetensors_read(src, &arena, &st, why);

	if (rc < 0 && rc != -ENOMEM)
		return 1;
	if (rc == 0)
		rc = dcp_emit_metadata(w->r->in->sink, w->f->name, &st);
	for (size_t i = 0; rc == 0 && i < st.n; i++)
		rc = emit_entry(w, &st.entries[i]);
	return rc;
}

/* ---- JSON ---- */

static const char *type_of(const struct dcp_bytes *v)
{
	switch (*v->p) {
	case '{':
		return "dict";
	case '[':
		return "list";
	case '"':
		return "str";
	case 't':
	case 'f':
		return "bool";
	case 'n':
		return "NoneType";
	default:
		for (size_t i = 0; i < v->n; i++)
			if (strchr(".eE", v->p[i]))
				return "float";
		return "int";
	}
}

/* @text without the white space around it. */
static struct dcp_bytes trim_text(const void *text, size_t n)
{
	struct dcp_bytes b = { text, n };

	while (b.n && strchr(" \t\r\n", b.p[0])) {
		b.p++;
		b.n--;
	}
	while (b.n && strchr(" \t\r\n", b.p[b.n - 1]))
		b.n--;
	return b;
}

struct members {
	const struct dcp_sink *sink;
	const struct dcp_stretch *all;
	const char *path[DCP_JSON_MAX_DEPTH + 4];
	size_t npath, nfront;
	struct dcp_buf value;
};

static int emit_json(struct members *m, struct dcp_bytes v);

/* Emit the value @v of the member whose name is the JSON string @name. */
static int emit_member(struct members *m, struct dcp_bytes name, struct dcp_bytes v)
{
	dcp_auto_json struct dcp_json *text = NULL;
	int rc = dcp_json_parse((const char *)name.p, name.n, &text, NULL);

	if (rc < 0)
		return rc;
	m->path[m->npath++] = dcp_json_str(text);
	rc = emit_json(m, trim_text(v.p, v.n));
	m->npath--;
	return rc;
}

/* @v was parsed before, so it is valid JSON and not too deep. An empty object inside another one
 * is not emitted, just as empty dicts are not. */
static int emit_json(struct members *m, struct dcp_bytes v)
{
	struct dcp_json_walk w = { .text = (const char *)v.p, .n = v.n };
	struct dcp_bytes name, value;
	struct dcp_object o = { .path = m->path,
				.npath = m->npath,
				.type = type_of(&v),
				.stored = m->npath == m->nfront ? m->all : NULL };
	int rc = 0;

	while (*v.p == '{' && rc == 0 && dcp_json_walk(&w, &name, &value, NULL) == 1)
		rc = emit_member(m, name, value);
	if (rc < 0 || w.members || (*v.p == '{' && m->npath > m->nfront))
		return rc;
	dcp_buf_reset(&m->value);
	if (dcp_buf_add(&m->value, v.p, v.n) < 0)
		return -ENOMEM;
	o.json = m->value.p;
	o.json_len = dcp_json_squeeze(m->value.p, v.n);
	return dcp_emit_object(m->sink, &o);
}

static int read_json(struct reading *w, const char *text, size_t n, struct dcp_err *why)
{
	const struct dcp_items_emitted *front = &w->r->front;
	struct members m = { .sink = w->r->in->sink, .all = &w->all };
	struct dcp_json *root;
	int rc = dcp_json_parse(text, n, &root, why);

	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	dcp_json_free(root);
	memcpy(m.path, front->path, front->npath * sizeof(*m.path));
	m.npath = m.nfront = front->npath;
	rc = emit_json(&m, trim_text(text, n));
	dcp_buf_finish(&m.value);
	return rc;
}

/* ---- raw bytes ---- */

static int read_raw(struct reading *w, const char *bytes, size_t n)
{
	const struct dcp_items_emitted *front = &w->r->front;
	dcp_auto_buf struct dcp_buf json = DCP_BUF_INIT;
	struct dcp_object o = {
		.path = front->path, .npath = front->npath, .type = "bytes", .stored = &w->all
	};
	struct dcp_jsonw out;

	dcp_jsonw_init(&out, &json, false);
	dcp_jsonw_object(&out);
	dcp_jsonw_key(&out, "$bytes");
	dcp_jsonw_base64(&out, bytes, n);
	dcp_jsonw_end(&out);
	if (dcp_buf_error(&json))
		return -ENOMEM;
	o.json = json.p;
	o.json_len = json.n;
	return dcp_emit_object(w->r->in->sink, &o);
}

/* ---- a file ---- */

/* Read a JSON file or raw bytes as a whole into memory, and emit the contents. */
static int read_text(struct reading *w, const struct dcp_source *src, struct dcp_err *why)
{
	bool raw = w->f->coding == DCP_ITEMS_RAW;
	char *text;
	int rc;

	if (src->size > (raw ? MAX_RAW : MAX_TEXT)) {
		dcp_fail(why, -E2BIG,
			 "%" PRIu64 " bytes are too long to be shown as JSON; the file is at "
			 "its place in the checkpoint",
			 src->size);
		return 1;
	}
	text = malloc(src->size + 1);
	if (!text)
		return -ENOMEM;
	rc = dcp_source_read(src, 0, text, src->size);
	if (rc < 0)
		dcp_fail(why, rc, "cannot be read: %s", dcp_err_noted(rc));
	if (rc < 0)
		rc = 1;
	else
		rc = raw ? read_raw(w, text, src->size) : read_json(w, text, src->size, why);
	free(text);
	return rc;
}

static int read_opened(struct reading *w, const struct dcp_source *src, struct dcp_err *why)
{
	switch (w->f->coding) {
	case DCP_ITEMS_TORCH:
		return read_torch(w, src, why);
	case DCP_ITEMS_SAFETENSORS:
		return read_safetensors(w, src, why);
	case DCP_ITEMS_JSON:
	case DCP_ITEMS_RAW:
		return read_text(w, src, why);
	case DCP_ITEMS_UNKNOWN:
		break;
	}
	return 1;
}

int dcp_items_read(struct dcp_items *r, struct dcp_err *why)
{
	struct dcp_items_file *f = dcp_items_file(r, r->at);
	struct reading w = {
		.r = r,
		.f = f,
		.sink = { .tensor = dcp_items_on_tensor, .ctx = r, .next = r->in->sink },
	};
	dcp_auto_input struct dcp_input input = { 0 };
	int rc;

	if (f->error) {
		dcp_fail(why, -ENOTSUP, "%s: %s", f->name, f->error);
		return 1;
	}
	rc = dcp_dir_input(r->in->dir, f->name, &input, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	rc = dcp_emit_file(r->in->sink, f->name, &f->number);
	w.all = (struct dcp_stretch){ .file = f->number,
				      .nbytes = input.src.size,
				      .n = input.src.size };
	if (rc == 0)
		rc = read_opened(&w, &input.src, why);
	if (rc == 1)
		dcp_err_where(why, why->code, "%s", f->name);
	return rc;
}
