#pragma once

#include <stddef.h>

/* The top-level openapi.yaml, put in by the build (server/embed.cmake). */
extern const unsigned char openapi_yaml[];
extern const size_t openapi_yaml_len;
