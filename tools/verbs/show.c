/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
#include "fs/text/text.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

struct show_opts {
	bool digest, sha256;
	int form;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	PICK_OPTS_READ(struct show_opts),
	PICK_OPTS_ROWS(struct show_opts),
	{ 0, "digest", NULL,
	  "read the tensor and print its digest; without KEY: of every tensor", OPT_FLAG,
	  .off = offsetof(struct show_opts, digest) },
	{ 0, "sha256", NULL, "the digest by SHA-256, which cannot be forged", OPT_FLAG,
	  .off = offsetof(struct show_opts, sha256) },
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { "KEY", true, OPT_KEY }, { 0 } };

/* A tensor, and the names for the file numbers of its pieces. */
struct shown {
	const struct dcp_row *row;
	const struct dcp_tensor *t; /* with its pieces located, as far as possible */
	const char *error;
	const struct dcp_file_id *files;
	size_t nfiles;
};

static const char *file_name(const struct shown *s, const struct dcp_piece *piece)
{
	return piece->file < s->nfiles ? s->files[piece->file].name : "?";
}

static bool is_run(const struct dcp_piece *piece, uint32_t ndim)
{
	uint64_t volume;

	return piece->run_lo ||
	       (dcp_shape_volume(piece->len, ndim, &volume) && piece->run_n != volume);
}

/* Bytes of the tensor in a piece: a located item ends somewhere after them. */
static uint64_t piece_bytes(const struct shown *s, const struct dcp_piece *piece)
{
	uint64_t n;

	if (piece->enc != DCP_ENC_PLAIN || dcp_filter_encodes(piece->filter) ||
	    dcp_ckd_mul(&n, piece->run_n, s->t->itemsize))
		return piece->nbytes;
	return n;
}

/* "[0:4, 8:16]", and the run if the piece has only a part of this box */
static void describe_region(struct dcp_buf *b, const struct dcp_piece *piece, uint32_t ndim)
{
	char box[DCP_BOX_TEXT];

	dcp_buf_str(b, dcp_box_text(box, sizeof(box), piece->lo, piece->len, ndim));
	if (is_run(piece, ndim))
		dcp_buf_printf(b, " elements %llu:%llu", (unsigned long long)piece->run_lo,
			       (unsigned long long)(piece->run_lo + piece->run_n));
}

static void describe_manner(const struct shown *s, struct dcp_buf *b,
			    const struct dcp_piece *piece)
{
	if (piece->file < s->nfiles && s->files[piece->file].unpacked)
		dcp_buf_str(b, " decompressed");
	if (piece->nmore)
		dcp_buf_printf(b, " %s with %u other file%s", piece->mean ? "mean" : "sum",
			       piece->nmore, dcp_s(piece->nmore));
	else if (piece->filter != DCP_FILTER_NONE)
		dcp_buf_printf(b, " %s", dcp_filter_name(piece->filter));
	if (piece->enc != DCP_ENC_PLAIN)
		dcp_buf_str(b, " torch.save item");
	if (piece->item_n)
		dcp_buf_printf(b, " from element %llu", (unsigned long long)piece->item_lo);
	if (piece->stride)
		dcp_buf_str(b, " strided");
	if (piece->swap)
		dcp_buf_str(b, " big-endian");
}

/* clang-format off */
static const struct out_field piece_fields[] = {
	{ "key" }, { "piece" }, { "file", "FILE", OUT_NAME }, { "offset", "OFFSET", OUT_COUNT },
	{ "nbytes", "BYTES", OUT_COUNT }, { "region", "REGION" }, { "how", "HOW" }, { NULL }
};
/* clang-format on */

static void put_pieces(const struct shown *s, struct out *o)
{
	for (size_t i = 0; i < s->t->npieces; i++) {
		const struct dcp_piece *piece = &s->t->pieces[i];
		dcp_auto_buf struct dcp_buf where = DCP_BUF_INIT, manner = DCP_BUF_INIT;

		describe_region(&where, piece, s->t->ndim);
		describe_manner(s, &manner, piece);
		out_row(o);
		out_put_str(o, "key", s->row->key);
		out_put_u64(o, "piece", i);
		out_put_str(o, "file", file_name(s, piece));
		out_put_u64(o, "offset", piece->off);
		out_put_u64(o, "nbytes", piece_bytes(s, piece));
		out_put_str(o, "region", where.p ? where.p : "");
		out_put_str(o, "how", manner.p ? manner.p + 1 : "");
		out_row_end(o);
	}
}

static void put_field(struct out *o, const char *name, const char *value)
{
	dcp_buf_printf(&o->buf, "%-9s ", name);
	out_text(&o->buf, value);
	dcp_buf_str(&o->buf, "\n");
}

static void put_tensor(const struct shown *s, struct out *o)
{
	char text[1024], size[64];

	put_field(o, "key", s->row->key);
	if (strcmp(s->row->key, s->row->name) != 0)
		put_field(o, "name", s->row->name);
	put_field(o, "dtype", s->t->dtype_name);
	put_field(o, "shape", dcp_dims_text(text, sizeof(text), s->t->shape, s->t->ndim));
	put_field(o, "size", out_size_exact(size, s->row->nbytes));
	if (s->t->alias_of)
		put_field(o, "alias of", s->t->alias_of);
	if (s->error)
		put_field(o, "error", s->error);
	dcp_buf_printf(&o->buf, "%-9s %zu\n", "pieces", s->t->npieces);
	out_list(o, NULL, piece_fields);
	put_pieces(s, o);
	out_list_end(o, false);
}

static enum cmd_exit show_tensor(struct pick *p, const struct dcp_row *row,
				 struct dcp_arena *arena, bool tsv, struct out *o)
{
	struct dcp_index *ix = dcp_version_index(p->ck.v);
	struct shown s = { .row = row };
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_tensor t;
	struct dcp_err err = { 0 };
	int rc = dcp_index_tensor(ix, row->id, arena, &t, &err);

	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s: %s: %s", p->ck.name, row->key, err.msg);
	s.files = dcp_index_files(ix, &s.nfiles);
	s.t = &t;
	s.error = t.error;
	/* A view knows the places of bytes inside torch.save items; without a view, show the
	 * items. */
	if (!t.error) {
		if (dcp_view_open(p->ck.v, row->id, DCP_AS_RAW, NULL, &view, &err) < 0)
			s.error = err.msg;
		else
			t.pieces = dcp_view_tensor(view)->pieces,
			t.npieces = dcp_view_tensor(view)->npieces;
	}
	if (tsv && s.error)
		return cmd_fail(CMD_BAD, "%s: %s: %s", p->ck.name, row->key, s.error);
	if (tsv)
		put_pieces(&s, o);
	else
		put_tensor(&s, o);
	return out_flush(o);
}

static enum cmd_exit show_object(struct pick *p, const struct dcp_row *row,
				 struct dcp_arena *arena, struct out *o)
{
	struct dcp_object ob;
	struct dcp_err err = { 0 };
	int rc = dcp_index_object(dcp_version_index(p->ck.v), row->id, arena, &ob, &err);

	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s: %s: %s", p->ck.name, row->key, err.msg);
	put_field(o, "key", row->key);
	if (strcmp(row->key, row->name) != 0)
		put_field(o, "name", row->name);
	put_field(o, "type", ob.type ? ob.type : "?");
	if (ob.error)
		put_field(o, "error", ob.error);
	if (ob.json)
		put_field(o, "value", ob.json);
	return out_flush(o);
}

struct showing {
	struct pick *p;
	const struct show_opts *s;
	struct out *o;
	bool digest;
	enum cmd_exit code; /* of the first key that could not be shown */
	uint64_t n;
	struct progress progress; /* of digests */
	uint64_t done, total;     /* bytes of the tensors before this one, and of all */
};

/* ---- --digest ---- */

static int add_bytes(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct showing *w = ctx;

	if (kind == DCP_ROW_TENSOR && dcp_ckd_add(&w->total, w->total, row->nbytes))
		w->total = UINT64_MAX;
	return 0;
}

/* Report progress within the current tensor. */
static void report_bytes(void *ctx, uint64_t done, uint64_t total, const char *key)
{
	struct showing *w = ctx;

	w->progress.report.report(w->progress.report.ctx, w->done + done, w->total, key);
}

static enum cmd_exit put_digest(struct showing *w, const struct dcp_row *row)
{
	const struct dcp_progress progress = { report_bytes, w };
	char digest[DCP_DIGEST_TEXT];
	struct dcp_view *view = NULL;
	struct dcp_err err = { 0 };
	int rc = dcp_view_open(w->p->ck.v, row->id, DCP_AS_RAW, NULL, &view, &err);

	if (rc == 0)
		rc = dcp_digest(view, w->s->sha256 ? DCP_DIGEST_SHA256 : DCP_DIGEST_XXH3,
				&progress, digest, &err);
	dcp_view_close(view);
	progress_finish(&w->progress);
	w->done += row->nbytes;
	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s: %s: %s", w->p->ck.name, row->key,
				err.msg[0] ? err.msg : strerror(-rc));
	if (w->s->form == OUT_JSON) {
		dcp_jsonw_put_str(&w->o->json, row->key, digest);
		return CMD_OK;
	}
	if (w->s->form == OUT_TSV) {
		out_row(w->o);
		out_put_str(w->o, "digest", digest);
		out_put_str(w->o, "key", row->key);
		out_row_end(w->o);
	} else {
		dcp_buf_printf(&w->o->buf, "%s  ", digest);
		out_text(&w->o->buf, row->key);
		dcp_buf_str(&w->o->buf, "\n");
	}
	return out_flush(w->o);
}

/* As index.json has it. */
static enum cmd_exit put_json(struct pick *p, enum dcp_row_kind kind, const struct dcp_row *row,
			      struct out *o)
{
	struct dcp_err err = { 0 };
	int rc = kind == DCP_ROW_TENSOR
			 ? dcpfs_describe_tensor(p->ck.v, row, NULL, &o->json, &err)
			 : dcpfs_describe_object(p->ck.v, row, true, &o->json, &err);

	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s: %s: %s", p->ck.name, row->key,
				err.msg[0] ? err.msg : strerror(-rc));
	return CMD_OK;
}

static enum cmd_exit put_text(struct showing *w, enum dcp_row_kind kind,
			      const struct dcp_row *row)
{
	bool tsv = w->s->form == OUT_TSV;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	enum cmd_exit code = CMD_OK;

	if (w->n++ && !tsv)
		dcp_buf_str(&w->o->buf, "\n");
	if (kind == DCP_ROW_TENSOR)
		code = show_tensor(w->p, row, &arena, tsv, w->o);
	else if (!tsv)
		code = show_object(w->p, row, &arena, w->o);
	return code;
}

/* A key that cannot be shown gets a message; the others are shown. */
static int show_key(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct showing *w = ctx;
	enum cmd_exit code = CMD_OK;

	if (!w->digest)
		code = w->s->form == OUT_JSON ? put_json(w->p, kind, row, w->o)
					      : put_text(w, kind, row);
	else if (kind == DCP_ROW_TENSOR)
		code = put_digest(w, row);
	w->code = w->code == CMD_OK ? code : w->code;
	return 0;
}

static enum cmd_exit show_keys(struct showing *w, const struct pick_keys *keys)
{
	bool json = w->s->form == OUT_JSON, tsv = w->s->form == OUT_TSV;
	static const struct out_field digest_fields[] = { { "digest" }, { "key" }, { NULL } };
	bool many = json && !w->digest && keys->pattern;
	enum cmd_exit code = CMD_OK;
	int rc;

	if ((w->digest || tsv) && !keys->tensors && !keys->pattern)
		return cmd_fail(CMD_USAGE, "show: %s is not a tensor: it has no %s",
				keys->row.key, w->digest ? "digest" : "pieces");
	if ((w->digest || tsv) && !keys->tensors)
		return pick_no_match(w->p, keys->pattern, "tensor");
	if (tsv)
		out_list(w->o, NULL, w->digest ? digest_fields : piece_fields);
	if (w->digest) {
		progress_init(&w->progress, true);
		pick_keys_each(w->p, keys, add_bytes, w);
	}
	if (many)
		dcp_jsonw_array(&w->o->json);
	else if (json && w->digest)
		dcp_jsonw_object(&w->o->json);
	rc = pick_keys_each(w->p, keys, show_key, w);
	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s: %s", w->p->ck.name, strerror(-rc));
	if (many || (json && w->digest))
		dcp_jsonw_end(&w->o->json);
	if (json && (w->code == CMD_OK || keys->pattern || w->digest))
		code = out_flush(w->o);
	return w->code == CMD_OK ? code : w->code;
}

static enum cmd_exit run_show(const void *opts_in, const struct opt_args *args)
{
	const struct show_opts *s = opts_in;
	const char *word = args->operand[PICK_KEY];
	struct pick_keys keys = { .pattern = "*" };
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct pick p;
	struct out o;
	struct showing w = { .p = &p, .s = s, .o = &o, .digest = s->digest || s->sha256 };
	enum cmd_exit code = pick_open(&p, args, &s->pick);

	out_init(&o, s->form);
	o.indent = 2; /* of pieces */
	if (code == CMD_OK && p.ck.base)
		code = hf_check(p.ck.v, &s->pick.hf, "show", false);
	if (code == CMD_OK && !word && !w.digest)
		code = cmd_fail(CMD_USAGE, "show: which KEY? \"dcpfs ls\" lists them");
	else if (code == CMD_OK && word)
		code = pick_keys(&p, word, &arena, &keys);
	else if (code == CMD_OK)
		keys.tensors = dcp_index_counts(dcp_version_index(p.ck.v))->tensors;
	if (code == CMD_OK)
		code = show_keys(&w, &keys);
	out_finish(&o);
	pick_finish(&p);
	return code;
}

const struct cmd cmd_show = {
	.name = "show",
	.what = "show everything about one key",
	.about = "Show the dtype, shape and size of one tensor, and in which files its pieces "
		 "lie; or the type and value of an object. KEY may also be a file name of the "
		 "mount, or a pattern: * stands for anything. One word after SOURCE is KEY.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct show_opts),
	.run = run_show,
	.examples = { "dcpfs show /data/run1 model.layers.0.attn.wq.weight",
		      "dcpfs show /data/run1 'optim.param_groups.*' --json",
		      "dcpfs show --digest /data/run1 >run1.digests" },
};
