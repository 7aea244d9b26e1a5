/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/out.h"

#include <string.h>

#include "core/base/utf8.h"

void out_spell(struct dcp_buf *b, const char *s, bool doubled)
{
	size_t left = strlen(s);

	while (left) {
		size_t n = dcp_utf8_len(s, left);

		if (n && !dcp_is_control(s, n)) {
			dcp_buf_add(b, s, n);
			if (doubled && *s == '\\')
				dcp_buf_str(b, "\\");
		} else {
			n = n ? n : 1;
			for (size_t i = 0; i < n; i++)
				dcp_buf_printf(b, "\\x%02x", (unsigned char)s[i]);
		}
		s += n;
		left -= n;
	}
}

void out_text(struct dcp_buf *b, const char *s)
{
	out_spell(b, s, false);
}
