/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/name.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/base/text.h"

enum { HASH_LEN = 1 + 16 }; /* '~' and the digits */

/* Append the escaped form of the next character of the key; returns bytes consumed. */
static size_t escape_one(const char *key, size_t left, char *out, size_t *n)
{
	static const char hex[] = "0123456789ABCDEF";
	unsigned char c = (unsigned char)*key;
	size_t len = dcp_utf8_shown(key, left);

	if (len && c != '/' && c != '%') {
		memcpy(out + *n, key, len);
		*n += len;
		return len;
	}
	out[(*n)++] = '%';
	out[(*n)++] = hex[c >> 4];
	out[(*n)++] = hex[c & 15];
	return 1;
}

void dcp_name_from_key(const char *key, bool hashed, char out[DCP_NAME_MAX + 1])
{
	size_t klen = strlen(key), n = 0, head = 0, i = 0;

	if (!*key || !strcmp(key, ".") || !strcmp(key, "..")) {
		strcpy(out, !*key ? "%" : key[1] ? "%2E%2E" : "%2E");
		head = n = strlen(out);
		i = klen;
	}
	while (i < klen) {
		char one[4];
		size_t m = 0, used = escape_one(key + i, klen - i, one, &m);

		if (n + m > DCP_NAME_MAX) {
			hashed = true;
			break;
		}
		memcpy(out + n, one, m);
		n += m;
		i += used;
		if (n <= DCP_NAME_MAX - HASH_LEN)
			head = n; /* never cut inside an escape or a character */
	}
	if (!hashed) {
		out[n] = '\0';
		return;
	}
	snprintf(out + head, HASH_LEN + 1, "~%016llx",
		 (unsigned long long)dcp_hash64(key, klen));
}

void dcp_name_to_key(const char *name, size_t n, char *out)
{
	char back[DCP_NAME_MAX + 1];
	size_t m = 0;

	for (size_t i = 0; i < n; i++)
		if (name[i] == '%' && n - i > 2 && dcp_hex_digit(name[i + 1]) >= 0 &&
		    dcp_hex_digit(name[i + 2]) >= 0) {
			out[m++] = (char)(dcp_hex_digit(name[i + 1]) << 4 |
					  dcp_hex_digit(name[i + 2]));
			i += 2;
		} else if (name[i] != '%' || n != 1) {
			out[m++] = name[i];
		}
	out[m] = '\0';
	dcp_name_from_key(out, false, back);
	if (strlen(back) == n && memcmp(back, name, n) == 0)
		return;
	memcpy(out, name, n);
	out[n] = '\0';
}

/* Compare the digit runs at *a and *b as numbers of any length; moves both after them. */
static int compare_runs(const char **a, const char **b)
{
	size_t na, nb;
	int d;

	while (**a == '0')
		(*a)++;
	while (**b == '0')
		(*b)++;
	na = strspn(*a, "0123456789");
	nb = strspn(*b, "0123456789");
	d = na != nb ? (na < nb ? -1 : 1) : memcmp(*a, *b, na);
	*a += na;
	*b += nb;
	return d;
}

int dcp_name_compare(const char *a, const char *b)
{
	const char *whole_a = a, *whole_b = b;

	while (*a && *b) {
		int d;

		if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
			d = compare_runs(&a, &b);
		} else {
			d = (unsigned char)*a - (unsigned char)*b;
			a++;
			b++;
		}
		if (d)
			return d < 0 ? -1 : 1;
	}
	if (*a || *b)
		return *a ? 1 : -1;
	return strcmp(whole_a, whole_b); /* step-07 and step-7 are two names */
}

bool dcp_name_matches(const char *pattern, const char *key)
{
	return fnmatch(pattern, key, 0) == 0;
}

/* Is @key below @prefix: "model.layers", or with a dot or slash at its end? */
static bool is_below(const char *prefix, const char *key)
{
	size_t n = strlen(prefix);

	if (n == 0 || strncmp(prefix, key, n) != 0)
		return false;
	return prefix[n - 1] == '.' || prefix[n - 1] == '/' || key[n] == '.' || key[n] == '/';
}

bool dcp_name_listed(const char *const *list, size_t n, const char *key)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i], key) == 0 || is_below(list[i], key) ||
		    dcp_name_matches(list[i], key))
			return true;
	return false;
}

enum { DIGEST_MIN = 7, UUID_LEN = 36 };

#define DIGITS "0123456789"
#define HEX DIGITS "abcdefABCDEF"

static bool is_letter(char c)
{
	return isalpha((unsigned char)c);
}

/* ---- words ---- */

/* The next run of letters at or after *at: its length, 0 at the end. */
static size_t next_word(const char **at)
{
	size_t n = 0;

	while (**at && !is_letter(**at))
		(*at)++;
	while (is_letter((*at)[n]))
		n++;
	return n;
}

static bool is_one_of(const char *word, size_t n, const char *const *list, size_t nlist)
{
	for (size_t i = 0; i < nlist; i++)
		if (strlen(list[i]) == n && strncasecmp(word, list[i], n) == 0)
			return true;
	return false;
}

static bool is_end_word(const char *word, size_t n)
{
	static const char *const words[] = { "last", "final", "latest" };

	return is_one_of(word, n, words, DCP_LEN(words));
}

bool dcp_order_is_unfinished(const char *name)
{
	static const char *const words[] = { "tmp", "partial", "incomplete" };
	bool said = false;
	size_t n, all = 0;

	for (const char *at = name; (n = next_word(&at)) > 0; at += n, all++)
		said |= is_one_of(at, n, words, DCP_LEN(words));
	return said && (all > 1 || strpbrk(name, DIGITS));
}

bool dcp_order_is_numbered(const char *name)
{
	static const char *const words[] = { "checkpoint", "ckpt", "step", "epoch", "iter" };
	const char *at = name;

	do {
		const char *word = at;
		size_t n = next_word(&at);

		if (at != word || !is_one_of(word, n, words, DCP_LEN(words)))
			return false;
		at += n;
		at += *at == '-' || *at == '_' || *at == '=';
	} while (!isdigit((unsigned char)*at));
	return true;
}

bool dcp_order_is_save(const char *name)
{
	static const char tag[] = "global_step";
	size_t n = strncmp(name, tag, strlen(tag)) == 0 ? strlen(tag) : 0;

	return dcp_order_is_numbered(name) || (n && isdigit((unsigned char)name[n])) ||
	       (*name && !name[strspn(name, DIGITS)]);
}

/* ---- numbers ---- */

/* "550e8400-e29b-41d4-a716-446655440000" */
static bool is_uuid(const char *p)
{
	static const size_t groups[] = { 8, 4, 4, 4, 12 };

	for (size_t i = 0; i < DCP_LEN(groups); i++) {
		if (strspn(p, HEX) != groups[i])
			return false;
		p += groups[i];
		if (i + 1 < DCP_LEN(groups) && *p++ != '-')
			return false;
	}
	return true;
}

/* Length of the hash that begins at @p, where a run of letters and digits begins; 0: not a hash. A
 * letter after a digit distinguishes a hash from ba1200. */
static size_t digest_at(const char *p)
{
	size_t n = strspn(p, HEX);

	if (is_uuid(p))
		return UUID_LEN;
	if (n < DIGEST_MIN || isalnum((unsigned char)p[n]))
		return 0;
	for (size_t i = 1; i < n; i++)
		if (is_letter(p[i]) && !is_letter(p[i - 1]))
			return n;
	return 0;
}

/* Is the number at @p, in @name, the value of a metric? */
static bool is_metric(const char *name, const char *p)
{
	static const char *const words[] = { "acc",        "accuracy", "auc",   "bleu",  "cer",
					     "dice",       "error",    "f",     "fid",   "iou",
					     "loss",       "mae",      "map",   "miou",  "mse",
					     "ppl",        "psnr",     "rmse",  "score", "ssim",
					     "perplexity", "reward",   "rouge", "wer" };
	const char *end = p, *word;

	while (end > name && strchr("=_-:", end[-1]))
		end--;
	for (word = end; word > name && is_letter(word[-1]);)
		word--;
	if (p > name && p[-1] == '=' && end > name && isdigit((unsigned char)end[-1]))
		return true; /* top5=99, f1=0 */
	return is_one_of(word, (size_t)(end - word), words, DCP_LEN(words)) ||
	       (end - word > 4 && strncasecmp(end - 4, "loss", 4) == 0);
}

/* Length of the number at @p, with its fraction or exponent; @whole is set if it has neither. */
static size_t real_at(const char *p, bool *whole)
{
	size_t n = strspn(p, DIGITS), more;

	*whole = true;
	if (p[n] == '.' && (more = strspn(p + n + 1, DIGITS)) > 0) {
		n += 1 + more;
		*whole = false;
	}
	if (tolower((unsigned char)p[n]) == 'e') {
		size_t sign = p[n + 1] == '-' || p[n + 1] == '+';

		more = strspn(p + n + 1 + sign, DIGITS);
		if (more && !isalnum((unsigned char)p[n + 1 + sign + more])) {
			n += 1 + sign + more;
			*whole = false;
		}
	}
	return n;
}

static bool is_value(const char *name, const char *p)
{
	if (p > name && (p[-1] == '-' || p[-1] == '+'))
		p--;
	return p > name && p[-1] == '=';
}

/* The number of characters at @p in @name to skip (metrics, hashes); 0: they are a number that
 * counts. */
static size_t passed_over(const char *name, const char *p)
{
	size_t digits = strspn(p, DIGITS), all;
	bool whole;

	if (p[digits] == '=')
		return digits;
	all = real_at(p, &whole);
	return is_metric(name, p) || (!whole && is_value(name, p)) ? all : 0;
}

/* Move *at to the next number of @name at or after it, and return its number of digits; 0: there is
 * none. */
static size_t next_number(const char *name, const char **at)
{
	while (**at) {
		const char *p = *at;
		bool begins = p == name || !isalnum((unsigned char)p[-1]);
		size_t skip = begins ? digest_at(p) : 0;

		if (!skip && isdigit((unsigned char)*p)) {
			skip = passed_over(name, p);
			if (!skip)
				return strspn(p, DIGITS);
		}
		*at += skip ? skip : 1;
	}
	return 0;
}

static int compare_numbers(const char *a, const char *b)
{
	const char *at = a, *bt = b;

	for (;;) {
		size_t na = next_number(a, &at), nb = next_number(b, &bt);
		const char *x = at, *y = bt;
		int d;

		if (!na || !nb)
			return (na > 0) - (nb > 0);
		at += na;
		bt += nb;
		for (; na && *x == '0'; x++)
			na--;
		for (; nb && *y == '0'; y++)
			nb--;
		d = na != nb ? (na < nb ? -1 : 1) : memcmp(x, y, na);
		if (d)
			return d < 0 ? -1 : 1;
	}
}

/* ---- the rule ---- */

enum rank { UNCOUNTED, COUNTED, LAST };

static enum rank rank_of(const char *name)
{
	const char *at = name, *number = name;
	size_t n = next_word(&at);
	bool counted = next_number(name, &number) > 0;

	if (is_end_word(at, n))
		return LAST;
	if (counted)
		return COUNTED;
	for (; n > 0; n = next_word(&at)) {
		if (is_end_word(at, n))
			return LAST;
		at += n;
	}
	return UNCOUNTED;
}

int dcp_order_compare(const char *a, int64_t a_ns, const char *b, int64_t b_ns)
{
	enum rank ra = rank_of(a), rb = rank_of(b);
	int d;

	if (ra != rb)
		return ra < rb ? -1 : 1;
	if (ra != COUNTED && a_ns != b_ns)
		return a_ns < b_ns ? -1 : 1;
	d = compare_numbers(a, b);
	return d ? d : ra == COUNTED ? dcp_name_compare(b, a) : dcp_name_compare(a, b);
}
