// SPDX-License-Identifier: Apache-2.0
#include "dist/communicator_registry.h"

#include "dist/inproc_communicator.h"
#include "dist/mpi_communicator.h"

namespace kvring {
namespace {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

absl::StatusOr<Ranks> MakeInproc(const CommunicatorOptions& options) {
  if (options.ranks < 1 || options.ranks > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.ranks, " ranks; must be from 1 to 4096"));
  }
  return MakeInprocCommunicators(options.ranks);
}

absl::StatusOr<Ranks> MakeMpi(const CommunicatorOptions& options) {
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> own,
                          CreateMpiCommunicator(options.argc, options.argv));
  Ranks ranks;
  ranks.push_back(std::move(own));
  return ranks;
}

constexpr CommunicatorRow kRows[] = {
    {"inproc", "ranks as threads of one process", MakeInproc},
    {"mpi", "ranks as processes of an MPI job", MakeMpi},
};

}  // namespace

std::span<const CommunicatorRow> AllCommunicators() { return kRows; }

absl::StatusOr<const CommunicatorRow*> FindCommunicator(const std::string& name) {
  std::string known;
  for (const CommunicatorRow& row : kRows) {
    if (name == row.name) return &row;
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no communicator \"", name, "\"; there are ", known));
}

}  // namespace kvring
