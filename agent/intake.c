#include "agent/intake.h"

#include <sys/socket.h>

#include "agent/proto.h"

#define WINDOW_MAX ((uint64_t)512 << 10)

void intake_init(struct intake *intake)
{
    *intake = (struct intake){.granted = PROTO_WINDOW, .window = PROTO_WINDOW};
}

bool intake_take(struct worker *worker, struct intake *intake, const struct frame *frame,
                 const uint8_t **ret_data, size_t *ret_len)
{
    struct frame_data data;
    uint64_t have = intake->received;
    if (!frame_data_read(frame, &data) || data.stream != 0 || data.offset > have ||
        data.offset + data.len > intake->granted) {
        worker_error(worker, "invalid_request", "DATA leaves a hole or passes its limit");
        return false;
    }
    size_t known = have - data.offset < data.len ? (size_t)(have - data.offset) : data.len;
    *ret_data = data.bytes + known;
    *ret_len = data.len - known;
    return true;
}

void intake_stored(struct worker *worker, struct intake *intake, size_t len)
{
    uint8_t packet[FRAME_HEADER_LEN + FRAME_CREDIT_LEN];
    intake->received += len;
    if (intake->received + intake->window - intake->granted < intake->window / 2)
        return;
    /* The disk keeps up: the sender should not have to wait for us. */
    if (intake->window < WINDOW_MAX)
        intake->window *= 2;
    intake->granted = intake->received + intake->window;
    frame_header_write(packet, worker->channel, FRAME_CREDIT, FRAME_CREDIT_LEN);
    frame_credit_write(packet + FRAME_HEADER_LEN, 0, intake->received, intake->granted);
    (void)!send(worker->fd, packet, sizeof(packet), MSG_NOSIGNAL);
}
