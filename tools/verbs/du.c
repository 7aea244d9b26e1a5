/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/store/cache/cache.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

enum by { BY_PREFIX, BY_DTYPE, BY_FILE };
static const char *const bys[] = { "prefix", "dtype", "file", NULL };

struct du_opts {
	int form, by;
	uint64_t depth;
	struct opt_texts keys;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	WALK_OPT_KEYS(struct du_opts),
	{ 0, "by", "WHAT", "one row for each prefix (default), dtype or file", OPT_CHOICE,
	  .off = offsetof(struct du_opts, by), .choices = bys },
	{ 'd', "depth", "N", "parts of the key that a prefix has; default 1", OPT_UINT,
	  .off = offsetof(struct du_opts, depth), .def = 1 },
	PICK_OPTS_READ(struct du_opts),
	PICK_OPTS_ROWS(struct du_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

struct row {
	const char *name;
	uint64_t tensors, nbytes,
		unique; /* unique: bytes of tensors without an equal before them */
};

struct counting {
	const struct du_opts *o;
	struct pick p;
	struct walk_keys keys;
	bool *again;      /* by key: its bytes are those of an earlier key */
	uint64_t unknown; /* tensors without a known digest */
	struct dcp_buf rows;
	struct dcp_arena arena;
	struct out out;
};

/* ---- equal tensors ---- */

struct content {
	const char *digest;
	size_t key;
};

static int by_digest(const void *a, const void *b)
{
	const struct content *x = a, *y = b;
	int order = strcmp(x->digest, y->digest);

	return order ? order : (x->key > y->key) - (x->key < y->key);
}

/* Tied tensors are known; others are compared by the digests that dcpfs verify has kept. */
static int find_again(struct counting *w)
{
	dcp_auto_buf struct dcp_buf kept = DCP_BUF_INIT, all = DCP_BUF_INIT;
	const struct walk_key *k = WALK_KEYS(&w->keys);
	dcp_auto_free size_t *tie = NULL;
	int rc = dcp_kept_records(w->p.ck.v, "digests", sizeof(struct record_kept), &kept);

	tie = walk_ties(&w->keys);
	w->again = calloc(WALK_NKEYS(&w->keys) + 1, sizeof(*w->again));
	if (!w->again || !tie)
		return -ENOMEM;
	for (size_t i = 0; i < WALK_NKEYS(&w->keys); i++) {
		const struct record_kept *d = dcp_kept_at(&kept, sizeof(*d), k[i].id, k[i].key);
		struct content c = { d ? d->text : NULL, i };

		w->again[i] = tie[i] != 0;
		w->unknown += !d && !w->again[i];
		if (d && !w->again[i])
			dcp_buf_add(&all, &c, sizeof(c));
	}
	if (all.n)
		qsort(all.p, DCP_NITEMS(all, struct content), sizeof(struct content),
		      by_digest);
	for (size_t i = 1; i < DCP_NITEMS(all, struct content); i++) {
		const struct content *c = &DCP_ITEMS(all, struct content)[i];

		w->again[c->key] = strcmp(c[-1].digest, c->digest) == 0;
	}
	return rc < 0 ? rc : dcp_buf_error(&all);
}

/* ---- rows ---- */

static int add_row(struct counting *w, const char *name, size_t n, uint64_t nbytes, bool again)
{
	struct row r = { dcp_arena_strndup(&w->arena, name, n), 1, nbytes, again ? 0 : nbytes };

	dcp_buf_add(&w->rows, &r, sizeof(r));
	return r.name ? dcp_buf_error(&w->rows) : -ENOMEM;
}

static size_t prefix_of(const char *key, uint64_t depth)
{
	size_t n = 0;

	for (uint64_t i = 0; key[n]; n++)
		if ((key[n] == '.' || key[n] == '/') && ++i >= depth)
			break;
	return n;
}

struct of_tensor {
	struct counting *w;
	bool again;
};

static int add_file(void *ctx, uint32_t file, uint64_t nbytes)
{
	const struct of_tensor *t = ctx;
	size_t n;
	const char *name = dcp_index_files(dcp_version_index(t->w->p.ck.v), &n)[file].name;

	return add_row(t->w, name, strlen(name), nbytes, t->again);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static int by_size(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	return x->nbytes != y->nbytes ? (x->nbytes < y->nbytes) - (x->nbytes > y->nbytes)
				      : by_name(a, b);
}

static int count_rows(struct counting *w)
{
	struct row *r;
	size_t n = 0;
	int rc = find_again(w);

	for (size_t i = 0; rc == 0 && i < WALK_NKEYS(&w->keys); i++) {
		const struct walk_key *k = &WALK_KEYS(&w->keys)[i];

		if (w->o->by == BY_FILE)
			rc = walk_files(&w->p, k, add_file,
					&(struct of_tensor){ w, w->again[i] });
		else if (w->o->by == BY_DTYPE)
			rc = add_row(w, k->dtype_name, strlen(k->dtype_name), k->nbytes,
				     w->again[i]);
		else
			rc = add_row(w, k->key, prefix_of(k->key, w->o->depth), k->nbytes,
				     w->again[i]);
	}
	if (rc < 0 || !w->rows.n)
		return rc;
	r = DCP_ITEMS(w->rows, struct row);
	qsort(r, DCP_NITEMS(w->rows, struct row), sizeof(*r), by_name);
	for (size_t i = 0; i < DCP_NITEMS(w->rows, struct row); i++) {
		if (n && strcmp(r[n - 1].name, r[i].name) == 0) {
			r[n - 1].tensors += r[i].tensors;
			r[n - 1].nbytes += r[i].nbytes;
			r[n - 1].unique += r[i].unique;
		} else {
			r[n++] = r[i];
		}
	}
	w->rows.n = n * sizeof(*r);
	qsort(r, n, sizeof(*r), by_size);
	return 0;
}

static enum cmd_exit print_rows(struct counting *w)
{
	enum { BAR = 20 };
	/* clang-format off */
	static const struct out_field fields[] = {
		{ "name", "NAME", OUT_NAME }, { "tensors", "TENSORS", OUT_NUMBER },
		{ "nbytes", "SIZE", OUT_BYTES }, { "unique", "UNIQUE", OUT_BYTES },
		{ NULL, "PART", OUT_PART }, { NULL, "" }, { NULL }
	};
	/* clang-format on */
	const struct row *r = DCP_ITEMS(w->rows, struct row);
	size_t n = DCP_NITEMS(w->rows, struct row);
	struct row all = { .name = "" };
	struct out *o = &w->out;
	char text[OUT_SIZE];

	for (size_t i = 0; i < n; i++) {
		all.nbytes += r[i].nbytes;
		all.unique += r[i].unique;
	}
	out_list(o, NULL, fields);
	for (size_t i = 0; i < n; i++) {
		double part = all.nbytes ? (double)r[i].nbytes / (double)all.nbytes : 0;
		char bar[BAR + 1] = "";

		memset(bar, '#', (size_t)(part * BAR + 0.5));
		snprintf(text, sizeof(text), "%.1f%%", 100 * part);
		out_row(o);
		out_put_str(o, "name", r[i].name);
		out_put_u64(o, "tensors", r[i].tensors);
		out_put_u64(o, "nbytes", r[i].nbytes);
		out_put_u64(o, "unique", r[i].unique);
		out_put_str(o, "PART", text);
		out_put_str(o, "", bar);
		out_row_end(o);
	}
	out_list_end(o, true);
	if (o->form == OUT_TEXT) {
		dcp_buf_printf(&o->buf, "%s", out_size(text, all.nbytes));
		dcp_buf_printf(&o->buf, ", of which %s are unique\n",
			       out_size(text, all.unique));
		if (w->unknown)
			dcp_buf_printf(&o->buf,
				       "%llu tensor%s may equal others: dcpfs verify finds "
				       "out\n",
				       (unsigned long long)w->unknown, dcp_s(w->unknown));
	}
	return out_flush(o);
}

static enum cmd_exit run_du(const void *opts_in, const struct opt_args *args)
{
	const struct du_opts *o = opts_in;
	struct counting w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	enum cmd_exit code = walk_open(&w.p, args, &o->pick, "du");
	int rc;

	out_init(&w.out, o->form);
	if (code == CMD_OK)
		code = walk_keys(&w.p, &o->keys, &w.keys);
	if (code == CMD_OK) {
		rc = count_rows(&w);
		code = rc < 0 ? cmd_fail(CMD_ENV, "du: %s", strerror(-rc)) : print_rows(&w);
	}
	free(w.again);
	dcp_buf_finish(&w.rows);
	walk_keys_finish(&w.keys);
	dcp_arena_finish(&w.arena);
	out_finish(&w.out);
	pick_finish(&w.p);
	return code;
}

const struct cmd cmd_du = {
	.name = "du",
	.what = "count bytes by prefix, dtype or file",
	.about = "Print the bytes of tensors by the beginning of their keys, by dtype, or by "
		 "file. Tied tensors are unique once, and so are tensors whose digests, known "
		 "from dcpfs verify, are equal.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct du_opts),
	.run = run_du,
	.examples = { "dcpfs du /data/run1 --depth 2", "dcpfs du /data/run1 2000 --by file" },
};
