/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/format/format.h"
#include "tools/export/export.h"
#include "tools/load/load.h"

enum cmd_exit record_check(const char *path, const char *source)
{
	dcp_auto_fd int fd = -1;
	char line[80] = "";
	enum cmd_exit code;

	if (strcmp(path, "-") == 0)
		return CMD_OK;
	code = export_check_apart(path, source);
	if (code != CMD_OK)
		return code;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0 && read(fd, line, sizeof(line) - 1) > 0 && !load_record_digest(line) &&
	    !strstr(line, LOAD_STATEMENT))
		return cmd_fail(
			CMD_USAGE,
			"verify: --record %s: it is there, and no record; remove it, or "
			"give another name",
			path);
	return CMD_OK;
}

/* Put an in-toto statement: subjects are tensors, and the predicate describes the digests. */
static void put_statement(const struct record *r, struct dcp_jsonw *j)
{
	const char *kind = r->sha256 ? "dcpfsTensorSha256" : "dcpfsTensorXxh3";

	dcp_jsonw_object(j);
	dcp_jsonw_put_str(j, "_type", LOAD_STATEMENT);
	dcp_jsonw_put_array(j, "subject");
	for (size_t i = 0; i < r->n; i++) {
		dcp_jsonw_object(j);
		dcp_jsonw_put_str(j, "name", r->tensors[i].key);
		dcp_jsonw_put_object(j, "digest");
		dcp_jsonw_put_str(j, kind, r->tensors[i].digest);
		dcp_jsonw_end(j);
		dcp_jsonw_end(j);
	}
	dcp_jsonw_end(j);
	dcp_jsonw_put_str(j, "predicateType", "urn:dcpfs:tensors:1");
	dcp_jsonw_put_object(j, "predicate");
	dcp_jsonw_put_str(j, "version", r->p->ck.name);
	dcp_jsonw_put_str(j, "format", r->p->ck.found->format->name);
	dcp_jsonw_put_u64(j, "tensors", r->n);
	dcp_jsonw_put_u64(j, "nbytes", r->nbytes);
	dcp_jsonw_put_str(j, "digestOver",
			  "dtype and NUL; dimensions and their number, 8 bytes each, "
			  "little-endian; elements, row-major, little-endian");
	dcp_jsonw_end(j);
	dcp_jsonw_end(j);
}

struct line {
	char *shown; /* the key as a cell of TSV */
	const char *digest;
};

static int by_shown(const void *a, const void *b)
{
	return strcmp(((const struct line *)a)->shown, ((const struct line *)b)->shown);
}

/* -ENOMEM. */
static int spell_key(const char *key, char **shown)
{
	struct out cell = { .form = OUT_TSV };

	out_tsv(&cell, key);
	*shown = dcp_buf_error(&cell.buf) ? NULL : strdup(cell.buf.p ? cell.buf.p : "");
	dcp_buf_finish(&cell.buf);
	return *shown ? 0 : -ENOMEM;
}

static void put_lines(const struct record *r, struct dcp_buf *out)
{
	dcp_auto_free struct line *line = calloc(r->n + 1, sizeof(*line));
	int rc = line ? 0 : -ENOMEM;

	for (size_t i = 0; i < r->n && rc == 0; i++) {
		line[i].digest = r->tensors[i].digest;
		rc = spell_key(r->tensors[i].key, &line[i].shown);
	}
	out->failed |= rc < 0;
	if (rc == 0)
		DCP_SORT(line, r->n, by_shown);
	for (size_t i = 0; i < r->n && line; i++) {
		if (rc == 0)
			dcp_buf_printf(out, "%s  %s\n", line[i].digest, line[i].shown);
		free(line[i].shown);
	}
}

enum cmd_exit record_write(const struct record *r)
{
	bool to_stdout = strcmp(r->path, "-") == 0;
	dcp_auto_fd int fd = -1;
	struct out o;
	uint32_t withheld = 0;
	enum cmd_exit code;
	int rc;

	if (!to_stdout) {
		rc = export_withheld_beside(r->p->ck.v, r->p->ck.source, r->path, &withheld);
		fd = rc < 0 ? rc : export_create(r->path, withheld);
		if (fd < 0)
			return cmd_fail(CMD_ENV, "verify: --record %s: %s", r->path,
					strerror(-fd));
	}
	out_init(&o, r->in_toto ? OUT_JSON : OUT_TEXT);
	if (r->in_toto)
		put_statement(r, &o.json);
	else
		put_lines(r, &o.buf);
	code = out_flush_to(&o, to_stdout ? STDOUT_FILENO : fd, r->path);
	out_finish(&o);
	return code;
}
