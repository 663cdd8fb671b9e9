#include "tar/locale.h"

bool tar_locale_enter(struct tar_locale *locale)
{
    locale->utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (locale->utf8 == (locale_t)0)
        return false;
    locale->before = uselocale(locale->utf8);
    return true;
}

void tar_locale_leave(struct tar_locale *locale)
{
    if (locale->utf8 == (locale_t)0)
        return;
    uselocale(locale->before);
    freelocale(locale->utf8);
    locale->utf8 = (locale_t)0;
}
