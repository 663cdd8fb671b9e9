#pragma once

#include <stddef.h>

/* Every maximum that bounds memory a client or peer can make us use. Bytes unless named otherwise.
 */
#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

#define CAP_JSON_BODY (12 * MIB)     /* a JSON request body: a CAP_JSON_FILE as base64 fits */
#define CAP_JSON_DEPTH 32            /* nesting levels of a request */
#define CAP_JSON_VALUES (256 * KIB)  /* values (each takes some 80 bytes) of a request, counted */
#define CAP_PEER_DEPTH 256           /* nesting levels from a substrate's API */
#define CAP_PEER_VALUES (4 * MIB)    /* values from a substrate's API, counted */
#define CAP_JSON_STDIN (1 * MIB)     /* stdin inside JSON, decoded */
#define CAP_JSON_OUTPUT (8 * MIB)    /* output of one stream inside JSON */
#define CAP_JSON_FILE (8 * MIB)      /* a file inside JSON */
#define CAP_REPLY (48 * MIB)         /* a whole JSON reply */
#define CAP_K8S_BODY (64 * MIB)      /* one reply of the API server, one list page */
#define CAP_WATCH_LINE (4 * MIB)     /* one watch event */
#define CAP_ENGINE_REPLY (64 * MIB)  /* one reply of a container engine */
#define CAP_ENGINE_REQUEST (1 * MIB) /* a request to it, as JSON */
#define CAP_ENGINE_LINE (1 * MIB)    /* one event, or line of a pull's progress */
#define CAP_ARGV_BYTES (2 * MIB)     /* argv and env of one exec together */
#define CAP_ARG 131071  /* one argv element or NAME=value, the kernel's MAX_ARG_STRLEN - 1 */
#define CAP_ARGS 65536  /* argv elements */
#define CAP_SESSIONS 32 /* living ones of a sandbox, counted */
#define CAP_SIGNALS 64  /* of one who is attached, not yet answered by the agent, counted */
#define CAP_SESSION_TEXT (1 * MIB) /* one command text of a session */
#define CAP_ENV 1024               /* environment entries */
#define CAP_LABELS 64
#define CAP_SECRETS 256       /* values to scrub, per sandbox */
#define CAP_SECRET (64 * KIB) /* one of them */
#define CAP_PATH 4096
#define CAP_URI (16 * KIB) /* a request's target: a path of CAP_PATH, percent-encoded, and more */
#define CAP_HEADERS (16 * KIB)     /* all headers of a request */
#define CAP_STATE_BLOB (256 * KIB) /* the sealed blob that the agent keeps */
#define CAP_TREE (64 * MIB)        /* a tree listing as sent by the agent */
#define CAP_PS (16 * MIB)          /* a listing of processes as sent by the agent */
#define CAP_LIST_LIMIT 500         /* items on one page */
#define CAP_WINDOW_MIN (32 * KIB)  /* flow-control window of one stream at the start */
#define CAP_WINDOW_MAX (1 * MIB)
#define CAP_WINDOWS (64 * MIB)    /* all such windows of the server beyond their start */
#define CAP_HANDSHAKES 32         /* agents being attached to at once */
#define CAP_SEND_QUEUE (32 * MIB) /* control frames waiting for one agent to read */
#define CAP_EXEC_IDS 65536        /* executions that one agent may name in its hello */
#define CAP_EXEC_PENDING                                                                           \
    (256 * MIB)              /* argv, env and stdin of all execs, not yet taken by an agent */
#define CAP_SMALL (64 * KIB) /* a header block, a URL, an error body */
#define CAP_IMAGE_BYTES (16384 * MIB) /* an unpacked image */
#define CAP_IMAGE_ENTRIES 1000000     /* files, folders and links of one */
#define CAP_IMAGE_DEPTH 128 /* folders in a path of one; as many descriptors to remove it */
#define CAP_IMAGE_LAYERS 512
#define CAP_IMAGE_HEADER (4 * MIB)               /* of an archive, between two entries */
#define CAP_IMAGE_JSON (4 * MIB)                 /* an index, manifest or configuration */
#define CAP_ARCHIVE_APPARENT ((uint64_t)4 << 40) /* files of an archive down, their holes too */
#define CAP_ARCHIVE_BYTES (16384 * MIB)          /* an archive up, unpacked */
#define CAP_ARCHIVE_ENTRIES 1000000              /* of one */
#define CAP_ARCHIVE_HEADER (1 * MIB)             /* of it, between two entries */
#define CAP_ARCHIVE_NOTES 1000                   /* entries that a report names */
#define CAP_ARCHIVE_NOTE_BYTES (128 * KIB)       /* of their paths, in the report of one down */
#define CAP_ARCHIVE_UPLOADS 16                   /* at once; each has a thread */
#define CAP_SNAPSHOT (16 * MIB)                  /* names and times of files, to compare with */
#define CAP_SNAPSHOTS (64 * MIB)                 /* of them together */
#define CAP_FAKE_CALLS 200000                    /* that the fake driver remembers, counted */
#define CAP_FAKE_CALL_BYTES (64 * MIB)           /* the same, their size */
#define CAP_FAKE_CALL (4 * MIB)                  /* one of them, as JSON */
#define CAP_FAKE_CALL_CONTENT (256 * KIB)        /* of a file or an input in it */
#define CAP_FAKE_IDS 100000                      /* ids in its queue */
#define CAP_FAKE_RULES 10000                     /* rules, and answers of one */
#define CAP_FAKE_REGEX 1024                      /* one pattern */
#define CAP_FAKE_PRESETS 1000                    /* sandboxes that files are prepared for */
#define CAP_FAKE_PRESET_BYTES (64 * MIB)         /* of those files */
#define CAP_FAKE_PRESET_FILES 100000             /* of one of them, counted */
#define CAP_FAKE_FILES (256 * MIB)               /* the files of all its sandboxes */
