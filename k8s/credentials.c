#include "k8s/credentials.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/str.h"
#include "k8s/file.h"
#include "k8s/plugin.h"

#define LOOK_EVERY_MS 1000  /* at the files' times */
#define READ_EVERY_MS 60000 /* whatever their times say */
#define EXPIRY_MARGIN_MS 10000
#define PLUGIN_RETRY_MS 5000
#define CREDENTIAL_FILE_MAX (1 * MIB)

enum { FILE_TOKEN, FILE_CA, FILE_CERT, FILE_KEY, FILE_COUNT };

struct watched {
    const char *path; /* NULL: not from a file */
    char *text;       /* last good contents */
    struct timespec changed;
    ino_t inode;
};

struct credentials {
    struct access access;
    pthread_mutex_t lock;        /* all below */
    pthread_mutex_t plugin_lock; /* taken before `lock`: one plugin run at a time */
    struct watched files[FILE_COUNT];
    struct plugin_credential from_plugin;
    bool plugin_due;
    struct err plugin_failure; /* of the last run, under plugin_lock, as is the next */
    int64_t plugin_retry_ms;
    int64_t looked_ms, read_ms;
    struct auth *current;
};

static void free_text(const char *text)
{
    if (text != NULL)
        free_secret((void *)(uintptr_t)text, strlen(text));
}

void auth_unref(struct auth *auth)
{
    if (auth == NULL || atomic_fetch_sub(&auth->refs, 1) != 1)
        return;
    free_text(auth->token);
    free_text(auth->tls.ca_pem);
    free_text(auth->tls.cert_pem);
    free_text(auth->tls.key_pem);
    free_text(auth->tls.server_name);
    free(auth);
}

void auth_unrefp(struct auth **auth)
{
    auth_unref(*auth);
}

char *auth_header(const struct auth *auth)
{
    return auth->token != NULL ? xasprintf("Authorization: Bearer %s", auth->token) : NULL;
}

void auth_scrub(const struct auth *auth, struct err *err)
{
    size_t len = auth->token != NULL ? strlen(auth->token) : 0;
    char *at;

    if (len < 8) /* no token is that short, and masking "a" would make nonsense of the message */
        return;
    while ((at = strstr(err->msg, auth->token)) != NULL) {
        memmove(at + 3, at + len, strlen(at + len) + 1);
        for (int i = 0; i < 3; i++)
            at[i] = '*';
    }
}

/* --- files --------------------------------------------------------------------------------------
 */

static size_t count_of(const char *text, const char *what)
{
    size_t count = 0;

    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + strlen(what), what))
        count++;
    return count;
}

/* Whether TEXT can be the whole of such a file; OLD (may be NULL) is the last good one. A JWT keeps
 * its number of dots; a PEM file ends with the end of a block. */
static bool is_whole(int which, const char *text, const char *old)
{
    if (which == FILE_TOKEN)
        return text[0] != '\0' && str_is_printable(text, strlen(text)) &&
               (old == NULL || count_of(old, ".") != 2 || count_of(text, ".") == 2);
    return count_of(text, "-----BEGIN ") > 0 && str_ends(text, "-----") &&
           count_of(text, "-----BEGIN ") == count_of(text, "-----END ");
}

static char *read_whole(int which, const char *path, const char *old, struct err *err)
{
    cleanup(buf_wipe) struct buf text = BUF_INIT(CREDENTIAL_FILE_MAX);

    if (file_read(path, &text, err) < 0)
        return NULL;
    while (text.len > 0 && strchr(" \t\r\n", text.ptr[text.len - 1]) != NULL)
        text.ptr[--text.len] = '\0';
    if (memchr(buf_text(&text), '\0', text.len) != NULL || !is_whole(which, buf_text(&text), old)) {
        (void)err_set(err, ERR_CONFIG, "%s is empty or not whole", path);
        return NULL;
    }
    return buf_take(&text, NULL);
}

/* Reads the file if it looks new, or ANYWAY. Returns whether its text is another one now. */
static bool look_at(struct watched *file, int which, bool anyway, struct err *err)
{
    struct stat st;
    char *text;

    if (file->path == NULL || stat(file->path, &st) < 0)
        return false;
    if (!anyway && st.st_ino == file->inode && st.st_mtim.tv_sec == file->changed.tv_sec &&
        st.st_mtim.tv_nsec == file->changed.tv_nsec)
        return false;
    text = read_whole(which, file->path, file->text, err);
    if (text == NULL)
        return false; /* looked at again next time: the times are not remembered */
    file->inode = st.st_ino;
    file->changed = st.st_mtim;
    if (file->text != NULL && strcmp(file->text, text) == 0) {
        free_text(text);
        return false;
    }
    free_text(file->text);
    file->text = text;
    return true;
}

/* --- the current state -------------------------------------------------------------------------
 */

static char *copy(const char *text)
{
    return text != NULL ? xstrdup(text) : NULL;
}

static const char *first_of(const char *a, const char *b, const char *c)
{
    return a != NULL ? a : b != NULL ? b : c;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* With the lock held, or before other threads know of it. */
static void rebuild(struct credentials *self)
{
    const struct access *from = &self->access;
    struct auth *auth = xcalloc(1, sizeof(*auth));
    struct auth *old = self->current;

    atomic_init(&auth->refs, 1);
    auth->token =
        copy(first_of(self->from_plugin.token, self->files[FILE_TOKEN].text, from->token));
    auth->tls = (struct http_tls){
        .ca_pem = copy(first_of(from->ca_data, self->files[FILE_CA].text, NULL)),
        .cert_pem = copy(
            first_of(self->from_plugin.cert_data, from->cert_data, self->files[FILE_CERT].text)),
        .key_pem =
            copy(first_of(self->from_plugin.key_data, from->key_data, self->files[FILE_KEY].text)),
        .server_name = copy(from->server_name),
        .insecure = from->insecure,
    };
    auth->version = old != NULL ? old->version + 1 : 1;
    auth->tls_version = 1;
    if (old != NULL)
        auth->tls_version = old->tls_version + !(same(old->tls.ca_pem, auth->tls.ca_pem) &&
                                                 same(old->tls.cert_pem, auth->tls.cert_pem) &&
                                                 same(old->tls.key_pem, auth->tls.key_pem));
    self->current = auth;
    auth_unref(old);
}

/* With the lock held. */
static void look(struct credentials *self, bool anyway)
{
    int64_t now = clock_now_ms();
    bool read_all = anyway || now - self->read_ms >= READ_EVERY_MS;
    bool changed = false;

    if (!read_all && now - self->looked_ms < LOOK_EVERY_MS)
        return;
    self->looked_ms = now;
    if (read_all)
        self->read_ms = now;
    for (int i = 0; i < FILE_COUNT; i++)
        changed |= look_at(&self->files[i], i, read_all, NULL);
    if (changed)
        rebuild(self);
}

static int first_look(struct credentials *self, struct err *err)
{
    for (int i = 0; i < FILE_COUNT; i++) {
        struct watched *file = &self->files[i];
        struct err why = {.code = ERR_NONE};

        if (file->path == NULL || look_at(file, i, true, &why))
            continue;
        if (why.code == ERR_NONE)
            return err_set(err, ERR_CONFIG, "%s does not exist", file->path);
        return err_set(err, why.code, "%s", why.msg);
    }
    return 0;
}

struct credentials *credentials_new(struct access *access, struct err *err)
{
    struct credentials *self = xcalloc(1, sizeof(*self));

    self->access = *access;
    *access = (struct access){.server = NULL};
    access = &self->access;
    pthread_mutex_init(&self->lock, NULL);
    pthread_mutex_init(&self->plugin_lock, NULL);
    self->files[FILE_TOKEN].path = access->token_file;
    self->files[FILE_CA].path = access->ca_data == NULL ? access->ca_file : NULL;
    self->files[FILE_CERT].path = access->cert_data == NULL ? access->cert_file : NULL;
    self->files[FILE_KEY].path = access->key_data == NULL ? access->key_file : NULL;
    self->plugin_due = access->plugin.command != NULL;
    self->looked_ms = self->read_ms = clock_now_ms();
    if (first_look(self, err) < 0) {
        credentials_free(self);
        return NULL;
    }
    rebuild(self);
    return self;
}

void credentials_free(struct credentials *self)
{
    if (self == NULL)
        return;
    for (int i = 0; i < FILE_COUNT; i++)
        free_text(self->files[i].text);
    plugin_credential_done(&self->from_plugin);
    auth_unref(self->current);
    access_done(&self->access);
    pthread_mutex_destroy(&self->lock);
    pthread_mutex_destroy(&self->plugin_lock);
    free(self);
}

const struct access *credentials_access(const struct credentials *self)
{
    return &self->access;
}

/* --- plugins ------------------------------------------------------------------------------------
 */

/* Not again soon after the last run, whatever it brought: a plugin that cannot sign in, or whose
 * token the server refuses, must not be started for every request. */
static bool plugin_needed(struct credentials *self)
{
    int64_t expires;
    bool has, needed;

    pthread_mutex_lock(&self->lock);
    expires = self->from_plugin.expires_wall_ms;
    has = self->from_plugin.token != NULL || self->from_plugin.cert_data != NULL;
    needed =
        self->access.plugin.command != NULL &&
        (self->plugin_due || (expires != 0 && clock_wall_ms() + EXPIRY_MARGIN_MS >= expires)) &&
        (!has || clock_now_ms() >= self->plugin_retry_ms);
    pthread_mutex_unlock(&self->lock);
    return needed;
}

/* With the plugin lock held and `lock` not. */
static int run_plugin(struct credentials *self, struct err *err)
{
    struct plugin_credential got;
    int rc;

    if (clock_now_ms() < self->plugin_retry_ms) /* written under both locks */
        return err_set(err, ERR_BACKEND_UNAUTHORIZED, "%s", self->plugin_failure.msg);
    rc = plugin_run(&self->access.plugin, &got, &self->plugin_failure);
    pthread_mutex_lock(&self->lock);
    self->plugin_retry_ms = clock_now_ms() + PLUGIN_RETRY_MS;
    if (rc == 0) {
        plugin_credential_done(&self->from_plugin);
        self->from_plugin = got;
        self->plugin_due = false;
        rebuild(self);
    }
    pthread_mutex_unlock(&self->lock);
    if (rc < 0)
        return err_set(err, ERR_BACKEND_UNAUTHORIZED, "%s", self->plugin_failure.msg);
    return 0;
}

struct auth *credentials_get(struct credentials *self, bool may_block, struct err *err)
{
    struct auth *auth;

    if (plugin_needed(self)) {
        int rc = 0;

        if (!may_block) {
            (void)err_set(err, ERR_BUSY, "the credential plugin has to run first");
            return NULL;
        }
        pthread_mutex_lock(&self->plugin_lock);
        if (plugin_needed(self))
            rc = run_plugin(self, err);
        pthread_mutex_unlock(&self->plugin_lock);
        if (rc < 0)
            return NULL;
    }
    pthread_mutex_lock(&self->lock);
    look(self, false);
    auth = self->current;
    atomic_fetch_add(&auth->refs, 1);
    pthread_mutex_unlock(&self->lock);
    return auth;
}

void credentials_renew(struct credentials *self, const struct auth *rejected)
{
    pthread_mutex_lock(&self->lock);
    if (self->current->version == rejected->version) {
        if (self->access.plugin.command != NULL)
            self->plugin_due = true;
        look(self, true);
    }
    pthread_mutex_unlock(&self->lock);
}
