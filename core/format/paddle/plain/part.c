/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part: one file of a version, emitted to a sink.
 */
#include "core/format/paddle/plain/plain_int.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/parse/paddle/program.h"

/*
 * Files of one stem belong together, whatever their extension; "own" ones are the format's
 * examples for objects of any kind, each a version that is called like its file.
 */
static const struct {
	const char *extension;
	enum dcp_pdkind kind;
	bool own;
} known[] = {
	{ "pdiparams.info", DCP_PDKIND_INFO, false },
	{ "pdparams", DCP_PDKIND_STATE, false },
	{ "pdopt", DCP_PDKIND_STATE, false },
	{ "pdiparams", DCP_PDKIND_PARAMS, false },
	{ "pdmodel", DCP_PDKIND_MODEL, false },
	{ "pdattr", DCP_PDKIND_ATTR, false },
	{ "json", DCP_PDKIND_JSON, false },
	{ "pdtensor", DCP_PDKIND_STATE, true },
	{ "pdz", DCP_PDKIND_STATE, true },
	{ "pd", DCP_PDKIND_STATE, true },
	{ "lod", DCP_PDKIND_STATE, true },
};

/* Words in front of a number that say which rank of what a file is of. */
static const char *const words[] = { "rank", "dist", "tp",       "mp",  "pp",
				     "dp",   "ep",   "sharding", "moe", "shard" };

/*
 * Length of what is left of @s, @n long, without its last "_rank3"; @n when there is none.
 * @at: where the word starts.
 */
static size_t without_rank(const char *s, size_t n, size_t *at)
{
	size_t digits = (size_t)(dcp_digits_before(s, s + n) - s), word;

	if (digits == n || n - digits > 9)
		return n;
	word = digits;
	if (word > 0 && (s[word - 1] == '_' || s[word - 1] == '-'))
		word--;
	for (size_t i = 0; i < DCP_LEN(words); i++) {
		size_t len = strlen(words[i]);

		if (word < len || memcmp(s + word - len, words[i], len) != 0)
			continue;
		*at = word - len;
		if (*at == 0)
			return 0;
		if (strchr("._-", s[*at - 1]))
			return *at - 1;
	}
	return n;
}

/* "w.tp00_pp01" -> version "w", ranks "tp00_pp01"; "rank0" -> version "rank". */
static void split(struct dcp_pdname *out, const char *s, size_t n)
{
	size_t stem = n, start = n, at = n, tokens = 0;
	const char *digits;

	for (size_t next; (next = without_rank(s, stem, &at)) != stem; stem = next, tokens++)
		start = at;
	if (stem == 0)
		while (stem < n && isalpha((unsigned char)s[stem]))
			stem++;
	memcpy(out->version, s, stem);
	out->version[stem] = '\0';
	memcpy(out->ranks, s + start, n - start);
	out->ranks[n - start] = '\0';
	digits = dcp_digits_before(s + start, s + n);
	out->one_rank =
		tokens == 1 && dcp_take_number(&digits, s + n, DCP_ANY_DIGITS, &out->rank);
}

bool dcp_pdname_read(const char *file, struct dcp_pdname *out)
{
	size_t n = strlen(file);

	if (*file == '.' || n >= DCP_GROUP_MAX)
		return false;
	for (size_t i = 0; i < DCP_LEN(known); i++) {
		size_t len = strlen(known[i].extension);

		if (n < len + 2 || file[n - len - 1] != '.' ||
		    strcmp(file + n - len, known[i].extension) != 0)
			continue;
		*out = (struct dcp_pdname){ .kind = known[i].kind,
					    .extension = file + n - len };
		if (known[i].own)
			memcpy(out->version, file, n + 1);
		else
			split(out, file, n - len - 1);
		return true;
	}
	return false;
}

/* Of a .pdiparams: the program beside it. */
struct names {
	struct dcp_paddle_program program;
	char file[DCP_GROUP_MAX + 16];
	bool known;
	struct dcp_err why;
};

static bool read_program(const struct dcp_dir *dir, struct names *names)
{
	struct dcp_input input;
	int rc;

	if (!dcp_dir_find(dir, names->file))
		return false;
	rc = dcp_dir_input(dir, names->file, &input, &names->why);
	if (rc == 0) {
		rc = dcp_paddle_program_read(&input.src, &names->program, &names->why);
		dcp_input_close(&input);
	}
	if (rc < 0)
		dcp_err_where(&names->why, rc, "%s", names->file);
	names->known = rc == 0;
	return names->known;
}

/* A .json may be anything; what newer Paddle writes goes before a .pdmodel left from before. */
static int find_names(const struct dcp_dir *dir, const struct dcp_pdpart *part,
		      struct names *names)
{
	int stem = (int)(strlen(part->file) - strlen("pdiparams"));
	char text[sizeof(names->why.msg) + 32];

	*names = (struct names){ 0 };
	for (int form = 0; form < 2; form++) {
		snprintf(names->file, sizeof(names->file), "%.*s%s", stem, part->file,
			 form ? "pdmodel" : "json");
		if (read_program(dir, names))
			return 0;
	}
	if (!names->why.code)
		snprintf(names->why.msg, sizeof(names->why.msg),
			 "no %.*spdmodel or %.*sjson beside it", stem, part->file, stem,
			 part->file);
	snprintf(text, sizeof(text), "%s: keys are numbers", names->why.msg);
	return dcp_emit_meta(part->sink, "names", text);
}

static int emit_stream(const struct dcp_dir *dir, const struct dcp_pdpart *part,
		       const struct dcp_source *src, uint32_t number, bool params,
		       struct dcp_err *err)
{
	struct dcp_pdlod lod = { .params = params };
	struct names names = { 0 };
	uint32_t program;
	int rc = params ? find_names(dir, part, &names) : 0;

	if (rc < 0)
		return rc;
	if (names.known) {
		lod.program = &names.program;
		lod.program_file = names.file;
		rc = dcp_emit_file(part->sink, names.file, &program);
	}
	if (rc >= 0)
		rc = dcp_pdlod_emit(part, &lod, src, number, err);
	if (names.known)
		dcp_paddle_program_finish(&names.program);
	return rc;
}

static int emit_content(const struct dcp_dir *dir, const struct dcp_pdpart *part,
			const struct dcp_source *src, uint32_t number, struct dcp_err *err)
{
	size_t n = (size_t)DCP_MIN(src->size, 4);
	struct dcp_pdname name;
	uint8_t head[4] = { 0 };
	bool params;
	int rc = dcp_source_read(src, 0, head, n);

	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "cannot read it");
	params = dcp_pdname_read(part->file, &name) && name.kind == DCP_PDKIND_PARAMS;
	if (params && (n == 0 || head[0] != 0x80))
		return emit_stream(dir, part, src, number, true, err);
	if (n == 0)
		return dcp_fail_at(err, -EBADMSG, 0, "it is empty");
	if (head[0] == 0x80)
		return dcp_pdstate_emit(part, src, number, err);
	if (n == 4 && dcp_load_le32(head) == 0)
		return emit_stream(dir, part, src, number, false, err);
	if (name.kind == DCP_PDKIND_MODEL)
		return dcp_fail_at(
			err, -EBADMSG, 0,
			"it is a program, and its tensors (.pdiparams) are not here");
	return dcp_fail_at(
		err, -EBADMSG, 0,
		"begins with %02x %02x, expected a pickle (80) or a tensor stream of "
		"Paddle (00 00 00 00)",
		head[0], head[1]);
}

int dcp_pdpart_emit(const struct dcp_dir *dir, const struct dcp_pdpart *part,
		    struct dcp_err *err)
{
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(part->sink, part->file, &number);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(dir, part->file, &input, err);
	if (rc < 0)
		return rc;
	if (err)
		err->code = 0;
	rc = emit_content(dir, part, &input.src, number, err);
	if (rc < 0 && err && err->code)
		dcp_err_where(err, rc, "%s", part->file);
	return rc;
}

int dcp_pdpart_broken(const struct dcp_pdpart *part, const char *why)
{
	return dcp_emit_broken(part->sink, part->label, why);
}
