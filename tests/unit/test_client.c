#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/mem.h"
#include "sandbox/fields.h"
#include "tests/unit/client_probe.h"

/* What the connection itself says. */

START_TEST(test_hello)
{
    uint8_t token[PROTO_TOKEN_LEN];
    struct buf fields = BUF_INIT(4096);
    struct field field;
    memset(token, 9, sizeof(token));
    client_say_hello(client, token, "uid-1");
    struct frame frame = expect(0, FRAME_HELLO);
    ck_assert(fields_find(frame.payload, frame.len, TAG_TOKEN, &field));
    ck_assert_uint_eq(field.len, sizeof(token));
    ck_assert_mem_eq(field.data, token, sizeof(token));
    cleanup_free char *uid = fields_text(frame.payload, frame.len, TAG_UID);
    ck_assert_str_eq(uid, "uid-1");

    fields_put_u64(&fields, TAG_VERSION, 7); /* a newer agent */
    fields_put_text(&fields, TAG_AGENT, "9.9");
    fields_put_u64(&fields, TAG_FRESH, 1);
    fields_put_u64(&fields, TAG_DEADLINE_MS, 1234);
    fields_put_u64(&fields, 999, 5); /* a field of the future */
    fields_put_text(&fields, TAG_BLOB, "sealed");
    fields_put_u64(&fields, TAG_BLOB_VERSION, 3);
    fields_put_text(&fields, TAG_EXEC_ID, "12");
    fields_put_text(&fields, TAG_EXEC_ID, "not-ours");
    fields_put_text(&fields, TAG_EXEC_ID, "0");
    fields_put_text(&fields, TAG_EXEC_ID, "7");
    ck_assert_int_eq(give(0, 200, "?", 1), 0); /* unknown types are skipped */
    ck_assert_int_eq(give(0, FRAME_HELLO_OK, fields.ptr, fields.len), 0);
    ck_assert_uint_eq(seen.hellos, 1);
    ck_assert_str_eq(seen.agent, "9.9");
    ck_assert(seen.hello.fresh && !seen.hello.configured);
    ck_assert_int_eq(seen.hello.deadline_ms, 1234);
    ck_assert_str_eq(seen.blob, "sealed");
    ck_assert_uint_eq(seen.hello.exec_count, 2);
    ck_assert_uint_eq(seen.exec_ids[0], 12);
    ck_assert_uint_eq(seen.exec_ids[1], 7);
    ck_assert_int_eq(give(0, FRAME_HELLO_OK, fields.ptr, fields.len), -1);
    buf_done(&fields);
}
END_TEST

START_TEST(test_hello_in_pieces)
{
    struct buf fields = BUF_INIT(1 << 20);
    struct err err;
    static char blob[100000];
    memset(blob, 'b', sizeof(blob));
    fields_put_u64(&fields, TAG_VERSION, 1);
    fields_put(&fields, TAG_BLOB, "small", 5);
    struct buf bytes = BUF_INIT(1 << 20);
    uint8_t header[FRAME_HEADER_LEN];
    frame_header_write(header, 0, FRAME_PART, 10);
    ck_assert(buf_append(&bytes, header, sizeof(header)) && buf_append(&bytes, fields.ptr, 10));
    frame_header_write(header, 0, FRAME_HELLO_OK, fields.len - 10);
    ck_assert(buf_append(&bytes, header, sizeof(header)) &&
              buf_append(&bytes, fields.ptr + 10, fields.len - 10));
    for (size_t i = 0; i < bytes.len; i++)
        ck_assert_int_eq(client_receive(client, (const uint8_t *)bytes.ptr + i, 1, &err), 0);
    ck_assert_uint_eq(seen.hellos, 1);
    ck_assert_str_eq(seen.blob, "small");
    buf_done(&fields);
    buf_done(&bytes);
}
END_TEST

START_TEST(test_refused_and_bye)
{
    static const struct {
        const char *code;
        enum client_bye kind;
        enum err_code err;
    } byes[] = {
        {"superseded", BYE_SUPERSEDED, ERR_CONFLICT},
        {"deadline", BYE_ENDED, ERR_TTL},
        {"terminated", BYE_ENDED, ERR_SANDBOX_GONE},
        {"invalid_request", BYE_CUT, ERR_STREAM_LOST},
    };
    struct buf fields = BUF_INIT(4096);
    fields_put_text(&fields, TAG_ERROR, "forbidden");
    ck_assert_int_eq(give(0, FRAME_HELLO_NO, fields.ptr, fields.len), 0);
    ck_assert_uint_eq(seen.refusals, 1);
    ck_assert_int_eq(seen.why.code, ERR_FORBIDDEN);
    for (size_t i = 0; i < ARRAY_LEN(byes); i++) {
        buf_reset(&fields);
        fields_put_text(&fields, TAG_ERROR, byes[i].code);
        ck_assert_int_eq(give(0, FRAME_BYE, fields.ptr, fields.len), 0);
        ck_assert_uint_eq(seen.byes, i + 1);
        ck_assert_int_eq(seen.bye, byes[i].kind);
        ck_assert_int_eq(seen.why.code, byes[i].err);
    }
    buf_done(&fields);
}
END_TEST

START_TEST(test_configure)
{
    struct text_map env = {0};
    struct buf fields = BUF_INIT(4096);
    text_map_set(&env, "A", "x=y");
    struct link_configuration configuration = {
        .seq = 5, .env = &env, .workdir = "/w", .deadline_ms = 9, .blob = "z", .blob_len = 1};
    greet();
    client_configure(client, &configuration);
    struct frame frame = expect(0, FRAME_CONFIGURE);
    cleanup_free char *entry = fields_text(frame.payload, frame.len, TAG_ENV);
    ck_assert_str_eq(entry, "A=x=y");
    fields_put_u64(&fields, TAG_SEQ, 5);
    ck_assert_int_eq(give(0, FRAME_CONFIGURED, fields.ptr, fields.len), 0);
    ck_assert_uint_eq(seen.configured, 1);
    ck_assert_uint_eq(seen.seq, 5);
    ck_assert_int_eq(seen.why.code, ERR_NONE);
    fields_put_text(&fields, TAG_ERROR, "conflict");
    ck_assert_int_eq(give(0, FRAME_CONFIGURED, fields.ptr, fields.len), 0);
    ck_assert_int_eq(seen.why.code, ERR_CONFLICT);
    buf_done(&fields);

    /* One that needs several frames, and one that no message holds. */
    static char blob[200000];
    configuration.blob = blob;
    configuration.blob_len = sizeof(blob);
    client_configure(client, &configuration);
    for (int i = 0; i < 6; i++)
        (void)expect(0, FRAME_PART);
    (void)expect(0, FRAME_CONFIGURE);
    expect_nothing();
    char *huge = xcalloc(1, PROTO_MESSAGE_MAX);
    configuration.blob = huge;
    configuration.blob_len = PROTO_MESSAGE_MAX;
    client_configure(client, &configuration);
    expect_nothing();
    ck_assert_int_eq(seen.why.code, ERR_TOO_LARGE);
    free(huge);
    text_map_done(&env);
}
END_TEST

START_TEST(test_ping)
{
    greet();
    ck_assert_int_eq(give(0, FRAME_PING, "12345678", 8), 0);
    struct frame frame = expect(0, FRAME_PONG);
    ck_assert_uint_eq(frame.len, 8);
    ck_assert_mem_eq(frame.payload, "12345678", 8);
    static const char large[FRAME_PAYLOAD_MAX];
    ck_assert_int_eq(give(0, FRAME_PING, large, sizeof(large)), 0);
    expect_nothing();
    client_ping(client);
    (void)expect(0, FRAME_PING);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client");
    TCase *tcase = tcase_create("client");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, client_probe_setup, client_probe_teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_hello);
    tcase_add_test(tcase, test_hello_in_pieces);
    tcase_add_test(tcase, test_refused_and_bye);
    tcase_add_test(tcase, test_configure);
    tcase_add_test(tcase, test_ping);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
