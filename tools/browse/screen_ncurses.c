/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/browse/screen.h"

#define NCURSES_NOMACROS
#define NCURSES_WIDECHAR 1
#include <curses.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"

#define LIBRARY "libncursesw.so.6"

static struct {
	__typeof__(&newterm) newterm;
	__typeof__(&delscreen) delscreen;
	__typeof__(&endwin) endwin;
	__typeof__(&raw) raw;
	__typeof__(&noecho) noecho;
	__typeof__(&nonl) nonl;
	__typeof__(&keypad) keypad;
	__typeof__(&curs_set) curs_set;
	__typeof__(&set_escdelay) set_escdelay;
	__typeof__(&wtimeout) wtimeout;
	__typeof__(&wgetch) wgetch;
	__typeof__(&wmove) wmove;
	__typeof__(&wclrtoeol) wclrtoeol;
	__typeof__(&waddnstr) waddnstr;
	__typeof__(&wattrset) wattrset;
	__typeof__(&wrefresh) wrefresh;
	__typeof__(&getmaxx) getmaxx;
	__typeof__(&getmaxy) getmaxy;
	WINDOW **stdscr_at;
} lib;

static const char *const names[] = {
	/* in the order of lib */
	"newterm",  "delscreen",    "endwin",   "raw",     "noecho", "nonl",      "keypad",
	"curs_set", "set_escdelay", "wtimeout", "wgetch",  "wmove",  "wclrtoeol", "waddnstr",
	"wattrset", "wrefresh",     "getmaxx",  "getmaxy", "stdscr",
};

static SCREEN *screen;
static int held = -1, error = -1; /* the text held back, and the real standard error */
static off_t told;                /* bytes of it that screen_held() has seen */

/* Write the held text; only calls that are safe in a signal handler. */
static void release_errors(void)
{
	char text[4096];
	off_t at = 0;
	ssize_t n;

	if (held < 0)
		return;
	dup2(error, STDERR_FILENO);
	while ((n = pread(held, text, sizeof(text), at)) > 0 &&
	       write(STDERR_FILENO, text, (size_t)n) == n)
		at += n;
	close(held);
	close(error);
	held = error = -1;
}

static void hold_errors(void)
{
	if (!isatty(STDERR_FILENO))
		return;
	held = memfd_create("dcpfs-errors", MFD_CLOEXEC);
	error = held >= 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
	told = 0;
	if (error >= 0 && dup2(held, STDERR_FILENO) >= 0)
		return;
	if (held >= 0)
		close(held);
	held = -1;
}

void screen_held(char *line, size_t size)
{
	char text[2048];
	off_t end = held >= 0 ? lseek(held, 0, SEEK_END) : 0,
	      from = DCP_MAX(told, end - (off_t)sizeof(text) + 1);
	ssize_t n = end > told ? pread(held, text, (size_t)(end - from), from) : 0;
	char *last;

	*line = '\0';
	if (n <= 0)
		return;
	told = end;
	while (n > 0 && text[n - 1] == '\n')
		n--;
	text[n] = '\0';
	last = strrchr(text, '\n');
	snprintf(line, size, " %s", last ? last + 1 : text);
}

/* Restore the terminal, then let the signal act. No memory is freed: the signal may have
 * interrupted malloc(). */
static void give_back(int number)
{
	if (screen)
		lib.endwin();
	release_errors();
	raise(number);
}

bool screen_open(const char **why)
{
	static const int ends[] = { SIGTERM, SIGHUP,  SIGQUIT, SIGINT,
				    SIGABRT, SIGSEGV, SIGFPE,  SIGILL };
	struct sigaction act = { .sa_handler = give_back, .sa_flags = (int)SA_RESETHAND };
	static char reason[128];

	*why = reason;
	if (dcp_library_open(LIBRARY, names, DCP_LEN(names), (void **)&lib, reason,
			     sizeof(reason)) < 0)
		return false;
	setlocale(LC_CTYPE, "");
	screen = lib.newterm(NULL, stdout, stdin);
	if (!screen) {
		*why = "the terminal that TERM names is not known, or cannot be drawn on";
		return false;
	}
	hold_errors();
	for (size_t i = 0; i < DCP_LEN(ends); i++)
		sigaction(ends[i], &act, NULL);
	/* Ctrl-C comes as a key, so that it never ends the program in the middle of drawing */
	lib.raw();
	lib.noecho();
	lib.nonl();
	lib.keypad(*lib.stdscr_at, true);
	lib.set_escdelay(50);
	lib.curs_set(0);
	return true;
}

const char *screen_library(void)
{
	static const char *const name[] = { "curses_version" };
	__typeof__(&curses_version) version;
	const char *text;
	char why[128];

	if (dcp_library_open(LIBRARY, name, 1, (void **)&version, why, sizeof(why)) < 0)
		return NULL;
	text = version(); /* "ncurses 6.4.20221231" */
	return text + strcspn(text, "0123456789");
}

void screen_close(void)
{
	if (!screen)
		return;
	lib.endwin();
	lib.delscreen(screen);
	screen = NULL;
	release_errors();
}

void screen_size(unsigned *rows, unsigned *cols)
{
	*rows = (unsigned)lib.getmaxy(*lib.stdscr_at);
	*cols = (unsigned)lib.getmaxx(*lib.stdscr_at);
}

void screen_line(unsigned row, const char *text, bool reversed)
{
	WINDOW *w = *lib.stdscr_at;

	if (lib.wmove(w, (int)row, 0) == ERR)
		return;
	lib.wclrtoeol(w);
	lib.wattrset(w, reversed ? (int)A_REVERSE : (int)A_NORMAL);
	lib.waddnstr(w, text, -1);
}

void screen_show(void)
{
	lib.wrefresh(*lib.stdscr_at);
}

int screen_key(int wait_ms)
{
	static const struct {
		int from;
		enum screen_key to;
	} keys[] = {
		{ KEY_UP, SCREEN_UP },
		{ KEY_DOWN, SCREEN_DOWN },
		{ KEY_LEFT, SCREEN_LEFT },
		{ KEY_RIGHT, SCREEN_RIGHT },
		{ KEY_PPAGE, SCREEN_PAGE_UP },
		{ KEY_NPAGE, SCREEN_PAGE_DOWN },
		{ KEY_HOME, SCREEN_HOME },
		{ KEY_END, SCREEN_END },
		{ KEY_BACKSPACE, SCREEN_BACK },
		{ 127, SCREEN_BACK },
		{ 8, SCREEN_BACK },
		{ KEY_RESIZE, SCREEN_RESIZED },
		{ KEY_ENTER, (enum screen_key)SCREEN_ENTER },
		{ '\n', (enum screen_key)SCREEN_ENTER },
	};
	int key;

	lib.wtimeout(*lib.stdscr_at, wait_ms);
	key = lib.wgetch(*lib.stdscr_at);
	for (size_t i = 0; i < DCP_LEN(keys); i++)
		if (keys[i].from == key)
			return (int)keys[i].to;
	return key == ERR ? SCREEN_NOTHING : key < 256 ? key : SCREEN_OTHER;
}
