/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/weights/files.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"

enum {
	MAX_ASSETS = 1000,
	MAX_SIZE = 256 << 20,
	MAX_CONFIG = 4 << 20,
	MAX_LOOKED = 200,
	MAX_LEFT = 2000, /* bytes */
	MEMORY = 16 << 20
};

static const char config_json[] = "config.json";
/* Subdirectories in which trainers keep assets; searched in every directory that is searched
 * itself. */
static const char *const homes[] = {
	"",
	"huggingface",
	"hf_assets",
	"hf_ckpt",
	"actor/huggingface",
	"model/.hf_metadata", /* NeMo AutoModel's, while nothing is consolidated */
};
static const char readme[] = "README.md"; /* dcpfs writes its own */

/* State of the search in one root. */
struct looking {
	struct dcp_assets *a;
	struct dcp_beside *root;
	bool own; /* the version's directory, or the directory that the user named */
	struct dcp_buf ids, assets,
		dirs; /* ids: files of this root; assets, dirs: of all roots */
};

static size_t count_assets(const struct looking *l)
{
	return DCP_NITEMS(l->assets, struct dcp_asset);
}

static bool is_taken(const struct looking *l, const char *name)
{
	const struct dcp_asset *at = DCP_ITEMS(l->assets, struct dcp_asset);

	for (size_t i = count_assets(l); i > 0; i--)
		if (strcmp(at[i - 1].name, name) == 0)
			return true;
	return false;
}

/* Add @path, relative to the root, to the files of the root. */
static int add_id(struct looking *l, const char *path, struct dcp_file_id id)
{
	id.shown = true;
	id.name = dcp_arena_strdup(&l->a->arena, path);
	dcp_buf_add(&l->ids, &id, sizeof(id));
	return id.name && !dcp_buf_error(&l->ids) ? 0 : -ENOMEM;
}

/* Take the file at @path below the root, shown as @name. 0 also if the file does not exist or is a
 * link that leads out of the root. */
static int take_file(struct looking *l, const char *path, const char *name)
{
	struct dcp_asset asset = { .root = (uint32_t)(l->root - l->a->root),
				   .number =
					   (uint32_t)(DCP_NITEMS(l->ids, struct dcp_file_id)) };
	dcp_auto_blob struct dcp_blob blob = { 0 };
	struct dcp_file_id id = { 0 };

	if (is_taken(l, name) || count_assets(l) == MAX_ASSETS ||
	    dcp_site_open(&l->root->place, path, &blob, &id, NULL) < 0 || blob.size > MAX_SIZE)
		return 0;
	asset.name = dcp_arena_strdup(&l->a->arena, name);
	dcp_buf_add(&l->assets, &asset, sizeof(asset));
	if (!asset.name || dcp_buf_error(&l->assets))
		return -ENOMEM;
	return add_id(l, path, id);
}

/* Is the file torchtitan's job config? Its name may be anything; its content begins with the
 * model. */
static bool names_job(const struct looking *l, const char *path, struct dcp_file_id *id)
{
	static const char mark[] = "\"model_spec\"";
	dcp_auto_blob struct dcp_blob blob = { 0 };
	char head[256];
	size_t n;

	if (dcp_site_open(&l->root->place, path, &blob, id, NULL) < 0 || blob.size > MAX_CONFIG)
		return false;
	n = DCP_MIN((size_t)blob.size, sizeof(head));
	return dcp_blob_read(&blob, 0, head, n) == 0 && memmem(head, n, mark, strlen(mark));
}

/* Take the job config in the directory @below the root, unless one was found before. */
static int take_job(struct looking *l, const char *below)
{
	const struct dcp_dir root = { .at = l->root->place, .path = l->root->path };
	size_t looked = 0;
	dcp_auto_dir struct dcp_dir dir = { 0 };
	int code = 0;

	if (l->a->job || dcp_dir_open_at(&root, *below ? below : ".", &dir, NULL) < 0)
		return 0;
	for (size_t i = 0; code == 0 && i < dir.n && !l->a->job && looked < MAX_LOOKED; i++) {
		const char *name = dir.entries[i].name;
		char path[PATH_MAX];
		struct dcp_file_id id = { 0 };

		if (dir.entries[i].is_dir || !dcp_ends_with(name, strlen(name), ".json"))
			continue;
		looked++;
		if (snprintf(path, sizeof(path), "%s%s%s", below, *below ? "/" : "", name) >=
			    (int)sizeof(path) ||
		    !names_job(l, path, &id))
			continue;
		l->a->job = dcp_arena_strdup(&l->a->arena, path);
		l->a->job_root = (uint32_t)(l->root - l->a->root);
		code = l->a->job ? add_id(l, path, id) : -ENOMEM;
	}
	return code;
}

static bool is_job(const struct looking *l, const char *path)
{
	return l->a->job && &l->a->root[l->a->job_root] == l->root &&
	       strcmp(path, l->a->job) == 0;
}

static void read_config(const struct dcp_site *at, const char *path, struct dcp_buf *out)
{
	dcp_auto_blob struct dcp_blob blob = { 0 };
	void *p;

	if (dcp_site_open(at, path, &blob, NULL, NULL) < 0 || blob.size > MAX_CONFIG)
		return;
	p = dcp_buf_grow(out, (size_t)blob.size);
	if (!p || dcp_blob_read(&blob, 0, p, (size_t)blob.size) < 0)
		dcp_buf_reset(out);
}

/* Does modules.json (of sentence-transformers) in the directory @below name a module that lies in
 * the directory @name? */
static bool is_module(const struct looking *l, const char *below, const char *name)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	dcp_auto_json struct dcp_json *json = NULL;
	const struct dcp_json *module;
	char path[PATH_MAX];
	bool is = false;

	if (snprintf(path, sizeof(path), "%s%smodules.json", below, *below ? "/" : "") <
	    (int)sizeof(path))
		read_config(&l->root->place, path, &text);
	if (!text.n || dcp_json_parse(text.p, text.n, &json, NULL) < 0)
		return false;
	for (size_t i = 0; (module = dcp_json_at(json, i)); i++) {
		const char *of = dcp_json_str(dcp_json_get(module, "path"));

		is |= of && strcmp(of, name) == 0;
	}
	return is;
}

/*
 * Does the directory @name belong to the model whose files lie beside it? If *module is set, it is
 * the directory of a module, and every file in it belongs to the model: weights too, since they are
 * those of the module alone.
 */
static bool is_of_model(const struct looking *l, const char *below, const char *name,
			bool *module)
{
	*module = is_module(l, below, name);
	return *module || strcmp(name, "additional_chat_templates") == 0;
}

/* Note the directory as left out, unless its name is one that trainers use: such directories are
 * searched. */
static int leave_dir(struct looking *l, const char *name)
{
	for (size_t i = 0; i < DCP_LEN(homes); i++)
		if (strncmp(homes[i], name, strlen(name)) == 0)
			return 0;
	return l->a->left.n < MAX_LEFT ? dcp_buf_add(&l->a->left, name, strlen(name) + 1) : 0;
}

static int take_dir(struct looking *l, const char *below, const char *in, bool module);

/* Take an entry of the directory @below the root, or of its subdirectory @in (the name and a slash;
 * "": the directory itself). */
static int take_entry(struct looking *l, const char *below, const char *in, bool module,
		      const struct dcp_dirent *e)
{
	char path[PATH_MAX], name[PATH_MAX];
	bool of_module;

	if (*e->name == '.' ||
	    snprintf(path, sizeof(path), "%s%s%s%s", below, *below ? "/" : "", in, e->name) >=
		    (int)sizeof(path) ||
	    snprintf(name, sizeof(name), "%s%s", in, e->name) >= (int)sizeof(name) - 1)
		return 0;
	if (e->is_dir) {
		if (*in || !is_of_model(l, below, e->name, &of_module))
			return l->own && !*below && !*in ? leave_dir(l, e->name) : 0;
		strcat(name, "/");
		return take_dir(l, below, name, of_module);
	}
	if (strcmp(name, "model_index.json") == 0) {
		l->a->pipeline = true;
		return 0;
	}
	if (!module && (!dcp_weights_is_sidecar(e->name) || strcmp(name, readme) == 0))
		return 0;
	return is_job(l, path) ? 0 : take_file(l, path, name);
}

/* Take everything in a directory that belongs to a model. @below and @in as for take_entry(). */
static int take_dir(struct looking *l, const char *below, const char *in, bool module)
{
	const struct dcp_dir root = { .at = l->root->place, .path = l->root->path };
	struct dcp_asset_dir seen = { .root = (uint32_t)(l->root - l->a->root) };
	dcp_auto_dir struct dcp_dir dir = { 0 };
	char path[PATH_MAX];
	int code = 0;

	if (snprintf(path, sizeof(path), "%s%s%s", below, *below && *in ? "/" : "", in) >=
	    (int)sizeof(path))
		return 0;
	if (*in)
		path[strlen(path) - 1] = '\0';
	if (dcp_dir_open_at(&root, *path ? path : ".", &dir, NULL) < 0)
		return 0;
	seen.path = dcp_arena_strdup(&l->a->arena, *path ? path : ".");
	dcp_buf_add(&l->dirs, &seen, sizeof(seen));
	if (!seen.path || dcp_buf_error(&l->dirs))
		code = -ENOMEM;
	for (size_t i = 0; code == 0 && i < dir.n; i++)
		code = take_entry(l, below, in, module, &dir.entries[i]);
	return code;
}

/* Does a config in the directory @dir name a model or a kind of adapter? Other programs have files
 * of the same name. */
static bool names_model(const struct dcp_beside *root, const char *dir)
{
	static const char *const names[] = { config_json, "adapter_config.json" };
	char path[PATH_MAX];
	bool yes = false;

	for (size_t i = 0; i < DCP_LEN(names); i++) {
		dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
		dcp_auto_json struct dcp_json *json = NULL;

		if (snprintf(path, sizeof(path), "%s%s%s", dir, *dir ? "/" : "", names[i]) <
		    (int)sizeof(path))
			read_config(&root->place, path, &text);
		if (!text.n || dcp_json_parse(text.p, text.n, &json, NULL) < 0)
			continue;
		yes |= dcp_json_str(dcp_json_get(json, "model_type")) ||
		       dcp_json_is_array(dcp_json_get(json, "architectures")) ||
		       dcp_json_str(dcp_json_get(json, "_class_name")) ||
		       dcp_json_str(dcp_json_get(json, "peft_type"));
	}
	return yes;
}

/*
 * Take the directory given by @n bytes of @path below the root, and its subdirectories that
 * trainers use. @all: take the files of the directory itself even if no config there names a model.
 */
static int take_dirs(struct looking *l, const char *path, size_t n, bool all)
{
	char at[PATH_MAX];
	int code = snprintf(at, sizeof(at), "%.*s", (int)n, path) < (int)sizeof(at)
			   ? take_job(l, at)
			   : 0;

	for (size_t i = 0; code == 0 && i < DCP_LEN(homes); i++) {
		if (snprintf(at, sizeof(at), "%.*s%s%s", (int)n, path,
			     n && *homes[i] ? "/" : "", homes[i]) >= (int)sizeof(at))
			continue;
		if (i > 0 || all || names_model(l->root, at))
			code = take_dir(l, at, "", false);
	}
	return code;
}

/* Take the directory inside the version that names a model, if there is only one. If several do,
 * take none: they are models of different parts, and the user says which part is meant. */
static int take_part(struct looking *l, const struct dcp_index *index)
{
	char at[PATH_MAX] = "", found[PATH_MAX] = "";
	size_t n, ndirs = 0;
	const struct dcp_file_id *ids = dcp_index_files(index, &n);

	for (size_t i = 0; i < n; i++) {
		const char *slash = strrchr(ids[i].name, '/');
		size_t len = slash ? (size_t)(slash - ids[i].name) : 0;

		if (!len || len >= sizeof(at) ||
		    (strncmp(at, ids[i].name, len) == 0 && !at[len]))
			continue; /* files of one directory are consecutive */
		memcpy(at, ids[i].name, len);
		at[len] = '\0';
		if (strcmp(at, found) == 0 || ndirs > 1 || !names_model(l->root, at))
			continue;
		ndirs++;
		strcpy(found, at);
	}
	return ndirs == 1 ? take_dir(l, found, "", false) : 0;
}

/* The length of @path without slashes at its end. */
static size_t trimmed_length(const char *path)
{
	size_t n = strlen(path);

	while (n && path[n - 1] == '/')
		n--;
	return n;
}

/*
 * Search the root @place, which is taken. @version NULL: the root is the version's directory or the
 * one that the user named. Otherwise @version is the path from the root to the version; the
 * directories on that path are searched, too, from the version's parent up to the root. @index: the
 * version's, or NULL. @how NULL: only search, open no table of files.
 */
static int look_in(struct looking *l, const char *path, struct dcp_site place,
		   const char *version, const struct dcp_index *index,
		   const struct dcp_files_opts *how)
{
	struct dcp_beside *root = &l->a->root[l->a->nroots++];
	int code = 0;

	*root = (struct dcp_beside){ .place = place };
	root->path = dcp_arena_strndup(&l->a->arena, path, trimmed_length(path));
	l->root = root;
	l->own = !version;
	dcp_buf_reset(&l->ids);
	if (!root->path)
		return -ENOMEM;
	for (size_t n = version ? strlen(version) : 0; version && code == 0 && n > 0; n--)
		if (version[n] == '/')
			code = take_dirs(l, version, n, false);
	if (code == 0)
		code = take_dirs(l, "", 0, !version);
	if (code == 0 && index && !is_taken(l, config_json))
		code = take_part(l, index);
	root->n = l->ids.n / sizeof(*root->id);
	root->id = dcp_arena_calloc(&l->a->arena, root->n + 1, sizeof(*root->id));
	if (code < 0 || !root->id)
		return -ENOMEM;
	if (root->n)
		memcpy(root->id, l->ids.p, l->ids.n);
	return how ? dcp_files_create(&root->place, root->id, root->n, how, &root->files) : 0;
}

static int look_everywhere(struct looking *l, const struct dcp_asset_from *from,
			   const struct dcp_files_opts *how, struct dcp_err *err)
{
	dcp_auto_free char *only = NULL, *file = NULL;
	char path[PATH_MAX];
	struct dcp_site place;
	int code = 0;

	if (from->extra) {
		code = dcp_site_find(from->extra, &place, &only, NULL);
		if (code == 0 && only) {
			dcp_site_close(&place);
			code = -ENOTDIR;
		}
		if (code < 0)
			return dcp_fail(err, code, "%.300s: %s", from->extra,
					dcp_err_noted(code));
		code = look_in(l, from->extra, place, NULL, NULL, how);
	}
	if (code < 0 || dcp_site_find(from->source, &place, &file, NULL) < 0)
		return code;
	if (!file) {
		struct dcp_site version;

		snprintf(path, sizeof(path), "%.*s/%s", (int)trimmed_length(from->source),
			 from->source, from->where);
		if (dcp_site_again(from->at, &version) == 0)
			code = look_in(l, path, version, NULL, from->index, how);
		if (code == 0 && *from->where)
			return look_in(l, from->source, place, from->where, NULL, how);
	}
	dcp_site_close(&place);
	return code;
}

/* Remember where to search, so that the search can be repeated. The descriptor of the version's
 * directory outlives @a. */
static int keep_from(struct dcp_assets *a, const struct dcp_asset_from *from)
{
	a->from = *from;
	a->from.source = dcp_arena_strdup(&a->arena, from->source);
	a->from.where = dcp_arena_strdup(&a->arena, from->where);
	if (from->extra)
		a->from.extra = dcp_arena_strdup(&a->arena, from->extra);
	return a->from.source && a->from.where && (a->from.extra || !from->extra) ? 0 : -ENOMEM;
}

int dcp_assets_find(const struct dcp_asset_from *from, const struct dcp_files_opts *how,
		    struct dcp_assets *out, struct dcp_err *err)
{
	struct looking l = { .a = out };
	int code;

	*out = (struct dcp_assets){ 0 };
	dcp_arena_init(&out->arena, MEMORY);
	code = look_everywhere(&l, from, how, err);
	out->n = count_assets(&l);
	out->ndirs = DCP_NITEMS(l.dirs, struct dcp_asset_dir);
	out->at = dcp_arena_calloc(&out->arena, out->n + 1, sizeof(*out->at));
	out->dir = dcp_arena_calloc(&out->arena, out->ndirs + 1, sizeof(*out->dir));
	if (code == 0)
		code = keep_from(out, from);
	if (!out->at || !out->dir) {
		out->n = out->ndirs = 0;
		code = code ? code : -ENOMEM;
	}
	if (out->n)
		memcpy(out->at, l.assets.p, l.assets.n);
	if (out->ndirs)
		memcpy(out->dir, l.dirs.p, l.dirs.n);
	dcp_assets_read(out, config_json, &out->config);
	dcp_buf_finish(&l.ids);
	dcp_buf_finish(&l.assets);
	dcp_buf_finish(&l.dirs);
	return dcp_err_say(err, code);
}

void dcp_assets_read(const struct dcp_assets *a, const char *name, struct dcp_buf *out)
{
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->at[i].name, name) == 0)
			read_config(&a->root[a->at[i].root].place, dcp_asset_id(a, i)->name,
				    out);
}

bool dcp_assets_has(const struct dcp_assets *a, const char *name)
{
	bool has = false;

	for (size_t i = 0; i < a->n; i++)
		has |= strcmp(a->at[i].name, name) == 0;
	return has;
}

void dcp_assets_read_job(const struct dcp_assets *a, struct dcp_buf *out)
{
	if (a->job)
		read_config(&a->root[a->job_root].place, a->job, out);
}

void dcp_assets_finish(struct dcp_assets *a)
{
	for (size_t i = 0; i < a->nroots; i++) {
		dcp_files_destroy(a->root[i].files);
		dcp_site_close(&a->root[i].place);
	}
	dcp_buf_finish(&a->config);
	dcp_buf_finish(&a->left);
	dcp_arena_finish(&a->arena);
	*a = (struct dcp_assets){ 0 };
}

int dcp_assets_check(const struct dcp_assets *a, struct dcp_err *err)
{
	struct dcp_assets now;
	/* A search that fails does not count: the next look repeats it. */
	int code = dcp_assets_find(&a->from, NULL, &now, NULL);
	bool same =
		code < 0 ||
		(now.n == a->n && !now.job == !a->job &&
		 (!a->job || (now.job_root == a->job_root && strcmp(now.job, a->job) == 0)));

	for (size_t i = 0; same && code == 0 && i < a->n; i++)
		same = strcmp(now.at[i].name, a->at[i].name) == 0 &&
		       now.at[i].root == a->at[i].root &&
		       strcmp(dcp_asset_id(&now, i)->name, dcp_asset_id(a, i)->name) == 0;
	dcp_assets_finish(&now);
	return same ? 0
		    : dcp_fail(err, -ESTALE, "files beside the weights were added or removed");
}

const struct dcp_file_id *dcp_asset_id(const struct dcp_assets *a, size_t i)
{
	return &a->root[a->at[i].root].id[a->at[i].number];
}

void dcp_assets_drop(struct dcp_assets *a, const char *name)
{
	size_t n = 0;

	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->at[i].name, name) != 0)
			a->at[n++] = a->at[i];
	a->n = n;
}
