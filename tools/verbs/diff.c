/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/model/measure/stats.h"
#include "core/model/name.h"
#include "tools/cmd.h"
#include "tools/export/export.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/svg.h"
#include "tools/trust/trust.h"

struct diff_opts {
	int form, by;
	bool quick;
	const char *rtol, *atol, *file; /* @file: of --svg */
	uint64_t jobs;
	struct opt_texts keys;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	WALK_OPT_KEYS(struct diff_opts),
	WALK_OPT_BY(struct diff_opts),
	{ 'q', "quick", NULL, "read no further than the first difference of a tensor", OPT_FLAG,
	  .off = offsetof(struct diff_opts, quick) },
	{ 0, "rtol", "R", "numbers may differ by R times the number in B", OPT_TEXT,
	  .off = offsetof(struct diff_opts, rtol) },
	{ 0, "atol", "D", "and by D; with either, dtypes may differ", OPT_TEXT,
	  .off = offsetof(struct diff_opts, atol) },
	WALK_OPT_JOBS(struct diff_opts),
	{ PICK_CACHE_ROW(struct diff_opts) },
	{ PICK_NO_CACHE_ROW(struct diff_opts) },
	PICK_OPTS_HF(struct diff_opts),
	PICK_OPT_PARTIAL(struct diff_opts),
	PICK_OPTS_ROWS(struct diff_opts),
	PICK_OPT_SVG(struct diff_opts, "draw layers and their parameters"),
	OPT_END
};

static const struct opt_operand operands[] = { { "A", false, OPT_SOURCE },
					       { "VERSION", true, OPT_VERSION },
					       { "B", false, OPT_SOURCE },
					       { "VERSION", true, OPT_VERSION },
					       { 0 } };

struct differing {
	const struct diff_opts *o;
	struct pick p[2];
	struct walk_keys keys[2];
	struct comparing c;
	struct dcp_buf objects; /* struct pair: of objects that differ */
	bool no_objects;        /* they are not compared */
	struct dcp_arena arena;
	struct out out;
};

/* ---- objects ---- */

struct objects {
	struct differing *w;
	unsigned side;
};

static int compare_object(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	const struct objects *s = ctx;
	struct differing *w = s->w;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_index *ix = dcp_version_index(w->p[s->side].ck.v);
	struct dcp_index *other = dcp_version_index(w->p[!s->side].ck.v);
	struct pair p = { .state = CMP_OBJECT };
	struct dcp_row found;
	struct dcp_object a, b;
	int rc;

	if (w->o->keys.n) {
		bool wanted = false;

		for (size_t i = 0; i < w->o->keys.n; i++)
			wanted = wanted || dcp_name_listed(&w->o->keys.v[i], 1, row->key);
		if (!wanted)
			return 0;
	}
	rc = dcp_index_by_key(other, DCP_ROW_OBJECT, row->key, &arena, &found);
	if (rc == -ENOENT) {
		p.state = s->side ? CMP_ONLY_B : CMP_ONLY_A;
	} else if (rc < 0 || s->side) {
		return rc; /* the other side has compared it */
	} else {
		rc = dcp_index_object(ix, row->id, &arena, &a, NULL);
		if (rc == 0)
			rc = dcp_index_object(other, found.id, &arena, &b, NULL);
		if (rc < 0)
			return rc;
		if (a.json && b.json && strcmp(a.json, b.json) == 0 &&
		    strcmp(a.type ? a.type : "", b.type ? b.type : "") == 0)
			return 0;
		if (!a.json || !b.json)
			p.state = CMP_UNREAD;
	}
	p.name = dcp_arena_strdup(&w->arena, row->key);
	dcp_buf_add(&w->objects, &p, sizeof(p));
	return p.name ? dcp_buf_error(&w->objects) : -ENOMEM;
}

/* Objects have the same form only in the same format. */
static int compare_objects(struct differing *w)
{
	int rc = 0;

	w->no_objects = w->p[0].ck.base || w->p[1].ck.base ||
			w->p[0].ck.found->format != w->p[1].ck.found->format;
	for (unsigned side = 0; side < 2 && rc == 0 && !w->no_objects; side++) {
		struct objects s = { w, side };

		rc = dcp_each_row(dcp_version_index(w->p[side].ck.v), DCP_ROW_OBJECT,
				  compare_object, &s);
	}
	return rc;
}

/* ---- groups ---- */

static int group_pairs(struct differing *w)
{
	size_t n = 0;

	for (size_t i = 0; i < w->c.n; i++) {
		dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
		struct pair *p = &w->c.pairs[i];

		walk_group((enum walk_by)w->o->by, p->a ? p->a : p->b, &name);
		p->name = name.p ? dcp_arena_strdup(&w->arena, name.p) : NULL;
		if (!p->name)
			return -ENOMEM;
	}
	if (w->c.n)
		qsort(w->c.pairs, w->c.n, sizeof(*w->c.pairs), compare_by_name);
	for (size_t i = 0; i < w->c.n; i++) {
		struct pair *p = &w->c.pairs[i], *to = n ? &w->c.pairs[n - 1] : NULL;

		if (!to || strcmp(to->name, p->name) != 0) {
			w->c.pairs[n++] = *p;
			continue;
		}
		dcp_difference_join(&to->d, &p->d);
		to->tensors++;
		/* States are in order of severity: take the worst. */
		to->state = DCP_MAX(to->state, p->state);
	}
	w->c.n = n;
	return 0;
}

/* ---- printing ---- */

/* "ulps of changed numbers: 1 91%, 2-3 8%, 4-7 1%" */
static void put_ulps_line(const struct differing *w, struct dcp_buf *b)
{
	uint64_t ulps[DCP_DIFFER_ULPS] = { 0 }, all = 0;

	for (size_t i = 0; i < w->c.n; i++)
		for (size_t k = 1; k < DCP_DIFFER_ULPS; k++) {
			ulps[k] += w->c.pairs[i].d.ulps[k];
			all += w->c.pairs[i].d.ulps[k];
		}
	if (!all || w->o->quick)
		return;
	dcp_buf_str(b, "ulps between changed numbers:");
	for (unsigned k = 1; k < DCP_DIFFER_ULPS; k++) {
		uint64_t from = 1ull << (k - 1);

		if (!ulps[k])
			continue;
		dcp_buf_printf(b, " %" PRIu64, from);
		if (k > 1)
			dcp_buf_printf(b, "-%" PRIu64, from * 2 - 1);
		dcp_buf_printf(b, ": %.3g%%;", 100.0 * (double)ulps[k] / (double)all);
	}
	b->p[--b->n] = '\0';
	dcp_buf_str(b, "\n");
}

static void put_total(const struct differing *w, struct out *o)
{
	uint64_t count[COMPARE_STATES] = { 0 }, elements = 0, changed = 0, nans = 0;
	struct dcp_buf *b = &o->buf;
	const char *sep = "";
	char n[32], m[32], size[OUT_SIZE];

	for (size_t i = 0; i < w->c.n; i++) {
		count[w->c.pairs[i].state]++;
		elements += w->c.pairs[i].d.n;
		changed += w->c.pairs[i].d.changed;
		nans += w->c.pairs[i].d.nans;
	}
	for (size_t s = 0; s < COMPARE_STATES; s++) {
		if (!count[s])
			continue;
		dcp_buf_printf(b, "%s%s %s", sep, out_count(n, count[s]), compare_states[s]);
		sep = ", ";
	}
	if (!w->o->quick && changed)
		dcp_buf_printf(b, "; %s of %s elements changed (%.4g%%)", out_count(n, changed),
			       out_count(m, elements),
			       100.0 * (double)changed / (double)elements);
	dcp_buf_str(b, w->c.n ? "\n" : "no tensors\n");
	if (w->c.skipped)
		dcp_buf_printf(
			b,
			"%s of equal tensors were not read: digests of both sides are known\n",
			out_size(size, w->c.skipped));
	put_ulps_line(w, b);
	if (nans)
		dcp_buf_printf(
			b,
			"%s changed number%s %s NaN or infinite on one side or both, and "
			"in no difference\n",
			out_count(n, nans), dcp_s(nans), nans == 1 ? "is" : "are");
	if (w->no_objects && !w->p[0].ck.base)
		dcp_buf_str(b, "objects were not compared, as the formats differ\n");
}

static bool is_same(const struct pair *p)
{
	return p->state == CMP_EQUAL || p->state == CMP_CLOSE;
}

static int draw_strip(struct differing *w)
{
	dcp_auto_buf struct dcp_buf title = DCP_BUF_INIT;

	dcp_buf_printf(&title, "from %s to %s", w->p[0].ck.name, w->p[1].ck.name);
	dcp_buf_add(&title, "", 1);
	return dcp_buf_error(&title) < 0 ? -ENOMEM : compare_strip(&w->c, title.p, &w->out.buf);
}

static enum cmd_exit print_pairs(struct differing *w)
{
	struct out *o = &w->out;
	size_t nobjects = DCP_NITEMS(w->objects, struct pair);
	bool same = nobjects == 0, rows;
	enum cmd_exit code;

	out_list(o, NULL, compare_fields);
	for (size_t i = 0; i < w->c.n + nobjects; i++) {
		const struct pair *p =
			i < w->c.n ? &w->c.pairs[i]
				   : &DCP_ITEMS(w->objects, struct pair)[i - w->c.n];

		same = same && is_same(p);
		if (p->state != CMP_EQUAL || o->form != OUT_TEXT)
			compare_put_row(o, p, i < w->c.n ? "tensor" : "object", w->o->quick);
	}
	rows = o->table.ncells;
	out_list_end(o, false);
	if (o->form == OUT_TEXT) {
		dcp_buf_str(&o->buf, rows ? "\n" : "");
		put_total(w, o);
	}
	if (o->form == OUT_SVG && draw_strip(w) < 0)
		return cmd_fail(CMD_ENV, "diff: %s", strerror(ENOMEM));
	code = o->form == OUT_SVG
		       ? export_put_file(o, "diff", w->o->file, SVG_HEAD, &w->p[0], &w->p[1])
		       : out_flush(o);
	if (w->c.code != CMD_OK)
		return w->c.code;
	return code == CMD_OK && !same ? CMD_NO : code;
}

/* ---- the two sides ---- */

static enum cmd_exit read_tolerance(const char *name, const char *text, double *out)
{
	const char *end;

	*out = 0;
	if (!text)
		return CMD_OK;
	*out = dcp_read_float(text, &end);
	return *text && !*end && *out >= 0 && isfinite(*out)
		       ? CMD_OK
		       : cmd_fail(CMD_USAGE, "diff: --%s takes a number from 0, not \"%s\"",
				  name, text);
}

/* "A B", "SOURCE VERSION VERSION", "A VERSION B", "A B VERSION", "A VERSION B VERSION". */
static void take_words(const struct opt_args *args, const char *source[2],
		       const char *version[2])
{
	const char *word[4];
	size_t n = 0;

	for (size_t i = 0; i < 4; i++)
		if (args->operand[i])
			word[n++] = args->operand[i];
	source[0] = word[0];
	version[0] = version[1] = NULL;
	source[1] = word[1];
	if (n == 4) {
		version[0] = word[1];
		source[1] = word[2];
		version[1] = word[3];
	} else if (n == 3 && access(word[1], F_OK) == 0) {
		version[1] = word[2];
	} else if (n == 3) {
		bool path = access(word[2], F_OK) == 0;

		version[0] = word[1];
		source[1] = path ? word[2] : word[0];
		version[1] = path ? NULL : word[2];
	} else if (access(word[1], F_OK) != 0 && !strchr(word[1], '/')) {
		source[1] = word[0]; /* the newest, and that version */
		version[1] = word[1];
	}
}

static enum cmd_exit open_both(struct differing *w, const struct opt_args *args)
{
	const char *source[2], *version[2];
	enum cmd_exit code = CMD_OK;

	walk_prepare();
	take_words(args, source, version);
	for (unsigned s = 0; s < 2 && code == CMD_OK; s++) {
		code = pick_source(&w->p[s], source[s], &w->o->pick, false);
		if (code == CMD_OK)
			code = pick_version(&w->p[s], version[s]);
	}
	return code;
}

/* A word of --keys may name keys of one side only. */
static enum cmd_exit read_keys(struct differing *w)
{
	const struct opt_texts none = { .n = 0 };
	enum cmd_exit code = CMD_OK;

	for (unsigned s = 0; s < 2 && code == CMD_OK; s++) {
		struct walk_key *k;
		size_t n = 0;

		code = walk_keys(&w->p[s], &none, &w->keys[s]);
		k = WALK_KEYS(&w->keys[s]);
		for (size_t i = 0;
		     code == CMD_OK && w->o->keys.n && i < WALK_NKEYS(&w->keys[s]); i++)
			if (dcp_name_listed(w->o->keys.v, w->o->keys.n, k[i].key))
				k[n++] = k[i];
		if (w->o->keys.n)
			w->keys[s].all.n = n * sizeof(*k);
	}
	for (size_t i = 0; i < w->o->keys.n && code == CMD_OK; i++) {
		bool named = false;

		for (unsigned s = 0; s < 2; s++)
			for (size_t k = 0; k < WALK_NKEYS(&w->keys[s]) && !named; k++)
				named = dcp_name_listed(&w->o->keys.v[i], 1,
							WALK_KEYS(&w->keys[s])[k].key);
		if (!named)
			code = pick_no_match(&w->p[0], w->o->keys.v[i], "tensor");
	}
	return code;
}

static enum cmd_exit run_diff(const void *opts_in, const struct opt_args *args)
{
	const struct diff_opts *o = opts_in;
	struct differing w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	enum cmd_exit code = read_tolerance("rtol", o->rtol, &w.c.tolerance.rtol);
	int rc;

	for (unsigned i = 0; i < 2; i++) {
		w.c.p[i] = &w.p[i];
		w.c.keys[i] = &w.keys[i];
	}
	w.c.tolerates = o->rtol || o->atol;
	w.c.quick = o->quick;
	w.c.jobs = (unsigned)o->jobs;
	out_init(&w.out, o->form);
	if (code == CMD_OK && o->form == OUT_SVG && (o->by || o->quick))
		code = cmd_fail(CMD_USAGE, "diff: --svg draws how much has changed of each "
					   "layer; leave --by and --quick out");
	if (code == CMD_OK && o->form == OUT_SVG)
		code = pick_check_drawing("diff", o->file);
	if (code == CMD_OK)
		code = read_tolerance("atol", o->atol, &w.c.tolerance.atol);
	if (code == CMD_OK)
		code = open_both(&w, args);
	if (code == CMD_OK)
		code = read_keys(&w);
	if (code == CMD_OK) {
		rc = compare_run(&w.c);
		if (rc == 0)
			rc = compare_objects(&w);
		if (rc == 0 && o->by != WALK_BY_KEY)
			rc = group_pairs(&w);
		code = rc < 0 ? cmd_fail(CMD_ENV, "diff: %s", strerror(-rc)) : print_pairs(&w);
	}
	free(w.c.pairs);
	dcp_buf_finish(&w.objects);
	dcp_arena_finish(&w.arena);
	out_finish(&w.out);
	for (unsigned s = 0; s < 2; s++) {
		walk_keys_finish(&w.keys[s]);
		pick_finish(&w.p[s]);
	}
	return code;
}

const struct cmd cmd_diff = {
	.name = "diff",
	.what = "compare two versions: keys, shapes, dtypes, numbers",
	.about = "Compare A and B, each a SOURCE and a VERSION of it, in whatever format and "
		 "however sharded. Prints how many elements changed, which is the first, and "
		 "how far apart they are. Exits 0 when all are equal, 1 when not.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct diff_opts),
	.run = run_diff,
	.examples = { "dcpfs diff /data/run1 1000 2000 --by layer",
		      "dcpfs diff /data/run1 /data/run1-hf --hf",
		      "dcpfs diff a.safetensors b.safetensors --rtol 1e-3 --json" },
};
