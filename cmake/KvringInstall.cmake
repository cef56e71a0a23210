# SPDX-License-Identifier: Apache-2.0
# Install and export: static libraries kvring::base ..., headers under include/kvring by their path from the project's
# root, the program, and a package that find_package(kvring) reads. tests/package builds a consumer against it.
include(CMakePackageConfigHelpers)
set(KVRING_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvring)

get_property(libraries GLOBAL PROPERTY KVRING_LIBRARIES)
foreach(library ${libraries})
  get_target_property(header_sets ${library} HEADER_SETS)
  set(headers "")
  if(header_sets)
    set(headers FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvring)
  endif()
  install(TARGETS ${library} EXPORT kvringTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${headers})
endforeach()
if(TARGET kvring)
  install(TARGETS kvring RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # The program looks for them at ../share/kvring/calibration from its own folder.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/launch/calibration/ DESTINATION ${CMAKE_INSTALL_DATADIR}/kvring/calibration
    FILES_MATCHING PATTERN "*.safetensors")
endif()

if(libraries)
  install(EXPORT kvringTargets NAMESPACE kvring:: DESTINATION ${KVRING_PACKAGE_DIR})
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvringConfig.cmake.in
  ${PROJECT_BINARY_DIR}/kvringConfig.cmake INSTALL_DESTINATION ${KVRING_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvringConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvringConfig.cmake ${PROJECT_BINARY_DIR}/kvringConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindDnnl.cmake DESTINATION ${KVRING_PACKAGE_DIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
