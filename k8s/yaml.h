#pragma once

#include "base/err.h"
#include "base/json.h"

/* A YAML document as a JSON tree, through libyaml: plain `true` and `false` are booleans, every
 * other scalar is a string. Bounded in depth and in nodes, aliases included. */
int yaml_parse(const char *text, size_t len, struct json **ret_json, struct err *err) must_check;
