#pragma once

#include "server/request.h"

/* Why a preview does not show its program: a page for a browser, else a problem. */
enum verdict reply_preview_page(struct request *request, const struct err *err);
