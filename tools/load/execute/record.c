/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/execute/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/number.h"
#include "core/parse/json.h"

enum { MOST_TEXT = 1 << 30 };

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct load_line *)a)->key, ((const struct load_line *)b)->key);
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
		if (!digits || !line[digits] || !unescape(line + digits + 2))
			return dcp_fail(err, -EINVAL,
					"%s: line %zu is not a digest, two spaces and a key",
					path, DCP_NITEMS(r->lines, struct load_line) + 1);
		line[digits] = '\0';
		l.key = line + digits + 2;
		dcp_buf_add(&r->lines, &l, sizeof(l));
	}
	return dcp_buf_error(&r->lines);
}

/* Digests of other kinds, and statements about something else, are no record. */
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

const struct load_line *load_record_find(const struct load_record *r, const char *key)
{
	const struct load_line wanted = { .key = key };

	return r->lines.n ? bsearch(&wanted, r->lines.p, DCP_NITEMS(r->lines, struct load_line),
				    sizeof(wanted), by_key)
			  : NULL;
}
