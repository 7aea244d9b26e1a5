/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report: the parts of the page that dcpfs report writes, embedded in the program.
 */
#pragma once

extern const char *const report_page[]; /* the style sheet, the script */
