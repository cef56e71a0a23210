# SPDX-License-Identifier: Apache-2.0
# oneDNN of the system as Dnnl::dnnl. (Debian's own CMake config stops without OpenCL.)
find_library(DNNL_LIBRARY dnnl)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Dnnl REQUIRED_VARS DNNL_LIBRARY DNNL_INCLUDE_DIR)
if(Dnnl_FOUND AND NOT TARGET Dnnl::dnnl)
  add_library(Dnnl::dnnl UNKNOWN IMPORTED)
  set_target_properties(Dnnl::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
mark_as_advanced(DNNL_LIBRARY DNNL_INCLUDE_DIR)
