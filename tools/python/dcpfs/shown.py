# SPDX-License-Identifier: Apache-2.0
"""Foreign text as it is shown to people."""
from __future__ import annotations

import re

# As core/base/text.c: control characters, separators of lines, what turns the direction of text or is not seen; surrogates.
HIDDEN = re.compile("[\0-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff"
                    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]")


def shown(word: str) -> str:
    """Foreign text for a person: each byte of a misleading character as \\xNN, as the programs show it."""
    def escaped(match: re.Match[str]) -> str:
        byte = "\udc80" <= match[0] <= "\udcff"  # of a path that is not UTF-8
        return "".join(f"\\x{b:02x}" for b in match[0].encode("utf-8", "surrogateescape" if byte else "surrogatepass"))

    return HIDDEN.sub(escaped, word)
