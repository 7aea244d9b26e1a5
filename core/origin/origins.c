/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/origin.h"

const struct dcp_origin *const dcp_origins[] = { NULL };
