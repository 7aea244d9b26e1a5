/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/parse.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <errno.h>
#include <pcre2.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"

static const char digits[] = "0123456789";

struct dcp_regex {
	pcre2_code *code;
	pcre2_match_data *data;
};

static void *alloc_in_arena(size_t n, void *arena)
{
	return dcp_arena_alloc(arena, n);
}

static void free_nothing(void *p, void *arena)
{
}

static int fail_pattern(const char *pattern, const char *at, int code, const char *what,
			struct dcp_err *err)
{
	return dcp_fail_at(err, code, (uint64_t)(at - pattern),
			   "regular expression \"%.100s\": %s", pattern, what);
}

/* Translate the pattern to PCRE2's syntax, or give the reason why that is impossible. */
static int translate_pattern(const char *pattern, struct dcp_buf *out, struct dcp_err *err)
{
	const char *set = NULL; /* the text after the open '[' */

	for (const char *p = pattern; *p; p++) {
		if (*p == '\\') {
			p++;
			if (!*p)
				return fail_pattern(pattern, p, -EINVAL,
						    "ends with a backslash", err);
			if (isalnum((unsigned char)*p) &&
			    !strchr(set ? "dDwWsSnrtfv" : "dDwWsSnrtfvAZbB", *p))
				return fail_pattern(pattern, p, -ENOTSUP,
						    "found an escape that is not supported",
						    err);
			dcp_buf_printf(out, "\\%c", *p == 'Z' ? 'z' : *p);
			continue;
		}
		if (set && *p == ']' && p > set)
			set = NULL;
		else if (set && *p == '[')
			dcp_buf_str(out, "\\"); /* else "[:" begins a class */
		else if (!set && *p == '[')
			set = p + 1 + (p[1] == '^');
		else if (!set && *p == '(' && (p[1] == '*' || p[1] == '?') &&
			 strncmp(p, "(?:", 3) && strncmp(p, "(?P<", 4))
			return fail_pattern(
				pattern, p, -ENOTSUP,
				"found a group \"(?\" or \"(*\", expected (?:...) or "
				"(?P<name>...)",
				err);
		dcp_buf_add(out, p, 1);
		if (!set && *p == '{' && p[1] == ',' && p[2 + strspn(p + 2, digits)] == '}')
			dcp_buf_str(out, "0");
	}
	return dcp_buf_error(out);
}

static int code_of(int error)
{
	switch (error) {
	case PCRE2_ERROR_HEAP_FAILED:
		return -ENOMEM;
	case PCRE2_ERROR_PATTERN_TOO_LARGE:
	case PCRE2_ERROR_PATTERN_TOO_COMPLICATED:
	case PCRE2_ERROR_PARENTHESES_NEST_TOO_DEEP:
	case PCRE2_ERROR_QUANTIFIER_TOO_BIG:
		return -E2BIG;
	default:
		return -EINVAL;
	}
}

int dcp_regex_compile(const char *pattern, struct dcp_arena *arena, struct dcp_regex **out,
		      struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_regex *re = dcp_arena_alloc(arena, sizeof(*re));
	pcre2_general_context *memory =
		pcre2_general_context_create(alloc_in_arena, free_nothing, arena);
	pcre2_compile_context *how = memory ? pcre2_compile_context_create(memory) : NULL;
	int rc = translate_pattern(pattern, &text, err), error;
	PCRE2_UCHAR what[128];
	PCRE2_SIZE at;

	if (rc < 0)
		return rc;
	if (!re || !how)
		return -ENOMEM;
	pcre2_set_newline(how, PCRE2_NEWLINE_LF);
	pcre2_set_parens_nest_limit(how, DCP_REGEX_MAX_DEPTH);
	re->code = pcre2_compile((PCRE2_SPTR)(text.n ? text.p : ""), text.n,
				 PCRE2_ANCHORED | PCRE2_UTF | PCRE2_UCP, &error, &at, how);
	if (!re->code) {
		pcre2_get_error_message(error, what, sizeof(what));
		return fail_pattern(pattern, pattern, code_of(error), (const char *)what, err);
	}
	re->data = pcre2_match_data_create(1, memory);
	*out = re;
	return re->data ? 0 : -ENOMEM;
}

int dcp_regex_match(const struct dcp_regex *re, const char *text)
{
	int room[2 + 6 * DCP_REGEX_MAX_STATES]; /* two lists, three numbers a state */
	int rc =
		pcre2_dfa_match(re->code, (PCRE2_SPTR)text, strlen(text), 0, PCRE2_DFA_SHORTEST,
				re->data, NULL, room, sizeof(room) / sizeof(*room));

	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	if (rc < 0)
		return rc == PCRE2_ERROR_DFA_WSSIZE ? -E2BIG : -EINVAL;
	return 1;
}

const char *dcp_regex_pcre2_version(void)
{
	static char text[64]; /* every thread writes the same text */

	return pcre2_config(PCRE2_CONFIG_VERSION, NULL) < (int)sizeof(text) &&
			       pcre2_config(PCRE2_CONFIG_VERSION, text) > 0
		       ? text
		       : NULL;
}
