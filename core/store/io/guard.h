/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard: copying out of mapped files that may be truncated at any moment.
 *
 * Touching a page past the new end of a truncated file raises SIGBUS. Signals belong to the
 * program, so the program installs a handler that calls dcp_guard_fault(), and then calls
 * dcp_guard_enable(); from then on code run by dcp_guard_run() gets -EIO instead of dying.
 * Without a handler files are read with pread.
 */
#pragma once
#include <stdbool.h>

/* The handler is in place. Call before threads start. */
void dcp_guard_enable(void);
bool dcp_guard_enabled(void);

/*
 * For the SIGBUS handler. In a thread that is inside dcp_guard_run() it does not return; it
 * returns when the fault is not ours. The handler must restore the thread's signal mask first.
 */
void dcp_guard_fault(void);

/*
 * Call fn(arg) and return what it returns, or -EIO when a mapped page could not be read. @fn is
 * then abandoned on the spot: it must hold no lock and own nothing.
 */
int dcp_guard_run(int (*fn)(void *arg), void *arg);
