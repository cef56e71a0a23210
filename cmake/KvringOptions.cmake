# SPDX-License-Identifier: Apache-2.0
# Compile flags that every target of ours shares, carried by one interface target.
add_library(kvring_options INTERFACE)
target_compile_features(kvring_options INTERFACE cxx_std_20)
target_compile_options(kvring_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -Wno-sign-compare>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KVRING_WERROR}>>:-Werror>
  # GCC 12 sees overlapping copies in "text" + std::string that do not exist (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KVRING_WERROR}>,$<CXX_COMPILER_ID:GNU>>:-Wno-error=restrict>
  # Contraction of a*b+c would let two compilers give two answers: fused operations are written out.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Highway's dynamic dispatch needs a baseline with SSE4; better instruction sets are chosen at run time.
  target_compile_options(kvring_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v2>)
endif()
if(KVRING_SANITIZE)
  target_compile_options(kvring_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${KVRING_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(kvring_options INTERFACE -fsanitize=${KVRING_SANITIZE})
  if(KVRING_SANITIZE MATCHES "address")
    # GCC's macro, which clang 19 does not set.
    target_compile_definitions(kvring_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:__SANITIZE_ADDRESS__=1>)
  endif()
endif()
if(KVRING_FUZZ)
  # Coverage that libFuzzer steers by; its main() is linked by the targets of tests/fuzz alone.
  target_compile_options(kvring_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
find_program(KVRING_CCACHE ccache)
if(KVRING_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVRING_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${KVRING_CCACHE})
endif()
