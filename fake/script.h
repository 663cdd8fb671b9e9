#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "fake/reply.h"

/* What tests have prepared: answers to commands, and ids. Thread-safe. */
struct script;

struct script *script_new(void);
void script_free(struct script *script);

int script_put_rules(struct script *script, const struct json *body, struct err *err) must_check;
struct json *script_rules(struct script *script);
void script_clear_rules(struct script *script);

/* What the first rule that fits says of a command, and counts it as used. Both NULL: none fits.
 * The caller lets go of the reply and frees the URL. */
struct script_answer {
    struct fake_reply *reply;
    char *callback; /* to be asked instead */
};
void script_answer(struct script *script, const char *sandbox, char *const *argv,
                   struct script_answer *ret_answer);

int script_put_ids(struct script *script, const struct json *body, struct err *err) must_check;
struct json *script_ids(struct script *script);
void script_clear_ids(struct script *script);
char *script_take_id(struct script *script); /* NULL: none is left */
