#pragma once

#include "agent/frame.h"
#include "agent/proto.h"
#include "base/buf.h"
#include "driver/driver.h"

/* A driver whose only box is a scripted agent: the test takes the server's frames one by one and
 * says what the agent says. Everything happens on the test's thread; `opened` and refusals come
 * through the loop. */
struct fake_stream;

struct fake_agent {
    struct driver driver;
    struct driver_ops ops;
    struct loop *loop;
    struct fake_stream *stream; /* the open one, NULL: none */
    struct err refusal;         /* code ERR_NONE: streams are opened */
    bool refuse_at_once;        /* within open(), not through the loop */
    unsigned opens;
    size_t room;      /* bytes the stream takes; SIZE_MAX at the start */
    struct buf sent;  /* by the server, not yet taken by the test */
    struct buf taken; /* the frame given last */
};

void fake_agent_init(struct fake_agent *agent, struct loop *loop);
void fake_agent_done(struct fake_agent *agent);

/* The next frame of the server, in order; false: there is none. FRAME's payload is valid until the
 * next. */
bool fake_agent_take(struct fake_agent *agent, struct frame *ret_frame);
/* Takes a frame and checks its type and channel. */
struct frame fake_agent_expect(struct fake_agent *agent, uint32_t channel, enum frame_type type);
void fake_agent_expect_nothing(struct fake_agent *agent);
/* Lets the stream take more, and tells. */
void fake_agent_make_room(struct fake_agent *agent, size_t room);

void fake_agent_bytes(struct fake_agent *agent, const void *data, size_t len);
void fake_agent_say(struct fake_agent *agent, uint32_t channel, enum frame_type type,
                    const void *payload, size_t len);
/* FIELDS are said and emptied; NULL: none. */
void fake_agent_tell(struct fake_agent *agent, uint32_t channel, enum frame_type type,
                     struct buf *fields);
void fake_agent_error(struct fake_agent *agent, uint32_t channel, enum frame_type type,
                      const char *code, const char *message);
void fake_agent_data(struct fake_agent *agent, uint32_t channel, int stream, uint64_t offset,
                     const void *data, size_t len);
void fake_agent_end(struct fake_agent *agent, uint32_t channel, int stream, uint64_t total);
void fake_agent_credit(struct fake_agent *agent, uint32_t channel, uint64_t done, uint64_t limit);
/* Takes the HELLO, answers it; EXECS: ids known, ended by 0 (NULL: none). */
void fake_agent_greet(struct fake_agent *agent, const uint64_t *execs);
/* The stream breaks. */
void fake_agent_cut(struct fake_agent *agent, enum err_code code);
/* A field of a frame as number or text (malloc'd, NULL: absent). */
uint64_t frame_u64(const struct frame *frame, uint16_t tag, uint64_t missing);
char *frame_text(const struct frame *frame, uint16_t tag);
