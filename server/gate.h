#pragma once

#include "server/exchange.h"

/* What every request passes before its handler: framing, target, Host and Origin, route, key,
 * query. Fills REQUEST or fails. RET_CLOSE: the framing cannot be trusted, nothing more may be read
 * from the connection. */
int gate_admit(struct request *request, struct MHD_Connection *connection, const char *method,
               const char *version, bool *ret_close, struct err *err) must_check;
