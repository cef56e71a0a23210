// SPDX-License-Identifier: Apache-2.0
// The communicator table: name -> factory. Another transport is one more file and one row; the conformance suite walks it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace kvring {

struct CommunicatorOptions {
  int ranks = 1;        // "inproc" only; a launcher decides for the others
  int* argc = nullptr;  // of main, for MPI
  char*** argv = nullptr;
};

struct CommunicatorRow {
  const char* name;
  const char* summary;  // one line for --help
  // The ranks that live in this process, ascending: all of them as threads, or one.
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> (*make)(const CommunicatorOptions&);
};

std::span<const CommunicatorRow> AllCommunicators();

// INVALID_ARGUMENT naming what exists.
absl::StatusOr<const CommunicatorRow*> FindCommunicator(const std::string& name);

}  // namespace kvring
