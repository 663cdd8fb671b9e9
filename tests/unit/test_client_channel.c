#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/mem.h"
#include "sandbox/fields.h"
#include "tests/unit/client_probe.h"

/* Channels of the agent client: order, windows, room, and what a hostile agent may say. */

START_TEST(test_open_and_result)
{
    struct probe probe;
    probe_init(&probe);
    ck_assert(!client_open(client, &probe.channel, "x", 1, NULL)); /* before the hello */
    greet();
    ck_assert(client_open(client, &probe.channel, "x", 1, NULL));
    struct frame frame = expect(1, FRAME_OPEN);
    ck_assert_uint_eq(frame.len, 1);
    ck_assert_int_eq(give(1, FRAME_STARTED, "", 0), 0);
    ck_assert_uint_eq(probe.started, 1);
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, 0, "hello", 5), 0);
    ck_assert_int_eq(give_offset(1, FRAME_END, 1, 5, NULL, 0), 0);
    ck_assert_uint_eq(probe.total, 5);
    ck_assert_int_eq(give(1, FRAME_RESULT, "r", 1), 0);
    ck_assert_uint_eq(probe.results, 1);
    ck_assert_str_eq(buf_text(&probe.bytes), "hello");
    /* Late frames of a channel that is gone are skipped. */
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, 5, "late", 4), 0);
    ck_assert_int_eq(give(1, FRAME_RESULT, "r", 1), 0);
    ck_assert_uint_eq(probe.results, 1);
    ck_assert(client_commit(client, &probe.channel));
    (void)expect(1, FRAME_COMMIT);
    probe.channel.stream_id++; /* as if the result had come over another stream */
    ck_assert(!client_commit(client, &probe.channel));
    expect_nothing();
    probe_done(&probe);
}
END_TEST

START_TEST(test_parts_of_channels_interleave)
{
    struct probe a, b;
    greet();
    open_probe(&a);
    open_probe(&b);
    static char half[FRAME_PAYLOAD_MAX];
    memset(half, 'h', sizeof(half));
    ck_assert_int_eq(give(1, FRAME_PART, half, sizeof(half)), 0);
    ck_assert_int_eq(give(2, FRAME_PART, half, 100), 0);
    ck_assert_int_eq(give(1, FRAME_RESULT, "end", 3), 0);
    ck_assert_int_eq(give(2, FRAME_RESULT, "end", 3), 0);
    ck_assert_uint_eq(a.result.len, sizeof(half) + 3);
    ck_assert_uint_eq(b.result.len, 103);
    probe_done(&a);
    probe_done(&b);
}
END_TEST

START_TEST(test_parts_are_bounded)
{
    struct probe probe;
    static char part[FRAME_PAYLOAD_MAX];
    int rc = 0;
    unsigned parts = 0;
    greet();
    open_probe(&probe);
    while (rc == 0 && parts < 1000) {
        rc = give(1, FRAME_PART, part, sizeof(part));
        parts++;
    }
    ck_assert_int_eq(rc, -1);
    ck_assert_uint_eq(parts, PROTO_MESSAGE_MAX / FRAME_PAYLOAD_MAX + 1);
    probe_done(&probe);
}
END_TEST

START_TEST(test_repeats_and_gaps)
{
    struct probe probe;
    static const uint64_t from[2] = {10, 0};
    greet();
    probe_init(&probe);
    probe.received = 10;
    ck_assert(client_open(client, &probe.channel, "x", 1, from));
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, 4, "456789", 6), 0); /* all known */
    ck_assert_uint_eq(probe.bytes.len, 0);
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, 8, "89ab", 4), 0);
    ck_assert_str_eq(buf_text(&probe.bytes), "ab");
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, 1000000, "far", 3), 0); /* lost before it */
    ck_assert_uint_eq(probe.gap, 1000000 - 12);
    ck_assert_int_eq(give_offset(1, FRAME_END, 1, 1000003, NULL, 0), 0);
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, 1000003, "x", 1), -1); /* after the end */
    probe_done(&probe);
}
END_TEST

START_TEST(test_broken_frames)
{
    static const struct {
        int type, stream;
        uint64_t offset;
        size_t len;
    } cases[] = {
        {FRAME_DATA, 0, 0, 1},
        {FRAME_DATA, 3, 0, 1},
        {FRAME_DATA, 1, UINT64_MAX - 2, 8},
        {FRAME_END, 2, 1, 0}, /* before what has come: see below */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct probe probe;
        if (i > 0) {
            client_probe_teardown();
            client_probe_setup();
        }
        greet();
        open_probe(&probe);
        ck_assert_int_eq(give_offset(1, FRAME_DATA, 2, 0, "ab", 2), 0);
        ck_assert_int_eq(give_offset(1, cases[i].type, cases[i].stream, cases[i].offset, "12345678",
                                     cases[i].len),
                         -1);
        probe_done(&probe);
    }
    struct probe probe;
    open_probe(&probe);
    ck_assert_int_eq(give(2, FRAME_DATA, "\1", 1), -1);
    ck_assert_int_eq(give(2, FRAME_CREDIT, "\0", 1), -1);
    ck_assert_int_eq(give_credit(2, 1, 0, 10), -1);
    uint8_t header[FRAME_HEADER_LEN];
    struct err err;
    frame_header_write(header, 2, FRAME_DATA, FRAME_PAYLOAD_MAX + 1);
    ck_assert_int_eq(client_receive(client, header, sizeof(header), &err), -1);
    probe_done(&probe);
}
END_TEST

START_TEST(test_window)
{
    struct probe probe;
    static char data[FRAME_DATA_MAX];
    greet();
    open_probe(&probe);
    drain();
    uint64_t limit = PROTO_WINDOW, sent = 0;
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, 0, data, 100), 0);
    channel_credit(&probe.channel, 1, 100); /* little is used: not worth a frame */
    expect_nothing();
    sent = 100;
    /* The peer always uses all it has; we always take all of it: the window doubles up to its
     * maximum. */
    for (int i = 0; i < 400; i++) {
        size_t size = limit - sent < sizeof(data) ? (size_t)(limit - sent) : sizeof(data);
        ck_assert_uint_gt(size, 0);
        ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, sent, data, size), 0);
        sent += size;
        channel_credit(&probe.channel, 1, sent);
        struct frame frame;
        while (take(&frame)) {
            ck_assert_int_eq(frame.type, FRAME_CREDIT);
            ck_assert_uint_le(wire_u64(frame.payload + 1), sent);
            limit = wire_u64(frame.payload + 9);
        }
    }
    ck_assert_uint_le(limit - sent, CAP_WINDOW_MAX);
    ck_assert_uint_gt(limit - sent, CAP_WINDOW_MAX / 2);
    ck_assert_uint_eq(shared.window_bytes, CAP_WINDOW_MAX - PROTO_WINDOW);
    /* One byte beyond it is a broken agent. */
    while (sent + sizeof(data) <= limit) {
        ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, sent, data, sizeof(data)), 0);
        sent += sizeof(data);
    }
    ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, sent, data, (size_t)(limit - sent) + 1), -1);
    probe_done(&probe);
}
END_TEST

START_TEST(test_window_bounds)
{
    struct probe probe;
    static char data[FRAME_DATA_MAX];
    greet();
    probe_init(&probe);
    probe.channel.window_max = PROTO_WINDOW; /* as with a small pipe */
    probe.credit_at_once = true;
    ck_assert(client_open(client, &probe.channel, "x", 1, NULL));
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_int_eq(give_offset(1, FRAME_DATA, 1, i * sizeof(data), data, sizeof(data)), 0);
    ck_assert_uint_eq(shared.window_bytes, 0);
    probe_done(&probe);
    shared.window_bytes = CAP_WINDOWS - PROTO_WINDOW / 2; /* others have it all */
    open_probe(&probe);
    probe.credit_at_once = true;
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_int_eq(give_offset(2, FRAME_DATA, 1, i * sizeof(data), data, sizeof(data)), 0);
    ck_assert_uint_eq(shared.window_bytes, CAP_WINDOWS - PROTO_WINDOW / 2);
    shared.window_bytes = 0;
    probe_done(&probe);
}
END_TEST

START_TEST(test_send)
{
    struct probe probe;
    static char data[200000];
    greet();
    open_probe(&probe);
    drain();
    ck_assert_uint_eq(channel_send(&probe.channel, 0, data, sizeof(data)), PROTO_WINDOW);
    ck_assert_uint_eq(channel_send(&probe.channel, PROTO_WINDOW, data, 1), 0);
    struct frame frame = expect(1, FRAME_DATA);
    ck_assert_uint_eq(frame.len, FRAME_PAYLOAD_MAX);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), 0);
    frame = expect(1, FRAME_DATA);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), FRAME_DATA_MAX);
    expect_nothing();
    ck_assert_int_eq(give_credit(1, 0, 100, PROTO_WINDOW + 10), 0);
    ck_assert_uint_eq(probe.done, 100);
    ck_assert_uint_eq(probe.limit, PROTO_WINDOW + 10);
    ck_assert_uint_eq(channel_send(&probe.channel, PROTO_WINDOW, data, 100), 10);
    drain();
    channel_send_end(&probe.channel, PROTO_WINDOW + 10);
    frame = expect(1, FRAME_END);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), PROTO_WINDOW + 10);
    ck_assert_int_eq(give_credit(1, 0, PROTO_WINDOW + 11, PROTO_WINDOW + 20), -1); /* never sent */
    probe_done(&probe);
}
END_TEST

START_TEST(test_send_goes_on_from_where_the_agent_is)
{
    struct probe probe;
    greet();
    open_probe(&probe);
    drain();
    ck_assert_uint_eq(channel_send(&probe.channel, 500000, "abc", 3), 3);
    struct frame frame = expect(1, FRAME_DATA);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), 500000);
    probe_done(&probe);
}
END_TEST

START_TEST(test_queue_room)
{
    struct probe a, b;
    static char data[1 << 20];
    greet();
    open_probe(&a);
    open_probe(&b);
    drain();
    ck_assert_int_eq(give_credit(1, 0, 0, sizeof(data)), 0);
    ck_assert_int_eq(give_credit(2, 0, 0, sizeof(data)), 0);
    size_t sent = channel_send(&a.channel, 0, data, sizeof(data));
    ck_assert_uint_lt(sent, 131072u); /* the queue is short: control frames wait behind it */
    ck_assert_uint_eq(channel_send(&b.channel, 0, data, sizeof(data)), 0);
    ck_assert_uint_eq(a.writables + b.writables, 0);
    drain();
    ck_assert_uint_eq(a.writables, 1);
    ck_assert_uint_eq(b.writables, 1);
    /* One that is closed while it waits is not called. */
    (void)channel_send(&a.channel, sent, data, sizeof(data) - sent);
    ck_assert_uint_eq(channel_send(&b.channel, 0, data, sizeof(data)), 0);
    channel_close(&b.channel);
    drain();
    ck_assert_uint_eq(b.writables, 1);
    probe_done(&a);
    probe_done(&b);
}
END_TEST

START_TEST(test_no_room_to_open)
{
    struct probe probes[4];
    char *large = xcalloc(1, PROTO_MESSAGE_MAX);
    greet();
    for (size_t i = 0; i < ARRAY_LEN(probes); i++)
        probe_init(&probes[i]);
    ck_assert(client_open(client, &probes[0].channel, large, PROTO_MESSAGE_MAX, NULL));
    ck_assert(!client_open(client, &probes[1].channel, "x", 1, NULL));
    ck_assert(!client_open(client, &probes[2].channel, "x", 1, NULL));
    ck_assert(!client_open(client, &probes[3].channel, "x", 1, NULL));
    channel_close(&probes[2].channel);
    drain();
    ck_assert_uint_eq(probes[1].writables, 1);
    ck_assert_uint_eq(probes[2].writables, 0);
    ck_assert(client_open(client, &probes[1].channel, "x", 1, NULL));
    /* One still without room when the stream ends hears of it like the others. */
    ck_assert(client_open(client, &probes[2].channel, large, PROTO_MESSAGE_MAX, NULL));
    ck_assert(!client_open(client, &probes[3].channel, "x", 1, NULL));
    struct err why = {.code = ERR_STREAM_LOST};
    client_close(client, &why);
    for (size_t i = 0; i < ARRAY_LEN(probes); i++) {
        ck_assert_uint_eq(probes[i].losts, 1);
        probe_done(&probes[i]);
    }
    free(large);
}
END_TEST

START_TEST(test_agent_that_does_not_read)
{
    struct probe probe;
    static char signal[FRAME_PAYLOAD_MAX];
    unsigned signals = 0;
    greet();
    open_probe(&probe);
    while (!client_overflowed(client) && signals < 10000) {
        channel_signal(&probe.channel, signal, sizeof(signal));
        signals++;
    }
    ck_assert_uint_le(signals, CAP_SEND_QUEUE / FRAME_PAYLOAD_MAX + 1);
    struct err err;
    ck_assert_int_eq(client_receive(client, NULL, 0, &err), -1);
    probe_done(&probe);
}
END_TEST

START_TEST(test_closed_in_a_callback)
{
    struct probe probe;
    struct buf bytes = BUF_INIT(4096);
    uint8_t header[FRAME_HEADER_LEN], data[FRAME_DATA_HEADER + 1] = {1};
    struct err err;
    greet();
    open_probe(&probe);
    probe.close_in_data = true;
    for (uint64_t i = 0; i < 3; i++) {
        frame_header_write(header, 1, FRAME_DATA, sizeof(data));
        frame_data_header_write(data, 1, i);
        ck_assert(buf_append(&bytes, header, sizeof(header)));
        ck_assert(buf_append(&bytes, data, sizeof(data)));
    }
    ck_assert_int_eq(client_receive(client, (const uint8_t *)bytes.ptr, bytes.len, &err), 0);
    ck_assert_uint_eq(probe.bytes.len, 1);
    buf_done(&bytes);
    probe_done(&probe);
}
END_TEST

START_TEST(test_many_channels)
{
    enum { COUNT = 5000 };
    struct probe *probes = xcalloc(COUNT, sizeof(*probes));
    greet();
    for (uint32_t i = 0; i < COUNT; i++) {
        open_probe(&probes[i]);
        ck_assert_uint_eq(probes[i].channel.number, i + 1);
        drain();
    }
    for (uint32_t i = 0; i < COUNT; i += 3)
        channel_close(&probes[i].channel);
    for (uint32_t i = COUNT; i-- > 0;)
        ck_assert_int_eq(give(i + 1, FRAME_RESULT, "r", 1), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        ck_assert_uint_eq(probes[i].results, i % 3 == 0 ? 0 : 1);
        probe_done(&probes[i]);
    }
    free(probes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_channel");
    TCase *tcase = tcase_create("client_channel");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, client_probe_setup, client_probe_teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_open_and_result);
    tcase_add_test(tcase, test_parts_of_channels_interleave);
    tcase_add_test(tcase, test_parts_are_bounded);
    tcase_add_test(tcase, test_repeats_and_gaps);
    tcase_add_test(tcase, test_broken_frames);
    tcase_add_test(tcase, test_window);
    tcase_add_test(tcase, test_window_bounds);
    tcase_add_test(tcase, test_send);
    tcase_add_test(tcase, test_send_goes_on_from_where_the_agent_is);
    tcase_add_test(tcase, test_queue_room);
    tcase_add_test(tcase, test_no_room_to_open);
    tcase_add_test(tcase, test_agent_that_does_not_read);
    tcase_add_test(tcase, test_closed_in_a_callback);
    tcase_add_test(tcase, test_many_channels);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
