/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that name what each rank holds region by region. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/model/layout/layout.h"
#include "core/store/layouts/layouts.h"
#include "tools/load/load.h"

enum { MAX_FILE = 256 << 20 };

static const char blanks[] = " \t\r\n";

bool load_is_regions(const char *layout)
{
	return dcp_has_extension(layout, DCP_REGIONS_EXT);
}

static size_t trimmed(const char *s, size_t n)
{
	while (n && strchr(blanks, s[n - 1]))
		n--;
	return n;
}

/* The number at *s, if there is one. */
static bool take(const char **s, uint64_t *out)
{
	*s += strspn(*s, blanks);
	return !dcp_is_digit(**s) || dcp_take_number(s, NULL, DCP_ANY_DIGITS, out);
}

/* "2:4, :, 8:]" */
static bool parse_box(const char *s, struct load_region *r)
{
	s += strspn(s, blanks);
	if (*s == ']')
		return true;
	for (;; s++) {
		uint64_t lo = 0, hi = UINT64_MAX;

		if (r->ndim == DCPLOAD_MAX_NDIM || !take(&s, &lo) || *s++ != ':' ||
		    !take(&s, &hi))
			return false;
		r->lo[r->ndim] = lo;
		r->hi[r->ndim++] = hi;
		s += strspn(s, blanks);
		if (*s != ',')
			return *s == ']';
	}
}

/* 1: a region; 0: nothing, or a rank alone; -EBADMSG. */
static int parse_line(char *line, struct load_region *r, uint32_t *ranks)
{
	const char *s = line + strspn(line, blanks), *box = NULL;
	uint64_t rank;

	line[trimmed(line, strlen(line))] = '\0';
	if (*s == '#' || !*s)
		return 0;
	if (!dcp_take_number(&s, NULL, DCP_ANY_DIGITS, &rank) || !strchr(blanks, *s) ||
	    rank >= DCP_LAYOUT_MAX_RANKS)
		return -EBADMSG;
	*ranks = DCP_MAX(*ranks, (uint32_t)rank + 1);
	s += strspn(s, blanks);
	*r = (struct load_region){ .rank = (uint32_t)rank, .text = s, .nkey = strlen(s) };
	if (r->nkey && s[r->nkey - 1] == ']')
		box = strrchr(s, '[');
	if (box) {
		r->box = true;
		r->nkey = trimmed(s, (size_t)(box - s));
		if (!r->nkey || !parse_box(box + 1, r))
			return -EBADMSG;
	}
	return r->nkey != 0;
}

int load_regions(const char *path, uint32_t *ranks,
		 int (*add)(void *ctx, const struct load_region *r), void *ctx,
		 struct dcp_err *err)
{
	dcp_auto_free char *line = NULL;
	struct load_region r;
	struct stat st;
	size_t room = 0;
	ssize_t got;
	int rc = 0;
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO, too */
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");

	*ranks = 0;
	if (f)
		dcp_take_fd(&fd);
	if (!f || fstat(fileno(f), &st) < 0)
		rc = dcp_fail(err, -errno, "layout %.300s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE)
		rc = dcp_fail(err, -EBADMSG,
			      "%.300s: not a layout: not a file, or more than %d bytes", path,
			      MAX_FILE);
	for (uint64_t n = 1; rc == 0 && (got = getline(&line, &room, f)) > 0; n++) {
		rc = strlen(line) == (size_t)got ? parse_line(line, &r, ranks) : -EBADMSG;
		if (rc < 0)
			rc = dcp_fail(err, rc, "expected RANK KEY [LO:HI, ...], found %.200s",
				      line);
		if (rc > 0)
			rc = add ? add(ctx, &r) : 0;
		if (rc < 0)
			dcp_err_where(err, rc, "%.200s:%llu", path, (unsigned long long)n);
	}
	if (rc == 0 && !feof(f))
		rc = dcp_fail(err, -EIO, "%.300s cannot be read", path);
	if (rc == 0 && !*ranks)
		rc = dcp_fail(err, -EBADMSG, "%.300s names no rank", path);
	if (f)
		fclose(f);
	return rc;
}

int load_cut_region(const struct load_region *r, const struct dcp_row *row,
		    struct dcp_arena *arena, struct dcp_cut *out, struct dcp_err *err)
{
	uint64_t len[DCPLOAD_MAX_NDIM];
	bool fits = r->ndim == row->ndim;
	char shape[160];
	int rc;

	for (uint32_t d = 0; fits && d < r->ndim; d++) {
		uint64_t hi = r->hi[d] == UINT64_MAX ? row->shape[d] : r->hi[d];

		fits = r->lo[d] <= hi && hi <= row->shape[d];
		len[d] = hi - r->lo[d];
	}
	if (r->box && !fits)
		return dcp_fail(err, -EBADMSG, "%.200s is outside of its shape %s", r->text,
				dcp_dims_text(shape, sizeof(shape), row->shape, row->ndim));
	rc = r->box ? dcp_cut_box(out, row->ndim, r->lo, len, arena)
		    : dcp_cut_whole(out, row->ndim, row->shape, arena);
	return rc < 0 ? dcp_err_say(err, rc) : 1;
}
