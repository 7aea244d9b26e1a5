/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/format/weights/files.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"

static const char config_json[] = "config.json";

/* ---- the list ---- */

/* Append a file. The content of @text is moved, so @text is empty afterwards, also on failure.
 * @from is borrowed. */
static int add_made(struct dcp_buf *made, const char *name, const char *from,
		    struct dcp_buf *text)
{
	struct dcp_made m = { .name = strdup(name), .from = from, .text = *text };

	*text = (struct dcp_buf)DCP_BUF_INIT;
	if (m.name)
		dcp_buf_add(made, &m, sizeof(m));
	if (m.name && !dcp_buf_error(made))
		return 0;
	free(m.name);
	dcp_buf_finish(&m.text);
	return -ENOMEM;
}

struct dcp_made *dcp_made_named(const struct dcp_buf *made, const char *name)
{
	struct dcp_made *m = DCP_ITEMS(*made, struct dcp_made);

	for (size_t i = 0; i < DCP_NITEMS(*made, struct dcp_made); i++)
		if (strcmp(m[i].name, name) == 0)
			return &m[i];
	return NULL;
}

static void forget_made(struct dcp_made *m)
{
	free(m->name);
	dcp_buf_finish(&m->text);
}

void dcp_made_finish(struct dcp_buf *made)
{
	for (size_t i = 0; i < DCP_NITEMS(*made, struct dcp_made); i++)
		forget_made(&DCP_ITEMS(*made, struct dcp_made)[i]);
	dcp_buf_finish(made);
}

/* ---- of Composer ---- */

/*
 * How Composer stores the files of a Hugging Face model in its state:
 * composer/models/huggingface.py, HuggingFaceModel.get_metadata(). Each file is {"file_extension":
 * ".json", "content": ...}:
 *
 *	.json          its value
 *	.txt           a list of its lines
 *	.py, .jinja    its text
 *	.model         its bytes
 *
 * The index has this state as leaves: one object for each value that is not a dict, with its path.
 */
enum {
	MEMORY = 1 << 30,
	MAX_LEAVES = 2000000, /* a vocabulary has some hundred thousand */
	MAX_BYTES = 256 << 20,
	MAX_FILES = 100,
	MAX_DEPTH = 32, /* of a JSON file */
	MAX_NAME = 255
};

static const char top[] = "state.integrations.huggingface";
static const char always[] = "state.integrations.huggingface.model.config.content.model_type";

enum { TOP_PARTS = 3 };

struct leaf {
	const char *const *path; /* below the top */
	size_t npath;
	const char *json; /* NULL: it cannot be read */
	size_t n;
};

struct leaves {
	const struct leaf *at;
	size_t n;
};

/* ---- a JSON value from its leaves ---- */

/* The leaves at the start of @of whose paths have the same part number @depth as the first leaf. */
static struct leaves same_part(struct leaves of, size_t depth)
{
	size_t n = 0;

	while (n < of.n && of.at[n].npath > depth &&
	       strcmp(of.at[n].path[depth], of.at[0].path[depth]) == 0)
		n++;
	return (struct leaves){ of.at, n ? n : 1 };
}

static struct leaves skip_leaves(struct leaves of, size_t n)
{
	return (struct leaves){ of.at + n, of.n - n };
}

/* Is the value one leaf, with nothing below it? */
static bool is_one(struct leaves of, size_t depth)
{
	return of.n == 1 && of.at[0].npath == depth;
}

static bool is_list(struct leaves of, size_t depth);

static bool is_array(struct leaves of, size_t depth)
{
	return is_one(of, depth) ? of.at[0].n && *of.at[0].json == '[' : is_list(of, depth);
}

/*
 * Is the value a list? Paths do not tell lists from dicts, so a value counts as a list if its parts
 * are 0, 1, ... without a gap. Some dicts have such keys, too: they are recognized by their names,
 * unless they hold lists, as the vocabulary of a Unigram model does.
 */
static bool is_list(struct leaves of, size_t depth)
{
	static const char *const dicts[] = { "id2label", "added_tokens_decoder", "vocab" };
	struct leaves left = of;
	uint64_t number;

	if (!of.n)
		return false;
	for (uint64_t i = 0; left.n; i++) {
		const char *part = left.at[0].npath > depth ? left.at[0].path[depth] : "";
		struct leaves item = same_part(left, depth);

		if ((*part == '0' && part[1]) || !dcp_is_number(part, &number) || number != i)
			return false;
		left = skip_leaves(left, item.n);
	}
	for (size_t i = 0; depth && i < DCP_LEN(dicts); i++)
		if (strcmp(of.at[0].path[depth - 1], dicts[i]) == 0)
			return is_array(same_part(of, depth), depth + 1);
	return true;
}

/* 0; -E2BIG: too deep; -EBADMSG: a leaf cannot be read, or lies below another. */
static int put_value(struct dcp_jsonw *w, struct leaves of, size_t depth)
{
	bool list = !is_one(of, depth) && is_list(of, depth);
	int rc = 0;

	if (depth > MAX_DEPTH)
		return -E2BIG;
	if (is_one(of, depth)) {
		if (of.at[0].json)
			dcp_jsonw_raw(w, of.at[0].json, of.at[0].n);
		return of.at[0].json ? 0 : -EBADMSG;
	}
	if (list)
		dcp_jsonw_array(w);
	else
		dcp_jsonw_object(w);
	while (rc == 0 && of.n) {
		struct leaves item = same_part(of, depth);

		if (of.at[0].npath <= depth)
			return -EBADMSG;
		if (!list)
			dcp_jsonw_key(w, of.at[0].path[depth]);
		rc = put_value(w, item, depth + 1);
		of = skip_leaves(of, item.n);
	}
	dcp_jsonw_end(w);
	return rc;
}

static int put_json(struct leaves of, size_t depth, struct dcp_buf *out)
{
	struct dcp_jsonw w;
	int rc = 0;

	dcp_jsonw_init(&w, out, true);
	if (of.n) {
		rc = put_value(&w, of, depth);
	} else { /* a dict without leaves */
		dcp_jsonw_object(&w);
		dcp_jsonw_end(&w);
	}
	dcp_buf_str(out, "\n");
	return rc ? rc : dcp_jsonw_error(&w);
}

/* ---- text and bytes ---- */

static int put_text(const char *json, size_t n, struct dcp_buf *out)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(MEMORY);
	const char *text;
	int rc = dcp_json_text(json, n, &arena, &text, NULL);

	if (rc == 0)
		dcp_buf_str(out, text);
	return rc;
}

static int put_content(struct leaves of, size_t depth, struct dcp_buf *out)
{
	return is_one(of, depth) && of.at[0].json ? put_text(of.at[0].json, of.at[0].n, out)
						  : -EBADMSG;
}

static int put_line(const char *json, size_t n, struct dcp_buf *out)
{
	int rc = put_text(json, n, out);

	dcp_buf_str(out, "\n");
	return rc;
}

/* Composer splits a text at its newlines, so the last element is usually empty and is not a
 * line. */
static int put_lines(struct leaves of, size_t depth, struct dcp_buf *out)
{
	dcp_auto_json struct dcp_json *list = NULL;
	int rc = 0;

	if (is_one(of, depth) && of.at[0].json) {
		rc = dcp_json_parse(of.at[0].json, of.at[0].n, &list, NULL);
		if (rc == 0 && !dcp_json_is_array(list))
			return -EBADMSG;
		for (size_t i = 0; rc == 0 && i < dcp_json_len(list); i++) {
			const char *s = dcp_json_str(dcp_json_at(list, i));

			dcp_buf_str(out, s ? s : "");
			dcp_buf_str(out, "\n");
			rc = s ? 0 : -EBADMSG;
		}
	} else if (is_list(of, depth)) {
		for (size_t i = 0; rc == 0 && i < of.n; i++)
			rc = of.at[i].npath == depth + 1 && of.at[i].json
				     ? put_line(of.at[i].json, of.at[i].n, out)
				     : -EBADMSG;
	} else {
		rc = -EBADMSG;
	}
	if (rc == 0 && out->n >= 2 && memcmp(out->p + out->n - 2, "\n\n", 2) == 0)
		out->p[--out->n] = '\0';
	return rc;
}

static int put_bytes(struct leaves of, size_t depth, struct dcp_buf *out)
{
	static const char head[] = "{\"$bytes\":\"", tail[] = "\"}";
	size_t h = strlen(head), t = strlen(tail);
	const struct leaf *l = of.at;

	if (!is_one(of, depth) || !l->json || l->n < h + t || memcmp(l->json, head, h) != 0 ||
	    memcmp(l->json + l->n - t, tail, t) != 0)
		return -EBADMSG;
	return dcp_base64_read(l->json + h, l->n - h - t, out);
}

static const struct {
	const char *extension;
	int (*put)(struct leaves of, size_t depth, struct dcp_buf *out);
} kinds[] = {
	{ ".json", put_json },     { ".txt", put_lines },   { ".py", put_content },
	{ ".jinja", put_content }, { ".model", put_bytes },
};

/* ---- files ---- */

struct finding {
	struct dcp_arena arena;
	struct dcp_buf leaves; /* struct leaf */
	struct dcp_buf *out;   /* struct dcp_made */
};

/* Is @name a plain file name (no path) of a file that may lie beside weights? */
static bool is_name(const char *name)
{
	if (!*name || *name == '.' || strlen(name) > MAX_NAME ||
	    !dcp_weights_is_sidecar(name) || strncmp(name, "README", 6) == 0)
		return false;
	for (const char *s = name; *s; s++)
		if (*s == '/' || (unsigned char)*s < ' ' || *s == 0x7f)
			return false;
	return dcp_json_can_say(name);
}

/* The leaves below the member @name of a dict; n 0: there is none. */
static struct leaves find_member(struct leaves of, size_t depth, const char *name)
{
	for (struct leaves item; of.n; of = skip_leaves(of, item.n)) {
		item = same_part(of, depth);
		if (of.at[0].npath > depth && strcmp(of.at[0].path[depth], name) == 0)
			return item;
	}
	return (struct leaves){ 0 };
}

/* Make a file from leaves. 0 also if the file cannot be made: its data are then visible only in
 * objects/. */
static int add_file(struct finding *f, const char *name, struct leaves of, size_t depth)
{
	struct leaves extension = find_member(of, depth, "file_extension");
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT, text = DCP_BUF_INIT;
	const char *end;
	int rc;

	if (!is_one(extension, depth + 1) || !extension.at[0].json ||
	    dcp_json_text(extension.at[0].json, extension.at[0].n, &f->arena, &end, NULL) < 0)
		return 0;
	dcp_buf_str(&full, name);
	if (!dcp_ends_with(name, strlen(name), end))
		dcp_buf_str(&full, end);
	if (dcp_buf_error(&full))
		return -ENOMEM;
	if (!is_name(full.p) || dcp_made_named(f->out, full.p) ||
	    DCP_NITEMS(*f->out, struct dcp_made) == MAX_FILES)
		return 0;
	for (size_t i = 0; i < DCP_LEN(kinds); i++) {
		if (strcmp(kinds[i].extension, end) != 0)
			continue;
		rc = kinds[i].put(find_member(of, depth, "content"), depth + 1, &text);
		if (rc == -ENOMEM || dcp_buf_error(&text))
			return -ENOMEM;
		return rc < 0 ? 0 : add_made(f->out, full.p, top, &text);
	}
	return 0;
}

/* "_attn_implementation_autoset": a private note of transformers in a config, which transformers
 * would obey if it were kept. */
static bool is_private(const struct leaf *l)
{
	return l->npath > 3 && strcmp(l->path[0], "model") == 0 &&
	       strcmp(l->path[1], "config") == 0 && *l->path[3] == '_';
}

static int collect_leaves(struct finding *f, struct dcp_index *ix)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	size_t n = strlen(top);
	uint64_t bytes = 0;
	struct dcp_row row;
	int rc = dcp_index_scan(ix, DCP_ROW_OBJECT, 0, false, &scan);

	while (rc >= 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct dcp_object o;
		struct leaf l;

		if (strncmp(row.key, top, n) != 0 || row.key[n] != '.')
			continue;
		bytes += row.nbytes;
		if (bytes > MAX_BYTES || DCP_NITEMS(f->leaves, struct leaf) == MAX_LEAVES)
			return -E2BIG;
		rc = dcp_index_object(ix, row.id, &f->arena, &o, NULL);
		if (rc < 0)
			return rc;
		l = (struct leaf){ o.path + TOP_PARTS, o.npath - TOP_PARTS,
				   o.error ? NULL : o.json, o.json_len };
		if (o.npath <= TOP_PARTS || is_private(&l))
			continue;
		dcp_buf_add(&f->leaves, &l, sizeof(l));
	}
	return rc < 0 ? rc : dcp_buf_error(&f->leaves);
}

static int make_all(struct finding *f, struct leaves all)
{
	struct leaves model = find_member(all, 0, "model"),
		      tokenizer = find_member(all, 0, "tokenizer"), file;
	int rc = add_file(f, "config.json", find_member(model, 1, "config"), 2);

	if (rc == 0)
		rc = add_file(f, "adapter_config.json", find_member(model, 1, "peft_config"),
			      2);
	for (; rc == 0 && tokenizer.n; tokenizer = skip_leaves(tokenizer, file.n)) {
		file = same_part(tokenizer, 1);
		if (tokenizer.at[0].npath > 1)
			rc = add_file(f, tokenizer.at[0].path[1], file, 2);
	}
	return rc;
}

static int make_composer(struct dcp_index *ix, struct dcp_buf *out)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(MEMORY);
	struct finding f = { .arena = DCP_ARENA_INIT(MEMORY), .out = out };
	struct dcp_row row;
	int rc = dcp_index_by_key(ix, DCP_ROW_OBJECT, always, &arena, &row);

	if (rc == 0)
		rc = collect_leaves(&f, ix);
	if (rc == 0)
		rc = make_all(&f, (struct leaves){ DCP_ITEMS(f.leaves, const struct leaf),
						   DCP_NITEMS(f.leaves, struct leaf) });
	dcp_buf_finish(&f.leaves);
	dcp_arena_finish(&f.arena);
	return rc == -ENOENT || rc == -E2BIG ? 0 : rc;
}

/* ---- all ---- */

/* Is the file independent of the tokenizer's files, which are used all together or not at all? */
static bool is_alone(const struct dcp_made *m)
{
	return strcmp(m->name, config_json) == 0 || strcmp(m->name, "adapter_config.json") == 0;
}

static void leave_to_files(const struct dcp_assets *a, struct dcp_buf *made)
{
	struct dcp_made *m = DCP_ITEMS(*made, struct dcp_made);
	size_t n = DCP_NITEMS(*made, struct dcp_made), kept = 0;
	bool tokenizer = false;

	for (size_t i = 0; i < n; i++)
		tokenizer |= !is_alone(&m[i]) && dcp_assets_has(a, m[i].name);
	for (size_t i = 0; i < n; i++)
		if (strcmp(m[i].name, config_json) == 0 ? a->config.n > 0
		    : is_alone(&m[i])                   ? dcp_assets_has(a, m[i].name)
							: tokenizer)
			forget_made(&m[i]);
		else
			m[kept++] = m[i];
	made->n = kept * sizeof(*m);
}

static int make_from_megatron(struct dcp_index *ix, struct dcp_buf *made)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(64 << 20);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_object o;
	struct dcp_row row;
	int rc = dcp_index_by_key(ix, DCP_ROW_OBJECT, "args", &arena, &row);

	if (rc == 0)
		rc = dcp_index_object(ix, row.id, &arena, &o, NULL);
	if (rc == 0 && o.json)
		rc = dcp_made_megatron(o.json, o.json_len, &text);
	return rc == -ENOENT ? 0 : rc == 1 ? add_made(made, config_json, "args", &text) : rc;
}

static int make_from_job(const struct dcp_assets *a, struct dcp_buf *made)
{
	dcp_auto_buf struct dcp_buf job = DCP_BUF_INIT, text = DCP_BUF_INIT;
	int rc = 0;

	dcp_assets_read_job(a, &job);
	if (job.n)
		rc = dcp_made_torchtitan(job.p, job.n, &text);
	return rc == 1 ? add_made(made, config_json, a->job, &text) : rc;
}

int dcp_made_find(struct dcp_index *ix, struct dcp_assets *a, struct dcp_buf *made)
{
	const struct dcp_made *config;
	int rc = make_composer(ix, made);

	if (rc == 0 && !a->config.n && !dcp_made_named(made, config_json))
		rc = make_from_megatron(ix, made);
	if (rc == 0)
		leave_to_files(a, made);
	if (rc == 0 && !a->config.n && !dcp_made_named(made, config_json) && a->job)
		rc = make_from_job(a, made);
	config = rc == 0 ? dcp_made_named(made, config_json) : NULL;
	if (config)
		dcp_buf_add(&a->config, config->text.p, config->text.n);
	return rc < 0 ? rc : dcp_buf_error(&a->config);
}

int dcp_made_retype(struct dcp_assets *a, enum dcp_dtype to, struct dcp_buf *made)
{
	struct dcp_made *config = dcp_made_named(made, config_json);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = dcp_rules_config_retype(a->config.p, a->config.n, to, &text);

	if (rc <= 0)
		return rc;
	dcp_buf_reset(&a->config);
	dcp_buf_add(&a->config, text.p, text.n);
	if (!config)
		rc = add_made(made, config_json, NULL, &text);
	else {
		dcp_buf_finish(&config->text);
		config->text = text;
		text = (struct dcp_buf)DCP_BUF_INIT;
	}
	return rc < 0 ? rc : dcp_buf_error(&a->config);
}
