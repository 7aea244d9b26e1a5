/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page: the parts of the pages that verbs write, embedded (tools/svg.h puts them together).
 */
#pragma once

enum page_part { PAGE_STYLE, PAGE_TABLE, PAGE_REPORT, PAGE_PLAN };
extern const char *const page_parts[];
