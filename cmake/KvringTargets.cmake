# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)

# kvring_library(NAME SOURCES a.cc ... HEADERS a.h ... DEPS target ... [PRIVATE_DEPS target ...])
# One static library kvring_NAME, alias kvring::NAME. Headers are included by their path from the project's root.
function(kvring_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(kvring_${name} STATIC ${ARG_SOURCES})
  add_library(kvring::${name} ALIAS kvring_${name})
  set_target_properties(kvring_${name} PROPERTIES EXPORT_NAME ${name})
  target_sources(kvring_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_include_directories(kvring_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/kvring>)
  target_link_libraries(kvring_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:kvring_options>)
  target_compile_features(kvring_${name} PUBLIC cxx_std_20)
  set_property(GLOBAL APPEND PROPERTY KVRING_LIBRARIES kvring_${name})
endfunction()

# kvring_test(NAME SOURCES x_test.cc ... DEPS target ... [LABELS l ...] [TIMEOUT s])
# One test binary per folder: test_NAME, registered with CTest as a whole.
function(kvring_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${ARG_DEPS} kvring_options GTest::gmock GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  add_test(NAME ${name} COMMAND test_${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "OMP_WAIT_POLICY=passive;ASAN_OPTIONS=detect_leaks=1;${ARG_ENVIRONMENT}")
endfunction()

# kvring_mpi_test(NAME BINARY target RANKS n [ARGS ...] [TIMEOUT s] [LABELS l ...]): runs a binary under mpirun.
function(kvring_mpi_test name)
  cmake_parse_arguments(ARG "" "BINARY;RANKS;TIMEOUT" "ARGS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND mpirun -n ${ARG_RANKS} $<TARGET_FILE:${ARG_BINARY}> ${ARG_ARGS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2 LABELS "mpi;${ARG_LABELS}"
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none;OMPI_MCA_mpi_yield_when_idle=1;OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive;ASAN_OPTIONS=detect_leaks=0")
endfunction()

# Every room brings its own list of sources.
macro(kvring_rooms)
  foreach(room ${ARGN})
    add_subdirectory(${room})
  endforeach()
endmacro()
