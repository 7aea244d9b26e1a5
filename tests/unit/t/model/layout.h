/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_layout: layouts from text, and cuts as the elements they take.
 */
#pragma once
#include "tests/unit/t.h"

#include "core/model/layout/layout.h"

enum { T_MAX_AXIS = 64, T_HOLE = -1 };

/* Indices of one dimension that a rank has, in its order; T_HOLE is padding. */
struct t_list {
	int at[T_MAX_AXIS];
	size_t n;
};

/* Parsed under the name "test", or the test fails. */
struct dcp_layout *t_layout(const char *text);

/* Every place of an axis, one by one. */
struct t_list t_list_of(const struct dcp_axis *axis);

/* "4x7" into @out; returns how many. */
uint32_t t_numbers(char *text, uint64_t *out);
