// SPDX-License-Identifier: Apache-2.0
// absl::Status on every border of ours; these macros pass it on.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns the status from the enclosing function unless it is OK.
#define KVRING_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                     \
    if (absl::Status kvring_status_ = (expr); !kvring_status_.ok()) return kvring_status_; \
  } while (false)

#define KVRING_CONCAT_INNER(a, b) a##b
#define KVRING_CONCAT(a, b) KVRING_CONCAT_INNER(a, b)

// KVRING_ASSIGN_OR_RETURN(auto x, F()); assigns the value of a StatusOr or returns its status.
#define KVRING_ASSIGN_OR_RETURN(lhs, expr) \
  KVRING_ASSIGN_OR_RETURN_INNER(KVRING_CONCAT(kvring_statusor_, __LINE__), lhs, expr)
#define KVRING_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  lhs = std::move(tmp).value()

namespace kvring {

// The same code, with "context: " before the message. OK stays OK.
inline absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

}  // namespace kvring
