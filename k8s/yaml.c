#include "k8s/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/caps.h"

#define YAML_NODES_MAX 20000

struct walk {
    yaml_document_t *document;
    size_t nodes;
    struct err *err;
};

static struct json *scalar_value(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;
    size_t len = node->data.scalar.length;
    bool plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    struct json *box = json_new_object();
    struct json *value;

    /* json.h builds scalars inside a container only; a copy of the member stands alone. */
    if (plain && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0))
        json_set_bool(box, "v", text[0] == 't');
    else if (plain && (len == 0 || strcmp(text, "null") == 0 || strcmp(text, "~") == 0))
        json_set_null(box, "v");
    else
        json_set_textn(box, "v", text, len);
    value = json_copy(json_get(box, "v"));
    json_free(box);
    return value;
}

static struct json *node_value(struct walk *walk, int index, int depth);

static struct json *sequence_value(struct walk *walk, const yaml_node_t *node, int depth)
{
    struct json *array = json_new_array();

    for (const yaml_node_item_t *item = node->data.sequence.items.start;
         item < node->data.sequence.items.top; item++) {
        struct json *value = node_value(walk, *item, depth + 1);

        if (value == NULL) {
            json_free(array);
            return NULL;
        }
        json_add(array, value);
    }
    return array;
}

static struct json *mapping_value(struct walk *walk, const yaml_node_t *node, int depth)
{
    struct json *object = json_new_object();

    for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(walk->document, pair->key);
        struct json *value;

        if (key == NULL || key->type != YAML_SCALAR_NODE) {
            (void)err_set(walk->err, ERR_CONFIG, "a YAML key is not text");
            json_free(object);
            return NULL;
        }
        value = node_value(walk, pair->value, depth + 1);
        if (value == NULL) {
            json_free(object);
            return NULL;
        }
        json_set(object, (const char *)key->data.scalar.value, value);
    }
    return object;
}

static struct json *node_value(struct walk *walk, int index, int depth)
{
    const yaml_node_t *node = yaml_document_get_node(walk->document, index);

    if (node == NULL || depth > CAP_JSON_DEPTH || ++walk->nodes > YAML_NODES_MAX) {
        (void)err_set(walk->err, ERR_CONFIG, "the YAML is too deep or too large");
        return NULL;
    }
    switch (node->type) {
    case YAML_SCALAR_NODE:
        return scalar_value(node);
    case YAML_SEQUENCE_NODE:
        return sequence_value(walk, node, depth);
    case YAML_MAPPING_NODE:
        return mapping_value(walk, node, depth);
    default:
        (void)err_set(walk->err, ERR_CONFIG, "unknown YAML node");
        return NULL;
    }
}

int yaml_parse(const char *text, size_t len, struct json **ret_json, struct err *err)
{
    yaml_parser_t parser;
    yaml_document_t document;
    struct walk walk = {.document = &document, .err = err};
    struct json *json;

    if (!yaml_parser_initialize(&parser))
        abort(); /* out of memory, as xmalloc does */
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    if (!yaml_parser_load(&parser, &document)) {
        (void)err_set(err, ERR_CONFIG, "not YAML: line %zu: %s", parser.problem_mark.line + 1,
                      parser.problem != NULL ? parser.problem : "malformed");
        yaml_parser_delete(&parser);
        return -1;
    }
    if (yaml_document_get_root_node(&document) == NULL)
        json = json_new_object();
    else
        json = node_value(&walk, 1, 0);
    yaml_document_delete(&document);
    yaml_parser_delete(&parser);
    if (json == NULL)
        return -1;
    *ret_json = json;
    return 0;
}
