#include "fake/transfer.h"

#include <stdlib.h>

struct transfer *transfer_new(struct wire *wire, uint32_t channel)
{
    struct fake_box *box = wire->box;
    struct transfer *transfer;

    if (box->transfer_count >= TRANSFERS_MAX) {
        wire_send_error(wire, channel, "busy", "too many requests about files at once");
        return NULL;
    }
    transfer = xcalloc(1, sizeof(*transfer));
    transfer->box = box;
    transfer->wire = wire;
    transfer->channel = channel;
    transfer->next = box->transfers;
    box->transfers = transfer;
    box->transfer_count++;
    return transfer;
}

void transfer_end(struct transfer *transfer)
{
    struct fake_box *box = transfer->box;
    struct transfer **link = &box->transfers;

    while (*link != transfer)
        link = &(*link)->next;
    *link = transfer->next;
    box->transfer_count--;
    timer_stop(&transfer->timer);
    upload_free(transfer);
    content_unref(transfer->content);
    free(transfer->root);
    free(transfer);
}

static struct transfer *find(const struct wire *wire, uint32_t channel)
{
    struct transfer *transfer = wire->box->transfers;

    while (transfer != NULL && (transfer->wire != wire || transfer->channel != channel))
        transfer = transfer->next;
    return transfer;
}

void fake_transfers_lost(struct fake_box *box, const struct wire *wire)
{
    for (struct transfer *transfer = box->transfers, *next; transfer != NULL; transfer = next) {
        next = transfer->next;
        if (wire == NULL || transfer->wire == wire)
            transfer_end(transfer);
    }
}

void fake_transfer_cancel(struct wire *wire, uint32_t channel)
{
    struct transfer *transfer = find(wire, channel);

    if (transfer == NULL)
        return;
    transfer_end(transfer);
    wire_send_error(wire, channel, "cancelled", "the request was cancelled");
}

static bool take(struct transfer *transfer, const struct frame *frame)
{
    struct frame_credit credit;
    struct frame_data data;

    if (frame->type == FRAME_CREDIT) {
        if (!frame_credit_read(frame, &credit))
            return false;
        if (credit.stream == 1)
            outflow_credit(&transfer->out, credit.limit);
        return true;
    }
    if (!frame_data_read(frame, &data))
        return false;
    if (data.stream != 0 || transfer->upload == NULL)
        return true;
    return frame->type == FRAME_DATA ? upload_data(transfer, &data)
                                     : upload_end(transfer, data.offset);
}

bool fake_transfer_frame(struct wire *wire, const struct frame *frame, bool *ret_broken)
{
    struct transfer *transfer = find(wire, frame->channel);

    if (transfer != NULL)
        *ret_broken = !take(transfer, frame);
    return transfer != NULL;
}

void fake_transfers_pump(struct wire *wire)
{
    struct fake_box *box = wire->box;

    for (struct transfer *transfer = box->transfers, *next; transfer != NULL; transfer = next) {
        next = transfer->next;
        if (transfer->wire != wire || transfer->sent == NULL)
            continue;
        while (wire_has_room(wire) && outflow_send(&transfer->out, wire, transfer->channel, 1))
            continue;
        if (!wire_has_room(wire) && !transfer->out.end_sent)
            return; /* the next turn goes on; after a cut there is nothing any more */
        if (transfer->out.end_sent)
            transfer->sent(transfer);
    }
}
