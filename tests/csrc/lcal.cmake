# lcal's tests: ranks as threads, and forked ranks where one has to die.
foreach(name arena collectives failure reduce wire)
  add_executable(lcal_${name}_test lcal_${name}_test.cc)
  target_link_libraries(lcal_${name}_test PRIVATE lcal)
  add_test(NAME lcal_${name} COMMAND lcal_${name}_test)
  set_tests_properties(lcal_${name} PROPERTIES TIMEOUT 120)
endforeach()
