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

#include "core/base/base.h"
#include "core/origin/source.h"
#include "core/parse/json.h"
#include "core/rules/rules.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/mapped.h"
#include "tools/load/cache.h"
#include "tools/load/load.h"

#define MAX_OPTIONS (16u << 20) /* of a mount, as JSON: paths of layouts */

/* ---- which version ---- */

int load_find_source(struct dcpload *ck, const char *path, struct dcp_err *err)
{
	int rc;

	load_servers();
	ck->of.arena = &ck->arena;
	rc = dcp_checkpoint_find(&ck->of, path, err);
	ck->backing = ck->of.source;
	ck->mount = ck->of.mount;
	if (ck->config.version)
		ck->of.wanted = ck->config.version;
	return rc;
}

/* By the rules of the configuration; they are given as text or by the name of a preset. */
static int read_rules(const char *text, struct dcp_rules **out, struct dcp_err *err)
{
	*out = NULL;
	if (!text || strcmp(text, "auto") == 0)
		return 0;
	return strchr(text, '\n') ? dcp_rules_parse(text, strlen(text), "rules", out, err)
				  : dcp_rules_preset(text, out, err);
}

void load_forget(struct dcpload *ck)
{
	dcp_checkpoint_close(&ck->of);
}

static int open_files(struct dcpload *ck, struct dcp_err *err)
{
	struct dcp_rules *rules = NULL;
	int rc = dcp_checkpoint_scan(&ck->of, err);

	if (rc < 0)
		return rc;
	rc = read_rules(ck->config.rules, &rules, err);
	ck->of.mapped = ck->config.rules || ck->config.part;
	ck->of.map = (struct dcp_map_opts){ .rules = rules,
					    .part = ck->config.part,
					    .assets = ck->config.assets,
					    .cast = DCP_DTYPE_OTHER };
	if (rc == 0)
		rc = dcp_checkpoint_open(&ck->of, NULL, err);
	dcp_rules_free(rules);
	ck->of.map.rules = NULL;
	if (rc == 0) {
		ck->of.wanted = ck->of.name = dcp_arena_strdup(&ck->arena, ck->of.name);
		rc = ck->of.name ? 0 : dcp_err_say(err, -ENOMEM);
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
	if (dcp_buf_printf(&path, "%s/%s", ck->mount,
			   ck->of.wanted ? ck->of.wanted : "latest") < 0)
		return dcp_err_say(err, -ENOMEM);
	dir = realpath(path.p, NULL);
	if (!dir)
		return dcp_fail(err, -errno, "%s: %m", path.p);
	name = strrchr(dir, '/') + 1;
	name = dcp_arena_strdup(&ck->arena, name);
	dcp_buf_reset(&path);
	dcp_buf_printf(&path, "%s/shard/fsdp1/0", dir);
	ck->of.source =
		dcp_buf_error(&path) ? NULL : dcp_arena_strndup(&ck->arena, path.p, path.n);
	if (!name || !ck->of.source)
		return dcp_err_say(err, -ENOMEM);
	ck->through = why;
	ck->of.mount = ck->of.wanted = NULL;
	ck->of.store.cache_dir = NULL;
	rc = open_files(ck, err);
	ck->of.wanted = ck->of.name = name;
	return rc;
}

int load_open_any(struct dcpload *ck, struct dcp_err *err)
{
	struct dcp_err own = { 0 };
	int rc, through;

	ck->of.source = ck->backing;
	ck->of.mount = ck->mount;
	ck->of.store.cache_dir = ck->cache;
	ck->through = NULL;
	if (!ck->mount)
		return open_files(ck, err);
	if (ck->config.io == DCPLOAD_IO_MOUNT)
		return load_open_through(ck, "asked for", err);
	rc = open_files(ck, &own);
	if (rc == 0)
		return 0;
	through = load_open_through(ck, dcp_arena_strdup(&ck->arena, own.msg), err);
	if (rc == -ENOENT && through == -ENOENT) /* it says more of names */
		*err = own;
	return through;
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
	return ck->of.name;
}

const char *dcpload_passed_over(const struct dcpload *ck)
{
	return ck->of.passed;
}

const char *dcpload_source_layout(const struct dcpload *ck, uint32_t *rank)
{
	if (rank)
		*rank = ck->of.layout_rank;
	return ck->of.layout;
}

const char *dcpload_fact(const struct dcpload *ck, const char *name)
{
	return dcp_index_meta(dcp_version_index(ck->of.v), name);
}

int dcpload_version_at(const struct dcpload *ck, uint64_t i, const char **name,
		       const char **why)
{
	const struct dcp_found *f;

	if (i >= ck->of.scan.n)
		return -ENOENT;
	f = &ck->of.scan.found[i];
	*name = ck->through ? ck->of.name
			    : f->name; /* the only one; its directory is named otherwise */
	*why = f->complete ? NULL : f->why ? f->why : "its commit mark is missing";
	return 0;
}

/*
 * The file that the mount, whose options are @text, has its layout @name from; NULL: it is built
 * in.
 */
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
	dcp_auto_json struct dcp_json *options = NULL;
	dcp_auto_fd int fd = -1;
	struct dcp_source src;
	const char *file = NULL;

	if (ck->mount && ck->of.layout &&
	    asprintf(&path, "%s/.dcpfs/config.json", ck->mount) >= 0)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && dcp_source_fd(fd, &src) == 0 &&
	    dcp_json_read(&src, MAX_OPTIONS, NULL, &options, NULL) == 0)
		file = file_of(options, ck->of.layout);
	return dcp_checkpoint_layouts(&ck->of, file, config, NULL, &ck->layouts, err);
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
