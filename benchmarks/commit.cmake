# SPDX-License-Identifier: Apache-2.0
# Run with -P at every build: writes OUT with the commit of SOURCE_DIR, and touches it only when that changed. A tree that
# differs from its commit is "-dirty"; a source package without git is "unknown".
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "// SPDX-License-Identifier: Apache-2.0
#pragma once

#define KVRING_COMMIT \"@commit@\"
" @ONLY)
