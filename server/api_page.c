/* The page for people, at `/`, and its parts. It is public: what it shows it asks the API for, with
 * the key that its user gives it. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/page_files.h"
#include "server/route.h"
#include "server/routes.h"

/* Scripts and styles are the files of page/ alone, nothing is built from text (Trusted Types), and
 * it talks to this server alone. `data:` is the icon. */
#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "                \
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "          \
    "require-trusted-types-for 'script'; trusted-types 'none'"

static const struct page_file *find_file(const char *name)
{
    for (size_t i = 0; i < page_file_count; i++)
        if (strcmp(page_files[i].name, name) == 0)
            return &page_files[i];
    return NULL;
}

/* True unless Accept-Encoding leaves gzip out, or says `gzip;q=0`. */
static bool takes_gzip(const struct request *request)
{
    const char *at = request_header(request, "Accept-Encoding");

    for (; at && *at; at += strcspn(at, ","), at += *at == ',') {
        at += strspn(at, " \t");
        size_t len = strcspn(at, ",; \t");
        if (len != 4 || strncasecmp(at, "gzip", len) != 0)
            continue;
        const char *quality = at + len + strspn(at + len, " \t;");
        return strncmp(quality, "q=0", 3) != 0 || quality[3 + strspn(quality + 3, ".0")] > '0';
    }
    return false;
}

static enum verdict reply_file(struct request *request, const struct page_file *file)
{
    bool gzip = takes_gzip(request);
    const char *known = request_header(request, "If-None-Match");
    char etag[40];

    (void)snprintf(etag, sizeof(etag), "\"%s%s\"", file->tag, gzip ? "-gzip" : "");
    reply_header(request, "ETag", etag);
    reply_header(request, "Cache-Control", "no-cache");
    reply_header(request, "Vary", "Accept-Encoding");
    reply_header(request, "Content-Security-Policy", POLICY);
    reply_header(request, "Referrer-Policy", "no-referrer");
    reply_header(request, "Cross-Origin-Opener-Policy", "same-origin");
    reply_header(request, "Cross-Origin-Resource-Policy", "same-origin");
    if (known && strstr(known, etag))
        return reply_empty(request, 304);
    if (gzip)
        reply_header(request, "Content-Encoding", "gzip");
    return reply_bytes(request, 200, file->type, gzip ? file->gzip : file->plain,
                       gzip ? file->gzip_len : file->plain_len);
}

static enum verdict get_page(struct request *request)
{
    return reply_file(request, find_file("index.html"));
}

static enum verdict get_page_file(struct request *request)
{
    const struct page_file *file = find_file(request_param(request, "file"));
    struct err err;

    if (file)
        return reply_file(request, file);
    (void)err_set(&err, ERR_NOT_FOUND, "the page has no such file");
    return reply_problem(request, &err);
}

static const struct route routes[] = {
    {"GET", "/", get_page, ROUTE_PUBLIC | ROUTE_QUICK, NULL},
    {"GET", "/page/{file}", get_page_file, ROUTE_PUBLIC | ROUTE_QUICK, NULL},
};

const struct route_table page_routes = {routes, ARRAY_LEN(routes)};
