#include "server/idempotency.h"

#include <stdio.h>
#include <string.h>

#include "base/caps.h"
#include "base/crypto.h"

#define KEY_MAX 255

int idempotency_of(struct request *request, const struct json *body,
                   struct idempotency *ret_idempotency, struct err *err)
{
    struct idempotency idempotency = {.key = request_header(request, "Idempotency-Key")};
    size_t len = idempotency.key ? strlen(idempotency.key) : 0;
    if (idempotency.key && (len < 1 || len > KEY_MAX || !str_is_printable(idempotency.key, len))) {
        return err_set(err, ERR_INVALID_REQUEST,
                       "the header Idempotency-Key must have 1 to %d printable characters",
                       KEY_MAX);
    }
    if (idempotency.key) {
        cleanup_buf struct buf text = BUF_INIT(CAP_JSON_BODY);
        cleanup_buf struct buf hex = BUF_INIT(sizeof(idempotency.digest));
        uint8_t hash[CRYPTO_HASH_LEN];
        if (!json_print_canonical(body, &text)) {
            return err_set(err, ERR_TOO_LARGE, "the body is too large");
        }
        crypto_digest(buf_text(&text), text.len, hash);
        (void)hex_encode(&hex, hash, sizeof(hash));
        snprintf(idempotency.digest, sizeof(idempotency.digest), "%s", buf_text(&hex));
    }
    *ret_idempotency = idempotency;
    return 0;
}
