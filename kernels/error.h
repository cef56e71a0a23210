// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvring {

// What a kernel reports: null when all went well, else a static string. Callers check shapes before the call;
// kernels report only what data alone can show (a NaN, an unsupported size). Not owned, never freed.
struct Error {
  const char* message = nullptr;
  explicit operator bool() const { return message != nullptr; }
};

}  // namespace kvring
