#include "server/problem.h"

#include "base/mem.h"

#define REQUEST "request_error"
#define AUTH "auth_error"
#define LOAD "overloaded"
#define PROVISION "provision_error"
#define EXEC "exec_error"
#define TIME "timeout"
#define SERVICE "service_error"

#define ROW(code, status_, category_, again, level_, title_, remediation_)                         \
    [ERR_##code] = {.status = (status_),                                                           \
                    .retry_after_s = (again) > 0 ? (again) : 0,                                    \
                    .category = (category_),                                                       \
                    .title = (title_),                                                             \
                    .remediation = (remediation_),                                                 \
                    .level = (level_),                                                             \
                    .retryable = (again) >= 0}
/* Whether to try again, and the seconds of Retry-After. */
#define NO (-1)
#define MAYBE 0
#define AGAIN 1
#define LATER 5
#define QUIET LOG_LEVEL_DEBUG
#define NOTE LOG_LEVEL_INFO
#define WARN LOG_LEVEL_WARN
#define FAULT LOG_LEVEL_ERROR

/* clang-format off */
static const struct problem problems[ERR_COUNT] = {
    ROW(NONE, 500, SERVICE, NO, FAULT, "Internal error", "Report this with the request_id."),
    ROW(INTERNAL, 500, SERVICE, NO, FAULT, "Internal error", "Report this with the request_id; the server's log has more."),

    ROW(INVALID_REQUEST, 400, REQUEST, NO, QUIET, "Malformed request", "Correct the request as the detail says."),
    ROW(INVALID_JSON, 400, REQUEST, NO, QUIET, "The body is not valid JSON", "Send one JSON object, UTF-8, without duplicate keys."),
    ROW(INVALID_FIELD, 400, REQUEST, NO, QUIET, "A field or parameter is not valid", "Correct the field that the detail names; openapi.yaml lists them all."),
    ROW(INVALID_PATH, 400, REQUEST, NO, QUIET, "The path is not valid", "Encode each path segment once; dots, slashes and NUL cannot be part of one."),
    ROW(NOT_FOUND, 404, REQUEST, NO, QUIET, "Not found", "Check the id and the path."),
    ROW(GONE, 410, REQUEST, NO, QUIET, "The sandbox is gone", "Create a new one; `reason` says why this one ended."),
    ROW(METHOD_NOT_ALLOWED, 405, REQUEST, NO, QUIET, "Method not allowed", "Use a method that the Allow header lists."),
    ROW(UPGRADE_REQUIRED, 426, REQUEST, NO, QUIET, "This is a WebSocket", "Ask with the headers of RFC 6455: Connection: Upgrade, Upgrade: websocket, Sec-WebSocket-Version: 13."),
    ROW(CONFLICT, 409, REQUEST, NO, QUIET, "Conflict with the present state", "Look at the resource and decide again."),
    ROW(ALREADY_EXISTS, 409, REQUEST, NO, QUIET, "The name is taken", "Choose another id, or send none to get one; what is yours can be used, or deleted first."),
    ROW(IDEMPOTENCY_CONFLICT, 409, REQUEST, NO, QUIET, "The Idempotency-Key was used with another body", "Use a new key for another request."),
    ROW(HOST_TAKEN, 409, REQUEST, NO, QUIET, "The preview's host is taken", "Choose another subdomain."),
    ROW(TOO_LARGE, 413, REQUEST, NO, QUIET, "Too large", "Send less, or use the raw routes for large content."),
    ROW(URI_TOO_LONG, 414, REQUEST, NO, QUIET, "The request target is too long", "Send what is long in the body."),
    ROW(HEADERS_TOO_LARGE, 431, REQUEST, NO, QUIET, "The headers are too large", "Send fewer and shorter headers and cookies."),
    ROW(ARGUMENT_TOO_LONG, 413, REQUEST, NO, QUIET, "The command line is too long", "Pass large data by stdin or as a file."),
    ROW(UNSUPPORTED_MEDIA_TYPE, 415, REQUEST, NO, QUIET, "Unsupported media type", "Send the Content-Type that the detail names."),
    ROW(NOT_ACCEPTABLE, 406, REQUEST, NO, QUIET, "Not acceptable", "Ask for a type that this resource has."),
    ROW(NOT_SUPPORTED, 422, REQUEST, NO, QUIET, "Not supported here", "GET /v1/capabilities says what this server and its driver can do."),
    ROW(PRECONDITION_FAILED, 412, REQUEST, NO, QUIET, "The precondition does not hold", "Read the resource again and use its present ETag."),
    ROW(RANGE_NOT_SATISFIABLE, 416, REQUEST, NO, QUIET, "The range lies outside", "Ask for a range within the size."),
    ROW(MISDIRECTED, 421, AUTH, NO, NOTE, "Not a host of this server", "Call it by localhost or 127.0.0.1, or start the server with --api-keys-file."),
    ROW(POLICY, 422, REQUEST, NO, NOTE, "Not allowed by the operator's policy", "Ask for what the policy allows, or ask the operator."),
    ROW(UNAUTHENTICATED, 401, AUTH, NO, NOTE, "No valid API key", "Send Authorization: Bearer <key> or X-API-Key: <key>."),
    ROW(FORBIDDEN, 403, AUTH, NO, NOTE, "Forbidden", "Use a key that has the right for this."),
    ROW(BUSY, 503, LOAD, AGAIN, NOTE, "Too busy", "Try again after the seconds of Retry-After."),
    ROW(TOO_MANY, 429, LOAD, LATER, QUIET, "Too many of them", "End one that is at work, then try again."),
    ROW(STOPPING, 503, LOAD, AGAIN, NOTE, "The server is stopping", "Try again; another or the next server answers."),
    ROW(PREVIEW_PRIVATE, 403, AUTH, NO, QUIET, "The preview is private", "Open it by a link of POST …/previews/{port}/links."),
    ROW(PORT_CLOSED, 503, SERVICE, AGAIN, QUIET, "Nothing listens on the port", "Start the program that serves it; the request may be tried again."),
    ROW(BAD_ANSWER, 502, SERVICE, MAYBE, NOTE, "The program's answer is not usable", "Look at the log of the preview; the program must speak HTTP/1.1 on the port."),
    ROW(NOT_READY, 409, REQUEST, AGAIN, QUIET, "Not ready yet", "Wait until the sandbox is running, then try again."),
    ROW(FAKE_ONLY, 404, REQUEST, NO, QUIET, "Only the fake driver has this", "To test code that uses the API, start a server with --driver fake."),

    ROW(FILE_NOT_FOUND, 404, REQUEST, NO, QUIET, "No such file", "Check the path; relative ones start at the workdir."),
    ROW(IS_DIRECTORY, 409, REQUEST, NO, QUIET, "It is a directory", "Use tree for directories."),
    ROW(NOT_DIRECTORY, 409, REQUEST, NO, QUIET, "A part of the path is not a directory", "Check the path."),
    ROW(NOT_REGULAR, 409, REQUEST, NO, QUIET, "Not a regular file", "Only regular files can be read and written here."),
    ROW(NOT_EMPTY, 409, REQUEST, NO, QUIET, "The directory is not empty", "Delete with recursive=true, or empty it first."),
    ROW(PERMISSION, 403, REQUEST, NO, QUIET, "Permission denied in the sandbox", "Use a path that the sandbox's user may access."),
    ROW(READ_ONLY, 403, REQUEST, NO, QUIET, "Read-only file system", "Write below the workdir or a writable mount."),
    ROW(NO_SPACE, 507, REQUEST, NO, NOTE, "No space left in the sandbox", "Delete files, or create the sandbox with more storage."),
    ROW(LINK_LOOP, 409, REQUEST, NO, QUIET, "Too many symbolic links", "Check the links on the path."),
    ROW(NAME_TOO_LONG, 400, REQUEST, NO, QUIET, "The name is too long", "Use a name of at most 255 bytes and a path of at most 4095."),
    ROW(SIZE_MISMATCH, 502, EXEC, MAYBE, WARN, "Not all bytes arrived", "The file is as it was; try again."),
    ROW(FILE_IO, 502, EXEC, NO, NOTE, "Input/output error in the sandbox", "Look at the file with a command."),
    ROW(INVALID_ARCHIVE, 400, REQUEST, NO, QUIET, "The archive is not valid", "Send a tar, plain or in gzip or zstd, whose entries stay below its directory; `written` says what is there of it."),

    ROW(WORKDIR_NOT_FOUND, 422, EXEC, NO, QUIET, "The working directory does not exist", "Create the directory first, or leave workdir out."),
    ROW(COMMAND_NOT_FOUND, 422, EXEC, NO, QUIET, "The program does not exist", "Check cmd[0] and the PATH of the image."),
    ROW(NOT_EXECUTABLE, 422, EXEC, NO, QUIET, "The program cannot be executed", "Check the file's mode and format."),
    ROW(EXEC_FAILED, 502, EXEC, NO, WARN, "The command could not be started", "The detail has the cause; limits of processes or memory are likely."),
    ROW(TIMEOUT, 504, TIME, MAYBE, NOTE, "Timed out", "Allow more time, or detach and look later."),
    ROW(SLOW_READER, 408, EXEC, MAYBE, NOTE, "The reader was too slow", "Go on from the last event's id, and read faster."),
    ROW(NOT_WRITER, 409, REQUEST, NO, QUIET, "Another writes", "Take over to become the writer, who alone types, resizes and signals."),
    ROW(STREAM_LOST, 502, EXEC, MAYBE, WARN, "The connection to the sandbox was lost", "Read the resource again: what had been started may have been done."),
    ROW(SANDBOX_GONE, 410, EXEC, NO, NOTE, "The sandbox ended meanwhile", "Create a new one; the sandbox's record says why it ended."),
    ROW(SHELL_NOT_FOUND, 422, EXEC, NO, QUIET, "The image has no such shell", "Name a shell that the image has, or run commands without one (POST …/execs)."),
    ROW(SESSION_BUSY, 409, REQUEST, LATER, QUIET, "A command runs in the session", "Wait for its end, end it (DELETE …/execs/{n}), or use another session."),
    ROW(SESSION_ENDED, 409, REQUEST, NO, QUIET, "The session has ended", "Begin a new one; GET …/sessions/{s} says how this one ended."),
    ROW(SESSION_LIMIT, 409, REQUEST, LATER, QUIET, "Too many sessions", "Delete a session of this sandbox first."),
    ROW(SERVICE_FAILED, 502, SERVICE, NO, NOTE, "The service did not come up", "Read its log; the command must listen on the port, on all addresses."),
    ROW(CANCELLED, 409, REQUEST, NO, QUIET, "Cancelled", "Try again if it is still wanted."),

    ROW(READY_TIMEOUT, 504, PROVISION, MAYBE, WARN, "The sandbox was not ready in time", "Allow a longer ready_timeout, or look at the detail for what it waited for."),
    ROW(IMAGE_PULL_FAILED, 502, PROVISION, NO, WARN, "The image cannot be pulled", "Check the image's name and tag, and image_pull_secrets."),
    ROW(INVALID_IMAGE, 422, PROVISION, NO, NOTE, "The image or its name is not valid", "The detail says what is wrong; correct the reference or the image."),
    ROW(QUOTA_EXCEEDED, 429, PROVISION, LATER, WARN, "The quota is used up", "Delete sandboxes, ask for less, or raise the quota."),
    ROW(UNSCHEDULABLE, 503, PROVISION, LATER, WARN, "No node can take the sandbox", "Ask for fewer resources, or try again when there is room."),
    ROW(RUNTIME_CLASS_MISSING, 422, PROVISION, NO, WARN, "The runtime class does not exist", "Use a RuntimeClass that the cluster has, or leave it out."),
    ROW(RUNTIME_HANDLER_MISSING, 422, PROVISION, NO, WARN, "The node does not have the runtime", "Install the handler on the nodes, or use another runtime class."),
    ROW(ADMISSION_DENIED, 422, PROVISION, NO, WARN, "The cluster's admission refused the sandbox", "The detail has the policy's words; change the request or the policy."),
    ROW(INVALID_OBJECT, 422, PROVISION, NO, WARN, "The cluster refused the object as not valid", "Correct the field that the detail names."),
    ROW(CONTAINER_CONFIG, 422, PROVISION, NO, WARN, "The container's configuration was refused", "The detail has the node's words; the image's user or a mount is likely."),
    ROW(CONTAINER_START, 422, PROVISION, NO, WARN, "The container could not be started", "The detail has the runtime's words; check the image's platform."),
    ROW(CONTAINER_EXITED, 502, PROVISION, NO, WARN, "The container ended while starting", "The detail has its last words."),
    ROW(NETWORK_SETUP, 503, PROVISION, LATER, WARN, "The pod's network could not be set up", "Look at the node's network plugin; try again."),
    ROW(VOLUME_MOUNT, 503, PROVISION, LATER, WARN, "A volume could not be mounted", "The detail has the node's words; try again."),
    ROW(AGENT_FAILED, 502, PROVISION, NO, WARN, "The agent in the sandbox did not answer rightly", "Check that the agent's version and the image's platform fit."),
    ROW(OOM_KILLED, 502, PROVISION, NO, NOTE, "Ended for lack of memory", "Create the sandbox with more memory."),
    ROW(EVICTED, 503, PROVISION, LATER, NOTE, "Evicted from its node", "Ask for the storage and memory that are really used; try again."),
    ROW(NODE_LOST, 503, PROVISION, LATER, WARN, "Its node was lost", "Create a new sandbox."),
    ROW(LOST, 410, PROVISION, NO, WARN, "The sandbox was lost", "Create a new one."),
    ROW(REMOVED_EXTERNALLY, 410, PROVISION, NO, NOTE, "Removed by somebody else", "Create a new one."),
    ROW(DELETED, 410, REQUEST, NO, QUIET, "Deleted", "Create a new one."),
    ROW(TTL, 410, REQUEST, NO, QUIET, "Its time to live has passed", "Create a new one, with a longer ttl, or renew it in time."),
    ROW(MAX_LIFETIME, 410, REQUEST, NO, QUIET, "Its longest lifetime has passed", "Create a new one."),
    ROW(SERVER_RESTART, 503, PROVISION, AGAIN, WARN, "The server started anew meanwhile", "Try again."),

    ROW(BACKEND, 502, PROVISION, NO, FAULT, "The substrate's API failed", "The detail has its words."),
    ROW(BACKEND_UNAVAILABLE, 503, PROVISION, LATER, WARN, "The substrate's API does not answer", "Try again; requests work again by themselves."),
    ROW(BACKEND_UNAUTHORIZED, 502, PROVISION, NO, FAULT, "The substrate does not accept the server's credentials", "The operator must renew the server's token or certificate."),
    ROW(BACKEND_FORBIDDEN, 502, PROVISION, NO, FAULT, "The server lacks a right in the cluster", "The operator must grant the verb that the detail names."),
    ROW(BACKEND_THROTTLED, 503, LOAD, LATER, WARN, "The substrate's API asks to slow down", "Try again after the seconds of Retry-After."),
    ROW(BACKEND_CONFLICT, 409, PROVISION, AGAIN, NOTE, "The substrate's object changed meanwhile", "Try again."),
    ROW(BACKEND_NOT_FOUND, 502, PROVISION, NO, WARN, "An object is missing in the substrate", "Look at the sandbox's record and events."),
    ROW(BACKEND_EXPIRED, 503, PROVISION, AGAIN, NOTE, "The substrate's list expired", "Try again."),
    ROW(STORE, 500, SERVICE, NO, FAULT, "The server's store failed", "The operator must look at the store's disk."),
    ROW(STORE_FULL, 507, SERVICE, NO, FAULT, "The server's store is full", "The operator must make room on the store's disk."),
    ROW(CONFIG, 500, SERVICE, NO, FAULT, "The server's configuration is not valid", "The operator must correct the setting that the detail names."),
};
/* clang-format on */

const struct problem *problem_of(enum err_code code)
{
    return &problems[(unsigned)code < ERR_COUNT ? code : ERR_INTERNAL];
}

struct json *problem_json(const struct err *err, const char *request_id, bool again)
{
    const struct problem *problem = problem_of(err->code);
    struct json *json = json_new_object();
    cleanup_free char *type = xasprintf("/problems/%s", err_code_name(err->code));

    json_set_text(json, "type", type);
    json_set_text(json, "title", problem->title);
    json_set_int(json, "status", problem->status);
    json_set_text(json, "detail", err->msg);
    json_set_text(json, "category", problem->category);
    json_set_text(json, "code", err_code_name(err->code));
    json_set_bool(json, "retryable", problem->retryable || again);
    json_set_text(json, "remediation", problem->remediation);
    if (request_id)
        json_set_text(json, "request_id", request_id);
    return json;
}
