#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Makes room for one more item. There is no field for the capacity: it is the power of two at or
 * above `count`, so the array grows exactly when `count` is one. */
static void *grown(void *items, size_t count, size_t size)
{
    if (count & (count - 1))
        return items;
    size_t room = count ? count * 2 : 1;
    void *bigger = reallocarray(items, room, size);
    if (!bigger)
        abort();
    return bigger;
}

void text_list_add(struct text_list *list, const char *text)
{
    list->items = grown(list->items, list->count, sizeof(*list->items));
    list->items[list->count++] = xstrdup(text);
}

void text_list_done(struct text_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct text_list){0};
}

void text_list_copy(struct text_list *ret_list, const struct text_list *from)
{
    struct text_list copy = {0};
    for (size_t i = 0; i < from->count; i++)
        text_list_add(&copy, from->items[i]);
    *ret_list = copy;
}

bool text_list_has(const struct text_list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i], text) == 0)
            return true;
    }
    return false;
}

static struct text_pair *find(const struct text_map *map, const char *name)
{
    for (size_t i = 0; i < map->count; i++) {
        if (strcmp(map->items[i].name, name) == 0)
            return &map->items[i];
    }
    return NULL;
}

void text_map_set(struct text_map *map, const char *name, const char *value)
{
    char *copy = xstrdup(value); /* first: VALUE may be the one that is replaced */
    struct text_pair *pair = find(map, name);
    if (pair) {
        free(pair->value);
        pair->value = copy;
        return;
    }
    map->items = grown(map->items, map->count, sizeof(*map->items));
    map->items[map->count++] = (struct text_pair){xstrdup(name), copy};
}

const char *text_map_get(const struct text_map *map, const char *name)
{
    const struct text_pair *pair = find(map, name);
    return pair ? pair->value : NULL;
}

void text_map_done(struct text_map *map)
{
    for (size_t i = 0; i < map->count; i++) {
        free(map->items[i].name);
        free(map->items[i].value);
    }
    free(map->items);
    *map = (struct text_map){0};
}

void text_map_copy(struct text_map *ret_map, const struct text_map *from)
{
    struct text_map copy = {0};
    for (size_t i = 0; i < from->count; i++)
        text_map_set(&copy, from->items[i].name, from->items[i].value);
    *ret_map = copy;
}
