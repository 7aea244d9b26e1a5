/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A listing of 100,000 tensors reads as many shapes: they are read here rather than through a
 * JSON library.
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/jsonw.h"
#include "core/base/number.h"
#include "core/store/index/index_int.h"

void dcp_index_put_shape(struct dcp_buf *out, const uint64_t *shape, uint32_t ndim)
{
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, out, false);
	dcp_jsonw_array(&w);
	for (uint32_t d = 0; d < ndim; d++)
		dcp_jsonw_u64(&w, shape[d]);
	dcp_jsonw_end(&w);
}

bool dcp_index_get_shape(const char *text, size_t n, uint64_t shape[DCP_MAX_NDIM],
			 uint32_t *ndim)
{
	const char *p = text + 1, *end = text + n - 1;
	uint32_t d = 0;

	if (n < 2 || *text != '[' || *end != ']')
		return false;
	while (p < end) {
		if (d == DCP_MAX_NDIM || (d && *p++ != ',') ||
		    !dcp_take_number(&p, end, DCP_ANY_DIGITS, &shape[d]))
			return false;
		d++;
	}
	*ndim = d;
	return true;
}

/* Is @key the components of @path with dots between them? */
static bool is_joined(const char *key, const char *const *path, size_t npath)
{
	for (size_t i = 0; i < npath; i++) {
		size_t n = strlen(path[i]);

		if (strncmp(key, path[i], n) != 0 || key[n] != (i + 1 < npath ? '.' : '\0'))
			return false;
		key += n + 1;
	}
	return npath > 0;
}

void dcp_index_put_path(struct dcp_buf *out, const char *key, const char *const *path,
			size_t npath)
{
	bool joined = is_joined(key, path, npath);
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, out, false);
	dcp_jsonw_array(&w);
	for (size_t i = 0; i < npath; i++)
		dcp_jsonw_u64(&w, strlen(path[i]));
	dcp_jsonw_end(&w);
	for (size_t i = 0; !joined && i < npath; i++) {
		dcp_buf_str(out, i ? "." : "=");
		dcp_buf_str(out, path[i]);
	}
}

int dcp_index_get_path(const char *text, size_t n, const char *key, struct dcp_arena *arena,
		       const char *const **path, size_t *npath)
{
	const char *p = text + 1, *end = n > 1 && *text == '[' ? memchr(p, ']', n - 1) : NULL;
	size_t left = strlen(key), max, used = 0;
	const char **list;
	uint64_t len = 0;
	char *copy;

	if (end && end + 1 < text + n) {
		key = end + 2;
		left = (size_t)(text + n - key);
		end = end[1] == '=' ? end : NULL;
	}
	if (!end)
		return -EBADMSG;
	max = p < end;
	for (const char *q = p; q < end; q++)
		max += *q == ',';
	list = dcp_arena_calloc(arena, max + 1, sizeof(*list));
	copy = dcp_arena_strndup(arena, key, left);
	if (!list || !copy)
		return -ENOMEM;
	while (used < max) {
		if (!dcp_take_number(&p, end, DCP_ANY_DIGITS, &len) || len > left ||
		    copy[len] != (used + 1 < max ? '.' : '\0'))
			return -EBADMSG;
		copy[len] = '\0';
		list[used++] = copy;
		if (used < max && *p++ != ',')
			return -EBADMSG;
		copy += len + 1;
		left -= DCP_MIN(left, len + 1);
	}
	if (p != end)
		return -EBADMSG;
	*path = list;
	*npath = used;
	return 0;
}
