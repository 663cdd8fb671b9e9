#pragma once

#include "base/err.h"
#include "base/json.h"
#include "fake/disk.h"

/* Files that sandboxes begin with. Thread-safe. */
struct presets;
struct preset;

struct presets *presets_new(void);
void presets_free(struct presets *presets);

/* For the next create of one id, or of any: what was prepared for that before is replaced. */
int presets_put(struct presets *presets, const struct json *body, struct err *err) must_check;
struct json *presets_json(struct presets *presets);
void presets_clear(struct presets *presets);

/* Those for ID, else those for any; taken out. NULL: none. */
struct preset *presets_take(struct presets *presets, const char *id);
int preset_apply(const struct preset *preset, struct disk *disk, const char *workdir,
                 struct err *err) must_check;
void preset_free(struct preset *preset); /* NULL is allowed */
