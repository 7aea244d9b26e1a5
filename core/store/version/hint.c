/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing here is needed to serve a checkpoint. It helps a user who named the wrong directory, or a
 * checkpoint of a family that dcpfs does not read yet. */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/name.h"
#include "core/origin/dir/dir.h"
#include "core/store/version/version_int.h"

enum { MAX_LOOKED_AT = 1000 };

/* The first of @marks that @dir contains, and its name there; NULL: none. */
static const struct dcp_mark *find_mark(const struct dcp_mark *marks, bool general,
					const struct dcp_dir *dir, const char **name)
{
	for (const struct dcp_mark *m = marks; m && m->glob; m++) {
		for (size_t i = 0; i < dir->n && m->general == general; i++)
			if (!fnmatch(m->glob, dir->entries[i].name, FNM_EXTMATCH)) {
				*name = dir->entries[i].name;
				return m;
			}
	}
	return NULL;
}

/* The mark of a family that @dir contains, and its name there; NULL: none. */
static const struct dcp_mark *family_of(const struct dcp_dir *dir, const char **name)
{
	const struct dcp_mark *m = NULL;

	for (int general = 0; !m && general < 2; general++) {
		for (size_t i = 0; !m && dcp_formats[i]; i++)
			m = find_mark(dcp_formats[i]->marks, general, dir, name);
		if (!m)
			m = find_mark(dcp_foreign, general, dir, name);
	}
	return m;
}

bool dcp_scan_family(const struct dcp_dir *dir, char *why, size_t n)
{
	const char *mark;
	const struct dcp_mark *f = family_of(dir, &mark);

	if (!f || !f->todo)
		return false;
	snprintf(why, n, "it is %s, by its %.60s, which dcpfs does not read: %s", f->what, mark,
		 f->todo);
	return true;
}

/* First bytes of files that have lost their extension, and what the user can do. */
static const struct {
	uint8_t at, n;
	const char *bytes, *what;
} beginnings[] = {
	{ 0, 5, "|TZR|", "a model of tensorizer, which dcpfs does not read" },
	{ 0, 4, "PK\3\4", "a zip archive: if torch.save wrote it, call it .pt" },
	{ 0, 1, "\x80", "a pickle: call it .pkl, or .pt if torch.save wrote it" },
	{ 8, 2, "{\"", "a safetensors file: call it .safetensors" },
	{ 0, 4, "GGUF", "a GGUF model of llama.cpp, which dcpfs does not read" },
	{ 0, 4, "\x89HDF", "a HDF5 file, which dcpfs does not read" },
	{ 0, 6, "\x93NUMPY", "a numpy array: call it .npy" },
	{ 4, 4, "TFL3", "a TensorFlow Lite program, which dcpfs does not read" },
	{ 4, 4, "ET12", "an ExecuTorch program, which dcpfs does not read" },
};

/* The format that the first bytes of the only file show; NULL: unknown. *@shut: the file may not be
 * read. */
static const char *beginning_of(const struct dcp_dir *dir, bool *shut)
{
	struct dcp_input input;
	char head[16] = { 0 };
	int rc;

	*shut = false;
	if (dir->n != 1 || dir->entries[0].is_dir)
		return NULL;
	rc = dcp_dir_input(dir, dir->entries[0].name, &input, NULL);
	*shut = rc == -EACCES;
	if (rc < 0)
		return NULL;
	rc = dcp_source_read(&input.src, 0, head, DCP_MIN(sizeof(head), input.src.size));
	dcp_input_close(&input);
	for (size_t i = 0; rc == 0 && i < DCP_LEN(beginnings); i++)
		if (memcmp(head + beginnings[i].at, beginnings[i].bytes, beginnings[i].n) == 0)
			return beginnings[i].what;
	return NULL;
}

/* What the search below the directory found; the last by name is the newest. */
struct hunt {
	unsigned looked_at;
	char *path; /* path of a checkpoint further down */
	char *name;
	const struct dcp_format *format;
	char *other; /* name of a directory of another family */
	const struct dcp_mark *family;
	char *shut; /* the first directory that may not be read */
};

static void note_find(struct hunt *h, const struct dcp_dir *dir, const char *name)
{
	enum dcp_match match = DCP_MATCH_NO;
	const struct dcp_format *format = dcp_format_probe(dir, &match, NULL, 0);
	const char *mark;

	if (format && match != DCP_MATCH_INCOMPLETE &&
	    (!h->name || dcp_order_compare(h->name, 0, name, 0) < 0)) {
		free(h->path);
		free(h->name);
		h->path = strdup(dir->path);
		h->name = strdup(name);
		h->format = format;
	}
	if (!format && !h->other && family_of(dir, &mark)) {
		h->other = strdup(dir->path);
		h->family = family_of(dir, &mark);
	}
}

static void hunt_below(struct hunt *h, const struct dcp_dir *dir, int levels)
{
	for (size_t i = dir->n; i-- > 0 && h->looked_at < MAX_LOOKED_AT;) {
		const struct dcp_dirent *e = &dir->entries[i];
		dcp_auto_dir struct dcp_dir child = { 0 };
		int rc = !e->is_dir || *e->name == '.'
				 ? -ENOTDIR
				 : dcp_dir_open_at(dir, e->name, &child, NULL);

		if (rc == -EACCES && !h->shut &&
		    asprintf(&h->shut, "%s/%s", dir->path, e->name) < 0)
			h->shut = NULL;
		if (rc < 0)
			continue;
		h->looked_at++;
		note_find(h, &child, e->name);
		if (levels > 1)
			hunt_below(h, &child, levels - 1);
	}
}

/* "torch.distributed.checkpoint, safetensors files": what this program knows. */
static void put_known(struct dcp_buf *b)
{
	size_t start = b->n;

	for (size_t i = 0; dcp_formats[i]; i++) {
		if (b->n - start + strlen(dcp_formats[i]->what) > 160) {
			dcp_buf_str(b, ", ...");
			return;
		}
		dcp_buf_printf(b, "%s%s", i ? ", " : "", dcp_formats[i]->what);
	}
}

/* Append ": " and what to do about a family that dcpfs does not read, or why a readable one is not
 * shown. */
static void put_todo(struct dcp_buf *b, const struct dcp_mark *f)
{
	if (f->todo)
		dcp_buf_printf(b, ", which dcpfs does not read: %s", f->todo);
	else
		dcp_buf_str(
			b,
			", but what dcpfs reads of one is neither in it nor two levels below");
}

bool dcp_scan_leads_out(const struct dcp_dir *dir, const struct dcp_dirent *e)
{
	return e->leads_out;
}

/* The first link in @dir to a directory elsewhere; NULL: there is none. */
static const char *way_out(const struct dcp_dir *dir)
{
	for (size_t i = 0; i < dir->n; i++)
		if (dcp_scan_leads_out(dir, &dir->entries[i]))
			return dir->entries[i].name;
	return NULL;
}

static void explain_dir(struct dcp_buf *b, const struct dcp_dir *dir, const struct hunt *h)
{
	const char *mark;
	const struct dcp_mark *family = family_of(dir, &mark);

	if (family && !(h->path && !family->todo)) {
		dcp_buf_printf(b, "is %s, by its %.60s", family->what, mark);
		put_todo(b, family);
		return;
	}
	if (h->other && !h->path) {
		dcp_buf_printf(b, "holds %.200s, %s", h->other, h->family->what);
		put_todo(b, h->family);
		return;
	}
	dcp_buf_str(b, "is not a checkpoint: ");
	dcp_buf_str(b, "looked in it and two levels below for ");
	put_known(b);
	if (h->path) {
		dcp_buf_printf(b, "; closest: %.200s (%s)", h->path, h->format->what);
	} else if (way_out(dir)) {
		dcp_buf_printf(b, "; of %.60s: " DCP_SCAN_LEADS_OUT, way_out(dir));
	} else if (dir->n) {
		dcp_buf_printf(b, "; it holds %.60s%s", dir->entries[0].name,
			       dir->n > 1 ? " and more" : "");
	} else {
		dcp_buf_str(b, "; it is empty");
	}
}

int dcp_scan_explain_part(const struct dcp_dir *dir, struct dcp_err *err)
{
	const char *slash = strrchr(dir->path, '/'), *mark;
	const struct dcp_mark *family = family_of(dir, &mark);
	int n = slash > dir->path ? (int)(slash - dir->path) : 1;
	const struct dcp_format *format = NULL;
	enum dcp_match match = DCP_MATCH_NO;
	char above[300];
	struct dcp_dir all;

	snprintf(above, sizeof(above), "%.*s", n, dir->path);
	if (dcp_dir_open(above, &all, NULL) == 0) {
		format = dcp_format_probe(&all, &match, NULL, 0);
		dcp_dir_close(&all);
	}
	if (format && match == DCP_MATCH_YES)
		return dcp_fail(err, -EINVAL,
				"%.200s is one file of a checkpoint; the whole is %.200s (%s)",
				dir->path, above, format->what);
	if (family && family->todo)
		return dcp_fail(err, -EINVAL,
				"%.200s is %s, by its name, which dcpfs does not read: %s",
				dir->path, family->what, family->todo);
	if (family)
		return dcp_fail(
			err, -EINVAL,
			"%.200s is not a checkpoint by itself: by its name it belongs to %s",
			dir->path, family->what);
	return 0;
}

static int fail_shut(const char *path, struct dcp_err *err)
{
	return dcp_fail(err, -EACCES, "%.300s: %s", path, strerror(EACCES));
}

static int explain_file(const struct dcp_dir *dir, struct dcp_err *err)
{
	bool shut;
	const char *beginning = beginning_of(dir, &shut);

	if (dcp_scan_explain_part(dir, err) < 0)
		return -EINVAL;
	if (shut)
		return fail_shut(dir->path, err);
	if (beginning)
		return dcp_fail(err, -EINVAL,
				"%.200s is not a checkpoint by its name, but begins like %s",
				dir->path, beginning);
	return dcp_fail(err, -EINVAL,
			"%.200s is a file, but not a checkpoint by its name or its first bytes",
			dir->path);
}

int dcp_scan_explain(const struct dcp_dir *dir, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct hunt h = { 0 };
	int rc;

	if (dir->is_file)
		return explain_file(dir, err);
	hunt_below(&h, dir, 3); /* run/checkpoints/step-5 */
	explain_dir(&b, dir, &h);
	if (dcp_buf_error(&b))
		rc = dcp_err_say(err, -ENOMEM);
	else if (h.shut && !h.path && !h.other && !dcp_scan_family(dir, NULL, 0))
		rc = fail_shut(h.shut, err);
	else
		rc = dcp_fail(err, -EINVAL, "%.120s %s", dir->path, b.p);
	free(h.path);
	free(h.name);
	free(h.other);
	free(h.shut);
	return rc;
}
