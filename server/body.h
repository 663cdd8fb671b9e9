#pragma once

#include "server/exchange.h"

/* The body of a request, on libmicrohttpd's thread. */
int body_begin(struct request *request, struct err *err) must_check;
/* Takes of DATA what it can; SIZE becomes what is left. */
enum MHD_Result body_take(struct request *request, const char *data, size_t *size);
/* WHOLE: it is complete; else it was cut short. The first call counts. */
void body_end(struct request *request, bool whole);
