/* SPDX-License-Identifier: Apache-2.0 */
#include "core/write/formats.h"

#include <string.h>

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
