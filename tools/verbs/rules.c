/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/text.h"
#include "core/hf/hf.h"
#include "core/rules/rules.h"
#include "fs/text/text.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

enum { SHOWN = 20 }; /* keys of each kind that are printed */

struct rules_opts {
	int form;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	{ HF_OPT_ASSETS(struct rules_opts, pick.hf) },
	{ 0, "config", "FILE", "a config.json; default: found beside the weights", OPT_TEXT,
	  OPT_FILE, .off = offsetof(struct rules_opts, pick.hf.config) },
	PICK_OPTS_ROWS(struct rules_opts),
	OPT_END
};

static const struct opt_operand operands[] = { { "list|show|check", false, OPT_ANY },
					       { "RULES", true, OPT_RULES },
					       { "SOURCE", true, OPT_DIR },
					       { "VERSION", true, OPT_ANY },
					       { 0 } };

/* ---- list, show ---- */

static enum cmd_exit list_presets(struct out *o)
{
	static const struct out_field fields[] = { { "name", "NAME" },
						   { "about", "FOR", OUT_NAME },
						   { NULL } };
	struct dcp_rules_preset p;

	out_list(o, NULL, fields);
	for (size_t i = 0; dcp_rules_preset_at(i, &p); i++) {
		out_row(o);
		out_put_str(o, "name", p.name);
		out_put_str(o, "about", p.about);
		out_row_end(o);
	}
	out_list_end(o, true);
	return out_flush(o);
}

static enum cmd_exit show_preset(struct out *o, const char *name)
{
	struct dcp_rules_preset p;
	struct dcp_rules *r;
	struct dcp_err err = { 0 };

	if (!dcp_rules_preset_named(name, &p)) {
		dcp_rules_preset(name, &r, &err);
		return cmd_fail(CMD_NO, "%s (see: dcpfs rules list)", err.msg);
	}
	dcp_buf_str(&o->buf, p.text);
	return out_flush(o);
}

/* ---- check ---- */

struct check {
	struct pick p;
	struct out *o;
	uint64_t said, wrong;
	const char *last; /* kind that was printed last */
};

static uint64_t fact_of(const struct check *c, const char *name)
{
	return dcp_index_meta_number(dcp_version_index(c->p.ck.v), name);
}

/* Print a key that is left out, or broken. */
static void print_key(struct check *c, const char *what, const char *key, const char *why)
{
	c->wrong++;
	if (c->o->form != OUT_TEXT) {
		out_row(c->o);
		out_put_str(c->o, "what", what);
		out_put_str(c->o, "key", key);
		out_put_str(c->o, "error", why);
		out_row_end(c->o);
	} else if (c->said++ < SHOWN) {
		dcp_buf_printf(&c->o->buf, "%s: ", what);
		out_text(&c->o->buf, key);
		dcp_buf_str(&c->o->buf, ": ");
		out_text(&c->o->buf, why);
		dcp_buf_str(&c->o->buf, "\n");
	}
}

static int on_tensor(void *ctx, const struct dcp_row *row, const char *why)
{
	print_key(ctx, "broken", row->key, why ? why : "");
	return 0;
}

static int on_object(void *ctx, const struct dcp_row *row, const char *why)
{
	print_key(ctx, "left out", row->key, why ? why : "");
	return 0;
}

/* Print how many keys of the kind were not printed. */
static void print_rest(struct check *c)
{
	if (c->said > SHOWN)
		dcp_buf_printf(&c->o->buf, "and %llu more\n",
			       (unsigned long long)(c->said - SHOWN));
}

static int print_all(struct check *c, enum dcp_row_kind kind)
{
	int rc;

	c->said = 0;
	rc = dcpfs_describe_broken(c->p.ck.v, kind,
				   kind == DCP_ROW_TENSOR ? on_tensor : on_object, c);
	print_rest(c);
	return rc;
}

static void print_unused(struct check *c, const char *rules)
{
	const char *lines = dcp_index_meta(dcp_version_index(c->p.ck.v), "unused");
	struct dcp_rules_preset p;

	/* A preset has rules for more than one model. */
	if (lines && c->o->form == OUT_TEXT && !dcp_rules_preset_named(rules, &p))
		dcp_buf_printf(&c->o->buf, "no key fits the rule%s in line%s %s\n",
			       strchr(lines, ' ') ? "s" : "", strchr(lines, ' ') ? "s" : "",
			       lines);
	if (c->o->form != OUT_JSON)
		return;
	dcp_jsonw_put_array(&c->o->json, "unused");
	for (uint64_t n; lines && dcp_take_number(&lines, NULL, DCP_ANY_DIGITS, &n);
	     lines += *lines != '\0')
		dcp_jsonw_u64(&c->o->json, n);
	dcp_jsonw_end(&c->o->json);
}

static void print_expected(void *ctx, const char *what, const char *key, const char *text)
{
	struct check *c = ctx;

	if (c->last && strcmp(c->last, what) != 0) {
		print_rest(c);
		c->said = 0;
	}
	c->last = what;
	print_key(c, what, key, text);
}

/* Compare with the model of config.json. Findings about the whole model follow those about keys. */
static int expect_model(struct check *c, struct dcp_expected *x)
{
	struct dcp_err err = { 0 };
	int rc;

	*x = (struct dcp_expected){ .say = print_expected, .ctx = c };
	c->said = 0;
	rc = dcp_hf_expect(c->p.ck.v, x, &err);
	print_rest(c);
	return rc;
}

static void print_model(struct check *c, const struct dcp_expected *x, int known)
{
	struct dcp_jsonw *w = &c->o->json;
	struct dcp_buf *b = &c->o->buf;
	const char *from = dcp_hf_inferred(c->p.ck.v);

	if (c->o->form == OUT_JSON && from)
		dcp_jsonw_put_str(w, "config_from", from);
	if (c->o->form == OUT_JSON && known) {
		dcp_jsonw_put_object(w, "model");
		dcp_jsonw_put_u64(w, "tensors", x->tensors);
		dcp_jsonw_put_u64(w, "missing", x->missing);
		dcp_jsonw_put_u64(w, "misshaped", x->misshaped);
		dcp_jsonw_put_u64(w, "foreign", x->foreign);
		dcp_jsonw_put_u64(w, "retyped", x->retyped);
		dcp_jsonw_end(w);
	}
	if (c->o->form != OUT_TEXT)
		return;
	if (from)
		dcp_buf_printf(b, "no file is its config.json: inferred from %s\n", from);
	if (!known && x->family) {
		dcp_buf_str(b, "shapes of ");
		out_text(b, x->family);
		dcp_buf_str(b, " are not known: not checked\n");
	} else if (!known) {
		dcp_buf_str(b, "no config.json of a model: not checked; --config FILE "
			       "names one\n");
	}
	if (!known)
		return;
	dcp_buf_printf(
		b,
		"config.json: %llu tensors, %llu missing, %llu of another shape, %llu that "
		"the model does not have\n",
		(unsigned long long)x->tensors, (unsigned long long)x->missing,
		(unsigned long long)x->misshaped, (unsigned long long)x->foreign);
	if (x->retyped)
		dcp_buf_printf(b,
			       "%llu tensors are not %s as config.json says: see --hf-dtype\n",
			       (unsigned long long)x->retyped, dcp_dtype_info(x->dtype)->torch);
}

static enum cmd_exit report_check(struct check *c)
{
	static const struct out_field fields[] = {
		{ "what" }, { "key" }, { "error" }, { NULL }
	};
	static const char *const facts[] = { "mapped", "dropped", "unmatched", "collisions",
					     "failed" };
	const char *rules = dcp_index_meta(dcp_version_index(c->p.ck.v), "rules");
	struct dcp_jsonw *w = &c->o->json;
	struct dcp_expected x;
	enum cmd_exit code;
	uint64_t broken;
	int rc, known;

	rules = rules ? rules : "";
	if (c->o->form == OUT_JSON) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "rules", rules);
		dcp_jsonw_put_str(w, "version", dcp_version_name(c->p.ck.v));
		for (size_t i = 0; i < DCP_LEN(facts); i++)
			dcp_jsonw_put_u64(w, facts[i], fact_of(c, facts[i]));
		hf_put_model_json(c->p.ck.v, w);
	}
	out_list(c->o, "keys", fields);
	rc = print_all(c, DCP_ROW_OBJECT);
	if (rc == 0)
		rc = print_all(c, DCP_ROW_TENSOR);
	broken = c->wrong - fact_of(c, "unmatched");
	known = rc < 0 ? rc : expect_model(c, &x);
	if (known < 0)
		return cmd_fail(cmd_exit_of(known), "%s: its index cannot be read", rules);
	out_list_end(c->o, false);
	print_unused(c, rules);
	if (c->o->form == OUT_TEXT) {
		out_text(&c->o->buf, dcp_version_name(c->p.ck.v));
		dcp_buf_str(&c->o->buf, " by ");
		out_text(&c->o->buf, rules);
		dcp_buf_printf(
			&c->o->buf,
			": %llu key%s come out, %llu dropped, %llu left out, %llu broken\n",
			(unsigned long long)fact_of(c, "mapped"), dcp_s(fact_of(c, "mapped")),
			(unsigned long long)fact_of(c, "dropped"),
			(unsigned long long)fact_of(c, "unmatched"),
			(unsigned long long)broken);
	}
	if (c->o->form == OUT_TEXT)
		hf_put_model(c->p.ck.v, &c->o->buf);
	print_model(c, &x, known);
	if (c->o->form == OUT_JSON)
		dcp_jsonw_end(w);
	code = out_flush(c->o);
	return code == CMD_OK && c->wrong ? CMD_NO : code;
}

static enum cmd_exit check_rules(struct out *o, const struct rules_opts *ro, const char *rules,
				 const char *source, const char *version)
{
	const struct opt_args args = { .operand = { source, version } };
	struct pick_opts pick = ro->pick;
	struct check c = { .o = o };
	enum cmd_exit code;

	pick.hf.on = pick.hf.even_none = true;
	pick.hf.rules = strcmp(rules, "auto") == 0 ? NULL : rules;
	pick.cache_limit = DCP_UNPACK_CACHE;
	code = pick_path(source);
	if (code != CMD_OK)
		return code;
	code = pick_open(&c.p, &args, &pick);
	if (code == CMD_OK)
		code = report_check(&c);
	pick_finish(&c.p);
	return code;
}

static enum cmd_exit run_rules(const void *opts_in, const struct opt_args *args)
{
	const struct rules_opts *ro = opts_in;
	const char *word[OPT_MAX_OPERANDS + 1] = { NULL };
	enum cmd_exit code;
	struct out o;
	size_t n = 0;

	/* opt leaves out operands from the left, this verb from the right. */
	for (size_t i = 0; i < OPT_MAX_OPERANDS; i++)
		if (args->operand[i])
			word[n++] = args->operand[i];
	out_init(&o, ro->form);
	if (strcmp(word[0], "list") == 0 && n == 1)
		code = list_presets(&o);
	else if (strcmp(word[0], "show") == 0 && n == 2)
		code = show_preset(&o, word[1]);
	else if (strcmp(word[0], "check") == 0 && n >= 3)
		code = check_rules(&o, ro, word[1], word[2], word[3]);
	else
		code = cmd_fail(CMD_USAGE, "rules list, rules show NAME, or rules check RULES "
					   "SOURCE [VERSION]");
	out_finish(&o);
	return code;
}

const struct cmd cmd_rules = {
	.name = "rules",
	.what = "list, show and check rules that rename keys",
	.about = "list: the presets that ship. show NAME: the text of one, to copy and change. "
		 "check RULES SOURCE [VERSION]: what becomes of the keys of a checkpoint, "
		 "which are left out, which cannot be made, and why. RULES is a preset, a "
		 "file, or auto for what a mount's hf/ would take. Where config.json is of a "
		 "known family, also which tensors are missing, misshaped or foreign to it.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct rules_opts),
	.run = run_rules,
	.examples = { "dcpfs rules show torchtitan-llama3 > mine.rules",
		      "dcpfs rules check mine.rules /data/run1 latest",
		      "dcpfs rules check auto /data/run1" },
};
