/* SPDX-License-Identifier: Apache-2.0 */
/* A program that needs nothing, to link all of core into: see meson.build. */
int main(void)
{
	return 0;
}
