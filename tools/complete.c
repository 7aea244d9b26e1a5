/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion for three shells. The candidates are computed here, from the tables and from SOURCE;
 * the shells' scripts only hand over the words and show the answer. Foreign names pass through the
 * scripts as data. Names that cannot be shown as they are are left out.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/checkpoint/mounts.h"
#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "core/parse/layout/layout.h"
#include "core/rules/rules.h"
#include "core/store/layouts/layouts.h"
#include "core/write/write.h"
#include "tools/cmd.h"
#include "tools/load/error.h"
#include "tools/out.h"
#include "tools/pick.h"

/* The word at the cursor: @lead ("--as=") stays, @word is completed. */
struct cursor {
	struct out *o;
	char lead[256];
	const char *word;
	struct opt_args args; /* operands before it, as far as they are known */
};

/* Offer @before and @name together if the word begins so. */
static void offer_word(const struct cursor *c, const char *before, const char *name,
		       const char *what)
{
	size_t n = strlen(before), len = strlen(c->word);

	if (!dcp_utf8_all_shown(name) || strncmp(c->word, before, DCP_MIN(n, len)) != 0 ||
	    (len > n && strncmp(c->word + n, name, len - n) != 0))
		return;
	dcp_buf_printf(&c->o->buf, "%s%s%s", c->lead, before, name);
	if (what) {
		dcp_buf_str(&c->o->buf, "\t");
		out_text(&c->o->buf, what);
	}
	dcp_buf_str(&c->o->buf, "\n");
}

/* ---- paths ---- */

/* Would a file of this name be a SOURCE? Names only: nothing is opened. */
static bool is_source(const char *name)
{
	struct dcp_dirent e = { .name = name };
	const struct dcp_dir dir = { .path = "", .entries = &e, .n = 1, .is_file = true };
	enum dcp_match match;

	return dcp_format_probe(&dir, &match, NULL, 0) && strchr(name + 1, '.');
}

static bool is_layout(const char *name)
{
	return dcp_has_extension(name, ".dcpl");
}

static bool is_regions(const char *name)
{
	return is_layout(name) || dcp_has_extension(name, DCP_REGIONS_EXT);
}

static bool is_any(const char *name)
{
	return true;
}

/* Directories, and files that @takes (NULL: none). "~/" stays as it was typed. */
static void offer_paths(const struct cursor *c, bool (*takes)(const char *name))
{
	const char *slash = strrchr(c->word, '/'), *home = getenv("HOME");
	size_t n = slash ? (size_t)(slash - c->word) + 1 : 0;
	dcp_auto_free char *before = strndup(c->word, n);
	dcp_auto_buf struct dcp_buf at = DCP_BUF_INIT;
	const struct dirent *e;
	DIR *dir;

	if (home && strncmp(c->word, "~/", 2) == 0)
		dcp_buf_printf(&at, "%s/%.*s", home, (int)n - 2, c->word + 2);
	else
		dcp_buf_printf(&at, "%.*s", (int)n, n ? c->word : "");
	dir = before && !dcp_buf_error(&at) ? opendir(at.n ? at.p : ".") : NULL;
	while (dir && (e = readdir(dir))) {
		char name[sizeof(e->d_name) + 1];
		struct stat st;

		if ((*e->d_name == '.' && c->word[n] != '.') || !strcmp(e->d_name, ".") ||
		    !strcmp(e->d_name, "..") || fstatat(dirfd(dir), e->d_name, &st, 0) < 0)
			continue;
		snprintf(name, sizeof(name), "%s%s", e->d_name, S_ISDIR(st.st_mode) ? "/" : "");
		if (S_ISDIR(st.st_mode) || (takes && takes(e->d_name)))
			offer_word(c, before, name, NULL);
	}
	if (dir)
		closedir(dir);
}

/* ---- versions and keys of SOURCE ---- */

static bool scan_source(const struct cursor *c, struct pick *p)
{
	const char *source = c->args.operand[PICK_SOURCE], *home = getenv("HOME");
	static char path[4096];

	if (!source)
		return false;
	if (home && strncmp(source, "~/", 2) == 0) {
		snprintf(path, sizeof(path), "%s%s", home, source + 1);
		source = path;
	}
	return pick_source(p, source, &pick_plain, false) == CMD_OK;
}

static void offer_versions(const struct cursor *c)
{
	struct pick p = { 0 };

	if (scan_source(c, &p)) {
		offer_word(c, "", "latest", "the newest complete one");
		for (size_t i = 0; i < p.ck.scan.n; i++)
			offer_word(c, "", p.ck.scan.found[i].name,
				   p.ck.scan.found[i].complete ? p.ck.scan.found[i].format->name
							       : "incomplete");
	}
	pick_finish(&p);
}

static int offer_key(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	offer_word(ctx, "", row->key, NULL);
	return 0;
}

static void offer_keys(struct cursor *c)
{
	struct pick p = { 0 };

	if (scan_source(c, &p) && pick_version(&p, c->args.operand[PICK_VERSION]) == CMD_OK)
		dcp_all_rows(dcp_version_index(p.ck.v), offer_key, c);
	pick_finish(&p);
}

/* "fsdp8", "tp4:llama", and the stems that SOURCE and the user have. */
static void offer_layouts(const struct cursor *c, bool (*takes)(const char *name))
{
	static const char *const sizes[] = { "2", "4", "8", "16", "32", "64" };
	dcp_auto_free char *config = load_config_dir();
	struct dcp_layouts *layouts = NULL;
	const struct dcp_named_layout *l;
	const char *colon = strchr(c->word, ':');
	struct pick p = { 0 };

	for (size_t i = 0; i < DCP_LEN(sizes); i++) {
		offer_word(c, "fsdp", sizes[i], "every tensor in equal parts");
		offer_word(c, "dim1x", sizes[i], "cut along dimension 1");
	}
	for (size_t i = 0; i < 3 && !colon; i++) {
		char tp[8];

		snprintf(tp, sizeof(tp), "tp%s:", sizes[i]);
		offer_word(c, "", tp, "by the rules of a model");
	}
	for (size_t i = 0; colon && dcp_layout_preset(i); i++) {
		dcp_auto_free char *before = strndup(c->word, (size_t)(colon + 1 - c->word));

		if (before && strncmp(before, "tp", 2) == 0)
			offer_word(c, before, dcp_layout_preset(i), NULL);
	}
	if (scan_source(c, &p)) {
		if (dcp_checkpoint_layouts(&p.ck, NULL, config, NULL, &layouts, NULL) == 0)
			for (size_t i = 0; (l = dcp_layouts_at(layouts, i)); i++)
				offer_word(c, "", l->name, l->file);
		dcp_layouts_destroy(layouts);
	}
	pick_finish(&p);
	offer_paths(c, takes);
}

static void offer_rules(const struct cursor *c)
{
	struct dcp_rules_preset p;

	for (size_t i = 0; dcp_rules_preset_at(i, &p); i++)
		offer_word(c, "", p.name, p.about);
	offer_paths(c, is_any);
}

static void offer_mount(void *ctx, const char *point, const struct dcp_mount *m)
{
	if (strcmp(m->fstype, DCPFS_FSTYPE) == 0)
		offer_word(ctx, "", point, dcp_utf8_all_shown(m->source) ? m->source : NULL);
}

/* ---- the tables ---- */

static void offer_verbs(const struct cursor *c)
{
	for (size_t i = 0; cmd_table[i]; i++)
		offer_word(c, "", cmd_table[i]->name, cmd_table[i]->what);
}

static void offer_what(struct cursor *c, enum opt_what what)
{
	switch (what) {
	case OPT_COMMAND:
	case OPT_ANY:
		break;
	case OPT_FILE:
		offer_paths(c, is_any);
		break;
	case OPT_DIR:
		offer_paths(c, NULL);
		break;
	case OPT_SOURCE:
		offer_paths(c, is_source);
		break;
	case OPT_DCPL:
		offer_paths(c, is_layout);
		break;
	case OPT_VERSION:
		offer_versions(c);
		break;
	case OPT_KEY:
		offer_keys(c);
		break;
	case OPT_LAYOUT:
		offer_layouts(c, is_layout);
		break;
	case OPT_REGIONS:
		offer_layouts(c, is_regions);
		break;
	case OPT_MOUNT:
		dcp_mounts_each(offer_mount, c);
		break;
	case OPT_VERB:
		offer_verbs(c);
		break;
	case OPT_RULES:
		offer_rules(c);
		break;
	case OPT_FORMAT:
		for (size_t i = 0; dcp_write_formats[i]; i++)
			offer_word(c, "", dcp_write_formats[i]->name,
				   dcp_write_formats[i]->what);
		break;
	}
}

/* Offer a word of a comma-separated list, after the last comma. */
static void offer_list(struct cursor *c, const struct opt *sub)
{
	const char *comma = strrchr(c->word, ',');
	size_t n = comma ? (size_t)(comma - c->word) + 1 : 0;
	dcp_auto_free char *before = strndup(c->word, n);

	for (; before && sub->name; sub++) {
		char word[64];

		snprintf(word, sizeof(word), "%s%s", sub->name, sub->arg ? "=" : "");
		if (sub->kind != OPT_REFUSE && !strchr(sub->name, '*'))
			offer_word(c, before, word, sub->help);
	}
}

static void offer_value(struct cursor *c, const struct opt *o)
{
	for (size_t i = 0; o->kind == OPT_CHOICE && o->choices[i]; i++)
		offer_word(c, "", o->choices[i], NULL);
	if (o->kind == OPT_LIST)
		offer_list(c, o->sub);
	else
		offer_what(c, o->what);
}

static void offer_options(struct cursor *c, const struct opt *o)
{
	for (; o->name; o++)
		offer_word(c, "--", o->name, o->help);
	offer_word(c, "--", "quiet", "print errors and what was asked for, nothing else");
	offer_word(c, "--", "json-progress", "progress as lines of JSON on stderr");
	offer_word(c, "--", "help", "show help");
}

/* "list|show|check" */
static void offer_words(const struct cursor *c, const char *names)
{
	for (size_t n; *names; names += n + (names[n] == '|')) {
		dcp_auto_free char *word = strndup(names, n = strcspn(names, "|"));

		if (word)
			offer_word(c, "", word, NULL);
	}
}

/* Any row that the next word may be: optional ones before it may have been left out. */
static void offer_operand(struct cursor *c, const struct cmd *cmd, size_t n)
{
	const struct opt_operand *rows = cmd->operands;
	size_t optional = 0;

	for (size_t at = 0; at < OPT_MAX_OPERANDS && rows[at].name; at++) {
		if (at >= n && at - n <= optional && strchr(rows[at].name, '|'))
			offer_words(c, rows[at].name);
		else if (at >= n && at - n <= optional)
			offer_what(c, rows[at].what);
		optional += rows[at].optional;
	}
}

/* ---- the line ---- */

/* The option whose value is the word after @word; NULL: none is. */
static const struct opt *option_before(const struct cmd *cmd, const char *word)
{
	const struct opt *o = NULL;

	if (strncmp(word, "--", 2) == 0)
		o = strchr(word, '=') ? NULL
				      : opt_by_name(cmd->opts, word + 2, strlen(word + 2));
	else if (word[0] == '-' && word[1])
		o = opt_by_letter(cmd->opts, word[strlen(word) - 1]);
	return o && o->arg ? o : NULL;
}

static void complete_verb(struct cursor *c, const struct cmd *cmd, int argc, char **argv)
{
	const char *words[OPT_MAX_OPERANDS] = { NULL }, *equals;
	const struct opt *value = NULL;
	bool only_operands = false;
	size_t n = 0;

	for (int i = 0; i < argc - 1; i++) {
		const struct opt *of = value;

		value = NULL;
		if (of && of->kind == OPT_OPERAND && of->what == OPT_VERSION)
			c->args.operand[PICK_VERSION] = argv[i];
		else if (of)
			continue;
		else if (only_operands || argv[i][0] != '-' || !argv[i][1])
			n += n < OPT_MAX_OPERANDS ? (words[n] = argv[i], 1u) : 0;
		else if (strcmp(argv[i], "--") == 0)
			only_operands = true;
		else if (strncmp(argv[i], "--version=", 10) == 0)
			c->args.operand[PICK_VERSION] = argv[i] + 10;
		else
			value = option_before(cmd, argv[i]);
	}
	c->args.operand[PICK_SOURCE] = words[0];
	if (!c->args.operand[PICK_VERSION])
		c->args.operand[PICK_VERSION] = words[1];
	equals = strncmp(c->word, "--", 2) == 0 ? strchr(c->word, '=') : NULL;
	if (!value && equals && !only_operands) {
		size_t lead = (size_t)(equals + 1 - c->word);

		value = opt_by_name(cmd->opts, c->word + 2, lead - 3);
		if (!value || !value->arg || lead >= sizeof(c->lead))
			return;
		memcpy(c->lead, c->word, lead);
		c->word += lead;
	}
	if (value)
		offer_value(c, value);
	else if (c->word[0] == '-' && !only_operands)
		offer_options(c, cmd->opts);
	else
		offer_operand(c, cmd, n);
}

enum cmd_exit complete_words(int argc, char **argv)
{
	struct out o;
	struct cursor c = { .o = &o, .word = argc ? argv[argc - 1] : "" };
	const struct cmd *cmd = argc > 1 ? cmd_by_name(argv[0]) : NULL;

	out_init(&o, OUT_TEXT);
	if (cmd) {
		complete_verb(&c, cmd, argc - 1, argv + 1);
	} else if (argc > 1) {
		complete_verb(&c, &cmd_mount, argc, argv);
	} else {
		offer_verbs(&c);
		offer_word(&c, "--", "help", "show help");
		offer_word(&c, "--", "version", "show versions");
		offer_paths(&c, is_source);
	}
	return out_flush(&o);
}

enum {
	WIDE = 100, /* columns beyond which lines are hard to read */
	NARROW = 40,
	PLAIN = 80, /* where no terminal says */
};

/* A page being written; its lines have at most width columns. */
struct page {
	struct dcp_buf *b;
	size_t width, indent; /* indent: where explanations begin */
};

static struct page make_page(struct dcp_buf *b, unsigned width)
{
	size_t fits =
		!width ? PLAIN : DCP_MAX(DCP_MIN(width, (unsigned)WIDE), (unsigned)NARROW);

	return (struct page){ b, fits, fits < 60 ? 8 : 24 };
}

/* "dcpfs ls [OPTIONS] SOURCE [VERSION]" */
static void put_usage(struct dcp_buf *b, const struct cmd *cmd)
{
	dcp_buf_printf(b, "dcpfs %s", cmd->name);
	if (cmd->opts->name)
		dcp_buf_str(b, " [OPTIONS]");
	for (const struct opt_operand *o = cmd->operands; o->name; o++)
		dcp_buf_printf(b, o->optional ? " [%s]" : " %s", o->name);
}

/* "  left    text", the text wrapped and kept after the column @indent. */
static void put_entry(const struct page *p, const char *left, size_t indent, const char *text)
{
	size_t col = strlen(left);

	dcp_buf_str(p->b, left);
	if (col + 1 > indent) {
		dcp_buf_str(p->b, "\n");
		col = 0;
	}
	dcp_buf_printf(p->b, "%*s", (int)(indent - col), "");
	out_wrap(p->b, indent, indent, p->width, text);
	dcp_buf_str(p->b, "\n");
}

static void put_option(const struct page *p, const struct opt *o)
{
	dcp_auto_buf struct dcp_buf left = DCP_BUF_INIT;

	if (o->letter)
		dcp_buf_printf(&left, "  -%c, --%s", o->letter, o->name);
	else
		dcp_buf_printf(&left, "      --%s", o->name);
	if (o->arg)
		dcp_buf_printf(&left, " %s", o->arg);
	if (o->ext)
		dcp_buf_printf(&left, " [X%s]", o->ext);
	put_entry(p, left.p ? left.p : "", p->indent, o->help);
}

/* Put an example: its lines can be pasted into a shell, also where they are broken. */
static void put_example(const struct page *p, const char *text)
{
	dcp_auto_buf struct dcp_buf lines = DCP_BUF_INIT;
	bool fits = strlen(text) + 2 <= p->width;

	out_wrap(&lines, 2, 4, fits ? 0 : p->width - 2, text);
	dcp_buf_add(&lines, "", 1);
	if (dcp_buf_error(&lines))
		return;
	dcp_buf_str(p->b, "  ");
	for (const char *s = lines.p; *s; s++)
		dcp_buf_str(p->b, *s == '\n' ? " \\\n" : (char[]){ *s, '\0' });
	dcp_buf_str(p->b, "\n");
}

void help_verb(struct dcp_buf *b, unsigned width, const struct cmd *cmd)
{
	dcp_auto_buf struct dcp_buf usage = DCP_BUF_INIT;
	const struct page p = make_page(b, width);

	put_usage(&usage, cmd);
	dcp_buf_str(b, "usage: ");
	out_wrap(b, 7, 7, p.width, usage.p ? usage.p : "");
	dcp_buf_str(b, "\n\n");
	out_wrap(b, 0, 0, p.width, cmd->about ? cmd->about : cmd->what);
	dcp_buf_str(b, "\n\n");
	for (const struct opt *o = cmd->opts; o->name; o++)
		if (!o->hidden)
			put_option(&p, o);
	put_entry(&p, "  -h, --help", p.indent, "show this page");
	for (size_t i = 0; i < CMD_MAX_EXAMPLES && cmd->examples[i]; i++) {
		dcp_buf_str(b, i ? "" : "\nexamples:\n");
		put_example(&p, cmd->examples[i]);
	}
}

void help_program(struct dcp_buf *b, unsigned width, const struct cmd *const *table)
{
	const struct page p = make_page(b, width);

	put_entry(&p, "usage: dcpfs SOURCE MNT [-o OPTIONS]", p.width < PLAIN ? 8 : 41,
		  "mount checkpoints as tensor files");
	put_entry(&p, "       dcpfs VERB [OPTIONS] ...", p.width < PLAIN ? 8 : 41,
		  "\"dcpfs help VERB\" explains one");
	dcp_buf_str(b, "\n");
	for (; *table; table++) {
		char left[32];

		snprintf(left, sizeof(left), "  %-9s", (*table)->name);
		put_entry(&p, left, 12, (*table)->what);
	}
	dcp_buf_str(b, "\n");
	out_wrap(b, 0, 0, p.width,
		 "All take -h (--help), -q (--quiet: only errors, and what was asked for) and "
		 "--json-progress.");
	dcp_buf_str(b, "\n");
	out_wrap(b, 0, 0, p.width,
		 "SOURCE is a checkpoint directory, or a directory of checkpoints.");
	dcp_buf_str(b, "\nexamples:\n");
	put_entry(&p, "  dcpfs /data/run1 /mnt/run1", p.width < PLAIN ? 6 : 34,
		  "then look into /mnt/run1/latest/npy");
	put_entry(&p, "  dcpfs ls /data/run1 latest", p.width < PLAIN ? 6 : 34,
		  "what is in the newest checkpoint");
}

static void write_opt(struct dcp_jsonw *w, const struct opt *o)
{
	char letter[2] = { o->letter, '\0' };

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", o->name);
	dcp_jsonw_put_str_or_null(w, "letter", o->letter ? letter : NULL);
	dcp_jsonw_put_str_or_null(w, "arg", o->arg);
	dcp_jsonw_put_str(w, "help", o->help);
	if (o->ext)
		dcp_jsonw_put_str(w, "file", o->ext);
	if (o->kind == OPT_REFUSE) {
		dcp_jsonw_put_bool(w, "refused", true);
	}
	if (o->choices) {
		dcp_jsonw_put_array(w, "choices");
		for (size_t i = 0; o->choices[i]; i++)
			dcp_jsonw_str(w, o->choices[i]);
		dcp_jsonw_end(w);
	}
}

static void write_opts(struct dcp_jsonw *w, const struct opt *opts)
{
	dcp_jsonw_array(w);
	for (const struct opt *o = opts; o->name; o++) {
		write_opt(w, o);
		if (o->sub) {
			dcp_jsonw_put_array(w, "list");
			for (const struct opt *s = o->sub; s->name; s++) {
				write_opt(w, s);
				dcp_jsonw_end(w);
			}
			dcp_jsonw_end(w);
		}
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void write_cmd(struct dcp_jsonw *w, const struct cmd *cmd)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", cmd->name);
	dcp_jsonw_put_str(w, "what", cmd->what);
	dcp_jsonw_put_array(w, "operands");
	for (const struct opt_operand *o = cmd->operands; o->name; o++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "name", o->name);
		dcp_jsonw_put_bool(w, "optional", o->optional);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_key(w, "options");
	write_opts(w, cmd->opts);
	dcp_jsonw_put_array(w, "examples");
	for (size_t i = 0; i < CMD_MAX_EXAMPLES && cmd->examples[i]; i++)
		dcp_jsonw_str(w, cmd->examples[i]);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

void help_json(struct dcp_jsonw *w, const struct cmd *const *table)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_array(w, "verbs");
	for (; *table; table++)
		write_cmd(w, *table);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}
