// SPDX-License-Identifier: Apache-2.0
// Where tests find what is not in the repository.
#pragma once

#include <string>

namespace kvring {

// Path of the small real model, or empty: KVRING_TEST_MODEL, else the user's cache folder.
std::string RealModelPath();
// Path of a text of the evaluation data (KVRING_TEST_DATA, else ../shared/data from the root), or empty.
std::string TestDataPath(const std::string& name);

}  // namespace kvring
