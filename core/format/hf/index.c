/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/hf/index.h"

#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"

enum { MAX_INDEX = 256 << 20 }; /* a million keys take some 100 MB */

static int parse(const struct dcp_source *src, struct dcp_hf_index *ix, struct dcp_err *err)
{
	int rc = dcp_json_read(src, MAX_INDEX, NULL, &ix->json, err);

	if (rc < 0)
		return dcp_err_where(err, rc, "%s", ix->name);
	ix->map = dcp_json_get(ix->json, "weight_map");
	if (!dcp_json_is_object(ix->map))
		return dcp_fail(err, -EBADMSG, "%s has no weight_map object", ix->name);
	return 0;
}

int dcp_hf_index_open(const struct dcp_dir *dir, const char *name, struct dcp_hf_index *out,
		      struct dcp_err *err)
{
	dcp_auto_input struct dcp_input in = { 0 };
	int rc;

	*out = (struct dcp_hf_index){ .name = name };
	rc = dcp_dir_input(dir, name, &in, err);
	if (rc < 0)
		return rc;
	rc = parse(&in.src, out, err);
	if (rc < 0)
		dcp_hf_index_finish(out);
	return rc;
}

int dcp_hf_index_read(const struct dcp_dir *dir, const struct dcp_sink *sink, const char *name,
		      struct dcp_hf_index *out, struct dcp_err *err)
{
	uint32_t number;
	int rc = dcp_emit_file(sink, name, &number);

	*out = (struct dcp_hf_index){ .name = name };
	return rc == 0 ? dcp_hf_index_open(dir, name, out, err) : rc;
}

void dcp_hf_index_finish(struct dcp_hf_index *ix)
{
	dcp_json_free(ix->json);
	*ix = (struct dcp_hf_index){ 0 };
}

const char *dcp_hf_index_file(const struct dcp_hf_index *ix, const char *key)
{
	return dcp_json_str(dcp_json_get(ix->map, key));
}

const char *dcp_hf_index_excuse(const struct dcp_hf_index *ix, const char *file, int held,
				const char *broken, struct dcp_err *err)
{
	if (broken)
		dcp_fail(err, -EBADMSG, "%s", broken);
	else if (!file)
		dcp_fail(err, -EBADMSG, "%s names no file for it", ix->name);
	else if (strchr(file, '/'))
		dcp_fail(err, -EXDEV,
			 "%s says it is in %s: files in other directories are not opened",
			 ix->name, file);
	else
		dcp_fail(err, -EBADMSG,
			 held ? "%s says it is in %s, which does not hold it"
			      : "%s says it is in %s, which is missing",
			 ix->name, file);
	return err->msg;
}
