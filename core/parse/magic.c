/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/parse.h"

#include <stdint.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"

/* clang-format off */
static const struct {
	uint8_t at, n;
	const char *bytes, *what;
} known[] = {
	{ 0, 24, "version https://git-lfs.", "a Git LFS pointer; fetch the file itself with: git lfs pull" },
	{ 0, 9, "<!DOCTYPE", "a web page; the download failed" },
	{ 0, 9, "<!doctype", "a web page; the download failed" },
	{ 0, 5, "<html", "a web page; the download failed" },
	{ 0, 4, "GGUF", "a GGUF model (llama.cpp)" },
	{ 0, 4, "lmgg", "a GGML model (llama.cpp before GGUF)" },
	{ 0, 4, "fmgg", "a GGML model (llama.cpp before GGUF)" },
	{ 0, 4, "tjgg", "a GGML model (llama.cpp before GGUF)" },
	{ 0, 4, "algg", "a GGML adapter (llama.cpp before GGUF)" },
	{ 4, 3, "ET1", "an ExecuTorch program (.pte)" },
	{ 4, 4, "TFL3", "a TensorFlow Lite model" },
	{ 0, 8, "\x89HDF\r\n\x1a\n", "an HDF5 file (Keras)" },
	{ 0, 6, "\x93NUMPY", "a .npy array of numpy" },
	{ 0, 2, "\x1f\x8b", "compressed with gzip; unpack it first" },
	{ 0, 4, "\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first" },
	{ 0, 5, "\xfd" "7zXZ", "compressed with xz; unpack it first" },
	{ 0, 3, "BZh", "compressed with bzip2; unpack it first" },
	{ 0, 4, "\x04\x22\x4d\x18", "compressed with lz4; unpack it first" },
	{ 0, 4, "PK\3\4", "a zip archive; torch.save writes those" },
	{ 0, 2, "\x80\x02", "a pickle" },
	{ 0, 2, "\x80\x03", "a pickle" },
	{ 0, 2, "\x80\x04", "a pickle" },
	{ 0, 2, "\x80\x05", "a pickle" },
	{ 0, 8, "PYTORCH1", "the \"PYTORCH1\" container, a preview of 2018" },
	{ 0, 16, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "zeros; was room for it made and nothing written?" },
};
/* clang-format on */

bool dcp_magic_is_safetensors(const void *head, size_t n)
{
	const uint8_t *p = head;

	return n > 9 && dcp_load_le64(p) <= 100000000 && p[8] == '{';
}

const char *dcp_magic(const void *head, size_t n)
{
	const uint8_t *p = head;

	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (n >= (size_t)known[i].at + known[i].n &&
		    memcmp(p + known[i].at, known[i].bytes, known[i].n) == 0)
			return known[i].what;
	return dcp_magic_is_safetensors(p, n) ? "a safetensors file" : NULL;
}
