/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare what landed in memory with a record of dcpfs verify.
 *
 * The digest is that of a whole tensor. Where the whole tensor is in memory as it was stored, that memory is digested. A part, or
 * numbers that were converted, are compared with what a view reads, and the whole tensor of that view is digested.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/base/number.h"
#include "core/store/view/digest.h"
#include "core/store/view/view.h"
#include "tools/load/execute/execute_int.h"
#include "tools/load/load.h"
#include "tools/load/memory/memory.h"

enum { BAND = 1 << 20, MOST_TEXT = 1 << 30 };

struct line {
	const char *key, *digest;
};

struct record {
	const char *path;
	char *text;
	struct dcp_buf lines; /* struct line, by key */
};

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct line *)a)->key, ((const struct line *)b)->key);
}

static int hex(char c)
{
	return dcp_is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Undo how a cell of TSV spells a key, in place. */
static bool unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (*s != '\\') {
			*to++ = *s;
		} else if (s[1] == '\\') {
			*to++ = *++s;
		} else if (s[1] == 'x' && hex(s[2]) >= 0 && hex(s[3]) >= 0) {
			*to++ = (char)(hex(s[2]) << 4 | hex(s[3]));
			s += 3;
		} else {
			return false;
		}
	}
	*to = '\0';
	return true;
}

static int read_text(struct record *r, struct dcp_err *err)
{
	dcp_auto_fd int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	size_t n = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		return dcp_fail(err, -errno, "%s: %s", r->path, strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_size > MOST_TEXT)
		return dcp_fail(err, -EINVAL, "%s: not a record of dcpfs verify", r->path);
	r->text = calloc(1, (size_t)st.st_size + 1);
	if (!r->text)
		return -ENOMEM;
	while (n < (size_t)st.st_size) {
		ssize_t got = read(fd, r->text + n, (size_t)st.st_size - n);

		if (got <= 0)
			return dcp_fail(err, -EIO, "%s: cannot be read", r->path);
		n += (size_t)got;
	}
	return 0;
}

static int read_record(struct record *r, struct dcp_err *err)
{
	char *next;
	int rc = read_text(r, err);

	for (char *line = r->text; rc == 0 && *line; line = next) {
		size_t n = strcspn(line, "\n"), digits = strspn(line, "0123456789abcdef");
		struct line l = { .digest = line };

		next = line + n + (line[n] == '\n');
		line[n] = '\0';
		if ((digits != 32 && digits != 64) || strncmp(line + digits, "  ", 2) != 0 ||
		    !unescape(line + digits + 2))
			return dcp_fail(err, -EINVAL,
					"%s: line %zu is not a digest, two spaces and a key",
					r->path, DCP_NITEMS(r->lines, struct line) + 1);
		line[digits] = '\0';
		l.key = line + digits + 2;
		dcp_buf_add(&r->lines, &l, sizeof(l));
		rc = dcp_buf_error(&r->lines);
	}
	if (rc == 0 && r->lines.n)
		qsort(r->lines.p, DCP_NITEMS(r->lines, struct line), sizeof(struct line),
		      by_key);
	return rc;
}

/* Is the whole tensor there, as the view shows it? */
static bool is_whole(const struct load_want *w, const struct dcp_view *view)
{
	const struct load_target *t = &w->target;

	return dcp_view_size(view) == w->stored && w->stored == w->nbytes && !t->stride &&
	       t->dtype == t->shown;
}

static int digest_want(struct dcpload_plan *p, const struct load_want *w,
		       const struct line *line, void *band, struct dcp_err *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	char text[DCP_DIGEST_TEXT] = "";
	const struct dcp_tensor *t;
	struct dcp_digesting *d;
	bool whole;
	int rc = dcp_view_open(p->ck->of.v, w->id, DCP_AS_RAW, NULL, &view, err);

	if (rc < 0)
		return rc;
	t = dcp_view_tensor(view);
	whole = is_whole(w, view);
	d = dcp_digest_begin(strlen(line->digest) == 64 ? DCP_DIGEST_SHA256 : DCP_DIGEST_XXH3,
			     t->dtype_name, t->ndim, t->shape);
	if (!d)
		return -ENOMEM;
	for (uint64_t at = 0, n; rc == 0 && at < dcp_view_size(view); at += n) {
		const char *from = band;

		n = DCP_MIN(dcp_view_size(view) - at, (uint64_t)BAND);
		if (whole && !w->target.on_device)
			from = (const char *)load_address(&w->target, 0) + at;
		else if (whole)
			rc = p->device->kind->fetch(
				p->device, band, (const char *)load_address(&w->target, 0) + at,
				n);
		else
			rc = dcp_view_read(view, at, band, n);
		if (rc == 0)
			dcp_digest_add(d, from, n);
	}
	dcp_digest_end(d, text);
	if (rc == 0 && strcmp(text, line->digest) != 0)
		rc = dcp_fail(err, -EILSEQ, "%s: what %s is not what was recorded", w->key,
			      whole ? "was loaded" : "is stored");
	return rc < 0 || whole ? rc : load_check_want(p, w, err);
}

int dcpload_verify(struct dcpload_plan *p, const char *path, struct dcpload_error *err)
{
	dcp_auto_free void *band = malloc(BAND);
	struct record r = { .path = path };
	struct dcpload_error unused;
	struct dcp_err own = { 0 };
	int rc = band ? 0 : -ENOMEM;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	if (load_keep_up(p, err) < 0)
		return err->code;
	if (rc == 0)
		rc = read_record(&r, &own);
	for (size_t i = 0; i < p->nwant && rc == 0; i++) {
		const struct load_want *w = &p->want[i];
		struct line key = { .key = w->key }, *line;

		if (!w->id)
			continue;
		line = r.lines.n ? bsearch(&key, r.lines.p, DCP_NITEMS(r.lines, struct line),
					   sizeof(key), by_key)
				 : NULL;
		if (!line)
			rc = dcp_fail(&own, -ENOKEY, "%s is not recorded in %s", w->key, path);
		else if (!w->complete)
			rc = dcp_fail(&own, -ENODATA, "%s is not complete", w->key);
		else
			rc = digest_want(p, w, line, band, &own);
	}
	dcp_buf_finish(&r.lines);
	free(r.text);
	if (rc < 0 && !own.msg[0])
		load_device_said(p->device, rc, err);
	else
		load_fail_err(err, rc, &own);
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	return load_while(err, rc, "verifying");
}
