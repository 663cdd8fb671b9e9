/* Lines of a watch, and what a probe pod says. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "k8s/delivery.h"
#include "k8s/reflector.h"
#include "tests/unit/k8s_support.h"

struct heard {
    int count;
    char type[16], name[64];
};

static void on_event(void *arg, const char *type, const struct json *object)
{
    struct heard *heard = arg;

    heard->count++;
    (void)snprintf(heard->type, sizeof(heard->type), "%s", type);
    (void)snprintf(heard->name, sizeof(heard->name), "%s",
                   json_get_text(json_get(object, "metadata"), "name"));
}

static int feed(struct heard *heard, const char *text, char **version, struct err *err)
{
    struct reflector reflector = {.kind = KIND_POD, .event = on_event, .arg = heard};
    cleanup_free char *line = xstrdup(text);

    for (char *at = line; *at != '\0'; at++) {
        if (*at == '\'')
            *at = '"';
    }
    return reflector_line(&reflector, line, strlen(line), version, err);
}

START_TEST(test_lines)
{
    struct heard heard = {.count = 0};
    cleanup_free char *version = xstrdup("1");
    struct err err;

    ck_assert_int_eq(
        feed(&heard, "{'type':'ADDED','object':{'metadata':{'name':'p','resourceVersion':'7'}}}",
             &version, &err),
        0);
    ck_assert_str_eq(version, "7");
    ck_assert_str_eq(heard.type, "ADDED");
    ck_assert_str_eq(heard.name, "p");
    ck_assert_int_eq(feed(&heard,
                          "{'type':'BOOKMARK','object':{'metadata':{'resourceVersion':'9'}}}",
                          &version, &err),
                     0);
    ck_assert_str_eq(version, "9");
    ck_assert_int_eq(feed(&heard, "{'type':'NEWS','object':{'metadata':{}}}", &version, &err), 0);
    ck_assert_int_eq(heard.count, 1);
    ck_assert_str_eq(version, "9");
}
END_TEST

START_TEST(test_bad_lines)
{
    static const struct {
        const char *line;
        enum err_code code;
    } rows[] = {
        {"{'type':'ERROR','object':{'kind':'Status','code':410,'message':'too old resource "
         "version'}}",
         ERR_BACKEND_EXPIRED},
        {"{'type':'ERROR','object':{'kind':'Status','code':500,'message':'x'}}", ERR_BACKEND},
        {"{'type':'ERROR','object':{'kind':'Status'}}", ERR_BACKEND},
        {"{'type':'ADDED'}", ERR_BACKEND},
        {"{'object':{}}", ERR_BACKEND},
        {"[]", ERR_BACKEND},
        {"{'type':", ERR_INVALID_JSON},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct heard heard = {.count = 0};
        cleanup_free char *version = xstrdup("1");
        struct err err = {.code = ERR_NONE};

        ck_assert_int_eq(feed(&heard, rows[i].line, &version, &err), -1);
        ck_assert_msg(err.code == rows[i].code, "row %zu: %s", i, err_code_name(err.code));
        ck_assert_int_eq(heard.count, 0);
        ck_assert_str_eq(version, "1");
    }
}
END_TEST

START_TEST(test_probe_answers)
{
    static const struct {
        const char *status;
        int answer;
    } rows[] = {
        {"{'phase':'Succeeded'}", 1},
        {"{'phase':'Pending'}", -1},
        {"{}", -1},
        {"{'phase':'Pending','containerStatuses':[{'state':{'waiting':{'reason':'ContainerCreating'"
         "}}}]}",
         -1},
        {"{'phase':'Pending','containerStatuses':[{'state':{'waiting':{'reason':'"
         "CreateContainerError',"
         "'message':'no image volumes'}}}]}",
         0},
        {"{'phase':'Pending','containerStatuses':[{'state':{'waiting':{'reason':'ErrImagePull'}}}]"
         "}",
         -2},
        {"{'phase':'Failed','containerStatuses':[{'state':{'terminated':{'exitCode':128}}}]}", 0},
        {"{'phase':'Failed','reason':'Evicted'}", -2},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cleanup_free char *text = xasprintf("{'status':%s}", rows[i].status);
        cleanup_json struct json *pod = json_of(text);
        char why[128] = "";

        ck_assert_msg(delivery_judge(pod, why, sizeof(why)) == rows[i].answer, "row %zu", i);
        ck_assert_int_eq(why[0] != '\0', rows[i].answer == 0 || rows[i].answer == -2);
    }
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_lines, test_bad_lines, test_probe_answers, NULL};

    return run_tests("k8s_watch", all);
}
