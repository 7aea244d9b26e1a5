/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_sha256: digests as the manifests in tests/golden spell them.
 */
#pragma once
#include <stddef.h>

/* 64 hexadecimal digits and a NUL into @hex. */
void t_sha256(const void *p, size_t n, char hex[65]);
