/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen: a terminal as lines that are drawn whole and keys that are pressed. One thread.
 *
 * ncurses is opened when a screen is; a build without it has none. Whatever ends the program by a
 * signal that can be caught leaves the terminal as it was.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

/* Keys that are no characters; characters come as the bytes of their UTF-8. */
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

/* False: *why says why there can be none. */
bool screen_open(const char **why);
void screen_close(void);

/* The version of ncurses; NULL: it is not here. */
const char *screen_library(void);

/*
 * What is written to a standard error that is the terminal would stand on the screen: it is held
 * back until the screen is closed. The latest line of it, once; "": none came.
 */
void screen_held(char *line, size_t size);

void screen_size(unsigned *rows, unsigned *cols);
/* The line @row, of text that may be shown and fits; the rest of it is blank. */
void screen_line(unsigned row, const char *text, bool reversed);
void screen_show(void);
/* Wait at most so long, or (-1) for ever. */
int screen_key(int wait_ms);

/*
 * text: pages of dcpfs browse that say what one key is. Foreign text in them is spelled so that it
 * may be shown.
 */

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

/* These replace what is in @t. Of a tensor: which bytes of which files make it up. */
void browse_plan(struct browse_text *t, const struct pick *p, const struct browse_item *item);
/*
 * Its statistics, which are kept as those of dcpfs stats, and, if asked for, a @histogram, which
 * reads all of the tensor. False: that was given up on the screen, or cannot be done, and @said is
 * why.
 */
bool browse_numbers(struct browse_text *t, const struct pick *p, struct dcp_measures *known,
		    const struct browse_item *item, bool histogram, char *said, size_t size);
/* An object as JSON, a line for each member and element. */
void browse_object(struct browse_text *t, const struct pick *p, const struct browse_item *item);
