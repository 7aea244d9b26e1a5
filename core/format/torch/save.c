/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save: each is a checkpoint by itself, with the file's name.
 *
 *	model.pt {"w": tensor}      version model.pt, key w
 *	mean.pt tensor              version mean.pt, key mean
 *
 * Only the content tells whether torch.save wrote a file, so any other file is an error when it is
 * opened. Composer's states are emitted by its rules under any file name.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/numpy/numpy.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"

/*
 * A file with a plain pickle: random states, arguments, values that a trainer dumped beside its
 * tensors, or a model of Detectron2, {"model": {name: numpy array}}. An array that is the value of
 * a key is a tensor; an array inside a tuple or a class is shown as a part of it. Everything else
 * is emitted as objects, with the classes' names. Accelerate calls files of torch.save .pkl, too:
 * they are read as torch.save files.
 *
 * Pickles lie in many directories that are not checkpoints, so a pickle is read only if the user,
 * or a family that knows its parts, names it.
 */

/* WRITTEN: bytes of JSON for each byte of the file; leaves that share parts repeat them. */
enum { MAX_WRITTEN = 64 };

static bool is_pickle(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && dot != name && (!strcmp(dot, ".pkl") || !strcmp(dot, ".pickle"));
}

static enum dcp_match probe_pickles(const struct dcp_dir *dir, char *why, size_t n)
{
	return dir->n == 1 && !dir->entries[0].is_dir && is_pickle(dir->entries[0].name)
		       ? DCP_MATCH_YES
		       : DCP_MATCH_NO;
}

/* Protocols 2 to 5 begin with their number. */
static bool begins_as_pickle(const uint8_t *head, size_t n)
{
	return n > 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5;
}

struct emitter {
	const struct dcp_sink *sink;
	const char *whole; /* the key of a file with a single value: the file's stem */
	uint32_t file;
	uint64_t size; /* of it */
	struct dcp_buf json;
	uint64_t left; /* bytes of JSON that may still be written */
};

/* Arrays of any length are read and emitted: see the options of reading. */
static bool is_array(struct dcp_pv v)
{
	struct dcp_ndarray a;

	return !dcp_pv_is_object(v, "numpy.core.multiarray", "scalar") && dcp_ndarray_is(v) &&
	       dcp_ndarray_read(v, &a, NULL) == 1;
}

static int emit_array(struct emitter *w, const struct dcp_leaf *as)
{
	struct dcp_piece p = { .file = w->file };
	struct dcp_tensor t = { .key = as->key, .path = as->path, .npath = as->npath };
	struct dcp_ndarray a;

	dcp_ndarray_read(as->value, &a, NULL);
	t.dtype = a.dtype;
	t.dtype_name = dcp_dtype_info(a.dtype)->name;
	t.itemsize = a.itemsize;
	t.ndim = a.ndim;
	t.shape = a.shape;
	dcp_ndarray_place(&a, &p);
	dcp_tensor_one_piece(&t, &p); /* known to fit */
	return dcp_emit_tensor(w->sink, &t);
}

static int on_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	struct emitter *w = ctx;
	struct dcp_leaf as = *leaf;
	const struct dcp_stretch all = { .file = w->file, .nbytes = w->size, .n = w->size };
	struct dcp_object o;
	int rc;

	if (leaf->npath == 0 && w->whole) {
		as.key = w->whole;
		as.path = &w->whole;
		as.npath = 1;
	}
	if (leaf->is_tensor)
		return emit_array(w, &as);
	o = (struct dcp_object){ .key = as.key,
				 .path = as.path,
				 .npath = as.npath,
				 .stored = leaf->npath ? NULL : &all };
	rc = dcp_pyjson_object(&w->json, NULL, leaf->value, leaf->path, leaf->npath, &w->left,
			       &o);
	if (rc < 0)
		return rc;
	return dcp_emit_object(w->sink, &o);
}

static bool is_zip(const struct dcp_source *src)
{
	unsigned char head[4];

	return src->size >= sizeof(head) && dcp_source_read(src, 0, head, sizeof(head)) == 0 &&
	       memcmp(head, "PK\3\4", sizeof(head)) == 0;
}

static int emit_pickle(const struct dcp_load *in, uint32_t file, const char *whole,
		       const struct dcp_source *src, struct dcp_err *err)
{
	struct emitter w = { .sink = in->sink,
			     .file = file,
			     .size = src->size,
			     .whole = whole,
			     .left = MAX_WRITTEN *
				     (DCP_MIN(src->size, (uint64_t)1 << 40) + 1) };
	const struct dcp_pickle_opts opts = { 0 };
	const struct dcp_pystream stream = { .size = src->size, .is_tensor = is_array };
	dcp_auto_pickle struct dcp_pickle *p = NULL;
	int rc = dcp_pickle_read(src, &opts, &p, NULL, err);

	if (rc < 0)
		return rc;
	rc = dcp_pyjson_walk_in(&stream, dcp_pickle_root(p), NULL, 0, 0, on_leaf, &w);
	if (rc == -E2BIG)
		dcp_fail(err, rc, "nested too deep to be walked");
	dcp_buf_finish(&w.json);
	return rc;
}

static int dcp_pickle_emit(const struct dcp_load *in, const char *name, uint32_t file,
			   const char *whole, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	struct dcp_input input;
	int rc = dcp_dir_input(in->dir, name, &input, &why);

	if (rc < 0)
		return rc;
	if (!is_zip(&input.src))
		rc = emit_pickle(in, file, whole, &input.src, &why);
	else
		rc = -EBADMSG;
	dcp_input_close(&input);
	return rc;
}

/* Emit the file as torch.save's if it is, else report what is wrong with the plain pickle. */
static int emit_saved(const struct dcp_load *in, const char *name, const struct dcp_source *src,
		      struct dcp_err *err)
{
	char stem[DCP_GROUP_MAX];
	struct dcp_torch_state s = { .sink = in->sink, .whole = in->is_part ? NULL : stem };
	struct dcp_err why = { 0 };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_stretch all = { .nbytes = src->size, .n = src->size };
	int rc = dcp_emit_file(in->sink, name, &s.file);

	snprintf(stem, sizeof(stem), "%.*s", (int)dcp_stem(name), name);
	if (rc < 0)
		return rc;
	rc = dcp_torch_open(src, 0, &t, &why);
	if (rc == 0) {
		s.t = t;
		all.file = s.file;
		s.stored = &all;
		return dcp_torch_state_emit(&s);
	}
	if (rc == -ENOMEM || is_zip(src))
		return dcp_err_give(err, &why, rc);
	return emit_pickle(in, s.file, s.whole, src, err);
}

static int load_pickle(const struct dcp_load *in, struct dcp_err *err)
{
	const char *name = in->dir->entries[0].name;
	struct dcp_input input;
	int rc = dcp_dir_input(in->dir, name, &input, err);

	if (rc < 0)
		return rc;
	rc = emit_saved(in, name, &input.src, err);
	dcp_input_close(&input);
	if (rc < 0 && err && err->code == rc)
		dcp_err_where(err, rc, "%s", name);
	return dcp_emit_fact(in->sink, rc, "framework", "python");
}

const struct dcp_format dcp_format_pickle = {
	.name = "pickle",
	.what = "single pickle files",
	.probe = probe_pickles,
	.begins = begins_as_pickle,
	.load = load_pickle,
	.marks =
		(const struct dcp_mark[]){
			{ "@(*.pkl|*.pickle)", "a directory of pickles: name one of them",
			  .general = true },
			{ 0 },
		},
};

static bool has_extension(const char *name)
{
	static const char *const known[] = {
		".pt", ".pth", ".ckpt", ".bin", ".th", ".pth.tar"
	};

	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (dcp_has_extension(name, known[i]))
			return true;
	return false;
}

/* If the file is the source, its content was judged before; a part is judged by its whole name. */
static bool is_ours(const struct dcp_load *in, const char *name)
{
	return in->dir->is_file || (in->depth > 0 && in->dir->n == 1) || has_extension(name);
}

static enum dcp_match probe_saves(const struct dcp_dir *dir, char *why, size_t n)
{
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && has_extension(dir->entries[i].name))
			return dir->is_file ? DCP_MATCH_YES : DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

static bool group_save(const char *file, char *version)
{
	size_t n = strlen(file);

	if (*file == '.' || n >= DCP_GROUP_MAX || !has_extension(file))
		return false;
	memcpy(version, file, n + 1);
	return true;
}

/* A ZIP archive or, before torch 1.6, a pickle of a magic number. */
static bool begins_as_save(const uint8_t *head, size_t n)
{
	return n >= 6 &&
	       (memcmp(head, "PK\3\4", 4) == 0 || memcmp(head, "\x80\2\x8a\nl\xfc", 6) == 0);
}

/* @containers receives the classes of the containers that are opened. */
static int emit_file(const struct dcp_load *in, const char *name, struct dcp_buf *containers,
		     struct dcp_err *err)
{
	char stem[DCP_GROUP_MAX];
	struct dcp_torch_state s = { .sink = in->sink, .whole = in->is_part ? NULL : stem };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_stretch all = { 0 };
	int rc = dcp_emit_file(in->sink, name, &s.file);

	snprintf(stem, sizeof(stem), "%.*s", (int)dcp_stem(name), name);
	if (rc == 0)
		rc = dcp_torch_open_file(in->dir, name, &t, err);
	if (rc == -EBADMSG && in->depth > 0) /* written by a trainer that does not use torch */
		return dcp_pickle_emit(in, name, s.file, s.whole, err);
	if (rc == 0)
		rc = dcp_torch_state_check(t, name, err);
	if (rc < 0)
		return rc;
	s.t = t;
	all.file = s.file;
	all.nbytes = all.n = dcp_torch_size(t);
	s.stored = &all;
	s.lists = dcp_composer_is_state(t);
	s.tuples = !s.lists;
	s.containers = containers;
	if (s.lists)
		rc = dcp_emit_meta(in->sink, "lists", "opened");
	return rc < 0 ? rc : dcp_torch_state_emit(&s);
}

static int load_save(const struct dcp_load *in, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf containers = DCP_BUF_INIT;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < in->dir->n; i++)
		if (!in->dir->entries[i].is_dir && is_ours(in, in->dir->entries[i].name))
			rc = emit_file(in, in->dir->entries[i].name, &containers, err);
	if (rc == 0 && containers.n && !in->is_part)
		rc = dcp_emit_meta(in->sink, "containers", containers.p);
	return dcp_emit_fact(in->sink, rc, "framework", "torch");
}

const struct dcp_format dcp_format_torch_save = {
	.name = "torch-save",
	.what = "torch.save files",
	.probe = probe_saves,
	.group = group_save,
	.begins = begins_as_save,
	.load = load_save,
	.marks =
		(const struct dcp_mark[]){
			{ "@(*.pt|*.pth|*.ckpt)", "a directory of torch.save files",
			  .general = true },
			{ 0 },
		},
};
