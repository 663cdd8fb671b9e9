#pragma once

#include "base/buf.h"
#include "base/err.h"

/* Appends the whole of a regular file to OUT, at most its maximum. */
int file_read(const char *path, struct buf *out, struct err *err) must_check;
