/* Bytes of a hostile peer through the decoder and everything that reads a payload. The first byte
 * says in what pieces they arrive; in whatever pieces, the same frames must come out. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/environment.h"
#include "agent/frame.h"
#include "agent/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int good)
{
    if (!good)
        abort();
}

static uint64_t mix(uint64_t sum, const void *data, size_t len)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static void read_message(const struct frame *frame)
{
    struct message message;
    char text[32];
    size_t count = 0;
    if (!message_copy(&message, frame->payload, frame->len))
        return;
    bool well_formed = message_well_formed(&message);
    (void)message_u64(&message, TAG_OP, 0);
    int found = message_text(&message, TAG_EXEC_ID, text, sizeof(text));
    check(found <= 0 || strlen(text) < sizeof(text));
    char **entries = message_texts(&message, TAG_ENV, &count);
    if (entries != NULL) {
        check(count == message_count(&message, TAG_ENV));
        if (environment_well_formed(entries) && count > 0) {
            char **merged = environment_merge(entries, entries, NULL);
            check(merged != NULL && merged[0] != NULL);
            free(merged);
        }
    }
    free(entries);
    (void)well_formed;
    message_free(&message);
}

/* Fields that were read and are written again are read the same. */
static void rewrite_fields(const struct frame *frame)
{
    static uint8_t room[FRAME_PAYLOAD_MAX];
    struct field_writer writer = {.ptr = room, .cap = sizeof(room)};
    struct field_reader reader;
    struct field field;
    uint64_t number;
    int64_t negative;
    field_reader_init(&reader, frame->payload, frame->len);
    while (field_next(&reader, &field)) {
        if (field_u64(&field, &number))
            check(field_i64(&field, &negative));
        field_put(&writer, field.tag, field.data, field.len);
    }
    check(!writer.overflow);
    check(memcmp(room, frame->payload, writer.len) == 0);
    check(reader.broken || writer.len == frame->len);
}

static void read_payload(const struct frame *frame)
{
    struct frame_data bytes;
    struct frame_credit credit;
    check(frame->len <= FRAME_PAYLOAD_MAX);
    if (frame_data_read(frame, &bytes))
        check(bytes.offset + bytes.len >= bytes.offset && bytes.len <= FRAME_DATA_MAX);
    if (frame_credit_read(frame, &credit))
        check(credit.limit >= credit.done);
    rewrite_fields(frame);
    read_message(frame);
}

static uint64_t decode(const uint8_t *data, size_t size, size_t piece, int read)
{
    static struct frame_decoder decoder;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    memset(&decoder, 0, sizeof(decoder));
    for (size_t at = 0; at < size; at += piece) {
        const uint8_t *ptr = data + at;
        size_t left = piece < size - at ? piece : size - at;
        struct frame frame;
        enum frame_result result;
        while ((result = frame_decode(&decoder, &ptr, &left, &frame)) == FRAME_READY) {
            sum = mix(sum, &frame.channel, sizeof(frame.channel));
            sum = mix(sum, &frame.type, 1);
            sum = mix(sum, frame.payload, frame.len);
            if (read)
                read_payload(&frame);
        }
        if (result == FRAME_BROKEN)
            return sum + 1;
        check(left == 0);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    size_t piece = (size_t)data[0] + 1;
    uint64_t whole = decode(data + 1, size - 1, size, 1);
    check(whole == decode(data + 1, size - 1, piece, 0));
    return 0;
}
