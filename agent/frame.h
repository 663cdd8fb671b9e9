#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The stream between server and agent: a sequence of frames. Shared by both sides, libc only.
 *
 *   u32 length   of the payload, at most FRAME_PAYLOAD_MAX          all integers little-endian
 *   u32 channel  0 is the connection itself; others are chosen by the server, never reused on a
 * stream u8  type     enum frame_type payload
 *
 * Frames of unknown type are skipped. agent/proto.h says what each payload holds. */
#define FRAME_HEADER_LEN 9
#define FRAME_PAYLOAD_MAX 32768

struct frame {
    uint32_t channel;
    uint8_t type;
    const uint8_t *payload; /* borrowed from the decoder or from DATA until the next call */
    size_t len;
};

void frame_header_write(uint8_t ret_header[FRAME_HEADER_LEN], uint32_t channel, uint8_t type,
                        size_t payload_len);

/* Takes bytes in any pieces and gives whole frames. Treats its input as hostile. */
struct frame_decoder {
    uint8_t bytes[FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX];
    size_t have;
};

enum frame_result { FRAME_MORE, FRAME_READY, FRAME_BROKEN };

/* Consumes from *DATA (moving it on, lowering *LEN) until a frame is whole or the data is used up.
 * FRAME_BROKEN: the length is beyond the maximum; the stream must be closed. */
enum frame_result frame_decode(struct frame_decoder *decoder, const uint8_t **data, size_t *len,
                               struct frame *ret_frame);

/* --- payloads of DATA, END and CREDIT ------------------------------------------------------------
 */

#define FRAME_DATA_HEADER 9 /* u8 stream, u64 offset */
#define FRAME_DATA_MAX (FRAME_PAYLOAD_MAX - FRAME_DATA_HEADER)

struct frame_data { /* DATA; END with offset = total and no bytes */
    uint8_t stream;
    uint64_t offset;
    const uint8_t *bytes;
    size_t len;
};

struct frame_credit {
    uint8_t stream;
    uint64_t done, limit;
};

/* False when too short, or when offset + length or limit < done is not a sane range. */
bool frame_data_read(const struct frame *frame, struct frame_data *ret_data);
bool frame_credit_read(const struct frame *frame, struct frame_credit *ret_credit);

void frame_data_header_write(uint8_t ret_header[FRAME_DATA_HEADER], uint8_t stream,
                             uint64_t offset);
#define FRAME_CREDIT_LEN 17
void frame_credit_write(uint8_t ret_payload[FRAME_CREDIT_LEN], uint8_t stream, uint64_t done,
                        uint64_t limit);

/* Little-endian integers at any address. */
void wire_put_u32(uint8_t *ptr, uint32_t value);
void wire_put_u64(uint8_t *ptr, uint64_t value);
uint32_t wire_u32(const uint8_t *ptr);
uint64_t wire_u64(const uint8_t *ptr);

/* --- fields: u16 tag, u32 length, bytes; unknown tags are skipped ------------------------------
 */

struct field {
    uint16_t tag;
    const uint8_t *data;
    uint32_t len;
};

struct field_reader {
    const uint8_t *ptr;
    size_t left;
    bool broken;
};

void field_reader_init(struct field_reader *reader, const void *data, size_t len);
/* False at the end, or when malformed (then `broken` is set). */
bool field_next(struct field_reader *reader, struct field *ret_field);
bool field_u64(const struct field *field, uint64_t *ret_value); /* 1, 2, 4 or 8 bytes */
bool field_i64(const struct field *field, int64_t *ret_value);

/* Appends to a fixed region; `overflow` is set and nothing more is written once it is full. */
struct field_writer {
    uint8_t *ptr;
    size_t len, cap;
    bool overflow;
};

void field_put(struct field_writer *writer, uint16_t tag, const void *data, size_t len);
void field_put_u64(struct field_writer *writer, uint16_t tag, uint64_t value);
void field_put_text(struct field_writer *writer, uint16_t tag, const char *text);
