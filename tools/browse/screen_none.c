/* SPDX-License-Identifier: Apache-2.0 */
/* In place of screen_ncurses.c, in builds without ncurses. */
#include "tools/browse/screen.h"

#include <stddef.h>

bool screen_open(const char **why)
{
	*why = "this build has no ncurses; build it with -Dncurses=enabled";
	return false;
}

const char *screen_library(void)
{
	return NULL;
}

void screen_close(void)
{
}

void screen_held(char *line, size_t size)
{
	*line = '\0';
}

void screen_size(unsigned *rows, unsigned *cols)
{
	*rows = *cols = 0;
}

void screen_line(unsigned row, const char *text, bool reversed)
{
}

void screen_show(void)
{
}

int screen_key(int wait_ms)
{
	return SCREEN_NOTHING;
}
