/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/jsonw.h"
#include "core/parse/safetensors/safetensors.h"

void dcp_safetensors_begin(struct dcp_jsonw *w, struct dcp_buf *out)
{
	dcp_buf_add(out, "\0\0\0\0\0\0\0", 8);
	dcp_jsonw_init(w, out, false);
	dcp_jsonw_object(w);
}

int dcp_safetensors_end_after(struct dcp_jsonw *w, uint64_t before, uint32_t align,
			      uint8_t length[8])
{
	struct dcp_buf *out = w->out;

	dcp_jsonw_end(w);
	dcp_buf_printf(out, "%*s", (int)(-(before + out->n) & (align - 1)), "");
	dcp_store_le64(length, before + out->n - 8);
	return dcp_jsonw_error(w);
}

int dcp_safetensors_end(struct dcp_jsonw *w, size_t start, uint32_t align)
{
	uint8_t length[8];
	int rc = dcp_safetensors_end_after(w, -(uint64_t)start, align, length);

	if (rc == 0 && dcp_load_le64(length) > DCP_SAFETENSORS_MAX_HEADER)
		rc = -E2BIG;
	if (rc == 0)
		memcpy(w->out->p + start, length, sizeof(length));
	return rc;
}

void dcp_safetensors_begin_index(struct dcp_jsonw *w, struct dcp_buf *out, uint64_t total)
{
	dcp_jsonw_init(w, out, true);
	dcp_jsonw_object(w);
	dcp_jsonw_put_object(w, "metadata");
	dcp_jsonw_put_u64(w, "total_size", total);
	dcp_jsonw_end(w);
	dcp_jsonw_put_object(w, "weight_map");
}

int dcp_safetensors_end_index(struct dcp_jsonw *w)
{
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
	dcp_buf_str(w->out, "\n");
	return dcp_jsonw_error(w);
}

static void write_shape(struct dcp_jsonw *w, enum dcp_dtype dtype, uint32_t ndim,
			const uint64_t *shape)
{
	uint64_t values = dcp_dtype_info(dtype)->values;

	dcp_jsonw_array(w);
	for (uint32_t i = 0; i < ndim; i++)
		dcp_jsonw_u64(w, i + 1 == ndim ? values * shape[i] : shape[i]);
	if (values > 1 && ndim == 0)
		dcp_jsonw_u64(w, values);
	dcp_jsonw_end(w);
}

void dcp_safetensors_put(struct dcp_jsonw *w, const char *name, enum dcp_dtype dtype,
			 uint32_t ndim, const uint64_t *shape, uint64_t begin, uint64_t end)
{
	dcp_jsonw_put_object(w, name);
	dcp_jsonw_put_str(w, "dtype", dcp_dtype_info(dtype)->safetensors);
	dcp_jsonw_key(w, "shape");
	write_shape(w, dtype, ndim, shape);
	dcp_jsonw_put_array(w, "data_offsets");
	dcp_jsonw_u64(w, begin);
	dcp_jsonw_u64(w, end);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

/* Where the text of the first member of @object ends, if that is "format"; else 0. */
static size_t format_length(const char *object)
{
	static const char name[] = "{\"format\":\"";
	size_t n = sizeof(name) - 1;

	if (!object || strncmp(object, name, n) != 0)
		return 0;
	while (object[n] && object[n] != '"')
		n += object[n] == '\\' && object[n + 1] ? 2 : 1;
	return n;
}

void dcp_safetensors_begin_meta(struct dcp_jsonw *w, const char *format, const char *own)
{
	size_t n = format_length(own), len = own ? strlen(own) : 0;

	dcp_jsonw_object(w);
	if (format || !n)
		dcp_jsonw_put_str(w, "format", format ? format : "pt");
	if (format && n) /* skip the format in @own, and its comma */
		n = DCP_MIN(n + 2, len - 1);
	else
		n = 1;
	if (len > n + 1)
		dcp_jsonw_raw(w, own + n, len - n - 1);
}

bool dcp_safetensors_can_name(const char *name)
{
	return strcmp(name, "__metadata__") != 0 && dcp_json_can_say(name);
}

enum { MAX_NAMED = 64 };

void dcp_safetensors_leave_out(struct dcp_safetensors_left *l, const char *key,
			       const char *instead)
{
	if (l->n++ < MAX_NAMED)
		dcp_buf_printf(&l->names, "%s%s", l->names.n ? " " : "",
			       dcp_json_can_say(key) ? key : instead);
}

int dcp_safetensors_put_left(struct dcp_safetensors_left *l, struct dcp_jsonw *w)
{
	int rc;

	if (l->n > MAX_NAMED)
		dcp_buf_printf(&l->names, " and %llu more",
			       (unsigned long long)(l->n - MAX_NAMED));
	dcp_buf_add(&l->names, "", 1);
	rc = dcp_buf_error(&l->names);
	if (rc == 0 && l->n)
		dcp_jsonw_put_str(w, "dcpfs.left_out", l->names.p);
	dcp_buf_finish(&l->names);
	return rc;
}

void dcp_safetensors_begin_shapes(struct dcp_safetensors_shapes *s)
{
	s->text = (struct dcp_buf)DCP_BUF_INIT;
	dcp_jsonw_init(&s->w, &s->text, false);
	dcp_jsonw_object(&s->w);
}

static void put_number(struct dcp_jsonw *w, const char *key, uint64_t n)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
	dcp_jsonw_put_str(w, key, text);
}

int dcp_safetensors_put_shapes(struct dcp_safetensors_shapes *s, struct dcp_jsonw *w,
			       uint64_t rank, uint64_t ranks)
{
	int rc;

	dcp_jsonw_end(&s->w);
	rc = dcp_jsonw_error(&s->w);
	put_number(w, "dcpfs.rank", rank);
	put_number(w, "dcpfs.ranks", ranks);
	if (rc == 0)
		dcp_jsonw_put_str(w, "dcpfs.global_shapes", s->text.p);
	dcp_buf_finish(&s->text);
	return rc;
}

int dcp_safetensors_header(struct dcp_buf *out, const char *name, enum dcp_dtype dtype,
			   uint32_t ndim, const uint64_t *shape, uint64_t nbytes,
			   uint32_t align, const char *own)
{
	size_t start = out->n;
	struct dcp_jsonw w;

	if (!dcp_dtype_info(dtype)->safetensors || !dcp_safetensors_can_name(name))
		return -ENOTSUP;
	dcp_safetensors_begin(&w, out);
	dcp_jsonw_key(&w, "__metadata__");
	dcp_safetensors_begin_meta(&w, NULL, own);
	dcp_jsonw_end(&w);
	dcp_safetensors_put(&w, name, dtype, ndim, shape, 0, nbytes);
	return dcp_safetensors_end(&w, start, align);
}
