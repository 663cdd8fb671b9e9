#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "agent/frame.h"

/* One frame into BYTES; returns its length. */
static size_t put(uint8_t *bytes, uint32_t channel, uint8_t type, const void *payload, size_t len)
{
    frame_header_write(bytes, channel, type, len);
    memcpy(bytes + FRAME_HEADER_LEN, payload, len);
    return FRAME_HEADER_LEN + len;
}

START_TEST(test_header_is_little_endian)
{
    static const uint8_t wanted[] = {0x04, 0x03, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa, 19};
    uint8_t header[FRAME_HEADER_LEN];
    frame_header_write(header, 0xaabbccdd, 19, 0x0304);
    ck_assert_mem_eq(header, wanted, sizeof(wanted));
}
END_TEST

/* Three frames (one empty, one of the largest size), cut into pieces of each size. */
START_TEST(test_any_pieces)
{
    static uint8_t bytes[3 * FRAME_HEADER_LEN + 5 + FRAME_PAYLOAD_MAX];
    static uint8_t large[FRAME_PAYLOAD_MAX];
    static struct frame_decoder decoder;
    static const size_t sizes[] = {1, 2, 3, 8, 9, 10, 13, 14, 15, 4096, 32768, sizeof(bytes)};
    for (size_t i = 0; i < sizeof(large); i++)
        large[i] = (uint8_t)(i * 7);
    size_t len = put(bytes, 1, 17, "hello", 5);
    len += put(bytes + len, 2, 18, "", 0);
    len += put(bytes + len, 0xffffffff, 255, large, sizeof(large));
    ck_assert_uint_eq(len, sizeof(bytes));

    size_t piece = sizes[_i], count = 0;
    struct frame frame;
    memset(&decoder, 0, sizeof(decoder));
    for (size_t at = 0; at < len; at += piece) {
        const uint8_t *data = bytes + at;
        size_t left = piece < len - at ? piece : len - at;
        while (frame_decode(&decoder, &data, &left, &frame) == FRAME_READY) {
            static const uint32_t channels[] = {1, 2, 0xffffffff};
            static const size_t lengths[] = {5, 0, FRAME_PAYLOAD_MAX};
            ck_assert_uint_lt(count, 3);
            ck_assert_uint_eq(frame.channel, channels[count]);
            ck_assert_uint_eq(frame.len, lengths[count]);
            if (count == 2)
                ck_assert_mem_eq(frame.payload, large, sizeof(large));
            count++;
        }
        ck_assert_uint_eq(left, 0);
    }
    ck_assert_uint_eq(count, 3);
}
END_TEST

START_TEST(test_too_long_is_broken_for_good)
{
    static struct frame_decoder decoder;
    static const uint32_t lengths[] = {FRAME_PAYLOAD_MAX + 1, 0x7fffffff, 0xffffffff};
    uint8_t header[FRAME_HEADER_LEN + 4] = {0};
    struct frame frame;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (size_t first = 1; first <= sizeof(header); first++) {
            memset(&decoder, 0, sizeof(decoder));
            frame_header_write(header, 1, 1, lengths[i]);
            const uint8_t *data = header;
            size_t left = first;
            enum frame_result result = frame_decode(&decoder, &data, &left, &frame);
            ck_assert_int_eq(result, first < FRAME_HEADER_LEN ? FRAME_MORE : FRAME_BROKEN);
            data = header + first;
            left = sizeof(header) - first;
            ck_assert_int_eq(frame_decode(&decoder, &data, &left, &frame), FRAME_BROKEN);
        }
    }
}
END_TEST

START_TEST(test_fields)
{
    uint8_t room[256];
    struct field_writer writer = {.ptr = room, .cap = sizeof(room)};
    struct field_reader reader;
    struct field field;
    uint64_t number;
    int64_t negative;
    field_put_u64(&writer, 7, UINT64_C(0x1122334455667788));
    field_put_text(&writer, 500, "text");
    field_put(&writer, 9, NULL, 0);
    static const uint8_t minus_two[] = {0xfe, 0xff};
    field_put(&writer, 10, minus_two, sizeof(minus_two));
    ck_assert(!writer.overflow);

    field_reader_init(&reader, room, writer.len);
    ck_assert(field_next(&reader, &field) && field.tag == 7);
    ck_assert(field_u64(&field, &number) && number == UINT64_C(0x1122334455667788));
    ck_assert(field_next(&reader, &field) && field.tag == 500 && field.len == 4);
    ck_assert_mem_eq(field.data, "text", 4);
    ck_assert(field_next(&reader, &field) && field.tag == 9 && field.len == 0);
    ck_assert(!field_u64(&field, &number));
    ck_assert(field_next(&reader, &field) && field_i64(&field, &negative) && negative == -2);
    ck_assert(field_u64(&field, &number) && number == 0xfffe);
    ck_assert(!field_next(&reader, &field) && !reader.broken);
}
END_TEST

START_TEST(test_fields_that_lie)
{
    static const struct {
        uint8_t bytes[8];
        size_t len;
    } cases[] = {
        {{1}, 1},
        {{1, 0, 0, 0, 0}, 5},
        {{1, 0, 1, 0, 0, 0}, 6},
        {{1, 0, 3, 0, 0, 0, 'a', 'b'}, 8},
        {{1, 0, 0xff, 0xff, 0xff, 0xff, 'a', 'b'}, 8},
    };
    struct field_reader reader;
    struct field field;
    field_reader_init(&reader, cases[_i].bytes, cases[_i].len);
    ck_assert(!field_next(&reader, &field));
    ck_assert(reader.broken);
    ck_assert(!field_next(&reader, &field));
}
END_TEST

START_TEST(test_writer_stops_when_full)
{
    uint8_t room[10];
    struct field_writer writer = {.ptr = room, .cap = sizeof(room)};
    field_put(&writer, 1, "abcd", 4);
    ck_assert(!writer.overflow && writer.len == 10);
    field_put(&writer, 1, "", 0);
    ck_assert(writer.overflow && writer.len == 10);
    writer = (struct field_writer){.ptr = room, .cap = sizeof(room)};
    field_put(&writer, 1, "abcde", 5);
    ck_assert(writer.overflow && writer.len == 0);
    field_put(&writer, 1, "a", 1); /* it would fit, and something is missing already */
    ck_assert(writer.overflow && writer.len == 0);
}
END_TEST

START_TEST(test_data_and_credit)
{
    uint8_t payload[FRAME_CREDIT_LEN + 4];
    struct frame frame = {.payload = payload};
    struct frame_data data;
    struct frame_credit credit;
    frame_data_header_write(payload, 2, 1000);
    static const uint8_t abc[] = {'a', 'b', 'c'};
    memcpy(payload + FRAME_DATA_HEADER, abc, sizeof(abc));
    frame.len = FRAME_DATA_HEADER + 3;
    ck_assert(frame_data_read(&frame, &data));
    ck_assert(data.stream == 2 && data.offset == 1000 && data.len == 3);
    ck_assert_mem_eq(data.bytes, "abc", 3);
    frame.len = FRAME_DATA_HEADER - 1;
    ck_assert(!frame_data_read(&frame, &data));
    frame_data_header_write(payload, 2, UINT64_MAX - 1); /* offset + length must not wrap */
    frame.len = FRAME_DATA_HEADER + 3;
    ck_assert(!frame_data_read(&frame, &data));

    frame_credit_write(payload, 1, 5, 70000);
    frame.len = FRAME_CREDIT_LEN;
    ck_assert(frame_credit_read(&frame, &credit));
    ck_assert(credit.stream == 1 && credit.done == 5 && credit.limit == 70000);
    frame_credit_write(payload, 1, 6, 5);
    ck_assert(!frame_credit_read(&frame, &credit));
    frame.len = FRAME_CREDIT_LEN - 1;
    ck_assert(!frame_credit_read(&frame, &credit));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frame");
    TCase *tests = tcase_create("frame");
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, test_header_is_little_endian);
    tcase_add_loop_test(tests, test_any_pieces, 0, 12);
    tcase_add_test(tests, test_too_long_is_broken_for_good);
    tcase_add_test(tests, test_fields);
    tcase_add_loop_test(tests, test_fields_that_lie, 0, 5);
    tcase_add_test(tests, test_writer_stops_when_full);
    tcase_add_test(tests, test_data_and_credit);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
