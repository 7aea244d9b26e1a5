/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "tools/svg.h"

static void text_is_escaped(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	svg_escape(&b, "a<b>&\"c'\n\x01z");
	assert_string_equal(b.p, "a&lt;b&gt;&amp;&quot;c&#39;\\x0a\\x01z");
	dcp_buf_reset(&b);
	svg_escape_lines(&b, "a<\nb\xe2\x80\xae");
	assert_string_equal(b.p, "a&lt;\nb\\xe2\\x80\\xae");
}

static void drawings_are_written(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	svg_begin(&b, 100, 50, "a & b");
	svg_box(&b, 1, 2, 3, 4.5, "#010203", "none", 0);
	svg_title(&b, "rank %d <x>", 3);
	svg_close(&b);
	svg_text(&b, 5, 6, SVG_MIDDLE, 11, "%s", "w'");
	svg_end(&b);
	assert_string_equal(
		b.p,
		"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 50' width='100' "
		"role='img'>\n<title>a &amp; b</title>\n"
		"<style>@media (prefers-color-scheme: dark) { svg:root { color-scheme: dark; "
		"filter: invert(1) hue-rotate(180deg); } }</style>\n"
		"<rect width='100' height='50' fill='#ffffff'/>\n"
		"<rect x='1.00' y='2.00' width='3.00' height='4.50' fill='#010203' "
		"stroke='none' stroke-width='0.00'><title>rank 3 &lt;x&gt;</title></rect>\n"
		"<text x='5.00' y='6.00' text-anchor='middle' font-size='11.0' "
		"font-family='system-ui,sans-serif' fill='#222222' pointer-events='none'>"
		"w&#39;</text>\n</svg>\n");
}

/* Neighbours differ, and every one is light enough for dark text on it. */
static void neighbouring_colors_differ(void **state)
{
	char before[8] = "", now[8];
	unsigned r, g, b;

	(void)state;
	for (uint32_t i = 0; i < 1000; i++) {
		svg_color(now, i);
		assert_int_equal(sscanf(now, "#%2x%2x%2x", &r, &g, &b), 3);
		assert_true(2 * r + 5 * g + b > 8 * 110);
		assert_string_not_equal(now, before);
		memcpy(before, now, sizeof(now));
	}
	assert_string_equal(svg_shade(now, 0), "#ffffff");
	assert_string_equal(svg_shade(now, -1), "#ffffff");
	assert_string_equal(svg_shade(now, 2), svg_shade(before, 1));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_is_escaped),
		cmocka_unit_test(drawings_are_written),
		cmocka_unit_test(neighbouring_colors_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
