#pragma once

#include "base/pipe.h"
#include "tar/writer.h"

/* What an agent packs (OP_PACK), as a tar with the sandbox's secrets masked at equal length. When
 * it is not just what lies in the sandbox, the last entry is PACK_REPORT: a JSON object with what
 * was left out, what changed while it was read, and how many secrets were masked. */
struct sandbox;

#define PACK_REPORT ".podsandbox-archive.json"

/* RAW is the download of the call, OUT gets the archive, and its end; each is referenced. */
int pack_start(struct sandbox *sandbox, struct pipe *raw, enum tar_filter filter, struct pipe *out,
               struct err *err) must_check;
