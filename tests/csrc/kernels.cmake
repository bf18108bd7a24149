# The kernels' tests, once on the best instruction set here and on the portable one.
foreach(name linear pool rows)
  add_executable(kernels_${name}_test kernels_${name}_test.cc)
  target_link_libraries(kernels_${name}_test PRIVATE kernels)
  add_test(NAME kernels_${name} COMMAND kernels_${name}_test)
  set_tests_properties(kernels_${name} PROPERTIES TIMEOUT 120)
endforeach()
foreach(name linear rows)
  add_test(NAME kernels_${name}_portable COMMAND kernels_${name}_test)
  set_tests_properties(kernels_${name}_portable PROPERTIES
    TIMEOUT 120 ENVIRONMENT ATB_DIST_SIMD=portable)
endforeach()
