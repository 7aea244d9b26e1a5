/* SPDX-License-Identifier: Apache-2.0 */
/* part: one file of a version, emitted to a sink. */
#include "core/format/paddle/plain/plain_int.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/parse/paddle/paddle.h"

/*
 * Files of tensor streams: one tensor (paddle.save with use_binary_format), or all parameters
 * of a program in the order of their names (.pdiparams). If the program disagrees with a tensor's
 * shape, that key is broken. A tensor that the program does not name has a number as key.
 */

struct emitter {
	const struct dcp_plain_part *part;
	const struct dcp_plain_lod *lod;
	uint32_t file;
	struct dcp_err *err;
};

/* Emit the tensor @x, or a broken key if @why is not NULL. @npath is 0 for a value that has no key
 * of its own. */
static int emit_tensor(const struct emitter *w, const char *key, size_t npath,
		       const struct dcp_lodtensor *x, const char *why)
{
	struct dcp_piece p = { .off = x->off, .nbytes = x->nbytes, .file = w->file };
	struct dcp_tensor t = {
		.dtype = x->dtype,
		.dtype_name = x->dtype_name ? x->dtype_name : "",
		.itemsize = x->itemsize,
		.ndim = x->ndim,
		.shape = x->shape,
		.error = why,
	};
	struct dcp_plain_key k;
	int rc = dcp_plain_key_init(&k, w->part, key, &key, npath);

	if (rc < 0)
		return -ENOMEM;
	if (rc == 1) {
		t.key = k.key;
		t.path = k.path;
		t.npath = k.npath;
		if (!why)
			dcp_tensor_one_piece(&t, &p);
		rc = dcp_emit_tensor(w->part->sink, &t);
	}
	dcp_plain_key_finish(&k);
	return rc;
}

/* ---- .pdiparams ---- */

static void put_shape(struct dcp_buf *b, const struct dcp_paddle_var *v)
{
	dcp_buf_str(b, "[");
	for (uint32_t k = 0; k < v->ndim; k++)
		dcp_buf_printf(b, "%s%" PRId64, k ? ", " : "", v->dims[k]);
	dcp_buf_str(b, "]");
}

static bool fits_var(const struct dcp_paddle_var *v, const struct dcp_lodtensor *x)
{
	if (!v->dims)
		return true;
	if (v->ndim != x->ndim)
		return false;
	for (uint32_t k = 0; k < v->ndim; k++)
		if (v->dims[k] >= 0 && (uint64_t)v->dims[k] != x->shape[k])
			return false;
	return true;
}

static int emit_named(const struct emitter *w, const struct dcp_paddle_var *v,
		      const struct dcp_lodtensor *x)
{
	dcp_auto_buf struct dcp_buf shape = DCP_BUF_INIT;
	struct dcp_err why = { 0 };

	if (fits_var(v, x))
		return emit_tensor(w, v->name, 1, x, NULL);
	put_shape(&shape, v);
	if (dcp_buf_error(&shape))
		return -ENOMEM;
	dcp_fail_at(
		&why, -EBADMSG, x->off,
		"%.100s says that its shape is %.80s, the tensor in its place in %.100s has "
		"another: they do not belong together",
		w->lod->program_file, shape.p, w->part->file);
	return emit_tensor(w, v->name, 1, x, why.msg);
}

static int emit_numbered(const struct emitter *w, size_t i, const struct dcp_lodtensor *x)
{
	char key[24];

	snprintf(key, sizeof(key), "%zu", i);
	return emit_tensor(w, key, 1, x, NULL);
}

/* Emit the names from number @i on as broken keys: the file has no tensors for them. */
static int emit_missing(const struct emitter *w, size_t i, const char *why)
{
	const struct dcp_paddle_program *p = w->lod->program;
	const struct dcp_lodtensor nothing = { 0 };
	int rc = 0;

	for (; rc == 0 && p && i < p->n; i++)
		rc = emit_tensor(w, p->vars[i].name, 1, &nothing, why);
	return rc;
}

/* Emit all tensors of a file. After a damaged stream the place of the next is not known, so this
 * tensor and all after it are broken. They are listed if the program names them. */
static int emit_all(const struct emitter *w, const struct dcp_source *src)
{
	const struct dcp_paddle_program *p = w->lod->program;
	struct dcp_lodtensor x;
	struct dcp_err why = { 0 };
	uint64_t at = 0;
	size_t i = 0;
	int rc = 0;

	for (; rc == 0 && at < src->size; i++) {
		rc = dcp_lodtensor_read(src, at, &x, &why);
		if (rc == -EBADMSG || rc == -ENOTSUP)
			break;
		if (rc < 0)
			return dcp_fail_at(w->err, rc, at, "%s", why.msg);
		at = x.off + x.nbytes;
		rc = p && i < p->n ? emit_named(w, &p->vars[i], &x) : emit_numbered(w, i, &x);
	}
	if (rc < 0 && !why.code)
		return rc;
	if (rc < 0 && (i == 0 || !p || i >= p->n))
		return dcp_fail_at(w->err, rc, why.off, "tensor %zu: %s", i, why.msg);
	if (rc == 0)
		dcp_fail_at(&why, -EBADMSG, at, "%s ends after %zu tensor%s", w->part->file, i,
			    dcp_s(i));
	else
		dcp_err_where(&why, rc, "%s, tensor %zu", w->part->file, i);
	return emit_missing(w, i, why.msg);
}

/* ---- one tensor ---- */

static int emit_selected_rows(const struct emitter *w, const struct dcp_selected_rows *s)
{
	struct dcp_lodtensor rows = {
		.dtype = DCP_DTYPE_I64,
		.dtype_name = "I64",
		.itemsize = 8,
		.ndim = 1,
		.shape = { s->nrows },
		.off = s->rows_off,
		.nbytes = 8 * s->nrows,
	};
	const char *key = "height";
	char text[24];
	struct dcp_object o = { .type = "int", .json = text };
	struct dcp_plain_key k;
	int rc = emit_tensor(w, "value", 1, &s->value, NULL);

	if (rc == 0)
		rc = emit_tensor(w, "rows", 1, &rows, NULL);
	if (rc < 0)
		return rc;
	rc = dcp_plain_key_init(&k, w->part, key, &key, 1);
	if (rc < 0)
		return -ENOMEM;
	if (rc == 1) {
		o.key = k.key;
		o.path = k.path;
		o.npath = k.npath;
		o.json_len = (size_t)snprintf(text, sizeof(text), "%" PRIu64, s->height);
		rc = dcp_emit_object(w->part->sink, &o);
	}
	dcp_plain_key_finish(&k);
	return rc;
}

/* Emit a file with one value, a LoDTensor or SelectedRows. Both begin alike: the form whose sizes
 * add up to that of the file is the right one. */
static int emit_one(const struct emitter *w, const struct dcp_source *src)
{
	struct dcp_selected_rows s;
	struct dcp_lodtensor x;
	int rc = dcp_lodtensor_read(src, 0, &x, w->err);
	bool rows;

	if (rc == 0 && x.off + x.nbytes == src->size)
		return emit_tensor(w, "value", 0, &x, NULL);
	rows = dcp_selected_rows_read(src, &s, NULL) == 0 &&
	       s.value.off + s.value.nbytes == src->size;
	if (rows)
		return emit_selected_rows(w, &s);
	if (rc < 0)
		return rc;
	return emit_all(w, src);
}

static int dcp_plain_lod_emit(const struct dcp_plain_part *part,
			      const struct dcp_plain_lod *lod, const struct dcp_source *src,
			      uint32_t number, struct dcp_err *err)
{
	struct emitter w = { part, lod, number, err };

	return lod->params ? emit_all(&w, src) : emit_one(&w, src);
}

/* Files with the same stem belong together, whatever their extension. Files with an "own" extension
 * (from Paddle's examples for objects of any kind) are each a version with the name of the file. */
static const struct {
	const char *extension;
	enum dcp_pdkind kind;
	bool own;
} known[] = {
	{ "pdiparams.info", DCP_PDKIND_INFO, false },
	{ "pdparams", DCP_PDKIND_STATE, false },
	{ "pdopt", DCP_PDKIND_STATE, false },
	{ "pdiparams", DCP_PDKIND_PARAMS, false },
	{ "pdmodel", DCP_PDKIND_MODEL, false },
	{ "pdattr", DCP_PDKIND_ATTR, false },
	{ "json", DCP_PDKIND_JSON, false },
	{ "pdtensor", DCP_PDKIND_STATE, true },
	{ "pdz", DCP_PDKIND_STATE, true },
	{ "pd", DCP_PDKIND_STATE, true },
	{ "lod", DCP_PDKIND_STATE, true },
};

/* Words in front of the number of a rank in names of files. */
static const char *const words[] = { "rank", "dist", "tp",       "mp",  "pp",
				     "dp",   "ep",   "sharding", "moe", "shard" };

/* The length of the first @n bytes of @s without a "_rank3" at the end; @n if there is none. @at:
 * where the word starts. */
static size_t without_rank(const char *s, size_t n, size_t *at)
{
	size_t digits = (size_t)(dcp_digits_before(s, s + n) - s), word;

	if (digits == n || n - digits > 9)
		return n;
	word = digits;
	if (word > 0 && (s[word - 1] == '_' || s[word - 1] == '-'))
		word--;
	for (size_t i = 0; i < DCP_LEN(words); i++) {
		size_t len = strlen(words[i]);

		if (word < len || memcmp(s + word - len, words[i], len) != 0)
			continue;
		*at = word - len;
		if (*at == 0)
			return 0;
		if (strchr("._-", s[*at - 1]))
			return *at - 1;
	}
	return n;
}

/* "w.tp00_pp01" -> version "w", ranks "tp00_pp01"; "rank0" -> version "rank". */
static void split_name(struct dcp_plain_name *out, const char *s, size_t n)
{
	size_t stem = n, start = n, at = n, tokens = 0;
	const char *digits;

	for (size_t next; (next = without_rank(s, stem, &at)) != stem; stem = next, tokens++)
		start = at;
	if (stem == 0)
		while (stem < n && isalpha((unsigned char)s[stem]))
			stem++;
	memcpy(out->version, s, stem);
	out->version[stem] = '\0';
	memcpy(out->ranks, s + start, n - start);
	out->ranks[n - start] = '\0';
	digits = dcp_digits_before(s + start, s + n);
	out->one_rank =
		tokens == 1 && dcp_take_number(&digits, s + n, DCP_ANY_DIGITS, &out->rank);
}

bool dcp_plain_name_read(const char *file, struct dcp_plain_name *out)
{
	size_t n = strlen(file);

	if (*file == '.' || n >= DCP_GROUP_MAX)
		return false;
	for (size_t i = 0; i < DCP_LEN(known); i++) {
		size_t len = strlen(known[i].extension);

		if (n < len + 2 || file[n - len - 1] != '.' ||
		    strcmp(file + n - len, known[i].extension) != 0)
			continue;
		*out = (struct dcp_plain_name){ .kind = known[i].kind,
						.extension = file + n - len };
		if (known[i].own)
			memcpy(out->version, file, n + 1);
		else
			split_name(out, file, n - len - 1);
		return true;
	}
	return false;
}

/* The program beside a .pdiparams. */
struct names {
	struct dcp_paddle_program program;
	char file[DCP_GROUP_MAX + 16];
	bool known;
	struct dcp_err why;
};

static bool read_program(const struct dcp_dir *dir, struct names *names)
{
	struct dcp_input input;
	int rc;

	if (!dcp_dir_find(dir, names->file))
		return false;
	rc = dcp_dir_input(dir, names->file, &input, &names->why);
	if (rc == 0) {
		rc = dcp_paddle_program_read(&input.src, &names->program, &names->why);
		dcp_input_close(&input);
	}
	if (rc < 0)
		dcp_err_where(&names->why, rc, "%s", names->file);
	names->known = rc == 0;
	return names->known;
}

/* Find the program beside a .pdiparams. The .json of newer versions of Paddle comes before a
 * .pdmodel, which may be left over; but a .json may also be another kind of file. */
static int find_names(const struct dcp_dir *dir, const struct dcp_plain_part *part,
		      struct names *names)
{
	int stem = (int)(strlen(part->file) - strlen("pdiparams"));
	char text[sizeof(names->why.msg) + 32];

	*names = (struct names){ 0 };
	for (int form = 0; form < 2; form++) {
		snprintf(names->file, sizeof(names->file), "%.*s%s", stem, part->file,
			 form ? "pdmodel" : "json");
		if (read_program(dir, names))
			return 0;
	}
	if (!names->why.code)
		snprintf(names->why.msg, sizeof(names->why.msg),
			 "no %.*spdmodel or %.*sjson beside it", stem, part->file, stem,
			 part->file);
	snprintf(text, sizeof(text), "%s: keys are numbers", names->why.msg);
	return dcp_emit_meta(part->sink, "names", text);
}

static int emit_stream(const struct dcp_dir *dir, const struct dcp_plain_part *part,
		       const struct dcp_source *src, uint32_t number, bool params,
		       struct dcp_err *err)
{
	struct dcp_plain_lod lod = { .params = params };
	struct names names = { 0 };
	uint32_t program;
	int rc = params ? find_names(dir, part, &names) : 0;

	if (rc < 0)
		return rc;
	if (names.known) {
		lod.program = &names.program;
		lod.program_file = names.file;
		rc = dcp_emit_file(part->sink, names.file, &program);
	}
	if (rc >= 0)
		rc = dcp_plain_lod_emit(part, &lod, src, number, err);
	if (names.known)
		dcp_paddle_program_finish(&names.program);
	return rc;
}

static int emit_content(const struct dcp_dir *dir, const struct dcp_plain_part *part,
			const struct dcp_source *src, uint32_t number, struct dcp_err *err)
{
	size_t n = (size_t)DCP_MIN(src->size, 4);
	struct dcp_plain_name name;
	uint8_t head[4] = { 0 };
	bool params;
	int rc = dcp_source_read(src, 0, head, n);

	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "cannot read it");
	params = dcp_plain_name_read(part->file, &name) && name.kind == DCP_PDKIND_PARAMS;
	if (params && (n == 0 || head[0] != 0x80))
		return emit_stream(dir, part, src, number, true, err);
	if (n == 0)
		return dcp_fail_at(err, -EBADMSG, 0, "it is empty");
	if (head[0] == 0x80)
		return dcp_plain_state_emit(part, src, number, err);
	if (n == 4 && dcp_load_le32(head) == 0)
		return emit_stream(dir, part, src, number, false, err);
	if (name.kind == DCP_PDKIND_MODEL)
		return dcp_fail_at(
			err, -EBADMSG, 0,
			"it is a program, and its tensors (.pdiparams) are not here");
	return dcp_fail_at(
		err, -EBADMSG, 0,
		"begins with %02x %02x, expected a pickle (80) or a tensor stream of "
		"Paddle (00 00 00 00)",
		head[0], head[1]);
}

int dcp_plain_part_emit(const struct dcp_dir *dir, const struct dcp_plain_part *part,
			struct dcp_err *err)
{
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(part->sink, part->file, &number);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(dir, part->file, &input, err);
	if (rc < 0)
		return rc;
	if (err)
		err->code = 0;
	rc = emit_content(dir, part, &input.src, number, err);
	if (rc < 0 && err && err->code)
		dcp_err_where(err, rc, "%s", part->file);
	return rc;
}

int dcp_plain_part_broken(const struct dcp_plain_part *part, const char *why)
{
	return dcp_emit_broken(part->sink, part->label, why);
}
