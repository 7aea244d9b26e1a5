/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "core/base/sort.h"
#include "core/model/name.h"
#include "core/parse/safetensors/safetensors.h"

static int by_key(const void *a, const void *b)
{
	const struct dcp_safetensors_item *x = a, *y = b;

	return dcp_name_compare(x->key, y->key) ?: DCP_CMP(x->number, y->number);
}

static int by_size(const void *a, const void *b)
{
	const struct dcp_safetensors_item *x = a, *y = b;

	return DCP_CMP(y->itemsize, x->itemsize) ?: by_key(a, b);
}

static bool is_aligned(const struct dcp_safetensors_item *item, size_t n)
{
	uint64_t at = 0;

	for (size_t i = 0; i < n; at += item[i++].nbytes)
		if (item[i].itemsize && at % item[i].itemsize)
			return false;
	return true;
}

size_t dcp_safetensors_arrange(struct dcp_safetensors_item *item, size_t n, uint64_t size,
			       size_t *first)
{
	size_t files = 0, begin = 0;
	uint64_t in_file = 0;

	DCP_SORT(item, n, by_key);
	for (size_t i = 0; i <= n; i++) {
		if (i == n ||
		    (size && in_file && (in_file >= size || item[i].nbytes > size - in_file))) {
			first[files++] = begin;
			if (!is_aligned(item + begin, i - begin))
				DCP_SORT(item + begin, i - begin, by_size);
			begin = i;
			in_file = 0;
		}
		in_file += i < n ? item[i].nbytes : 0;
	}
	first[files] = n;
	return files;
}

void dcp_safetensors_file_name(char name[DCP_SAFETENSORS_NAME], const char *stem, size_t i,
			       size_t files)
{
	if (i == files)
		snprintf(name, DCP_SAFETENSORS_NAME, "%s.safetensors.index.json", stem);
	else if (files == 1)
		snprintf(name, DCP_SAFETENSORS_NAME, "%s.safetensors", stem);
	else
		snprintf(name, DCP_SAFETENSORS_NAME, "%s-%05zu-of-%05zu.safetensors", stem,
			 i + 1, files);
}
