#include "agent/frame.h"

#include <string.h>

/* --- integers -----------------------------------------------------------------------------------
 */

static void put_bytes(uint8_t *ptr, uint64_t value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ptr[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_bytes(const uint8_t *ptr, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value |= (uint64_t)ptr[i] << (8 * i);
    return value;
}

void wire_put_u32(uint8_t *ptr, uint32_t value)
{
    put_bytes(ptr, value, 4);
}

void wire_put_u64(uint8_t *ptr, uint64_t value)
{
    put_bytes(ptr, value, 8);
}

uint32_t wire_u32(const uint8_t *ptr)
{
    return (uint32_t)get_bytes(ptr, 4);
}

uint64_t wire_u64(const uint8_t *ptr)
{
    return get_bytes(ptr, 8);
}

/* --- frames -------------------------------------------------------------------------------------
 */

void frame_header_write(uint8_t ret_header[FRAME_HEADER_LEN], uint32_t channel, uint8_t type,
                        size_t payload_len)
{
    wire_put_u32(ret_header, (uint32_t)payload_len);
    wire_put_u32(ret_header + 4, channel);
    ret_header[8] = type;
}

static void frame_of(const uint8_t *bytes, struct frame *ret_frame)
{
    ret_frame->len = wire_u32(bytes);
    ret_frame->channel = wire_u32(bytes + 4);
    ret_frame->type = bytes[8];
    ret_frame->payload = bytes + FRAME_HEADER_LEN;
}

/* Moves bytes into the decoder until it has WANT of them; false when the data ran out before. */
static bool take(struct frame_decoder *decoder, size_t want, const uint8_t **data, size_t *len)
{
    size_t missing = want - decoder->have;
    size_t count = missing < *len ? missing : *len;
    if (count > 0)
        memcpy(decoder->bytes + decoder->have, *data, count);
    decoder->have += count;
    *data += count;
    *len -= count;
    return decoder->have == want;
}

enum frame_result frame_decode(struct frame_decoder *decoder, const uint8_t **data, size_t *len,
                               struct frame *ret_frame)
{
    /* A frame that lies whole in the data is not copied. */
    if (decoder->have == 0 && *len >= FRAME_HEADER_LEN) {
        size_t whole = FRAME_HEADER_LEN + (size_t)wire_u32(*data);
        if (whole <= FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX && whole <= *len) {
            frame_of(*data, ret_frame);
            *data += whole;
            *len -= whole;
            return FRAME_READY;
        }
    }
    if (decoder->have < FRAME_HEADER_LEN && !take(decoder, FRAME_HEADER_LEN, data, len))
        return FRAME_MORE;
    size_t payload = wire_u32(decoder->bytes);
    if (payload > FRAME_PAYLOAD_MAX)
        return FRAME_BROKEN;
    if (!take(decoder, FRAME_HEADER_LEN + payload, data, len))
        return FRAME_MORE;
    frame_of(decoder->bytes, ret_frame);
    decoder->have = 0;
    return FRAME_READY;
}

/* --- DATA, END, CREDIT ---------------------------------------------------------------------------
 */

bool frame_data_read(const struct frame *frame, struct frame_data *ret_data)
{
    if (frame->len < FRAME_DATA_HEADER)
        return false;
    uint64_t offset = wire_u64(frame->payload + 1);
    size_t len = frame->len - FRAME_DATA_HEADER;
    if (offset > INT64_MAX - (uint64_t)len)
        return false;
    ret_data->stream = frame->payload[0];
    ret_data->offset = offset;
    ret_data->bytes = frame->payload + FRAME_DATA_HEADER;
    ret_data->len = len;
    return true;
}

bool frame_credit_read(const struct frame *frame, struct frame_credit *ret_credit)
{
    if (frame->len < FRAME_CREDIT_LEN)
        return false;
    uint64_t done = wire_u64(frame->payload + 1);
    uint64_t limit = wire_u64(frame->payload + 9);
    if (limit < done)
        return false;
    *ret_credit = (struct frame_credit){
        .stream = frame->payload[0],
        .done = done,
        .limit = limit,
    };
    return true;
}

void frame_data_header_write(uint8_t ret_header[FRAME_DATA_HEADER], uint8_t stream, uint64_t offset)
{
    ret_header[0] = stream;
    wire_put_u64(ret_header + 1, offset);
}

void frame_credit_write(uint8_t ret_payload[FRAME_CREDIT_LEN], uint8_t stream, uint64_t done,
                        uint64_t limit)
{
    ret_payload[0] = stream;
    wire_put_u64(ret_payload + 1, done);
    wire_put_u64(ret_payload + 9, limit);
}

/* --- fields --------------------------------------------------------------------------------------
 */

#define FIELD_HEADER 6

void field_reader_init(struct field_reader *reader, const void *data, size_t len)
{
    *reader = (struct field_reader){.ptr = data, .left = len};
}

bool field_next(struct field_reader *reader, struct field *ret_field)
{
    if (reader->left == 0 || reader->broken)
        return false;
    if (reader->left < FIELD_HEADER) {
        reader->broken = true;
        return false;
    }
    uint32_t len = wire_u32(reader->ptr + 2);
    if (len > reader->left - FIELD_HEADER) {
        reader->broken = true;
        return false;
    }
    ret_field->tag = (uint16_t)get_bytes(reader->ptr, 2);
    ret_field->data = reader->ptr + FIELD_HEADER;
    ret_field->len = len;
    reader->ptr += FIELD_HEADER + len;
    reader->left -= FIELD_HEADER + (size_t)len;
    return true;
}

bool field_u64(const struct field *field, uint64_t *ret_value)
{
    if (field->len != 1 && field->len != 2 && field->len != 4 && field->len != 8)
        return false;
    *ret_value = get_bytes(field->data, field->len);
    return true;
}

bool field_i64(const struct field *field, int64_t *ret_value)
{
    uint64_t value;
    if (!field_u64(field, &value))
        return false;
    unsigned unused = 64 - 8 * (unsigned)field->len;
    /* The sign bit of the short form moves to the top and back. */
    *ret_value = (int64_t)(value << unused) >> unused;
    return true;
}

void field_put(struct field_writer *writer, uint16_t tag, const void *data, size_t len)
{
    if (writer->overflow || len > UINT32_MAX || writer->cap - writer->len < FIELD_HEADER ||
        writer->cap - writer->len - FIELD_HEADER < len) {
        writer->overflow = true;
        return;
    }
    uint8_t *ptr = writer->ptr + writer->len;
    put_bytes(ptr, tag, 2);
    wire_put_u32(ptr + 2, (uint32_t)len);
    if (len > 0)
        memcpy(ptr + FIELD_HEADER, data, len);
    writer->len += FIELD_HEADER + len;
}

void field_put_u64(struct field_writer *writer, uint16_t tag, uint64_t value)
{
    uint8_t bytes[8];
    wire_put_u64(bytes, value);
    field_put(writer, tag, bytes, sizeof(bytes));
}

void field_put_text(struct field_writer *writer, uint16_t tag, const char *text)
{
    field_put(writer, tag, text, strlen(text));
}
