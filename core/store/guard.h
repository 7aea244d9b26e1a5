/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard: copying out of mapped files that somebody may cut at any moment.
 *
 * Touching a page behind the new end of a truncated file raises SIGBUS. A program that wants
 * to read through mappings installs the handler once; code run by dcp_guard_run() then gets
 * -EIO instead of dying. SIGBUS from anywhere else keeps its default meaning.
 */
#pragma once
#include <stdbool.h>

/* Install the process-wide SIGBUS handler; call before threads start. 0 or -errno. */
int dcp_guard_install(void);

/* Was it installed? Without it mapped files are read with pread. */
bool dcp_guard_active(void);

/*
 * Call fn(arg) and return what it returns, or -EIO when a mapped page could not be had. @fn
 * is abandoned on the spot then: it must hold no lock and own nothing.
 */
int dcp_guard_run(int (*fn)(void *arg), void *arg);
