// The date for templates that state it.
#ifndef QUIRE_APPS_DATE_H_
#define QUIRE_APPS_DATE_H_

#include <string>

namespace quire::app {

/// The local date now by a format of strftime.
std::string DateNow(const std::string& format);

}  // namespace quire::app

#endif  // QUIRE_APPS_DATE_H_
