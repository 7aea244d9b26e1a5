/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the version.
 *
 * A path in a mount of dcpfs stands for what is mounted there: its files are opened, if that is
 * permitted and they hold what the mount shows. Otherwise data is read through the mount, from
 * shard/fsdp1/0, whose one file of all tensors is a checkpoint like any other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/number.h"
#include "core/checkpoint/mounts.h"
#include "core/parse/json.h"
#include "core/parse/source.h"
#include "core/rules/rules.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/mapped.h"
#include "tools/load/cache.h"
#include "tools/load/load.h"

#define MAX_OPTIONS (16u << 20) /* of a mount, as JSON: paths of layouts */

/* ---- finding the source ---- */

/* The next component of *path, which moves on past its slash. NULL: none, or out of memory. */
static char *component(struct dcpload *ck, const char **path)
{
	size_t n = strcspn(*path, "/");
	char *s = n ? dcp_arena_strndup(&ck->arena, *path, n) : NULL;

	*path += n;
	*path += **path == '/';
	return s;
}

int load_find_source(struct dcpload *ck, const char *path, struct dcp_err *err)
{
	dcp_auto_free char *real = realpath(path, NULL);
	struct dcp_mount m;
	const char *rest;
	char *word;
	uint64_t rank;

	ck->backing = dcp_arena_strdup(&ck->arena, path);
	if (!ck->backing)
		return dcp_err_say(err, -ENOMEM);
	if (!real || !dcp_mounts_around(real, &m, &rest))
		return 0;
	ck->mount = dcp_arena_strdup(&ck->arena, real);
	word = component(ck, &rest);
	if (word)
		ck->wanted = word;
	if (strncmp(rest, "shard/", 6) == 0) {
		rest += 6;
		ck->layout = component(ck, &rest);
		if (ck->layout && dcp_take_number(&rest, NULL, 10, &rank) && rank < UINT32_MAX)
			ck->layout_rank = (uint32_t)rank;
		else
			return dcp_fail(err, -EINVAL,
					"%s: a rank's directory is VERSION/shard/LAYOUT/RANK",
					path);
		rest = "";
	}
	if (*rest) { /* hf/ and the like: read as a directory of files */
		ck->mount = NULL;
		ck->wanted = ck->config.version;
		return 0;
	}
	if (ck->config.version)
		ck->wanted = ck->config.version;
	ck->backing = dcp_arena_strdup(&ck->arena, m.source);
	return ck->mount && ck->backing ? 0 : dcp_err_say(err, -ENOMEM);
}

/* ---- open it ---- */

static int open_latest(struct dcpload *ck, const struct dcp_found **out, struct dcp_err *err)
{
	const struct dcp_found *closed = NULL;
	struct dcp_err why = { 0 };
	int first = -ENOENT;

	for (size_t i = ck->scan.n; i-- > 0;) {
		const struct dcp_found *f = &ck->scan.found[i];
		int rc;

		if (!f->complete) {
			closed = !closed && f->closed ? f : closed;
			continue;
		}
		rc = dcp_version_open(ck->source, f, &ck->store, &ck->v, &why);
		if (rc == 0) {
			*out = f;
			if (first == -ENOENT && closed)
				first = dcp_fail(err, -EACCES, "%s: %s", closed->name,
						 closed->why);
			if (first != -ENOENT)
				ck->passed = dcp_arena_strdup(&ck->arena, err->msg);
			return 0;
		}
		if (first == -ENOENT) {
			first = rc;
			*err = why;
		}
	}
	return first == -ENOENT ? dcp_fail(err, first, "%s: no complete version", ck->source)
				: first;
}

static int open_named(struct dcpload *ck, const struct dcp_found **out, struct dcp_err *err)
{
	size_t at;
	int rc = dcp_found_match(ck->scan.found, ck->scan.n, ck->wanted, &at);

	if (rc == -ENOTUNIQ)
		return dcp_fail(err, rc,
				"several versions of %s have the number %s; give a whole name",
				ck->source, ck->wanted);
	if (rc < 0)
		return dcp_fail(err, rc, "%s has no version \"%s\"; see: dcpfs ls --versions",
				ck->source, ck->wanted);
	*out = &ck->scan.found[at];
	if ((*out)->closed)
		return dcp_fail(err, -EACCES, "%s: %s", (*out)->name, (*out)->why);
	if (!(*out)->complete)
		return dcp_fail(err, -EINVAL, "%s is incomplete: %s", (*out)->name,
				(*out)->why ? (*out)->why : "its commit mark is missing");
	return dcp_version_open(ck->source, *out, &ck->store, &ck->v, err);
}

/* By the rules of the configuration; they are given as text or by the name of a preset. */
static int map(struct dcpload *ck, const struct dcp_found *found, struct dcp_err *err)
{
	const char *text = ck->config.rules ? ck->config.rules : "auto";
	struct dcp_map_opts how = { .part = ck->config.part,
				    .assets = ck->config.assets,
				    .cast = DCP_DTYPE_OTHER,
				    .source = ck->source,
				    .where = found->where };
	struct dcp_rules *rules = NULL;
	int rc = 0;

	if (strchr(text, '\n'))
		rc = dcp_rules_parse(text, strlen(text), "rules", &rules, err);
	else if (strcmp(text, "auto") != 0)
		rc = dcp_rules_preset(text, &rules, err);
	how.rules = rules;
	ck->base = ck->v;
	ck->v = NULL;
	if (rc == 0)
		rc = dcp_version_map(ck->base, &how, &ck->store, &ck->v, err);
	dcp_rules_free(rules);
	return rc;
}

uint64_t load_generation(const struct dcpload *ck)
{
	return dcp_version_generation(ck->base ? ck->base : ck->v);
}

void load_forget(struct dcpload *ck)
{
	dcp_version_close(ck->v);
	dcp_version_close(ck->base);
	ck->v = ck->base = NULL;
	dcp_scan_finish(&ck->scan);
}

static int open_files(struct dcpload *ck, struct dcp_err *err)
{
	const struct dcp_found *found = NULL;
	int rc = dcp_scan(ck->source, &ck->scan, err);

	if (rc < 0)
		return rc;
	if (!ck->wanted || strcmp(ck->wanted, "latest") == 0)
		rc = open_latest(ck, &found, err);
	else
		rc = open_named(ck, &found, err);
	if (rc == 0 && (ck->config.rules || ck->config.part))
		rc = map(ck, found, err);
	if (rc == 0) {
		ck->wanted = dcp_arena_strdup(&ck->arena, found->name);
		rc = ck->wanted ? 0 : dcp_err_say(err, -ENOMEM);
	}
	if (rc < 0)
		load_forget(ck);
	return rc;
}

/* Open through the mount; @why goes into the report. */
int load_open_through(struct dcpload *ck, const char *why, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;
	dcp_auto_free char *dir = NULL;
	const char *name;
	int rc;

	if (!ck->mount)
		return dcp_fail(err, -EINVAL, "%s is in no mount here: %s", ck->backing, why);
	if (dcp_buf_printf(&path, "%s/%s", ck->mount, ck->wanted ? ck->wanted : "latest") < 0)
		return dcp_err_say(err, -ENOMEM);
	dir = realpath(path.p, NULL);
	if (!dir)
		return dcp_fail(err, -errno, "%s: %m", path.p);
	name = strrchr(dir, '/') + 1;
	name = dcp_arena_strdup(&ck->arena, name);
	dcp_buf_reset(&path);
	dcp_buf_printf(&path, "%s/shard/fsdp1/0", dir);
	ck->source =
		dcp_buf_error(&path) ? NULL : dcp_arena_strndup(&ck->arena, path.p, path.n);
	if (!name || !ck->source)
		return dcp_err_say(err, -ENOMEM);
	ck->through = why;
	ck->wanted = NULL;
	ck->store.cache_dir = NULL;
	rc = open_files(ck, err);
	ck->wanted = name;
	return rc;
}

int load_open_any(struct dcpload *ck, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf dir = DCP_BUF_INIT;
	struct dcp_err own = { 0 };
	int rc;

	ck->source = ck->backing;
	ck->through = NULL;
	ck->store.cache_dir = ck->cache;
	if (!ck->mount)
		return open_files(ck, err);
	if (ck->config.io == DCPLOAD_IO_MOUNT)
		return load_open_through(ck, "asked for", err);
	rc = open_files(ck, &own);
	if (rc < 0) {
		int through = load_open_through(ck, dcp_arena_strdup(&ck->arena, own.msg), err);

		if (rc == -ENOENT && through == -ENOENT) /* it says more of names */
			*err = own;
		return through;
	}
	dcp_buf_printf(&dir, "%s/%s", ck->mount, ck->wanted);
	if (dcp_buf_error(&dir) == 0 && dcp_mounts_shows(dir.p, load_generation(ck)))
		return 0;
	load_forget(ck);
	return load_open_through(ck, "its files are not what is mounted, or not visible here",
				 err);
}

/* ---- what it is ---- */

uint32_t dcpload_abi(void)
{
	return DCPLOAD_ABI;
}

const char *dcpload_release(void)
{
	return DCP_RELEASE;
}

const char *dcpload_version(const struct dcpload *ck)
{
	return ck->wanted;
}

const char *dcpload_passed_over(const struct dcpload *ck)
{
	return ck->passed;
}

const char *dcpload_source_layout(const struct dcpload *ck, uint32_t *rank)
{
	if (rank)
		*rank = ck->layout_rank;
	return ck->layout;
}

const char *dcpload_fact(const struct dcpload *ck, const char *name)
{
	return dcp_index_meta(dcp_version_index(ck->v), name);
}

int dcpload_version_at(const struct dcpload *ck, uint64_t i, const char **name,
		       const char **why)
{
	const struct dcp_found *f;

	if (i >= ck->scan.n)
		return -ENOENT;
	f = &ck->scan.found[i];
	*name = ck->through ? ck->wanted
			    : f->name; /* the only one; its directory is named otherwise */
	*why = f->complete ? NULL : f->why ? f->why : "its commit mark is missing";
	return 0;
}

/* The file that the mount, whose options are @text, has its layout @name from; NULL: it is built in. */
static const char *file_of(const struct dcp_json *options, const char *name)
{
	const struct dcp_json *l, *all = dcp_json_get(options, "layouts");

	for (size_t i = 0; (l = dcp_json_at(all, i)); i++) {
		const char *own = dcp_json_str(dcp_json_get(l, "name"));

		if (own && strcmp(own, name) == 0)
			return dcp_json_str(dcp_json_get(l, "file"));
	}
	return NULL;
}

/* With the file of a rank's directory that is the source, if the mount was given one. */
static int open_layouts(struct dcpload *ck, struct dcp_err *err)
{
	dcp_auto_free char *config = load_config_dir(), *path = NULL;
	struct dcp_layouts_opts opts = { .source = ck->source,
					 .scan = &ck->scan,
					 .user_dir = config };
	dcp_auto_json struct dcp_json *options = NULL;
	dcp_auto_fd int fd = -1;
	struct dcp_source src;
	const char *file;

	if (ck->mount && ck->layout && asprintf(&path, "%s/.dcpfs/config.json", ck->mount) >= 0)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && dcp_source_fd(fd, &src) == 0 &&
	    dcp_json_read(&src, MAX_OPTIONS, NULL, &options, NULL) == 0 &&
	    (file = file_of(options, ck->layout))) {
		opts.files = &file;
		opts.nfiles = 1;
	}
	return dcp_layouts_create(&opts, &ck->layouts, err);
}

int load_layout(struct dcpload *ck, const char *name, const struct dcp_layout **out,
		uint32_t *ranks, struct dcp_err *err)
{
	const struct dcp_named_layout *l;
	int rc = 0;

	*out = NULL;
	if (load_is_regions(name))
		return load_regions(name, ranks, NULL, NULL, err);
	if (!ck->layouts)
		rc = open_layouts(ck, err);
	if (rc == 0)
		rc = dcp_layouts_open(ck->layouts, name, &l, err);
	if (rc < 0)
		return rc;
	*out = l->l;
	*ranks = dcp_layout_ranks(l->l);
	return 0;
}

int dcpload_layout_ranks(struct dcpload *ck, const char *layout, uint32_t *ranks,
			 struct dcpload_error *err)
{
	const struct dcp_layout *l;
	struct dcp_err own = { 0 };
	int rc = load_layout(ck, layout, &l, ranks, &own);

	return load_fail_err(err, rc, &own);
}
