/* B42, and the words of real API servers. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "k8s/status.h"
#include "tests/unit/k8s_support.h"

#define STATUS(reason, message) "{'kind':'Status','reason':'" reason "','message':'" message "'}"

static const struct row {
    int http;
    const char *body; /* with single quotes */
    enum err_code code;
    const char *words;
} rows[] = {
    {403, STATUS("Forbidden", "pods \\\"x\\\" is forbidden: exceeded quota: q, requested: pods=1"),
     ERR_QUOTA_EXCEEDED, "exceeded quota: q"},
    {403,
     STATUS("Forbidden", "pods is forbidden: User \\\"u\\\" cannot create resource \\\"pods\\\" in "
                         "API group \\\"\\\" in the namespace \\\"n\\\""),
     ERR_BACKEND_FORBIDDEN, "cannot create resource"},
    {403, STATUS("Forbidden", "pods \\\"x\\\" is forbidden: "), ERR_BACKEND_FORBIDDEN,
     "not allowed to create pods p (HTTP 403): pods \"x\" is forbidden"},
    {403, STATUS("Forbidden", "forbidden"), ERR_BACKEND_FORBIDDEN, "not allowed to create pods p"},
    {403, "no", ERR_BACKEND_FORBIDDEN, "not allowed to create pods p (HTTP 403): no"},
    {403,
     STATUS("Forbidden", "pods \\\"x\\\" is forbidden: violates PodSecurity \\\"restricted\\\": x"),
     ERR_ADMISSION_DENIED, "violates PodSecurity"},
    {403, STATUS("Forbidden", "pods \\\"x\\\" is forbidden: maximum memory usage per Pod is 1Gi"),
     ERR_ADMISSION_DENIED, "maximum memory"},
    {403,
     STATUS("Forbidden",
            "pods \\\"x\\\" is forbidden: pod rejected: RuntimeClass \\\"g\\\" not found"),
     ERR_RUNTIME_CLASS_MISSING, "RuntimeClass"},
    {400, STATUS("BadRequest", "admission webhook \\\"w\\\" denied the request: why"),
     ERR_ADMISSION_DENIED, "why"},
    {403, STATUS("Forbidden", "admission webhook \\\"w\\\" denied the request: why"),
     ERR_ADMISSION_DENIED, "why"},
    {422, STATUS("Invalid", "ValidatingAdmissionPolicy p denied request: too big"),
     ERR_ADMISSION_DENIED, "too big"},
    {500, STATUS("InternalError", "failed calling webhook \\\"w\\\": context deadline exceeded"),
     ERR_BACKEND_UNAVAILABLE, "failed calling webhook"},
    {500, STATUS("InternalError", "boom"), ERR_BACKEND, "boom"},
    {500, STATUS("Timeout", "slow"), ERR_BACKEND_UNAVAILABLE, "slow"},
    {422, STATUS("Invalid", "Pod \\\"x\\\" is invalid: spec.containers[0].image: Required value"),
     ERR_INVALID_OBJECT, "spec.containers[0].image"},
    {400, STATUS("BadRequest", "quantities must match"), ERR_INVALID_OBJECT, "quantities"},
    {401, STATUS("Unauthorized", "Unauthorized"), ERR_BACKEND_UNAUTHORIZED, "Unauthorized"},
    {404, STATUS("NotFound", "pods \\\"x\\\" not found"), ERR_BACKEND_NOT_FOUND, "not found"},
    {409, STATUS("AlreadyExists", "pods \\\"x\\\" already exists"), ERR_ALREADY_EXISTS, "already"},
    {409, STATUS("Conflict", "the object has been modified"), ERR_BACKEND_CONFLICT, "modified"},
    {410, STATUS("Expired", "too old resource version"), ERR_BACKEND_EXPIRED, "too old"},
    {413, "", ERR_TOO_LARGE, "HTTP 413"},
    {429, STATUS("TooManyRequests", "wait"), ERR_BACKEND_THROTTLED, "wait"},
    {502, "<html>\n<b>Bad Gateway</b>", ERR_BACKEND_UNAVAILABLE, "<html> <b>Bad Gateway</b>"},
    {503, "", ERR_BACKEND_UNAVAILABLE, "create pods p: HTTP 503"},
    {504, STATUS("Timeout", "late"), ERR_BACKEND_UNAVAILABLE, "late"},
    {301, "", ERR_BACKEND, "HTTP 301"},
    {418, "tea\x01\xff", ERR_BACKEND, "HTTP 418: tea ?"},
    {200, "{'kind':'Status','code':410,'message':'too old'}", ERR_BACKEND_EXPIRED, "too old"},
    {200, "{'kind':'Status','code':500,'message':'oops'}", ERR_BACKEND, "oops"},
};

START_TEST(test_b42_status)
{
    static const struct status_request about = {"create", "pods", "p"};

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cleanup_free char *body = xstrdup(rows[i].body);
        struct err err = {.code = ERR_NONE};

        for (char *at = body; *at != '\0'; at++) {
            if (*at == '\'')
                *at = '"';
        }
        ck_assert_int_eq(status_error(&about, rows[i].http, body, strlen(body), &err), -1);
        ck_assert_msg(err.code == rows[i].code, "row %zu: %s: %s", i, err_code_name(err.code),
                      err.msg);
        ck_assert_msg(strstr(err.msg, rows[i].words) != NULL, "row %zu: %s", i, err.msg);
    }
}
END_TEST

/* A proxy's page is quoted, but not all of it. */
START_TEST(test_b45_long_body)
{
    static const struct status_request about = {"get", "pods", NULL};
    cleanup_free char *body = xmalloc(100001);
    struct err err;

    memset(body, 'x', 100000);
    body[100000] = '\0';
    ck_assert_int_eq(status_error(&about, 502, body, 100000, &err), -1);
    ck_assert_uint_lt(strlen(err.msg), 1200);
    ck_assert(strstr(err.msg, "xxx...") != NULL);
}
END_TEST

/* B03: the table of the case. */
START_TEST(test_b03_exec_status)
{
    static const struct {
        const char *text;
        enum exec_end end;
        int code;
        const char *words;
    } ends[] = {
        {"{'status':'Success','metadata':{}}", EXEC_END_EXITED, 0, ""},
        {"{'status':'Failure','reason':'NonZeroExitCode','details':{'causes':"
         "[{'reason':'ExitCode','message':'3'}]}}",
         EXEC_END_EXITED, 3, ""},
        {"{'status':'Failure','reason':'NonZeroExitCode','details':{'causes':"
         "[{'reason':'Other','message':'9'},{'reason':'ExitCode','message':'137'}]}}",
         EXEC_END_EXITED, 137, ""},
        {"{'status':'Failure','reason':'InternalError','message':'executable file not found in "
         "$PATH','details':{'causes':[{'message':'executable file not found'}]}}",
         EXEC_END_FAILED, 0, "executable file not found"},
        {"{'status':'Failure','message':'no details'}", EXEC_END_FAILED, 0, "no details"},
        {"{'status':'Failure'}", EXEC_END_FAILED, 0, "no reason"},
        {"{'status':'Failure','details':{'causes':[{'reason':'ExitCode','message':'x'}]}}",
         EXEC_END_FAILED, 0, ""},
        {"{'status':'Failure','details':{'causes':[{'reason':'ExitCode','message':'256'}]}}",
         EXEC_END_FAILED, 0, ""},
        {"{'status':'Fail", EXEC_END_UNKNOWN, 0, ""},
        {"", EXEC_END_UNKNOWN, 0, ""},
        {"[]", EXEC_END_UNKNOWN, 0, ""},
    };

    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        cleanup_free char *text = xstrdup(ends[i].text);
        char message[128] = "";
        int code = 0;

        for (char *at = text; *at != '\0'; at++) {
            if (*at == '\'')
                *at = '"';
        }
        ck_assert_int_eq(status_of_exec(text, strlen(text), &code, message, sizeof(message)),
                         ends[i].end);
        ck_assert_int_eq(code, ends[i].code);
        ck_assert_msg(strstr(message, ends[i].words) != NULL, "row %zu: %s", i, message);
    }
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_b42_status, test_b45_long_body, test_b03_exec_status, NULL};

    return run_tests("k8s_status", all);
}
