#pragma once

#include <stddef.h>

/* The files of page/, put in by the build (server/page.cmake): as they are, and compressed. */
struct page_file {
    const char *name; /* without a folder: "main.js" */
    const char *type;
    const char *tag; /* of the content, in hex */
    const unsigned char *plain;
    size_t plain_len;
    const unsigned char *gzip;
    size_t gzip_len;
};

extern const struct page_file page_files[];
extern const size_t page_file_count;
