#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Owned lists and maps of strings; zero-initialised is empty. */
struct text_list {
    char **items;
    size_t count;
};

struct text_pair {
    char *name;
    char *value;
};

struct text_map {
    struct text_pair *items; /* in the order added; names are unique */
    size_t count;
};

void text_list_add(struct text_list *list, const char *text);
void text_list_done(struct text_list *list);
void text_list_copy(struct text_list *ret_list, const struct text_list *from);
bool text_list_has(const struct text_list *list, const char *text);

void text_map_set(struct text_map *map, const char *name, const char *value); /* adds or replaces */
const char *text_map_get(const struct text_map *map, const char *name);       /* or NULL */
void text_map_done(struct text_map *map);
void text_map_copy(struct text_map *ret_map, const struct text_map *from);
