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
