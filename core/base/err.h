/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err: an error as one line: what went wrong, and where. Every fallible function returns 0 (or
 * a count) or a negative errno. Functions that read foreign bytes or open files also take a
 * struct dcp_err, which may be NULL. The function that detects an error writes the message with
 * dcp_fail(); callers pass the code on. The caller that knows the file or key may put it in
 * front with dcp_err_where(). A message is one line, lower case, without a full stop, and says
 * what was found and what was expected. Foreign text in it is made printable, so a message can
 * always be shown on a terminal.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"

#define DCP_ERR_NO_OFFSET UINT64_MAX

struct dcp_err {
	int code;     /* the negative errno also returned; 0: nothing recorded */
	uint64_t off; /* byte in the file at fault, or DCP_ERR_NO_OFFSET */
	char msg[512];
};

/* Record the failure (err may be NULL) and return @code; _at: the byte in the file at fault. */
int dcp_fail(struct dcp_err *err, int code, const char *fmt, ...) DCP_PRINTF(3, 4);
int dcp_fail_at(struct dcp_err *err, int code, uint64_t off, const char *fmt, ...)
	DCP_PRINTF(4, 5);

/* Replace bytes of @s that may not be shown (core/base/text.h) by \xNN, cutting the text to fit
 * into @size bytes. */
void dcp_printable(char *s, size_t size);

/* If @code is a failure without a message, record the system's text for it. Called where core
 * returns to other rooms. Returns @code. */
int dcp_err_say(struct dcp_err *err, int code);

/*
 * For functions that return only a code. dcp_err_note() records for this thread why such a function
 * failed with @code (@text NULL: not known). dcp_err_noted() returns this text once, and otherwise
 * the system's text for the code.
 */
void dcp_err_note(int code, const char *text);
const char *dcp_err_noted(int code);

/* Copy the error @why to @err, which may be NULL. Returns @code. */
int dcp_err_give(struct dcp_err *err, const struct dcp_err *why, int code);

/* Put "<where>: " in front of the recorded message and return @code. */
int dcp_err_where(struct dcp_err *err, int code, const char *fmt, ...) DCP_PRINTF(3, 4);

/*
 * log: messages for the user, passed to the program, which owns the terminal.
 *
 * Core never prints. A caller gives a struct dcp_log (or NULL: silence); its
 * function must be safe from any thread.
 */

enum dcp_log_level { DCP_LOG_ERROR, DCP_LOG_WARN, DCP_LOG_INFO, DCP_LOG_DEBUG };

struct dcp_log {
	enum dcp_log_level max; /* messages above this level are dropped unformatted */
	void (*emit)(void *ctx, enum dcp_log_level level, const char *line);
	void *ctx;
};

/* One line, lower case, no full stop, no newline. */
void dcp_log(const struct dcp_log *log, enum dcp_log_level level, const char *fmt, ...)
	DCP_PRINTF(3, 4);
