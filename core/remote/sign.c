/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/s3.h"

#include <errno.h>
#include <nettle/base16.h>
#include <nettle/hmac.h>
#include <nettle/sha2.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/remote/http.h"

enum { HASH = SHA256_DIGEST_SIZE, HEX = DCP_SIGN_HASH };

static void write_hex(const uint8_t *h, char out[HEX])
{
	base16_encode_update(out, HASH, h);
	out[2 * HASH] = '\0';
}

void dcp_sign_hash(const void *p, size_t n, char out[DCP_SIGN_HASH])
{
	struct sha256_ctx sha;
	uint8_t h[HASH];

	sha256_init(&sha);
	sha256_update(&sha, n, p);
	sha256_digest(&sha, HASH, h);
	write_hex(h, out);
}

/* @out: the HMAC of @text by @key, which has @n bytes. */
static void derive_key(uint8_t *key, size_t n, const char *text, uint8_t out[HASH])
{
	struct hmac_sha256_ctx mac;

	hmac_sha256_set_key(&mac, n, key);
	hmac_sha256_update(&mac, strlen(text), (const uint8_t *)text);
	hmac_sha256_digest(&mac, HASH, out);
}

/* "host;x-amz-date" */
static void add_names(struct dcp_buf *out, const char *headers)
{
	for (const char *p = headers; *p; p += strcspn(p, "\n"), p += *p == '\n')
		dcp_buf_printf(out, "%s%.*s", p == headers ? "" : ";", (int)strcspn(p, ":"), p);
}

int dcp_sign_v4(const struct dcp_sign *s, struct dcp_buf *out)
{
	dcp_auto_buf struct dcp_buf request = DCP_BUF_INIT, to_sign = DCP_BUF_INIT,
				    first = DCP_BUF_INIT;
	char day[9], hex[HEX];
	uint8_t key[HASH];
	int rc;

	snprintf(day, sizeof(day), "%.8s", s->time);
	dcp_buf_printf(&request, "%s\n%s\n%s\n%s\n", s->method, s->path, s->query, s->headers);
	add_names(&request, s->headers);
	dcp_buf_printf(&request, "\n%s", s->payload);
	dcp_buf_printf(&first, "AWS4%s", s->secret);
	if (dcp_buf_error(&request) || dcp_buf_error(&first))
		return -ENOMEM;
	dcp_sign_hash(request.p, request.n, hex);
	if (dcp_buf_printf(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", s->time,
			   day, s->region, s->service, hex) < 0)
		return -ENOMEM;
	derive_key((uint8_t *)first.p, first.n, day, key);
	derive_key(key, HASH, s->region, key);
	derive_key(key, HASH, s->service, key);
	derive_key(key, HASH, "aws4_request", key);
	derive_key(key, HASH, to_sign.p, key);
	write_hex(key, hex);
	dcp_buf_printf(out,
		       "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=",
		       s->key, day, s->region, s->service);
	add_names(out, s->headers);
	rc = dcp_buf_printf(out, ", Signature=%s", hex);
	explicit_bzero(key, sizeof(key));
	explicit_bzero(first.p, first.n);
	return rc;
}

int dcp_credentials_sign(const struct dcp_credentials *c, const struct dcp_http *h,
			 const char *region, const char *service, struct dcp_buf *heads)
{
	const char *host = strstr(h->url, "://") + 3, *path = strchr(host, '/');
	const char *query = strchr(path, '?');
	dcp_auto_buf struct dcp_buf signed_heads = DCP_BUF_INIT, only_path = DCP_BUF_INIT;
	char now[20], payload[DCP_SIGN_HASH] = DCP_SIGN_EMPTY;
	time_t t = time(NULL);
	struct tm tm;
	struct dcp_sign sign = { .method = h->method ? h->method : "GET",
				 .query = query ? query + 1 : "",
				 .payload = payload,
				 .time = now,
				 .region = region,
				 .service = service,
				 .key = c->key,
				 .secret = c->secret };

	if (!c->key) {
		dcp_buf_str(heads, h->fixed ? h->fixed : "");
		return c->token ? dcp_buf_printf(heads, "Authorization: Bearer %s\n", c->token)
				: dcp_buf_error(heads);
	}
	if (h->nbody)
		dcp_sign_hash(h->body, h->nbody, payload);
	strftime(now, sizeof(now), "%Y%m%dT%H%M%SZ", gmtime_r(&t, &tm));
	dcp_buf_printf(&signed_heads, "host:%.*s\nx-amz-content-sha256:%s\nx-amz-date:%s\n%s",
		       (int)(path - host), host, payload, now, h->fixed ? h->fixed : "");
	if (c->token)
		dcp_buf_printf(&signed_heads, "x-amz-security-token:%s\n", c->token);
	dcp_buf_add(&only_path, path, query ? (size_t)(query - path) : strlen(path));
	if (dcp_buf_error(&signed_heads) || dcp_buf_error(&only_path))
		return -ENOMEM;
	sign.path = only_path.p;
	sign.headers = signed_heads.p;
	dcp_buf_str(heads,
		    /* libcurl sends the header host itself */
		    strchr(signed_heads.p, '\n') + 1);
	dcp_buf_str(heads, "Authorization: ");
	dcp_sign_v4(&sign, heads);
	return dcp_buf_str(heads, "\n");
}
