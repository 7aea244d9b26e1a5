/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/parse.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/origin/origin.h"

enum { CHUNK = 1 << 15 };

ptrdiff_t dcp_latin1_narrow(const void *text, size_t n, uint8_t *out, size_t *nout)
{
	const uint8_t *p = text;
	size_t i = 0, k = 0;

	while (i < n) {
		bool wide = p[i] >= 0x80;

		if (wide && p[i] != 0xc2 && p[i] != 0xc3)
			return -1;
		if (wide && i + 1 == n)
			break;
		if (wide && (p[i + 1] & 0xc0) != 0x80)
			return -1;
		if (out)
			out[k] = wide ? (uint8_t)(p[i] << 6 | (p[i + 1] & 0x3f)) : p[i];
		i += 1 + wide;
		k++;
	}
	*nout = k;
	return (ptrdiff_t)i;
}

static int write_all(int fd, const uint8_t *p, size_t n, struct dcp_err *err)
{
	while (n > 0) {
		ssize_t did = write(fd, p, n);

		if (did < 0 && errno == EINTR)
			continue;
		if (did < 0)
			return dcp_fail(err, -errno, "writing decoded bytes: %s",
					strerror(errno));
		p += did;
		n -= (size_t)did;
	}
	return 0;
}

int dcp_latin1_decode_fd(const struct dcp_source *src, int out_fd, uint64_t want,
			 struct dcp_err *err)
{
	uint8_t in[CHUNK], out[CHUNK];
	uint64_t pos = 0, done = 0;

	while (pos < src->size) {
		size_t n = DCP_MIN(src->size - pos, (uint64_t)CHUNK), nout = 0;
		int rc = dcp_source_read(src, pos, in, n);
		ptrdiff_t took;

		if (rc < 0)
			return dcp_fail_at(err, rc, pos, "encoded bytes cannot be read");
		took = dcp_latin1_narrow(in, n, out, &nout);
		if (took <= 0)
			return dcp_fail_at(err, -EBADMSG, pos,
					   "not Latin-1 text: the %zu bytes from byte %llu", n,
					   (unsigned long long)pos);
		if (nout > want - done)
			break;
		rc = write_all(out_fd, out, nout, err);
		if (rc < 0)
			return rc;
		pos += (uint64_t)took;
		done += nout;
	}
	if (pos < src->size || done != want)
		return dcp_fail(err, -EBADMSG,
				"text of %llu bytes stands for %s than %llu bytes",
				(unsigned long long)src->size,
				pos < src->size ? "more" : "fewer", (unsigned long long)want);
	return 0;
}
