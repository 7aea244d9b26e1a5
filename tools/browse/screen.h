/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen: a terminal, used by whole lines and by keys. One thread.
 *
 * ncurses is opened with the first screen; a build without ncurses has no screen. A signal that can
 * be caught restores the terminal before it ends the program.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

/* Keys other than characters; characters come as bytes of UTF-8. */
enum screen_key {
	SCREEN_NOTHING = -1,
	SCREEN_UP = 256,
	SCREEN_DOWN,
	SCREEN_LEFT,
	SCREEN_RIGHT,
	SCREEN_PAGE_UP,
	SCREEN_PAGE_DOWN,
	SCREEN_HOME,
	SCREEN_END,
	SCREEN_BACK,
	SCREEN_RESIZED,
	SCREEN_OTHER,
};
enum { SCREEN_ENTER = '\r', SCREEN_ESCAPE = 27, SCREEN_INTERRUPT = 3 };

/* False: no screen, with the reason in *why. */
bool screen_open(const char **why);
void screen_close(void);

/* The version of ncurses; NULL: it is not here. */
const char *screen_library(void);

/* Standard error, if it is the terminal, is held back until the screen is closed. @line: its latest
 * line, once; "": no new line. */
void screen_held(char *line, size_t size);

void screen_size(unsigned *rows, unsigned *cols);
/* Draw line @row: printable @text that fits; the rest of the line is blank. */
void screen_line(unsigned row, const char *text, bool reversed);
void screen_show(void);
/* Wait for a key, at most @wait_ms; -1: for ever. */
int screen_key(int wait_ms);

/* text: pages of dcpfs browse about one key. Foreign text in them is made printable. */

struct dcp_measures;
struct pick;
struct walk_key;

/* A key of the version: a tensor, or (tensor NULL) an object. */
struct browse_item {
	const char *key;
	const struct walk_key *tensor;
	int64_t id;
	uint64_t nbytes;
};

struct browse_text {
	struct dcp_buf text;  /* lines, each with its NUL; out of memory: dcp_buf_error() */
	struct dcp_buf lines; /* where each begins, as uint64_t */
};

/* These functions replace the text in @t. The plan of a tensor: the bytes of files that make it
 * up. */
void browse_plan(struct browse_text *t, const struct pick *p, const struct browse_item *item);
/* The statistics of a tensor, kept as dcpfs stats keeps them. @histogram: also a histogram, for
 * which the whole tensor is read. False: the user gave up, or it failed; @said: the reason. */
bool browse_numbers(struct browse_text *t, const struct pick *p, struct dcp_measures *known,
		    const struct browse_item *item, bool histogram, char *said, size_t size);
/* An object as JSON, a line for each member and element. */
void browse_object(struct browse_text *t, const struct pick *p, const struct browse_item *item);
