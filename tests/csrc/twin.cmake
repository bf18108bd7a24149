# The host twin's own tests, and the AscendC kernels under it.
foreach(name sync limits numbers cube)
  add_executable(twin_${name}_test twin_${name}_test.cc)
  target_link_libraries(twin_${name}_test PRIVATE kernels_twin)
  add_test(NAME twin_${name} COMMAND twin_${name}_test)
  set_tests_properties(twin_${name} PROPERTIES TIMEOUT 120)
endforeach()
