/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/number.h"
#include "core/format/paddle/plain/plain_int.h"

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
