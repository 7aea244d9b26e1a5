/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python's datetime module pickles its classes as calls with a packed state:
 *
 *	datetime(b"\x07\xe8\x01\x02\x03\x04\x05\x00\x00\x06", timezone(timedelta(0, 3600)))
 *	         year, 2 bytes; month, day, hour, minute, second; microsecond, 3 bytes
 *	date     year, month, day
 *	time     hour, minute, second, microsecond
 *
 * The highest bit of the month (of the hour in time) is fold.
 */
#include <stdio.h>
#include <string.h>

#include "core/parse/latin1.h"
#include "core/parse/pyjson/pyjson_int.h"

enum { MAX_STATE = 10 };

bool dcp_pyjson_span(struct dcp_pv v, int64_t *us)
{
	size_t n = 0;
	const struct dcp_pv *arg;

	if (!dcp_pv_is_object(v, "datetime", "timedelta"))
		return false;
	arg = dcp_pv_items(v.node->obj->args, &n);
	/* As Python keeps it: at most 999999999 days. */
	return n == 3 && arg[0].type == DCP_PV_INT && arg[1].type == DCP_PV_INT &&
	       arg[2].type == DCP_PV_INT && !__builtin_mul_overflow(arg[0].i, 86400, us) &&
	       !__builtin_add_overflow(*us, arg[1].i, us) &&
	       !__builtin_mul_overflow(*us, 1000000, us) &&
	       !__builtin_add_overflow(*us, arg[2].i, us);
}

/* The bytes of @v, when they are @n. */
static bool take_state(struct dcp_pv v, uint8_t *out, size_t n)
{
	struct dcp_pv bytes;

	if (v.type == DCP_PV_STR) /* of Python 2, which had no others */
		bytes = v;
	else if (!dcp_pyjson_look_bytes(v, &bytes))
		return false;
	if (dcp_pyjson_bytes_len(bytes) != n || n == 0 || !bytes.node->data)
		return false;
	if (bytes.type == DCP_PV_STR)
		dcp_latin1_narrow(bytes.node->data, bytes.node->n, out, &n);
	else
		memcpy(out, bytes.node->data, n);
	return true;
}

static bool put_date(char out[48], const uint8_t *p)
{
	unsigned year = (unsigned)p[0] << 8 | p[1];

	if (year < 1 || year > 9999 || p[2] < 1 || p[2] > 12 || p[3] < 1 || p[3] > 31)
		return false;
	snprintf(out, 48, "%04u-%02u-%02u", year, p[2], p[3]);
	return true;
}

static bool put_clock(char *out, const uint8_t *p)
{
	unsigned us = (unsigned)p[3] << 16 | (unsigned)p[4] << 8 | p[5];

	if (p[0] > 23 || p[1] > 59 || p[2] > 59 || us > 999999)
		return false;
	out += sprintf(out, "%02u:%02u:%02u", p[0], p[1], p[2]);
	if (us)
		sprintf(out, ".%06u", us);
	return true;
}

/* "+01:00"; of classes other than timezone only the name is known. */
static bool put_zone(char *out, struct dcp_pv zone)
{
	const int64_t day = 86400ll * 1000000;
	const struct dcp_pv *arg;
	int64_t us, rest;
	size_t n = 0;

	if (!dcp_pv_is_object(zone, "datetime", "timezone"))
		return false;
	arg = dcp_pv_items(zone.node->obj->args, &n);
	if (n != 1 || !dcp_pyjson_span(arg[0], &us) || us <= -day || us >= day)
		return false;
	rest = us < 0 ? -us : us;
	out += sprintf(out, "%c%02d:%02d", us < 0 ? '-' : '+', (int)(rest / 3600000000ll),
		       (int)(rest / 60000000 % 60));
	if (rest % 60000000)
		out += sprintf(out, ":%02d", (int)(rest / 1000000 % 60));
	if (rest % 1000000)
		sprintf(out, ".%06d", (int)(rest % 1000000));
	return true;
}

bool dcp_pyjson_time(struct dcp_pv v, char iso[48])
{
	static const struct {
		const char *name;
		size_t date, clock; /* bytes of its state */
	} classes[] = { { "datetime", 4, 6 }, { "date", 4, 0 }, { "time", 0, 6 } };
	uint8_t p[MAX_STATE];
	const struct dcp_pv *arg;
	size_t n = 0, c = 0;

	while (c < 3 && !dcp_pv_is_object(v, "datetime", classes[c].name))
		c++;
	if (c == 3 || v.node->obj->state.type != DCP_PV_NONE)
		return false;
	arg = dcp_pv_items(v.node->obj->args, &n);
	if (n < 1 || n > (classes[c].clock ? 2u : 1u) ||
	    !take_state(arg[0], p, classes[c].date + classes[c].clock))
		return false;
	*iso = '\0';
	if (classes[c].date && !put_date(iso, p))
		return false;
	if (classes[c].date && classes[c].clock)
		strcat(iso, "T");
	if (classes[c].clock && !put_clock(iso + strlen(iso), p + classes[c].date))
		return false;
	return n == 1 || put_zone(iso + strlen(iso), arg[1]);
}
