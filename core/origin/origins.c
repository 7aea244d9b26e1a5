/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of servers, one row each. The rows are defined above this room, in core/remote, and
 * only listed here. */
#include "core/origin/origin.h"

const struct dcp_origin *const dcp_origins[] = {
	&dcp_origin_s3,   &dcp_origin_gs, &dcp_origin_https,
	&dcp_origin_http, &dcp_origin_hf, NULL,
};
