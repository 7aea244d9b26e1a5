/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/fake.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"

struct t_fake t_fake;

static enum dcp_match probe_fake(const struct dcp_dir *dir, char *why, size_t n)
{
	if (dcp_dir_find(dir, "COMMIT"))
		return DCP_MATCH_YES;
	for (size_t i = 0; i < dir->n; i++)
		if (strstr(dir->entries[i].name, ".shard")) {
			snprintf(why, n, "no COMMIT");
			return DCP_MATCH_INCOMPLETE;
		}
	for (size_t i = 0; i < dir->n; i++)
		if (strstr(dir->entries[i].name, ".loose"))
			return DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

/* "a.loose" and "a-2.loose" are version a. */
static bool group_fake(const char *file, char *version)
{
	size_t n = strcspn(file, "-.");

	memcpy(version, file, n);
	version[n] = '\0';
	return strstr(file, ".loose") != NULL;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	(void)dir;
	return "COMMIT";
}

enum { MOST = 8 };

/* The tensor that is being read. */
struct telling {
	char key[64];
	uint64_t n; /* its bytes so far */
	struct dcp_piece piece[MOST], copy[MOST];
	size_t npieces, ncopies;
};

static int tell_shard(const struct dcp_sink *s, struct telling *w)
{
	static const uint64_t zero;
	const char *key = w->key;
	const struct dcp_tensor t = { .key = key,
				      .path = &key,
				      .npath = 1,
				      .dtype = DCP_DTYPE_U8,
				      .itemsize = 1,
				      .ndim = 1,
				      .shape = &w->n,
				      .pieces = w->piece,
				      .npieces = w->npieces,
				      .copies = w->copy,
				      .ncopies = w->ncopies };
	int code;

	for (size_t i = 0; i < w->npieces; i++)
		w->piece[i].lo = &zero, w->piece[i].len = &w->n;
	for (size_t i = 0; i < w->ncopies; i++)
		w->copy[i].lo = &zero, w->copy[i].len = &w->n;
	code = w->npieces ? dcp_emit_tensor(s, &t) : 0;
	w->n = w->npieces = w->ncopies = 0;
	return code;
}

static int add_line(const struct dcp_sink *s, struct telling *w, const char *key,
		    const char *name, uint64_t off, uint64_t n)
{
	struct dcp_piece p = { .run_lo = w->n, .run_n = n, .off = off, .nbytes = n };
	int code = strchr("+=", *key) ? 0 : tell_shard(s, w);

	if (code == 0)
		code = dcp_emit_file(s, name, &p.file);
	if (*key == '=') {
		p.run_lo -= n;
		w->copy[w->ncopies++] = p;
		return code;
	}
	if (*key != '+') {
		p.run_lo = 0;
		snprintf(w->key, sizeof(w->key), "%s", key);
	}
	w->piece[w->npieces++] = p;
	w->n += n;
	return code;
}

static int load_fake(const struct dcp_load *in, struct dcp_err *err)
{
	char text[4096] = "", key[64], name[64];
	struct telling w = { .n = 0 };
	unsigned long long off, n;
	dcp_auto_blob struct dcp_blob blob = { 0 };
	uint32_t number;
	int used, code = dcp_emit_file(in->sink, "COMMIT", &number);

	t_fake.loads++;
	if (code == 0)
		code = dcp_site_open(&in->dir->at, "COMMIT", &blob, NULL, err);
	if (code == 0 && t_fake.emit)
		return t_fake.emit(in->sink);
	if (code == 0)
		code = dcp_blob_read(&blob, 0, text,
				     DCP_MIN(blob.size, (uint64_t)sizeof(text) - 1));
	for (char *p = text;
	     code == 0 && sscanf(p, "%63s %63s %llu %llu\n%n", key, name, &off, &n, &used) == 4;
	     p += used)
		code = add_line(in->sink, &w, key, name, off, n);
	if (code == 0)
		code = tell_shard(in->sink, &w);
	if (code == 0) /* facts about the version are not the adapter's to change */
		code = dcp_emit_meta(in->sink, "format", "evil");
	if (in->progress)
		in->progress->report(in->progress->ctx, 1, 1, "COMMIT");
	if (t_fake.during)
		t_fake.during(t_fake.x);
	if (code == 0 && t_fake.fail)
		return dcp_fail(err, t_fake.fail, "COMMIT: told to fail");
	return code;
}

const struct dcp_format t_fake_format = {
	.name = "fake",
	.what = "a checkpoint for tests",
	.probe = probe_fake,
	.group = group_fake,
	.commit_file = commit_file,
	.load = load_fake,
};

const struct dcp_format *const dcp_formats[] = { &t_fake_format, NULL };
