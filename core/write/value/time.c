/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dates, times and time spans, from their text to what Python pickles: core/parse/pyjson/time.c
 * has the form.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/write/value/value_int.h"

/* Days, seconds and microseconds, each with the sign of @us: Python takes them so. */
static void put_span(struct dcp_pickler *p, int64_t us)
{
	int64_t day = 86400ll * 1000000;

	dcp_pickler_put(p, "R c (3", "datetime", "timedelta");
	dcp_pickler_int(p, us / day);
	dcp_pickler_int(p, us % day / 1000000);
	dcp_pickler_int(p, us % 1000000);
}

void dcp_valuing_seconds(struct dcp_valuing *w)
{
	double v;

	w->values--; /* it has begun */
	v = dcp_valuing_float(w);
	if (fabs(v) < 9e12)
		put_span(w->p, llround(v * 1e6));
	else
		dcp_valuing_damaged(w);
}

/* "2024-01-02T03:04:05.000006+01:00" into a packed state, and the zone in microseconds. */
struct clock {
	uint8_t state[10];
	size_t n;
	bool zone;
	int64_t shift;
};

/* What scans of "%2u:%2u:%2u.%6u" give as microseconds; how long it is, 0: it is not a time. */
static int scan_clock(const char *s, unsigned *hms, unsigned *us)
{
	int n = 0, more = 0;

	*us = 0;
	hms[2] = 0;
	if (sscanf(s, "%2u:%2u%n:%2u%n", &hms[0], &hms[1], &n, &hms[2], &n) < 2)
		return 0;
	if (hms[0] > 23 || hms[1] > 59 || hms[2] > 59)
		return 0;
	if (s[n] == '.' && sscanf(s + n, ".%6u%n", us, &more) == 1)
		n += more;
	return n;
}

static bool parse_time(const char *class, const char *s, struct clock *c)
{
	bool is_time = strcmp(class, "datetime.time") == 0;
	unsigned ymd[3], hms[3] = { 0 }, us;
	int n = 0;

	if (!is_time) {
		if (sscanf(s, "%4u-%2u-%2u%n", &ymd[0], &ymd[1], &ymd[2], &n) != 3 ||
		    ymd[0] > 9999 || ymd[1] > 12 || ymd[2] > 31)
			return false;
		c->state[c->n++] = (uint8_t)(ymd[0] >> 8);
		for (int i = 0; i < 3; i++)
			c->state[c->n++] = (uint8_t)ymd[i];
		s += n;
		if (strcmp(class, "datetime.date") == 0)
			return *s == '\0';
		if (*s++ != 'T')
			return false;
	}
	n = scan_clock(s, hms, &us);
	for (int i = 0; i < 3; i++)
		c->state[c->n++] = (uint8_t)hms[i];
	for (int i = 16; i >= 0; i -= 8)
		c->state[c->n++] = (uint8_t)(us >> i);
	s += n;
	c->zone = n && (*s == '+' || *s == '-');
	if (c->zone) {
		int sign = *s == '-' ? -1 : 1, len = scan_clock(s + 1, hms, &us);

		if (len == 0)
			return false;
		c->shift = sign * ((hms[0] * 3600ll + hms[1] * 60 + hms[2]) * 1000000 + us);
		s += 1 + len;
	}
	return n && *s == '\0';
}

void dcp_valuing_time(struct dcp_valuing *w, const char *class)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct clock c = { .n = 0 };

	dcp_valuing_key(w, &text);
	if (w->rc)
		return;
	if (!parse_time(class, text.p, &c))
		dcp_valuing_damaged(w);
	dcp_pickler_put(w->p, c.zone ? "R c (2" : "R c (1", "datetime", strchr(class, '.') + 1);
	dcp_pickler_bytes(w->p, c.state, c.n);
	if (!c.zone)
		return;
	dcp_pickler_put(w->p, "R c (1", "datetime", "timezone");
	put_span(w->p, c.shift);
}
