/* SPDX-License-Identifier: Apache-2.0 */
#include "core/write/write.h"

#include <string.h>

#include "core/base/text.h"

/* A format is one file and one row here. */
const struct dcp_write_format *const dcp_write_formats[] = {
	&dcp_write_safetensors,
	&dcp_write_torch_dcp,
	&dcp_write_torch_save,
	&dcp_write_npy,
	&dcp_write_npz,
	&dcp_write_paddle_binary,
	&dcp_write_paddle_vars,
	&dcp_write_paddle,
	&dcp_write_paddle_dist,
	&dcp_write_paddle_dist_31,
	&dcp_write_deepspeed_universal,
	NULL,
};

const struct dcp_write_format *dcp_write_format(const char *name)
{
	for (size_t i = 0; dcp_write_formats[i]; i++)
		if (strcmp(dcp_write_formats[i]->name, name) == 0)
			return dcp_write_formats[i];
	return NULL;
}

bool dcp_write_is_file_of(const struct dcp_write_format *f, const char *path)
{
	for (const char *const *e = f->extensions; e && *e; e++)
		if (dcp_has_extension(path, *e))
			return true;
	return false;
}

const struct dcp_write_format *dcp_write_format_of(const char *path)
{
	for (size_t i = 0; dcp_write_formats[i]; i++)
		if (dcp_write_is_file_of(dcp_write_formats[i], path))
			return dcp_write_formats[i];
	return NULL;
}
