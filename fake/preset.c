#include "fake/preset.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "driver/box.h"

struct preset_file {
    char *path;
    struct content *content;
    unsigned mode;
};

struct preset {
    struct preset *next;
    char *sandbox; /* NULL: any */
    struct preset_file *files;
    size_t count, bytes;
};

struct presets {
    pthread_mutex_t lock;
    struct preset *first;
    size_t count, bytes;
};

void preset_free(struct preset *preset)
{
    if (preset == NULL)
        return;
    for (size_t i = 0; i < preset->count; i++) {
        free(preset->files[i].path);
        content_unref(preset->files[i].content);
    }
    free(preset->files);
    free(preset->sandbox);
    free(preset);
}

/* --- parsing ----------------------------------------------------------------------------------
 */

struct file_body {
    char *path, *content, *mode;
    int encoding;
};

struct preset_body {
    char *sandbox;
    const struct json *files;
};

static const char *const encodings[] = {"utf-8", "base64", NULL};

#define FILE_AT(member) offsetof(struct file_body, member)
static const struct json_field file_fields[] = {
    {.name = "path",
     .decode = json_decode_text_any,
     .offset = FILE_AT(path),
     .required = true,
     .min = 1,
     .max = CAP_PATH - 1},
    {.name = "content",
     .decode = json_decode_text_any,
     .offset = FILE_AT(content),
     .required = true,
     .max = CAP_JSON_BODY},
    {.name = "encoding",
     .decode = json_decode_word,
     .offset = FILE_AT(encoding),
     .extra = encodings},
    {.name = "mode", .decode = json_decode_text, .offset = FILE_AT(mode), .min = 3, .max = 5},
    JSON_FIELDS_END,
};

static void file_body_done(struct file_body *body)
{
    free(body->path);
    free(body->content);
    free(body->mode);
}

static int bad(struct err *err, const char *path, const char *name, const char *what)
{
    return err_set(err, ERR_INVALID_FIELD, "field '%s.%s': %s", path, name, what);
}

static int take_mode(const char *text, const char *path, unsigned *ret_mode, struct err *err)
{
    unsigned mode = 0;

    for (; text != NULL && *text != '\0'; text++) {
        if (*text < '0' || *text > '7')
            return bad(err, path, "mode", "must be octal and at most 0777, as 0644");
        mode = mode * 8 + (unsigned)(*text - '0');
    }
    if (mode > 0777)
        return bad(err, path, "mode", "must be octal and at most 0777, as 0644");
    *ret_mode = mode;
    return 0;
}

static int take_content(const struct file_body *body, const char *path, struct preset_file *file,
                        struct err *err)
{
    cleanup_buf struct buf bytes = BUF_INIT(CAP_JSON_BODY);

    if (body->encoding == 0) {
        file->content = content_new(body->content, strlen(body->content));
        return 0;
    }
    if (!base64_decode(&bytes, str_of(body->content)))
        return bad(err, path, "content", "is not base64");
    file->content = content_new(bytes.ptr, bytes.len);
    return 0;
}

static int parse_file(const struct json *item, const char *path, struct preset_file *file,
                      struct err *err)
{
    cleanup(file_body_done) struct file_body body = {.path = NULL};

    file->mode = 0644;
    if (!json_is_object(item))
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must be an object", path);
    if (json_decode(item, file_fields, path, &body, err) < 0 ||
        (body.mode != NULL && take_mode(body.mode, path, &file->mode, err) < 0) ||
        take_content(&body, path, file, err) < 0)
        return -1;
    file->path = TAKE_PTR(body.path);
    return 0;
}

static int decode_list(const struct json *value, const struct json_field *field, const char *path,
                       void *out, struct err *err)
{
    (void)field;
    if (!json_is_array(value) || json_count(value) > CAP_FAKE_PRESET_FILES)
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must be a list of at most %d files",
                       path, CAP_FAKE_PRESET_FILES);
    *(const struct json **)out = value;
    return 0;
}

static int parse_files(const struct json *list, struct preset *preset, struct err *err)
{
    preset->files = xcalloc(json_count(list) + 1, sizeof(*preset->files));
    for (const struct json *item = json_first(list); item != NULL; item = json_next(item)) {
        cleanup_free char *path = xasprintf("files[%zu]", preset->count);
        struct preset_file *file = &preset->files[preset->count++];

        if (parse_file(item, path, file, err) < 0)
            return -1;
        preset->bytes += file->content->len;
    }
    return 0;
}

/* Whether the files can be together, which does not depend on where the workdir is. */
static int try_out(const struct preset *preset, struct err *err)
{
    struct disk_space space = {.max = SIZE_MAX / 2};
    struct disk disk;

    disk_init(&disk, &space, "/workspace");
    int result = preset_apply(preset, &disk, "/workspace", err);
    disk_done(&disk);
    return result < 0 ? err_wrap(err, "field 'files'") : 0;
}

static int parse(const struct json *body, struct preset *preset, struct err *err)
{
    static const struct json_field fields[] = {
        {.name = "sandbox",
         .decode = json_decode_text,
         .offset = offsetof(struct preset_body, sandbox),
         .min = 1,
         .max = ID_LEN - 1},
        {.name = "files",
         .decode = decode_list,
         .offset = offsetof(struct preset_body, files),
         .required = true},
        JSON_FIELDS_END,
    };
    struct preset_body parsed = {.sandbox = NULL};
    int result = json_decode(body, fields, "", &parsed, err);

    preset->sandbox = parsed.sandbox;
    if (result < 0 || parse_files(parsed.files, preset, err) < 0)
        return -1;
    return try_out(preset, err);
}

/* --- the list ---------------------------------------------------------------------------------
 */

static struct preset *take_locked(struct presets *presets, const char *sandbox)
{
    struct preset **link = &presets->first, *preset;

    while ((preset = *link) != NULL) {
        if (sandbox == NULL ? preset->sandbox == NULL
                            : preset->sandbox != NULL && strcmp(preset->sandbox, sandbox) == 0)
            break;
        link = &preset->next;
    }
    if (preset == NULL)
        return NULL;
    *link = preset->next;
    preset->next = NULL;
    presets->count--;
    presets->bytes -= preset->bytes;
    return preset;
}

static int add_locked(struct presets *presets, struct preset *preset, struct err *err)
{
    if (presets->count >= CAP_FAKE_PRESETS ||
        presets->bytes + preset->bytes > CAP_FAKE_PRESET_BYTES)
        return err_set(err, ERR_TOO_LARGE, "at most %d preparations, of %zu MiB together",
                       CAP_FAKE_PRESETS, CAP_FAKE_PRESET_BYTES / MIB);
    preset->next = presets->first;
    presets->first = preset;
    presets->count++;
    presets->bytes += preset->bytes;
    return 0;
}

int presets_put(struct presets *presets, const struct json *body, struct err *err)
{
    struct preset *preset = xcalloc(1, sizeof(*preset)), *old;

    if (parse(body, preset, err) < 0) {
        preset_free(preset);
        return -1;
    }
    pthread_mutex_lock(&presets->lock);
    old = take_locked(presets, preset->sandbox);
    int result = add_locked(presets, preset, err);
    pthread_mutex_unlock(&presets->lock);
    preset_free(old);
    if (result < 0)
        preset_free(preset);
    return result;
}

struct preset *presets_take(struct presets *presets, const char *id)
{
    pthread_mutex_lock(&presets->lock);
    struct preset *preset = take_locked(presets, id);
    if (preset == NULL)
        preset = take_locked(presets, NULL);
    pthread_mutex_unlock(&presets->lock);
    return preset;
}

static void show_files(const struct preset *preset, struct json *files)
{
    for (size_t i = 0; i < preset->count; i++) {
        const struct preset_file *file = &preset->files[i];
        struct json *item = json_new_object();
        char mode[8];

        (void)snprintf(mode, sizeof(mode), "%04o", file->mode);
        json_set_text(item, "path", file->path);
        json_set_int(item, "size", (int64_t)file->content->len);
        json_set_text(item, "mode", mode);
        json_add(files, item);
    }
}

struct json *presets_json(struct presets *presets)
{
    struct json *json = json_new_object(), *items = json_set_array(json, "items");

    pthread_mutex_lock(&presets->lock);
    for (const struct preset *preset = presets->first; preset != NULL; preset = preset->next) {
        struct json *item = json_new_object();

        json_set_text(item, "sandbox", preset->sandbox);
        show_files(preset, json_set_array(item, "files"));
        json_add(items, item);
    }
    pthread_mutex_unlock(&presets->lock);
    return json;
}

int preset_apply(const struct preset *preset, struct disk *disk, const char *workdir,
                 struct err *err)
{
    for (size_t i = 0; i < preset->count; i++) {
        const struct preset_file *file = &preset->files[i];
        char path[CAP_PATH];
        const struct node *node;

        if (disk_path(workdir, file->path, path, err) < 0 ||
            disk_write(disk, path, file->content, (int)file->mode, &node, err) < 0)
            return -1;
    }
    return 0;
}

/* --- life -------------------------------------------------------------------------------------
 */

struct presets *presets_new(void)
{
    struct presets *presets = xcalloc(1, sizeof(*presets));

    pthread_mutex_init(&presets->lock, NULL);
    return presets;
}

void presets_clear(struct presets *presets)
{
    pthread_mutex_lock(&presets->lock);
    struct preset *preset = TAKE_PTR(presets->first), *next;
    presets->count = presets->bytes = 0;
    pthread_mutex_unlock(&presets->lock);
    for (; preset != NULL; preset = next) {
        next = preset->next;
        preset_free(preset);
    }
}

void presets_free(struct presets *presets)
{
    if (presets == NULL)
        return;
    presets_clear(presets);
    pthread_mutex_destroy(&presets->lock);
    free(presets);
}
