/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/measure/stats.h"

#include <math.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/simd.h"

enum {
	BLOCK = 1024,
	MAX_PACKED = 8, /* bytes of an element; changed elements up to this size are gathered */
};

void dcp_difference_init(struct dcp_difference *d)
{
	*d = (struct dcp_difference){ .first = DCP_NO_INDEX };
}

bool dcp_can_differ(enum dcp_dtype a, enum dcp_dtype b)
{
	return !dcp_stats_is_opaque(a) && !dcp_stats_is_opaque(b) &&
	       dcp_stats_values(a) == dcp_stats_values(b) &&
	       (a == DCP_DTYPE_F4) == (b == DCP_DTYPE_F4);
}

void dcp_difference_join(struct dcp_difference *d, const struct dcp_difference *later)
{
	d->n += later->n;
	d->changed += later->changed;
	d->first = DCP_MIN(d->first, later->first);
	d->far += later->far;
	d->nans += later->nans;
	d->pairs += later->pairs;
	d->max_abs = DCP_MAX(d->max_abs, later->max_abs);
	d->max_rel = DCP_MAX(d->max_rel, later->max_rel);
	d->sum_abs += later->sum_abs;
	d->sum_rel += later->sum_rel;
	d->aa += later->aa;
	d->bb += later->bb;
	d->ab += later->ab;
	d->dd += later->dd;
	for (size_t i = 0; i < DCP_DIFFER_ULPS; i++)
		d->ulps[i] += later->ulps[i];
}

double dcp_difference_relative(const struct dcp_difference *d)
{
	return d->dd == 0 ? 0 : d->aa > 0 ? sqrt(d->dd / d->aa) : NAN;
}

double dcp_difference_cosine(const struct dcp_difference *d)
{
	return d->aa > 0 && d->bb > 0 ? d->ab / sqrt(d->aa) / sqrt(d->bb) : NAN;
}

/* ---- numbers ---- */

struct sums {
	double aa, bb, ab, dd, abs, rel, max_abs, max_rel;
	uint64_t far;
};

DCP_SIMD_BODY void take(struct sums *s, double a, double b, double x,
			const struct dcp_tolerance *t)
{
	double m = DCP_MAX(fabs(a), fabs(b)), r = m > 0 ? x / m : 0;

	s->aa += a * a;
	s->bb += b * b;
	s->ab += a * b;
	s->dd += x * x;
	s->abs += x;
	s->rel += r;
	s->max_abs = DCP_MAX(s->max_abs, x);
	s->max_rel = DCP_MAX(s->max_rel, r);
	s->far += x > t->atol + t->rtol * fabs(b);
}

DCP_SIMD_BODY void sum_body(const double *a, const double *b, size_t n,
			    const struct dcp_tolerance *t, struct sums *out)
{
	dcp_v4d aa = { 0 }, bb = { 0 }, ab = { 0 }, dd = { 0 }, abs = { 0 }, rel = { 0 },
		max_abs = { 0 }, max_rel = { 0 };
	dcp_v4l far = { 0 };
	const double rtol = t->rtol, atol = t->atol;
	size_t i = 0;

	for (; i + DCP_LANES <= n; i += DCP_LANES) {
		dcp_v4d x, y, d, fx, fy, m, r;

		memcpy(&x, a + i, sizeof(x));
		memcpy(&y, b + i, sizeof(y));
		d = DCP_V4D_ABS(x - y);
		fx = DCP_V4D_ABS(x);
		fy = DCP_V4D_ABS(y);
		m = DCP_V4D_MAX(fx, fy);
		r = d / (dcp_v4d)((dcp_v4l)m | ((m == 0) & 0x3ff0000000000000LL)); /* by 1 */
		aa += x * x;
		bb += y * y;
		ab += x * y;
		dd += d * d;
		abs += d;
		rel += r;
		max_abs = DCP_V4D_MAX(d, max_abs);
		max_rel = DCP_V4D_MAX(r, max_rel);
		far -= d > atol + rtol * fy;
	}
	*out = (struct sums){ .aa = DCP_V4D_SUM(aa),
			      .bb = DCP_V4D_SUM(bb),
			      .ab = DCP_V4D_SUM(ab),
			      .dd = DCP_V4D_SUM(dd),
			      .abs = DCP_V4D_SUM(abs),
			      .rel = DCP_V4D_SUM(rel),
			      .far = (uint64_t)DCP_V4D_SUM(far) };
	for (size_t k = 0; k < DCP_LANES; k++) {
		out->max_abs = DCP_MAX(out->max_abs, max_abs[k]);
		out->max_rel = DCP_MAX(out->max_rel, max_rel[k]);
	}
	for (; i < n; i++)
		take(out, a[i], b[i], fabs(a[i] - b[i]), t);
}
DCP_SIMD_BOTH(sum_all, sum_body,
	      (const double *a, const double *b, size_t n, const struct dcp_tolerance *t,
	       struct sums *out),
	      (a, b, n, t, out))

/* The bits of numbers, which tell different NaNs apart; NULL: the numbers have two types. */
struct bits {
	const char *a, *b;
	size_t bytes; /* of a number */
};

/* A value that is not finite has no distance. Two NaNs are not far apart, whatever their bits. */
static uint64_t sum_finite(const double *a, const double *b, size_t n,
			   const struct dcp_tolerance *t, const struct bits *bits,
			   struct sums *out, struct dcp_difference *d)
{
	uint64_t pairs = 0;

	*out = (struct sums){ 0 };
	for (size_t i = 0; i < n; i++) {
		bool both = isnan(a[i]) && isnan(b[i]), same = a[i] == b[i] || both;

		if (isfinite(a[i]) && isfinite(b[i])) {
			take(out, a[i], b[i], fabs(a[i] - b[i]), t);
			pairs++;
			continue;
		}
		out->far += !same;
		if (both && bits)
			same = memcmp(bits->a + i * bits->bytes, bits->b + i * bits->bytes,
				      bits->bytes) == 0;
		d->nans += !same;
	}
	return pairs;
}

static void add_sums(struct dcp_difference *d, const struct sums *s, uint64_t pairs)
{
	d->pairs += pairs;
	d->aa += s->aa;
	d->bb += s->bb;
	d->ab += s->ab;
	d->dd += s->dd;
	d->sum_abs += s->abs;
	d->sum_rel += s->rel;
	d->max_abs = DCP_MAX(d->max_abs, s->max_abs);
	d->max_rel = DCP_MAX(d->max_rel, s->max_rel);
	d->far += s->far;
}

static void add_numbers(struct dcp_difference *d, const struct dcp_tolerance *t,
			const struct bits *bits, const double *a, const double *b, size_t n)
{
	uint64_t pairs = n;
	struct sums s;

	sum_all(a, b, n, t, &s);
	/* Squares of finite numbers may overflow, too: then this is slower, with the same
	 * result. */
	if (!isfinite(s.aa) || !isfinite(s.bb) || !isfinite(s.abs))
		pairs = sum_finite(a, b, n, t, bits, &s, d);
	add_sums(d, &s, pairs);
}

/* ---- bits ---- */

/* List the elements of 2^@shift bytes that differ, in the whole vectors of @size bytes; returns
 * their number. The first difference in a vector is taken without a branch, which could not be
 * predicted. */
#if defined(__x86_64__)
static __attribute__((always_inline, target("avx2"))) inline size_t
list_vectors(const char *a, const char *b, size_t size, unsigned shift, uint16_t *out)
{
	static const uint32_t heads[] = { 0xffffffff, 0x55555555, 0x11111111, 0x01010101 };
	size_t k = 0;

	for (size_t at = 0; at + 32 <= size; at += 32) {
		__m256i v = _mm256_loadu_si256((const void *)(a + at));
		__m256i w = _mm256_loadu_si256((const void *)(b + at));
		uint32_t m = ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, w));

		for (unsigned s = 0; s < shift; s++)
			m |= m >> (1u << s);
		m &= heads[shift];
		out[k] = (uint16_t)((at + (unsigned)__builtin_ctz(m | 1u << 31)) >> shift);
		k += m != 0;
		for (m &= m - 1; m; m &= m - 1)
			out[k++] = (uint16_t)((at + (unsigned)__builtin_ctz(m)) >> shift);
	}
	return k;
}
#define DEFINE_LIST_VECTORS(bits)                                                              \
	static DCP_SIMD_WIDE size_t vectors_##bits(const char *a, const char *b, size_t size,  \
						   uint16_t *out)                              \
	{                                                                                      \
		return list_vectors(a, b, size, __builtin_ctz((bits) / 8), out);               \
	}
#else
#define DEFINE_LIST_VECTORS(bits)                                                              \
	static size_t vectors_##bits(const char *a, const char *b, size_t size, uint16_t *out) \
	{                                                                                      \
		return 0;                                                                      \
	}
#endif

/* List the numbers of the changed elements in a block. */
#define DEFINE_LIST(bits)                                                                      \
	DEFINE_LIST_VECTORS(bits)                                                              \
	static size_t list_##bits(const char *a, const char *b, size_t n, uint16_t *out)       \
	{                                                                                      \
		const uint##bits##_t *x = (const void *)a, *y = (const void *)b;               \
		size_t whole = dcp_simd_is_wide() ? n * ((bits) / 8) & -(size_t)32 : 0;        \
		size_t k = whole ? vectors_##bits(a, b, whole, out) : 0;                       \
                                                                                               \
		for (size_t i = whole / ((bits) / 8); i < n; i++) {                            \
			out[k] = (uint16_t)i;                                                  \
			k += x[i] != y[i];                                                     \
		}                                                                              \
		return k;                                                                      \
	}                                                                                      \
	/* Append those elements to @p and @q, and clear them in @same. */                     \
	static void part_##bits(const char *a, const char *b, const uint16_t *at, size_t n,    \
				char *p, char *q, char *same)                                  \
	{                                                                                      \
		for (size_t i = 0; i < n; i++) {                                               \
			((uint##bits##_t *)p)[i] = ((const uint##bits##_t *)a)[at[i]];         \
			((uint##bits##_t *)q)[i] = ((const uint##bits##_t *)b)[at[i]];         \
			((uint##bits##_t *)same)[at[i]] = 0;                                   \
		}                                                                              \
	}

DEFINE_LIST(8)
DEFINE_LIST(16)
DEFINE_LIST(32)
DEFINE_LIST(64)

static size_t list_changed(const char *a, const char *b, uint32_t itemsize, size_t n,
			   uint16_t *out)
{
	size_t k = 0;

	if (itemsize == 1)
		return list_8(a, b, n, out);
	if (itemsize == 2)
		return list_16(a, b, n, out);
	if (itemsize == 4)
		return list_32(a, b, n, out);
	if (itemsize == 8)
		return list_64(a, b, n, out);
	for (size_t i = 0; i < n; i++) {
		out[k] = (uint16_t)i;
		k += memcmp(a + i * itemsize, b + i * itemsize, itemsize) != 0;
	}
	return k;
}

static void part_changed(const char *a, const char *b, uint32_t itemsize, const uint16_t *at,
			 size_t n, char *p, char *q, char *same)
{
	if (itemsize == 1)
		part_8(a, b, at, n, p, q, same);
	else if (itemsize == 2)
		part_16(a, b, at, n, p, q, same);
	else if (itemsize == 4)
		part_32(a, b, at, n, p, q, same);
	else if (itemsize == 8)
		part_64(a, b, at, n, p, q, same);
}

/* How to turn bits into a number's place among all numbers of its type; neighbours differ by
 * one. */
enum order { AS_IS, TURNED, BY_SIGN };

static enum order order_of(enum dcp_dtype t)
{
	switch ((int)t) {
	case DCP_DTYPE_U64:
	case DCP_DTYPE_U32:
	case DCP_DTYPE_U16:
	case DCP_DTYPE_U8:
	case DCP_DTYPE_BOOL:
	case DCP_DTYPE_F8_E8M0:
		return AS_IS;
	case DCP_DTYPE_I64:
	case DCP_DTYPE_I32:
	case DCP_DTYPE_I16:
	case DCP_DTYPE_I8:
		return TURNED;
	default:
		return BY_SIGN;
	}
}

DCP_SIMD_BODY uint64_t place_of(enum order order, uint64_t v, unsigned bits)
{
	uint64_t top = (uint64_t)1 << (bits - 1), sign = 0 - (v >> (bits - 1));

	if (order == AS_IS)
		return v;
	if (order == TURNED)
		return v ^ top;
	return top + (((v & (top - 1)) ^ sign) - sign); /* zeros of both signs are one place */
}

DCP_SIMD_BODY void count_ulp(uint64_t *ulps, uint64_t a, uint64_t b)
{
	uint64_t far = a > b ? a - b : b - a;

	ulps[far ? 64 - __builtin_clzll(far) : 0]++;
}

/* For 16-bit types: finds the exponent of the distance as a float, which is exact. The loop has no
 * branches, since equal and changed numbers alternate at random. Then the bytes are counted. */
DCP_SIMD_BODY void bins_body(uint8_t *out, const uint16_t *a, const uint16_t *b, size_t n,
			     bool by_sign, uint16_t turn)
{
	const int32_t by = by_sign ? -1 : 0, mag = by_sign ? 0x7fff : -1;
	uint32_t bits[BLOCK];
	float far[BLOCK];

	for (size_t i = 0; i < n; i++) {
		int32_t x = (int16_t)(a[i] ^ turn), y = (int16_t)(b[i] ^ turn);
		int32_t sx = x >> 31 & by, sy = y >> 31 & by, d, s;

		d = (((x & mag) ^ sx) - sx) - (((y & mag) ^ sy) - sy);
		s = d >> 31;
		far[i] = (float)((d ^ s) - s);
	}
	memcpy(bits, far, n * sizeof(*far));
	for (size_t i = 0; i < n; i++) {
		uint32_t e = bits[i] >> 23;

		out[i] = (uint8_t)(e < 126 ? 0 : e - 126);
	}
}
DCP_SIMD_BOTH(find_bins, bins_body,
	      (uint8_t * out, const uint16_t *a, const uint16_t *b, size_t n, bool by_sign,
	       uint16_t turn),
	      (out, a, b, n, by_sign, turn))

static void count_ulps_16(struct dcp_difference *d, enum order order, const void *a,
			  const void *b, size_t n)
{
	/* In a single table, equal neighbours would wait for each other. */
	uint32_t count[4][32] = { 0 };
	uint8_t bins[BLOCK] = { 0 };

	find_bins(bins, a, b, n, order == BY_SIGN, order == AS_IS ? 0x8000 : 0);
	for (size_t i = 0; i < n; i += 4)
		for (size_t k = 0; k < 4; k++)
			count[k][bins[i + k] & 31]++;
	count[0][0] -= (uint32_t)(-n & 3); /* beyond the end */
	for (size_t i = 0; i < 32; i++)
		d->ulps[i] += (uint32_t)(count[0][i] + count[1][i] + count[2][i] + count[3][i]);
}

#define COUNT_ULPS(bits)                                                                       \
	for (size_t i = 0; i < n; i++)                                                         \
	count_ulp(d->ulps, place_of(order, ((const uint##bits##_t *)a)[i], bits),              \
		  place_of(order, ((const uint##bits##_t *)b)[i], bits))

static void count_ulps(struct dcp_difference *d, enum dcp_dtype t, const void *a, const void *b,
		       unsigned bytes, size_t n)
{
	enum order order = order_of(t);

	if (bytes == 2)
		count_ulps_16(d, order, a, b, n);
	else if (bytes == 4)
		COUNT_ULPS(32);
	else if (bytes == 8)
		COUNT_ULPS(64);
	else
		COUNT_ULPS(8);
}

static void count_ulps_f4(struct dcp_difference *d, const uint8_t *a, const uint8_t *b,
			  size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (unsigned shift = 0; shift < 8; shift += 4)
			count_ulp(d->ulps, place_of(BY_SIGN, a[i] >> shift & 15, 4),
				  place_of(BY_SIGN, b[i] >> shift & 15, 4));
}

/* A double cannot hold each of their numbers. */
static bool is_long(enum dcp_dtype t)
{
	return t == DCP_DTYPE_I64 || t == DCP_DTYPE_U64;
}

/* Like add_numbers(), for numbers that may be neighbours but equal as doubles: distances are those
 * of the integers. */
static void add_longs(struct dcp_difference *d, const struct dcp_tolerance *t, bool is_signed,
		      const uint64_t *a, const uint64_t *b, size_t n)
{
	struct sums s = { 0 };

	for (size_t i = 0; i < n; i++) {
		bool above = is_signed ? (int64_t)a[i] > (int64_t)b[i] : a[i] > b[i];
		double x = (double)(above ? a[i] - b[i] : b[i] - a[i]);

		take(&s, is_signed ? (double)(int64_t)a[i] : (double)a[i],
		     is_signed ? (double)(int64_t)b[i] : (double)b[i], x, t);
	}
	add_sums(d, &s, n);
}

/* Changed elements of several blocks, gathered, since the results do not depend on their places. */
struct apart {
	size_t n;
	_Alignas(16) char a[2 * BLOCK * MAX_PACKED], b[2 * BLOCK * MAX_PACKED];
};

/* Add @n elements of one type, most or all of which differ. */
static void add_apart(struct dcp_difference *d, const struct dcp_tolerance *tolerance,
		      enum dcp_dtype t, const char *a, const char *b, uint32_t itemsize,
		      size_t n)
{
	unsigned values = dcp_stats_values(t);
	size_t most = BLOCK / values;
	double x[BLOCK], y[BLOCK];

	for (size_t i = 0; i < n; i += most) {
		const char *p = a + i * itemsize, *q = b + i * itemsize;
		const struct bits bits = { p, q, itemsize / values };
		size_t k = DCP_MIN(n - i, most);

		if (is_long(t)) {
			add_longs(d, tolerance, t == DCP_DTYPE_I64, (const void *)p,
				  (const void *)q, k);
			count_ulps(d, t, p, q, itemsize, k);
			continue;
		}
		dcp_stats_widen(t, x, p, k * values);
		dcp_stats_widen(t, y, q, k * values);
		add_numbers(d, tolerance, t == DCP_DTYPE_F4 ? NULL : &bits, x, y, k * values);
		if (t == DCP_DTYPE_F4)
			count_ulps_f4(d, (const uint8_t *)p, (const uint8_t *)q, k);
		else
			count_ulps(d, t, p, q, itemsize / values, k * values);
	}
}

/* Add equal elements. @zeros of them stand for elements that were gathered elsewhere. */
static void add_same(struct dcp_difference *d, enum dcp_dtype t, const void *a, size_t n,
		     size_t zeros)
{
	unsigned values = dcp_stats_values(t);
	uint64_t finite = n * values;
	double square;

	if (!dcp_stats_squares(t, a, n * values, &square)) {
		struct dcp_stats s;

		dcp_stats_init(&s);
		dcp_stats_add(&s, NULL, t, 0, a, n);
		finite = s.finite;
		square = s.m2 + (double)s.finite * s.mean * s.mean;
	}
	d->pairs += finite - zeros * values;
	d->aa += square;
	d->bb += square;
	d->ab += square;
	d->ulps[0] += (n - zeros) * values;
}

/* Add a block of one type in which some bits differ. */
static void add_changed(struct dcp_difference *d, const struct dcp_tolerance *tolerance,
			enum dcp_dtype t, const char *a, const char *b, uint32_t itemsize,
			uint64_t first, size_t n, struct apart *apart)
{
	_Alignas(16) char same[BLOCK * MAX_PACKED];
	uint16_t at[BLOCK + 1];
	size_t changed = list_changed(a, b, itemsize, n, at), to = apart->n * itemsize;

	d->changed += changed;
	if (d->first == DCP_NO_INDEX)
		d->first = first + at[0];
	if (dcp_stats_is_opaque(t))
		return;
	if (itemsize > MAX_PACKED || changed > n / 2) {
		add_apart(d, tolerance, t, a, b, itemsize, n);
		return;
	}
	memcpy(same, a, n * itemsize);
	part_changed(a, b, itemsize, at, changed, apart->a + to, apart->b + to, same);
	apart->n += changed;
	add_same(d, t, same, n, changed);
}

static void add_block(struct dcp_difference *d, const struct dcp_tolerance *tolerance,
		      enum dcp_dtype t, const char *a, const char *b, uint32_t itemsize,
		      uint64_t first, size_t n, struct apart *apart)
{
	d->n += n;
	if (memcmp(a, b, n * itemsize) != 0)
		add_changed(d, tolerance, t, a, b, itemsize, first, n, apart);
	else if (!dcp_stats_is_opaque(t))
		add_same(d, t, a, n, 0);
}

/* Add numbers of two types. */
static void add_mixed(struct dcp_difference *d, const struct dcp_tolerance *tolerance,
		      enum dcp_dtype ta, const void *a, enum dcp_dtype tb, const void *b,
		      uint64_t first, size_t n)
{
	unsigned values = dcp_stats_values(ta);
	double x[BLOCK], y[BLOCK];

	dcp_stats_widen(ta, x, a, n * values);
	dcp_stats_widen(tb, y, b, n * values);
	d->n += n;
	for (size_t i = 0; i < n; i++) {
		bool same = true;

		for (size_t k = i * values; k < (i + 1) * values; k++)
			same = same && (x[k] == y[k] || (isnan(x[k]) && isnan(y[k])));
		d->changed += !same;
		if (!same)
			d->first = DCP_MIN(d->first, first + i);
	}
	add_numbers(d, tolerance, NULL, x, y, n * values);
}

void dcp_difference_add(struct dcp_difference *d, const struct dcp_tolerance *tolerance,
			enum dcp_dtype ta, const void *a, enum dcp_dtype tb, const void *b,
			uint32_t itemsize, uint64_t first, size_t n)
{
	size_t most = BLOCK / dcp_stats_values(ta);
	size_t size_a = ta == tb ? itemsize : dcp_dtype_info(ta)->size;
	size_t size_b = ta == tb ? itemsize : dcp_dtype_info(tb)->size;
	struct apart apart;

	apart.n = 0;
	for (size_t i = 0; i < n; i += most) {
		const char *x = (const char *)a + i * size_a, *y = (const char *)b + i * size_b;
		size_t k = DCP_MIN(n - i, most);

		if (ta != tb) {
			add_mixed(d, tolerance, ta, x, tb, y, first + i, k);
			continue;
		}
		add_block(d, tolerance, ta, x, y, itemsize, first + i, k, &apart);
		if (apart.n >= most || i + k == n) {
			add_apart(d, tolerance, ta, apart.a, apart.b, itemsize, apart.n);
			apart.n = 0;
		}
	}
}
