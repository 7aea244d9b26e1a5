/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard: copying out of mapped files that somebody may cut at any moment.
 *
 * Touching a page behind the new end of a truncated file raises SIGBUS. Signals belong to the
 * program, so it installs a handler that calls dcp_guard_fault() and then says so with
 * dcp_guard_enable(); from then on code run by dcp_guard_run() gets -EIO instead of dying.
 * A program that does not is served with pread.
 */
#pragma once
#include <stdbool.h>

/* The handler is in place. Call before threads start. */
void dcp_guard_enable(void);
bool dcp_guard_enabled(void);

/*
 * For the SIGBUS handler. In a thread that is inside dcp_guard_run(): does not return. Else
 * returns, and the fault is not ours. The handler puts the thread's signal mask back before.
 */
void dcp_guard_fault(void);

/*
 * Call fn(arg) and return what it returns, or -EIO when a mapped page could not be had. @fn
 * is abandoned on the spot then: it must hold no lock and own nothing.
 */
int dcp_guard_run(int (*fn)(void *arg), void *arg);
