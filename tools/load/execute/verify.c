/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare the loaded bytes with a record of dcpfs verify.
 *
 * The digest is that of a whole tensor. Where the whole tensor is in memory as it was stored, that
 * memory is digested. A part, or converted numbers, are compared with the bytes of a view, and the
 * whole tensor of that view is digested.
 */
#include "tools/load/load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/store/io/files.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"

/* Buffers for comparing, which are reused for all parts. Zero it first. */
struct load_rooms {
	void *stored, *got, *expected;
};

/* Compares the destinations with views of the checkpoint. A view reads a tensor without chunks,
 * windows or messages. */

enum { BAND = 1 << 20 };

/* Compare @n bytes at @at of a destination. Bytes on a device are first copied to @got, a buffer of
 * BAND bytes. */
static int compare_bytes(const struct dcpload_plan *p, const struct load_target *t,
			 const char *at, const char *expected, uint64_t n, void *got)
{
	struct load_device *d = p->device;
	int rc = 0;

	if (!t->on_device)
		return memcmp(at, expected, n) ? -EILSEQ : 0;
	for (uint64_t i = 0, now; i < n && rc == 0; i += now) {
		now = DCP_MIN(n - i, (uint64_t)BAND);
		rc = d->kind->fetch(d, got, at + i, now);
		if (rc == 0 && memcmp(got, expected + i, now))
			rc = -EILSEQ;
	}
	return rc;
}

/* Compare the part from element @e on with the @n bytes in room->stored. -EILSEQ. */
static int compare_part(const struct dcpload_plan *p, const struct load_want *w, uint64_t e,
			uint64_t n, const struct load_rooms *room)
{
	const struct load_target *t = &w->target;
	struct load_target own = *t;
	uint64_t count = n / t->from;

	own.swap = 0; /* the view has swapped bytes already */
	own.stride = NULL;
	own.base = room->expected;
	own.plain = own.dtype == own.shown;
	load_place_run(&own, 0, room->stored, n);
	for (uint64_t i = 0; i < count;) {
		uint64_t run = t->stride ? DCP_MIN(count - i, t->inner - (e + i) % t->inner)
					 : count - i;

		int rc = compare_bytes(p, t, load_address(t, e + i), own.base + i * t->to,
				       run * t->to, room->got);

		if (rc < 0)
			return rc;
		i += run;
	}
	return 0;
}

/* Allocate the buffers: BAND bytes, and their converted form. */
static int make_rooms(struct load_rooms *r)
{
	r->stored = r->stored ? r->stored : malloc(BAND);
	r->got = r->got ? r->got : malloc(BAND);
	r->expected = r->expected ? r->expected : malloc(BAND * 8);
	return r->stored && r->got && r->expected ? 0 : -ENOMEM;
}

static void load_rooms_finish(struct load_rooms *r)
{
	free(r->stored);
	free(r->got);
	free(r->expected);
}

static int load_check_want(struct dcpload_plan *p, const struct load_want *w,
			   struct load_rooms *room, struct dcp_err *err)
{
	uint64_t step = BAND - BAND % w->target.from;
	dcp_auto_view struct dcp_view *view = NULL;
	int rc = make_rooms(room);

	if (rc == 0)
		rc = dcp_view_open(p->ck->of.v, w->id, DCP_AS_RAW, &w->cut, &view, err);

	for (uint64_t at = 0; rc == 0 && at < w->stored; at += step) {
		uint64_t n = DCP_MIN(w->stored - at, step);

		rc = dcp_view_read(view, at, room->stored, n);
		if (rc == 0)
			rc = compare_part(p, w, at / w->target.from, n, room);
		if (rc == -EILSEQ)
			dcp_fail(err, rc,
				 "%s: what was loaded differs from what is stored, within "
				 "elements %llu to %llu of the part",
				 w->key, (unsigned long long)(at / w->target.from),
				 (unsigned long long)((at + n) / w->target.from));
	}
	return rc;
}

int dcpload_check(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_rooms room = { 0 };
	struct dcpload_error unused;
	struct dcp_err own = { 0 };
	int rc = 0;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	if (load_keep_up(p, err) < 0)
		return err->code;
	for (size_t i = 0; i < p->nwant && rc == 0; i++)
		if (p->want[i].id)
			rc = p->want[i].complete
				     ? load_check_want(p, &p->want[i], &room, &own)
				     : dcp_fail(&own, -ENODATA, "%s is not complete",
						p->want[i].key);
	load_rooms_finish(&room);
	if (rc < 0 && !own.msg[0])
		load_device_said(p->device, rc, err);
	else
		load_fail_err(err, rc, &own);
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	return load_while(err, rc, "checking");
}

int dcpload_drop_caches(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct dcp_files *files = dcp_version_files(p->ck->of.v);
	struct dcpload_error unused;
	uint32_t last = UINT32_MAX;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	for (size_t i = 0; i < p->nneed; i++) {
		const struct dcp_file *file;

		if (p->need[i].file == last)
			continue;
		last = p->need[i].file;
		if (dcp_files_hold(files, last, true, &file, NULL) < 0)
			continue;
		if (file->fd >= 0)
			dcp_forget_pages(file->fd, file->map, file->size);
		dcp_files_release(files, last);
	}
	return load_agree(p->ck->comm, 0, err, (int)p->ck->config.timeout_ms);
}

enum { MOST_TEXT = 1 << 30 };

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct load_line *)a)->key, ((const struct load_line *)b)->key);
}

static int read_hex(char c)
{
	return dcp_is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Undo the escaping of a key in a cell of TSV, in place. */
static bool unescape_key(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (*s != '\\') {
			*to++ = *s;
		} else if (s[1] == '\\') {
			*to++ = *++s;
		} else if (s[1] == 'x' && read_hex(s[2]) >= 0 && read_hex(s[3]) >= 0) {
			*to++ = (char)(read_hex(s[2]) << 4 | read_hex(s[3]));
			s += 3;
		} else {
			return false;
		}
	}
	*to = '\0';
	return true;
}

static int read_text(struct load_record *r, const char *path, size_t *size, struct dcp_err *err)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	size_t n = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		return dcp_fail(err, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_size > MOST_TEXT)
		return dcp_fail(err, -EINVAL, "%s: not a record of dcpfs verify", path);
	*size = (size_t)st.st_size;
	r->text = calloc(1, *size + 1);
	if (!r->text)
		return -ENOMEM;
	while (n < *size) {
		ssize_t got = read(fd, r->text + n, *size - n);

		if (got <= 0)
			return dcp_fail(err, -EIO, "%s: cannot be read", path);
		n += (size_t)got;
	}
	return strlen(r->text) == *size
		       ? 0
		       : dcp_fail(err, -EINVAL, "%s: not a record of dcpfs verify", path);
}

size_t load_record_digest(const char *line)
{
	size_t n = strspn(line, "0123456789abcdef");

	return (n == 32 || n == 64) && (!line[n] || strncmp(line + n, "  ", 2) == 0) ? n : 0;
}

static int take_lines(struct load_record *r, const char *path, struct dcp_err *err)
{
	char *next;

	for (char *line = r->text; *line; line = next) {
		size_t n = strcspn(line, "\n"), digits;
		struct load_line l = { .digest = line };

		next = line + n + (line[n] == '\n');
		line[n] = '\0';
		digits = load_record_digest(line);
		if (!digits || !line[digits] || !unescape_key(line + digits + 2))
			return dcp_fail(err, -EINVAL,
					"%s: line %zu is not a digest, two spaces and a key",
					path, DCP_NITEMS(r->lines, struct load_line) + 1);
		line[digits] = '\0';
		l.key = line + digits + 2;
		dcp_buf_add(&r->lines, &l, sizeof(l));
	}
	return dcp_buf_error(&r->lines);
}

/* Refuse digests of other kinds, and statements about other things. */
static int take_statement(struct load_record *r, const char *path, size_t size,
			  struct dcp_err *err)
{
	struct dcp_json *root = NULL;
	const struct dcp_json *subjects;
	const char *type;
	struct dcp_err why = { 0 };
	int rc = dcp_json_parse(r->text, size, &root, &why);

	if (rc < 0 && rc != -ENOMEM)
		return dcp_fail(err, -EINVAL, "%s: %s", path, why.msg);

	type = rc == 0 ? dcp_json_str(dcp_json_get(root, "_type")) : NULL;
	subjects = rc == 0 ? dcp_json_get(root, "subject") : NULL;
	if (rc == 0 && (!type || strcmp(type, LOAD_STATEMENT) != 0 || !subjects))
		rc = dcp_fail(err, -EINVAL, "%s: not a record of dcpfs verify", path);
	for (size_t i = 0; rc == 0 && i < dcp_json_len(subjects); i++) {
		const struct dcp_json *s = dcp_json_at(subjects, i);
		const struct dcp_json *digests = dcp_json_get(s, "digest");
		const char *key = dcp_json_str(dcp_json_get(s, "name"));
		const char *sha = dcp_json_str(dcp_json_get(digests, "dcpfsTensorSha256"));
		const char *digest =
			sha ? sha : dcp_json_str(dcp_json_get(digests, "dcpfsTensorXxh3"));
		size_t n = digest ? load_record_digest(digest) : 0;
		struct load_line l;

		if (!key || !n || digest[n])
			rc = dcp_fail(err, -EINVAL,
				      "%s: subject %zu is not a tensor and its digest by dcpfs",
				      path, i + 1);
		if (rc < 0)
			break;
		l = (struct load_line){ dcp_arena_strdup(&r->arena, key),
					dcp_arena_strdup(&r->arena, digest) };
		dcp_buf_add(&r->lines, &l, sizeof(l));
		rc = l.key && l.digest ? dcp_buf_error(&r->lines) : -ENOMEM;
	}
	dcp_json_free(root);
	return rc;
}

int load_record_read(const char *path, struct load_record *r, struct dcp_err *err)
{
	size_t size = 0;
	int rc;

	r->arena = (struct dcp_arena)DCP_ARENA_INIT((size_t)2 << 30);
	rc = read_text(r, path, &size, err);
	if (rc == 0)
		rc = r->text[strspn(r->text, " \t\r\n")] == '{'
			     ? take_statement(r, path, size, err)
			     : take_lines(r, path, err);
	if (rc == 0 && r->lines.n)
		qsort(r->lines.p, DCP_NITEMS(r->lines, struct load_line),
		      sizeof(struct load_line), by_key);
	for (size_t i = 1; rc == 0 && i < DCP_NITEMS(r->lines, struct load_line); i++) {
		const struct load_line *l = &DCP_ITEMS(r->lines, struct load_line)[i];

		if (strcmp(l[-1].key, l->key) == 0)
			rc = dcp_fail(err, -EINVAL, "%s: %.200s is there twice", path, l->key);
	}
	return rc;
}

void load_record_finish(struct load_record *r)
{
	dcp_buf_finish(&r->lines);
	dcp_arena_finish(&r->arena);
	free(r->text);
}

/* NULL: the key is not recorded. */
static const struct load_line *load_record_find(const struct load_record *r, const char *key)
{
	const struct load_line wanted = { .key = key };

	return r->lines.n ? bsearch(&wanted, r->lines.p, DCP_NITEMS(r->lines, struct load_line),
				    sizeof(wanted), by_key)
			  : NULL;
}

enum { VERIFY_BAND = 1 << 20 };

/* Is the whole tensor in memory, in the form that the view shows? */
static bool is_whole(const struct load_want *w, const struct dcp_view *view)
{
	const struct load_target *t = &w->target;

	return dcp_view_size(view) == w->stored && w->stored == w->nbytes && !t->stride &&
	       t->dtype == t->shown;
}

static int digest_want(struct dcpload_plan *p, const struct load_want *w,
		       const struct load_line *line, void *band, struct load_rooms *rooms,
		       struct dcp_err *err)
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

		n = DCP_MIN(dcp_view_size(view) - at, (uint64_t)VERIFY_BAND);
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
	return rc < 0 || whole ? rc : load_check_want(p, w, rooms, err);
}

int dcpload_verify(struct dcpload_plan *p, const char *path, struct dcpload_error *err)
{
	dcp_auto_free void *band = malloc(VERIFY_BAND);
	struct load_rooms rooms = { 0 };
	struct load_record r = { .text = NULL };
	struct dcpload_error unused;
	struct dcp_err own = { 0 };
	int rc = band ? 0 : -ENOMEM;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	if (load_keep_up(p, err) < 0)
		return err->code;
	if (rc == 0)
		rc = load_record_read(path, &r, &own);
	for (size_t i = 0; i < p->nwant && rc == 0; i++) {
		const struct load_want *w = &p->want[i];
		const struct load_line *line;

		if (!w->id)
			continue;
		line = load_record_find(&r, w->key);
		if (!line)
			rc = dcp_fail(&own, -ENOKEY, "%s is not recorded in %s", w->key, path);
		else if (!w->complete)
			rc = dcp_fail(&own, -ENODATA, "%s is not complete", w->key);
		else
			rc = digest_want(p, w, line, band, &rooms, &own);
	}
	load_record_finish(&r);
	load_rooms_finish(&rooms);
	if (rc < 0 && !own.msg[0])
		load_device_said(p->device, rc, err);
	else
		load_fail_err(err, rc, &own);
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	return load_while(err, rc, "verifying");
}
