/* The HTTP core without the domain below: what it needs of it for previews, which these tests have
 * none of. */
#include "sandbox/preview_access.h"
#include "sandbox/tunnel.h"
#include "tests/unit/suite.h"

#define NOT_CALLED() ck_abort_msg("%s was called", __func__)

int tunnel_open(struct sandbox *sandbox, int64_t port, struct pipe *out, struct tunnel **ret_tunnel,
                struct err *err)
{
    (void)sandbox, (void)port, (void)out, (void)ret_tunnel;
    NOT_CALLED();
    return err_set(err, ERR_INTERNAL, "not called");
}

struct tunnel *tunnel_reuse(struct sandbox *sandbox, int64_t port)
{
    (void)sandbox, (void)port;
    NOT_CALLED();
    return NULL;
}

struct pipe *tunnel_in(const struct tunnel *tunnel)
{
    (void)tunnel;
    NOT_CALLED();
    return NULL;
}

struct pipe *tunnel_out(const struct tunnel *tunnel)
{
    return tunnel_in(tunnel);
}

void tunnel_keep(struct tunnel *tunnel)
{
    (void)tunnel;
    NOT_CALLED();
}

void tunnel_close(struct tunnel *tunnel)
{
    (void)tunnel;
    NOT_CALLED();
}

int preview_find(struct sandboxes *all, const char *host, struct preview_target *ret_target,
                 struct err *err)
{
    (void)all, (void)host, (void)ret_target;
    NOT_CALLED();
    return err_set(err, ERR_INTERNAL, "not called");
}

int preview_private_check(const struct preview_target *target, struct err *err)
{
    (void)target;
    NOT_CALLED();
    return err_set(err, ERR_INTERNAL, "not called");
}

bool preview_recall(struct sandboxes *all, const char *host, struct preview_target *ret_target)
{
    (void)all, (void)host, (void)ret_target;
    NOT_CALLED();
    return false;
}

void preview_target_done(struct preview_target *target)
{
    (void)target;
    NOT_CALLED();
}

char *preview_url(const struct sandboxes *all, const char *host)
{
    (void)all, (void)host;
    NOT_CALLED();
    return NULL;
}

void preview_ticket_make(const struct preview_target *target, enum preview_ticket kind,
                         int64_t expires_s, char ret_ticket[PREVIEW_TICKET_LEN])
{
    (void)target, (void)kind, (void)expires_s, (void)ret_ticket;
    NOT_CALLED();
}

bool preview_ticket_check(const struct preview_target *target, enum preview_ticket kind,
                          const char *ticket, int64_t now_s, int64_t *ret_expires_s)
{
    (void)target, (void)kind, (void)ticket, (void)now_s, (void)ret_expires_s;
    NOT_CALLED();
    return false;
}
