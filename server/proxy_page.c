#include "server/proxy_page.h"

#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "server/problem.h"

#define REFRESH_S 1

static bool wants_html(const struct request *request)
{
    const char *accept = request_header(request, "Accept");

    return accept && strcasestr(accept, "text/html");
}

static void put_text(struct buf *page, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            (void)buf_append_str(page, "&lt;");
            break;
        case '>':
            (void)buf_append_str(page, "&gt;");
            break;
        case '&':
            (void)buf_append_str(page, "&amp;");
            break;
        case '"':
            (void)buf_append_str(page, "&quot;");
            break;
        default:
            (void)buf_append_char(page, *text);
        }
    }
}

/* A port that is not open yet may be in a moment. */
static bool may_come(enum err_code code)
{
    return code == ERR_PORT_CLOSED || code == ERR_NOT_READY || code == ERR_BUSY ||
           code == ERR_BACKEND_UNAVAILABLE;
}

enum verdict reply_preview_page(struct request *request, const struct err *err)
{
    const struct problem *problem = problem_of(err->code);
    cleanup_buf struct buf page = BUF_INIT(CAP_SMALL);

    if (!wants_html(request))
        return reply_problem(request, err);
    (void)buf_append_str(&page,
                         "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    if (may_come(err->code))
        (void)buf_printf(&page, "<meta http-equiv=\"refresh\" content=\"%d\">", REFRESH_S);
    (void)buf_append_str(&page, "<title>");
    put_text(&page, problem->title);
    (void)buf_append_str(&page,
                         "</title><style>body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;"
                         "max-width:36em;padding:0 1em;color:#222;background:#fafafa}"
                         "h1{font-size:1.4em}p{overflow-wrap:anywhere}small{color:#666}"
                         "</style></head><body><h1>");
    put_text(&page, problem->title);
    (void)buf_append_str(&page, "</h1><p>");
    put_text(&page, err->msg);
    (void)buf_append_str(&page, "</p><p><small>");
    put_text(&page,
             may_come(err->code) ? "This page looks again every second." : problem->remediation);
    (void)buf_append_str(&page, "</small></p></body></html>\n");
    reply_header(request, "Content-Security-Policy",
                 "default-src 'none'; style-src 'unsafe-inline'");
    if (may_come(err->code))
        reply_header(request, "Retry-After", "1");
    return reply_bytes(request, problem->status, "text/html; charset=utf-8", buf_text(&page),
                       page.len);
}
