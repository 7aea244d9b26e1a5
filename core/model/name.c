/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/name.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

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
