/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name: which file name stands for a key?
 *
 *   '/'                        %2F
 *   '%'                        %25
 *   characters that are not
 *   shown as they are, and
 *   bytes that are not UTF-8   %XX, each byte (core/base/text.h)
 *   the whole key "." or ".."  %2E, %2E%2E
 *   the empty key              %
 *   more than 243 bytes        a readable head, '~', 16 hex digits of the key's hash
 *
 * Everything but the cut is reversible. 243 bytes leave room for the longest extension
 * (".safetensors") in the 255 that a directory entry may have. Rows whose names clash (the same
 * key twice, a tensor and an object of one key, the cut, a literal '~') are kept distinct by the
 * index, which uses the hashed form for the later ones.
 *
 * A NUL inside a key is held as the two bytes C0 80 (modified UTF-8) everywhere in dcpfs.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define DCP_NAME_MAX 243

/* Writes at most DCP_NAME_MAX bytes and a NUL. @hashed: with the hash, however short. */
void dcp_name_from_key(const char *key, bool hashed, char out[DCP_NAME_MAX + 1]);

/* The key that the first @n bytes of @name stand for: undone, unless no key has that name. @out
 * has room for n + 1. */
void dcp_name_to_key(const char *name, size_t n, char *out);

/* Does @key match @pattern, a glob whose * also matches dots and slashes? */
bool dcp_name_matches(const char *pattern, const char *key);

/* Does one of the @n words of @list name @key: whole, as a prefix of it that ends at a dot or
 * slash, or as a pattern? */
bool dcp_name_listed(const char *const *list, size_t n, const char *key);

/* Order of version names: digit runs compare as numbers, everything else bytewise. */
int dcp_name_compare(const char *a, const char *b);
